package tune

import (
	"slices"
	"testing"

	"github.com/goccl/goccl/core/plan"
)

// What is longer than a slot of those that are not near goes to those that are. Of two ranks that
// are near each knows it.
func TestLongMessagesGoToNearRanks(t *testing.T) {
	sizes := []int{3, 9, 16, 17, 31, 33, 47, 50, 64, 65, 96, 100, 127, 128}
	if !testing.Short() {
		sizes = append(sizes, 192, 200, 255, 257, 500)
	}
	for _, at := range []Topology{{Memory: true}, {Memory: true, Oversubscribed: true}, {Ports: true},
		{Ports: true, Oversubscribed: true}, {Ports: true, MultiHost: true},
		{Ports: true, MultiHost: true, Memory: true, Group: 8},
		{Ports: true, MultiHost: true, Memory: true, Group: 64},
		{Ports: true, MultiHost: true, Memory: true, OrderGroup: 8}} {
		for _, size := range sizes {
			if at.Size = size; at.Group >= size || at.OrderGroup >= size {
				continue
			}
			if at.OrderGroup > 0 {
				at.Order = dealt(size, (size+at.OrderGroup-1)/at.OrderGroup)
			}
			s := shapesOf(t, at)[0]
			near := make([][]int, size)
			if of := s.Near(); of != nil {
				for rank := range near {
					near[rank] = of(rank)
				}
			}
			for rank, peers := range near {
				for _, peer := range peers {
					if !slices.Contains(near[peer], rank) {
						t.Fatalf("%+v: %d is near to %d, not %d to %d", at, peer, rank, rank, peer)
					}
				}
			}
			checkLongMessages(t, &s, near)
		}
	}
}

// dealt is an order of ranks that are dealt out to so many hosts one by one: host by host.
func dealt(size, hosts int) (order []int) {
	for host := range hosts {
		for rank := host; rank < size; rank += hosts {
			order = append(order, rank)
		}
	}
	return order
}

// checkLongMessages looks at the plans of some ranks, for elements of which there are few or many.
func checkLongMessages(t *testing.T, s *Shape, near [][]int) {
	t.Helper()
	for c := plan.AllReduce; c <= plan.Barrier; c++ {
		for _, n := range []uint64{1, 5_000, 70_000, 1 << 20} {
			op := operation(c, s.Size, n)
			if len(op.InCounts)+len(op.OutCounts) > 64 && n > 5_000 {
				continue // as long, in all, as what has one block
			}
			for _, s.Rank = range []int{0, s.Size / 2, s.Size - 1} {
				own := op
				if c == plan.AllGather || c == plan.Gather {
					own.InCounts = op.OutCounts[s.Rank:][:1]
				}
				p := s.Params(&own)
				p.Long = 0
				built, err := plan.Build(p)
				if err != nil {
					t.Fatal(err)
				}
				for i := range built.Steps {
					step := &built.Steps[i]
					message := step.Op == plan.Put || step.Op == plan.Wait || step.Op == plan.PutToAll
					if !message || step.Bytes <= s.Chunk {
						continue
					}
					if step.Op == plan.PutToAll || !slices.Contains(near[s.Rank], int(step.Peer)) {
						t.Fatalf("%+v, %v of %d elements: rank %d has a message of %d bytes with %d, which is not "+
							"near", s.Topology, c, n, s.Rank, step.Bytes, step.Peer)
					}
				}
			}
		}
	}
}
