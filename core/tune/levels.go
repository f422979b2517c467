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
		most = s.Chunk // else they are not packed
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

// mayNest tells whether what some ranks have reduced may be reduced further.
func (s *Shape) mayNest(op *call.Operation) bool {
	return !op.Collective.Reduces() || reduce.Nests(op.DType, op.Op)
}

// levels is the algorithm in levels by which an allreduce costs less, of those that are allowed.
func (s *Shape) levels(op *call.Operation) plan.Algorithm {
	best, least := plan.Hierarchical, int64(math.MaxInt64)
	class, packed := s.load(op)
	for _, a := range s.weighed(op) {
		_, cost := s.cheapest(s.levelCosts(a, class, packed))
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
	class, packed := s.load(op)
	return s.placed(op.Collective).radicesOf(op.Collective, a, class, packed)
}

// radicesOf are the radices for what load tells.
func (s *Shape) radicesOf(c plan.Collective, a plan.Algorithm, class int64, packed bool) []int {
	named := s.Algorithms[c]
	i := slices.IndexFunc(named, func(n Named) bool { return n.Algorithm == a })
	if i >= 0 && named[i].Radices != nil {
		return named[i].Radices
	}
	radices, _ := s.cheapest(s.levelCosts(a, class, packed))
	return radices
}

// load is the class of sizes of what a rank has of an operation in levels: all at once, packed, or
// one block after the other.
func (s *Shape) load(op *call.Operation) (class int64, packed bool) {
	bytes := s.bytesInLevels(op)
	if wholes(op.Collective) || bytes <= s.Chunk {
		return sizeClass(bytes), true
	}
	return sizeClass(int64(op.Largest())), false
}

// wholes tells whether all ranks have the same of a collective, of which each has a part in levels,
// not a block a rank.
func wholes(c plan.Collective) bool { return c == plan.AllReduce || c == plan.Broadcast }

// levelCosts is what the levels of an algorithm cost with so much to move.
func (s *Shape) levelCosts(a plan.Algorithm, bytes int64, packed bool) levelCost {
	cost := s.scatterCost
	switch {
	case a == plan.RecursiveMultiplying:
		cost = s.multiplyCost
	case !packed:
		cost = s.blocksCost
	}
	return func(stride, radix int) int64 { return cost(stride, radix, bytes) }
}
