package transport

import (
	"context"
	"crypto/hmac"
	"errors"
	"fmt"
	"math"
	"sync"

	"github.com/goccl/goccl/core/address"
)

// inbox holds what ranks of the same endpoint have sent to a group. A goroutine that lives while
// there is something hands it to the handler: never the sender, which may hold locks of its own.
type inbox struct {
	mu       sync.Mutex // guards what follows
	items    []item
	bytes    int
	draining bool          // the goroutine is there
	space    chan struct{} // made by a sender that waits for room
}

type itemKind uint8

const (
	itemFrame itemKind = iota
	itemAttach
	itemLeft
)

type item struct {
	kind    itemKind
	src     int
	h       Header
	payload []byte
	fds     []int // of an attach
}

// post adds an item if no more than so many bytes are there with it, or none were before. It tells
// whether it did, or that the group is being left.
func (b *inbox) post(g *Group, it item, most int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if g.leaving() {
		if it.kind == itemAttach {
			closeFDs(it.fds)
		}
		return true
	}
	if b.bytes > 0 && b.bytes+len(it.payload)+headerSize > most {
		return false
	}
	b.items = append(b.items, it)
	b.bytes += len(it.payload) + headerSize
	if !b.draining {
		b.draining = g.e.spawn("inbox", func() { b.drain(g) })
	}
	return true
}

// send posts a frame, and waits for room.
func (b *inbox) send(ctx context.Context, g *Group, it item) error {
	for {
		b.mu.Lock()
		if b.space == nil {
			b.space = make(chan struct{})
		}
		space := b.space
		b.mu.Unlock()
		if b.post(g, it, maxInbox) {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-space:
		}
	}
}

// wake lets the inbox of a group that is being left be emptied.
func (b *inbox) wake(g *Group) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.draining && len(b.items) > 0 {
		b.draining = g.e.spawn("inbox", func() { b.drain(g) })
	}
	b.room()
}

// room needs b.mu.
func (b *inbox) room() {
	if b.space != nil {
		close(b.space)
		b.space = nil
	}
}

func (b *inbox) drain(g *Group) {
	for {
		b.mu.Lock()
		if len(b.items) == 0 {
			b.items, b.draining = nil, false
			b.mu.Unlock()
			return
		}
		it := b.items[0]
		b.items[0] = item{}
		b.items = b.items[1:]
		b.bytes -= len(it.payload) + headerSize
		b.room()
		b.mu.Unlock()
		g.handle(it)
	}
}

// handle hands an item to the handler.
func (g *Group) handle(it item) {
	m := g.members[it.src]
	switch it.kind {
	case itemAttach:
		m.events.Lock()
		defer m.events.Unlock()
		if m.over.Load() || !g.call(func(h Handler) { h.PeerAttached(it.src, it.fds) }) {
			closeFDs(it.fds)
			return
		}
		m.mu.Lock()
		if m.err == nil {
			m.ready.Store(&route{local: m.local})
			m.notify()
		}
		m.mu.Unlock()
		g.repeatNotice(m)
	case itemLeft:
		m.leftNow()
	case itemFrame:
		if m.over.Load() || !g.enter() {
			return
		}
		if err := g.deliver(it); err != nil {
			m.down(err)
		}
	}
}

// deliver hands a frame to the handler. The caller has entered the group.
func (g *Group) deliver(it item) error {
	defer g.exit()
	if it.h.Type != Data {
		g.handler.Control(it.src, it.h, it.payload)
		return nil
	}
	head, body, err := g.handler.Slot(it.src, it.h)
	if err != nil {
		return err
	}
	if len(head)+len(body) != len(it.payload) {
		g.handler.Dropped(it.src, it.h)
		return fmt.Errorf("internal error: a slot of %d bytes for a payload of %d",
			len(head)+len(body), len(it.payload))
	}
	copy(body, it.payload[copy(head, it.payload):])
	g.handler.Arrived(it.src, it.h)
	return nil
}

// join attaches to a rank of the same endpoint, in both directions. It waits for it to come.
func (m *member) join(ctx context.Context) error {
	g := m.g
	k := rankKey{g.key.job, g.key.group, m.rank}
	for {
		peer, left, wait := g.e.find(k, g.epoch)
		if peer != nil {
			return g.joinLocal(m, peer)
		}
		if left {
			return ErrPeerLeft
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-wait:
		}
	}
}

func (g *Group) joinLocal(m *member, peer *Group) error {
	g.e.loops.Lock()
	defer g.e.loops.Unlock()
	if g.key.rank >= len(peer.members) || peer.members[g.key.rank] == nil {
		return fmt.Errorf("%w: the peer does not count rank %d among the group", ErrRefused,
			g.key.rank)
	}
	back := peer.members[g.key.rank]
	if !hmac.Equal(g.secret, peer.secret) {
		return fmt.Errorf("%w: the secrets of group %s differ", ErrRefused, g.name)
	}
	if back.kind != address.Mem {
		return fmt.Errorf("%w: the peer wants to be joined over %q", ErrRefused, back.kind)
	}
	m.mu.Lock()
	joined := m.local != nil
	m.mu.Unlock()
	if joined {
		return nil
	}
	mine, err := g.dupShare()
	if err != nil {
		return err
	}
	theirs, err := peer.dupShare()
	if err != nil {
		closeFDs(mine)
		return err
	}
	// Where one side is being left at this moment, its part finds the other in local, or this
	// finds its error.
	ends := []struct {
		m    *member
		peer *Group
		fds  []int
	}{{back, g, mine}, {m, peer, theirs}}
	for _, s := range ends {
		s.m.mu.Lock()
		s.m.local = s.peer
		s.m.mu.Unlock()
	}
	for _, s := range ends {
		s.m.g.inbox.post(s.m.g, item{kind: itemAttach, src: s.m.rank, fds: s.fds}, math.MaxInt)
	}
	for i, s := range ends {
		s.m.mu.Lock()
		gone := errors.Is(s.m.err, ErrClosed)
		s.m.mu.Unlock()
		if gone {
			other := ends[1-i]
			other.m.g.inbox.post(other.m.g, item{kind: itemLeft, src: other.m.rank}, math.MaxInt)
		}
	}
	return nil
}
