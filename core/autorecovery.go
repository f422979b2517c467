package core

import (
	"context"
	"errors"
	"slices"

	"github.com/goccl/goccl/core/fault"
)

// recovery is an automatic one, which no caller asked for. It ends within the communicator's
// timeout, which another death restarts, or when it is given up.
type recovery struct {
	done   chan struct{} // closed at its end
	giveUp context.CancelCauseFunc
}

// awaitRecovery begins an automatic recovery. From now on works that a death ends are suspended. It
// is called with the lock held, once the epoch has failed.
func (c *epoch) awaitRecovery(cause *fault.Error) {
	if c.recovers() && errors.Is(cause, fault.ErrPeerFailed) && !c.destroyed &&
		c.recovering == nil && c.enoughAfter(cause) {
		ctx, giveUp := context.WithCancelCause(c.life)
		c.recovering = &recovery{make(chan struct{}), giveUp}
		go c.Comm.recoverAutomatically(ctx)
	}
}

// enoughAfter tells whether the members that are left need no newcomers. It is called with the lock
// suspended.
func (c *epoch) enoughAfter(cause *fault.Error) bool {
	gone := slices.Concat(c.membership.Departed(), cause.Ranks)
	slices.Sort(gone)
	return c.Size()-len(slices.Compact(gone)) >= c.config.MinSize
}

// recoverAutomatically recovers a communicator that was not told to, and ends what is suspended.
func (c *Comm) recoverAutomatically(ctx context.Context) {
	for again := true; again; {
		var err error
		c.changing.Lock()
		if c.present.Load().failed() != nil { // Renew or Reconfigure may have come first
			err = c.goOn(ctx, proposal{Operation: "recover", Completes: true})
		}
		c.changing.Unlock()
		c.mu.Lock()
		e := c.present.Load()
		failure := e.failed()
		again = err == nil && failure != nil && errors.Is(failure, fault.ErrPeerFailed)
		var left []*suspended
		if !again {
			left, c.suspended, c.transfers = c.suspended, nil, nil
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
