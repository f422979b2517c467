package tune

import (
	"math"
	"slices"

	"github.com/goccl/goccl/core/call"
	"github.com/goccl/goccl/core/plan"
	"github.com/goccl/goccl/core/reduce"
)

// manyRanks tells from how many ranks on an allreduce goes in levels, up to so many bytes: with
// fewer ranks, or longer, messages to all cost no more than the further hops of levels.
var manyRanks = []struct {
	ranks int
	most  int64
}{{16, 64 << 10}, {32, 1 << 20}, {512, math.MaxInt64}}

// goesInLevels tells whether an operation goes in levels, if algorithms that do so are allowed:
// because there are many ranks, or so that what goes between hosts goes once.
func (s *Shape) goesInLevels(op *call.Operation) bool {
	c := op.Collective
	allowed := s.Algorithms.allow(c, plan.Hierarchical) ||
		c.Has(plan.RecursiveMultiplying) && s.Algorithms.allow(c, plan.RecursiveMultiplying)
	return allowed && s.mayNest(op) && s.Size > 2 &&
		(s.Group > 0 && int64(op.Largest()) > s.oneShotMax(op) || s.hasManyRanks(op))
}

// hasManyRanks tells whether there are so many ranks that an operation goes in levels.
func (s *Shape) hasManyRanks(op *call.Operation) bool {
	if op.Collective != plan.AllReduce {
		return false
	}
	for _, m := range manyRanks {
		if s.Size >= m.ranks && int64(op.Largest()) <= m.most {
			return true
		}
	}
	return false
}

// mayNest tells whether what some ranks have reduced may be reduced further.
func (s *Shape) mayNest(op *call.Operation) bool {
	return !op.Collective.Reduces() || reduce.Nests(op.DType, op.Op)
}

// levels is the algorithm in levels by which an allreduce costs less, of those that are allowed.
func (s *Shape) levels(op *call.Operation) plan.Algorithm {
	best, least := plan.Hierarchical, int64(math.MaxInt64)
	for _, a := range []plan.Algorithm{plan.RecursiveMultiplying, plan.Hierarchical} {
		few := a == plan.RecursiveMultiplying && !s.hasManyRanks(op)
		if !s.Algorithms.allow(op.Collective, a) || few {
			continue
		}
		_, cost := s.cheapest(s.levelCosts(op.Collective, a), sizeClass(int64(op.Largest())))
		if cost < least {
			best, least = a, cost
		}
	}
	return best
}

// radices are those of the levels in which an algorithm does an operation: those that the user
// names, or the cheapest. nil: it does not go in levels.
func (s *Shape) radices(op *call.Operation, a plan.Algorithm) []int {
	if !a.InLevels() || !s.mayNest(op) {
		return nil
	}
	return s.radicesOf(op.Collective, a, sizeClass(int64(op.Largest())))
}

// radicesOf are the radices for a class of sizes.
func (s *Shape) radicesOf(c plan.Collective, a plan.Algorithm, class int64) []int {
	named := s.Algorithms[c]
	i := slices.IndexFunc(named, func(n Named) bool { return n.Algorithm == a })
	if i >= 0 && named[i].Radices != nil {
		return named[i].Radices
	}
	radices, _ := s.cheapest(s.levelCosts(c, a), class)
	return radices
}
