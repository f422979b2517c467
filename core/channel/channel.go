// Package channel carries what users put and get by themselves: one-sided communication between two
// ranks, without a call of the other one.
//
// # Model
//
// [Memory] is a part of a process's shareable memory that it has registered, or of a peer's that it
// has imported by a handle of 64 bytes. A [Channel] joins two ranks by a tag. It puts to memory of
// the peer and gets from it, and it has a count of signals each way. Who has taken a signal sees
// what was put before it on the same channel; nothing else is ordered. Channels stand beside
// collectives and sends: they use no lane, no queue and no plan.
//
// Two ends meet in the order in which they were opened: the first of a tag meets the peer's first,
// the second the second, whether one of them has been closed meanwhile or not. So no rank waits for
// the other to open, and both agree which ends belong together.
//
// Where the peer's memory is mapped here a channel is a memory channel: loads and stores, in C: see
// channel.h of package exec. Else it is a port channel: frames, of which the peer's reader places
// those of puts, serves those of gets and answers those of flushes. All frames of a link are read
// in order, so that a flush is answered once all before it is in place.
//
// # The end of memory
//
// A peer may be in the middle of a copy when memory is deregistered, or a channel closed, whose
// semaphore the peer writes. So its owner says so (DROP, CLOSE), the peer waits until none of its
// callers is in a copy any more, and answers (DROPPED, CLOSED). Until then nothing else is
// allocated there. What is not answered in an epoch comes back when no process maps its window any
// more: see package memory.
//
// Locks: Engine.mu is taken before Memories.mu, and neither is held when a frame is sent or a
// caller is waited for.
package channel

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"
	"unsafe"

	"github.com/goccl/goccl/core/exec"
	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/internal/serial"
	"github.com/goccl/goccl/core/transport"
	"github.com/goccl/goccl/core/work"
)

// The kinds of channel.
const (
	KindMemory = "memory"
	KindPort   = "port"
)

// Channel is this rank's end of a channel. Its methods may be called from any goroutine and thread.
type Channel struct {
	e         *Engine
	id        uint64 // by which the peer's frames name it
	peer, tag int
	forced    bool // to be a port channel
	end       *exec.ChannelEnd
	semaphore unsafe.Pointer
	background

	// Under Engine.mu:
	joined
	sent     uint64       // signals, of a port channel
	cause    *fault.Error // why it has ended
	attended bool         // the reader reads for it, though nobody waits
	closed   bool         // by its user
	acked    bool         // the peer stores no signals any more
	flushes  counted      // and those that are answered
	lost     losses       // of what was put to memory that was no more, or got from it
	refused  uint64       // memory that was no more when the peer put to it last; 0: none
	gets     counted      // and those that are here
	changed  change       // of these
}

// background is what goes on for a channel beside the calls of its user.
type background struct {
	triggers    serial.Queue // of proxies, that wait
	waits, puts turns        // of works
}

// joined is what an end knows of its peer's once they have met.
type joined struct {
	met      bool
	theirs   uint64 // the peer's id
	oneSided bool   // a port channel whose peer may signal by memory
	target   uint64 // Owner of the memory that it reaches
}

// counted is what has begun, and ends in order.
type counted struct{ begun, ended uint64 }

// Handle is the number by which callers in C name the channel.
func (c *Channel) Handle() uint64 { return c.end.Handle }

// Peer is the rank at the other end.
func (c *Channel) Peer() int { return c.peer }

// Tag is that by which it was opened.
func (c *Channel) Tag() int { return c.tag }

// Kind is [KindMemory] or [KindPort]: how this end reaches the other. Before the two have met it is
// what is expected.
func (c *Channel) Kind() string {
	switch c.end.State() {
	case exec.ChannelMemory:
		return KindMemory
	case exec.ChannelPort:
		return KindPort
	}
	if c.forced || c.e.Ports[c.peer] {
		return KindPort
	}
	return KindMemory
}

// windowTags is the first tag of a window. Those of users end before it.
const windowTags = math.MaxInt32 + 1

// WindowTag is the tag of the channels of a window, by its number: 0 to 2^31 - 1.
func WindowTag(number int) int { return number | windowTags }

// String names the channel in texts.
func (c *Channel) String() string {
	if c.tag >= windowTags {
		return fmt.Sprintf("channel to %s of window %d", c.e.Members.Names(c.peer), c.tag-windowTags)
	}
	return fmt.Sprintf("channel to %s with tag %d", c.e.Members.Names(c.peer), c.tag)
}

// errorf makes an error of a call, which leaves the channel as it is.
func (c *Channel) errorf(kind error, call, format string, args ...any) *fault.Error {
	return fault.Errorf(kind, "%s: %s: %s", c, call, fmt.Sprintf(format, args...)).
		In(c.e.Members).During("channel_"+call, 0).Blaming(c.peer)
}

// ended is the error of a call on a channel that has ended: with the communicator, or alone.
func (c *Channel) ended(call string, cause *fault.Error) *fault.Error {
	if cause.Error() == cause.Text {
		return c.errorf(cause.Kind, call, "%s", cause.Text).Blaming(cause.Ranks...)
	}
	if cause.Kind == fault.ErrRevoked {
		cause = cause.Hinting("Close the channel, and open it anew")
	}
	return cause.During("channel_"+call, 0).Ending(fmt.Sprintf("%s: %s", c, call), "")
}

// late is the error of a call whose time is up.
func (c *Channel) late(call string, timeout time.Duration, why string) *fault.Error {
	return c.errorf(fault.ErrTimeout, call, "timeout after %v: %s", timeout, why)
}

// limit is how long a call may take.
type limit struct {
	ctx   context.Context
	until time.Duration // its deadline, on exec's clock
	most  time.Duration // the time up to it, for texts
}

// lookTime is how long a call waits between two looks at whether its context was canceled.
const lookTime = 20 * time.Millisecond

// limit returns the limit of a call that begins now. A timeout of 0 is the communicator's.
func (e *Engine) limit(ctx context.Context, timeout time.Duration) limit {
	if timeout <= 0 {
		timeout = e.face.Timeout()
	}
	if end, ok := ctx.Deadline(); ok {
		timeout = min(timeout, max(time.Until(end), 1))
	}
	return limit{ctx, exec.Later(exec.Now(), timeout), timeout}
}

// next returns until when to wait before the next look.
func (l *limit) next() time.Duration {
	if l.ctx.Done() == nil {
		return l.until
	}
	return min(l.until, exec.Now()+lookTime)
}

// over returns the error of a call whose limit has come; nil: it has not.
func (c *Channel) over(call string, l *limit, why func() string) error {
	switch err := l.ctx.Err(); {
	case errors.Is(err, context.Canceled):
		return c.errorf(fault.ErrAborted, call, "%v", err)
	case err != nil || exec.Now() >= l.until:
		return c.late(call, l.most, why())
	}
	return nil
}

// Put copies to memory of the peer, from offset on. The source is free once Flush has returned.
// With signals the peer's count grows by so many afterwards. It fails at once where the memory is
// not the peer's, may not be written or is shorter.
func (c *Channel) Put(m *Memory, offset uint64, src []byte, signals uint64) error {
	return c.PutFrom(m, offset, unsafe.Pointer(unsafe.SliceData(src)), uint64(len(src)), signals)
}

// PutFrom is Put for memory that Go does not know.
func (c *Channel) PutFrom(
	m *Memory, offset uint64, src unsafe.Pointer, bytes, signals uint64,
) error {
	if c.store(m, offset, src, bytes, signals) { // mostly, and then nothing else is looked at
		return nil
	}
	l := c.e.limit(context.Background(), 0)
	return c.put(m, offset, src, bytes, signals, &l)
}

// store is a put in C, and reports whether that has carried it.
func (c *Channel) store(m *Memory, offset uint64, src unsafe.Pointer, bytes, signals uint64) bool {
	return c.end.Put(m.region.Handle, offset, src, bytes, signals) == exec.CarriedAll
}

func (c *Channel) put(
	m *Memory, offset uint64, src unsafe.Pointer, bytes, signals uint64, l *limit,
) error {
	call := "put"
	if signals > 0 {
		call = "put_signal"
	}
	for {
		port, err := c.prepare(call, m, exec.RemoteWrite, offset, bytes, l)
		switch {
		case err != nil:
			return err
		case src == nil && bytes > 0:
			return c.errorf(fault.ErrInvalidArgument, call, "src is NULL, and bytes is %d", bytes)
		case port:
			return c.send(call, m, offset, unsafe.Slice((*byte)(src), bytes), signals, l)
		case c.store(m, offset, src, bytes, signals):
			return nil
		case c.full(signals):
			return c.overflow(call, signals, c.end.Sent())
		}
	}
}

// Get copies from memory of the peer, from offset on. What it has got is there once Flush has
// returned; until then, or until the channel has been closed, nobody else uses dst.
func (c *Channel) Get(dst []byte, m *Memory, offset uint64) error {
	return c.GetTo(unsafe.Pointer(unsafe.SliceData(dst)), m, offset, uint64(len(dst)))
}

// GetTo is Get for memory that Go does not know.
func (c *Channel) GetTo(dst unsafe.Pointer, m *Memory, offset, bytes uint64) error {
	return c.getTo(dst, m, offset, bytes, nil)
}

// getTo is GetTo to memory of this rank, which is held until it has come; nil: its user sees to
// that.
func (c *Channel) getTo(dst unsafe.Pointer, m *Memory, offset, bytes uint64, held *Memory) error {
	const call = "get"
	get := func() bool { return c.end.Get(dst, m.region.Handle, offset, bytes) == exec.CarriedAll }
	if get() {
		return nil
	}
	l := c.e.limit(context.Background(), 0)
	for {
		port, err := c.prepare(call, m, exec.RemoteRead, offset, bytes, &l)
		switch {
		case err != nil:
			return err
		case dst == nil && bytes > 0:
			return c.errorf(fault.ErrInvalidArgument, call, "dst is NULL, and bytes is %d", bytes)
		case port:
			return c.request(m, offset, unsafe.Slice((*byte)(dst), bytes), held, &l)
		case get():
			return nil
		}
	}
}

// Signal adds n, which is 1 or more, to the peer's count.
func (c *Channel) Signal(n uint64) error {
	if n > 0 && c.end.Signal(n) == exec.CarriedAll {
		return nil
	}
	l := c.e.limit(context.Background(), 0)
	return c.signal(n, &l)
}

func (c *Channel) signal(n uint64, l *limit) error {
	const call = "signal"
	if n == 0 {
		return c.errorf(fault.ErrInvalidArgument, call, "n is 0, it must be 1 or more")
	}
	for {
		port, err := c.meet(call, l)
		switch {
		case err != nil:
			return err
		case port:
			theirs, err := c.count(call, n)
			if err != nil {
				return err
			}
			return c.sendSignals(call, theirs, n, l)
		case c.end.Signal(n) == exec.CarriedAll:
			return nil
		case c.full(n):
			return c.overflow(call, n, c.end.Sent())
		}
	}
}

// count counts signals that are to be sent over the link, and returns the peer's end.
func (c *Channel) count(call string, n uint64) (theirs uint64, err error) {
	c.e.mu.Lock()
	defer c.e.mu.Unlock()
	if n > math.MaxUint64-c.sent {
		return 0, c.overflow(call, n, c.sent)
	}
	c.sent += n
	return c.theirs, nil
}

// full reports whether signals do not fit the count of a memory channel any more.
func (c *Channel) full(n uint64) bool {
	return c.end.State() == exec.ChannelMemory && n > math.MaxUint64-c.end.Sent()
}

func (c *Channel) overflow(call string, n, sent uint64) error {
	return c.errorf(fault.ErrInvalidArgument, call, "n is %d, and %d signals were sent: a channel "+
		"has at most 2^64 - 1 in its life", n, sent)
}

// prepare finds out why C has not carried a copy. It returns an error, or what is to be done: to
// send it over a link, or to try again.
func (c *Channel) prepare(
	call string, m *Memory, right int, offset, bytes uint64, l *limit,
) (port bool, err error) {
	if c.end.State() >= exec.ChannelEnded {
		return false, c.ended(call, c.e.causeOf(c))
	}
	if err := m.check(c, call, right, offset, bytes); err != nil {
		return false, err
	}
	port, err = c.meet(call, l)
	if err == nil {
		err = m.checkOwner(c, call)
	}
	if err != nil {
		return false, err
	}
	if !port {
		err := c.e.resolve(m, c.peer)
		if err != nil && c.end.State() >= exec.ChannelEnded { // the epoch is over, and maps nothing
			return false, c.ended(call, c.e.causeOf(c))
		}
		if err != nil {
			return false, c.errorf(err.Kind, call, "%s", err.Text)
		}
	}
	return port, nil
}

// meet waits until the peer's end is known, and reports whether all goes over a link.
func (c *Channel) meet(call string, l *limit) (port bool, err error) {
	for {
		switch c.end.State() {
		case exec.ChannelMemory:
			return false, nil
		case exec.ChannelPort:
			return true, nil
		case exec.ChannelEnded, exec.ChannelGone:
			return false, c.ended(call, c.e.causeOf(c))
		}
		unmet := func() bool { return c.end.State() != exec.ChannelUnmet }
		if !c.e.bring(c, l.next(), unmet) {
			why := func() string { return "the peer has not opened its end" }
			if err := c.over(call, l, why); err != nil {
				return false, err
			}
		}
	}
}

// Wait takes n signals, which is 1 or more, once so many have come. A wait that fails takes none
// and may be repeated. A timeout of 0 is the communicator's; it ends with the context, too.
func (c *Channel) Wait(ctx context.Context, n uint64, timeout time.Duration) error {
	if n > 0 && c.end.Take(n, true) == exec.CarriedAll {
		return nil
	}
	l := c.e.limit(ctx, timeout)
	return c.take(n, &l)
}

func (c *Channel) take(n uint64, l *limit) error {
	const call = "wait"
	if n == 0 {
		return c.errorf(fault.ErrInvalidArgument, call, "n is 0, it must be 1 or more")
	}
	for {
		var taken, late bool
		switch state := c.end.State(); state {
		case exec.ChannelMemory:
			how := c.end.Await(n, state, l.next())
			taken, late = how == exec.CarriedAll, how == exec.CarriedLate
		case exec.ChannelUnmet, exec.ChannelPort:
			late = !c.e.bring(c, l.next(), func() bool {
				taken = taken || c.end.Take(n, false) == exec.CarriedAll
				return taken || c.end.State() != state
			})
		default:
			if c.end.Take(n, false) == exec.CarriedAll { // it came before the end
				return nil
			}
			return c.ended(call, c.e.causeOf(c))
		}
		switch {
		case taken:
			return nil
		case late:
			if err := c.over(call, l, func() string { return c.missing(n) }); err != nil {
				return err
			}
		}
	}
}

// missing tells what a wait misses.
func (c *Channel) missing(n uint64) string {
	text := fmt.Sprintf("%d of %d signals have come", c.end.Untaken(), n)
	if c.end.State() == exec.ChannelUnmet {
		text += ", and the peer has not opened its end"
	}
	return text
}

// Poll takes n signals if so many have come, and reports whether it did. It never waits.
func (c *Channel) Poll(n uint64) (taken bool, err error) {
	const call = "poll"
	if n == 0 {
		return false, c.errorf(fault.ErrInvalidArgument, call, "n is 0, it must be 1 or more")
	}
	if c.end.Take(n, false) == exec.CarriedAll {
		return true, nil
	}
	state := c.end.State()
	if state == exec.ChannelUnmet || state == exec.ChannelPort {
		c.e.pump(c.peer)
	}
	if c.end.Take(n, false) == exec.CarriedAll {
		return true, nil
	}
	if state == exec.ChannelEnded || state == exec.ChannelGone {
		return false, c.ended(call, c.e.causeOf(c))
	}
	return false, nil
}

// Flush waits until all puts on the channel that came before it are in the peer's memory, and all
// gets are here. A timeout of 0 is the communicator's; it ends with the context, too.
func (c *Channel) Flush(ctx context.Context, timeout time.Duration) error {
	l := c.e.limit(ctx, timeout)
	return c.flush(&l)
}

func (c *Channel) flush(l *limit) error {
	f, err := c.beginFlush(l)
	if err != nil {
		return err
	}
	return c.awaitFlush(f, l)
}

// flushing is a flush that has begun; its number is 0 where there is nothing to wait for.
type flushing struct {
	number, gets uint64
	puts         *uint64 // it is for what was put after the flush of this number; nil: for all
}

// beginFlush asks the peer to answer when all before is in place.
func (c *Channel) beginFlush(l *limit) (f flushing, err error) {
	const call = "flush"
	port, err := c.meet(call, l)
	if err != nil || !port {
		return f, err
	}
	c.e.mu.Lock()
	c.flushes.begun++
	f.number, f.gets = c.flushes.begun, c.gets.begun
	theirs := c.theirs
	c.e.mu.Unlock()
	h := transport.Header{Type: frameFlush, Seq: theirs, Arg: [2]uint64{f.number, c.id}}
	return f, c.post(call, h, l)
}

// awaitFlush waits for the answer.
func (c *Channel) awaitFlush(f flushing, l *limit) error {
	const call = "flush"
	if f.number == 0 {
		return nil
	}
	e := c.e
	answered := func() bool {
		e.mu.Lock()
		defer e.mu.Unlock()
		return c.flushes.ended >= f.number && c.gets.ended >= f.gets || c.cause != nil
	}
	for !answered() {
		if !e.bring(c, l.next(), answered) {
			why := func() string { return "the peer's process has not answered" }
			if err := c.over(call, l, why); err != nil {
				return err
			}
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if lost := c.lost.tell(f, c.flushes.begun); lost != nil {
		return lost
	}
	if c.flushes.ended >= f.number && c.gets.ended >= f.gets {
		return nil
	}
	return c.ended(call, c.cause)
}

// Close ends the channel on both sides, and its handle. It waits only for a piece of a get that is
// being read into its destination. What the peer was sent it can still take.
func (c *Channel) Close() { c.e.closeChannel(c) }

// send sends a put over the link.
func (c *Channel) send(
	call string, m *Memory, offset uint64, src []byte, signals uint64, l *limit,
) error {
	theirs, err := c.count(call, signals)
	if err != nil {
		return err
	}
	for len(src) > 0 {
		n := min(len(src), pieceMost)
		h := transport.Header{Type: transport.Data, Flags: putData, Seq: theirs,
			Arg: [2]uint64{uint64(m.id), offset}}
		if n == len(src) && signals <= math.MaxUint32 {
			h.Arg[0] |= signals << 32
			signals = 0
		}
		if err := c.post(call, h, l, src[:n]); err != nil {
			return err
		}
		src, offset = src[n:], offset+uint64(n)
	}
	if signals == 0 {
		return nil
	}
	return c.sendSignals(call, theirs, signals, l)
}

// sendSignals sends signals that are counted.
func (c *Channel) sendSignals(call string, theirs, n uint64, l *limit) error {
	h := transport.Header{Type: frameSignal, Seq: theirs, Arg: [2]uint64{n}}
	return c.post(call, h, l)
}

// post sends a frame to the peer.
func (c *Channel) post(call string, h transport.Header, l *limit, payload ...[]byte) error {
	e := c.e
	lent := len(payload) == 1 && e.lend(c.peer, payload[0], 0)
	// A peer may have taken it and gone since: that is no error of this call.
	if !lent && e.links.TrySend(c.peer, h, payload...) {
		return nil
	}
	ctx := work.WithDeadline(e.Context, l.until)
	defer ctx.End()
	err := e.send(ctx, c.peer, h, lent, payload...)
	if err == nil {
		return nil
	}
	if c.end.State() < exec.ChannelEnded && e.Context.Err() == nil && context.Cause(ctx) != nil {
		return c.late(call, l.most, "the peer takes nothing in")
	}
	return c.ended(call, e.lost(c.peer, err))
}
