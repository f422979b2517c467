package p2p

import (
	"cmp"
	"slices"

	"github.com/goccl/goccl/core/exec"
	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/plan"
	"github.com/goccl/goccl/core/tune"
)

// transfer moves a bulk over memory: by two-rank plans on the lane of sends, or, at the receiver,
// by a copy of the sender's memory. One thread carries all transfers on: see attend. A transfer
// belongs to the holder of the token of sends, as does its bulk, which is busy.
type transfer struct {
	*bulk

	copies bool
	at     uint64 // where the data lies in the sender's memory
	copied uint64

	segments []tune.Segment // still to run; nil: it has not begun
}

// queue has transfers to one peer, or from it, which go one after the other in the order in which
// they were accepted.
type queue struct {
	waiting []*transfer // under Engine.mu

	// The token's holder's:
	run   *exec.Run // of the first
	plans []segmentPlan
}

// segmentPlan is the plan for a segment between this rank and the peer of a queue.
type segmentPlan struct {
	bytes, element int64
	compiled       *exec.Compiled
}

const (
	// plansKept is how many plans a queue keeps: sends to one peer mostly are alike.
	plansKept = 8
	// mostPlanBytes is how much memory the plans of all queues take, beside those that run.
	mostPlanBytes = 16 << 20
)

// plan is the plan for a segment of a queue. It stays until it has run: a queue runs one at a time.
func (e *Engine) plan(q *queue, p *plan.Params) (*exec.Compiled, error) {
	key := segmentPlan{bytes: slices.Concat(p.InBytes, p.OutBytes)[0], element: p.ElemSize}
	for _, kept := range q.plans {
		if kept.bytes == key.bytes && kept.element == key.element {
			return kept.compiled, nil
		}
	}
	built, err := plan.Build(*p)
	if err != nil {
		return nil, err
	}
	if key.compiled, err = exec.Compile(built, false, false); err != nil {
		return nil, err
	}
	q.plans = append(q.plans, key)
	e.planBytes += key.compiled.Bytes
	e.trim(q, 1)
	return key.compiled, nil
}

// trim frees the oldest plans of a queue that are too many, or take too much, but for so many.
func (e *Engine) trim(q *queue, least int) {
	for len(q.plans) > plansKept || len(q.plans) > least && e.planBytes > mostPlanBytes {
		oldest := q.plans[0].compiled
		q.plans = q.plans[1:]
		e.planBytes -= oldest.Bytes
		oldest.Free()
	}
}

// free gives back what the queue of an engine that has ended holds.
func (q *queue) free() {
	if q.run != nil {
		q.run.Free()
	}
	for _, kept := range q.plans {
		kept.compiled.Free()
	}
}

func (p *peer) queues() [2]*queue { return [2]*queue{&p.sending, &p.receiving} }

func (e *Engine) queueOf(t *transfer) *queue {
	if t.sends() {
		return &e.peers[t.peer].sending
	}
	return &e.peers[t.peer].receiving
}

// enqueue leaves a transfer to the thread that attends.
func (e *Engine) enqueue(t *transfer) {
	e.mu.Lock()
	if err := e.failure; err != nil {
		e.mu.Unlock()
		e.end(t.bulk, e.ended(t.op, err))
		return
	}
	q := e.queueOf(t)
	q.waiting = append(q.waiting, t)
	e.transfers++
	e.mu.Unlock()
	e.mail.Poke()
	if !e.token.Taken() { // else the thread that attends looks again when it leaves
		e.attention.later()
	}
}

// dequeue takes the first transfer of a queue out.
func (e *Engine) dequeue(t *transfer) {
	e.mu.Lock()
	defer e.mu.Unlock()
	q := e.queueOf(t)
	q.waiting = q.waiting[1:]
	e.transfers--
}

// acceptCopy begins a copy. The peer may have mapped this rank's window before this rank has mapped
// the peer's.
func (e *Engine) acceptCopy(t *transfer) {
	if e.mail.Mapped(t.peer) {
		e.enqueue(t)
		return
	}
	e.Works.Spawn(func() {
		err := e.links.Connect(t.work.Context(), t.peer)
		if e.mail.Mapped(t.peer) { // even if the peer has left meanwhile, which the copy will find
			e.enqueue(t)
			return
		}
		e.end(t.bulk, e.lose(t.op, t.peer, cmp.Or(err, errUnmapped)))
	})
}

// acceptPlans begins a transfer by plans, which the sender must know of first.
func (e *Engine) acceptPlans(t *transfer) {
	h := frameOf(FrameCTS, t.id)
	q := &e.peers[t.peer]
	inline := func() bool {
		if !q.wire.tryPost(h, nil) {
			return false
		}
		e.enqueue(t)
		return true
	}
	if !q.answers.Now(inline) {
		q.answers.do(e, func() {
			if err := q.wire.post(t.work.Context(), h, nil); err != nil {
				e.end(t.bulk, e.lose(t.op, t.peer, err))
				return
			}
			e.enqueue(t)
		})
	}
}

// endTransfers ends all transfers with an error. If a thread attends, it does so when it leaves:
// until then it uses their memory.
func (e *Engine) endTransfers(err *fault.Error) {
	for e.hasTransfers() { // again, if another has come meanwhile
		select {
		case e.token <- struct{}{}:
		default:
			return
		}
		e.endTransfersHeld(err)
		<-e.token
	}
}

// endTransfersHeld is endTransfers for the holder of the token.
func (e *Engine) endTransfersHeld(err *fault.Error) {
	var ended []*transfer
	e.mu.Lock()
	for i := range e.peers {
		for _, q := range e.peers[i].queues() {
			ended = append(ended, q.waiting...)
			q.waiting = nil
		}
	}
	e.transfers = 0
	e.mu.Unlock()
	for _, t := range ended {
		e.end(t.bulk, e.ended(t.op, err))
	}
}

// advance readies the first transfer of each queue, and returns those that run plans. Of the others
// it copies a part, and tells whether there is more to copy.
func (e *Engine) advance() (running []*transfer, more bool) {
	e.mu.Lock()
	if e.transfers == 0 {
		e.mu.Unlock()
		return nil, false
	}
	var first []*transfer
	for i := range e.peers {
		for _, q := range e.peers[i].queues() {
			if len(q.waiting) > 0 {
				first = append(first, q.waiting[0])
				e.to(q.waiting[0].bulk, moving)
			}
		}
	}
	e.mu.Unlock()
	for _, t := range first {
		switch {
		case t.copies:
			more = e.copyPart(t) || more
		case t.segments == nil:
			if err := e.bind(t); err != nil {
				e.face.Fail(err)
				continue
			}
			fallthrough
		default:
			running = append(running, t)
		}
	}
	return running, more
}

// copyPart copies a part of what a sender has. It tells whether something else may be done for the
// peer now.
func (e *Engine) copyPart(t *transfer) bool {
	out := t.memory()[t.copied:]
	out = out[:min(plan.GetMost, len(out))] // then the thread looks around
	taken, err := e.Lane.Take(t.peer, out, t.at+t.copied)
	switch {
	case e.face.Failed() != nil: // where this rank has left, its peer has its buffer back
		return false
	case err != nil: // there are mappings that cannot be read so
		e.dequeue(t)
		e.mu.Lock()
		e.to(t.bulk, accepted)
		e.mu.Unlock()
		t.copies = false
		e.acceptPlans(t)
	case !taken:
		d, gone := e.face.Departure(t.peer)
		if !gone { // there will be news of it
			return false
		}
		e.lost(t, d.Cause)
	default:
		if t.copied += uint64(len(out)); t.copied == t.bytes {
			e.dequeue(t)
			e.finish(t.bulk)
		}
	}
	return true
}

// lost ends the first transfer of a queue whose peer is gone.
func (e *Engine) lost(t *transfer, cause *fault.Error) {
	e.dequeue(t)
	e.mu.Lock()
	e.to(t.bulk, left)
	e.mu.Unlock()
	e.miss(t.bulk, cause)
}

// bind readies the run of a queue for its first transfer.
func (e *Engine) bind(t *transfer) *fault.Error {
	q := e.queueOf(t)
	if q.run == nil {
		run, err := exec.NewRun(e.Lane)
		if err != nil {
			return fault.From(err, fault.ErrSystem, "%s", t.op.Collective)
		}
		q.run = run
	}
	m := plan.Message{Group: e.Group, Epoch: e.Epoch, Collective: uint8(plan.Send), Root: -1}
	if err := q.run.Bind(exec.Binding{In: t.op.In, Out: t.op.Out, Message: m}); err != nil {
		return fault.From(err, fault.ErrSystem, "%s", t.op.Collective)
	}
	sized := *t.op
	sized.Root = t.peer
	t.segments = e.Shape.Segments(&sized, nil)
	return e.begin(t)
}

// begin begins a transfer's next segment.
func (e *Engine) begin(t *transfer) *fault.Error {
	s := t.segments[0]
	t.segments = t.segments[1:]
	q := e.queueOf(t)
	compiled, err := e.plan(q, &s.Params)
	if err == nil {
		err = q.run.Begin(compiled, s.Offset)
	}
	if err != nil {
		return fault.From(err, fault.ErrSystem, "%s", t.op.Collective)
	}
	return nil
}

// ran does what the loop in C leaves to be done.
func (e *Engine) ran(t *transfer, status exec.Status) {
	if status != exec.Done && status != exec.Gone {
		e.face.Fail(e.face.RunError(e.queueOf(t).run, t.op.Message(), status))
		return
	}
	switch {
	case status == exec.Gone:
		d, _ := e.face.Departure(t.peer)
		e.lost(t, d.Cause)
	case len(t.segments) > 0:
		if err := e.begin(t); err != nil {
			e.face.Fail(err)
		}
	default:
		e.dequeue(t)
		e.trim(e.queueOf(t), 0)
		e.complete(t.bulk)
	}
}
