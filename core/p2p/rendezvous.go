package p2p

import (
	"context"

	"github.com/goccl/goccl/core/call"
	"github.com/goccl/goccl/core/exec"
	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/transport"
	"github.com/goccl/goccl/core/work"
)

// take receives the data of an offer over a port channel.
func (e *Engine) take(r *receive, a *arrival) {
	e.mu.Lock()
	if err := e.refuse(a.source); err != nil {
		e.mu.Unlock()
		e.miss(r.work, r.op, err)
		return
	}
	a.receive, e.filling[r], e.peers[a.source].accepted[a.offer], r.from = r, true, a, a.source
	e.expect(r.work.Deadline())
	e.mu.Unlock()
	// Who reads the link does the rest.
	e.reply(a.source, transport.Header{Type: FrameCTS, Seq: a.offer}, nil)
}

// linkSends are the accepted sends over port channels.
type linkSends struct {
	given    map[uint64]*gift // by number of the offer: those whose data is in use
	attended bool             // a waiter reads the links, and gives
	gifts    []*gift          // for it
}

// gift is an accepted send over a port channel: there is a place for all of its data.
type gift struct {
	send  *send
	offer uint64
	given uint64 // bytes; only who gives it looks
	// Under Engine.mu:
	users int  // of the data: who gives it, now or later, and frames that the peer is still to fetch
	lone  bool // nobody gives it any more
}

// give sends the data of an accepted send: a waiter does who reads the links for this communicator,
// or else a goroutine.
func (e *Engine) give(g *gift) {
	e.mu.Lock()
	g.users, e.linkSends.given[g.offer] = 1, g
	attended := e.linkSends.attended
	if attended {
		e.linkSends.gifts = append(e.linkSends.gifts, g)
	}
	e.mu.Unlock()
	if attended {
		e.kick()
	} else {
		e.giveLater(g)
	}
}

func (e *Engine) giveLater(g *gift) {
	e.peers[g.send.peer].give.do(e, func() { e.giveFrames(g, g.send.work.Context(), false) })
}

// attendLinks has accepted sends wait for giveAccepted, or have them wait no longer.
func (e *Engine) attendLinks(yes bool) {
	e.mu.Lock()
	e.linkSends.attended = yes
	left := e.linkSends.gifts
	e.linkSends.gifts = nil
	e.mu.Unlock()
	for _, g := range left {
		e.giveLater(g)
	}
}

// giveAccepted sends the data of accepted sends. What a peer does not take soon is left to a
// goroutine. The caller has the poller's token.
func (e *Engine) giveAccepted() {
	e.mu.Lock()
	gifts := e.linkSends.gifts
	e.linkSends.gifts = nil
	e.mu.Unlock()
	for _, g := range gifts {
		ctx := work.WithDeadline(g.send.work.Context(), exec.Now()+giveTime)
		if !e.giveFrames(g, ctx, true) {
			e.giveLater(g)
		}
		ctx.End()
	}
}

// giveFrames tells whether all has been given, or never will be. It has not if only the context has
// ended.
func (e *Engine) giveFrames(g *gift, ctx context.Context, reading bool) bool {
	s := g.send
	data := s.payload()
	var failure *fault.Error
	for failure == nil && g.given < s.bytes {
		h := transport.Header{Type: transport.Data, Flags: LargeSend, Seq: g.offer,
			Arg: [2]uint64{g.given}}
		part := data[g.given:min(g.given+acceptedPart, s.bytes)]
		e.mu.Lock()
		g.users++ // before the peer can have fetched it
		e.mu.Unlock()
		lent, err := e.links.Advertise(ctx, reading, s.peer, h, part)
		if !lent {
			e.Acked(g.offer)
		}
		if err != nil {
			if ctx.Err() != nil && s.work.Context().Err() == nil {
				return false
			}
			failure = e.loseSend(s, err)
		}
		g.given += uint64(len(part))
	}
	e.mu.Lock()
	g.users--
	if failure == nil && g.users > 0 {
		failure = e.refuse(s.peer)
	}
	ended := failure != nil || g.users == 0
	if ended {
		delete(e.linkSends.given, g.offer)
	} else {
		g.lone = true
		e.expect(s.work.Deadline())
	}
	e.mu.Unlock()
	switch {
	case ended && failure != nil:
		e.miss(s.work, s.op, failure)
	case ended:
		s.work.End(nil)
	}
	return true
}

// Acked tells that a frame of a gift needs its memory no more.
func (e *Engine) Acked(offer uint64) {
	e.mu.Lock()
	g := e.linkSends.given[offer]
	if g == nil { // it has failed
		e.mu.Unlock()
		return
	}
	g.users--
	ended := g.users == 0
	if ended {
		delete(e.linkSends.given, offer)
	}
	e.mu.Unlock()
	if ended {
		g.send.work.End(nil)
	}
}

// takeLone takes gifts out whose memory only a peer still uses: of one peer, or (AnySource) of all.
// It needs e.mu.
func (e *Engine) takeLone(peer int) (lone []*gift) {
	for offer, g := range e.linkSends.given {
		if g.lone && (peer == call.AnySource || g.send.peer == peer) {
			lone = append(lone, g)
			delete(e.linkSends.given, offer)
		}
	}
	return lone
}
