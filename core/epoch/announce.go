package epoch

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
	"github.com/goccl/goccl/core/trace"
	"github.com/goccl/goccl/core/transport"
)

// history is the order's log: the fast path's, so that calls in C and in Go write the same one.
type history struct {
	*exec.FastPath
	e *Epoch
}

// Last implements order.Log.
func (h history) Last() uint64 { return h.Sequence() }

// Append implements order.Log.
func (h history) Append(m *plan.Message) {
	state := trace.Queued
	switch {
	case m.Collective == uint8(order.Refused):
		state = trace.Refused
	case call.IsSideStep(m):
		state = trace.SideStepped
	}
	h.FastPath.Append(m, state)
}

// Queued implements order.Log. It is called with Epoch.mu held.
func (h history) Queued(first, last uint64) (m plan.Message, ok bool) {
	for _, w := range h.e.queue.All() {
		for _, p := range w.Parts() {
			if s := p.Message.Sequence; first <= s && s <= last {
				return p.Message, true
			}
		}
	}
	return m, false
}

// Refuse tells the peers that the caller was refused a collective, or a batch with one, before it
// came to Start. Start does the same for what it refuses itself. Refuse waits for nobody.
func (e *Epoch) Refuse(reason string) {
	e.lockOrder()
	if e.Failure() != nil {
		e.mu.Unlock()
		return
	}
	peers, mismatch := e.order.Refuse(reason)
	timeout := e.config.Owner.Timeout()
	for _, peer := range peers {
		e.tellers.Add(1)
		e.spawn(func() {
			defer e.tellers.Done()
			e.tellRefusals(peer, timeout)
		})
	}
	e.unlockOrder()
	if mismatch != nil {
		e.Fail(mismatch, true)
	}
}

// RefuseStart is Refuse for operations that were to be started together. It returns why they are
// not started. It tells nobody where all are sends and receives.
func (e *Epoch) RefuseStart(why error, operations []call.Operation) error {
	if slices.ContainsFunc(operations, func(o call.Operation) bool { return !o.PointToPoint() }) {
		e.Refuse(why.Error())
	}
	return why
}

// tellRefusals tells a peer, connecting to it if need be, what it has not been told yet.
func (e *Epoch) tellRefusals(peer int, timeout time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	// Not the epoch's context: where another rank has found the mismatch out already, a peer
	// may still be waiting that only this rank can tell.
	defer context.AfterFunc(e.works.Context, func() { time.AfterFunc(askTime, cancel) })()
	for {
		e.mu.Lock()
		announcement, number, ok := e.order.Tell(peer)
		e.mu.Unlock()
		if !ok {
			return
		}
		// An error means that the peer is gone, or has been stopped for long: then it fails by that.
		h := transport.Header{Type: frameAnnounce, Seq: number}
		_ = e.group.Send(ctx, peer, h, announcement)
	}
}

// refusalTime is how long the news of a refused call may take, on a busy host, after the peer's
// next call has been seen.
const refusalTime = time.Second

// mismatchError returns the error of two ranks that call different operations, or the same one with
// different sizes.
func (e *Epoch) mismatchError(
	mine plan.Message, run *exec.Run, peer int, seen plan.Message, sent order.Traffic,
) *fault.Error {
	if mine == seen {
		var expected order.Traffic
		expected.Bytes, expected.Total = run.Expected()
		return e.order.DifferInBytes(mine, peer, expected, sent)
	}
	if seen.Sequence > mine.Sequence {
		// The peer left this call out. If it was refused, that is under way, fails the epoch,
		// and says more.
		t := time.NewTimer(refusalTime)
		defer t.Stop()
		select {
		case <-e.works.Context.Done():
		case <-t.C:
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.order.Differ(mine, peer, seen)
}

// announce tells the peers what this rank waits in. Peers that do something else at the same place
// in the order find the mismatch.
func (e *Epoch) announce(m plan.Message) {
	e.mu.Lock()
	group := e.group
	e.mu.Unlock()
	if group != nil { // else it waits for an input, and peers do not know it yet
		group.Broadcast(transport.Header{Type: frameAnnounce, Seq: m.Sequence}, order.Encode(m))
	}
}

// onAnnounce takes a peer's announcement: of what it waits in, or of what it was refused.
func (e *Epoch) onAnnounce(peer int, payload []byte) error {
	a, err := order.DecodeAnnouncement(payload)
	if err != nil {
		return fmt.Errorf("%w: %w", exec.ErrProtocol, err)
	}
	e.lockOrder()
	mismatch := e.order.Hear(peer, a)
	early := a.Waits() && a.Message.Sequence > e.fast.Sequence()
	e.unlockOrder()
	switch {
	case mismatch != nil:
		e.Fail(mismatch, true)
	case early: // no other rank may know that the peer waits in vain
		e.step(membership.Awaits{Message: a.Message})
	}
	return nil
}
