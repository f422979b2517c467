package core

import (
	"context"
	"errors"
	"time"

	"github.com/goccl/goccl/core/call"
	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/roster"
)

// endWorks ends all works of an epoch with the cause, unless a failure has.
func (c *epoch) endWorks(cause *fault.Error) {
	c.fail(cause, false)
	<-c.stopped // by this call or by a failure before it
	// After the goodbye nothing can be said. Peers that were not told of a refusal would blame the
	// end of this process instead.
	c.tellers.Wait()
	c.queue.Drain()
}

// finish ends all works of an epoch, and tells peers that this rank has left it. It waits for a
// peer only where that has not been told yet of a call that this rank was refused, and then for
// half a second at most.
func (c *epoch) finish(cause *fault.Error) {
	c.endWorks(cause)
	if c.group != nil {
		c.detach()
	}
	c.tasks.mu.Lock()
	c.tasks.ended = true
	c.tasks.mu.Unlock()
	c.tasks.Wait()
}

// free gives back what a finished epoch holds. No thread is in the fast path.
func (c *epoch) free() {
	c.runner.engine.Free()
	c.p2p.Free()
	c.closeMemory()
	c.letGo()
}

// install begins the communicator's next epoch in place of the present one, which has finished. The
// number is the same on all ranks. Its caller holds c.changing. After an error the present epoch is
// as it was, or the next one has failed.
func (c *Comm) install(ranks roster.Roster, number uint32) error {
	old := c.present.Load()
	if c.arena == nil && ranks.Peers.SharesMemory() {
		if arena, err := c.runtime.arenas.Acquire(); err == nil { // else Alloc tells
			c.arena = arena
		}
	}
	next, err := c.newEpoch(ranks, number)
	if err != nil {
		return fault.From(err, fault.ErrSystem, "the next epoch").In(&old.Members)
	}
	c.mu.Lock()
	old.over = true
	c.entry.barred = false
	c.mu.Unlock()
	old.free()
	err = next.open()
	c.present.Store(next)
	if err != nil {
		return next.failWith(fault.From(err, fault.ErrSystem, "the next epoch"))
	}
	c.post()
	return nil
}

// Renew begins the communicator's next epoch, with the same ranks: what has failed works again, and
// the collectives count from 1. All ranks must call it, each as often as the others. It ends works
// that have not ended with ErrAborted, and waits for all ranks until the context's deadline or,
// where it has none, for the communicator's timeout. It fails at once where a rank is known to have
// ended without a goodbye. After an error the communicator has failed, and Renew may be called
// again.
func (c *Comm) Renew(ctx context.Context) error {
	c.changing.Lock()
	defer c.changing.Unlock()
	ctx, cancel := c.limit(ctx)
	defer cancel()
	old := c.present.Load()
	if err := c.alive(old); err != nil {
		return err
	}
	c.mu.Lock()
	lost := old.membership.Lost()
	c.mu.Unlock()
	if lost != nil {
		return lost.During("renew", 0)
	}
	old.finish(old.Members.Errorf(fault.ErrAborted, "epoch %d has ended: %s renews the communicator",
		old.number, old.Members.Names(old.Rank)).Blaming(old.Rank))
	ranks := old.Roster
	ranks.Joined = nil // they are members like the others
	if err := c.install(ranks, old.number+1); err != nil {
		return err
	}
	next := c.present.Load()
	old.leadsTo(next)
	if err := (service{c}).Barrier(ctx); err != nil {
		return err
	}
	next.met()
	return nil
}

// ofRecovery are the options of collectives that an epoch begins with.
var ofRecovery = CallOptions{internal: true, failFast: true}

// run runs a collective until the context ends. Where it ends before its deadline the epoch fails,
// as others may have begun the collective.
func (c *Comm) run(ctx context.Context, o CallOptions, op call.Operation) error {
	o.WaitSoon = true
	if t, ok := ctx.Deadline(); ok {
		o.Timeout = max(time.Until(t), 1) // 0 would mean the communicator's
	}
	e := c.present.Load()
	defer context.AfterFunc(ctx, func() {
		if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
			e.giveUp()
		}
	})()
	w, err := c.Start(o, op)
	if err == nil {
		_, err = w.Wait(-1)
	}
	return err
}

// giveUp fails an epoch whose caller waits no longer. Destroy says goodbye to the peers itself.
func (c *epoch) giveUp() {
	if c.life.Err() != nil {
		c.fail(destroyedHere(c), false)
		return
	}
	c.fail(c.Members.Errorf(fault.ErrAborted, "%s gave it up", c.Members.Names(c.Rank)).
		Blaming(c.Rank), true)
}
