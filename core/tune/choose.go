package tune

import (
	"slices"

	"github.com/goccl/goccl/core/call"
	"github.com/goccl/goccl/core/plan"
	"github.com/goccl/goccl/core/reduce"
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

// GroupOf is the size of groups in the plans of an operation; 0: there are none.
func (s *Shape) GroupOf(op *call.Operation) int {
	c := op.Collective
	if !c.HasGroups() || c.Reduces() && !reduce.Nests(op.DType, op.Op) {
		return 0
	}
	return s.Group
}

// Direct returns the parameters of an operation's direct plan, and whether to try it instead of the
// segments, which are the operation's.
func (s *Shape) Direct(op *call.Operation, segments []Segment) (p plan.Params, ok bool) {
	if !s.AllMemory {
		return p, false
	}
	p = s.Params(op)
	p.Direct = true
	// Of the other plan the first segment must do what HasDirect asks for.
	return p, p.HasDirect() && segments[0].Params.HasDirect() &&
		int64(op.Largest()) >= s.Thresholds.DirectMin
}

// WantsSingleCopy tells whether ranks must know, for an operation, if all can read each other's
// memory. All ranks find the same: only in AllToAll do they not know each other's sizes.
func (s *Shape) WantsSingleCopy(op *call.Operation) bool {
	least := s.Thresholds.GetMin
	if !s.AllMemory || s.Size == 1 || least == 0 {
		return false
	}
	return op.Collective == plan.AllToAll ||
		op.Collective == plan.Scatter && int64(op.Largest()) >= least
}

// UsesSingleCopy tells whether blocks of an operation are copied once, by their receiver.
func (s *Shape) UsesSingleCopy(op *call.Operation) bool {
	return s.SingleCopy && s.WantsSingleCopy(op) && int64(op.Largest()) >= s.Thresholds.GetMin
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
