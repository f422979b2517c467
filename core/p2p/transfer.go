package p2p

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
	"github.com/goccl/goccl/core/work"
)

// transfer is a send over a memory channel, or the receive that has accepted it: two-rank plans on
// the point-to-point lane; or a receive alone, which reads the sender's memory. All transfers are
// carried on by one attendant: a waiter, or else a goroutine that is there as long as there are
// some.
type transfer struct {
	work  *work.Work
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
	queue []*transfer // under Engine.mu
	run   *exec.Run   // of the first; the attendant's
}

func (e *Engine) queueOf(t *transfer) *transfers {
	if t.op.Collective == plan.Send {
		return &e.peers[t.peer].giving
	}
	return &e.peers[t.peer].taking
}

// transfer gives a transfer to the attendant.
func (e *Engine) transfer(t *transfer) {
	e.mu.Lock()
	if err := e.failure; err != nil {
		e.mu.Unlock()
		t.work.End(e.ended(t.op, err))
		return
	}
	q := e.queueOf(t)
	q.queue = append(q.queue, t)
	e.moving++
	e.mu.Unlock()
	e.mail.Poke()
	if len(e.token) == 0 { // else who attends looks again when he leaves
		e.attention.later()
	}
}

func (e *Engine) hasTransfers() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.moving > 0
}

// after calls a function on a goroutine after a time, unless the communicator has failed.
func (e *Engine) after(d time.Duration, f func()) {
	time.AfterFunc(d, func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		if e.failure == nil {
			e.Works.Spawn(f)
		}
	})
}

// background does what waiters have left over: it announces letters, and attends where there are
// transfers and nobody does. It tells whether there was anything left over.
func (e *Engine) background() bool {
	e.enter()
	defer e.exit()
	left := e.announce()
	if left {
		e.attention.found()
	}
	if e.hasTransfers() {
		select {
		case e.token <- struct{}{}:
			e.attention.found()
			e.attend(nil, 1<<62)
			return true
		default:
		}
	}
	return left
}

// accept begins a transfer, of which the sender must know unless its memory is read. The peer may
// have mapped this rank's window before this rank has mapped the peer's.
func (e *Engine) accept(t *transfer) {
	mail := e.mail
	if t.get {
		if mail.Mapped(t.peer) {
			e.transfer(t)
			return
		}
		e.Works.Spawn(func() {
			err := e.links.Connect(t.work.Context(), t.peer)
			if mail.Mapped(t.peer) { // even if the peer has left meanwhile, which the transfer will find
				e.transfer(t)
				return
			}
			t.work.End(e.lose(t.op, t.peer, cmp.Or(err, errUnmapped)))
		})
		return
	}
	h := transport.Header{Type: FrameCTS, Seq: t.offer}
	q := &e.peers[t.peer]
	inline := func() bool {
		if !q.wire.tryPost(h, nil) {
			return false
		}
		e.transfer(t)
		return true
	}
	if !q.take.now(e, inline) {
		q.take.do(e, func() {
			if err := q.wire.post(t.work.Context(), h, nil); err != nil {
				t.work.End(e.lose(t.op, t.peer, err))
				return
			}
			e.transfer(t)
		})
	}
}

// attend looks for letters and carries the transfers on, in the manner of work.Driver: until a work
// has ended (nil: until there is no transfer left), or until a time.
func (e *Engine) attend(w *work.Work, until time.Duration) bool {
	e.enter()
	defer e.exit()
	mail := e.mail
	var over *atomic.Uint32
	if w != nil {
		over = w.Flag()
	} else {
		over = new(atomic.Uint32) // never
	}
	if e.Reader != nil &&
		!e.Shape.AllMemory { // what comes over links somebody else reads meanwhile
		e.Reader.StartProgress()
		defer e.Reader.StopProgress()
	}
	mail.Poll(1)
	interrupted := false
	announceAt := time.Duration(0)
	for {
		e.takeLetters()
		heads, more := e.advance()
		now := exec.Now()
		if over.Load() != 0 || w == nil && len(heads) == 0 && !e.hasTransfers() || now >= until ||
			interrupted || e.face.Failed() != nil {
			break
		}
		runs := make([]*exec.Run, len(heads))
		for i, t := range heads {
			runs[i] = e.queueOf(t).run
		}
		next := min(until, now+letterSlice)
		switch {
		case !e.unannounced.Load():
			announceAt = 0
		case announceAt == 0:
			announceAt = now + announceDelay
		case now >= announceAt:
			e.announce()
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
			e.ran(heads[slices.Index(runs, run)], status)
		case exec.Interrupted:
			interrupted = w != nil && exec.Now() < next
		}
	}
	mail.Poll(-1)
	e.takeLetters()
	if err := e.face.Failed(); err != nil {
		e.endTransfersHeld(err)
	}
	<-e.token
	// Only now: who came with something while the token was held has left it to this.
	if err := e.face.Failed(); err != nil {
		e.endTransfers(err)
	} else if e.hasTransfers() || e.unannounced.Load() {
		e.attention.later()
	}
	return w != nil && !w.Ended() && exec.Now() < until && !interrupted
}

// endTransfers ends all transfers with an error. If somebody attends, he does it when he leaves:
// until then he uses their memory.
func (e *Engine) endTransfers(err *fault.Error) {
	for e.hasTransfers() { // again, if somebody has come with one meanwhile
		select {
		case e.token <- struct{}{}:
		default:
			return
		}
		e.endTransfersHeld(err)
		<-e.token
	}
}

// endTransfersHeld is endTransfers for who has the token.
func (e *Engine) endTransfersHeld(err *fault.Error) {
	var ended []*transfer
	e.mu.Lock()
	for i := range e.peers {
		for _, q := range []*transfers{&e.peers[i].giving, &e.peers[i].taking} {
			ended = append(ended, q.queue...)
			q.queue = nil
		}
	}
	e.moving = 0
	e.mu.Unlock()
	for _, t := range ended {
		if t.compiled != nil {
			t.compiled.Free()
		}
		t.work.End(e.ended(t.op, err))
	}
}

// advance readies the first transfer of each queue, and returns those that run plans. Of the others
// it gets a part, and tells whether there is more to get. Those that are late fail the
// communicator.
func (e *Engine) advance() (running []*transfer, more bool) {
	e.mu.Lock()
	if e.moving == 0 {
		e.mu.Unlock()
		return nil, false
	}
	var moving []*transfer
	for i := range e.peers {
		for _, q := range []*transfers{&e.peers[i].giving, &e.peers[i].taking} {
			if len(q.queue) > 0 {
				moving = append(moving, q.queue[0])
			}
		}
	}
	e.mu.Unlock()
	for _, t := range moving {
		switch {
		case t.work.Deadline() <= exec.Now():
			e.face.Fail(e.late(t.work, t.op, t.peer, e.Members.Names(t.peer)+" has not done its part"))
		case t.get:
			more = e.get(t) || more
		default:
			if t.segments == nil {
				if err := e.bind(t); err != nil {
					e.face.Fail(err)
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
func (e *Engine) get(t *transfer) bool {
	out := unsafe.Slice((*byte)(t.op.Out[0]), t.op.Length())[t.got:]
	out = out[:min(plan.GetMost, len(out))] // then the attendant looks around
	taken, err := e.Lane.Take(t.peer, out, t.at+t.got)
	switch {
	case e.face.Failed() != nil: // where this rank has left, its peer has its buffer back
		return false
	case err != nil: // there are mappings that cannot be read so
		e.done(t)
		t.get = false
		e.accept(t)
	case !taken:
		d, gone := e.face.Departure(t.peer)
		if !gone { // there will be news of it
			return false
		}
		e.done(t)
		e.miss(t.work, t.op, d.Cause)
	default:
		if t.got += uint64(len(out)); t.got == t.op.Length() {
			e.done(t)
			e.finish(t.work, t.peer, t.offer)
		}
	}
	return true
}

// finish tells a sender that its offer has been read, and ends the receive: only then, as the
// communicator may be destroyed after it.
func (e *Engine) finish(w *work.Work, peer int, offer uint64) {
	h := transport.Header{Type: FrameFIN, Seq: offer}
	q := &e.peers[peer]
	if q.take.now(e, func() bool { return q.wire.tryPost(h, nil) }) {
		w.End(nil)
		return
	}
	q.take.do(e, func() {
		// a sender that is not told has left, or finds that it is late
		_ = q.wire.post(w.Context(), h, nil)
		w.End(nil)
	})
}

func (e *Engine) bind(t *transfer) *fault.Error {
	q := e.queueOf(t)
	if q.run == nil {
		run, err := exec.NewRun(e.Lane)
		if err != nil {
			return fault.From(err, fault.ErrSystem, "%s", t.op.Collective)
		}
		q.run = run
	}
	m := plan.Message{Group: e.Group, Epoch: e.Epoch,
		Collective: uint8(plan.Send), Root: -1}
	if err := q.run.Bind(exec.Binding{In: t.op.In, Out: t.op.Out, Message: m}); err != nil {
		return fault.From(err, fault.ErrSystem, "%s", t.op.Collective)
	}
	sized := *t.op
	sized.Root = t.peer
	t.segments = e.Shape.Segments(&sized)
	return e.begin(t)
}

// begin begins a transfer's next segment.
func (e *Engine) begin(t *transfer) *fault.Error {
	s := t.segments[0]
	t.segments = t.segments[1:]
	built, err := plan.Build(s.Params)
	if err != nil {
		return fault.From(err, fault.ErrInternal, "%s", t.op.Collective)
	}
	if t.compiled, err = exec.Compile(built, false, false); err != nil {
		return fault.From(err, fault.ErrSystem, "%s", t.op.Collective)
	}
	if err := e.queueOf(t).run.Begin(t.compiled, s.Offset); err != nil {
		return fault.From(err, fault.ErrSystem, "%s", t.op.Collective)
	}
	return nil
}

// ran does what the loop in C leaves to be done.
func (e *Engine) ran(t *transfer, status exec.Status) {
	q := e.queueOf(t)
	if status != exec.Done && status != exec.Gone {
		e.face.Fail(e.face.RunError(q.run, t.op.Message(), status))
		return
	}
	t.compiled.Free()
	t.compiled = nil
	if status == exec.Gone {
		d, _ := e.face.Departure(t.peer)
		e.done(t)
		e.miss(t.work, t.op, d.Cause)
		return
	}
	if len(t.segments) > 0 {
		if err := e.begin(t); err != nil {
			e.face.Fail(err)
		}
		return
	}
	e.done(t)
	t.work.End(nil)
}

// done takes the first transfer of a queue out.
func (e *Engine) done(t *transfer) {
	e.mu.Lock()
	defer e.mu.Unlock()
	q := e.queueOf(t)
	q.queue = q.queue[1:]
	e.moving--
}
