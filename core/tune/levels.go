package tune

import (
	"math"
	"slices"

	"github.com/goccl/goccl/core/call"
	"github.com/goccl/goccl/core/plan"
	"github.com/goccl/goccl/core/reduce"
)

// fewRanks is up to how many ranks of a host exchange directly, or with the root, whatever levels
// and trees are estimated to cost: the estimates differ by less than they err there, and direct
// exchange is what was measured. Only over the ports of an oversubscribed host an allreduce along a
// tree was faster with as many.
const fewRanks = 8

// estimate is what an algorithm is thought to cost.
type estimate struct {
	algorithm plan.Algorithm
	cost      int64 // picoseconds
}

// cheaper is the algorithm of an operation, for which the thresholds name a direct one: that, or
// one in levels or along a tree which is estimated to cost less. For what the estimates do not know
// of, such as copies of partial results, it must be a sixteenth less.
func (s *Shape) cheaper(op *call.Operation, direct plan.Algorithm) plan.Algorithm {
	best, least := direct, int64(math.MaxInt64)
	for _, e := range s.estimates(op, direct) { // of equals the first
		if e.algorithm == direct {
			e.cost -= e.cost / 16
		}
		if e.cost < least {
			best, least = e.algorithm, e.cost
		}
	}
	return best
}

// estimates are those of the algorithms among which the costs choose, of those that are allowed.
// The thresholds, those that the user sets among them, have chosen among algorithms without levels,
// if theirs is allowed: how these differ depends on copies and caches, so sizes are measured.
func (s *Shape) estimates(op *call.Operation, direct plan.Algorithm) (all []estimate) {
	switch op.Collective {
	case plan.AllToAll, plan.Barrier, plan.Send, plan.Recv: // by sizes, or in one way
		return nil
	case plan.Broadcast:
		// What is small goes from the root, or along a tree, which has no levels.
		if direct != plan.ScatterAllGather {
			return nil
		}
	}
	if s.Size == 1 || direct == plan.Windowed || direct == plan.SingleCopy {
		return nil
	}
	allowed := s.Algorithms.allow(op.Collective, direct)
	for _, a := range plan.Algorithms(op.Collective) {
		switch {
		case !s.Algorithms.allow(op.Collective, a), a == plan.Direct:
		case a == plan.BinomialTree && op.Collective == plan.Broadcast: // is for what is small
		case a.InLevels() || a == plan.BinomialTree:
			if allowed && !s.mayLeave(op, a) || s.can(op, a) != nil {
				continue
			}
			all = append(all, estimate{a, s.cost(op, a)})
		case a == direct || !allowed && s.can(op, a) == nil:
			all = append(all, estimate{a, s.cost(op, a)})
		}
	}
	return all
}

// mayLeave tells whether an operation may go in levels or along a tree in place of directly.
func (s *Shape) mayLeave(op *call.Operation, a plan.Algorithm) bool {
	c, tree, least := op.Collective, a == plan.BinomialTree, 3
	if !s.MultiHost {
		least = fewRanks + 1
	}
	switch {
	case !s.mayNest(op):
		return false
	case tree && c == plan.AllReduce:
		if s.crowded() && s.Ports {
			least = fewRanks
		}
	case tree && s.crowded(): // no fewer messages, and more waits: with 16 to 112 it is slower
		return false
	case (c == plan.Gather || c == plan.Scatter) && s.bytesInLevels(op) > s.Chunk: // not packed
		return false
	}
	return s.Size >= least
}

// cost is what an algorithm is estimated to cost, by the class of an operation's size.
func (s *Shape) cost(op *call.Operation, a plan.Algorithm) int64 {
	c, l := op.Collective, s.load(op)
	block := sizeClass(int64(op.Largest()))
	slice := block / int64(s.Size)
	gap := int64(0)
	if c.Reduces() && l.packed { // for what levels do not pack they do not count it, either
		gap = ReduceGap
	}
	toAll := func(bytes, gap int64) int64 {
		// Levels have longer slots: see NearChunk. What shorter ones cost more is counted here.
		messages := int64(1)
		if l.packed {
			messages += bytes/s.Chunk - bytes/max(s.Chunk, s.NearChunk)
		}
		return s.toAllCost(bytes, messages, gap)
	}
	switch {
	case a.InLevels():
		cost := s.levelCosts(a, l).of(s.radicesOf(c, a, l))
		switch {
		case l.packed && !wholes(c): // one of scatter and gather
			cost /= 2
		case a == plan.Hierarchical:
			cost += (s.passes(2) - 1) * times(block, 2*s.linkAt(s.Size).Gap+ReduceGap)
		}
		return cost
	case a == plan.BinomialTree && c == plan.AllReduce:
		block = block * (l.scale + 1) / 2 // partial sums go one way only
		return s.treesCost(block, max((block+s.Chunk-1)/s.Chunk, 1))
	case a == plan.BinomialTree: // and the other way an empty message at each hop
		return s.treeCost(block*l.scale, gap, c != plan.Reduce) + s.treeCost(0, 0, false)
	case a == plan.TwoShot || a == plan.ReduceScatterGather:
		return toAll(slice, gap) + toAll(slice, 0)
	}
	return toAll(block, gap)
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
	return s.cheapest(s.levelCosts(a, l))
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
	if wholes(op.Collective) || op.Collective == plan.Reduce || bytes*scale <= s.Chunk {
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
