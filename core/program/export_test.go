package program

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/goccl/goccl/core/plan"
)

// built is a collective as package plan builds it, of parameters of rank 0.
type built struct {
	plan.Params
	elements int64 // of a block
}

func (b *built) String() string {
	return fmt.Sprintf("%v by %v ranks=%d root=%d elements=%d memory=%v radices=%v %+v",
		b.Collective, b.Algorithm, b.Size, b.Root, b.elements, b.Memory, b.Radices, b.Thresholds)
}

// job is a program with the collective's sizes.
func (b *built) job(p Program) *job {
	return &job{Program: p, elements: []int64{b.elements}, chunk: b.Chunk, slots: b.Slots,
		ahead: b.Ahead, scratch: 1 << 30}
}

// eachBuilt calls f with collectives among so many ranks, by all algorithms that can do them.
func eachBuilt(n int, f func(b *built)) {
	radices := map[int][][]int{4: {{2, 2}}, 5: {{2, 3}, {4, 2}}, 6: {{2, 3}}, 7: {{2, 2, 2}},
		8: {{2, 4}, {4, 2}, {2, 2, 2}}}[n]
	for c := range collectives {
		of := collectives[c]
		roots := []int{0, n / 2, n - 1}
		if !of.Rooted() {
			roots = roots[:1]
		}
		for _, a := range plan.Algorithms(of) {
			for _, root := range roots {
				for _, elements := range []int64{1, 16 * 840} {
					for _, memory := range []bool{false, true} {
						for _, r := range append(radices, nil) {
							if a.InLevels() != (r != nil) {
								continue
							}
							b := built{elements: elements, Params: plan.Params{Collective: of, Algorithm: a, Size: n,
								Root: root, ElemSize: 4, Chunk: 1 << 20, Slots: 4, Ahead: 1, Memory: memory,
								Radices: r}}
							if memory {
								b.SwapMin, b.MulticastMin = 1024, 1024
							}
							if memory && a == plan.SingleCopy {
								b.GetMin = 1024
							}
							if a == plan.OneShot {
								b.OneShotMax = 1 << 20
							}
							if a == plan.Pairwise {
								b.Schedule = 2
							}
							j := b.job(Program{Collective: of, Ranks: n, Root: root})
							q := j.rank(0)
							b.InBytes, b.OutBytes = q.InBytes, q.OutBytes
							if b.CheckAlgorithm() == nil && (a != plan.Direct || b.HasDirect()) {
								f(&b)
							}
						}
					}
				}
			}
		}
	}
}

// What is exported is right, in the canonical order, for all lengths; and its plans send no more
// messages than those from which it comes.
func TestExport(t *testing.T) {
	type way struct {
		c plan.Collective
		a plan.Algorithm
	}
	ways := map[way]bool{}
	for n := 1; n <= 8; n++ {
		seen := map[string]bool{}
		eachBuilt(n, func(b *built) {
			c, err := Export("exported", b.Params)
			if err != nil {
				t.Fatalf("%v: %v", b, err)
			}
			again, err := Parse(c.Text())
			if err != nil {
				t.Fatalf("%v: %v", b, err)
			}
			if c, err = Check(again); err != nil {
				t.Fatalf("%v: %v", b, err)
			}
			ways[way{b.Collective, b.Algorithm}] = true
			compare(t, b, c)
			key := string(c.Text())
			if seen[key] {
				return
			}
			seen[key] = true
			rnd := rand.New(rand.NewPCG(uint64(n), 0))
			for _, elements := range [][]int64{{1}, {37, 0, 500, 5}} {
				j := b.job(c.Program)
				if j.elements, j.chunk = elements, 512; c.Collective.Reduces() && len(elements) > 1 {
					j.partial = 8
				}
				if err := j.prove(c, rnd); err != nil {
					t.Fatalf("%v: %v: %v\n%s", b, j, err, c.Text())
				}
			}
		})
	}
	for _, of := range collectives {
		for _, a := range plan.Algorithms(of) {
			if !ways[way{of, a}] {
				t.Errorf("%v by %v was not exported", of, a)
			}
		}
	}
}

// compare asks that a program sends no more messages, and no more bytes, than what it comes from.
// But a message of a program has one block, and those in levels and along trees may have several.
func compare(t *testing.T, b *built, c *Checked) {
	t.Helper()
	b.SwapMin = 0 // of which a program has nothing
	n, bytes := b.crossings(t, plan.Build, b.Algorithm)
	got, gotBytes := b.crossings(t, c.Planner().Plan, plan.Registered)
	blocks := c.Blocks(Input)+c.Blocks(Output) > 2 && (b.Algorithm.InLevels() ||
		b.Algorithm == plan.BinomialTree)
	if got > n && !blocks || gotBytes > bytes {
		t.Errorf("%v: the program has %d messages, %d bytes, that from which it comes %d, %d\n%s", b, got,
			gotBytes, n, bytes, c.Text())
	}
}

// crossings is how often something goes from one rank to another, and how many bytes that are: in a
// message, in one that goes back, or in the memory of a peer.
func (b *built) crossings(
	t *testing.T, build func(plan.Params) (*plan.Plan, error), a plan.Algorithm,
) (n int, bytes int64) {
	t.Helper()
	j := b.job(Program{Collective: b.Collective, Ranks: b.Size, Root: b.Root})
	for r := range b.Size {
		of, q := j.rank(r), b.Params
		q.Rank, q.InBytes, q.OutBytes, q.Algorithm, q.Scratch = r, of.InBytes, of.OutBytes, a, 1<<30
		p, err := build(q)
		if err != nil {
			t.Fatalf("%v: %v", b, err)
		}
		for i := range p.Steps {
			s, times := &p.Steps[i], 0
			switch s.Op {
			case plan.Put, plan.Get:
				times = 1
			case plan.PutToAll:
				times = b.Size - 1
			case plan.Copy, plan.Combine:
				for _, ref := range slices.Concat([]plan.Ref{s.Dst}, s.Src, s.Also) {
					if ref.Space == plan.Outbox || ref.Space == plan.PeerIn || ref.Space == plan.PeerOut {
						times++
					}
				}
			}
			if s.Bytes > 0 {
				n, bytes = n+times, bytes+int64(times)*s.Bytes
			}
		}
	}
	return n, bytes
}

// Copies that nobody needs are left out, so that a collective comes back as a user would write it.
func TestExportIsShort(t *testing.T) {
	for _, c := range []struct {
		algorithm plan.Algorithm
		memory    bool
		want      Program
	}{
		{plan.OneShot, false, oneShot(4, 1)},
		{plan.OneShot, true, oneShot(4, 1)},
		{plan.TwoShot, false, twoShotOfInputs(4)},
		{plan.TwoShot, true, twoShotOfInputs(4)},
	} {
		q := plan.Params{Collective: plan.AllReduce, Algorithm: c.algorithm, Size: 4,
			InBytes: []int64{1 << 20}, OutBytes: []int64{1 << 20}, ElemSize: 4, Chunk: 1 << 16, Slots: 4,
			Memory: c.memory}
		if c.algorithm == plan.OneShot {
			q.OneShotMax = 1 << 30
		}
		got, err := Export(c.want.Name, q)
		if err != nil {
			t.Fatal(err)
		}
		for i := range got.Moves { // in which order sources are named does not count
			slices.SortFunc(got.Moves[i].From, func(a, b Place) int { return a.Rank - b.Rank })
		}
		for i := range c.want.Moves {
			slices.SortFunc(c.want.Moves[i].From, func(a, b Place) int { return a.Rank - b.Rank })
		}
		if string(got.Text()) != string(c.want.Text()) {
			t.Errorf("%v, memory=%v: it is\n%s, want\n%s", c.algorithm, c.memory, got.Text(), c.want.Text())
		}
	}
}

// twoShotOfInputs has each rank reduce a chunk of all inputs, and then send it to all.
func twoShotOfInputs(n int) Program {
	p := Program{Name: "two_shot", Collective: plan.AllReduce, Ranks: n, In: n, Out: n}
	for me := range n {
		var from []Place
		for r := range n {
			from = append(from, at(r, Input, me, 1))
		}
		p.reduce([]Place{at(me, Output, me, 1)}, from...)
	}
	for d := 1; d < n; d++ {
		for me := range n {
			p.copy(at((me+d)%n, Output, me, 1), at(me, Output, me, 1))
		}
	}
	return p
}

// What is too much is refused before it takes much memory, and what is no program by name.
func TestExportRefuses(t *testing.T) {
	of := func(c plan.Collective, a plan.Algorithm, n int) plan.Params {
		return plan.Params{Collective: c, Algorithm: a, Size: n, InBytes: []int64{64},
			OutBytes: []int64{64}, ElemSize: 4, Chunk: 1 << 16, Slots: 4}
	}
	for _, c := range []struct {
		plan.Params
		want string
	}{
		{of(plan.Barrier, plan.Dissemination, 2), "cannot be a program"},
		{of(plan.AllToAll, plan.Linear, 2048), "steps; 1048576 are allowed"},
		{of(plan.AllReduce, plan.TwoShot, 4097), "at most 4096 ranks"},
		{of(plan.AllReduce, plan.Linear, 2), "has no algorithm linear"},
	} {
		if _, err := Export("x", c.Params); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v by %v: %v, want %q", c.Collective, c.Algorithm, err, c.want)
		}
	}
}
