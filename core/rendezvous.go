package core

import (
	"context"

	"github.com/goccl/goccl/core/call"
	"github.com/goccl/goccl/core/exec"
	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/transport"
	"github.com/goccl/goccl/core/work"
)

// take receives the data of an offer over a port channel.
func (p *pointToPoint) take(r *receive, a *arrival) {
	p.mu.Lock()
	if err := p.refuse(a.source); err != nil {
		p.mu.Unlock()
		p.miss(r.work, r.op, err)
		return
	}
	a.receive, p.filling[r], p.peers[a.source].accepted[a.offer], r.from = r, true, a, a.source
	p.expect(r.work.Deadline())
	p.mu.Unlock()
	// Who reads the link does the rest.
	p.reply(a.source, transport.Header{Type: frameAccept, Seq: a.offer}, nil)
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
	// Under pointToPoint.mu:
	users int  // of the data: who gives it, now or later, and frames that the peer is still to fetch
	lone  bool // nobody gives it any more
}

// give sends the data of an accepted send: a waiter does who reads the links for this communicator,
// or else a goroutine.
func (p *pointToPoint) give(g *gift) {
	p.mu.Lock()
	g.users, p.linkSends.given[g.offer] = 1, g
	attended := p.linkSends.attended
	if attended {
		p.linkSends.gifts = append(p.linkSends.gifts, g)
	}
	p.mu.Unlock()
	if attended {
		p.c.kick()
	} else {
		p.giveLater(g)
	}
}

func (p *pointToPoint) giveLater(g *gift) {
	p.peers[g.send.peer].give.do(p.c, func() { p.giveFrames(g, g.send.work.Context(), false) })
}

// attendLinks has accepted sends wait for giveAccepted, or have them wait no longer.
func (p *pointToPoint) attendLinks(yes bool) {
	p.mu.Lock()
	p.linkSends.attended = yes
	left := p.linkSends.gifts
	p.linkSends.gifts = nil
	p.mu.Unlock()
	for _, g := range left {
		p.giveLater(g)
	}
}

// giveAccepted sends the data of accepted sends. What a peer does not take soon is left to a
// goroutine. The caller has the poller's token.
func (p *pointToPoint) giveAccepted() {
	p.mu.Lock()
	gifts := p.linkSends.gifts
	p.linkSends.gifts = nil
	p.mu.Unlock()
	for _, g := range gifts {
		ctx := work.WithDeadline(g.send.work.Context(), exec.Now()+giveTime)
		if !p.giveFrames(g, ctx, true) {
			p.giveLater(g)
		}
		ctx.End()
	}
}

// giveFrames tells whether all has been given, or never will be. It has not if only the context has
// ended.
func (p *pointToPoint) giveFrames(g *gift, ctx context.Context, reading bool) bool {
	s := g.send
	data := s.payload()
	var failure *fault.Error
	for failure == nil && g.given < s.bytes {
		h := transport.Header{Type: transport.Data, Flags: acceptedSend, Seq: g.offer,
			Arg: [2]uint64{g.given}}
		part := data[g.given:min(g.given+acceptedPart, s.bytes)]
		p.mu.Lock()
		g.users++ // before the peer can have fetched it
		p.mu.Unlock()
		lent, err := p.c.group.Advertise(ctx, reading, s.peer, h, part)
		if !lent {
			p.fetched(g.offer)
		}
		if err != nil {
			if ctx.Err() != nil && s.work.Context().Err() == nil {
				return false
			}
			failure = p.loseSend(s, err)
		}
		g.given += uint64(len(part))
	}
	p.mu.Lock()
	g.users--
	if failure == nil && g.users > 0 {
		failure = p.refuse(s.peer)
	}
	ended := failure != nil || g.users == 0
	if ended {
		delete(p.linkSends.given, g.offer)
	} else {
		g.lone = true
		p.expect(s.work.Deadline())
	}
	p.mu.Unlock()
	switch {
	case ended && failure != nil:
		p.miss(s.work, s.op, failure)
	case ended:
		s.work.End(nil)
	}
	return true
}

// fetched tells that a frame of a gift needs its memory no more.
func (p *pointToPoint) fetched(offer uint64) {
	p.mu.Lock()
	g := p.linkSends.given[offer]
	if g == nil { // it has failed
		p.mu.Unlock()
		return
	}
	g.users--
	ended := g.users == 0
	if ended {
		delete(p.linkSends.given, offer)
	}
	p.mu.Unlock()
	if ended {
		g.send.work.End(nil)
	}
}

// takeLone takes gifts out whose memory only a peer still uses: of one peer, or (AnySource) of all.
// It needs p.mu.
func (p *pointToPoint) takeLone(peer int) (lone []*gift) {
	for offer, g := range p.linkSends.given {
		if g.lone && (peer == call.AnySource || g.send.peer == peer) {
			lone = append(lone, g)
			delete(p.linkSends.given, offer)
		}
	}
	return lone
}
