package epoch

import (
	"context"

	"github.com/goccl/goccl/core/call"
	"github.com/goccl/goccl/core/logs"
	"github.com/goccl/goccl/core/plan"
)

// SideStep takes a place in the order for a collective that another library does, so that a rank
// which waits in another one there finds the mismatch. Ranks that side-step to different libraries
// do not find it: they wait in these. It waits for nobody.
func (e *Epoch) SideStep(c plan.Collective, to string) error {
	m := call.SideStep(c, to)
	e.lockOrder()
	e.awaitRegistration()
	if err := e.refusal(); err != nil {
		e.mu.Unlock()
		return err.During(c.String(), 0)
	}
	mismatch := e.order.Start(&m)
	e.fast.Trace().SideStepped(to)
	what, level := call.Describe(m), logs.Trace
	if !e.trace.sideSteps[what] {
		e.trace.sideSteps[what], level = true, logs.Info
	}
	e.unlockOrder()
	e.Log(logs.Coll).Log(context.Background(), level, what, "sequence", m.Sequence)
	if mismatch != nil {
		e.Fail(mismatch, true)
		return mismatch
	}
	return nil
}
