package p2p

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/goccl/goccl/core/call"
	"github.com/goccl/goccl/core/exec"
	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/membership"
	"github.com/goccl/goccl/core/plan"
	"github.com/goccl/goccl/core/transport"
	"github.com/goccl/goccl/core/work"
)

// loseSend is lose for a send that may have come too late.
func (e *Engine) loseSend(s *send, err error) *fault.Error {
	if s.work.Deadline() <= exec.Now() && e.face.Failed() == nil {
		e.face.Fail(e.late(s.work, s.op, s.peer, "it could not be sent"))
		return e.ended(s.op, e.face.Failed())
	}
	return e.lose(s.op, s.peer, err)
}

// lose is what a send or receive ends with whose peer cannot be reached. Where the peer has left in
// good order nobody else misses it; else the communicator has failed.
func (e *Engine) lose(op *call.Operation, peer int, err error) *fault.Error {
	cause := e.face.PeerError(peer, err)
	if !errors.Is(err, transport.ErrPeerLeft) {
		e.face.Fail(cause)
		cause = e.face.Failed()
	}
	return e.ended(op, cause)
}

// Title names a send or receive.
func (e *Engine) Title(op *call.Operation) string {
	peer, way := "any rank", "from"
	if op.Root != call.AnySource {
		peer = e.Members.Names(op.Root)
	}
	name := "receive"
	if op.Collective == plan.Send {
		name, way = "send", "to"
	}
	return fmt.Sprintf("%s of %d bytes with tag %d %s %s", name, op.Length(), op.Tag, way, peer)
}

// ended is the error for a send or receive that a failure has ended.
func (e *Engine) ended(op *call.Operation, cause *fault.Error) *fault.Error {
	return cause.During(op.Collective.String(), 0).Ending(e.Title(op), "")
}

// late is the error for a send or receive whose time is up, which a peer has not met.
func (e *Engine) late(w *work.Work, op *call.Operation, peer int, why string) *fault.Error {
	return e.ended(op, e.Members.Errorf(fault.ErrTimeout, "%s: timeout after %v: %s", e.Title(op),
		w.Timeout(), why).Blaming(peer))
}

// refuse tells why nothing can be started with a peer. Called with the lock held.
func (e *Engine) refuse(peer int) *fault.Error {
	if e.failure != nil {
		return e.failure
	}
	d, gone := e.gone[peer]
	switch {
	case gone:
		return d.Cause
	case peer == call.AnySource && len(e.gone) > 0:
		alone := len(e.gone) == e.size-1
		for _, peer := range slices.Sorted(maps.Keys(e.gone)) {
			if d := e.gone[peer]; d.Lost() && (alone || !d.Exited) {
				return d.Cause.Because("It may have been the one to send")
			}
		}
		if alone {
			return e.Members.Errorf(fault.ErrAborted, "all other ranks have left: no other rank can "+
				"send any more").Blaming(slices.Collect(maps.Keys(e.gone))...)
		}
	}
	return nil
}

// miss ends a send or receive whose peer is gone. The communicator fails, too, where the peer has
// died. It goes on after a receive of any source, as long as another rank is left.
func (e *Engine) miss(b *bulk, err *fault.Error) {
	e.mu.Lock()
	others := len(e.gone) < e.size-1
	e.mu.Unlock()
	if err.Kind == fault.ErrPeerFailed && (b.op.Root != call.AnySource || !others) {
		e.face.Fail(err)
	}
	e.over(b, e.ended(b.op, err))
}

// broken is the error for what no correct peer sends.
func (e *Engine) broken(peer int, err error) *fault.Error {
	return e.Members.Errorf(fault.ErrInternal, "from %s: %v", e.Members.Names(peer), err)
}

// ending is the end of a send or receive, for when no lock is held.
type ending struct {
	*bulk
	err *fault.Error
}

// giveUp has bulks of a peer, or (AnySource) of all, left, but for those that are busy. It needs
// e.mu.
func (e *Engine) giveUp(peer int, cause *fault.Error) (ended []ending) {
	for b := range e.all() {
		if (peer == call.AnySource || b.peer == peer) && !b.busy {
			ended = append(ended, ending{b, cause})
			e.to(b, left)
		}
	}
	return ended
}

// Depart ends what can no longer be matched because a peer is gone.
func (e *Engine) Depart(peer int, d membership.Departure) {
	e.enter()
	defer e.exit()
	e.takePackets() // what it sent before
	e.mu.Lock()
	e.gone[peer] = d
	ended := e.giveUp(peer, d.Cause)
	e.match.posted = slices.DeleteFunc(e.match.posted, func(r *receive) bool {
		err := e.refuse(r.source)
		if err != nil {
			ended = append(ended, ending{&r.bulk, err})
		}
		return err != nil
	})
	// What was to be sent, and will not come.
	e.match.unexpected = slices.DeleteFunc(e.match.unexpected,
		func(a *arrival) bool { return a.source == peer && a.id != 0 })
	e.peers[peer].held = heldBack{}
	transfers := e.transfers > 0
	e.mu.Unlock()
	for _, x := range ended {
		e.miss(x.bulk, x.err)
	}
	if transfers { // one may be a receive from the peer
		e.mail.Poke()
	}
}

// Fail ends everything. From now on all calls go by the engine, which refuses them.
func (e *Engine) Fail(err *fault.Error) {
	e.enter()
	defer e.exit()
	e.mu.Lock()
	e.failure = err
	if e.deadline.alarm != nil {
		e.deadline.alarm.Stop()
	}
	ended := e.giveUp(call.AnySource, err)
	for _, r := range e.match.posted {
		ended = append(ended, ending{&r.bulk, err})
	}
	for _, a := range e.match.unexpected {
		if a.local != nil {
			ended = append(ended, ending{&a.local.bulk, err})
		}
	}
	e.match = matcher{}
	for i := range e.peers {
		e.peers[i].held = heldBack{}
	}
	e.mu.Unlock()
	for _, x := range ended {
		e.over(x.bulk, e.ended(x.op, x.err))
	}
	e.endTransfers(err)
}
