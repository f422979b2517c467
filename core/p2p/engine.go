package p2p

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/goccl/goccl/core/call"
	"github.com/goccl/goccl/core/exec"
	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/membership"
	"github.com/goccl/goccl/core/plan"
	"github.com/goccl/goccl/core/trace"
	"github.com/goccl/goccl/core/transport"
	"github.com/goccl/goccl/core/work"
)

const (
	// EagerBudget is the most bytes of eager sends of all peers that have not been received yet.
	EagerBudget = 5 << 20
	eagerLeast  = 16 << 10 // of a peer, whatever their number
)

// Engine is the sends and receives of an epoch of a communicator. Its methods may be called from
// any goroutine and thread.
// It has more fields than others: what one lock guards lies here.
type Engine struct {
	Config
	face    Face
	links   Links // set before the first operation is started and the first frame is handled
	size    int
	mail    *exec.Mail
	peers   []peer
	credits *exec.Credits // of peers
	buffers buffers       // for eager sends that no receive waits for
	limits
	mails     bool // there are peers with mailboxes
	attention attention

	token       work.Token  // of the thread that takes packets out, and carries the transfers on
	planBytes   int64       // of memory of all queues' plans; the token's holder's
	unannounced atomic.Bool // some of the peers' are
	reading     reading

	mu      sync.Mutex // guards what follows
	open    bool       // callers in C may send, while no thread has entered
	match   matcher
	holding int // peers that hold sends back
	bulks
	pushes    pushes
	transfers int // in the queues of all peers
	deadline  deadline
	failure   *fault.Error
	gone      map[int]membership.Departure
}

// limits are what a peer may be sent that it has not received yet.
type limits struct {
	eagerWindow uint64 // bytes of eager sends
	most        uint64 // sends
}

// reading is held by a thread that takes packets out.
type reading struct {
	sync.Mutex
	closed bool // there are no mailboxes any more
}

// peer is what goes on with one peer.
type peer struct {
	wire    wire
	frames  queued // eager sends and RTS, in the order of their calls
	answers queued
	data    queued // of large sends over a link, in the order in which they were accepted

	sending, receiving queue       // of large sends over memory
	unannounced        atomic.Bool // a packet of which it must be told, unless it looks itself
	// of the thread that reads the link, or takes packets out: what brings the frame being read
	coming coming

	// Under Engine.mu:
	*exec.Credit          // of both ways: see enter
	unexpected   uint64   // bytes from the peer that are held for a receive to come
	held         heldBack // sends to the peer
	holds        bool     // the peer does so, too
	refusing     int      // answers to it that are on their way
}

// New makes an engine. [Engine.UseLinks] comes before its first use, and [Engine.Free] ends it.
func New(c Config, f Face) (*Engine, error) {
	size := len(c.Members.PIDs)
	credits, err := exec.NewCredits(size)
	if err != nil {
		return nil, err
	}
	e := &Engine{Config: c, face: f, size: size, mail: c.Window.Mail(), credits: credits,
		token: work.NewToken(), peers: make([]peer, size)}
	e.mails = e.byMail(call.AnySource)
	e.eagerWindow = uint64(max(EagerBudget/max(size-1, 1), eagerLeast))
	e.most = uint64(max(arrivalsBudget/max(size-1, 1), arrivalsLeast))
	e.out, e.in = map[uint64]*send{}, map[pair]*bulk{}
	e.gone = map[int]membership.Departure{}
	for i := range e.peers {
		p := &e.peers[i]
		p.Credit = credits.Of(i)
		p.frames.Spawn, p.answers.Spawn, p.data.Spawn = c.Works.Spawn, c.Works.Spawn, c.Works.Spawn
		e.peers[i].wire = e.wireTo(i)
	}
	e.attention.after, e.attention.look = e.after, e.background
	if e.mails {
		e.useSends()
	}
	return e, nil
}

// Agreed is called when all ranks have agreed on the shape, before the first use.
func (e *Engine) Agreed() {
	if e.mails {
		e.enter()
		e.useSends()
		e.exit()
	}
}

// useSends says how callers in C send and receive, with their gate shut.
func (e *Engine) useSends() {
	s := exec.Sends{Packet: transport.Data, EagerMax: min(uint64(e.Shape.EagerMax), e.eagerMost()),
		Window: e.eagerWindow, Most: e.most, StreamMin: uint64(e.Shape.Thresholds.StreamMin)}
	s.PipeMin, s.PipeMax = e.Shape.Pipes()
	if least := e.Shape.Thresholds.SendGetMin; least > 0 {
		s.EagerMax, s.PipeMax = min(s.EagerMax, uint64(least)-1), min(s.PipeMax, uint64(least)-1)
	}
	e.FastPath.UseSends(e.credits, s)
}

// UseLinks says what carries frames.
func (e *Engine) UseLinks(l Links) { e.links = l }

// byMail tells whether packets pass between this rank and a peer; of AnySource, whether some do.
func (e *Engine) byMail(peer int) bool { return e.joined(peer, false) }

// byLink tells whether sends and receives between this rank and a peer go over a link; of
// AnySource, whether some do.
func (e *Engine) byLink(peer int) bool { return e.joined(peer, true) }

// joined tells whether a peer, or any, is joined to this rank by a port, or by memory.
func (e *Engine) joined(peer int, port bool) bool {
	if peer != call.AnySource {
		return peer != e.Rank && e.Ports[peer] == port
	}
	for r := range e.size {
		if e.joined(r, port) {
			return true
		}
	}
	return false
}

// eagerMost is the most bytes of an eager send. It is not all of the window, so that the news of
// what was received keep it open.
func (e *Engine) eagerMost() uint64 { return e.eagerWindow * 2 / 3 }

// Free gives back what a finished engine holds.
func (e *Engine) Free() {
	e.enter() // callers in C stay out, for the engine has failed
	defer e.exit()
	e.token <- struct{}{} // from the thread that attends, and kept: none attends any more
	e.endTransfersHeld(e.face.Failed())
	e.reading.Lock()
	e.reading.closed = true
	e.reading.Unlock()
	for i := range e.peers {
		for _, q := range e.peers[i].queues() {
			q.free()
		}
	}
}

// enter keeps callers in C, which send and receive without the engine where they can, out of the
// mailboxes and credits; exit lets them in again. All code that posts or takes packets, starts
// sends or receives, or ends what these wait for runs between the two. They nest.
func (e *Engine) enter() { e.FastPath.ShutSends() }

func (e *Engine) exit() {
	e.mu.Lock()
	defer e.mu.Unlock()
	times := 1
	open := e.sendsInOrder()
	switch {
	case open && !e.open:
		times++
	case !open && e.open:
		times--
	}
	e.open = open
	e.FastPath.OpenSends(times, open && e.idle())
}

// sendsInOrder tells whether no send is under way that one in C could overtake, and calls need not
// come here, to fail or to be logged. It needs e.mu.
func (e *Engine) sendsInOrder() bool {
	return e.mails && e.failure == nil && len(e.gone) == 0 && e.offered == 0 && !e.Traced
}

// idle tells whether no receive or message is here that one in C could overtake. It needs e.mu.
func (e *Engine) idle() bool {
	return len(e.match.posted) == 0 && len(e.match.unexpected) == 0 && len(e.in) == 0 &&
		e.transfers == 0 && e.holding == 0
}

// Start starts those operations of a work that are sends and receives.
func (e *Engine) Start(w *work.Work, operations []call.Operation) {
	e.enter()
	defer e.exit()
	for i := range operations {
		switch op := &operations[i]; op.Collective {
		case plan.Send:
			e.send(w, op)
		case plan.Recv:
			e.receive(w, op)
		}
	}
}

func (e *Engine) send(w *work.Work, op *call.Operation) {
	s := &send{bulk: bulk{work: w, op: op, peer: op.Root, bytes: op.Length(),
		note: e.note(op)}}
	if s.peer == e.Rank {
		a := &arrival{source: s.peer, tag: op.Tag, dtype: op.DType, bytes: s.bytes, local: s}
		e.arrive(a)
		return
	}
	q := &e.peers[s.peer]
	small := s.bytes <= e.eagerMost() && q.wire.eager(s.memory())
	fits := func() bool { return small && q.EagerSent-q.EagerDone+s.bytes <= e.eagerWindow }
	e.mu.Lock()
	if e.mustHold(s.peer) || small && !fits() {
		e.mu.Unlock()
		q.wire.readNews() // no other thread may have had a reason to
		e.mu.Lock()
	}
	if err := e.refuse(s.peer); err != nil {
		e.mu.Unlock()
		e.miss(&s.bulk, err)
		return
	}
	hold := e.mustHold(s.peer)
	if fits() && !hold {
		q.EagerSent += s.bytes
		s.header = transport.Header{Type: transport.Data, Flags: EagerSend, Arg: [2]uint64{s.about()}}
		s.first = s.memory()
	} else {
		e.offer(s)
		s.header = transport.Header{Type: FrameRTS, Seq: s.id, Arg: [2]uint64{s.about(), s.bytes}}
		s.first = q.wire.place(s)
	}
	if hold {
		e.hold(s)
		e.mu.Unlock()
		return
	}
	q.Sent++
	e.mu.Unlock()
	// On the caller's thread, if that takes no waiting: a hand-over costs more than a small frame.
	if !e.links.Connected(s.peer) || !q.frames.Now(func() bool { return q.wire.begin(s) }) {
		q.frames.do(e, func() { e.beginSend(s, s.header, w.Timeout()) })
	}
}

// note notes a send or receive that is called.
func (e *Engine) note(op *call.Operation) trace.Message {
	m := op.Message()
	m.Root, m.Digest = int32(op.Root), uint64(op.Tag)
	return e.FastPath.Trace().QueueMessage(m, op.Length())
}

// sent tells that the first frame of a send is on its way.
func (e *Engine) sent(s *send) {
	if s.id == 0 {
		e.over(&s.bulk, nil)
	}
}

// beginSend carries a send's first frame, with that header, in so long at most. It tells whether
// that is over, well or not.
func (e *Engine) beginSend(s *send, h transport.Header, most time.Duration) bool {
	ctx := work.WithDeadline(s.work.Context(), exec.Later(exec.Now(), most))
	defer ctx.End()
	err := e.peers[s.peer].wire.post(ctx, h, s.first)
	switch {
	case err == nil:
		e.sent(s)
	case ctx.Err() != nil && s.work.Context().Err() == nil:
		return false
	default:
		lost := e.loseSend(s, err)
		if s.id == 0 || e.answered(s.id, s.peer, left) != nil {
			e.over(&s.bulk, lost)
		}
	}
	return true
}

func (e *Engine) receive(w *work.Work, op *call.Operation) {
	r := &receive{bulk: bulk{work: w, op: op, bytes: op.Length(), peer: call.AnySource,
		note: e.note(op)}, source: op.Root}
	var holders []int
	e.mu.Lock()
	a := e.match.post(r)
	if a == nil {
		if err := e.refuse(r.source); err != nil {
			e.match.cancel(r)
			e.mu.Unlock()
			e.miss(&r.bulk, err)
			return
		}
		e.expect(w.Deadline())
		holders = e.holders(r.source)
	}
	e.mu.Unlock()
	for _, peer := range holders {
		e.reply(peer, transport.Header{Type: FrameWanted, Arg: [2]uint64{uint64(op.Tag)}}, nil)
	}
	if a != nil {
		e.deliver(r, a)
	} else if r.source >= 0 && r.source != e.Rank && !e.links.Connected(r.source) {
		e.face.Dial(r.source) // so that a peer that died before it ever sent is found out
	}
}

func (e *Engine) arrive(a *arrival) {
	e.mu.Lock()
	if e.failure != nil {
		e.mu.Unlock()
		if a.local != nil {
			e.over(&a.local.bulk, e.failure)
		}
		return
	}
	r := e.match.arrive(a)
	if r == nil && a.local != nil {
		e.expect(a.local.work.Deadline())
	}
	e.mu.Unlock()
	if r != nil {
		e.deliver(r, a)
	}
}

// deliver brings an arrival's data to the receive that it met.
func (e *Engine) deliver(r *receive, a *arrival) {
	r.work.SetSource(a.source)
	var bad *fault.Error
	if !r.fits(a) {
		bad = e.mismatch(r, a)
	}
	switch {
	case a.local != nil:
		if bad == nil {
			copy(r.memory(), a.local.memory())
		}
		e.over(&a.local.bulk, bad)
		e.over(&r.bulk, bad)
	case a.data != nil:
		if bad == nil {
			copy(r.memory(), a.data)
		}
		e.consumed(a)
		e.buffers.put(a.data)
		e.over(&r.bulk, bad)
	case bad != nil:
		e.consumed(a)
		e.reply(a.source, frameOf(FrameReject, a.id), bad.Encode())
		e.over(&r.bulk, bad)
	default:
		e.consumed(a)
		if a.bytes == 0 {
			r.peer, r.id = a.source, a.id
			e.finish(&r.bulk)
		} else {
			e.accept(r, a)
		}
	}
}

// mismatch is the error for a receive that has met a send which does not fit it.
func (e *Engine) mismatch(r *receive, a *arrival) *fault.Error {
	sent, wanted := a.bytes/uint64(a.dtype.Size()), r.op.OutCounts[0]
	err := e.Members.Errorf(fault.ErrMismatch, "%s receives %d elements of %s with tag %d, but "+
		"%s sent %d elements of %s", e.Members.Names(e.Rank), wanted, r.op.DType, a.tag,
		e.Members.Names(a.source), sent, a.dtype)
	err.Calls = map[int]string{
		a.source: fmt.Sprintf("send(%s, %d elements, tag %d)", a.dtype, sent, a.tag),
		e.Rank:   fmt.Sprintf("recv(%s, %d elements, tag %d)", r.op.DType, wanted, a.tag),
	}
	return e.ended(r.op, err)
}

// reply tells a peer something without waiting. A peer that is not told has failed, as its link
// tells.
func (e *Engine) reply(peer int, h transport.Header, payload []byte) {
	q := &e.peers[peer]
	if !q.answers.Now(func() bool { return q.wire.tryPost(h, payload) }) {
		timeout := e.face.Timeout()
		until := exec.Later(exec.Now(), timeout)
		q.answers.do(e, func() { e.replyBy(until, timeout, peer, h, payload) })
	}
}

// replyBy is reply on a goroutine, until a time, which comes after so long.
func (e *Engine) replyBy(until, timeout time.Duration, peer int, h transport.Header,
	payload []byte) {
	ctx := work.WithDeadline(e.Works.Context, until)
	defer ctx.End()
	if err := e.peers[peer].wire.post(ctx, h, payload); err != nil && exec.Now() >= until {
		e.face.Fail(e.Members.Errorf(fault.ErrTimeout,
			"answer to %s: timeout after %v: it takes nothing", e.Members.Names(peer),
			timeout).Blaming(peer))
	}
}
