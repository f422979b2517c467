package core

import (
	"slices"
	"time"

	"github.com/goccl/goccl/core/exec"
)

// Sends and receives that wait for a peer end at their deadlines, which mostly are far off. One timer serves all of them: a timer of each one's own, started
// and stopped with it, keeps Go's threads awake, which takes longer than a small send.

// expect has a send or receive that waits from now on end at its deadline. It needs p.mu.
func (p *pointToPoint) expect(deadline time.Duration) {
	if p.failure != nil || p.due != 0 && p.due <= deadline {
		return
	}
	p.due = deadline
	if wait := deadline - exec.Now(); p.alarm == nil {
		p.alarm = time.AfterFunc(wait, p.expireLate)
	} else {
		p.alarm.Reset(wait)
	}
}

// expireLate ends what is late, and has itself called again for the rest.
func (p *pointToPoint) expireLate() {
	now, next := exec.Now(), time.Duration(0)
	var late []func()
	check := func(w *Work, expire func()) {
		switch {
		case w.deadline <= now:
			late = append(late, expire)
		case next == 0 || w.deadline < next:
			next = w.deadline
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
	for _, g := range p.given {
		if g.lone {
			check(g.send.work, func() { p.expireGift(g) })
		}
	}
	for _, a := range p.match.unexpected {
		if a.local != nil {
			check(a.local.work, func() { p.expireLocal(a) })
		}
	}
	p.due = 0
	if next != 0 {
		p.expect(next)
	}
	p.mu.Unlock()
	for _, expire := range late {
		expire()
	}
}

// expire fails the communicator because an offer was not accepted, or its data not read, in time: the peer may still come to it
// later.
func (p *pointToPoint) expire(id uint64, peer int) {
	p.collect()
	s := p.takeOffer(id, peer)
	if s == nil {
		return
	}
	why := "no receive matched it"
	if p.c.byMail(peer) && p.gets(peer, s.bytes) {
		why += ", or its data was not read"
	}
	p.c.fail(errorf(ErrTimeout, "%s: %s: timeout after %v: %s", p.c.title(), p.title(s.op), s.work.timeout, why), true)
	s.work.end(p.c.failed())
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
		a.local.work.end(errorf(ErrTimeout, "%s: send of %d bytes with tag %d to itself: timeout after %v: no receive matched it",
			p.c.title(), a.bytes, a.tag, a.local.work.timeout))
	}
}

// expireReceive fails a receive that nothing matched. The communicator goes on: no peer knows of it. It
// does not where half of the data has come.
func (p *pointToPoint) expireReceive(r *receive) {
	p.collect()
	p.mu.Lock()
	mine := p.match.cancel(r)
	half := p.filling[r]
	r.expired = half
	p.mu.Unlock()
	if half {
		p.c.fail(errorf(ErrTimeout, "%s: receive of %d bytes with tag %d from %s: timeout after %v: the rest of the data did not come",
			p.c.title(), r.bytes, r.op.Tag, p.c.rankName(r.from), r.work.timeout), true)
	}
	if !mine {
		return
	}
	r.work.end(errorf(ErrTimeout, "%s: %s: timeout after %v: no send matched it", p.c.title(), p.title(r.op), r.work.timeout))
}

// expireGift fails the communicator because the peer has not taken in time what it has accepted.
func (p *pointToPoint) expireGift(g *gift) {
	p.mu.Lock()
	late := p.given[g.offer] == g
	p.mu.Unlock()
	if late {
		s := g.send
		p.c.fail(errorf(ErrTimeout, "%s: %s: timeout after %v: its receiver has not taken all of it", p.c.title(), p.title(s.op), s.work.timeout), true)
	}
}
