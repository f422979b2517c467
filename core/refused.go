package core

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/goccl/goccl/core/call"
	"github.com/goccl/goccl/core/exec"
	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/internal/printable"
	"github.com/goccl/goccl/core/plan"
	"github.com/goccl/goccl/core/transport"
)

// A call that is refused for its arguments takes a place in the order of collectives all the same, one for
// a whole batch, and is announced to all peers. A rank whose own call at that place is good fails, and
// so all do; a rank that was refused there too goes on.

// refused is the collective of a call that was refused, in place of plan's.
const refused plan.Collective = math.MaxUint8

// refusal is a row of calls, one after the other in the order, that were refused for one reason.
type refusal struct {
	first, last uint64
	reason      string
}

// refusals are a rank's, in the order.
type refusals []refusal

// maxRefusals bounds what is kept of one rank: of this rank's own, all that history holds. A peer's
// beyond it are found out when this rank waits in a call that the peer was refused, and announces it.
// A power of two.
const maxRefusals = 64

func (r refusals) add(f refusal) refusals {
	if n := len(r); n > 0 && r[n-1].last+1 == f.first && r[n-1].reason == f.reason {
		r[n-1].last = f.last
		return r
	}
	return append(r, f)
}

// at tells whether and why the call at a place was refused.
func (r refusals) at(sequence uint64) (reason string, ok bool) {
	i := slices.IndexFunc(r, func(f refusal) bool { return f.first <= sequence && sequence <= f.last })
	if i < 0 {
		return "", false
	}
	return r[i].reason, true
}

// telling is how far a peer has been told of this rank's refusals.
type telling struct {
	upTo uint64
	busy bool // a goroutine is at it
}

// Refuse tells that the caller was refused a collective, or a batch with one, before it came to Start.
// Start does the same for what it refuses itself. It waits for nobody.
func (c *Comm) Refuse(reason string) {
	c.lockOrder()
	if c.failure != nil {
		c.mu.Unlock()
		return
	}
	m := c.refusedMessage(0)
	c.shortcut.Append(&m)
	s := m.Sequence
	c.refused = c.refused.add(refusal{s, s, printable.Text(reason, fault.MaxText)})
	if len(c.refused) > maxRefusals {
		c.refused = slices.Delete(c.refused, 0, 1)
	}
	mismatch := c.compareAnnounced(m)
	if c.told == nil {
		c.told = make([]telling, c.size)
	}
	for peer := range c.told {
		if t := &c.told[peer]; peer != c.rank && !t.busy {
			t.busy = true
			timeout := c.timeout
			c.spawn(func() { c.tellRefusals(peer, timeout) })
		}
	}
	c.unlockOrder()
	if mismatch != nil {
		c.fail(mismatch, true)
	}
}

// RefuseStart is Refuse for operations that were to be started together, and returns why they are not. Of
// sends and receives alone nobody is told.
func (c *Comm) RefuseStart(why error, operations ...Operation) error {
	if slices.ContainsFunc(operations, func(o call.Operation) bool { return !o.PointToPoint() }) {
		c.Refuse(why.Error())
	}
	return why
}

func (c *Comm) refusedMessage(sequence uint64) plan.Message {
	return plan.Message{Collective: uint8(refused), Root: -1, Group: c.identity.group, Epoch: c.identity.epoch, Sequence: sequence}
}

// tellRefusals tells a peer, connecting to it if need be, what it has not been told yet.
func (c *Comm) tellRefusals(peer int, timeout time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	// Not the communicator's context: where another rank has found the mismatch out already, a peer may
	// still be waiting that only this rank can tell.
	defer context.AfterFunc(c.ctx, func() { time.AfterFunc(askTime, cancel) })()
	for {
		c.mu.Lock()
		t := &c.told[peer]
		i := slices.IndexFunc(c.refused, func(f refusal) bool { return f.last > t.upTo })
		if i < 0 {
			t.busy = false
			c.mu.Unlock()
			return
		}
		f := c.refused[i]
		f.first = max(f.first, t.upTo+1)
		t.upTo = f.last
		c.mu.Unlock()
		m := c.refusedMessage(f.last)
		m.Count = f.last - f.first + 1
		// An error means that the peer is gone, or has been stopped for long: then it fails by that.
		_ = c.group.Send(ctx, peer, transport.Header{Type: frameAnnounce, Seq: f.last}, encodeMessage(m), []byte(f.reason))
	}
}

// decodeRefusal reads what tellRefusals sends.
func decodeRefusal(m plan.Message, reason []byte) (refusal, error) {
	if m.Count == 0 || m.Count > m.Sequence || len(reason) > fault.MaxText {
		return refusal{}, fmt.Errorf("%w: %d calls refused up to #%d, with a text of %d bytes", exec.ErrProtocol, m.Count, m.Sequence, len(reason))
	}
	return refusal{m.Sequence - m.Count + 1, m.Sequence, printable.Text(string(reason), fault.MaxText)}, nil
}

// onRefusal compares what a peer was refused with what this rank called there, and keeps it for
// the calls to come.
func (c *Comm) onRefusal(peer int, f refusal) {
	c.lockOrder()
	var err *fault.Error
	if mine, ok := c.goodCall(f); ok {
		err = c.refusedError(peer, f.reason, c.rank, mine)
	} else if f.last > c.Sequence() && c.failure == nil {
		a := c.announcedBy(peer)
		f.first = max(f.first, c.Sequence()+1)
		if n := len(a.refused); n == 0 || a.refused[n-1].last < f.first {
			if more := a.refused.add(f); len(more) <= maxRefusals {
				a.refused = more
			}
		}
	}
	c.unlockOrder()
	if err != nil {
		c.fail(err, true)
	}
}

// goodCall finds a collective that this rank has started at a place where a peer was refused one. It is called
// with the lock held.
func (c *Comm) goodCall(f refusal) (plan.Message, bool) {
	for _, w := range c.queue {
		for _, p := range w.parts {
			if s := p.message.Sequence; f.first <= s && s <= f.last {
				return p.message, true
			}
		}
	}
	last := c.Sequence()
	for s := max(f.first, last-min(last, maxRefusals)+1); s <= min(f.last, last); s++ {
		if m := c.shortcut.At(s); m.Collective != uint8(refused) {
			return m, true
		}
	}
	return plan.Message{}, false
}

// refusedError tells that a rank was refused a call where another made a good one.
func (c *Comm) refusedError(rank int, reason string, other int, good plan.Message) *fault.Error {
	return c.members.Errorf(fault.ErrMismatch, "collective mismatch at #%d: %s called %s, but the call of %s was refused: %s",
		good.Sequence, c.members.Names(other), call.Describe(good), c.members.Names(rank), reason).
		During(good.Name(), good.Sequence).
		Calling(map[int]string{other: call.Describe(good), rank: "a call that was refused: " + reason})
}
