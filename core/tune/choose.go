package tune

import (
	"slices"

	"github.com/goccl/goccl/core/call"
	"github.com/goccl/goccl/core/plan"
)

// ScheduleOf is the schedule of an operation; only alltoall has one.
func (s *Shape) ScheduleOf(op *call.Operation) plan.Schedule {
	if op.Collective != plan.AllToAll {
		return 0
	}
	if op.Schedule != 0 {
		return op.Schedule
	}
	return s.Schedule
}

// starMax is the number of ranks up to which a small broadcast goes straight from the root to all.
const starMax = 8

// Choose names the algorithm of an operation's segments. Beside it a direct plan may be tried: see
// Direct. All ranks choose the same, but in AllToAll, where only the two ranks of a pair know what
// they exchange: there each names what its longest block goes by.
func (s *Shape) Choose(op *call.Operation) plan.Algorithm {
	s = s.placed(op.Collective)
	a, c := s.cheaper(op, s.byThresholds(op)), op.Collective
	if s.Algorithms.allow(c, a) || s.ScheduleOf(op) != plan.BySize {
		return a
	}
	only := s.onlyDirect(c)
	for _, other := range plan.Algorithms(c) {
		fits := s.Algorithms.allow(c, other) || only && !a.StandsIn(c) && other.StandsIn(c)
		if fits && other != plan.Direct && s.can(op, other) == nil {
			return other
		}
	}
	return a
}

// onlyDirect tells whether all other algorithms are ruled out: they do what a direct plan cannot.
func (s *Shape) onlyDirect(c plan.Collective) bool {
	return len(s.Algorithms[c]) == 1 && s.Algorithms[c][0].Algorithm == plan.Direct
}

// byThresholds is the algorithm of an operation by its sizes, where all are allowed: of those
// without levels, and without trees but of broadcast.
func (s *Shape) byThresholds(op *call.Operation) plan.Algorithm {
	n, t := int64(op.Largest()), &s.Thresholds
	multicasts := s.AllMemory && s.Size > 2 && t.MulticastMin > 0 && n >= t.MulticastMin
	switch op.Collective {
	case plan.AllReduce:
		if s.Size == 1 || n <= s.oneShotMax(op) {
			return plan.OneShot
		}
		return plan.TwoShot
	case plan.Reduce:
		if s.Size == 1 || n <= t.FlatMax {
			return plan.Flat
		}
		return plan.ReduceScatterGather
	case plan.Broadcast:
		switch {
		case multicasts:
			return plan.Multicast
		case s.Size > 2 && n > t.FlatMax:
			return plan.ScatterAllGather
		case s.Size <= starMax:
			return plan.Flat
		}
		return plan.BinomialTree
	case plan.AllGather:
		if multicasts {
			return plan.Multicast
		}
		return plan.Linear
	case plan.ReduceScatter:
		return plan.Linear
	case plan.Gather:
		return plan.Flat
	case plan.Scatter:
		least := s.windowMin(plan.Scatter)
		switch {
		case least > 0 && s.shortest(op) >= least:
			return plan.Windowed
		case s.UsesSingleCopy(op):
			return plan.SingleCopy
		}
		return plan.Flat
	case plan.AllToAll:
		schedule, least := s.ScheduleOf(op), s.windowMin(plan.AllToAll)
		switch {
		case schedule.Window() > 0, schedule == plan.BySize && least > 0 && n >= least:
			return plan.Pairwise
		case s.UsesSingleCopy(op):
			return plan.SingleCopy
		}
		return plan.Linear
	case plan.Barrier:
		return plan.Dissemination
	}
	return plan.PointToPoint
}

// shortest is the number of bytes in the shortest block of a scatter.
func (s *Shape) shortest(op *call.Operation) int64 {
	return int64(slices.Min(op.InCounts)) * int64(op.DType.Size())
}

// oneShotMax is less where what goes between hosts may go in levels: else as many as Group*Group
// messages go from each host to each.
func (s *Shape) oneShotMax(op *call.Operation) int64 {
	each := int64(1)
	if s.mayNest(op) {
		each = int64(max(s.Group, 1))
	}
	return s.Thresholds.OneShotMax / (each * each)
}

// windowMin is from where on windows are used that no schedule asks for; 0: never. Where all ranks
// share memory a direct plan may be tried first, and then each rank must at once hear from all.
func (s *Shape) windowMin(c plan.Collective) int64 {
	windowed, other := plan.Pairwise, plan.Linear
	if c == plan.Scatter {
		windowed, other = plan.Windowed, plan.Flat
	}
	switch {
	case s.AllMemory || s.Size == 1 || !s.Algorithms.allow(c, windowed):
		return 0
	case !s.Algorithms.allow(c, other):
		return 1
	case s.Size-1 <= s.Thresholds.Window:
		return 0
	}
	return s.Thresholds.WindowMin
}

// limits sets where single blocks and pairs go by another algorithm than the operation: nowhere
// that one is ruled out.
func (s *Shape) limits(p *plan.Params, op *call.Operation) {
	c := op.Collective
	allow := func(a plan.Algorithm) bool { return s.Algorithms.allow(c, a) }
	p.WindowMin = 0
	switch c {
	case plan.AllReduce:
		small := plan.OneShot
		if p.Algorithm == plan.Hierarchical {
			small = plan.RecursiveMultiplying
		}
		if p.OneShotMax = s.oneShotMax(op); !allow(small) {
			p.OneShotMax = 0
		}
	case plan.AllGather, plan.Broadcast:
		if !allow(plan.Linear) && !allow(plan.Flat) {
			p.MulticastMin = 0
		}
	case plan.AllToAll:
		if p.WindowMin = s.windowMin(c); !allow(plan.Linear) {
			p.Window = max(p.Window, 1)
		}
	}
	p.GetMin = s.getMin(c)
}

// getMin is from where on blocks are copied once, by their receiver; 0: never.
func (s *Shape) getMin(c plan.Collective) int64 {
	switch {
	case !s.SingleCopy || s.Size == 1 || c != plan.AllToAll && c != plan.Scatter,
		!s.Algorithms.allow(c, plan.SingleCopy):
		return 0
	case !s.Algorithms.allow(c, plan.Linear) && !s.Algorithms.allow(c, plan.Flat):
		return 1
	}
	return s.Thresholds.GetMin
}

// Direct returns the parameters of an operation's direct plan, and whether to try it instead of the
// segments, which are the operation's.
func (s *Shape) Direct(op *call.Operation, segments []Segment) (p plan.Params, ok bool) {
	p = s.Params(op)
	p.Algorithm = plan.Direct
	least := s.Thresholds.DirectMin
	if s.onlyDirect(op.Collective) {
		least = 0
	}
	return p, s.hasDirect(&p, &segments[0].Params) && int64(op.Largest()) >= least
}

// hasDirect tells whether there is a direct plan, in place of which ranks may run another one, of
// which the first is given: it must be as long as HasDirect asks for.
func (s *Shape) hasDirect(direct, first *plan.Params) bool {
	c := direct.Collective
	if !s.AllMemory || !s.Algorithms.allow(c, plan.Direct) || !first.Algorithm.StandsIn(c) ||
		!direct.HasDirect() || !first.HasDirect() {
		return false
	}
	// Of these what goes to or from the root alone is too short.
	rooted := c == plan.Reduce || c == plan.Broadcast
	return !rooted || s.onlyDirect(c) || direct.OutBytes[0] > s.Thresholds.FlatMax
}

// UsesSingleCopy tells whether blocks of an operation are copied once, by their receiver.
func (s *Shape) UsesSingleCopy(op *call.Operation) bool {
	least := s.getMin(op.Collective)
	return least > 0 && int64(op.Largest()) >= least
}

// Streams tells which outputs are written past the caches: large ones would not stay there. What a
// receiver of a one-way flow copies out of its window gains by it only where its CPU has another
// rank to run meanwhile, and not from a single sender. What an allreduce in place writes is in the
// caches.
func (s *Shape) Streams(op *call.Operation) plan.Streams {
	bytes := int64(0)
	for _, n := range op.OutCounts {
		bytes += int64(n) * int64(op.DType.Size())
	}
	switch {
	case bytes < s.Thresholds.StreamMin, op.Collective == plan.Recv,
		op.Collective == plan.AllReduce && slices.Equal(op.In, op.Out):
		return plan.StreamNone
	case !s.Oversubscribed && (op.Collective == plan.Broadcast || op.Collective == plan.Scatter):
		return plan.StreamOwn
	}
	return plan.StreamAll
}
