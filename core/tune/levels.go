package tune

import (
	"math"
	"slices"

	"github.com/goccl/goccl/core/call"
	"github.com/goccl/goccl/core/plan"
	"github.com/goccl/goccl/core/reduce"
)

// manyRanks tells from how many ranks on operations go in levels, up to so many bytes: with fewer
// ranks, or longer, messages to all cost no more than the further hops of levels.
var manyRanks = []struct {
	ranks int
	most  int64
}{{16, 64 << 10}, {32, 1 << 20}, {512, math.MaxInt64}}

// goesInLevels tells whether an operation goes in levels, if algorithms that do so are allowed:
// because there are many ranks, or so that what goes between hosts goes once.
func (s *Shape) goesInLevels(op *call.Operation) bool {
	c, least := op.Collective, s.oneShotMax(op)
	if c == plan.Broadcast { // what is small goes from the root or along a tree
		least = 0
	}
	allowed := s.Algorithms.allow(c, plan.Hierarchical) ||
		c.Has(plan.RecursiveMultiplying) && s.Algorithms.allow(c, plan.RecursiveMultiplying)
	return allowed && s.mayNest(op) && s.Size > 2 &&
		(s.Group > 0 && int64(op.Largest()) > least || s.hasManyRanks(op))
}

// hasManyRanks tells whether there are so many ranks that an operation goes in levels.
func (s *Shape) hasManyRanks(op *call.Operation) bool {
	bytes, most := s.bytesInLevels(op), int64(math.MaxInt64)
	switch op.Collective {
	case plan.AllGather, plan.ReduceScatter:
		most = s.Chunk / scaleOf(op) // else they are not packed
	case plan.AllReduce, plan.Broadcast:
	default:
		return false
	}
	for _, m := range manyRanks {
		if s.Size >= m.ranks && bytes <= min(m.most, most) {
			return true
		}
	}
	return false
}

// mostInTree is the most bytes that all ranks of an oversubscribed host allreduce along a tree.
const mostInTree = 4 << 20

// alongTree tells whether an operation goes along a binomial tree where there are many ranks: a
// reduce, gather or scatter in place of a star; an allreduce where ranks share the CPUs of a host,
// for there it counts how many messages there are in all, not how many follow one another.
func (s *Shape) alongTree(op *call.Operation) bool {
	bytes, least := s.bytesInLevels(op), manyRanks[0].ranks
	switch op.Collective {
	case plan.AllReduce:
		if !s.Oversubscribed || s.MultiHost || bytes > mostInTree/int64(s.Size) {
			return false
		}
		if s.Ports { // a message costs more
			least /= 2
		}
	case plan.Gather, plan.Scatter:
		if bytes > s.Chunk {
			return false
		}
	}
	return s.Size >= least && bytes <= manyRanks[0].most && s.mayNest(op) &&
		s.Algorithms.allow(op.Collective, plan.BinomialTree)
}

// bytesInLevels is how many bytes of an operation all ranks together exchange in levels, or along a
// tree: of its longest block, or of all where each rank has one.
func (s *Shape) bytesInLevels(op *call.Operation) (bytes int64) {
	counts := op.OutCounts
	switch op.Collective {
	case plan.AllReduce, plan.Reduce:
		return int64(op.Largest())
	case plan.ReduceScatter, plan.Scatter:
		counts = op.InCounts
	}
	for _, n := range counts {
		bytes += int64(n)
	}
	return bytes * int64(op.DType.Size())
}

// mayNest tells whether what some ranks have reduced may be reduced further: as an input like any,
// or as a partial sum.
func (s *Shape) mayNest(op *call.Operation) bool {
	return !op.Collective.Reduces() || reduce.Nests(op.DType, op.Op) ||
		reduce.PartialSize(op.DType, op.Op) > 0
}

// partialSize is plan.Params.PartialSize.
func partialSize(op *call.Operation, a plan.Algorithm) int64 {
	if !op.Collective.Reduces() || !a.InLevels() && a != plan.BinomialTree {
		return 0
	}
	return int64(reduce.PartialSize(op.DType, op.Op))
}

// scaleOf is how many times as long as inputs partial sums are that ranks exchange.
func scaleOf(op *call.Operation) int64 {
	return max(partialSize(op, plan.Hierarchical)/int64(max(op.DType.Size(), 1)), 1)
}

// levels is the algorithm in levels by which an allreduce costs less, of those that are allowed.
func (s *Shape) levels(op *call.Operation) plan.Algorithm {
	best, least := plan.Hierarchical, int64(math.MaxInt64)
	for _, a := range s.weighed(op) {
		_, cost := s.cheapest(s.levelCosts(a, s.load(op)))
		if cost < least {
			best, least = a, cost
		}
	}
	return best
}

// weighed are the algorithms among which levels chooses.
func (s *Shape) weighed(op *call.Operation) (all []plan.Algorithm) {
	for _, a := range plan.Algorithms(op.Collective) {
		few := a == plan.RecursiveMultiplying && !s.hasManyRanks(op)
		if a.InLevels() && s.Algorithms.allow(op.Collective, a) && !few {
			all = append(all, a)
		}
	}
	return all
}

// radices are those of the levels in which an algorithm does an operation: those that the user
// names, or the cheapest. nil: it does not go in levels.
func (s *Shape) radices(op *call.Operation, a plan.Algorithm) []int {
	if !a.InLevels() || !s.mayNest(op) {
		return nil
	}
	return s.placed(op.Collective).radicesOf(op.Collective, a, s.load(op))
}

// radicesOf are the radices for what load tells.
func (s *Shape) radicesOf(c plan.Collective, a plan.Algorithm, l load) []int {
	named := s.Algorithms[c]
	i := slices.IndexFunc(named, func(n Named) bool { return n.Algorithm == a })
	if i >= 0 && named[i].Radices != nil {
		return named[i].Radices
	}
	radices, _ := s.cheapest(s.levelCosts(a, l))
	return radices
}

// load is what a rank has to move in levels.
type load struct {
	class  int64 // of sizes
	packed bool  // all at once, not one block after the other
	scale  int64 // how many times as long as inputs partial sums are
}

// load is that of an operation.
func (s *Shape) load(op *call.Operation) load {
	bytes, scale := s.bytesInLevels(op), scaleOf(op)
	if wholes(op.Collective) || bytes*scale <= s.Chunk {
		return load{sizeClass(bytes), true, scale}
	}
	return load{sizeClass(int64(op.Largest())), false, scale}
}

// wholes tells whether all ranks have the same of a collective, of which each has a part in levels,
// not a block a rank.
func wholes(c plan.Collective) bool { return c == plan.AllReduce || c == plan.Broadcast }

// levelCosts is what the levels of an algorithm cost. Above the first one there are partial sums,
// but not on the way back.
func (s *Shape) levelCosts(a plan.Algorithm, l load) levelCost {
	cost, above := s.scatterCost, l.class*(l.scale+1)/2
	switch {
	case a == plan.RecursiveMultiplying:
		cost, above = s.multiplyCost, l.class*l.scale
	case !l.packed:
		cost, above = s.blocksCost, l.class*l.scale
	}
	return func(stride, radix int) int64 {
		if stride > 1 {
			return cost(stride, radix, above)
		}
		return cost(stride, radix, l.class)
	}
}
