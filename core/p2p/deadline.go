package p2p

import (
	"slices"
	"time"

	"github.com/goccl/goccl/core/exec"
	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/work"
)

// Sends and receives that wait for a peer end at their deadlines, which mostly are far off. One
// timer serves all of them: a timer of each one's own, started and stopped with it, keeps Go's
// threads awake, which takes longer than a small send.

// deadline is the next of all sends and receives that wait.
type deadline struct {
	alarm *time.Timer   // calls expireLate
	due   time.Duration // when; 0: never
}

// expect has a send or receive that waits from now on end at its deadline. It needs e.mu.
func (e *Engine) expect(deadline time.Duration) {
	if e.failure != nil || e.deadline.due != 0 && e.deadline.due <= deadline {
		return
	}
	e.deadline.due = deadline
	if wait := deadline - exec.Now(); e.deadline.alarm == nil {
		e.deadline.alarm = time.AfterFunc(wait, e.expireLate)
	} else {
		e.deadline.alarm.Reset(wait)
	}
}

// expireLate ends what is late, and has itself called again for the rest.
func (e *Engine) expireLate() { e.expireBy(exec.Now()) }

// expireBy ends what was to end by a time. A receive that nothing has met ends alone, for no peer
// knows of it, as does what this rank sends to itself. What is late of a bulk fails the
// communicator: its peer may still come to it.
func (e *Engine) expireBy(now time.Duration) {
	if !e.anyLate(now) {
		return
	}
	e.collect() // what has come in time
	var ended []ending
	var failure *fault.Error
	e.mu.Lock()
	e.match.posted = slices.DeleteFunc(e.match.posted, func(r *receive) bool {
		late := r.work.Deadline() <= now
		if late {
			ended = append(ended, ending{&r.bulk,
				e.late(r.work, r.op, r.source, "no send matched it")})
		}
		return late
	})
	e.match.unexpected = slices.DeleteFunc(e.match.unexpected, func(a *arrival) bool {
		late := a.local != nil && a.local.work.Deadline() <= now
		if late {
			s := a.local
			ended = append(ended, ending{&s.bulk,
				e.late(s.work, s.op, e.Rank, "no receive of this rank matched it")})
		}
		return late
	})
	for b := range e.all() {
		if b.work.Deadline() > now {
			continue
		}
		if err := e.overdue(b); e.to(b, late) {
			failure = err
		}
	}
	e.mu.Unlock()
	for _, x := range ended {
		e.over(x.bulk, x.err)
	}
	if failure != nil {
		e.face.Fail(failure)
	}
}

// anyLate tells whether something was to end by a time. If so, what else waits is to be looked at
// later.
func (e *Engine) anyLate(now time.Duration) (any bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	next := time.Duration(0)
	check := func(w *work.Work) {
		switch {
		case w.Deadline() <= now:
			any = true
		case next == 0 || w.Deadline() < next:
			next = w.Deadline()
		}
	}
	for b := range e.all() {
		check(b.work)
	}
	for _, r := range e.match.posted {
		check(r.work)
	}
	for _, a := range e.match.unexpected {
		if a.local != nil {
			check(a.local.work)
		}
	}
	e.deadline.due = 0
	if next != 0 {
		e.expect(next)
	}
	return any
}
