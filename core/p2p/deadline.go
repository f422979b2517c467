package p2p

import (
	"slices"
	"time"

	"github.com/goccl/goccl/core/exec"
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
func (e *Engine) expireLate() {
	now, next := exec.Now(), time.Duration(0)
	var late []func()
	check := func(w *work.Work, expire func()) {
		switch {
		case w.Deadline() <= now:
			late = append(late, expire)
		case next == 0 || w.Deadline() < next:
			next = w.Deadline()
		}
	}
	e.mu.Lock()
	for id, s := range e.offers {
		check(s.work, func() { e.expire(id, s.peer) })
	}
	for _, r := range e.match.posted {
		check(r.work, func() { e.expireReceive(r) })
	}
	for r := range e.filling {
		check(r.work, func() { e.expireReceive(r) })
	}
	for _, g := range e.linkSends.given {
		if g.lone {
			check(g.send.work, func() { e.expireGift(g) })
		}
	}
	for _, a := range e.match.unexpected {
		if a.local != nil {
			check(a.local.work, func() { e.expireLocal(a) })
		}
	}
	e.deadline.due = 0
	if next != 0 {
		e.expect(next)
	}
	e.mu.Unlock()
	for _, expire := range late {
		expire()
	}
}

// expire fails the communicator because an offer was not accepted, or its data not read, in time:
// the peer may still come to it later.
func (e *Engine) expire(id uint64, peer int) {
	e.collect()
	s := e.takeOffer(id, peer)
	if s == nil {
		return
	}
	why := "no receive matched it"
	if e.peers[peer].wire.gets(s.bytes) {
		why += ", or its data was not read"
	}
	e.face.Fail(e.late(s.work, s.op, peer, why))
	s.work.End(e.face.Failed())
}

// expireLocal fails a send of this rank to itself that no receive matched.
func (e *Engine) expireLocal(a *arrival) {
	e.mu.Lock()
	i := slices.Index(e.match.unexpected, a)
	if i >= 0 {
		e.match.unexpected = slices.Delete(e.match.unexpected, i, i+1)
	}
	e.mu.Unlock()
	if i >= 0 {
		a.local.work.End(e.late(a.local.work, a.local.op, e.Rank, "no receive of this rank matched it"))
	}
}

// expireReceive fails a receive that nothing matched. The communicator goes on: no peer knows of
// it. It does not where half of the data has come.
func (e *Engine) expireReceive(r *receive) {
	e.collect()
	e.mu.Lock()
	mine := e.match.cancel(r)
	half := e.filling[r]
	r.expired = half
	e.mu.Unlock()
	if half {
		e.face.Fail(e.late(r.work, r.op, r.from,
			"the rest of the data did not come from "+e.Members.Names(r.from)))
	}
	if !mine {
		return
	}
	r.work.End(e.late(r.work, r.op, r.source, "no send matched it"))
}

// expireGift fails the communicator because the peer has not taken in time what it has accepted.
func (e *Engine) expireGift(g *gift) {
	e.mu.Lock()
	late := e.linkSends.given[g.offer] == g
	e.mu.Unlock()
	if late {
		s := g.send
		e.face.Fail(e.late(s.work, s.op, s.peer, "its receiver has not taken all of it"))
	}
}
