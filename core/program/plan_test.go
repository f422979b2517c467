package program

import (
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"slices"
	"testing"

	"github.com/goccl/goccl/core/plan"
)

// job is a program with sizes.
type job struct {
	Program
	// elements of a block; of uneven blocks, of each rank
	elements []int64
	partial  int64
	chunk    int64
	slots    int
	ahead    int
	anyOrder bool
	scratch  int64
}

func (j *job) String() string {
	return fmt.Sprintf("%s %v ranks=%d chunks=%d:%d:%d elements=%v partial=%d chunk=%d slots=%d "+
		"ahead=%d", j.Name, j.Collective, j.Ranks, j.In, j.Out, j.Scratch, j.elements, j.partial,
		j.chunk, j.slots, j.ahead)
}

func (j *job) rank(r int) plan.Params {
	q := plan.Params{Collective: j.Collective, Algorithm: plan.Registered, Rank: r, Size: j.Ranks,
		Root: j.Root, ElemSize: 4, PartialSize: j.partial, Chunk: j.chunk, Slots: j.slots,
		Ahead: j.ahead, AnyOrder: j.anyOrder, Scratch: j.scratch}
	bytes := make([]int64, len(j.elements))
	for i, n := range j.elements {
		bytes[i] = 4 * n
	}
	each := func(i int) int64 { return bytes[i%len(bytes)] }
	blocks := make([]int64, j.Ranks)
	for i := range blocks {
		blocks[i] = each(i)
	}
	switch j.Collective {
	case plan.AllReduce:
		q.InBytes, q.OutBytes = bytes, bytes
	case plan.Reduce:
		q.InBytes, q.OutBytes = bytes[:1], bytes[:1]
	case plan.Broadcast:
		q.OutBytes = bytes[:1]
	case plan.AllGather, plan.Gather:
		q.InBytes, q.OutBytes = blocks[r:r+1], blocks
	case plan.ReduceScatter, plan.Scatter:
		q.InBytes, q.OutBytes = blocks, blocks[r:r+1]
	case plan.AllToAll:
		for i := range blocks {
			blocks[i] = each(0)
		}
		q.InBytes, q.OutBytes = blocks, blocks
	case plan.Custom:
		q.InBytes, q.OutBytes = []int64{each(0) * int64(j.In)}, []int64{each(0) * int64(j.Out)}
	}
	return q
}

// prove verifies the plans of all ranks, in both places, and runs them.
func (j *job) prove(c *Checked, rnd *rand.Rand) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	plans, params := make([]*plan.Plan, j.Ranks), make([]plan.Params, j.Ranks)
	planner := c.Planner()
	for r := range plans {
		params[r] = j.rank(r)
		if plans[r], err = planner.Plan(params[r]); err != nil {
			return err
		}
	}
	for _, same := range []bool{false, true} {
		if same && !c.hasInPlace() {
			continue
		}
		if err := plan.Verify(plans, params, same); err != nil {
			return fmt.Errorf("same=%v: %w\n%v", same, err, plans)
		}
		fed := make([]*plan.Plan, j.Ranks)
		for r := range fed {
			fed[r] = plans[r].Feed(&params[r], false, max(64, slices.Max(j.elements)/16*64))
		}
		if err := plan.Verify(fed, params, same); err != nil {
			return fmt.Errorf("same=%v, with feeds: %w\n%v", same, err, fed)
		}
		if rnd == nil || slices.Max(j.elements) > 1<<20 {
			continue
		}
		g := group{plans: plans, params: params, same: same, rnd: rnd}
		g.fill()
		if err := g.run(); err != nil {
			return fmt.Errorf("same=%v: %w", same, err)
		}
		if err := g.check(); err != nil {
			return fmt.Errorf("same=%v: %w", same, err)
		}
	}
	return nil
}

// variants calls f with a program in all sizes and numbers of slots.
func variants(p Program, f func(j *job)) {
	for _, elements := range [][]int64{{0}, {1}, {100}, {1000}, {37, 0, 500, 5}} {
		for _, slots := range []int{2, 4} {
			for _, chunk := range []int64{128, 1024} {
				f(&job{Program: p, elements: elements, chunk: chunk, slots: slots, ahead: slots,
					scratch: 1 << 30})
			}
		}
	}
	f(&job{Program: p, elements: []int64{1<<31 + 77}, chunk: 1 << 28, slots: 4, ahead: 1,
		scratch: 1 << 40})
}

func TestWritten(t *testing.T) {
	for name, make := range written {
		t.Run(name, func(t *testing.T) {
			for _, n := range []int{1, 2, 3, 5, 8} {
				for _, chunks := range []int{1, 3}[:1+n%2] {
					c, err := Check(make(n, chunks))
					if err != nil {
						t.Fatalf("%d ranks, %d chunks: %v", n, chunks, err)
					}
					rnd := rand.New(rand.NewPCG(uint64(n), uint64(chunks)))
					variants(c.Program, func(j *job) {
						j.anyOrder = !c.Canonical
						for _, j.partial = range []int64{0, 8, 4} {
							if j.partial > 0 && !c.Collective.Reduces() {
								continue
							}
							if err := j.prove(c, rnd); err != nil {
								t.Fatalf("%v: %v", j, err)
							}
						}
					})
				}
			}
		})
	}
}

// Of messages whose home is the same chunk the last one by the order of moves stays, in whatever
// order they come. Here two inputs come first, and before what they overwrite.
func TestMessagesThatComeBeforeWhatTheyOverwrite(t *testing.T) {
	out := func(rank, chunk, count int) Place { return at(rank, Output, chunk, count) }
	in := func(rank int) Place { return at(rank, Input, 0, 1) }
	move := func(from Place, to ...Place) Move { return Move{To: to, From: []Place{from}} }
	c, err := Check(Program{Name: "overwritten", Collective: plan.Custom, Ranks: 3, In: 1, Out: 2,
		Moves: []Move{
			move(in(0), out(1, 0, 1), out(2, 0, 1)),
			move(out(1, 0, 1), out(2, 1, 1)),
			move(out(2, 0, 2), out(1, 0, 2)),
			move(in(2), out(1, 0, 1)),
			move(out(2, 0, 1), out(1, 0, 1)),
			move(out(1, 0, 1), out(0, 1, 1)),
		}})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := c.Prove(1000); err != nil {
		t.Error(err)
	}
}
