package transport

import (
	"context"
	"errors"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// send writes a frame. It returns when the payload has gone to the kernel, or, with the context's
// error, when the context ends; then what is left of a frame begun is copied and sent later.
// Lent tells that the last piece of the payload has not gone anywhere.
func (l *link) send(ctx context.Context, g *Group, h *Header, payload [][]byte, how manner) (lent bool, err error) {
	if err := l.awaitTurn(ctx, how.reading); err != nil {
		return false, err
	}
	if g.leaving() { // its BYE may have been sent
		l.endTurn()
		return false, ErrClosed
	}
	if l.broken.Load() {
		l.endTurn()
		return false, errLinkEnded
	}
	var out *outstanding
	if how.lend {
		out = l.lend(g, h, payload)
	}
	l.load(h, payload, out)
	for l.flush(); l.writeErr == nil && len(l.rest) > 0; l.flush() {
		switch err := l.awaitRoom(ctx, how.reading); {
		case err == errLinkEnded:
			l.writeErr = err
		case err != nil:
			if l.wrote > 0 && l.finishLater() {
				return out != nil, nil
			}
			l.takeBack(out)
			l.unload()
			return false, err
		}
	}
	err = l.writeErr
	if err != nil {
		l.writeFailed(err)
		err = errLinkEnded
	}
	l.unload()
	return out != nil && err == nil, err
}

// awaitTurn waits until nobody else writes. Who has the poller's token reads meanwhile: the other writer may be waiting
// for somebody who does.
func (l *link) awaitTurn(ctx context.Context, reading bool) error {
	select {
	case l.lock <- struct{}{}:
		return nil
	default:
	}
	if !reading {
		select {
		case l.lock <- struct{}{}:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-l.done:
			return errLinkEnded
		}
	}
	l.turn.Store(turnWanted)
	for {
		var err error
		select {
		case l.lock <- struct{}{}:
			l.turn.Store(0)
			return nil
		case <-l.done:
			err = errLinkEnded
		default:
			if ctx.Err() != nil {
				err = context.Cause(ctx)
			}
		}
		switch {
		case err != nil && l.turn.CompareAndSwap(turnWanted, 0):
			return err
		case l.turn.CompareAndSwap(turnGiven, 0):
			return nil // if there is an error, the caller finds it
		}
		l.e.poller.Wait(waitMost(ctx))
	}
}

// What link.turn says of who has the poller's token and waits for his turn to write.
const (
	turnWanted = 1 // he waits
	turnGiven  = 2 // the lock is his
)

// await waits for a signal, or until the link or the context ends. Who has the poller's token reads meanwhile.
func (l *link) await(ctx context.Context, signal <-chan struct{}, reading bool) error {
	for reading {
		select {
		case <-signal:
			return nil
		case <-l.done:
			return errLinkEnded
		default:
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		l.e.poller.Wait(waitMost(ctx))
	}
	select {
	case <-signal:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-l.done:
		return errLinkEnded
	}
}

// waitMost is how long who reads may wait for what the context is for, before he looks around.
func waitMost(ctx context.Context) time.Duration {
	if t, ok := ctx.Deadline(); ok {
		return min(readSlice, max(time.Until(t), 0))
	}
	return readSlice
}

// trySend writes a frame if nobody else writes and there is room. It tells whether it did, or the link has ended.
func (l *link) trySend(g *Group, h *Header, payload [][]byte) bool {
	select {
	case l.lock <- struct{}{}:
	default:
		return false
	}
	if g.leaving() || l.broken.Load() {
		l.endTurn()
		return true
	}
	l.load(h, payload, nil)
	l.flush()
	switch {
	case l.writeErr != nil:
		l.writeFailed(l.writeErr)
	case len(l.rest) > 0 && l.wrote == 0:
		l.unload()
		return false
	case len(l.rest) > 0 && l.finishLater():
		return true
	}
	l.unload()
	return true
}

// awaitRoom waits until there may be room in the socket. Who has the poller's token, or can have it, reads meanwhile, so
// that the peer, who may be writing too, gets on.
func (l *link) awaitRoom(ctx context.Context, reading bool) error {
	p := l.e.poller
	if l.side.stream != nil {
		if l.askForRoom() {
			return nil
		}
	} else {
		p.watchWrites(l, true)
	}
	if !reading && p.Take() {
		reading = true
		defer p.Leave()
	}
	if !reading {
		p.Rely()
		defer p.Dismiss()
	}
	return l.await(ctx, l.room, reading)
}

var errLinkEnded = errors.New("the link has ended")

// load makes a frame the current one. The last piece of its payload may be lent.
func (l *link) load(h *Header, payload [][]byte, out *outstanding) {
	h.put((*[headerSize]byte)(l.header[:]))
	l.iov = append(l.iov[:0], unix.Iovec{Base: &l.header[0], Len: headerSize})
	if out != nil {
		out.loan.put((*[loanSize]byte)(l.header[headerSize:]))
		l.iov[0].Len += loanSize
		payload = payload[:len(payload)-1]
	}
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
	l.endTurn()
}

// endTurn lets the next writer write.
func (l *link) endTurn() {
	if l.turn.CompareAndSwap(turnWanted, turnGiven) { // else he would always come too late
		l.e.poller.Kick()
		return
	}
	<-l.lock
}

// flush sends what it can of the current frame.
func (l *link) flush() {
	if l.side.stream != nil {
		l.writeStream()
		return
	}
	if err := l.sock.raw.Control(l.attempt); err != nil && l.writeErr == nil {
		l.writeErr = err
	}
}

// write does not tell Go's scheduler of its calls; see recvmsg.
func (l *link) write(fd uintptr) {
	for len(l.rest) > 0 {
		n := min(len(l.rest), 1024)
		l.msg = unix.Msghdr{Iov: &l.rest[0], Iovlen: uint64(n)}
		if len(l.rights) > 0 {
			l.msg.Control = &l.rights[0]
			l.msg.SetControllen(len(l.rights))
		}
		r, _, errno := syscall.RawSyscall(unix.SYS_SENDMSG, fd, uintptr(unsafe.Pointer(&l.msg)), unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT)
		switch errno {
		case 0:
		case unix.EINTR:
			continue
		case unix.EAGAIN:
			return
		default:
			l.writeErr = errno
			return
		}
		l.rights = nil
		l.sent(int(r))
	}
}

// sent takes what has gone off the current frame.
func (l *link) sent(bytes int) {
	l.wrote += bytes
	for left := uint64(bytes); left > 0; {
		v := &l.rest[0]
		if left < v.Len {
			v.Base = (*byte)(unsafe.Add(unsafe.Pointer(v.Base), left))
			v.Len -= left
			break
		}
		left -= v.Len
		l.rest = l.rest[1:]
	}
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
	for l.flush(); l.writeErr == nil && len(l.rest) > 0; l.flush() {
		if err := l.awaitRoom(context.Background(), false); err != nil {
			l.writeErr = err
		}
	}
	if l.writeErr != nil {
		l.writeFailed(l.writeErr)
		return false
	}
	return true
}

// writeFailed ends the link for this reason, once what the peer has still said, such as a BYE, has been read.
func (l *link) writeFailed(err error) {
	if l.broken.Load() {
		return
	}
	l.because(err)
	l.broken.Store(true)
	time.AfterFunc(closeFlush, func() { l.end(err) })
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
		closeFDs(q.fds)
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
			l.endTurn()
			return
		}
		q := l.queue[0]
		l.queue[0] = queued{}
		l.queue = l.queue[1:]
		l.queued -= len(q.payload) + headerSize
		l.mu.Unlock()
		if q.last {
			if l.side.stream != nil {
				l.finishStream()
			}
			l.sock.halfClose()
			l.endTurn()
			continue
		}
		l.load(&q.h, [][]byte{q.payload}, nil)
		if len(q.fds) > 0 {
			l.rights = unix.UnixRights(q.fds...)
		}
		written := l.writeOut()
		l.unload()
		closeFDs(q.fds)
		if written && q.attach != nil {
			q.attach.announced(l)
		}
	}
}
