package plan

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
)

// moving are the collectives that may go by places in an order of ranks.
var moving = []Collective{Broadcast, AllGather, Gather, Scatter, AllToAll, Barrier}

// dealt is an order of ranks that are dealt out to so many hosts one by one: host by host.
func dealt(size, hosts int) (order []int) {
	for host := range hosts {
		for rank := host; rank < size; rank += hosts {
			order = append(order, rank)
		}
	}
	return order
}

// TestOrder proves that each collective that moves data does it in any order of ranks, and runs
// some of the plans.
func TestOrder(t *testing.T) {
	for _, size := range []int{1, 2, 3, 5, 8, 12, 17} {
		p := newProver(t)
		rnd := rand.New(rand.NewPCG(uint64(size), 8))
		for _, c := range moving {
			for _, order := range [][]int{dealt(size, 2), rnd.Perm(size)} {
				for _, n := range []int64{0, 1, 70, 300} {
					for k, counts := range layouts(c, size, n) {
						j := job{Params{Collective: c, Size: size, Root: rnd.IntN(size), Order: order,
							ElemSize: 4, Chunk: 256, Slots: 2 + k%3, Ahead: 2}, counts}
						if lists := radicesOf(size); len(lists) > 0 {
							j.Radices = lists[rnd.IntN(len(lists))]
						}
						if k%2 == 0 {
							j = j.inHosts(2)
						}
						j.byEach(func(j job) {
							p.verifyAlone(j)
							if rnd.IntN(10) == 0 {
								runLevels(t, j, rnd)
							}
						})
						if q := j.inMemory().rank(0); q.HasDirect() {
							p.verifyAlone(j.direct())
						}
					}
				}
			}
		}
	}
}

// Where ranks are dealt out to hosts, in the order of hosts each gets from others once what it
// needs.
func TestOrderSendsOnce(t *testing.T) {
	const hosts, each = 4, 4
	for _, c := range []Collective{AllGather, Broadcast} {
		counts := layouts(c, hosts*each, 64*hosts*each)[0]
		j := job{Params{Collective: c, Algorithm: Hierarchical, Size: hosts * each, Root: 6,
			Radices: []int{2, 2, 2, 2}, Order: dealt(hosts*each, hosts), ElemSize: 4, Chunk: 256,
			Slots: 4}, counts}
		want, got := int64(0), int64(0)
		for _, n := range counts {
			want += n * j.ElemSize * (hosts - 1)
		}
		plans, _ := j.build(t)
		for rank, p := range plans {
			for _, s := range p.Steps {
				if s.Op == Put && int(s.Peer)%hosts != rank%hosts {
					got += s.Bytes
				}
			}
		}
		if got != want {
			t.Errorf("%v: %d bytes between hosts, not %d", j, got, want)
		}
	}
}

func TestOrdersAreRefused(t *testing.T) {
	for _, order := range [][]int{{}, {0, 1}, {0, 1, 1}, {0, 1, 3}, {-1, 0, 1}, {0, 1, 2, 3}} {
		j := job{Params{Collective: AllGather, Size: 3, Order: order, ElemSize: 4, Chunk: 64, Slots: 4},
			[]int64{1, 1, 1}}
		want := fmt.Sprintf("order is %v; it must have each rank of 3 once", order)
		if _, err := Build(j.rank(0)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v", order, err)
		}
	}
	for _, c := range []Collective{AllReduce, Reduce, ReduceScatter} {
		j := job{Params{Collective: c, Size: 3, Order: []int{0, 2, 1}, ElemSize: 4, Chunk: 64, Slots: 4},
			layouts(c, 3, 1)[0]}
		if _, err := Build(j.rank(0)); err == nil || !strings.Contains(err.Error(), "an order of ranks") {
			t.Errorf("%v: %v", c, err)
		}
	}
}
