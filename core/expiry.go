package core

import (
	"slices"
	"time"

	"github.com/goccl/goccl/core/exec"
)

// Sends and receives that wait for a peer end at their deadlines, which mostly are far off. One
// timer serves all of them: a timer of each one's own, started and stopped with it, keeps Go's
// threads awake, which takes longer than a small send.

// deadline is the next of all sends and receives that wait.
type deadline struct {
	alarm *time.Timer   // calls expireLate
	due   time.Duration // when; 0: never
}

// expect has a send or receive that waits from now on end at its deadline. It needs p.mu.
func (p *pointToPoint) expect(deadline time.Duration) {
	if p.failure != nil || p.deadline.due != 0 && p.deadline.due <= deadline {
		return
	}
	p.deadline.due = deadline
	if wait := deadline - exec.Now(); p.deadline.alarm == nil {
		p.deadline.alarm = time.AfterFunc(wait, p.expireLate)
	} else {
		p.deadline.alarm.Reset(wait)
	}
}

// expireLate ends what is late, and has itself called again for the rest.
func (p *pointToPoint) expireLate() {
	now, next := exec.Now(), time.Duration(0)
	var late []func()
	check := func(w *Work, expire func()) {
		switch {
		case w.Deadline() <= now:
			late = append(late, expire)
		case next == 0 || w.Deadline() < next:
			next = w.Deadline()
		}
	}
	p.mu.Lock()
	for id, s := range p.offers {
		check(s.work, func() { p.expire(id, s.peer) })
	}
	for _, r := range p.match.posted {
		check(r.work, func() { p.expireReceive(r) })
	}
	for r := range p.filling {
		check(r.work, func() { p.expireReceive(r) })
	}
	for _, g := range p.linkSends.given {
		if g.lone {
			check(g.send.work, func() { p.expireGift(g) })
		}
	}
	for _, a := range p.match.unexpected {
		if a.local != nil {
			check(a.local.work, func() { p.expireLocal(a) })
		}
	}
	p.deadline.due = 0
	if next != 0 {
		p.expect(next)
	}
	p.mu.Unlock()
	for _, expire := range late {
		expire()
	}
}

// expire fails the communicator because an offer was not accepted, or its data not read, in time:
// the peer may still come to it later.
func (p *pointToPoint) expire(id uint64, peer int) {
	p.collect()
	s := p.takeOffer(id, peer)
	if s == nil {
		return
	}
	why := "no receive matched it"
	if p.peers[peer].wire.gets(s.bytes) {
		why += ", or its data was not read"
	}
	p.c.fail(p.late(s.work, s.op, peer, why), true)
	s.work.End(p.c.failed())
}

// expireLocal fails a send of this rank to itself that no receive matched.
func (p *pointToPoint) expireLocal(a *arrival) {
	p.mu.Lock()
	i := slices.Index(p.match.unexpected, a)
	if i >= 0 {
		p.match.unexpected = slices.Delete(p.match.unexpected, i, i+1)
	}
	p.mu.Unlock()
	if i >= 0 {
		a.local.work.End(p.late(a.local.work, a.local.op, p.c.rank, "no receive of this rank matched it"))
	}
}

// expireReceive fails a receive that nothing matched. The communicator goes on: no peer knows of
// it. It does not where half of the data has come.
func (p *pointToPoint) expireReceive(r *receive) {
	p.collect()
	p.mu.Lock()
	mine := p.match.cancel(r)
	half := p.filling[r]
	r.expired = half
	p.mu.Unlock()
	if half {
		p.c.fail(p.late(r.work, r.op, r.from, "the rest of the data did not come from "+
			""+p.c.members.Names(r.from)), true)
	}
	if !mine {
		return
	}
	r.work.End(p.late(r.work, r.op, r.source, "no send matched it"))
}

// expireGift fails the communicator because the peer has not taken in time what it has accepted.
func (p *pointToPoint) expireGift(g *gift) {
	p.mu.Lock()
	late := p.linkSends.given[g.offer] == g
	p.mu.Unlock()
	if late {
		s := g.send
		p.c.fail(p.late(s.work, s.op, s.peer, "its receiver has not taken all of it"), true)
	}
}
