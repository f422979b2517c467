package transport

import (
	"bufio"
	"context"
	"crypto/hmac"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// aLongTimeAgo is a deadline that wakes whoever waits for a socket.
var aLongTimeAgo = time.Unix(1, 0)

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
}

// pendingAttach is one for a group that is not here yet.
type pendingAttach struct {
	h    Header
	mac  [macSize]byte
	fd   int
	next bool // its group may have come
}

// link is an authenticated connection to a peer process.
type link struct {
	e      *Endpoint
	sock   *sock
	key    peerKey
	nonces [2][nonceSize]byte // dialer's, acceptor's
	pulse  *pulse

	done chan struct{} // closed when the reader has ended and all are told
	err  error         // why; after done

	// Reading: the reader goroutine's own, but for reading and claimed.
	in       *bufio.Reader
	raw      io.Reader
	fds      []int // received and not yet claimed by an attach
	scratch  []byte
	reading  atomic.Pointer[Group] // whose memory a payload is being read into
	claimed  atomic.Bool           // a group has come: look at pending
	expected int                   // bytes that wake the reader; 0: 1
	small    bool                  // the socket's buffer does not grow with them

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
	header   [headerSize]byte
	iov      []unix.Iovec
	rest     []unix.Iovec // of iov: not yet sent
	wrote    int          // bytes of the current frame
	msg      unix.Msghdr
	rights   []byte
	block    bool // wait when the socket is full
	writeErr error
	attempt  func(uintptr) bool // l.write, bound once
	broken   atomic.Bool        // writing has failed
}

// queued is a frame for the goroutine that writes what must not block its sender.
type queued struct {
	h       Header
	payload []byte
	fd      int     // passed along and then closed; -1: none
	attach  *member // of an attach: it is told when the frame has been written
	last    bool    // no frame: close the sending half
}

func newLink(e *Endpoint, s *sock, key peerKey, nonces [2][nonceSize]byte, addr Address) *link {
	l := &link{
		e: e, sock: s, key: key, nonces: nonces, done: make(chan struct{}), raw: s,
		attachs: map[pairKey]*inbound{}, outs: map[pairKey]*member{}, lock: make(chan struct{}, 1),
	}
	if u, ok := s.Conn.(*net.UnixConn); ok {
		l.raw = &rightsReader{conn: u, l: l}
	}
	l.in = bufio.NewReaderSize(l.raw, readBuffer)
	l.attempt = l.write
	l.pulse = e.watchLocked(s, key.kind, &addr, func(err error) {
		l.fail(err)
	})
	return l
}

// rightsReader reads a Unix socket together with the descriptors that come along.
type rightsReader struct {
	conn *net.UnixConn
	l    *link
	oob  [64]byte
}

func (r *rightsReader) Read(b []byte) (int, error) {
	n, oobn, _, _, err := r.conn.ReadMsgUnix(b, r.oob[:])
	if oobn > 0 {
		r.l.fds = append(r.l.fds, rights(r.oob[:oobn])...)
		if len(r.l.fds) > 64 {
			return n, errors.New("more descriptors than frames that take them")
		}
	}
	if n == 0 && err == nil && len(b) > 0 {
		err = io.EOF
	}
	return max(n, 0), err
}

// run reads until the link ends, and then tells all who are attached.
func (l *link) run() {
	err := errors.New("internal error")
	defer func() { l.finish(err) }()
	err = l.readFrames()
}

// fail ends the link from outside the reader.
func (l *link) fail(err error) {
	l.mu.Lock()
	if l.err == nil && !l.ended {
		l.err = err
	}
	l.mu.Unlock()
	l.sock.Close()
}

func (l *link) finish(err error) {
	l.e.unwatch(l.pulse)
	l.sock.Close()
	l.e.forgetLink(l)
	l.mu.Lock()
	l.ended = true
	if l.err == nil {
		l.err = err
	}
	err = l.err
	attachs, outs := l.attachs, l.outs
	l.attachs, l.outs = nil, nil
	for _, p := range l.pending {
		closeFDs([]int{p.fd})
	}
	l.dropQueue()
	l.pending = nil
	if l.idle != nil {
		l.idle.Stop()
	}
	l.mu.Unlock()
	closeFDs(l.fds)
	l.fds = nil
	// Even if a handler panics, nobody may go on waiting for this link.
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

// dropQueue needs l.mu.
func (l *link) dropQueue() {
	for _, q := range l.queue {
		if q.fd >= 0 {
			unix.Close(q.fd)
		}
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

// ---- reading ----

// protocolError is the peer's fault.
type protocolError struct{ error }

func violation(format string, args ...any) error {
	return protocolError{fmt.Errorf("protocol violation: "+format, args...)}
}

func (l *link) readFrames() error {
	var b [headerSize]byte
	for {
		if l.claimed.Swap(false) {
			l.takePending()
		}
		if err := l.readHeader(&b); err != nil {
			if err == errClaimed {
				continue
			}
			return l.cause(err)
		}
		if l.claimed.Swap(false) {
			// The frame may be the peer's answer to the group that has come: its attach comes before.
			l.takePending()
		}
		h, err := parseHeader(&b)
		if err != nil {
			return l.cause(protocolError{fmt.Errorf("protocol violation: %w", err)})
		}
		if err := l.frame(&h, &b); err != nil {
			return l.cause(err)
		}
	}
}

// cause says why reading has ended, in words for the user, and logs violations.
func (l *link) cause(err error) error {
	var v protocolError
	switch {
	case errors.As(err, &v):
		l.e.logf("closed the link to process %v: %v", l.key.process, err)
	case errors.Is(err, io.EOF):
		err = errors.New("its process has closed the connection")
	}
	return err
}

var errClaimed = errors.New("attaches to look at")

// readHeader reads a whole header, or nothing and errClaimed.
func (l *link) readHeader(b *[headerSize]byte) error {
	for n := 0; n < len(b); {
		k, err := l.in.Read(b[n:])
		n += k
		if err == nil {
			continue
		}
		if err == io.EOF && n > 0 {
			return io.ErrUnexpectedEOF
		}
		if err := l.awoken(err); err != nil {
			return err
		}
		if n == 0 && l.claimed.Load() {
			return errClaimed
		}
	}
	return nil
}

// awoken handles a read that was woken by a deadline in the past: it returns nil if reading shall
// go on. What the waker has set before is seen after it.
func (l *link) awoken(err error) error {
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		return err
	}
	if l.broken.Load() {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.err
	}
	if err := l.sock.SetReadDeadline(time.Time{}); err != nil {
		return err
	}
	if l.broken.Load() { // its deadline may have been undone just now
		return l.sock.SetReadDeadline(time.Now().Add(closeFlush))
	}
	return nil
}

// wake makes the reader look at what has changed.
func (l *link) wake() { l.sock.SetReadDeadline(aLongTimeAgo) }

// readFull reads a payload. Where stop says so after a wake-up, it ends early.
func (l *link) readFull(b []byte, stop func() bool) (n int, err error) {
	if len(b) >= longRead {
		defer l.expect(1)
	}
	for n < len(b) {
		if len(b) >= longRead {
			l.expect(min(len(b)-n, max(longRead, len(b)/4)))
		}
		k, err := l.in.Read(b[n:])
		n += k
		if err == nil {
			continue
		}
		if err == io.EOF {
			return n, io.ErrUnexpectedEOF
		}
		if err := l.awoken(err); err != nil {
			return n, err
		}
		if stop != nil && stop() {
			return n, nil
		}
	}
	return n, nil
}

// skip reads and forgets.
func (l *link) skip(n uint32) error {
	for n > 0 {
		b := l.buffer(min(n, 64<<10))
		if _, err := l.readFull(b, nil); err != nil {
			return err
		}
		n -= uint32(len(b))
	}
	return nil
}

// buffer is memory of the reader, of n bytes, n being checked.
func (l *link) buffer(n uint32) []byte {
	if uint32(cap(l.scratch)) < n {
		l.scratch = make([]byte, max(n, 4096))
	}
	return l.scratch[:n]
}

func (l *link) frame(h *Header, raw *[headerSize]byte) error {
	switch h.Type {
	case typeAttach:
		return l.onAttach(h, raw)
	case typeRefused:
		l.onRefused(h)
		return nil
	case typeBye:
		l.onBye(h)
		return nil
	}
	l.mu.Lock()
	a := l.attachs[pairKey{h.Job, h.Group, h.Src, h.Dst}]
	l.mu.Unlock()
	switch {
	case a == nil:
		return violation("a frame of job %x, group %x from rank %d to rank %d, which are not attached", h.Job, h.Group, h.Src, h.Dst)
	case h.Epoch > a.epoch:
		return violation("a frame of epoch %d, where %d is attached", h.Epoch, a.epoch)
	case h.Epoch < a.epoch || a.from.over.Load():
		return l.skip(h.Bytes)
	case h.Type == Data:
		return l.data(a, h)
	}
	payload := l.buffer(h.Bytes)
	if _, err := l.readFull(payload, nil); err != nil {
		return err
	}
	a.group.call(func(to Handler) { to.Control(a.from.rank, *h, payload) })
	return nil
}

// data reads a payload into the memory that the group names, unless the group goes meanwhile.
func (l *link) data(a *inbound, h *Header) error {
	g := a.group
	n, err := 0, error(nil)
	if !g.halted.Load() && g.enter() {
		n, err = l.dataInto(a, h)
		if err != nil {
			return err
		}
	}
	return l.skip(h.Bytes - uint32(n))
}

func (l *link) dataInto(a *inbound, h *Header) (n int, err error) {
	g := a.group
	defer g.exit()
	head, body, err := g.handler.Slot(a.from.rank, *h)
	if err != nil {
		return 0, violation("rank %d of group %s: %w", a.from.rank, g.name, err)
	}
	complete := false
	defer func() {
		if !complete {
			g.handler.Dropped(a.from.rank, *h)
		}
	}()
	if len(head)+len(body) != int(h.Bytes) {
		return 0, fmt.Errorf("internal error: a slot of %d bytes for a payload of %d", len(head)+len(body), h.Bytes)
	}
	l.reading.Store(g)
	defer l.reading.Store(nil)
	for _, part := range [2][]byte{head, body} {
		if g.halted.Load() { // Halt may have looked for readers before
			return n, nil
		}
		k, err := l.readFull(part, g.halted.Load)
		n += k
		if err != nil {
			return n, err
		}
	}
	if complete = n == int(h.Bytes) && !g.halted.Load(); complete {
		g.handler.Arrived(a.from.rank, *h)
	}
	return n, nil
}

// expect says how much there must be for the reader to be woken: of a long payload each wake-up then
// brings much. Before Linux 4.18 the buffer may be too small for that much ever to be there.
func (l *link) expect(bytes int) {
	if l.expected == bytes || l.small {
		return
	}
	l.expected = bytes
	l.sock.raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVLOWAT, bytes)
		if room, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF); err != nil || room < bytes {
			l.small = true
			_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVLOWAT, 1)
		}
	})
}

func (l *link) onAttach(h *Header, raw *[headerSize]byte) error {
	p := &pendingAttach{h: *h, fd: -1}
	if _, err := l.readFull(p.mac[:], nil); err != nil {
		return err
	}
	if h.Flags&flagWindow != 0 {
		if len(l.fds) == 0 {
			return violation("an attach without the descriptor that it speaks of")
		}
		p.fd = l.fds[0]
		l.fds = slices.Delete(l.fds, 0, 1)
	}
	key := pairKey{h.Job, h.Group, h.Src, h.Dst}
	l.mu.Lock()
	twice := l.attachs[key] != nil
	l.mu.Unlock()
	if twice {
		closeFDs([]int{p.fd})
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
	fd := p.fd
	defer func() {
		if fd >= 0 {
			unix.Close(fd)
		}
	}()
	answer := Header{Type: typeBye, Job: h.Job, Group: h.Group, Epoch: h.Epoch, Src: h.Dst, Dst: h.Src}
	if left {
		l.enqueue(queued{h: answer, fd: -1})
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
		l.e.refuse(l.sock.remote(), fmt.Errorf("an attach to group %s: %s", g.name, why))
		answer.Type = typeRefused
		l.enqueue(queued{h: answer, fd: -1})
		return true
	}
	l.mu.Lock()
	closing := l.closing
	if !closing {
		l.attachs[pairKey{h.Job, h.Group, h.Src, h.Dst}] = &inbound{h.Epoch, g, m}
	}
	l.mu.Unlock()
	if closing {
		return true // the peer sees the end of this link, and makes another
	}
	// The answer in kind, unless it has been given already: before the handler knows, so that a Detach
	// meanwhile finds whom to say BYE to.
	if err := g.attachOver(l, m); err != nil {
		m.down(err)
		l.enqueue(queued{h: answer, fd: -1})
		return true
	}
	if !m.arrive(l, func(to Handler) {
		window := fd
		fd = -1
		to.PeerAttached(m.rank, window)
	}) {
		l.enqueue(queued{h: answer, fd: -1})
	}
	return true
}

// claim tells the reader that a group has come which attaches may wait for.
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
		l.claimed.Store(true)
		l.wake()
	}
}

// takePending tries the attaches whose group may have come. Only the reader adds and removes them; a
// claim that comes while one is tried has it tried again.
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
		m = a.from
	}
	l.pending = slices.DeleteFunc(l.pending, func(p *pendingAttach) bool {
		gone := p.h.Epoch == h.Epoch && pairKey{p.h.Job, p.h.Group, p.h.Src, p.h.Dst} == key
		if gone && p.fd >= 0 {
			unix.Close(p.fd)
		}
		return gone
	})
	l.restIfUnused()
	l.mu.Unlock()
	if m != nil {
		m.left(l)
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
		l.enqueue(queued{fd: -1, last: true})
	}
}

// ---- writing ----

// send writes a frame. It returns when the payload has gone to the kernel, or, with the context's
// error, when the context ends; then what is left of a frame begun is copied and sent later.
func (l *link) send(ctx context.Context, g *Group, h *Header, payload [][]byte) error {
	select {
	case l.lock <- struct{}{}:
	default:
		select {
		case l.lock <- struct{}{}:
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-l.done:
			return errLinkEnded
		}
	}
	if g.leaving() { // its BYE may have been sent
		<-l.lock
		return ErrClosed
	}
	if l.broken.Load() {
		<-l.lock
		return errLinkEnded
	}
	l.load(h, payload)
	l.block = false
	if err := l.sock.raw.Write(l.attempt); err == nil && l.writeErr == nil && len(l.rest) > 0 {
		// The socket is full.
		fired := make(chan struct{})
		stop := context.AfterFunc(ctx, func() {
			l.sock.SetWriteDeadline(aLongTimeAgo)
			close(fired)
		})
		l.block = true
		err = l.sock.raw.Write(l.attempt)
		if !stop() {
			<-fired
			l.sock.SetWriteDeadline(time.Time{})
		}
		if len(l.rest) > 0 && errors.Is(err, os.ErrDeadlineExceeded) {
			if l.wrote > 0 && l.finishLater() {
				return nil
			}
			l.unload()
			return context.Cause(ctx)
		}
		if err != nil && l.writeErr == nil {
			l.writeErr = err
		}
	} else if err != nil {
		l.writeErr = err
	}
	err := l.writeErr
	if err != nil {
		l.writeFailed(err)
		err = errLinkEnded
	}
	l.unload()
	return err
}

var errLinkEnded = errors.New("the link has ended")

// load makes a frame the current one.
func (l *link) load(h *Header, payload [][]byte) {
	h.put(&l.header)
	l.iov = append(l.iov[:0], unix.Iovec{Base: &l.header[0], Len: headerSize})
	for _, p := range payload {
		if len(p) > 0 {
			l.iov = append(l.iov, unix.Iovec{Base: unsafe.SliceData(p), Len: uint64(len(p))})
		}
	}
	l.rest, l.wrote, l.writeErr = l.iov, 0, nil
}

// unload gives the link to the next writer.
func (l *link) unload() {
	clear(l.iov)
	l.rest, l.rights = nil, nil
	<-l.lock
}

// write sends what it can of the current frame. It tells RawConn.Write not to call again.
func (l *link) write(fd uintptr) bool {
	for len(l.rest) > 0 {
		n := min(len(l.rest), 1024)
		l.msg = unix.Msghdr{Iov: &l.rest[0], Iovlen: uint64(n)}
		if len(l.rights) > 0 {
			l.msg.Control = &l.rights[0]
			l.msg.SetControllen(len(l.rights))
		}
		r, _, errno := syscall.Syscall(unix.SYS_SENDMSG, fd, uintptr(unsafe.Pointer(&l.msg)), unix.MSG_NOSIGNAL)
		switch errno {
		case 0:
		case unix.EINTR:
			continue
		case unix.EAGAIN:
			return !l.block
		default:
			l.writeErr = errno
			return true
		}
		l.rights = nil
		l.wrote += int(r)
		for sent := uint64(r); sent > 0; {
			v := &l.rest[0]
			if sent < v.Len {
				v.Base = (*byte)(unsafe.Add(unsafe.Pointer(v.Base), sent))
				v.Len -= sent
				break
			}
			sent -= v.Len
			l.rest = l.rest[1:]
		}
	}
	return true
}

// finishLater copies the rest of the current frame and lets a goroutine send it, which then gives
// the link to the next writer.
func (l *link) finishLater() bool {
	size := 0
	for _, v := range l.rest {
		size += int(v.Len)
	}
	rest := make([]byte, 0, size)
	for _, v := range l.rest {
		rest = append(rest, unsafe.Slice(v.Base, v.Len)...)
	}
	clear(l.iov)
	l.iov = append(l.iov[:0], unix.Iovec{Base: &rest[0], Len: uint64(len(rest))})
	l.rest = l.iov
	ok := l.e.spawn("link writer", func() { l.writeOut(); l.unload() })
	if !ok {
		l.writeFailed(ErrClosed)
	}
	return ok
}

// writeOut sends the current frame, however long it takes.
func (l *link) writeOut() bool {
	l.block = true
	err := l.sock.raw.Write(l.attempt)
	if err == nil {
		err = l.writeErr
	}
	if err != nil {
		l.writeFailed(err)
	}
	return err == nil
}

// writeFailed lets the reader take in what the peer has still said, such as a BYE, before it ends
// the link for this reason.
func (l *link) writeFailed(err error) {
	if l.broken.Load() {
		return
	}
	l.mu.Lock()
	if l.err == nil && !l.ended {
		l.err = err
	}
	l.mu.Unlock()
	l.broken.Store(true)
	l.sock.SetReadDeadline(time.Now().Add(closeFlush))
}

// enqueue lets a goroutine write a frame. It tells whether the link still takes any.
func (l *link) enqueue(q queued) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.enqueueLocked(q)
}

// enqueueLocked needs l.mu.
func (l *link) enqueueLocked(q queued) bool {
	if l.ended || q.h.Type >= ControlBase && l.queued > maxQueued {
		closeFDs([]int{q.fd})
		return false
	}
	l.queue = append(l.queue, q)
	l.queued += len(q.payload) + headerSize
	if !l.drains {
		l.drains = l.e.spawn("link queue", l.drain)
	}
	return true
}

// drain writes the queue, and ends when it is empty.
func (l *link) drain() {
	for {
		select {
		case l.lock <- struct{}{}:
		case <-l.done:
			return
		}
		l.mu.Lock()
		if len(l.queue) == 0 || l.broken.Load() {
			l.dropQueue()
			l.drains = false
			l.mu.Unlock()
			<-l.lock
			return
		}
		q := l.queue[0]
		l.queue[0] = queued{}
		l.queue = l.queue[1:]
		l.queued -= len(q.payload) + headerSize
		l.mu.Unlock()
		if q.last {
			l.sock.halfClose()
			<-l.lock
			continue
		}
		l.load(&q.h, [][]byte{q.payload})
		if q.fd >= 0 {
			l.rights = unix.UnixRights(q.fd)
		}
		written := l.writeOut()
		l.unload()
		closeFDs([]int{q.fd})
		if written && q.attach != nil {
			q.attach.announced(l)
		}
	}
}
