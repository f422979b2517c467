package core

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/goccl/goccl/core/call"
	"github.com/goccl/goccl/core/exec"
	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/membership"
	"github.com/goccl/goccl/core/order"
	"github.com/goccl/goccl/core/plan"
	"github.com/goccl/goccl/core/transport"
)

// history is the order's log: the fast path's, so that calls in C and in Go write the same one.
type history struct {
	*exec.FastPath
	c *epoch
}

// Last implements order.Log.
func (h history) Last() uint64 { return h.Sequence() }

// Queued implements order.Log. It is called with the communicator's lock held.
func (h history) Queued(first, last uint64) (m plan.Message, ok bool) {
	for _, w := range h.c.queue.All() {
		for _, p := range w.Parts() {
			if s := p.Message.Sequence; first <= s && s <= last {
				return p.Message, true
			}
		}
	}
	return m, false
}

// Refuse tells that the caller was refused a collective, or a batch with one, before it came to
// Start. Start does the same for what it refuses itself. It waits for nobody.
func (c *Comm) Refuse(reason string) {
	e := c.present.Load()
	c.lockOrder()
	if e.failed() != nil {
		c.mu.Unlock()
		return
	}
	peers, mismatch := e.order.Refuse(reason)
	timeout := c.timeout
	for _, peer := range peers {
		e.tellers.Add(1)
		e.spawn(func() {
			defer e.tellers.Done()
			e.tellRefusals(peer, timeout)
		})
	}
	e.unlockOrder()
	if mismatch != nil {
		e.fail(mismatch, true)
	}
}

// RefuseStart is Refuse for operations that were to be started together, and returns why they are
// not. Of sends and receives alone nobody is told.
func (c *Comm) RefuseStart(why error, operations ...Operation) error {
	if slices.ContainsFunc(operations, func(o call.Operation) bool { return !o.PointToPoint() }) {
		c.Refuse(why.Error())
	}
	return why
}

// tellRefusals tells a peer, connecting to it if need be, what it has not been told yet.
func (c *epoch) tellRefusals(peer int, timeout time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	// Not the communicator's context: where another rank has found the mismatch out already, a peer
	// may still be waiting that only this rank can tell.
	defer context.AfterFunc(c.works.Context, func() { time.AfterFunc(askTime, cancel) })()
	for {
		c.mu.Lock()
		announcement, number, ok := c.order.Tell(peer)
		c.mu.Unlock()
		if !ok {
			return
		}
		// An error means that the peer is gone, or has been stopped for long: then it fails by that.
		h := transport.Header{Type: frameAnnounce, Seq: number}
		_ = c.group.Send(ctx, peer, h, announcement)
	}
}

// refusalTime is how long the news of a refused call may take, on a busy host, after the peer's
// next call has been seen.
const refusalTime = time.Second

// mismatchError tells of two ranks that call different things, or the same with different sizes.
func (c *epoch) mismatchError(
	mine plan.Message, run *exec.Run, peer int, seen plan.Message, sent order.Traffic,
) *fault.Error {
	if mine == seen {
		var expected order.Traffic
		expected.Bytes, expected.Total = run.Expected()
		return c.order.DifferInBytes(mine, peer, expected, sent)
	}
	if seen.Sequence > mine.Sequence {
		// The peer left this call out. If it was refused, that is under way, fails the communicator,
		// and says more.
		t := time.NewTimer(refusalTime)
		defer t.Stop()
		select {
		case <-c.works.Context.Done():
		case <-t.C:
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.order.Differ(mine, peer, seen)
}

// announce tells the peers what this rank waits in. Those that do another thing at the same place
// in the order find it out.
func (c *epoch) announce(m plan.Message) {
	c.group.Broadcast(transport.Header{Type: frameAnnounce, Seq: m.Sequence}, order.Encode(m))
}

// onAnnounce takes a peer's announcement: of what it waits in, or of what it was refused.
func (c *epoch) onAnnounce(peer int, payload []byte) error {
	a, err := order.DecodeAnnouncement(payload)
	if err != nil {
		return fmt.Errorf("%w: %w", exec.ErrProtocol, err)
	}
	c.lockOrder()
	mismatch := c.order.Hear(peer, a)
	early := a.Waits() && a.Message.Sequence > c.Sequence()
	c.unlockOrder()
	switch {
	case mismatch != nil:
		c.fail(mismatch, true)
	case early: // no other rank may know that the peer waits in vain
		c.step(membership.Awaits{Message: a.Message})
	}
	return nil
}
