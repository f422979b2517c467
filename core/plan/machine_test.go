package plan

import (
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
