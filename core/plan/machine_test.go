package plan

import (
	"cmp"
	"math/rand/v2"
	"reflect"
	"runtime"
	"slices"
	"testing"
)

// Rings are there for pairs that some plan joins, and for no others.
func TestMachineHoldsPairsInUse(t *testing.T) {
	plans, _ := job{Params: Params{Collective: Barrier}}.with(64).build(t)
	m := newMachine[struct{}](plans, func(int) int { return 3 })
	// A rank hears from those that are 1, 2, 4, 8, 16 and 32 before it, and tells those after it.
	if pairs := 64 * 11 / 2; len(m.rings) != 2*pairs {
		t.Errorf("%d rings of %d pairs", len(m.rings), pairs)
	}
	for r := range m.ranks {
		for _, peer := range m.ranks[r].peers {
			if m.out(r, peer) != m.in(int(peer), int32(r)) || m.out(r, peer) == m.in(r, peer) {
				t.Fatalf("the rings of %d and %d are not each other's", r, peer)
			}
		}
		if g := m.out(r, int32(r+3)%64); g != &m.idle {
			t.Errorf("rank %d has a ring to one that no plan joins to it", r)
		}
	}
}

// Whichever rank that can goes on first, all come to their ends, and each hears the same.
func TestAnyRankMayGoOn(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	picks := map[string]func(ready []int) int{
		"the first":      func([]int) int { return 0 },
		"the last":       func(ready []int) int { return len(ready) - 1 },
		"the lowest":     func(ready []int) int { return slices.Index(ready, slices.Min(ready)) },
		"the highest":    func(ready []int) int { return slices.Index(ready, slices.Max(ready)) },
		"any, by chance": func(ready []int) int { return random.IntN(len(ready)) },
	}
	for _, j := range mutationJobs() {
		j := j.with(cmp.Or(j.Size, 3))
		plans, params := j.build(t)
		// A message tells who has put it, and in which step.
		type message struct{ rank, step int }
		var want [][]message
		for name, pick := range picks {
			m := newMachine[[]message](plans, func(rank int) int { return params[rank].Slots - 1 })
			heard, asked := make([][]message, len(plans)), 0
			m.pick = func(ready []int) int { asked++; return pick(ready) }
			err := m.run(func(r int, s *Step) error {
				put := message{r, m.ranks[r].next}
				switch s.Op {
				case Put, Offer:
					g := m.out(r, s.Peer)
					g.of = append(g.of, put)
				case PutToAll:
					for _, g := range m.outs(r) {
						g.of = append(g.of, put)
					}
				case Wait:
					g := m.in(r, s.Peer)
					heard[r] = append(heard[r], g.of[g.waited])
				}
				return nil
			})
			if err != nil || asked < len(plans) {
				t.Fatalf("%v, %s first: asked %d times, %v", j, name, asked, err)
			}
			if want == nil {
				want = heard
			}
			if !reflect.DeepEqual(heard, want) {
				t.Errorf("%v, %s first: %v, want %v", j, name, heard, want)
			}
		}
	}
}

// What a ring carries may be times: then a run says how long it takes. A put takes 1 here, the way
// of a message 10, and a message is waited for no longer than until it is there.
func TestMachineCarriesTimes(t *testing.T) {
	const size = 8
	plans, _ := job{Params: Params{Collective: Barrier}}.with(size).build(t)
	m := newMachine[[]int](plans, func(int) int { return 3 })
	now := make([]int, size)
	err := m.run(func(r int, s *Step) error {
		switch s.Op {
		case Put:
			now[r]++
			g := m.out(r, s.Peer)
			g.of = append(g.of, now[r]+10)
		case Wait:
			g := m.in(r, s.Peer)
			now[r] = max(now[r], g.of[g.waited])
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for r, end := range now {
		if end != 3*11 {
			t.Errorf("rank %d ends at %d; three rounds take 33", r, end)
		}
	}
}

// The memory of a proof grows with the pairs of ranks, not with their number to the third.
func TestProofsGrowWithPairs(t *testing.T) {
	allocated := func(j job) uint64 {
		plans, params := j.build(t)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		if err := Verify(plans, params, false); err != nil {
			t.Fatal(err)
		}
		runtime.ReadMemStats(&after)
		return after.TotalAlloc - before.TotalAlloc
	}
	of := func(p Params, size int) job {
		n := []int64{int64(128 * size)}
		if p.Collective != AllReduce {
			n = slices.Repeat([]int64{16}, size)
		}
		p.Chunk = 64 << 10
		return job{p, n}.with(size)
	}
	for _, p := range []Params{
		{Collective: AllReduce},
		{Collective: AllReduce, Memory: true},
		{Collective: AllReduce, Memory: true, Algorithm: Direct},
		{Collective: AllGather, Memory: true, Algorithm: Direct},
		{Collective: AllToAll, Schedule: Sequential},
		{Collective: AllToAll, Schedule: LastWindow},
		{Collective: AllToAll, Memory: true, Thresholds: Thresholds{GetMin: 1}},
	} {
		j := of(p, 48)
		if few, many := allocated(j), allocated(of(p, 192)); many > 20*few {
			t.Errorf("%v: %d bytes for 48 ranks, %d for 192, which is %d times as many", j, few, many,
				many/few)
		}
	}
}
