package transport

import (
	"crypto/hmac"
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/goccl/goccl/core/internal/plain"
)

// reading is the receiving half of a link: what has come of the current frame, whoever reads. All but what is
// said otherwise belongs to who holds lock.
type reading struct {
	lock    sync.Mutex
	phase   phase
	h       Header // of the current frame
	fetch   fetch  // if its payload is lent
	raw     [headerSize]byte
	from    *inbound  // of a frame of a group: who sends it
	dst     [2][]byte // what is still to come of its payload, and where it goes
	skip    int       // bytes that nobody wants
	slotted bool      // the handler has given dst
	dead    bool      // reading has failed
	more    bool      // reading has stopped before all was read
	scratch []byte    // the payload of a frame that is not Data
	fds     []int     // received and not yet claimed by an attach
	in      [readBuffer]byte
	r, w    int // the bytes of in that have come and have not been looked at
	iov     [3]unix.Iovec
	msg     unix.Msghdr
	oob     [64]byte
	got     int
	errno   syscall.Errno
	attempt func(uintptr) // l.recvmsg, bound once

	expected int  // bytes that make the kernel tell that some have come; 0: 1
	small    bool // the socket's buffer does not grow with them

	into    atomic.Pointer[Group] // whose memory dst is; read by Halt
	claimed atomic.Bool           // a group has come: look at pending
}

type phase uint8

const (
	atHeader  phase = iota
	inPayload       // dst is being filled
	fetching        // and then the rest is read from the peer's memory
	skipping
	atSlow // a whole frame is there that catchUp handles
)

func violation(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrProtocol}, args...)...)
}

// cause says why reading has ended, in words for the user, and logs violations.
func (l *link) cause(err error) error {
	switch {
	case errors.Is(err, ErrProtocol):
		l.e.warnf("closed the link to process %v: %v", l.key.process, err)
	case errors.Is(err, io.EOF):
		err = errors.New("its process has closed the connection")
	default:
		err = plain.Error(err)
	}
	return err
}

// pump reads what is there, unless somebody else does. It never waits: a frame whose handling may take long, or
// that may need what the caller holds, goes to a goroutine, and the link waits for it.
func (l *link) pump() {
	in := &l.reading
	if !in.lock.TryLock() {
		return
	}
	slow := false
	err := l.guarded(func() (err error) {
		if !l.over.Load() && !in.dead {
			slow, err = l.readSome()
		}
		return err
	})
	switch {
	case err != nil:
		in.dead = true
		l.unlock()
		l.end(l.cause(err))
	case slow:
		l.e.poller.watchReads(l, false)
		if !l.e.spawn("link", l.catchUp) {
			l.unlock() // the endpoint is being closed
		}
	default:
		more := in.more
		in.more = false
		l.unlock()
		if more {
			l.e.poller.revisit(l)
		}
	}
}

// guarded fails the endpoint where a handler panics.
func (l *link) guarded(f func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("internal error in link: %v", r)
			l.e.broken(err, debug.Stack())
		}
	}()
	return f()
}

// catchUp handles frames that are slow, and what has come behind them. The caller has locked the receiving half.
func (l *link) catchUp() {
	in := &l.reading
	err := l.guarded(func() error {
		for !l.over.Load() && !in.dead {
			if in.claimed.Swap(false) {
				l.takePending()
			}
			if in.phase == atSlow {
				if err := l.slowFrame(); err != nil {
					return err
				}
				in.phase = atHeader
			}
			if slow, err := l.step(); !slow || err != nil {
				return err
			}
		}
		return nil
	})
	in.dead = in.dead || err != nil
	if !in.dead {
		l.e.poller.watchReads(l, true)
	}
	l.unlock()
	l.e.poller.revisit(l)
	if err != nil {
		l.end(l.cause(err))
	}
	l.e.poller.Kick()
}

// unlock ends what whoever reads does. If a group has been halted meanwhile, its memory is left alone from now on.
func (l *link) unlock() {
	in := &l.reading
	for {
		in.lock.Unlock()
		g := in.into.Load()
		if g == nil || !g.halted.Load() || in.fetch.forgone.Load() || !in.lock.TryLock() {
			return
		}
		l.drop()
	}
}

// leaveAlone has a halted group's memory left alone, at once or when whoever reads is done.
func (l *link) leaveAlone(g *Group) {
	if l.reading.into.Load() == g && l.reading.lock.TryLock() {
		l.unlock()
		l.e.poller.revisit(l) // somebody may have come to read meanwhile
	}
}

// drop gives a payload up in the middle.
func (l *link) drop() {
	in := &l.reading
	g := in.into.Load()
	if g == nil || !g.halted.Load() && !l.over.Load() || in.phase == fetching && !l.forgo() {
		return
	}
	l.forget(g)
}

// forget skips the rest of a payload.
func (l *link) forget(g *Group) {
	in := &l.reading
	if in.expected > 1 {
		l.expect(1)
	}
	in.skip = in.left()
	in.phase, in.dst, in.fetch.to = skipping, [2][]byte{}, [2][]byte{}
	defer g.exit()
	defer in.into.Store(nil)
	if in.slotted {
		in.slotted = false
		_ = l.guarded(func() error { // it has failed the endpoint
			g.handler.Dropped(in.from.from.rank, in.h)
			return nil
		})
	}
}

// readSome reads and handles what has come. It tells whether a slow frame has.
func (l *link) readSome() (slow bool, err error) {
	in := &l.reading
	for total := 0; total < readMost; {
		if slow, err = l.step(); slow || err != nil {
			return slow, err
		}
		n, room, err := l.receive()
		if err != nil {
			return false, err
		}
		total += n
		if l.side.stream != nil {
			if n == 0 {
				return false, nil
			}
			continue
		}
		if n < room { // the socket is empty now; if it has ended, the kernel tells
			break
		}
	}
	in.more = true
	slow, err = l.step()
	if !slow && err == nil && in.phase == inPayload && in.h.Bytes >= longRead {
		l.expect(min(in.left(), max(longRead, int(in.h.Bytes)/4)))
	}
	return slow, err
}

// left is how much of the payload is still to come.
func (in *reading) left() int { return len(in.dst[0]) + len(in.dst[1]) }

// expect says how much there must be for the kernel to tell of it: of a long payload each wake-up then
// brings much. Before Linux 4.18 the buffer may be too small for that much ever to be there.
func (l *link) expect(bytes int) {
	in := &l.reading
	if in.expected == bytes || in.small || l.side.stream != nil {
		return
	}
	in.expected = bytes
	l.sock.raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVLOWAT, bytes)
		if room, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF); err != nil || room < bytes {
			in.small = true
			_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVLOWAT, 1)
		}
	})
}

// receive reads from the socket, once: into dst, and what comes behind it into the buffer. It returns how much
// came, and how much could have come.
func (l *link) receive() (n, room int, err error) {
	in := &l.reading
	in.w = copy(in.in[:], in.in[in.r:in.w])
	in.r = 0
	behind := in.in[in.w:]
	iov := in.iov[:0]
	if in.phase == inPayload {
		for _, d := range in.dst {
			if len(d) > 0 {
				iov = append(iov, unix.Iovec{Base: unsafe.SliceData(d), Len: uint64(len(d))})
				room += len(d)
			}
		}
		if room >= longTail {
			behind = behind[:longTailBuffer] // the next payload is as long, and is not to be copied from here
		}
	}
	iov = append(iov, unix.Iovec{Base: unsafe.SliceData(behind), Len: uint64(len(behind))})
	room += len(behind)
	if l.side.stream != nil {
		n, err = l.receiveStream(iov)
	} else {
		n, err = l.receiveSocket(iov)
	}
	clear(in.iov[:])
	if err == io.EOF && (in.phase != atHeader || in.w > 0) {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return 0, 0, err
	}
	rest := n
	if in.phase == inPayload {
		for i, d := range in.dst {
			k := min(rest, len(d))
			in.dst[i] = d[k:]
			rest -= k
		}
	}
	in.w += rest
	return n, room, nil
}

// receiveSocket is receive for a socket.
func (l *link) receiveSocket(iov []unix.Iovec) (n int, err error) {
	in := &l.reading
	in.msg = unix.Msghdr{Iov: &iov[0], Iovlen: uint64(len(iov))}
	if l.key.kind == Shm {
		in.msg.Control = &in.oob[0]
		in.msg.SetControllen(len(in.oob))
	}
	if err := l.sock.raw.Control(in.attempt); err != nil {
		return 0, err
	}
	switch {
	case in.errno == unix.EAGAIN:
		return 0, nil
	case in.errno != 0:
		return 0, in.errno
	}
	if l.key.kind == Shm {
		fds := rights(in.oob[:in.msg.Controllen])
		if in.msg.Flags&unix.MSG_CTRUNC != 0 {
			closeFDs(fds)
			fds = []int{lostRights}
		}
		in.fds = append(in.fds, fds...)
		if len(in.fds) > maxRights {
			return 0, errors.New("more descriptors than frames that take them")
		}
	}
	if in.got == 0 {
		return 0, io.EOF
	}
	return in.got, nil
}

const (
	maxRights      = 64
	lostRights     = -1 // in place of a frame's descriptors, of which this process can open no more
	longTail       = 64 << 10
	longTailBuffer = 1 << 10
)

// recvmsg does not tell Go's scheduler of the call, which never waits: else its monitor would look after the thread, over a thousand
// times a second, and take the CPU from ranks.
func (l *link) recvmsg(fd uintptr) {
	in := &l.reading
	for {
		r, _, errno := syscall.RawSyscall(unix.SYS_RECVMSG, fd, uintptr(unsafe.Pointer(&in.msg)), unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC)
		if errno != unix.EINTR {
			in.got, in.errno = int(r), errno
			return
		}
	}
}

// step handles what has come, as far as it needs no more. It tells whether a slow frame is next.
func (l *link) step() (slow bool, err error) {
	in := &l.reading
	for {
		switch in.phase {
		case atSlow:
			return true, nil
		case atHeader:
			// A frame may be the peer's answer to a group that has come: the peer's attach comes before.
			if in.claimed.Load() {
				return true, nil
			}
			if in.w-in.r < headerSize {
				return false, nil
			}
			in.raw = [headerSize]byte(in.in[in.r:])
			if in.h, err = parseHeader(&in.raw); err != nil {
				return false, fmt.Errorf("%w: %w", ErrProtocol, err)
			}
			size := headerSize
			if in.h.lent {
				if size += loanSize; in.w-in.r < size {
					return false, nil
				}
				if err := l.borrow((*[loanSize]byte)(in.in[in.r+headerSize:])); err != nil {
					return false, err
				}
			}
			in.r += size
			if err := l.begin(); err != nil {
				return false, err
			}
		case inPayload:
			for i, d := range in.dst {
				k := copy(d, in.in[in.r:in.w])
				in.dst[i] = d[k:]
				in.r += k
			}
			if in.left() > 0 {
				return false, nil
			}
			if in.expected > 1 {
				l.expect(1)
			}
			if in.h.lent {
				if err := l.beginFetch(); err != nil {
					return false, err
				}
				continue
			}
			l.complete()
		case fetching:
			if all, err := l.carryFetch(); !all || err != nil {
				return false, err
			}
		case skipping:
			k := min(in.skip, in.w-in.r)
			in.r += k
			in.skip -= k
			if in.skip > 0 {
				return false, nil
			}
			l.answer()
			in.phase = atHeader
		}
	}
}

// begin looks at a header.
func (l *link) begin() error {
	in := &l.reading
	h := &in.h
	switch h.Type {
	case typeAttach:
		l.toScratch()
		return nil
	case typeRefused, typeBye:
		in.phase = atSlow
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
		in.phase, in.skip = skipping, in.inline()
		return nil
	}
	in.from = a
	if h.Type != Data {
		l.toScratch()
		return nil
	}
	g := a.group
	if g.halted.Load() || a.cut || !g.enter() {
		in.phase, in.skip = skipping, in.inline()
		return nil
	}
	in.into.Store(g) // before halted is looked at again, by unlock
	head, body, err := g.handler.Slot(a.from.rank, *h)
	if err != nil {
		l.forget(g)
		return violation("rank %d of group %s: %w", a.from.rank, g.name, err)
	}
	in.slotted = true
	if len(head)+len(body) != int(h.Bytes) {
		l.forget(g)
		return fmt.Errorf("internal error: a slot of %d bytes for a payload of %d", len(head)+len(body), h.Bytes)
	}
	in.phase, in.dst = inPayload, [2][]byte{head, body}
	if h.lent {
		in.split()
	}
	return nil
}

// toScratch reads the payload, whose length has been checked, into memory of the link.
func (l *link) toScratch() {
	in := &l.reading
	if uint32(cap(in.scratch)) < in.h.Bytes {
		in.scratch = make([]byte, max(in.h.Bytes, 4096))
	}
	in.scratch = in.scratch[:in.h.Bytes]
	in.phase, in.dst = inPayload, [2][]byte{in.scratch}
}

// complete handles a frame whose payload is there, or leaves it to catchUp.
func (l *link) complete() {
	in := &l.reading
	if in.h.Type != Data {
		in.phase = atSlow
		if in.h.Type >= QuickBase {
			in.phase = atHeader
			l.control()
		}
		return
	}
	g := in.into.Load()
	if g.halted.Load() {
		l.forget(g)
		return
	}
	in.phase, in.slotted = atHeader, false
	defer g.exit()
	defer in.into.Store(nil)
	g.handler.Arrived(in.from.from.rank, in.h)
}

// control hands a control frame to the handler.
func (l *link) control() {
	in := &l.reading
	m := in.from.from
	if !m.over.Load() {
		in.from.group.call(func(to Handler) { to.Control(m.rank, in.h, in.scratch) })
	}
}

func (l *link) slowFrame() error {
	in := &l.reading
	switch in.h.Type {
	case typeAttach:
		return l.onAttach()
	case typeRefused:
		l.onRefused(&in.h)
	case typeBye:
		l.onBye(&in.h)
	default:
		l.control()
	}
	return nil
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
	answer := Header{Type: typeBye, Job: h.Job, Group: h.Group, Epoch: h.Epoch, Src: h.Dst, Dst: h.Src}
	if left {
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
		l.e.refuse(l.sock.remote(), fmt.Errorf("an attach to group %s: %s", g.name, why))
		answer.Type = typeRefused
		l.enqueue(queued{h: answer})
		return true
	}
	l.mu.Lock()
	closing := l.closing
	if !closing {
		l.attachs[pairKey{h.Job, h.Group, h.Src, h.Dst}] = &inbound{epoch: h.Epoch, group: g, from: m}
	}
	l.mu.Unlock()
	if closing {
		return true // the peer sees the end of this link, and makes another
	}
	// The answer in kind, unless it has been given already: before the handler knows, so that a Detach
	// meanwhile finds whom to say BYE to.
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

// takePending tries the attaches whose group may have come. Only who reads adds and removes them; a
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
