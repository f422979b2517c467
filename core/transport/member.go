package transport

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goccl/goccl/core/address"
)

// member is what one rank knows of another.
type member struct {
	g    *Group
	rank int
	addr address.Address
	kind string

	ready atomic.Pointer[route] // set while frames can be sent
	over  atomic.Bool           // err is set: the handler hears nothing more of this peer

	events sync.Mutex // held while the handler is told of the peer's coming or going; before mu

	mu      sync.Mutex    // guards what follows
	changed chan struct{} // closed and made anew at every change
	err     error         // final: down, left, refused or closed
	out     *link         // this side's attach goes over it
	written *link         // this side's attach has been written to it: frames may follow
	in      *link         // the peer's attach has come over it, and the handler knows
	local   *Group        // mem: the peer; joined both ways
}

// route is how frames reach a member: over a link, or into the inbox of a group of this endpoint.
type route struct {
	link  *link
	local *Group
}

// connect makes a route to the member, if there is none. It leaves it to the peer to dial for a
// while, where there is no link to its process.
func (m *member) connect(ctx context.Context, leave time.Duration) (*route, error) {
	if r := m.ready.Load(); r != nil {
		return r, nil
	}
	g := m.g
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(g.ctx, func() { cancel(ErrClosed) })()
	g.e.poller.StartProgress()
	defer g.e.poller.StopProgress()
	for pause := time.Duration(0); ; pause = min(2*pause+5*time.Millisecond, 500*time.Millisecond) {
		// First the state, then what it lacks.
		m.mu.Lock()
		err, changed, waiting := m.err, m.changed, m.out != nil || m.local != nil
		m.mu.Unlock()
		r := m.ready.Load()
		switch {
		case err != nil:
			return nil, err
		case r != nil:
			return r, nil
		case waiting:
			select {
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			case <-changed:
			}
			continue
		}
		if leave > 0 && m.kind != address.Mem && !g.e.linked(m) {
			t := time.NewTimer(leave)
			select {
			case <-ctx.Done():
				t.Stop()
				return nil, context.Cause(ctx)
			case <-changed:
				t.Stop()
				continue
			case <-t.C:
				leave = 0
			}
		}
		if pause > 0 { // a link has ended meanwhile
			if err := sleep(ctx, pause); err != nil {
				return nil, err
			}
		}
		if m.kind == address.Mem {
			err = m.join(ctx)
		} else {
			var l *link
			if l, err = g.e.reach(ctx, g, m); err == nil {
				err = g.attachOver(l, m)
			}
		}
		switch {
		case errors.Is(err, ErrPeerDown):
			// The handler is told by another goroutine: the caller may hold what it needs.
			g.e.spawn("report", func() { m.down(err) })
			return nil, m.text(err)
		case errors.Is(err, ErrPeerLeft):
			g.e.spawn("report", func() { m.leftNow() })
			return nil, m.text(err)
		case err != nil:
			return nil, m.text(err)
		}
	}
}

// text adds the rank to an error.
func (m *member) text(err error) error { return &PeerError{m, err} }

// notify needs m.mu.
func (m *member) notify() {
	close(m.changed)
	m.changed = make(chan struct{})
}

// end makes an error final, once. It tells whether it was the first.
func (m *member) end(err error) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.err != nil {
		return false
	}
	m.err = m.text(err)
	m.over.Store(true)
	m.ready.Store(nil)
	m.notify()
	return true
}

// down ends the member and tells the handler.
func (m *member) down(err error) {
	if m == nil {
		return
	}
	if !errors.Is(err, ErrPeerDown) {
		err = down(err)
	}
	m.events.Lock()
	defer m.events.Unlock()
	if m.end(err) {
		m.g.call(func(h Handler) { h.PeerDown(m.rank, m.err) })
	}
}

// downOn ends the member because of a link's end.
func (m *member) downOn(l *link, err error) {
	m.mu.Lock()
	mine := m.in == l
	m.mu.Unlock()
	if mine {
		m.down(err)
	}
}

// lost says that a link has ended over which this side has attached: if the peer had not, connect
// tries anew.
func (m *member) lost(l *link) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.out == l {
		m.out = nil
		m.notify()
	}
}

// left takes a BYE.
func (m *member) left(l *link) {
	m.mu.Lock()
	mine := m.in == l || m.in == nil && m.out == l
	m.mu.Unlock()
	if mine {
		m.leftNow()
	}
}

func (m *member) leftNow() {
	m.events.Lock()
	defer m.events.Unlock()
	if m.end(ErrPeerLeft) {
		m.g.call(func(h Handler) { h.PeerLeft(m.rank) })
	}
}

// refused takes the peer's refusal of this side's proof.
func (m *member) refused(l *link) {
	m.mu.Lock()
	mine := m.out == l
	m.mu.Unlock()
	if mine {
		m.end(fmt.Errorf("%w: the peer does not accept this side's proof of the group's secret",
			ErrRefused))
	}
}

// arrive takes the peer's attach. It tells whether it counts: not where the peer has been lost
// already, or this side has left.
func (m *member) arrive(l *link, tell func(Handler)) bool {
	m.events.Lock()
	defer m.events.Unlock()
	m.mu.Lock()
	ok := m.err == nil && m.in == nil
	m.mu.Unlock()
	if !ok || !m.g.call(tell) {
		return false
	}
	m.mu.Lock()
	m.in = l
	m.openRoute()
	m.mu.Unlock()
	m.g.repeatNotice(m)
	return true
}

// openRoute opens the route when both directions are attached over one link. It needs m.mu.
func (m *member) openRoute() {
	if m.err == nil && m.in != nil && m.in == m.written {
		m.ready.Store(&route{link: m.in})
		m.notify()
	}
}

// attachOver sends this side's attach over a link, once. Where the link takes none any more it does
// nothing: the caller looks at the state again.
func (g *Group) attachOver(l *link, m *member) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.err != nil || m.out == l {
		return nil
	}
	// made for another group
	if m.kind == address.Verbs && m.addr.DemandsVerbs() && l.started.Load() &&
		l.wire.kind() != address.Verbs {
		return fmt.Errorf(
			"%w: its process is joined by TCP already, for they did not work when it was",
			errNoVerbs)
	}
	q := queued{h: Header{Type: typeAttach, Job: g.key.job, Group: g.key.group, Epoch: g.epoch,
		Src: uint32(g.key.rank), Dst: uint32(m.rank), Bytes: macSize}, attach: m}
	if l.key.kind == address.Shm {
		// Where no more files can be opened it comes without: the peer finds that it cannot do
		// without them, and says so.
		q.fds, _ = g.dupShare()
		q.h.Flags = uint8(len(q.fds))
	}
	var raw [headerSize]byte
	q.h.put(&raw)
	proof := attachMAC(g.secret, &l.nonces, g.e.id, &raw)
	q.payload = proof[:]
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closing || l.ended {
		closeFDs(q.fds)
		return nil
	}
	l.outs[pairKey{q.h.Job, q.h.Group, q.h.Src, q.h.Dst}] = m
	l.enqueueLocked(q)
	m.out = l
	m.notify()
	return nil
}

// attachWritten says that this side's attach has been written to a link.
func (m *member) attachWritten(l *link) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.written = l
	m.openRoute()
}

// dupShare copies the group's descriptors for one peer.
func (g *Group) dupShare() ([]int, error) {
	var fds []int
	for _, shared := range g.share {
		fd, err := unix.FcntlInt(uintptr(shared), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			closeFDs(fds)
			return nil, fmt.Errorf("duplicating a descriptor for a peer: %w", err)
		}
		fds = append(fds, fd)
	}
	return fds, nil
}

// part says BYE to a member.
func (m *member) part() {
	g := m.g
	m.end(ErrClosed)
	m.mu.Lock()
	out, local := m.out, m.local
	m.mu.Unlock()
	if local != nil {
		local.inbox.post(local, item{kind: itemLeft, src: g.key.rank}, math.MaxInt)
	}
	if out == nil {
		return
	}
	h := Header{Type: typeBye, Job: g.key.job, Group: g.key.group, Epoch: g.epoch,
		Src: uint32(g.key.rank), Dst: uint32(m.rank)}
	out.mu.Lock()
	defer out.mu.Unlock()
	delete(out.outs, pairKey{h.Job, h.Group, h.Src, h.Dst})
	out.enqueueLocked(queued{h: h})
	out.restIfUnused()
}
