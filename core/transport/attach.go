package transport

import (
	"crypto/hmac"
	"fmt"
	"slices"
)

// pendingAttach is an attach of the peer to a group that is not here yet.
type pendingAttach struct {
	h    Header
	mac  [macSize]byte
	fds  []int
	next bool // its group may have come
}

func (l *link) onAttach() error {
	in := &l.reading
	h := in.h
	p := &pendingAttach{h: h, mac: [macSize]byte(in.scratch)}
	if n := int(h.Flags); n > 0 { // so many descriptors come with it
		switch {
		case len(in.fds) > 0 && in.fds[0] == lostRights:
			n = 1 // in place of them all
		case len(in.fds) < n:
			return violation("an attach without the descriptors that it speaks of")
		default:
			p.fds = slices.Clone(in.fds[:n])
		}
		in.fds = slices.Delete(in.fds, 0, n)
	}
	key := pairKey{h.Job, h.Group, h.Src, h.Dst}
	l.mu.Lock()
	twice := l.attachs[key] != nil
	l.mu.Unlock()
	if twice {
		closeFDs(p.fds)
		return violation("rank %d of group %x is attached twice to rank %d", h.Src, h.Group, h.Dst)
	}
	p.next = true
	l.mu.Lock()
	l.pending = append(l.pending, p)
	full := len(l.pending) > maxPending
	l.mu.Unlock()
	if full {
		return violation("more than %d attaches to groups that are not known here", maxPending)
	}
	l.takePending()
	return nil
}

// tryAttach answers an attach, or tells that its group is not here yet.
func (l *link) tryAttach(p *pendingAttach) bool {
	h := &p.h
	g, left, _ := l.e.find(rankKey{h.Job, h.Group, int(h.Dst)}, h.Epoch)
	if g == nil && !left {
		return false
	}
	fds := p.fds
	defer func() { closeFDs(fds) }()
	answer := Header{Type: typeBye, Job: h.Job, Group: h.Group, Epoch: h.Epoch,
		Src: h.Dst, Dst: h.Src}
	if left { // the peer may have said more before it hears that
		l.mu.Lock()
		l.attachs[pairKey{h.Job, h.Group, h.Src, h.Dst}] = &inbound{epoch: h.Epoch}
		l.mu.Unlock()
		l.enqueue(queued{h: answer})
		return true
	}
	var raw [headerSize]byte
	h.put(&raw)
	want := attachMAC(g.secret, &l.nonces, l.key.process, &raw)
	var m *member
	if h.Src < uint32(len(g.members)) {
		m = g.members[h.Src]
	}
	why := ""
	switch {
	case !hmac.Equal(want[:], p.mac[:]):
		why = "its proof of the group's secret is wrong"
	case m == nil || m.addr.Process != l.key.process || m.kind != l.key.kind:
		why = fmt.Sprintf("rank %d is not at that process", h.Src)
	}
	if why != "" {
		l.e.refuse(l.conn.remote(), fmt.Errorf("an attach to group %s: %s", g.name, why))
		answer.Type = typeRefused
		l.enqueue(queued{h: answer})
		return true
	}
	l.mu.Lock()
	closing := l.closing
	l.attachs[pairKey{h.Job, h.Group, h.Src, h.Dst}] = &inbound{epoch: h.Epoch, group: g, from: m}
	l.mu.Unlock()
	if closing {
		return true // the peer sees the end of this link, and makes another
	}
	// The answer in kind, unless it has been given already: before the handler knows, so that a
	// Detach meanwhile finds whom to say BYE to.
	if err := g.attachOver(l, m); err != nil {
		m.down(err)
		l.enqueue(queued{h: answer})
		return true
	}
	if !m.arrive(l, func(to Handler) {
		theirs := fds
		fds = nil
		to.PeerAttached(m.rank, theirs)
	}) {
		l.enqueue(queued{h: answer})
	}
	return true
}

// claim has the attaches looked at that may have waited for a group.
func (l *link) claim(k rankKey) {
	l.mu.Lock()
	found := false
	for _, p := range l.pending {
		if p.h.Job == k.job && p.h.Group == k.group && int(p.h.Dst) == k.rank {
			p.next, found = true, true
		}
	}
	l.mu.Unlock()
	if found {
		l.reading.claimed.Store(true)
		l.e.spawn("claim", func() {
			l.reading.lock.Lock()
			l.e.poller.watchReads(l, false)
			l.catchUp()
		})
	}
}

// takePending tries the attaches whose group may have come. Only the reader adds and removes them;
// a claim that comes while one is tried has it tried again.
func (l *link) takePending() {
	l.mu.Lock()
	var ready []*pendingAttach
	for _, p := range l.pending {
		if p.next {
			p.next = false
			ready = append(ready, p)
		}
	}
	l.mu.Unlock()
	for _, p := range ready {
		if l.tryAttach(p) {
			l.mu.Lock()
			l.pending = slices.DeleteFunc(l.pending, func(o *pendingAttach) bool { return o == p })
			l.mu.Unlock()
		}
	}
}

func (l *link) onRefused(h *Header) {
	if m := l.outOf(h); m != nil {
		m.refused(l)
	}
}

// outOf finds the member that this side has attached to, from the answer's header.
func (l *link) outOf(h *Header) *member {
	l.mu.Lock()
	defer l.mu.Unlock()
	m := l.outs[pairKey{h.Job, h.Group, h.Dst, h.Src}]
	if m != nil && m.g.epoch != h.Epoch {
		return nil
	}
	return m
}

// onBye undoes an attach of the peer, or answers one of this side that has come too late.
func (l *link) onBye(h *Header) {
	key := pairKey{h.Job, h.Group, h.Src, h.Dst}
	m := l.outOf(h)
	l.mu.Lock()
	if a := l.attachs[key]; a != nil && a.epoch == h.Epoch {
		delete(l.attachs, key)
		if a.from != nil {
			m = a.from
		}
	}
	l.pending = slices.DeleteFunc(l.pending, func(p *pendingAttach) bool {
		gone := p.h.Epoch == h.Epoch && pairKey{p.h.Job, p.h.Group, p.h.Src, p.h.Dst} == key
		if gone {
			closeFDs(p.fds)
		}
		return gone
	})
	l.restIfUnused()
	l.mu.Unlock()
	if m != nil {
		m.left(l)
	}
}
