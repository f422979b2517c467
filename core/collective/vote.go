package collective

import (
	"unsafe"

	"github.com/goccl/goccl/core/call"
	"github.com/goccl/goccl/core/exec"
	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/plan"
	"github.com/goccl/goccl/core/reduce"
	"github.com/goccl/goccl/core/reduce/kernel"
	"github.com/goccl/goccl/core/work"
)

// Ranks that share a host may be allowed to read each other's memory. Then what is long is not
// copied twice, through the windows, but once, by its receiver. Of a send its receiver decides (see
// transfer.go). For a collective (plan.Get) all ranks must be able to, as all of them build the
// same plans: they vote before the first one for which it matters.

// mustVote tells whether the ranks must vote first. All find the same.
func (e *Engine) mustVote(op *call.Operation) bool {
	return !e.voted && e.Shape.WantsSingleCopy(op)
}

// vote begins a plan in which the ranks agree, in the name of the part that comes after.
func (e *Engine) vote(p *work.Part) *fault.Error {
	own, all := e.run.Votes()
	*own = 1
	for peer := range e.Window.Layout.Ranks {
		if peer != e.Rank && !e.Window.Reads(peer) {
			*own = 0
		}
	}
	minimum, err := kernel.Of(reduce.Int32, reduce.Min)
	if err != nil {
		return fault.From(err, fault.ErrInternal, "%s", call.Describe(p.Message))
	}
	op := call.Operation{Collective: plan.AllReduce, DType: reduce.Int32, InCounts: []uint64{1},
		OutCounts: []uint64{1}}
	compiled, err := e.plans.get(e.Shape.Params(&op), false)
	if err != nil {
		return fault.From(err, fault.ErrInternal, "%s", call.Describe(p.Message))
	}
	b := exec.Binding{In: []unsafe.Pointer{unsafe.Pointer(own)},
		Out: []unsafe.Pointer{unsafe.Pointer(all)}, Kernel: minimum, Message: p.Message}
	if err := e.run.Bind(b); err != nil {
		return fault.From(err, fault.ErrSystem, "%s", call.Describe(p.Message))
	}
	if err := e.run.Begin(compiled, 0); err != nil {
		return fault.From(err, fault.ErrSystem, "%s", call.Describe(p.Message))
	}
	e.begun, e.voting, e.segments, e.current = true, true, nil, compiled
	e.algorithm = compiled.Algorithm
	return nil
}

// counted ends the vote.
func (e *Engine) counted() {
	_, all := e.run.Votes()
	e.voting, e.voted, e.Shape.SingleCopy = false, true, *all == 1
	e.laid = layout{} // which gets nothing
}

// SingleCopy tells whether the ranks have found out if they can read each other's memory, and the
// result.
func (e *Engine) SingleCopy() (voted, yes bool) { return e.voted, e.Shape.SingleCopy }
