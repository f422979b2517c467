package core

import (
	"context"
	"errors"
	"slices"

	"github.com/goccl/goccl/core/fault"
)

// recovery is one that a communicator has begun by itself. It ends in the communicator's timeout,
// counted anew where another member dies meanwhile, or when it is given up.
type recovery struct {
	done   chan struct{} // closed at its end
	giveUp context.CancelCauseFunc
}

// awaitRecovery begins a recovery: works that a death ends are held from now on. It is called with
// the lock held, once the epoch has failed.
func (c *epoch) awaitRecovery(cause *fault.Error) {
	if c.recovers() && errors.Is(cause, fault.ErrPeerFailed) && !c.destroyed &&
		c.recovering == nil && c.enoughAfter(cause) {
		ctx, giveUp := context.WithCancelCause(c.life)
		c.recovering = &recovery{make(chan struct{}), giveUp}
		go c.Comm.recoverAlone(ctx)
	}
}

// enoughAfter tells whether the members that are left need no newcomers. It is called with the lock
// held.
func (c *epoch) enoughAfter(cause *fault.Error) bool {
	gone := slices.Concat(c.membership.Departed(), cause.Ranks)
	slices.Sort(gone)
	return c.Size()-len(slices.Compact(gone)) >= c.config.MinSize
}

// recoverAlone recovers a communicator that was not told to, and ends what is held.
func (c *Comm) recoverAlone(ctx context.Context) {
	for again := true; again; {
		var err error
		c.changing.Lock()
		if c.present.Load().failed() != nil { // Renew or Reconfigure may have come first
			err = c.goOn(ctx, motion{Operation: "recover", Completes: true})
		}
		c.changing.Unlock()
		c.mu.Lock()
		e := c.present.Load()
		failure := e.failed()
		again = err == nil && failure != nil && errors.Is(failure, fault.ErrPeerFailed)
		var left []*held
		if !again {
			left, c.held, c.owed = c.held, nil, nil
			close(c.recovering.done)
			c.recovering.giveUp(nil)
			c.recovering = nil
			if failure == nil {
				e.openFastPath()
			}
		}
		c.mu.Unlock()
		for _, h := range left {
			cause := fault.From(err, fault.ErrRevoked, "it was not recovered")
			if err == nil {
				cause = e.Members.Errorf(fault.ErrRevoked, "the members have changed")
			}
			h.Resolve(cause)
		}
	}
}
