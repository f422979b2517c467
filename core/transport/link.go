package transport

import (
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goccl/goccl/rdma"
)

// pairKey names one direction between two ranks of a group.
type pairKey struct {
	job, group uint64
	src, dst   uint32
}

// inbound is an attach by the peer that has been accepted. The entry stays until the peer says BYE,
// also when the local group has gone, so that every frame in between is known for what it is.
type inbound struct {
	epoch uint32
	group *Group
	from  *member
	cut   bool // it has withdrawn a loan: its Data frames are skipped. It belongs to who has locked the receiving half
}

// pendingAttach is one for a group that is not here yet.
type pendingAttach struct {
	h    Header
	mac  [macSize]byte
	fds  []int
	next bool // its group may have come
}

// link is an authenticated connection to a peer process.
type link struct {
	e      *Endpoint
	sock   *sock
	key    peerKey
	nonces [2][nonceSize]byte // dialer's, acceptor's
	pulse  *pulse
	who    string // the peer, in texts; "" before start; guarded by Endpoint.mu
	side   side   // of a verbs link; without a stream it is one of TCP

	started atomic.Bool   // the poller knows it
	over    atomic.Bool   // it ends
	done    chan struct{} // closed when it has ended and all are told
	err     error         // why; after done

	reading reading

	// Under Poller.mu: what the kernel is asked to tell.
	reads, writes bool
	deaf          bool // the socket beside a stream has ended
	armed         uint32
	armedStream   uint32

	mu      sync.Mutex
	attachs map[pairKey]*inbound // accepted
	outs    map[pairKey]*member  // sent and not taken back
	pending []*pendingAttach
	queue   []queued
	queued  int // bytes of best-effort frames in queue
	drains  bool
	closing bool // no new attaches: the sending half is about to be closed
	ended   bool
	idle    *time.Timer

	// Writing: who has put a token into lock owns the rest.
	lock     chan struct{}
	turn     atomic.Int32 // to write, of who has the poller's token
	header   [headerSize + loanSize]byte
	iov      []unix.Iovec
	rest     []unix.Iovec // of iov: not yet sent
	wrote    int          // bytes of the current frame
	msg      unix.Msghdr
	rights   []byte
	writeErr error
	attempt  func(uintptr) // l.write, bound once
	room     chan struct{} // there may be room again in a socket that was full
	broken   atomic.Bool   // writing has failed
}

// queued is a frame for the goroutine that writes what must not block its sender.
type queued struct {
	h       Header
	payload []byte
	fds     []int   // passed along and then closed
	attach  *member // of an attach: it is told when the frame has been written
	last    bool    // no frame: close the sending half
}

func newLink(e *Endpoint, s *sock, key peerKey, nonces [2][nonceSize]byte) *link {
	l := &link{
		e: e, sock: s, key: key, nonces: nonces, done: make(chan struct{}),
		attachs: map[pairKey]*inbound{}, outs: map[pairKey]*member{}, lock: make(chan struct{}, 1), room: make(chan struct{}, 1),
	}
	l.attempt, l.reading.attempt = l.write, l.recvmsg
	return l
}

// start takes the connection over, from Go's poller too, with a stream or none, and has it read. It needs Endpoint.mu.
func (l *link) start(stream *rdma.Stream, peer *Address) error {
	if l.over.Load() {
		return ErrClosed
	}
	if err := l.sock.detach(); err != nil {
		return err
	}
	l.side.stream = stream
	l.started.Store(true)
	if err := l.e.poller.add(l); err != nil {
		l.side.stream = nil
		return err
	}
	l.e.poller.revisit(l) // the first look at a stream has its descriptor tell of more
	l.pulse = l.e.watchLocked(l.sock, l.key.kind, peer, l.end)
	l.who = peer.who()
	l.e.log.Debug("a link is made", "kind", l.key.kind, "rdma", stream != nil, "peer", l.who)
	return nil
}

// end ends the link, and then tells all who are attached.
func (l *link) end(err error) {
	l.because(err) // before writers find the link over, and say that
	if l.over.Swap(true) {
		return
	}
	if l.started.Load() {
		l.e.poller.remove(l)
	}
	if !l.e.spawn("link end", l.finish) {
		l.finish() // the endpoint is being closed: there is nobody to tell
	}
}

func (l *link) finish() {
	l.e.mu.Lock() // start is done, or will do nothing
	pulse, stream, who := l.pulse, l.side.stream, l.who
	l.e.mu.Unlock()
	l.e.unwatch(pulse)
	l.reading.lock.Lock()
	l.e.verbs.drop(stream) // first: what it has asked for is on its way to where drop says that nothing more comes
	l.drop()
	closeFDs(l.reading.fds)
	l.reading.fds = nil
	l.reading.lock.Unlock()
	l.endLoans()
	l.sock.Close()
	l.e.forgetLink(l)
	l.mu.Lock()
	l.ended = true
	err := l.err
	attachs, outs := l.attachs, l.outs
	l.attachs, l.outs = nil, nil
	for _, p := range l.pending {
		closeFDs(p.fds)
	}
	l.dropQueue()
	l.pending = nil
	if l.idle != nil {
		l.idle.Stop()
	}
	l.mu.Unlock()
	if who != "" {
		l.e.log.Debug("a link is closed", "kind", l.key.kind, "peer", who, "why", err)
	}
	// Even if a handler panics, nobody may go on waiting for this link.
	defer l.e.poller.Kick()
	defer close(l.done)
	defer func() {
		for _, m := range outs {
			m.lost(l)
		}
	}()
	for _, a := range attachs {
		a.from.downOn(l, err)
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

// dropQueue needs l.mu.
func (l *link) dropQueue() {
	for _, q := range l.queue {
		closeFDs(q.fds)
	}
	l.queue = nil
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
	if len(l.attachs)+len(l.outs)+len(l.pending) > 0 || l.closing || l.ended {
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
	first := !l.closing && !l.ended && (used || len(l.attachs)+len(l.outs)+len(l.pending) == 0)
	l.closing = l.closing || first
	l.mu.Unlock()
	if first {
		l.e.unlist(l)
		l.enqueue(queued{last: true})
	}
}
