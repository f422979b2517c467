package epoch

import (
	"cmp"
	"fmt"
	"time"

	"github.com/goccl/goccl/core/call"
	"github.com/goccl/goccl/core/collective"
	"github.com/goccl/goccl/core/exec"
	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/membership"
	"github.com/goccl/goccl/core/order"
	"github.com/goccl/goccl/core/plan"
	"github.com/goccl/goccl/core/trace"
	"github.com/goccl/goccl/core/work"
)

// runner runs the epoch's queue: it carries out what the engine's outcomes mean. It is the
// work.Engine of the queue, and belongs to the holder of the queue's token.
type runner struct {
	e         *Epoch
	engine    *collective.Engine
	part      int           // of the head
	announced time.Duration // the wait that peers have been told of: since when
}

// announceAfter is how long a rank waits before it tells its peers what it waits in, so that
// different collectives are found out even where neither rank sends.
const announceAfter = 200 * time.Millisecond

// Rest implements work.Engine.
func (r *runner) Rest() {
	r.e.mu.Lock()
	defer r.e.mu.Unlock()
	r.e.openFastPath()
}

// Run implements work.Engine.
func (r *runner) Run(w *work.Work, until time.Duration) {
	q := r.e.queue
	r.engine.Run().Waited(w != nil && until != exec.Spin)
	for {
		if w != nil && !q.Has(w) {
			return
		}
		head := q.Head()
		if head == nil {
			return
		}
		part := &head.Parts()[r.part]
		finished, err := r.advance(head, part, until)
		switch {
		case !finished:
			return
		case err != nil:
			r.end(head, part, err)
			continue
		}
		r.e.traceEnd(part, nil)
		r.e.keepResult(part)
		r.note(part, trace.Ended)
		r.part++
		if r.part == len(head.Parts()) {
			q.Pop() // before the work ends: its waiter may destroy the communicator
			r.part = 0
		}
		head.End(nil)
	}
}

// note notes that a collective has ended.
func (r *runner) note(p *work.Part, s trace.State) {
	end := trace.Ending{State: s, Algorithm: r.algorithm(p.Message), Bytes: p.Operation.Total()}
	if plan.Collective(p.Message.Collective) != plan.MonitoredBarrier {
		end.Transports = r.engine.Transports()
	}
	r.e.fast.Trace().End(&p.Message, end)
}

// end ends the head with a failed part. No later part can run: the epoch has failed.
func (r *runner) end(head *work.Work, p *work.Part, cause *fault.Error) {
	begun := r.engine.Begun() || p.Begun != nil
	r.engine.Abandon()
	err := r.e.undone(p, begun, cause)
	r.e.traceEnd(p, err)
	r.e.retire(p.Operation)
	r.e.mu.Lock()
	r.e.leftUndone(p.Message.Sequence)
	r.e.mu.Unlock()
	r.e.queue.Pop()
	left := head.Parts()[r.part:]
	r.part = 0
	for i := range left {
		r.note(&left[i], trace.Failed)
		head.End(err)
	}
}

// advance carries the head's present part on. It reports whether the part has finished, and how.
func (r *runner) advance(
	w *work.Work, p *work.Part, until time.Duration,
) (finished bool, failure *fault.Error) {
	e := r.e
	if err := e.Failure(); err != nil {
		return true, err
	}
	if !r.engine.Begun() {
		e.fast.Trace().Begin(p.Message.Sequence)
	}
	if p.Operation.Collective == plan.MonitoredBarrier {
		return e.monitored.advance(w, p, until)
	}
	if !r.engine.Begun() {
		e.step(membership.Needs{Message: p.Message})
		if err := e.Failure(); err != nil {
			return true, err
		}
	}
	for {
		o := r.engine.Advance(w, p, min(until, w.Deadline(), exec.Now()+work.Slice))
		now := exec.Now()
		if o.Input != nil {
			e.fast.Trace().SetUnfed(p.Message.Sequence)
		} else if e.fast.Trace().Unfed() != 0 {
			e.fast.Trace().SetUnfed(0)
		}
		switch {
		case o.Status == collective.Done:
			return true, nil
		case o.Status == collective.Failed:
			return true, e.FailWith(r.failure(p, &o))
		case now >= w.Deadline():
			return true, e.FailWith(e.timeoutError(w, p.Message, o.Input))
		}
		if r.announced != o.Since && now-o.Since >= announceAfter {
			r.announced = o.Since
			e.announce(p.Message)
		}
		if now >= until {
			return false, nil
		}
	}
}

// failure returns why a collective has failed.
func (r *runner) failure(p *work.Part, o *collective.Outcome) *fault.Error {
	m, e := p.Message, r.e
	switch {
	case o.Err != nil:
		return o.Err
	case o.Unreachable != nil:
		return e.peerError(o.Peer, o.Unreachable)
	case o.Run == exec.InputFailed:
		return e.Members.Errorf(fault.ErrSystem, "%s: an input of %s does not come: %s",
			r.title(m, true), e.Members.Names(e.Rank),
			cmp.Or(r.engine.Run().FeedError(), "no reason is given")).
			During(m.Name(), m.Sequence).Blaming(e.Rank)
	}
	return e.runError(r.engine.Run(), m, o.Run)
}

// algorithm returns the algorithm of a collective that has begun. A monitored barrier has none.
func (r *runner) algorithm(m plan.Message) plan.Algorithm {
	if plan.Collective(m.Collective) == plan.MonitoredBarrier {
		return plan.PointToPoint
	}
	return r.engine.Algorithm()
}

// title names a collective and, if it has begun and there is a choice, its algorithm.
func (r *runner) title(m plan.Message, begun bool) string {
	text := fmt.Sprintf("#%d %s", m.Sequence, call.Describe(m))
	c := plan.Collective(m.Collective)
	if begun && (len(plan.Algorithms(c)) > 1 || c == plan.Custom) {
		text += " by " + r.e.programs.algorithm(r.algorithm(m))
	}
	return text
}

// runError returns why the run of a collective, whose message is m, cannot go on.
func (e *Epoch) runError(run *exec.Run, m plan.Message, status exec.Status) *fault.Error {
	peer := run.Peer()
	switch status {
	case exec.Stopped:
		if err := e.Failure(); err != nil {
			return err
		}
		return e.Members.Errorf(fault.ErrInternal, "it was stopped without a cause")
	case exec.Gone:
		d, _ := e.departure(peer)
		return d.MissedBy(m)
	case exec.Violation:
		return e.Members.Errorf(fault.ErrInternal, "from %s: %v: it exposes memory that it does not "+
			"have, or has sent less than it says", e.Members.Names(peer), exec.ErrProtocol)
	case exec.Unreadable:
		return e.Members.Errorf(fault.ErrSystem, "%s: reading the memory of %s: %v; "+
			"GOCCL_THRESHOLDS=get_min=0, on all ranks, has everything copied through "+
			"shared memory", e.runner.title(m, true), e.Members.Names(peer), run.GetError()).
			During(m.Name(), m.Sequence)
	case exec.Mismatch:
		var sent order.Traffic
		var seen plan.Message
		seen, sent.Bytes, sent.Total = run.Seen()
		return e.mismatchError(m, run, peer, seen, sent)
	}
	return e.Members.Errorf(fault.ErrInternal, "the executor answered %d", status)
}

// undone returns the error of a collective that a failure has ended: the cause, which collective it
// was, and what has become of its buffers.
func (e *Epoch) undone(p *work.Part, begun bool, cause *fault.Error) *fault.Error {
	m := p.Message
	return cause.During(m.Name(), m.Sequence).
		Ending(e.runner.title(m, begun), p.Operation.Aftermath(e.Rank, begun))
}
