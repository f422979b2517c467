package core

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/goccl/goccl/core/call"
	"github.com/goccl/goccl/core/exec"
	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/membership"
	"github.com/goccl/goccl/core/plan"
	"github.com/goccl/goccl/core/transport"
	"github.com/goccl/goccl/core/work"
)

// Sends and receives meet in the receiver's matching engine. A small send goes there at once with
// its data (eager), straight into the buffer of a receive that waits for it; a large one is
// offered, and its data flows once a receive has accepted it: over a port channel straight into its
// buffer too, and over a memory channel as a two-rank plan on the point-to-point lane, or the
// receiver reads it where it lies (see transfer.go). So a receiver never holds more than
// eagerBudget of data that nobody has asked for, and a receive of one tag is not held up by data of
// another. Neither does it hold more than so many sends (see held.go). Where memory is shared, all
// but the data of large sends goes in letters (see mail.go).
const (
	eagerPortMax = 1 << 20 // where no memory is shared
	acceptedPart = 4 << 20 // bytes of an accepted send that go in one frame
	// bytes of eager sends of all peers that have not been received yet
	eagerBudget = 5 << 20
	eagerLeast  = 16 << 10         // of a peer, whatever their number
	inlineTime  = time.Millisecond // how long a send may hold its caller
	// how long an accepted send may hold a waiter, who may wait for another work
	giveTime = 10 * time.Millisecond
)

// pointToPoint is an epoch's sends and receives.
// It has more fields than others: what one lock guards lies here.
type pointToPoint struct {
	c       *epoch
	peers   []peerQueues
	credits *exec.Credits // of peers
	held    buffers       // of eager sends
	limits
	mails     bool // there are peers with mailboxes
	attention attention

	token       chan struct{} // of the waiter that takes letters out, and carries the transfers on
	unannounced atomic.Bool   // some of the peers' are
	reading     reading

	mu      sync.Mutex // guards what follows
	open    bool       // callers in C may send, while nobody has entered
	match   matcher
	holding int               // peers that hold sends back
	filling map[*receive]bool // matched, and their data comes into their buffers
	offered
	linkSends linkSends
	moving    int // transfers
	deadline  deadline
	failure   *fault.Error
	gone      map[int]membership.Departure
}

// limits are what a peer may be sent that it has not received yet.
type limits struct {
	eagerWindow uint64 // bytes of eager sends
	most        uint64 // sends
}

// reading is held by a thread that takes letters out.
type reading struct {
	sync.Mutex
	closed bool // there are no mailboxes any more
}

// offered are the sends that were offered, and neither accepted nor got.
type offered struct {
	offers map[uint64]*send // by number
	next   uint64           // number of the last one
}

// peerQueues is what goes on with one peer.
type peerQueues struct {
	wire   wire
	frames serial // eager sends and offers, in the order of their calls
	// accepted sends over a port channel: data out, in the order in which they were accepted
	give serial
	take serial // answers

	giving, taking transfers   // over a memory channel
	unannounced    atomic.Bool // a letter of which it must be told, unless it looks itself
	// of the goroutine of the link, or of who holds `reading`: the send of which a frame is being read
	coming *arrival

	// Under pointToPoint.mu:
	*exec.Credit                     // of both ways: see enter
	accepted     map[uint64]*arrival // offers whose data comes into a receive's buffer
	unexpected   uint64              // bytes from the peer that are held for a receive to come
	held         heldBack            // sends to the peer
	holds        bool                // the peer does so, too
	refusing     int                 // answers to it that are on their way
}

func (p *pointToPoint) init(c *epoch) error {
	var err error
	if p.credits, err = exec.NewCredits(c.size); err != nil {
		return err
	}
	p.c = c
	p.mails = c.byMail(AnySource)
	p.peers = make([]peerQueues, c.size)
	p.eagerWindow = uint64(max(eagerBudget/max(c.size-1, 1), eagerLeast))
	p.most = uint64(max(arrivalsBudget/max(c.size-1, 1), arrivalsLeast))
	p.offers = map[uint64]*send{}
	p.linkSends.given = map[uint64]*gift{}
	p.filling = map[*receive]bool{}
	for i := range p.peers {
		p.peers[i].accepted = map[uint64]*arrival{}
		p.peers[i].Credit = p.credits.Of(i)
		p.peers[i].wire = p.wireTo(i)
	}
	p.gone = map[int]membership.Departure{}
	p.token = make(chan struct{}, 1)
	p.attention.after, p.attention.look = p.after, p.background
	if p.mails {
		most := min(uint64(c.shape.EagerMax), p.eagerMost())
		if least := c.shape.Thresholds.SendGetMin; least > 0 {
			most = min(most, uint64(least)-1)
		}
		c.fast.UseSends(p.credits, transport.Data, most, p.eagerWindow, p.most)
	}
	return nil
}

// eagerMost is the most bytes of an eager send. It is not all of the window, so that the news of
// what was received keep it open.
func (p *pointToPoint) eagerMost() uint64 { return p.eagerWindow * 2 / 3 }

func (p *pointToPoint) free() {
	p.enter() // callers in C stay out, for the engine has failed
	defer p.exit()
	p.token <- struct{}{} // from who attends, and kept: nobody attends any more
	p.endTransfersHeld(p.c.failed())
	p.reading.Lock()
	p.reading.closed = true
	p.reading.Unlock()
	for i := range p.peers {
		for _, t := range []*transfers{&p.peers[i].giving, &p.peers[i].taking} {
			if t.run != nil {
				t.run.Free()
			}
		}
	}
}

// enter keeps callers in C, which send and receive without the engine where they can, out of the
// mailboxes and credits; exit lets them in again. All code that posts or takes letters, starts
// sends or receives, or ends what these wait for runs between the two. They nest.
func (p *pointToPoint) enter() { p.c.fast.ShutSends() }

func (p *pointToPoint) exit() {
	p.mu.Lock()
	defer p.mu.Unlock()
	times := 1
	open := p.sendsInOrder()
	switch {
	case open && !p.open:
		times++
	case !open && p.open:
		times--
	}
	p.open = open
	p.c.fast.OpenSends(times, open && p.idle())
}

// sendsInOrder tells whether no send is under way that one in C could overtake, and calls need not
// come here, to fail or to be logged. It needs p.mu.
func (p *pointToPoint) sendsInOrder() bool {
	return p.mails && p.failure == nil && len(p.gone) == 0 && len(p.offers) == 0 &&
		p.c.trace.pointToPoint == nil
}

// idle tells whether no receive or message is here that one in C could overtake. It needs p.mu.
func (p *pointToPoint) idle() bool {
	return len(p.match.posted) == 0 && len(p.match.unexpected) == 0 && len(p.filling) == 0 &&
		p.moving == 0 && p.holding == 0
}

// start starts one operation of a work. Its caller has entered.
func (p *pointToPoint) start(w *Work, op *call.Operation) {
	if op.Collective == plan.Send {
		p.send(w, op)
	} else {
		p.receive(w, op)
	}
}

func (p *pointToPoint) send(w *Work, op *call.Operation) {
	s := &send{work: w, op: op, peer: op.Root, bytes: op.Length()}
	if s.peer == p.c.rank {
		a := &arrival{source: s.peer, tag: op.Tag, dtype: op.DType, bytes: s.bytes, local: s}
		p.arrive(a)
		return
	}
	q := &p.peers[s.peer]
	small := s.bytes <= p.eagerMost() && q.wire.eager(s.payload())
	fits := func() bool { return small && q.EagerSent-q.EagerDone+s.bytes <= p.eagerWindow }
	p.mu.Lock()
	if p.mustHold(s.peer) || small && !fits() {
		p.mu.Unlock()
		q.wire.readNews() // no other thread may have had a reason to
		p.mu.Lock()
	}
	if err := p.refuse(s.peer); err != nil {
		p.mu.Unlock()
		p.miss(w, op, err)
		return
	}
	hold := p.mustHold(s.peer)
	if fits() && !hold {
		q.EagerSent += s.bytes
		s.header = transport.Header{Type: transport.Data, Flags: eagerSend, Arg: [2]uint64{s.about()}}
		s.first = s.payload()
	} else {
		p.next++
		s.id = p.next
		p.offers[s.id] = s
		p.expect(w.Deadline())
		s.header = transport.Header{Type: frameOffer, Seq: s.id, Arg: [2]uint64{s.about(), s.bytes}}
		s.first = q.wire.place(s)
	}
	if hold {
		p.hold(s)
		p.mu.Unlock()
		return
	}
	q.Sent++
	p.mu.Unlock()
	// On the caller's thread, if that takes no waiting: a hand-over costs more than a small frame.
	if !p.c.group.Connected(s.peer) || !q.frames.now(p.c, func() bool { return q.wire.begin(s) }) {
		q.frames.do(p.c, func() { p.beginSend(s, s.header, w.Timeout()) })
	}
}

// beginSend carries a send's first frame, with that header, in so long at most. It tells whether
// that is over, well or not.
func (p *pointToPoint) beginSend(s *send, h transport.Header, most time.Duration) bool {
	ctx := work.WithDeadline(s.work.Context(), exec.Now()+most)
	defer ctx.End()
	err := p.peers[s.peer].wire.post(ctx, h, s.first)
	switch {
	case err == nil:
		s.begun()
	case ctx.Err() != nil && s.work.Context().Err() == nil:
		return false
	default:
		lost := p.loseSend(s, err)
		if s.id == 0 || p.takeOffer(s.id, s.peer) != nil {
			s.work.End(lost)
		}
	}
	return true
}

// takeOffer removes an offer that was made to a peer; nil if there is none such, or no more.
func (p *pointToPoint) takeOffer(id uint64, peer int) *send {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.offers[id]
	if s == nil || s.peer != peer {
		return nil
	}
	delete(p.offers, id)
	if s.held {
		p.unhold(s)
	}
	return s
}

func (p *pointToPoint) receive(w *Work, op *call.Operation) {
	r := &receive{work: w, op: op, source: op.Root, bytes: op.Length()}
	var holders []int
	p.mu.Lock()
	a := p.match.post(r)
	if a == nil {
		if err := p.refuse(r.source); err != nil {
			p.match.cancel(r)
			p.mu.Unlock()
			p.miss(w, op, err)
			return
		}
		p.expect(w.Deadline())
		holders = p.holders(r.source)
	}
	p.mu.Unlock()
	for _, peer := range holders {
		p.reply(peer, transport.Header{Type: frameWanted, Arg: [2]uint64{uint64(op.Tag)}}, nil)
	}
	if a != nil {
		p.deliver(r, a)
	} else if r.source >= 0 && r.source != p.c.rank && !p.c.group.Connected(r.source) {
		p.c.connect(r.source) // so that a peer that died before it ever sent is found out
	}
}

func (p *pointToPoint) arrive(a *arrival) {
	p.mu.Lock()
	if p.failure != nil {
		p.mu.Unlock()
		if a.local != nil {
			a.local.work.End(p.failure)
		}
		return
	}
	r := p.match.arrive(a)
	if r == nil && a.local != nil {
		p.expect(a.local.work.Deadline())
	}
	p.mu.Unlock()
	if r != nil {
		p.deliver(r, a)
	}
}

// deliver brings an arrival's data to the receive that it met.
func (p *pointToPoint) deliver(r *receive, a *arrival) {
	r.work.SetSource(a.source)
	var bad *fault.Error
	if r.bytes != a.bytes || r.op.DType != a.dtype {
		bad = p.c.members.Errorf(fault.ErrMismatch, "%s receives %d elements of %s with tag %d, but "+
			"%s sent %d elements of %s", p.c.members.Names(p.c.rank),
			r.op.OutCounts[0], r.op.DType, a.tag, p.c.members.Names(a.source),
			a.bytes/uint64(a.dtype.Size()), a.dtype)
		bad.Calls = map[int]string{
			a.source: fmt.Sprintf("send(%s, %d elements, tag %d)", a.dtype, a.bytes/uint64(a.dtype.Size()),
				a.tag),
			p.c.rank: fmt.Sprintf("recv(%s, %d elements, tag %d)", r.op.DType, r.op.OutCounts[0], a.tag),
		}
		bad = p.ended(r.op, bad)
	}
	switch {
	case a.local != nil:
		if bad == nil && r.bytes > 0 {
			copy(r.buffer(), unsafe.Slice((*byte)(a.local.op.In[0]), r.bytes))
		}
		a.local.work.End(bad)
		r.work.End(bad)
	case a.data != nil:
		if bad == nil {
			copy(r.buffer(), a.data)
		}
		p.consumed(a)
		p.held.put(a.data)
		r.work.End(bad)
	case bad != nil:
		p.consumed(a)
		p.reply(a.source, transport.Header{Type: frameReject, Seq: a.offer}, bad.Encode())
		r.work.End(bad)
	default:
		p.consumed(a)
		if a.bytes == 0 {
			p.finish(r.work, a.source, a.offer)
		} else {
			p.peers[a.source].wire.accept(r, a)
		}
	}
}

// reply tells a peer something without waiting. A peer that does not get it has failed, which its
// link tells.
func (p *pointToPoint) reply(peer int, h transport.Header, payload []byte) {
	q := &p.peers[peer]
	if !q.take.now(p.c, func() bool { return q.wire.tryPost(h, payload) }) {
		timeout := p.c.defaultTimeout()
		until := exec.Now() + timeout
		q.take.do(p.c, func() { p.replyBy(until, timeout, peer, h, payload) })
	}
}

// replyBy is reply on a goroutine, until a time, which comes after so long.
func (p *pointToPoint) replyBy(until, timeout time.Duration, peer int, h transport.Header,
	payload []byte) {
	ctx := work.WithDeadline(p.c.works.Context, until)
	defer ctx.End()
	if err := p.peers[peer].wire.post(ctx, h, payload); err != nil && exec.Now() >= until {
		p.c.fail(p.c.members.Errorf(fault.ErrTimeout, "answer to %s: timeout after %v: it takes nothing",
			p.c.members.Names(peer), timeout).Blaming(peer), true)
	}
}
