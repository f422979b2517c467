package transport

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/goccl/goccl/core/address"
)

// pairKey names one direction between two ranks of a group.
type pairKey struct {
	job, group uint64
	src, dst   uint32
}

// inbound is an attach by the peer. The entry stays until the peer says BYE, also when the local
// group has gone, so that every frame in between is known for what it is.
type inbound struct {
	epoch uint32
	group *Group
	from  *member // nil, as group: the group had gone before the attach came
	// a buffer that it advertised was withdrawn: its Data frames are skipped. The reader's.
	cut bool
}

// link is an authenticated connection to a peer process.
//
//	state     told by                   frames     what comes next
//	made      started is false          none       start, once the wire is there, or end
//	open      started, in peers         both ways  closing when no group uses it; end
//	closing   closing (mu)              both ways  this side attaches no group any more; what is
//	                                               queued is sent, then the sending half is closed
//	broken    writing.broken            in only    end, after closeFlush, or when the peer ends it
//	ending    over                      none       finish, in a goroutine of its own
//	ended     ended (mu), done          none       members are told; another link may be made
//
// A link leaves made, open, closing and broken for ending by end, whose first reason counts.
type link struct {
	e      *Endpoint
	conn   *conn
	key    peerKey
	nonces [2][nonceSize]byte // dialer's, acceptor's

	// Guarded by Endpoint.mu when they are set. Started publishes the wire.
	wire  wire
	pulse *pulse
	peer  *address.Address // nil before start

	started atomic.Bool   // the poller knows it
	over    atomic.Bool   // it ends
	done    chan struct{} // closed when it has ended and all members are told

	reading reading
	writing writing
	watch   linkWatch

	mu sync.Mutex // guards what follows
	attaches
	err     error // why it ends: the first reason; final after done
	queue   sendQueue
	closing bool // no new attaches: the sending half is about to be closed
	ended   bool
	idle    *time.Timer
}

// attaches are what the groups of both processes have said of themselves over a link. It is guarded
// by link.mu.
type attaches struct {
	attachs map[pairKey]*inbound // the peer's that are not pending, nor refused
	outs    map[pairKey]*member  // this side's, sent and not taken back
	pending []*pendingAttach     // the peer's whose group is not here yet
}

// unused tells whether no group uses the link.
func (a *attaches) unused() bool { return len(a.attachs)+len(a.outs)+len(a.pending) == 0 }

func newLink(e *Endpoint, c *conn, key peerKey, nonces [2][nonceSize]byte) *link {
	l := &link{
		e: e, conn: c, key: key, nonces: nonces, done: make(chan struct{}),
		attaches: attaches{attachs: map[pairKey]*inbound{}, outs: map[pairKey]*member{}},
	}
	l.writing.lock, l.writing.room = make(chan struct{}, 1), make(chan struct{}, 1)
	return l
}

// newWire makes the wire of a link whose two processes have proved themselves to each other. Ranks
// is the size of the group that the link is made for. The caller closes the wire if start fails.
func (l *link) newWire(ctx context.Context, peer *address.Address, ranks int) (wire, error) {
	kind := l.key.kind
	if kind == address.Verbs {
		stream, err := l.e.upgrade(ctx, l.conn, peer, ranks)
		if err != nil {
			return nil, err
		}
		if stream != nil {
			return newQueuePair(l.e.verbs, stream, l.conn, l.fail), nil
		}
		kind = address.TCP
	}
	return newSocket(l.conn, kind), nil
}

// start takes the connection away from Go's poller and has the wire read. It needs Endpoint.mu.
func (l *link) start(w wire, peer *address.Address) error {
	if l.over.Load() {
		return ErrClosed
	}
	if err := l.conn.detach(); err != nil {
		return err
	}
	l.wire = w
	l.started.Store(true)
	if err := l.e.poller.add(l); err != nil {
		l.wire = nil
		return err
	}
	l.e.poller.revisit(l) // a queue pair's descriptor reports nothing before the first look
	var ping func()
	if w.kind() == address.TCP {
		ping = l.ping
	}
	l.pulse = l.e.watchLocked(l.conn, l.key.kind, peer, l.end, ping)
	l.peer = peer
	l.e.log.Debug("a link is made", "kind", l.key.kind, "rdma", w.kind() == address.Verbs,
		"peer", peer.Who())
	return nil
}

// fail ends the link with an error of its wire, or a violation by the peer.
func (l *link) fail(err error) { l.end(l.cause(err)) }

// end ends the link, and then tells all members that are attached over it.
func (l *link) end(err error) {
	l.because(err) // before writers find the link over, and say that
	if l.over.Swap(true) {
		return
	}
	if l.started.Load() {
		l.e.poller.remove(l)
	}
	if !l.e.spawn("link end", l.finish) {
		l.finish() // the endpoint is being closed: no member is left to tell
	}
}

func (l *link) finish() {
	l.e.mu.Lock() // start is done, or will do nothing
	pulse, w, peer := l.pulse, l.wire, l.peer
	l.e.mu.Unlock()
	l.e.unwatch(pulse)
	l.reading.lock.Lock()
	if w != nil {
		w.close() // before drop, which says that nothing more is written to a slot
	}
	l.drop()
	closeFDs(l.reading.fds)
	l.reading.fds = nil
	l.reading.lock.Unlock()
	l.conn.Close()
	l.e.forgetLink(l)
	l.mu.Lock()
	l.ended = true
	err := l.err
	attachs, outs := l.attachs, l.outs
	l.attachs, l.outs = nil, nil
	for _, p := range l.pending {
		closeFDs(p.fds)
	}
	l.queue.drop()
	l.pending = nil
	if l.idle != nil {
		l.idle.Stop()
	}
	l.mu.Unlock()
	if peer != nil {
		l.e.log.Debug("a link is closed", "kind", l.key.kind, "peer", peer.Who(), "why", err)
	}
	// Even if a handler panics, no goroutine may go on waiting for this link.
	defer l.e.poller.Kick()
	defer close(l.done)
	defer func() {
		for _, m := range outs {
			m.lost(l)
		}
	}()
	var missed []*member
	for _, a := range attachs {
		if a.from != nil && !a.from.over.Load() {
			missed = append(missed, a.from)
		}
	}
	if len(missed) > 0 && peer != nil {
		err = l.judge(err)
	}
	for _, m := range missed {
		m.downOn(l, err)
	}
}

// because keeps why the link ends: the first reason counts.
func (l *link) because(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == nil {
		l.err = err
	}
}

// delivers tells whether something is on its way that would be lost if this side closed the link.
func (l *link) delivers() bool {
	l.e.mu.Lock() // it may be about to start
	w := l.wire
	l.e.mu.Unlock()
	return w != nil && !w.flushed()
}

// forgetLink makes room for another link to the same process.
func (e *Endpoint) forgetLink(l *link) {
	e.unlist(l)
	e.mu.Lock()
	delete(e.links, l)
	e.mu.Unlock()
}

// unlist keeps new users away from a link.
func (e *Endpoint) unlist(l *link) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if p := e.peers[l.key]; p != nil && p.link == l {
		p.link = nil
		if p.dial == nil {
			delete(e.peers, l.key)
		}
	}
}

// restIfUnused closes the link soon if no group uses it any more. It needs l.mu.
func (l *link) restIfUnused() {
	if !l.unused() || l.closing || l.ended {
		return
	}
	if l.idle != nil {
		l.idle.Stop()
	}
	l.idle = time.AfterFunc(idleDelay, func() { l.retire(false) })
}

// retire closes the sending half after all that is queued, unless a group uses the link and used
// does not matter. The peer then does the same, and the reader sees it.
func (l *link) retire(used bool) {
	l.mu.Lock()
	first := !l.closing && !l.ended && (used || l.unused())
	l.closing = l.closing || first
	l.mu.Unlock()
	if first {
		l.e.unlist(l)
		l.enqueue(queued{last: true})
	}
}
