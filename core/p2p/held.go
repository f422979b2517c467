package p2p

import (
	"fmt"
	"slices"

	"github.com/goccl/goccl/core/call"
	"github.com/goccl/goccl/core/exec"
	"github.com/goccl/goccl/core/transport"
)

// What a peer has sent that no receive has met takes memory here: its data, bounded by the eager
// window, and an arrival for each send, eager or large. So these are bounded in number, too. A
// sender with as many outstanding at a peer holds its further sends back, in the order of their
// calls, until the peer tells that some have met receives. A peer that does not fails the
// communicator.
//
// Receives may come in another order than the sends, and one may wait for a send that is held. So
// of each tag the sender asks about the first that it holds (a probe). If a receive waits for it,
// the probe is an RTS as any other. Else the receiver says so ("not now"), and keeps nothing but
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

// count counts a send that comes from a peer. It needs e.mu.
func (e *Engine) count(src int) error {
	q := &e.peers[src]
	if q.Came-q.Taken >= e.most {
		return fmt.Errorf("%w: more than %d sends that have not been received", exec.ErrProtocol, e.most)
	}
	q.Came++
	return nil
}

// waits tells whether a send is held still. It needs e.mu.
func (e *Engine) waits(s *send) bool { return s.held && s.state == offered }

// waiting leaves out the first of a list of sends, as far as they wait no more. It needs e.mu.
func (e *Engine) waiting(list []*send) []*send {
	for len(list) > 0 && !e.waits(list[0]) {
		list[0] = nil
		list = list[1:]
	}
	return list
}

// firstHeld is the first send to a peer with a tag that is held, or nil. It needs e.mu.
func (e *Engine) firstHeld(peer, tag int) *send {
	h := &e.peers[peer].held
	if same := e.waiting(h.byTag[tag]); len(same) > 0 {
		h.byTag[tag] = same
		return same[0]
	}
	delete(h.byTag, tag)
	return nil
}

// isHolding tells whether sends to a peer are held. It needs e.mu.
func (e *Engine) isHolding(peer int) bool {
	h := &e.peers[peer].held
	h.order = e.waiting(h.order)
	return len(h.order) > 0
}

// mustHold tells whether a new send to a peer is to be held. It needs e.mu.
func (e *Engine) mustHold(peer int) bool {
	q := &e.peers[peer]
	return q.Sent-q.Done >= e.most || e.isHolding(peer)
}

// hold holds a large send. It needs e.mu.
func (e *Engine) hold(s *send) {
	h := &e.peers[s.peer].held
	s.held = true
	first := e.firstHeld(s.peer, s.op.Tag) == nil
	if h.byTag == nil {
		h.byTag = map[int][]*send{}
	}
	if len(h.order) >= h.longest { // the first may never be received, and those behind it come and go
		h.order = slices.DeleteFunc(h.order, func(s *send) bool { return !e.waits(s) })
		h.longest = 2*len(h.order) + 64
	}
	h.order = append(h.order, s)
	h.byTag[s.op.Tag] = append(h.byTag[s.op.Tag], s)
	if first {
		e.ask(s)
	}
}

// unhold goes on after a send that is held has been accepted, or has ended. It needs e.mu.
func (e *Engine) unhold(s *send) {
	s.held = false
	if s.probe == asked {
		e.peers[s.peer].held.asking--
	}
	if next := e.firstHeld(s.peer, s.op.Tag); next != nil {
		e.ask(next) // more receives may wait
	}
	e.release(s.peer)
}

// release sends the RTS of what is held, as far as the peer takes more. It needs e.mu.
func (e *Engine) release(peer int) {
	q := &e.peers[peer]
	for q.Sent-q.Done < e.most && e.isHolding(peer) {
		s := q.held.order[0]
		if s.probe == asked { // the peer may have accepted it
			break
		}
		s.held = false
		e.firstHeld(peer, s.op.Tag) // forgets it
		q.Sent++
		e.launch(s, FrameRTS)
	}
	e.askMore(peer)
}

// ask has the peer asked whether a receive waits for a send. It needs e.mu.
func (e *Engine) ask(s *send) {
	switch s.probe {
	case unasked:
		h := &e.peers[s.peer].held
		s.probe = toAsk
		h.probes = append(h.probes, s)
		e.askMore(s.peer)
	case asked:
		s.wanted = true
	}
}

// askMore needs e.mu.
func (e *Engine) askMore(peer int) {
	h := &e.peers[peer].held
	for h.asking < probesMost {
		if h.probes = e.waiting(h.probes); len(h.probes) == 0 {
			h.probes = nil
			return
		}
		s := h.probes[0]
		h.probes = h.probes[1:]
		s.probe = asked
		h.asking++
		e.launch(s, FrameProbe)
	}
}

// launch sends the first frame of a send that has been held. It needs e.mu, under which all frames
// to a peer are put in order.
func (e *Engine) launch(s *send, frame uint8) {
	if e.failure != nil {
		return
	}
	h := s.header
	h.Type = frame
	e.peers[s.peer].frames.do(e, func() { e.beginSend(s, h, s.work.Deadline()-exec.Now()) })
}

// notNow takes the answer to a probe that no receive waits for the send.
func (e *Engine) notNow(id uint64, peer int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.out[id]
	if s == nil || s.peer != peer || s.probe != asked {
		return // it has failed meanwhile
	}
	s.probe = unasked
	e.peers[peer].held.asking--
	e.release(peer)
	if s.wanted && s.held {
		e.ask(s)
	}
	s.wanted = false
}

// wantsHeld takes the news of a receive that nothing matches.
func (e *Engine) wantsHeld(peer, tag int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	h := &e.peers[peer].held
	switch s := e.firstHeld(peer, tag); {
	case e.failure != nil:
	case s != nil:
		e.ask(s)
	case !e.isHolding(peer) && !h.telling:
		// In order with the probes: the next one is from a later time, when sends are held again.
		h.telling = true
		e.peers[peer].frames.do(e, func() {
			// A peer that is not told goes on telling.
			_ = e.peers[peer].wire.post(e.Works.Context, transport.Header{Type: FrameNoneHeld}, nil)
			e.mu.Lock()
			defer e.mu.Unlock()
			h.telling = false
		})
	}
}

// probed takes a probe.
func (e *Engine) probed(a *arrival) error {
	a.uncounted = true
	q := &e.peers[a.source]
	e.mu.Lock()
	if e.failure != nil {
		e.mu.Unlock()
		return nil
	}
	r := e.match.wanting(a)
	if r != nil {
		e.match.cancel(r)
	} else {
		e.setHolds(a.source, true)
		q.refusing++
	}
	refusing := q.refusing
	e.mu.Unlock()
	switch {
	case r != nil:
		e.deliver(r, a)
		return nil
	case refusing > probesMost:
		return fmt.Errorf("%w: more than %d probes at once", exec.ErrProtocol, probesMost)
	}
	timeout := e.face.Timeout()
	until := exec.Later(exec.Now(), timeout)
	q.answers.do(e, func() {
		e.mu.Lock()
		q.refusing-- // before the peer, which may ask anew at once, has the answer
		e.mu.Unlock()
		e.replyBy(until, timeout, a.source, frameOf(FrameNotNow, a.id), nil)
	})
	return nil
}

// setHolds notes whether a peer holds sends back. It needs e.mu.
func (e *Engine) setHolds(peer int, holds bool) {
	q := &e.peers[peer]
	switch {
	case holds && !q.holds:
		e.holding++
	case !holds && q.holds:
		e.holding--
	}
	q.holds = holds
}

// holders are the peers that are to be told of a receive that nothing matches. It needs e.mu.
func (e *Engine) holders(source int) (peers []int) {
	if e.holding == 0 {
		return nil
	}
	for peer := range e.peers {
		_, gone := e.gone[peer]
		if e.peers[peer].holds && !gone && (source == peer || source == call.AnySource) {
			peers = append(peers, peer)
		}
	}
	return peers
}
