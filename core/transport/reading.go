package transport

import (
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/goccl/goccl/core/internal/errtext"
	"github.com/goccl/goccl/core/trace"
)

// reading is the receiving half of a link: what has come of the current frame. The link's reader is
// the goroutine that holds lock: the holder of the poller's token, or catchUp. All fields but lock
// and the last three are the reader's.
type reading struct {
	lock  sync.Mutex
	phase phase
	h     Header   // of the current frame
	from  *inbound // of a frame of a group: who sends it
	in    inBuffer
	dst   [2][]byte // what is still to come of its payload, and where it goes
	get   get       // if the peer's memory holds the end of its payload
	skip  int       // bytes that are dropped

	slotted bool   // the handler has given dst
	dead    bool   // reading has failed
	more    bool   // reading has stopped before all was read
	scratch []byte // the payload of a frame that is not Data
	fds     []int  // received and not yet claimed by an attach
	iov     [3]unix.Iovec

	into    atomic.Pointer[Group] // whose memory dst is; read by Halt
	claimed atomic.Bool           // a group has come: look at pending
	shut    atomic.Bool           // the peer's system has said that no more comes
}

// inBuffer holds bytes that have come and have not been looked at: from r to w. It has memory only
// while there are any, or a reader is at work: most links of a process are idle.
type inBuffer struct {
	bytes *[readBuffer]byte // nil, or of readBuffers
	r, w  int
}

var readBuffers = sync.Pool{New: func() any { return new([readBuffer]byte) }}

func (b *inBuffer) len() int { return b.w - b.r }

func (b *inBuffer) unread() []byte {
	if b.bytes == nil {
		return nil
	}
	return b.bytes[b.r:b.w]
}

// room moves what is unread to the front and returns the rest of the buffer.
func (b *inBuffer) room() []byte {
	if b.bytes == nil {
		b.bytes = readBuffers.Get().(*[readBuffer]byte)
	}
	b.w = copy(b.bytes[:], b.unread())
	b.r = 0
	return b.bytes[b.w:]
}

// rest gives the memory back, if nothing is unread.
func (b *inBuffer) rest() {
	if b.bytes != nil && b.len() == 0 {
		readBuffers.Put(b.bytes)
		b.bytes = nil
	}
}

type phase uint8

const (
	atHeader  phase = iota
	inPayload       // dst is being filled
	inGet           // and then the rest is read from the peer's memory
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
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		l.reading.shut.Store(true)
		err = errors.New("its process has closed the connection")
	default:
		err = errtext.Error(err)
	}
	return err
}

// pump reads what is there, unless another goroutine does. It never waits: a frame whose handling
// may take long, or may need what the caller holds, goes to a goroutine, and the link waits for it.
// The caller holds the poller's token.
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
		l.fail(err)
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

// catchUp handles frames that are slow, and what has come behind them. The caller has locked the
// receiving half.
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
		l.fail(err)
	}
	l.e.poller.Kick()
}

// unlock ends the caller's being the reader. If a group has been halted meanwhile, its memory is
// left alone from now on.
func (l *link) unlock() {
	in := &l.reading
	in.in.rest()
	for {
		in.lock.Unlock()
		g := in.into.Load()
		if g == nil || !g.halted.Load() || in.get.unwanted.Load() || !in.lock.TryLock() {
			return
		}
		l.drop()
	}
}

// leaveAlone has a halted group's memory left alone, at once or when the reader is done.
func (l *link) leaveAlone(g *Group) {
	if l.reading.into.Load() == g && l.reading.lock.TryLock() {
		l.unlock()
		l.e.poller.revisit(l) // a reader may have found the lock taken meanwhile
	}
}

// drop gives a payload up in the middle.
func (l *link) drop() {
	in := &l.reading
	g := in.into.Load()
	if g == nil || !g.halted.Load() && !l.over.Load() || in.phase == inGet && !l.abandonGet() {
		return
	}
	l.forget(g)
}

// forget skips the rest of a payload.
func (l *link) forget(g *Group) {
	in := &l.reading
	l.wire.expect(1)
	in.skip = in.left()
	in.phase, in.dst, in.get.to = skipping, [2][]byte{}, [2][]byte{}
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
	drained := false
	for total := 0; !drained && total < readMost; {
		if slow, err = l.step(); slow || err != nil {
			return slow, err
		}
		n := 0
		if n, drained, err = l.receive(); err != nil {
			return false, err
		}
		total += n
	}
	in.more = !drained
	slow, err = l.step()
	if !slow && err == nil && in.phase == inPayload && in.h.Bytes >= longRead {
		// Of a long payload each wake-up is to bring much.
		l.wire.expect(min(in.left(), max(longRead, int(in.h.Bytes)/4)))
	}
	return slow, err
}

// left is how much of the payload is still to come.
func (in *reading) left() int { return len(in.dst[0]) + len(in.dst[1]) }

const (
	longTail       = 64 << 10
	longTailBuffer = 1 << 10
	leastScratch   = 128
)

// receive reads from the wire, once: into dst, and what comes behind it into the buffer. It returns
// how much has come, and whether that is all that is there.
func (l *link) receive() (n int, drained bool, err error) {
	in := &l.reading
	behind := in.in.room()
	iov := in.iov[:0]
	if in.phase == inPayload {
		for _, d := range in.dst {
			if len(d) > 0 {
				iov = append(iov, unix.Iovec{Base: unsafe.SliceData(d), Len: uint64(len(d))})
			}
		}
		if in.left() >= longTail {
			// the next payload is as long, and is not to be copied from here
			behind = behind[:longTailBuffer]
		}
	}
	iov = append(iov, unix.Iovec{Base: unsafe.SliceData(behind), Len: uint64(len(behind))})
	begin := trace.Begin()
	got, err := l.wire.recv(iov)
	if got.bytes > 0 {
		trace.Add(trace.SpanRead, begin, uint64(got.bytes))
	}
	clear(in.iov[:])
	if got.room {
		l.makeRoom()
	}
	if len(got.fds) > 0 {
		if in.fds = append(in.fds, got.fds...); len(in.fds) > maxRights {
			return 0, false, errors.New("more descriptors than frames that take them")
		}
	}
	if err == io.EOF && (in.phase != atHeader || in.in.w > 0) {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return 0, false, err
	}
	rest := got.bytes
	if in.phase == inPayload {
		for i, d := range in.dst {
			k := min(rest, len(d))
			in.dst[i] = d[k:]
			rest -= k
		}
	}
	in.in.w += rest
	return got.bytes, got.drained, nil
}

// step handles what has come, as far as it needs no more. It tells whether a slow frame is next.
func (l *link) step() (slow bool, err error) {
	in := &l.reading
	for {
		whole := true
		switch in.phase {
		case atSlow:
			return true, nil
		case atHeader:
			// A frame may be the peer's answer to a group that has come: the peer's attach comes
			// before.
			if in.claimed.Load() {
				return true, nil
			}
			whole, err = l.header()
		case inPayload:
			whole, err = l.payload()
		case inGet:
			whole, err = l.advanceGet()
		case skipping:
			k := min(in.skip, in.in.len())
			in.in.r += k
			in.skip -= k
			if whole = in.skip == 0; whole {
				l.ack()
				in.phase = atHeader
			}
		}
		if !whole || err != nil {
			return false, err
		}
	}
}

// header takes a header, with its advert. It tells whether that has come whole.
func (l *link) header() (whole bool, err error) {
	in := &l.reading
	b := in.in.unread()
	if len(b) < headerSize {
		return false, nil
	}
	if in.h, err = parseHeader((*[headerSize]byte)(b)); err != nil {
		return false, fmt.Errorf("%w: %w", ErrProtocol, err)
	}
	size := headerSize
	if in.h.advertised {
		if size += advertSize; len(b) < size {
			return false, nil
		}
		if err := l.readAdvert((*[advertSize]byte)(b[headerSize:])); err != nil {
			return false, err
		}
	}
	in.in.r += size
	return true, l.begin()
}

// payload fills dst. It tells whether that is full.
func (l *link) payload() (whole bool, err error) {
	in := &l.reading
	for i, d := range in.dst {
		k := copy(d, in.in.unread())
		in.dst[i] = d[k:]
		in.in.r += k
	}
	if in.left() > 0 {
		return false, nil
	}
	l.wire.expect(1)
	if in.h.advertised {
		return true, l.beginGet()
	}
	l.complete()
	return true, nil
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
	case typePing:
		return nil
	}
	l.mu.Lock()
	a := l.attachs[pairKey{h.Job, h.Group, h.Src, h.Dst}]
	l.mu.Unlock()
	switch {
	case a == nil:
		return violation(
			"a frame of job %x, group %x from rank %d to rank %d, which are not attached", h.Job,
			h.Group, h.Src, h.Dst)
	case h.Epoch > a.epoch:
		return violation("a frame of epoch %d, where %d is attached", h.Epoch, a.epoch)
	case h.Epoch < a.epoch || a.from == nil || a.from.over.Load():
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
		return fmt.Errorf("internal error: a slot of %d bytes for a payload of %d",
			len(head)+len(body), h.Bytes)
	}
	in.phase, in.dst = inPayload, [2][]byte{head, body}
	if h.advertised {
		in.split()
	}
	return nil
}

// toScratch reads the payload, whose length has been checked, into memory of the link.
func (l *link) toScratch() {
	in := &l.reading
	if uint32(cap(in.scratch)) < in.h.Bytes {
		in.scratch = make([]byte, max(in.h.Bytes, leastScratch))
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
