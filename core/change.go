package core

import (
	"context"

	"github.com/goccl/goccl/core/epoch"
	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/join"
	"github.com/goccl/goccl/core/roster"
)

// install begins the communicator's next epoch in place of the present one, which has finished. The
// number is the same on all ranks. Follows is set where the members of the present epoch have
// decided on the next one. After an error the present epoch is as it was, or the next one has
// failed. It is called with c.changing held.
func (c *Comm) install(ranks roster.Roster, number uint32, follows bool) error {
	old := c.present.Load()
	if c.shared.Arena == nil && ranks.Peers.SharesMemory() {
		if arena, err := c.runtime.arenas.Acquire(); err == nil { // else Alloc tells
			c.shared.Arena = arena
		}
	}
	next, err := epoch.New(&c.shared, ranks, number)
	if err != nil {
		return fault.From(err, fault.ErrSystem, "the next epoch").In(&old.Members)
	}
	old.End()
	old.Free()
	if follows {
		old.Decisions().SetSuccessor(next.Decisions())
	}
	err = next.Open(ranks.Identity)
	c.begin(next)
	if err != nil {
		return next.FailWith(fault.From(err, fault.ErrSystem, "the next epoch"))
	}
	c.acceptor.Changed()
	return nil
}

// begin makes an epoch the present one, and tells the acceptor. What was decided on the one before
// is over.
func (c *Comm) begin(e *epoch.Epoch) {
	c.decided = nil
	c.present.Store(e)
	c.acceptor.Moved(join.Epoch{Roster: &e.Roster, Number: e.Number(), Decisions: e.Decisions()})
}

// Renew begins the communicator's next epoch, with the same ranks: what has failed works again, and
// the collectives count from 1. All ranks must call it, each as often as the others. Works that
// have not ended end with ErrAborted. Renew waits for all ranks until the context's deadline or,
// where it has none, for the communicator's timeout. It fails at once where a rank is known to have
// ended without a goodbye. After an error the communicator has failed, and Renew may be called
// again.
func (c *Comm) Renew(ctx context.Context) error {
	c.changing.Lock()
	defer c.changing.Unlock()
	ctx, cancel := c.limit(ctx)
	defer cancel()
	old := c.present.Load()
	if err := old.Alive(); err != nil {
		return err
	}
	if lost := old.Lost(); lost != nil {
		return lost.During("renew", 0)
	}
	old.Finish(old.Members.Errorf(fault.ErrAborted, "epoch %d has ended: %s renews the communicator",
		old.Number(), old.Members.Names(old.Rank)).Blaming(old.Rank))
	ranks := old.Roster
	ranks.Joined = nil // they are members like the others
	ranks.Identity = old.Identity.OfRenewal(old.Number() + 1)
	if err := c.install(ranks, old.Number()+1, true); err != nil {
		return err
	}
	next := c.present.Load()
	if err := next.Service().Barrier(ctx); err != nil {
		return err
	}
	next.Decisions().AllMet()
	return nil
}
