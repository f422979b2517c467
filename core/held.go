package core

import (
	"fmt"
	"slices"

	"github.com/goccl/goccl/core/call"
	"github.com/goccl/goccl/core/exec"
	"github.com/goccl/goccl/core/transport"
)

// What a peer has sent that no receive has met takes memory here: its data, bounded by the eager
// window, and an arrival for each send, eager or offered. So these are bounded in number, too. A
// sender with as many outstanding at a peer holds its further sends back, in the order of their
// calls, until the peer tells that some have met receives. A peer that does not fails the
// communicator.
//
// Receives may come in another order than the sends, and one may wait for a send that is held. So
// of each tag the sender asks about the first that it holds (a probe). If a receive waits for it,
// the probe is an offer as any other. Else the receiver says so ("not now"), and keeps nothing but
// that this peer holds sends back: it tells the peer of each later receive that nothing matches,
// and then is asked again. That ends when the peer answers that it holds none any more.

const (
	// arrivalsBudget bounds the sends of all peers that have met no receive: some 150 bytes each,
	// beside longer data.
	arrivalsBudget = 256 << 10
	arrivalsLeast  = 1 << 10 // of a peer, whatever their number
	probesMost     = 16      // about which a peer is asked at once
)

// probe says whether a peer is asked about a send that is held.
type probe uint8

const (
	unasked probe = iota
	toAsk         // it is in heldBack.probes
	asked         // and there is no answer yet
)

// heldBack are the sends to a peer that wait for it to receive others. Among them may be some that
// wait no more.
type heldBack struct {
	order   []*send         // in the order of their calls
	longest int             // of order, before those that wait no more are taken out of its midst
	byTag   map[int][]*send // likewise
	probes  []*send         // about which the peer is to be asked
	asking  int             // about how many it has been
	telling bool            // it is being told that there are none
}

// count counts a send that comes from a peer. It needs p.mu.
func (p *pointToPoint) count(src int) error {
	q := &p.peers[src]
	if q.Came-q.Taken >= p.most {
		return fmt.Errorf("%w: more than %d sends that have not been received", exec.ErrProtocol, p.most)
	}
	q.Came++
	return nil
}

// waits tells whether a send is held still. It needs p.mu.
func (p *pointToPoint) waits(s *send) bool { return s.held && p.offers[s.id] == s }

// waiting leaves out the first of a list of sends, as far as they wait no more. It needs p.mu.
func (p *pointToPoint) waiting(list []*send) []*send {
	for len(list) > 0 && !p.waits(list[0]) {
		list[0] = nil
		list = list[1:]
	}
	return list
}

// firstHeld is the first send to a peer with a tag that is held, or nil. It needs p.mu.
func (p *pointToPoint) firstHeld(peer, tag int) *send {
	h := &p.peers[peer].held
	if same := p.waiting(h.byTag[tag]); len(same) > 0 {
		h.byTag[tag] = same
		return same[0]
	}
	delete(h.byTag, tag)
	return nil
}

// isHolding tells whether sends to a peer are held. It needs p.mu.
func (p *pointToPoint) isHolding(peer int) bool {
	h := &p.peers[peer].held
	h.order = p.waiting(h.order)
	return len(h.order) > 0
}

// mustHold tells whether a new send to a peer is to be held. It needs p.mu.
func (p *pointToPoint) mustHold(peer int) bool {
	q := &p.peers[peer]
	return q.Sent-q.Done >= p.most || p.isHolding(peer)
}

// hold holds an offer. It needs p.mu.
func (p *pointToPoint) hold(s *send) {
	h := &p.peers[s.peer].held
	s.held = true
	first := p.firstHeld(s.peer, s.op.Tag) == nil
	if h.byTag == nil {
		h.byTag = map[int][]*send{}
	}
	if len(h.order) >= h.longest { // the first may never be received, and those behind it come and go
		h.order = slices.DeleteFunc(h.order, func(s *send) bool { return !p.waits(s) })
		h.longest = 2*len(h.order) + 64
	}
	h.order = append(h.order, s)
	h.byTag[s.op.Tag] = append(h.byTag[s.op.Tag], s)
	if first {
		p.ask(s)
	}
}

// unhold goes on after an offer that is held has been accepted, or has ended. It needs p.mu.
func (p *pointToPoint) unhold(s *send) {
	s.held = false
	if s.probe == asked {
		p.peers[s.peer].held.asking--
	}
	if next := p.firstHeld(s.peer, s.op.Tag); next != nil {
		p.ask(next) // more receives may wait
	}
	p.release(s.peer)
}

// release offers what is held, as far as the peer takes more. It needs p.mu.
func (p *pointToPoint) release(peer int) {
	q := &p.peers[peer]
	for q.Sent-q.Done < p.most && p.isHolding(peer) {
		s := q.held.order[0]
		if s.probe == asked { // the peer may have accepted it
			break
		}
		s.held = false
		p.firstHeld(peer, s.op.Tag) // forgets it
		q.Sent++
		p.launch(s, frameOffer)
	}
	p.askMore(peer)
}

// ask has the peer asked whether a receive waits for a send. It needs p.mu.
func (p *pointToPoint) ask(s *send) {
	switch s.probe {
	case unasked:
		h := &p.peers[s.peer].held
		s.probe = toAsk
		h.probes = append(h.probes, s)
		p.askMore(s.peer)
	case asked:
		s.wanted = true
	}
}

// askMore needs p.mu.
func (p *pointToPoint) askMore(peer int) {
	h := &p.peers[peer].held
	for h.asking < probesMost {
		if h.probes = p.waiting(h.probes); len(h.probes) == 0 {
			h.probes = nil
			return
		}
		s := h.probes[0]
		h.probes = h.probes[1:]
		s.probe = asked
		h.asking++
		p.launch(s, frameProbe)
	}
}

// launch sends the first frame of a send that has been held. It needs p.mu, under which all frames
// to a peer are put in order.
func (p *pointToPoint) launch(s *send, frame uint8) {
	if p.failure != nil {
		return
	}
	h := s.header
	h.Type = frame
	p.peers[s.peer].frames.do(p.c, func() { p.beginSend(s, h, s.work.Deadline()-exec.Now()) })
}

// notNow takes the answer to a probe that no receive waits for the send.
func (p *pointToPoint) notNow(id uint64, peer int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.offers[id]
	if s == nil || s.peer != peer || s.probe != asked {
		return // it has failed meanwhile
	}
	s.probe = unasked
	p.peers[peer].held.asking--
	p.release(peer)
	if s.wanted && s.held {
		p.ask(s)
	}
	s.wanted = false
}

// wantsHeld takes the news of a receive that nothing matches.
func (p *pointToPoint) wantsHeld(peer, tag int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	h := &p.peers[peer].held
	switch s := p.firstHeld(peer, tag); {
	case p.failure != nil:
	case s != nil:
		p.ask(s)
	case !p.isHolding(peer) && !h.telling:
		// In order with the probes: the next one is from a later time, when sends are held again.
		h.telling = true
		p.peers[peer].frames.do(p.c, func() {
			// A peer that is not told goes on telling.
			_ = p.peers[peer].wire.post(p.c.works.Context, transport.Header{Type: frameNoneHeld}, nil)
			p.mu.Lock()
			defer p.mu.Unlock()
			h.telling = false
		})
	}
}

// probed takes a probe.
func (p *pointToPoint) probed(a *arrival) error {
	a.uncounted = true
	q := &p.peers[a.source]
	p.mu.Lock()
	if p.failure != nil {
		p.mu.Unlock()
		return nil
	}
	r := p.match.wanting(a)
	if r != nil {
		p.match.cancel(r)
	} else {
		p.setHolds(a.source, true)
		q.refusing++
	}
	refusing := q.refusing
	p.mu.Unlock()
	switch {
	case r != nil:
		p.deliver(r, a)
		return nil
	case refusing > probesMost:
		return fmt.Errorf("%w: more than %d probes at once", exec.ErrProtocol, probesMost)
	}
	timeout := p.c.defaultTimeout()
	until := exec.Now() + timeout
	q.take.do(p.c, func() {
		p.mu.Lock()
		q.refusing-- // before the peer, which may ask anew at once, has the answer
		p.mu.Unlock()
		p.replyBy(until, timeout, a.source, transport.Header{Type: frameNotNow, Seq: a.offer}, nil)
	})
	return nil
}

// setHolds notes whether a peer holds sends back. It needs p.mu.
func (p *pointToPoint) setHolds(peer int, holds bool) {
	q := &p.peers[peer]
	switch {
	case holds && !q.holds:
		p.holding++
	case !holds && q.holds:
		p.holding--
	}
	q.holds = holds
}

// holders are the peers that are to be told of a receive that nothing matches. It needs p.mu.
func (p *pointToPoint) holders(source int) (peers []int) {
	if p.holding == 0 {
		return nil
	}
	for peer := range p.peers {
		_, gone := p.gone[peer]
		if p.peers[peer].holds && !gone && (source == peer || source == call.AnySource) {
			peers = append(peers, peer)
		}
	}
	return peers
}
