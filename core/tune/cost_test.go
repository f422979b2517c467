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
		c.at.Size, c.at.links = c.ranks, defaultLinks
		multiply, scatter := of(c.at.multiplyCost, c.bytes), of(c.at.scatterCost, c.bytes)
		small, large := c.at.cheapest(multiply), c.at.cheapest(scatter)
		once, scattered := multiply.of(small), scatter.of(large)
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
			at.Size, at.links = size, defaultLinks
			for _, cost := range []func(stride, radix int, bytes int64) int64{at.multiplyCost,
				at.scatterCost, at.blocksCost} {
				for _, bytes := range []int64{0, 4, 1 << 16, 1 << 40} {
					levels := of(cost, bytes)
					radices := at.cheapest(levels)
					cost := levels.of(radices)
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

// A few ranks of a host go by the thresholds alone. An allreduce of as many as eight goes along a
// tree where ports join ranks that share CPUs.
func TestFewRanksExchangeDirectly(t *testing.T) {
	for _, at := range []Topology{{Memory: true}, {Memory: true, Oversubscribed: true}, {Ports: true},
		{Ports: true, Oversubscribed: true}} {
		for at.Size = 2; at.Size <= fewRanks; at.Size++ {
			s := shapesOf(t, at)[0]
			for c := plan.AllReduce; c <= plan.Barrier; c++ {
				for n := uint64(1); n < 64<<20; n *= 2 {
					op := operation(c, at.Size, n)
					got, want := s.Choose(&op), s.byThresholds(&op)
					tree := got == plan.BinomialTree && c == plan.AllReduce && at.Oversubscribed && at.Ports &&
						at.Size == fewRanks
					if got != want && !tree {
						t.Errorf("%+v, %v of %d elements: %v, not %v", at, c, n, got, want)
					}
				}
			}
		}
	}
}

// The algorithms that were fastest when all were measured: of ranks that shared two CPUs. What
// differed by less than a sixth is not here.
func TestCostsAgreeWithMeasurements(t *testing.T) {
	memory := Topology{Memory: true, Oversubscribed: true}
	ports := Topology{Ports: true, Oversubscribed: true}
	for _, c := range []struct {
		at    Topology
		ranks int
		bytes uint64
		of    plan.Collective
		want  plan.Algorithm
	}{
		{memory, 8, 4, plan.AllReduce, plan.OneShot},
		{memory, 16, 4, plan.AllReduce, plan.OneShot},
		{memory, 16, 64 << 10, plan.AllReduce, plan.TwoShot},
		{memory, 16, 256 << 10, plan.AllReduce, plan.TwoShot},
		{memory, 64, 64 << 10, plan.AllReduce, plan.Hierarchical},
		{memory, 64, 256 << 10, plan.AllReduce, plan.TwoShot},
		{ports, 8, 4, plan.AllReduce, plan.BinomialTree},
		{ports, 8, 64 << 10, plan.AllReduce, plan.BinomialTree},
		{ports, 8, 256 << 10, plan.AllReduce, plan.BinomialTree},
		{ports, 16, 4, plan.AllReduce, plan.BinomialTree},
		{ports, 16, 64 << 10, plan.AllReduce, plan.BinomialTree},
		{ports, 16, 256 << 10, plan.AllReduce, plan.BinomialTree},
		{ports, 32, 16 << 10, plan.AllReduce, plan.BinomialTree},
		{ports, 128, 4, plan.AllReduce, plan.BinomialTree},
		{memory, 16, 4, plan.Gather, plan.Flat},
		{memory, 112, 4, plan.Gather, plan.Flat},
		{memory, 16, 16 << 10, plan.Reduce, plan.Flat},
		{memory, 112, 512, plan.Reduce, plan.Flat},
		{ports, 16, 64 << 10, plan.Reduce, plan.Flat},
		{ports, 48, 512, plan.Reduce, plan.Flat},
		{ports, 48, 12, plan.Scatter, plan.Flat},
	} {
		c.at.Size = c.ranks
		op := operation(c.of, c.ranks, c.bytes/4)
		if got := shapesOf(t, c.at)[0].Choose(&op); got != c.want {
			t.Errorf("%+v, %v of %d bytes: %v, measured to be fastest is %v", c.at, c.of, c.bytes, got,
				c.want)
		}
	}
}

// Of algorithms that are allowed the costs choose also where the thresholds name another one, and
// the thresholds where the costs do not know better.
func TestCostsChooseOfThoseAllowed(t *testing.T) {
	host, crowd := Topology{Memory: true}, Topology{Ports: true, Oversubscribed: true}
	for _, c := range []struct {
		at     Topology
		forced string
		bytes  uint64
		want   plan.Algorithm
	}{
		{host, "allreduce:one_shot,hierarchical", 1 << 20, plan.Hierarchical},
		{host, "allreduce:two_shot,recursive_multiplying", 4, plan.RecursiveMultiplying},
		{host, "allreduce:two_shot,recursive_multiplying", 64 << 20, plan.TwoShot},
		{host, "allreduce:two_shot,recursive_multiplying", 4 << 10, plan.RecursiveMultiplying},
		{host, "allreduce:two_shot,recursive_multiplying(2,16)", 4 << 10, plan.TwoShot}, // cost more
		{host, "allreduce:recursive_multiplying,hierarchical", 4, plan.RecursiveMultiplying},
		{host, "allreduce:recursive_multiplying,hierarchical", 64 << 20, plan.Hierarchical},
		{host, "allreduce:one_shot,two_shot", 4, plan.OneShot},
		{host, "allreduce:one_shot,two_shot", 64 << 10, plan.TwoShot},
		{crowd, "allreduce:hierarchical,binomial_tree", 4, plan.BinomialTree},
		{crowd, "allreduce:hierarchical,binomial_tree", 64 << 20, plan.Hierarchical},
	} {
		c.at.Size = 32
		s := shapesOf(t, c.at)[0]
		var err error
		if s.Algorithms, err = ParseAlgorithms(c.forced); err != nil {
			t.Fatal(err)
		}
		op := operation(plan.AllReduce, c.at.Size, c.bytes/4)
		if got := s.Choose(&op); got != c.want {
			t.Errorf("%+v, %s, %d bytes: %v, want %v", c.at, c.forced, c.bytes, got, c.want)
		}
	}
}

// What a message costs more where slots are short counts: so what is long goes in levels, too,
// where there are very many ranks.
func TestManyRanksExchangeLongDataInLevels(t *testing.T) {
	for ranks, want := range map[int]plan.Algorithm{16: plan.TwoShot, 512: plan.Hierarchical,
		4096: plan.Hierarchical} {
		at := Topology{Size: ranks, Sharing: 1, Ports: true, MultiHost: true}
		s, err := New(at, 0, Options{LongMost: longMost, Ports: make([]bool, ranks)})
		if err != nil {
			t.Fatal(err)
		}
		op := operation(plan.AllReduce, ranks, 16<<20)
		if got := s.Choose(&op); got != want {
			t.Errorf("%d ranks: %v, want %v", ranks, got, want)
		}
	}
}

// of is a cost of so many bytes.
func of(cost func(stride, radix int, bytes int64) int64, bytes int64) levelCost {
	return func(stride, radix int) int64 { return cost(stride, radix, bytes) }
}
