package core

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/goccl/goccl/core/call"
	"github.com/goccl/goccl/core/exec"
	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/membership"
	"github.com/goccl/goccl/core/plan"
	"github.com/goccl/goccl/core/reduce"
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
	eagerPortMax = 1 << 20               // where no memory is shared
	acceptedPart = 4 << 20               // bytes of an accepted send that go in one frame
	eagerBudget  = 5 << 20               // bytes of eager sends of all peers that have not been received yet
	eagerLeast   = 16 << 10              // of a peer, whatever their number
	inlineTime   = time.Millisecond      // how long a send may hold its caller
	giveTime     = 10 * time.Millisecond // how long an accepted send may hold a waiter, who may wait for another work
)

// arrival is a send, as the receiver knows it.
type arrival struct {
	source, tag int
	dtype       reduce.DType
	bytes       uint64
	data        []byte   // eager: the payload, unless it goes into receive
	receive     *receive // whose buffer the payload comes into
	come        uint64   // bytes of it that are there
	offer       uint64   // number of the offer, where the data has not come
	uncounted   bool     // it was held: its peer has asked whether a receive waits for it
	at          uint64   // and where it lies in the sender's memory, where memory is shared
	local       *send    // a send of this rank to itself
}

// receive is a posted receive.
type receive struct {
	work   *Work
	op     *call.Operation
	bytes  uint64
	source int // wanted; AnySource
	// Under pointToPoint.mu, of one whose data comes into its buffer:
	from    int  // the sender
	reading bool // a frame is being read
	expired bool // the data has come too late: the receive ends with the communicator
}

// buffer is where the received data goes.
func (r *receive) buffer() []byte {
	if r.bytes == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(r.op.Out[0]), r.bytes)
}

func (r *receive) matches(a *arrival) bool {
	return r.op.Tag == a.tag && (r.source == call.AnySource || r.source == a.source)
}

// send is a send to a peer, or to this rank itself.
type send struct {
	work  *Work
	op    *call.Operation
	peer  int
	bytes uint64

	id     uint64           // of its offer; 0: it is eager
	header transport.Header // of its first frame, the offer or all of it
	first  []byte           // what goes with it

	// Under pointToPoint.mu:
	held   bool  // it waits for the peer to receive others
	probe  probe // of one that is held
	wanted bool  // a receive has come while the peer was asked whether one waits
}

// begun tells that the first frame is on its way.
func (s *send) begun() {
	if s.id == 0 {
		s.work.End(nil)
	}
}

// about is what the first frame says of tag and dtype.
func (s *send) about() uint64 { return uint64(s.op.Tag)<<8 | uint64(s.op.DType) }

func (s *send) payload() []byte {
	if s.bytes == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(s.op.In[0]), s.bytes)
}

// matcher pairs arrivals with receives: in the order of their coming, by source and tag.
type matcher struct {
	posted     []*receive
	unexpected []*arrival
}

// post returns the arrival that a receive gets, or keeps the receive.
func (m *matcher) post(r *receive) *arrival {
	for i, a := range m.unexpected {
		if r.matches(a) {
			m.unexpected = slices.Delete(m.unexpected, i, i+1)
			return a
		}
	}
	m.posted = append(m.posted, r)
	return nil
}

// arrive returns the receive that an arrival goes to, or keeps the arrival.
func (m *matcher) arrive(a *arrival) *receive {
	r := m.wanting(a)
	if r == nil {
		m.unexpected = append(m.unexpected, a)
	} else {
		m.cancel(r)
	}
	return r
}

// wanting is the receive that an arrival will go to; nil if there is none yet.
func (m *matcher) wanting(a *arrival) *receive {
	for _, r := range m.posted {
		if r.matches(a) {
			return r
		}
	}
	return nil
}

// cancel takes a receive back; false if it has been matched.
func (m *matcher) cancel(r *receive) bool {
	i := slices.Index(m.posted, r)
	if i < 0 {
		return false
	}
	m.posted = slices.Delete(m.posted, i, i+1)
	return true
}

// serial runs functions one after the other, in order, in a goroutine that exists while there are some.
type serial struct {
	mu      sync.Mutex
	waiting []func()
	busy    bool
}

func (s *serial) do(c *epoch, f func()) {
	c.p2p.enter()
	s.mu.Lock()
	s.waiting = append(s.waiting, f)
	start := !s.busy
	s.busy = true
	s.mu.Unlock()
	if start {
		c.spawn(func() { s.drain(c) })
	}
}

// now runs f on the caller if nothing is before it. It tells whether it did, and f said that it was done.
func (s *serial) now(c *epoch, f func() bool) bool {
	s.mu.Lock()
	if s.busy {
		s.mu.Unlock()
		return false
	}
	s.busy = true
	s.mu.Unlock()
	done := f()
	s.mu.Lock()
	more := len(s.waiting) > 0
	s.busy = more
	s.mu.Unlock()
	if more {
		c.spawn(func() { s.drain(c) })
	}
	return done
}

func (s *serial) drain(c *epoch) {
	for {
		s.mu.Lock()
		if len(s.waiting) == 0 {
			s.busy = false
			s.waiting = nil
			s.mu.Unlock()
			return
		}
		f := s.waiting[0]
		s.waiting = s.waiting[1:]
		s.mu.Unlock()
		f()
		c.p2p.exit()
	}
}

// buffers are kept for eager sends that no receive waits for: fresh memory costs more than the copy. Their lengths are eight to each power of
// two, so that they hold an eighth more than their data at most; what is not used for long Go takes back.
type buffers [8 * 24]sync.Pool // for more than eagerBudget

func bufferClass(n uint64) (class int, length uint64) {
	last := max(n, 1) - 1
	shift := max(bits.Len64(last)-4, 0)
	eighths := last>>shift + 1
	return 8*shift + int(eighths), eighths << shift
}

func (b *buffers) get(n uint64) []byte {
	class, length := bufferClass(n)
	if kept, ok := b[class].Get().(*[]byte); ok {
		return (*kept)[:n]
	}
	return make([]byte, n, length)
}

func (b *buffers) put(data []byte) {
	class, _ := bufferClass(uint64(cap(data)))
	b[class].Put(&data)
}

// pointToPoint is a communicator's sends and receives.
type pointToPoint struct {
	c     *epoch
	peers []peerQueues

	credits *exec.Credits // of peers

	held buffers // of eager sends

	eagerWindow uint64 // bytes of eager sends to one peer that it has not received yet
	most        uint64 // sends to one peer that it has not received yet

	token   chan struct{} // held by the attendant: who looks for letters, and carries the transfers on
	reading sync.Mutex    // by who takes letters out
	closed  bool          // under it: there are no mailboxes any more

	mails bool // there are peers with mailboxes

	mu      sync.Mutex
	open    bool // callers in C may send, while nobody has entered
	match   matcher
	holding int               // peers that hold sends back
	filling map[*receive]bool // matched, and their data comes into their buffers
	offers  map[uint64]*send  // offered, and neither accepted nor got
	given   map[uint64]*gift  // of the offers that have been, those whose data is in use
	next    uint64
	moving  int // transfers

	alarm *time.Timer   // calls expireLate
	due   time.Duration // when; 0: never

	attended bool    // a waiter reads the links, and gives
	gifts    []*gift // for him
	failure  *fault.Error
	gone     map[int]membership.Departure

	unannounced atomic.Bool   // some of the peers' are
	watching    atomic.Bool   // later has been called, and its time has not come
	calm        atomic.Uint32 // how many of the last times there was nothing left over
	never       atomic.Uint32 // 0: what an attendant waits for who waits for no work
}

// peerQueues is what goes on with one peer.
type peerQueues struct {
	frames serial // eager sends and offers, in the order of their calls
	give   serial // accepted sends over a port channel: data out, in the order in which they were accepted
	take   serial // answers

	giving, taking transfers   // over a memory channel
	unannounced    atomic.Bool // a letter of which it must be told, unless it looks itself
	coming         *arrival    // of the goroutine of the link, or of who holds `reading`: the send of which a frame is being read

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
	p.given = map[uint64]*gift{}
	p.filling = map[*receive]bool{}
	for i := range p.peers {
		p.peers[i].accepted = map[uint64]*arrival{}
		p.peers[i].Credit = p.credits.Of(i)
	}
	p.gone = map[int]membership.Departure{}
	p.token = make(chan struct{}, 1)
	if p.mails {
		most := min(uint64(c.shape.EagerMax), p.eagerMost())
		if least := c.shape.Thresholds.SendGetMin; least > 0 {
			most = min(most, uint64(least)-1)
		}
		c.shortcut.UseSends(p.credits, transport.Data, most, p.eagerWindow, p.most)
	}
	return nil
}

// eagerMost is the most bytes of an eager send. It is not all of the window, so that the news of what
// was received keep it open.
func (p *pointToPoint) eagerMost() uint64 { return p.eagerWindow * 2 / 3 }

func (p *pointToPoint) free() {
	p.enter() // callers in C stay out, for the engine has failed
	defer p.exit()
	p.token <- struct{}{} // from who attends, and kept: nobody attends any more
	p.endTransfersHeld(p.c.failed())
	p.reading.Lock()
	p.closed = true
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
// mailboxes and credits; exit lets them in again. All code that posts or takes letters, starts sends or
// receives, or ends what these wait for runs between the two. They nest.
func (p *pointToPoint) enter() { p.c.shortcut.ShutSends() }

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
	p.c.shortcut.OpenSends(times, open && p.idle())
}

// sendsInOrder tells whether no send is under way that one in C could overtake, and calls need not come
// here, to fail or to be logged. It needs p.mu.
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
	most, own := uint64(eagerPortMax), p.c.group.Advertises(s.peer, s.payload())
	if p.c.byMail(s.peer) {
		most, own = uint64(p.c.shape.EagerMax), p.gets(s.peer, s.bytes)
	}
	small := s.bytes <= min(most, p.eagerMost()) && !own
	fits := func() bool { return small && q.EagerSent-q.EagerDone+s.bytes <= p.eagerWindow }
	p.mu.Lock()
	if p.mustHold(s.peer) || small && !fits() {
		p.mu.Unlock()
		if p.c.byLink(s.peer) { // nobody may have had a reason to
			p.c.readNews(s.peer)
		} else {
			p.takeLetters()
		}
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
		if p.c.byMail(s.peer) {
			s.first = binary.NativeEndian.AppendUint64(nil, uint64(uintptr(s.op.In[0])))
		}
	}
	if hold {
		p.hold(s)
		p.mu.Unlock()
		return
	}
	q.Sent++
	p.mu.Unlock()
	inline := func() bool { return p.beginSend(s, s.header, inlineTime) }
	if p.c.byMail(s.peer) {
		inline = func() bool { return p.beginSendNow(s) }
	}
	// On the caller's thread, if that takes no waiting: a hand-over costs more than a small frame.
	if !p.c.group.Connected(s.peer) || !q.frames.now(p.c, inline) {
		q.frames.do(p.c, func() { p.beginSend(s, s.header, w.Timeout()) })
	}
}

// beginSend carries a send's first frame, with that header, in so long at most. It tells whether
// that is over, well or not.
func (p *pointToPoint) beginSend(s *send, h transport.Header, most time.Duration) bool {
	ctx := work.WithDeadline(s.work.Context(), exec.Now()+most)
	defer ctx.End()
	err := p.tell(ctx, s.peer, h, s.first)
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

// beginSendNow is beginSend by mail, if there is room for it.
func (p *pointToPoint) beginSendNow(s *send) bool {
	if !p.c.window.Mail().Mapped(s.peer) || !p.post(s.peer, s.header, s.first) {
		return false
	}
	s.begun()
	return true
}

// loseSend is lose for a send that may have come too late.
func (p *pointToPoint) loseSend(s *send, err error) *fault.Error {
	if s.work.Deadline() <= exec.Now() && p.c.failed() == nil {
		p.c.fail(p.late(s.work, s.op, s.peer, "it could not be sent"), true)
		return p.ended(s.op, p.c.failed())
	}
	return p.lose(s.op, s.peer, err)
}

// lose is what a send or receive ends with whose peer cannot be reached. Where the peer has left in good order nobody else misses it; else the communicator
// has failed.
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

// miss ends a send or receive whose peer is gone, which may be any that a receive could have matched.
// In the latter case the communicator goes on for the others, if there are any.
func (p *pointToPoint) miss(w *Work, op *call.Operation, err *fault.Error) {
	p.mu.Lock()
	others := len(p.gone) < p.c.size-1
	p.mu.Unlock()
	if err.Kind == fault.ErrPeerFailed && (op.Root != call.AnySource || !others) {
		p.c.fail(err, true)
	}
	w.End(p.ended(op, err))
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
			a.source: fmt.Sprintf("send(%s, %d elements, tag %d)", a.dtype, a.bytes/uint64(a.dtype.Size()), a.tag),
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
		switch {
		case a.bytes == 0:
			p.finish(r.work, a.source, a.offer)
		case p.c.byMail(a.source):
			p.carry(r, a)
		default:
			p.take(r, a)
		}
	}
}

// reply tells a peer something without waiting. A peer that does not get it has failed, which its link tells.
func (p *pointToPoint) reply(peer int, h transport.Header, payload []byte) {
	q := &p.peers[peer]
	if !q.take.now(p.c, func() bool { return p.tellNow(peer, h, payload) }) {
		timeout := p.c.defaultTimeout()
		until := exec.Now() + timeout
		q.take.do(p.c, func() { p.replyBy(until, timeout, peer, h, payload) })
	}
}

// replyBy is reply on a goroutine, until a time, which comes after so long.
func (p *pointToPoint) replyBy(until, timeout time.Duration, peer int, h transport.Header, payload []byte) {
	ctx := work.WithDeadline(p.c.works.Context, until)
	defer ctx.End()
	if err := p.tell(ctx, peer, h, payload); err != nil && exec.Now() >= until {
		p.c.fail(p.c.members.Errorf(fault.ErrTimeout, "answer to %s: timeout after %v: it takes nothing",
			p.c.members.Names(peer), timeout).Blaming(peer), true)
	}
}

// tellNow is tell if that takes no waiting. It tells whether it did.
func (p *pointToPoint) tellNow(peer int, h transport.Header, payload []byte) bool {
	if p.c.byMail(peer) {
		return p.c.window.Mail().Mapped(peer) && p.post(peer, h, payload)
	}
	return p.c.group.TrySend(peer, h, payload)
}

// slot tells where a frame's data goes: into the buffer of the receive that has accepted it, or that an
// eager send meets, or else into memory of its own. It runs, as do arrived and dropped, on the link's
// goroutine, or where letters are collected.
func (p *pointToPoint) slot(src int, h transport.Header) ([]byte, error) {
	q := &p.peers[src]
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.failure != nil {
		q.coming = &arrival{source: src} // of no use to anybody
		return make([]byte, h.Bytes), nil
	}
	if h.Flags == acceptedSend {
		a := q.accepted[h.Seq]
		if a == nil || h.Arg[0] != a.come || h.Bytes == 0 || uint64(h.Bytes) > a.bytes-a.come {
			return nil, fmt.Errorf("%w: %d bytes from %d on of send %d, which was not accepted or not so far", exec.ErrProtocol, h.Bytes, h.Arg[0], h.Seq)
		}
		q.coming, a.receive.reading = a, true
		return a.receive.buffer()[a.come:][:h.Bytes], nil
	}
	a := &arrival{source: src, tag: int(h.Arg[0] >> 8), dtype: reduce.DType(h.Arg[0] & 0xff), bytes: uint64(h.Bytes)}
	if !a.dtype.Valid() || h.Arg[0]>>8 > math.MaxInt32 || q.unexpected+a.bytes > p.eagerWindow {
		return nil, fmt.Errorf("%w: an eager send of dtype %d, tag %d, %d bytes", exec.ErrProtocol, a.dtype, h.Arg[0]>>8, a.bytes)
	}
	if err := p.count(src); err != nil {
		return nil, err
	}
	q.coming = a
	if r := p.match.wanting(a); r != nil && r.bytes == a.bytes && r.op.DType == a.dtype {
		p.match.cancel(r)
		r.work.SetSource(src)
		a.receive, p.filling[r], r.from, r.reading = r, true, src, true
		return r.buffer(), nil
	}
	q.unexpected += a.bytes
	a.data = p.held.get(a.bytes)
	return a.data, nil
}

// arrived tells that the data of the frame last asked a slot for is there.
func (p *pointToPoint) arrived(src int, h transport.Header) {
	switch a, complete := p.read(src, uint64(h.Bytes), true); {
	case a.receive == nil:
		p.arrive(a)
	case complete:
		if h.Flags == eagerSend {
			p.consumed(a)
		}
		a.receive.work.End(nil)
	}
}

// dropped tells that it will not come.
func (p *pointToPoint) dropped(src int) { p.read(src, 0, false) }

// read notes that a frame has been read, or (not whole) will not be. A receive that then is not complete goes on
// waiting, unless the communicator has failed.
func (p *pointToPoint) read(src int, bytes uint64, whole bool) (a *arrival, complete bool) {
	q := &p.peers[src]
	a, q.coming = q.coming, nil
	r := a.receive
	if r == nil {
		return a, false
	}
	p.mu.Lock()
	r.reading = false
	a.come += bytes
	failure := p.failure
	complete = whole && a.come == a.bytes && !r.expired
	if complete || failure != nil {
		delete(p.filling, r)
		delete(q.accepted, a.offer)
	}
	p.mu.Unlock()
	if failure != nil && !complete {
		r.work.End(p.ended(r.op, failure))
	}
	return a, complete
}

// consumed counts a send that has met a receive, and tells the sender now and then.
func (p *pointToPoint) consumed(a *arrival) {
	if a.uncounted {
		return
	}
	q := &p.peers[a.source]
	p.mu.Lock()
	q.unexpected -= uint64(len(a.data))
	q.Taken++
	if a.offer == 0 {
		q.Received += a.bytes
	}
	bytes, number := q.Received, q.Taken
	tell := bytes-q.Told >= p.eagerWindow/4 || number-q.ToldTaken >= max(p.most/4, 1)
	if tell {
		q.Told, q.ToldTaken = bytes, number
	}
	p.mu.Unlock()
	if tell {
		p.reply(a.source, transport.Header{Type: frameConsumed, Arg: [2]uint64{bytes, number}}, nil)
	}
}

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

// gift is an accepted send over a port channel: there is a place for all of its data.
type gift struct {
	send  *send
	offer uint64
	given uint64 // bytes; only who gives it looks
	// Under pointToPoint.mu:
	users int  // of the data: who gives it, now or later, and frames that the peer is still to fetch
	lone  bool // nobody gives it any more
}

// give sends the data of an accepted send: a waiter does who reads the links for this communicator, or else a
// goroutine.
func (p *pointToPoint) give(g *gift) {
	p.mu.Lock()
	g.users, p.given[g.offer] = 1, g
	attended := p.attended
	if attended {
		p.gifts = append(p.gifts, g)
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
	p.attended = yes
	left := p.gifts
	p.gifts = nil
	p.mu.Unlock()
	for _, g := range left {
		p.giveLater(g)
	}
}

// giveAccepted sends the data of accepted sends. What a peer does not take soon is left to a goroutine. The caller has the
// poller's token.
func (p *pointToPoint) giveAccepted() {
	p.mu.Lock()
	gifts := p.gifts
	p.gifts = nil
	p.mu.Unlock()
	for _, g := range gifts {
		ctx := work.WithDeadline(g.send.work.Context(), exec.Now()+giveTime)
		if !p.giveFrames(g, ctx, true) {
			p.giveLater(g)
		}
		ctx.End()
	}
}

// giveFrames tells whether all has been given, or never will be. It has not if only the context has ended.
func (p *pointToPoint) giveFrames(g *gift, ctx context.Context, reading bool) bool {
	s := g.send
	data := s.payload()
	var failure *fault.Error
	for failure == nil && g.given < s.bytes {
		h := transport.Header{Type: transport.Data, Flags: acceptedSend, Seq: g.offer, Arg: [2]uint64{g.given}}
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
		delete(p.given, g.offer)
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
	g := p.given[offer]
	if g == nil { // it has failed
		p.mu.Unlock()
		return
	}
	g.users--
	ended := g.users == 0
	if ended {
		delete(p.given, offer)
	}
	p.mu.Unlock()
	if ended {
		g.send.work.End(nil)
	}
}

// takeLone takes gifts out whose memory only a peer still uses: of one peer, or (AnySource) of all. It needs p.mu.
func (p *pointToPoint) takeLone(peer int) (lone []*gift) {
	for offer, g := range p.given {
		if g.lone && (peer == call.AnySource || g.send.peer == peer) {
			lone = append(lone, g)
			delete(p.given, offer)
		}
	}
	return lone
}

// control takes a frame of the point-to-point protocol. It runs on a link's goroutine, or where letters are
// collected.
func (p *pointToPoint) control(src int, h transport.Header, payload []byte) error {
	switch h.Type {
	case frameOffer, frameProbe:
		dtype := reduce.DType(h.Arg[0] & 0xff)
		if !dtype.Valid() || h.Arg[0]>>8 > math.MaxInt32 {
			return fmt.Errorf("%w: an offer of dtype %d, tag %d", exec.ErrProtocol, dtype, h.Arg[0]>>8)
		}
		a := &arrival{source: src, tag: int(h.Arg[0] >> 8), dtype: dtype, bytes: h.Arg[1], offer: h.Seq}
		if p.c.byMail(src) {
			if len(payload) != 8 {
				return fmt.Errorf("%w: an offer with %d bytes of payload", exec.ErrProtocol, len(payload))
			}
			a.at = binary.NativeEndian.Uint64(payload)
		}
		if h.Type == frameProbe {
			return p.probed(a)
		}
		p.mu.Lock()
		err := p.count(src)
		p.mu.Unlock()
		if err != nil {
			return err
		}
		p.arrive(a)
	case frameNotNow:
		p.notNow(h.Seq, src)
	case frameWanted:
		if h.Arg[0] > math.MaxInt32 {
			return fmt.Errorf("%w: it wants tag %d", exec.ErrProtocol, h.Arg[0])
		}
		p.wantsHeld(src, int(h.Arg[0]))
	case frameNoneHeld:
		p.mu.Lock()
		defer p.mu.Unlock()
		p.setHolds(src, false)
	case frameAccept:
		s := p.takeOffer(h.Seq, src)
		switch {
		case s == nil: // it has failed meanwhile, or is not for that peer
		case p.c.byMail(src):
			p.transfer(&transfer{work: s.work, op: s.op, peer: src})
		default:
			p.give(&gift{send: s, offer: h.Seq})
		}
	case frameGot:
		switch s := p.takeOffer(h.Seq, src); {
		case s == nil:
		case s.bytes > 0 && !p.c.byMail(src):
			err := fmt.Errorf("%w: a send has been got where no memory is shared", exec.ErrProtocol)
			s.work.End(fault.From(err, fault.ErrInternal, "%s", p.title(s.op)))
			return err
		default:
			s.work.End(nil)
		}
	case frameReject:
		if s := p.takeOffer(h.Seq, src); s != nil {
			s.work.End(p.ended(s.op, p.c.members.Decode(fault.ErrMismatch, payload)))
		}
	case frameConsumed:
		p.mu.Lock()
		defer p.mu.Unlock()
		q := &p.peers[src]
		if h.Arg[0] > q.EagerSent || h.Arg[1] > q.Sent {
			return fmt.Errorf("%w: it received %d eager bytes of %d, %d sends of %d", exec.ErrProtocol, h.Arg[0], q.EagerSent, h.Arg[1], q.Sent)
		}
		q.EagerDone, q.Done = max(q.EagerDone, h.Arg[0]), max(q.Done, h.Arg[1])
		p.release(src)
	default:
		return fmt.Errorf("%w: a frame of type %d", exec.ErrProtocol, h.Type)
	}
	return nil
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
	p.match.unexpected = slices.DeleteFunc(p.match.unexpected, func(a *arrival) bool { return a.source == peer && a.offer != 0 })
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
	if p.alarm != nil {
		p.alarm.Stop()
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
