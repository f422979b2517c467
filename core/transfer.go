package core

import (
	"cmp"
	"slices"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/goccl/goccl/core/call"
	"github.com/goccl/goccl/core/exec"
	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/plan"
	"github.com/goccl/goccl/core/transport"
	"github.com/goccl/goccl/core/tune"
)

// transfer is a send over a memory channel, or the receive that has accepted it: two-rank plans on
// the point-to-point lane; or a receive alone, which reads the sender's memory. All transfers are
// carried on by one attendant: a waiter, or else a goroutine that is there as long as there are
// some.
type transfer struct {
	work  *Work
	op    *call.Operation
	peer  int
	offer uint64 // of a receive

	segments []tune.Segment // still to run; nil: it has not begun
	compiled *exec.Compiled

	get bool
	at  uint64 // what is still to be got, in the sender's memory
	got uint64
}

// transfers go to one peer, or come from it, one after the other in the order in which they were
// accepted.
type transfers struct {
	queue []*transfer // under pointToPoint.mu
	run   *exec.Run   // of the first; the attendant's
}

func (p *pointToPoint) queueOf(t *transfer) *transfers {
	if t.op.Collective == plan.Send {
		return &p.peers[t.peer].giving
	}
	return &p.peers[t.peer].taking
}

// transfer gives a transfer to the attendant.
func (p *pointToPoint) transfer(t *transfer) {
	p.mu.Lock()
	if err := p.failure; err != nil {
		p.mu.Unlock()
		t.work.End(p.ended(t.op, err))
		return
	}
	q := p.queueOf(t)
	q.queue = append(q.queue, t)
	p.moving++
	p.mu.Unlock()
	p.c.window.Mail().Poke()
	if len(p.token) == 0 { // else who attends looks again when he leaves
		p.attention.later()
	}
}

func (p *pointToPoint) hasTransfers() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.moving > 0
}

// after calls a function on a goroutine after a time, unless the communicator has failed.
func (p *pointToPoint) after(d time.Duration, f func()) {
	time.AfterFunc(d, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.failure == nil {
			p.c.spawn(f)
		}
	})
}

// background does what waiters have left over: it announces letters, and attends where there are
// transfers and nobody does. It tells whether there was anything left over.
func (p *pointToPoint) background() bool {
	p.enter()
	defer p.exit()
	left := p.announce()
	if left {
		p.attention.found()
	}
	if p.hasTransfers() {
		select {
		case p.token <- struct{}{}:
			p.attention.found()
			p.attend(nil, 1<<62)
			return true
		default:
		}
	}
	return left
}

// accept begins a transfer, of which the sender must know unless its memory is read. The peer may
// have mapped this rank's window before this rank has mapped the peer's.
func (p *pointToPoint) accept(t *transfer) {
	mail := p.c.window.Mail()
	if t.get {
		if mail.Mapped(t.peer) {
			p.transfer(t)
			return
		}
		p.c.spawn(func() {
			err := p.c.group.Connect(t.work.Context(), t.peer)
			if mail.Mapped(t.peer) { // even if the peer has left meanwhile, which the transfer will find
				p.transfer(t)
				return
			}
			t.work.End(p.lose(t.op, t.peer, cmp.Or(err, errUnmapped)))
		})
		return
	}
	h := transport.Header{Type: frameAccept, Seq: t.offer}
	q := &p.peers[t.peer]
	inline := func() bool {
		if !q.wire.tryPost(h, nil) {
			return false
		}
		p.transfer(t)
		return true
	}
	if !q.take.now(p.c, inline) {
		q.take.do(p.c, func() {
			if err := q.wire.post(t.work.Context(), h, nil); err != nil {
				t.work.End(p.lose(t.op, t.peer, err))
				return
			}
			p.transfer(t)
		})
	}
}

// attend looks for letters and carries the transfers on, in the manner of work.Driver: until a work
// has ended (nil: until there is no transfer left), or until a time.
func (p *pointToPoint) attend(w *Work, until time.Duration) bool {
	p.enter()
	defer p.exit()
	mail := p.c.window.Mail()
	var over *atomic.Uint32
	if w != nil {
		over = w.Flag()
	} else {
		over = new(atomic.Uint32) // never
	}
	if p.c.poller != nil &&
		!p.c.shape.AllMemory { // what comes over links somebody else reads meanwhile
		p.c.poller.StartProgress()
		defer p.c.poller.StopProgress()
	}
	mail.Poll(1)
	interrupted := false
	announceAt := time.Duration(0)
	for {
		p.takeLetters()
		heads, more := p.advance()
		now := exec.Now()
		if over.Load() != 0 || w == nil && len(heads) == 0 && !p.hasTransfers() || now >= until ||
			interrupted || p.c.failed() != nil {
			break
		}
		runs := make([]*exec.Run, len(heads))
		for i, t := range heads {
			runs[i] = p.queueOf(t).run
		}
		next := min(until, now+letterSlice)
		switch {
		case !p.unannounced.Load():
			announceAt = 0
		case announceAt == 0:
			announceAt = now + announceDelay
		case now >= announceAt:
			p.announce()
			announceAt = 0
		}
		if announceAt != 0 {
			next = min(next, announceAt)
		}
		switch {
		case more && len(runs) == 0:
			continue
		case more: // the runs get on between two parts
			next = now
		}
		why, run, status := mail.Await(runs, over, w != nil, next)
		switch why {
		case exec.Ran:
			p.ran(heads[slices.Index(runs, run)], status)
		case exec.Interrupted:
			interrupted = w != nil && exec.Now() < next
		}
	}
	mail.Poll(-1)
	p.takeLetters()
	if err := p.c.failed(); err != nil {
		p.endTransfersHeld(err)
	}
	<-p.token
	// Only now: who came with something while the token was held has left it to this.
	if err := p.c.failed(); err != nil {
		p.endTransfers(err)
	} else if p.hasTransfers() || p.unannounced.Load() {
		p.attention.later()
	}
	return w != nil && !w.Ended() && exec.Now() < until && !interrupted
}

// endTransfers ends all transfers with an error. If somebody attends, he does it when he leaves:
// until then he uses their memory.
func (p *pointToPoint) endTransfers(err *fault.Error) {
	for p.hasTransfers() { // again, if somebody has come with one meanwhile
		select {
		case p.token <- struct{}{}:
		default:
			return
		}
		p.endTransfersHeld(err)
		<-p.token
	}
}

// endTransfersHeld is endTransfers for who has the token.
func (p *pointToPoint) endTransfersHeld(err *fault.Error) {
	var ended []*transfer
	p.mu.Lock()
	for i := range p.peers {
		for _, q := range []*transfers{&p.peers[i].giving, &p.peers[i].taking} {
			ended = append(ended, q.queue...)
			q.queue = nil
		}
	}
	p.moving = 0
	p.mu.Unlock()
	for _, t := range ended {
		if t.compiled != nil {
			t.compiled.Free()
		}
		t.work.End(p.ended(t.op, err))
	}
}

// advance readies the first transfer of each queue, and returns those that run plans. Of the others
// it gets a part, and tells whether there is more to get. Those that are late fail the
// communicator.
func (p *pointToPoint) advance() (running []*transfer, more bool) {
	p.mu.Lock()
	if p.moving == 0 {
		p.mu.Unlock()
		return nil, false
	}
	var moving []*transfer
	for i := range p.peers {
		for _, q := range []*transfers{&p.peers[i].giving, &p.peers[i].taking} {
			if len(q.queue) > 0 {
				moving = append(moving, q.queue[0])
			}
		}
	}
	p.mu.Unlock()
	for _, t := range moving {
		switch {
		case t.work.Deadline() <= exec.Now():
			p.c.fail(p.late(t.work, t.op, t.peer, p.c.members.Names(t.peer)+" has not done its part"), true)
		case t.get:
			more = p.get(t) || more
		default:
			if t.segments == nil {
				if err := p.bind(t); err != nil {
					p.c.fail(err, true)
					continue
				}
			}
			running = append(running, t)
		}
	}
	return running, more
}

// get gets a part of what a sender has offered. It tells whether something else may be done for the
// peer now.
func (p *pointToPoint) get(t *transfer) bool {
	out := unsafe.Slice((*byte)(t.op.Out[0]), t.op.Length())[t.got:]
	out = out[:min(plan.GetMost, len(out))] // then the attendant looks around
	taken, err := p.c.window.Lane(pointToPointLane).Take(t.peer, out, t.at+t.got)
	switch {
	case p.c.failed() != nil: // where this rank has left, its peer has its buffer back
		return false
	case err != nil: // there are mappings that cannot be read so
		p.done(t)
		t.get = false
		p.accept(t)
	case !taken:
		d, gone := p.c.departure(t.peer)
		if !gone { // there will be news of it
			return false
		}
		p.done(t)
		p.miss(t.work, t.op, d.Cause)
	default:
		if t.got += uint64(len(out)); t.got == t.op.Length() {
			p.done(t)
			p.finish(t.work, t.peer, t.offer)
		}
	}
	return true
}

// finish tells a sender that its offer has been read, and ends the receive: only then, as the
// communicator may be destroyed after it.
func (p *pointToPoint) finish(w *Work, peer int, offer uint64) {
	h := transport.Header{Type: frameGot, Seq: offer}
	q := &p.peers[peer]
	if q.take.now(p.c, func() bool { return q.wire.tryPost(h, nil) }) {
		w.End(nil)
		return
	}
	q.take.do(p.c, func() {
		// a sender that is not told has left, or finds that it is late
		_ = q.wire.post(w.Context(), h, nil)
		w.End(nil)
	})
}

func (p *pointToPoint) bind(t *transfer) *fault.Error {
	q := p.queueOf(t)
	if q.run == nil {
		run, err := exec.NewRun(p.c.window.Lane(pointToPointLane))
		if err != nil {
			return fault.From(err, fault.ErrSystem, "%s", t.op.Collective)
		}
		q.run = run
	}
	m := plan.Message{Group: p.c.identity.group, Epoch: p.c.number,
		Collective: uint8(plan.Send), Root: -1}
	if err := q.run.Bind(exec.Binding{In: t.op.In, Out: t.op.Out, Message: m}); err != nil {
		return fault.From(err, fault.ErrSystem, "%s", t.op.Collective)
	}
	sized := *t.op
	sized.Root = t.peer
	t.segments = p.c.shape.Segments(&sized)
	return p.begin(t)
}

// begin begins a transfer's next segment.
func (p *pointToPoint) begin(t *transfer) *fault.Error {
	s := t.segments[0]
	t.segments = t.segments[1:]
	built, err := plan.Build(s.Params)
	if err != nil {
		return fault.From(err, fault.ErrInternal, "%s", t.op.Collective)
	}
	if t.compiled, err = exec.Compile(built, false, false); err != nil {
		return fault.From(err, fault.ErrSystem, "%s", t.op.Collective)
	}
	if err := p.queueOf(t).run.Begin(t.compiled, s.Offset); err != nil {
		return fault.From(err, fault.ErrSystem, "%s", t.op.Collective)
	}
	return nil
}

// ran does what the loop in C leaves to be done.
func (p *pointToPoint) ran(t *transfer, status exec.Status) {
	q := p.queueOf(t)
	if status != exec.Done && status != exec.Gone {
		p.c.fail(p.c.runError(q.run, t.op.Message(), status), true)
		return
	}
	t.compiled.Free()
	t.compiled = nil
	if status == exec.Gone {
		d, _ := p.c.departure(t.peer)
		p.done(t)
		p.miss(t.work, t.op, d.Cause)
		return
	}
	if len(t.segments) > 0 {
		if err := p.begin(t); err != nil {
			p.c.fail(err, true)
		}
		return
	}
	p.done(t)
	t.work.End(nil)
}

// done takes the first transfer of a queue out.
func (p *pointToPoint) done(t *transfer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	q := p.queueOf(t)
	q.queue = q.queue[1:]
	p.moving--
}
