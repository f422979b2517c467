package tune

import (
	"math"
	"reflect"
	"slices"
	"testing"

	"github.com/goccl/goccl/core/plan"
)

// What is far costs more, so levels follow hosts; and what is long is cut, so that it goes once.
func TestRadicesFollowTheTopology(t *testing.T) {
	hosts := Topology{Ports: true, Memory: true, MultiHost: true, Group: 8}
	alone := Topology{Ports: true, MultiHost: true}
	plain, domains := Topology{Memory: true}, Topology{Memory: true, Domain: 8}
	for _, c := range []struct {
		at             Topology
		ranks          int
		bytes          int64
		small, large   []int
		shots, scatter bool
	}{
		{alone, 64, 4, []int{4, 4, 4}, []int{4, 4, 4}, true, false},
		{alone, 64, 1 << 20, []int{2, 2, 2, 2, 2, 2}, []int{4, 4, 4}, false, true},
		{alone, 96, 64 << 20, []int{2, 2, 2, 2, 2, 3}, []int{4, 4, 2, 3}, false, true},
		{alone, 50, 64 << 20, []int{2, 2, 2, 4, 2}, []int{2, 4, 7}, false, true},
		{hosts, 16, 64 << 20, []int{2, 2, 2, 2}, []int{4, 2, 2}, false, true},
		{plain, 64, 4, []int{4, 4, 4}, []int{4, 4, 4}, true, false},
		{domains, 64, 4, []int{2, 2, 2, 4, 2}, []int{2, 2, 2, 4, 2}, true, false},
		{domains, 64, 1 << 20, []int{2, 2, 2, 2, 2, 2}, []int{2, 2, 2, 4, 2}, false, true},
		{hosts, 512, 1 << 20, []int{2, 2, 2, 2, 2, 2, 2, 2, 2}, []int{4, 2, 4, 4, 4}, false, true},
	} {
		c.at.Size = c.ranks
		small, once := c.at.cheapest(of(c.at.multiplyCost, c.bytes))
		large, scattered := c.at.cheapest(of(c.at.scatterCost, c.bytes))
		if !slices.Equal(small, c.small) || !slices.Equal(large, c.large) {
			t.Errorf("%d ranks, %d bytes: %v and %v, want %v and %v", c.ranks, c.bytes, small, large,
				c.small, c.large)
		}
		if once < scattered != c.shots || once > scattered != c.scatter {
			t.Errorf("%d ranks, %d bytes: %d and %d ps", c.ranks, c.bytes, once, scattered)
		}
	}
}

// A few ranks of a host go about everything alike, whatever their domains.
func TestFewRanksHeedNoDomains(t *testing.T) {
	for _, ranks := range []int{4, 8} {
		at := Topology{Size: ranks, Memory: true}
		apart, dealtOut := at, at
		apart.Domain = ranks / 2
		dealtOut.Order, dealtOut.OrderDomain = dealt(ranks, 2), ranks/2
		shapes := [][]Shape{shapesOf(t, at), shapesOf(t, apart), shapesOf(t, dealtOut)}
		for c := plan.AllReduce; c <= plan.Barrier; c++ {
			for _, n := range []uint64{1, 1 << 10, 1 << 16, 1 << 20, 1 << 25} {
				op := operation(c, ranks, n)
				want := shapes[0][0].Params(&op)
				for _, s := range shapes[1:] {
					if got := s[0].Params(&op); !reflect.DeepEqual(got, want) {
						t.Errorf("%v of %d elements, %d ranks: %+v, not %+v", c, n, ranks, got, want)
					}
				}
			}
		}
	}
}

// Plans can be built with the radices of any number of ranks, and no estimate overflows.
func TestCheapestRadicesFit(t *testing.T) {
	for _, at := range []Topology{{Memory: true}, {Ports: true, Oversubscribed: true},
		{Ports: true, MultiHost: true}, {Ports: true, MultiHost: true, Memory: true, Group: 16}} {
		for size := 1; size < 600; size++ {
			at.Size = size
			for _, cost := range []func(stride, radix int, bytes int64) int64{at.multiplyCost,
				at.scatterCost, at.blocksCost} {
				for _, bytes := range []int64{0, 4, 1 << 16, 1 << 40} {
					radices, cost := at.cheapest(of(cost, bytes))
					p := plan.Params{Collective: plan.AllReduce, Algorithm: plan.Hierarchical, Size: size,
						Radices: radices}
					if err := p.CheckAlgorithm(); (err == nil) != (size > 2) {
						t.Fatalf("%d ranks, %d bytes: %v", size, bytes, err)
					}
					if size > 2 && (cost <= 0 || cost > math.MaxInt64/4) {
						t.Fatalf("%d ranks, %d bytes: %d ps", size, bytes, cost)
					}
				}
			}
		}
	}
}

// of is a cost of so many bytes.
func of(cost func(stride, radix int, bytes int64) int64, bytes int64) levelCost {
	return func(stride, radix int) int64 { return cost(stride, radix, bytes) }
}
