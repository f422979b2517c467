package core

import (
	"context"
	"slices"
	"time"

	"github.com/goccl/goccl/core/call"
	"github.com/goccl/goccl/core/exec"
	"github.com/goccl/goccl/core/plan"
	"github.com/goccl/goccl/core/transport"
)

// history is the order's log: the fast path's, so that calls in C and in Go write the same one.
type history struct {
	*exec.Shortcut
	c *Comm
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

// Refuse tells that the caller was refused a collective, or a batch with one, before it came to Start.
// Start does the same for what it refuses itself. It waits for nobody.
func (c *Comm) Refuse(reason string) {
	c.lockOrder()
	if c.failed() != nil {
		c.mu.Unlock()
		return
	}
	peers, mismatch := c.order.Refuse(reason)
	timeout := c.timeout
	for _, peer := range peers {
		c.tellers.Add(1)
		c.spawn(func() {
			defer c.tellers.Done()
			c.tellRefusals(peer, timeout)
		})
	}
	c.unlockOrder()
	if mismatch != nil {
		c.fail(mismatch, true)
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
func (c *Comm) tellRefusals(peer int, timeout time.Duration) {
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
