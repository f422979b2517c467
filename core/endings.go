package core

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
)

// loseSend is lose for a send that may have come too late.
func (p *pointToPoint) loseSend(s *send, err error) *fault.Error {
	if s.work.Deadline() <= exec.Now() && p.c.failed() == nil {
		p.c.fail(p.late(s.work, s.op, s.peer, "it could not be sent"), true)
		return p.ended(s.op, p.c.failed())
	}
	return p.lose(s.op, s.peer, err)
}

// lose is what a send or receive ends with whose peer cannot be reached. Where the peer has left in
// good order nobody else misses it; else the communicator has failed.
func (p *pointToPoint) lose(op *call.Operation, peer int, err error) *fault.Error {
	if errors.Is(err, transport.ErrPeerLeft) && p.c.failed() == nil {
		return p.ended(op, p.c.hasLeft(peer))
	}
	p.c.fail(p.c.peerError(peer, err), true)
	return p.ended(op, p.c.failed())
}

// title names a send or receive.
func (p *pointToPoint) title(op *call.Operation) string {
	peer, way := "any rank", "from"
	if op.Root != call.AnySource {
		peer = p.c.members.Names(op.Root)
	}
	name := "receive"
	if op.Collective == plan.Send {
		name, way = "send", "to"
	}
	return fmt.Sprintf("%s of %d bytes with tag %d %s %s", name, op.Length(), op.Tag, way, peer)
}

// ended is the error for a send or receive that a failure has ended.
func (p *pointToPoint) ended(op *call.Operation, cause *fault.Error) *fault.Error {
	return cause.During(op.Collective.String(), 0).Ending(p.title(op), "")
}

// late is the error for a send or receive whose time is up, which a peer has not met.
func (p *pointToPoint) late(w *Work, op *call.Operation, peer int, why string) *fault.Error {
	return p.ended(op, p.c.members.Errorf(fault.ErrTimeout, "%s: timeout after %v: %s", p.title(op),
		w.Timeout(), why).Blaming(peer))
}

// refuse tells why nothing can be started with a peer. Called with the lock held.
func (p *pointToPoint) refuse(peer int) *fault.Error {
	if p.failure != nil {
		return p.failure
	}
	d, gone := p.gone[peer]
	switch {
	case gone:
		return d.Cause
	case peer == call.AnySource && len(p.gone) > 0:
		alone := len(p.gone) == p.c.size-1
		for _, peer := range slices.Sorted(maps.Keys(p.gone)) {
			if d := p.gone[peer]; d.Lost() && (alone || !d.Exited) {
				return d.Cause.Because("It may have been the one to send")
			}
		}
		if alone {
			return p.c.members.Errorf(fault.ErrAborted, "all other ranks have left: no other rank can "+
				"send any more").Blaming(slices.Collect(maps.Keys(p.gone))...)
		}
	}
	return nil
}

// miss ends a send or receive whose peer is gone, which may be any that a receive could have
// matched. In the latter case the communicator goes on for the others, if there are any.
func (p *pointToPoint) miss(w *Work, op *call.Operation, err *fault.Error) {
	p.mu.Lock()
	others := len(p.gone) < p.c.size-1
	p.mu.Unlock()
	if err.Kind == fault.ErrPeerFailed && (op.Root != call.AnySource || !others) {
		p.c.fail(err, true)
	}
	w.End(p.ended(op, err))
}

// ending is the end of a send or receive, for when no lock is held.
type ending struct {
	work *Work
	op   *call.Operation
	err  *fault.Error
}

// depart ends what can no longer be matched because a peer is gone.
func (p *pointToPoint) depart(peer int, d membership.Departure) {
	p.enter()
	defer p.exit()
	p.takeLetters() // what it sent before
	p.mu.Lock()
	p.gone[peer] = d
	var ended []ending
	end := func(w *Work, op *call.Operation, err *fault.Error) {
		ended = append(ended, ending{w, op, err})
	}
	p.match.posted = slices.DeleteFunc(p.match.posted, func(r *receive) bool {
		err := p.refuse(r.source)
		if err != nil {
			end(r.work, r.op, err)
		}
		return err != nil
	})
	// What was offered, and will not come.
	p.match.unexpected = slices.DeleteFunc(p.match.unexpected,
		func(a *arrival) bool { return a.source == peer && a.offer != 0 })
	for r := range p.filling {
		if r.from == peer {
			end(r.work, r.op, d.Cause)
			delete(p.filling, r)
		}
	}
	clear(p.peers[peer].accepted)
	for id, s := range p.offers {
		if s.peer == peer {
			end(s.work, s.op, d.Cause)
			delete(p.offers, id)
		}
	}
	p.peers[peer].held = heldBack{}
	for _, g := range p.takeLone(peer) {
		end(g.send.work, g.send.op, d.Cause)
	}
	moving := p.moving > 0
	p.mu.Unlock()
	for _, e := range ended {
		p.miss(e.work, e.op, e.err)
	}
	if moving { // one may be a receive from the peer
		p.c.window.Mail().Poke()
	}
}

// fail ends everything. From now on all calls go by the engine, which refuses them.
func (p *pointToPoint) fail(err *fault.Error) {
	p.enter()
	defer p.exit()
	p.mu.Lock()
	p.failure = err
	if p.deadline.alarm != nil {
		p.deadline.alarm.Stop()
	}
	var ended []ending
	end := func(w *Work, op *call.Operation) { ended = append(ended, ending{w, op, err}) }
	for _, r := range p.match.posted {
		end(r.work, r.op)
	}
	for r := range p.filling {
		if !r.reading { // else its reader ends it
			end(r.work, r.op)
			delete(p.filling, r)
		}
	}
	for _, s := range p.offers {
		end(s.work, s.op)
	}
	for _, g := range p.takeLone(call.AnySource) {
		end(g.send.work, g.send.op)
	}
	for _, a := range p.match.unexpected {
		if a.local != nil {
			end(a.local.work, a.local.op)
		}
	}
	p.match = matcher{}
	clear(p.offers)
	for i := range p.peers {
		p.peers[i].held = heldBack{}
	}
	p.mu.Unlock()
	for _, e := range ended {
		e.work.End(p.ended(e.op, e.err))
	}
	p.endTransfers(err)
}
