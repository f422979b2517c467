package core

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

// Ranks that share a host may be allowed to read each other's memory. Then what is long is not copied twice, through the windows, but
// once, by its receiver. Of a send its receiver decides (see transfer.go). For a collective (plan.Get) all ranks must be able to, as all
// of them build the same plans: they vote before the first one for which it matters.

// mustVote tells whether the ranks must vote first. All find the same.
func (c *Comm) mustVote(op *call.Operation) bool {
	return !c.runner.voted && c.shape.WantsSingleCopy(op)
}

// vote begins a plan in which the ranks agree, in the name of the part that comes after.
func (c *Comm) vote(p *work.Part) *fault.Error {
	r := &c.runner
	own, all := r.run.Votes()
	*own = 1
	for peer := range c.size {
		if peer != c.rank && !c.window.Reads(peer) {
			*own = 0
		}
	}
	minimum, err := kernel.Of(reduce.Int32, reduce.Min)
	if err != nil {
		return fault.From(err, fault.ErrInternal, "%s", call.Describe(p.Message))
	}
	op := call.Operation{Collective: plan.AllReduce, DType: reduce.Int32, InCounts: []uint64{1},
		OutCounts: []uint64{1}}
	compiled, err := r.plans.get(c.shape.Params(&op), false)
	if err != nil {
		return fault.From(err, fault.ErrInternal, "%s", call.Describe(p.Message))
	}
	b := exec.Binding{In: []unsafe.Pointer{unsafe.Pointer(own)},
		Out: []unsafe.Pointer{unsafe.Pointer(all)}, Kernel: minimum, Message: p.Message}
	if err := r.run.Bind(b); err != nil {
		return fault.From(err, fault.ErrSystem, "%s", call.Describe(p.Message))
	}
	if err := r.run.Begin(compiled, 0, exec.AnyPeer, exec.AnyPeer); err != nil {
		return fault.From(err, fault.ErrSystem, "%s", call.Describe(p.Message))
	}
	r.begun, r.voting, r.segments, r.current = true, true, nil, compiled
	r.waitingFrom, r.told = 0, false
	return nil
}

// counted ends the vote.
func (c *Comm) counted() {
	r := &c.runner
	_, all := r.run.Votes()
	r.voting, r.voted, r.gets = false, true, *all == 1
	r.laid = layout{} // which gets nothing
}
