package transport

import (
	"context"
	"errors"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// writing is the sending half of a link: the frame that is being written. The writer is the
// goroutine that has put a token into lock; the fields below broken are the writer's.
type writing struct {
	lock chan struct{}
	// of the poller's holder, that waits to be the writer: turnWanted, turnGiven
	turn   atomic.Int32
	room   chan struct{} // a signal to the writer: there may be room again
	broken atomic.Bool   // writing has failed

	header [headerSize + advertSize]byte
	iov    []unix.Iovec
	rest   []unix.Iovec // of iov: not yet sent
	wrote  int          // bytes of the current frame
	rights []byte       // a control message that goes with its first byte
	err    error        // why the current frame cannot be written
}

// What writing.turn says of the holder of the poller's token, that waits to be the writer.
const (
	turnWanted = 1 // it waits
	turnGiven  = 2 // the lock is its own
)

var errLinkEnded = errors.New("the link has ended")

// send writes a frame. It returns when the wire has taken the payload, or, with the context's
// error, when the context ends; then what is left of a frame begun is copied and sent later.
// Advertised tells that the last piece of the payload has not gone anywhere: the peer reads it.
func (l *link) send(ctx context.Context, g *Group, h *Header, payload [][]byte, how manner) (
	advertised bool, err error) {
	w := &l.writing
	if err := l.awaitTurn(ctx, how.reading); err != nil {
		return false, err
	}
	if g.leaving() { // its BYE may have been sent
		l.endTurn()
		return false, ErrClosed
	}
	if w.broken.Load() {
		l.endTurn()
		return false, errLinkEnded
	}
	var ad *unacked
	if how.advertise {
		ad = l.advertise(g, h, payload)
	}
	l.load(h, payload, ad)
	for l.flush(); w.err == nil && len(w.rest) > 0; l.flush() {
		switch err := l.awaitRoom(ctx, how.reading); {
		case err == errLinkEnded:
			w.err = err
		case err != nil:
			if w.wrote > 0 && l.finishLater() {
				return ad != nil, nil
			}
			l.withdraw(ad)
			l.unload()
			return false, err
		}
	}
	err = w.err
	if err != nil {
		l.writeFailed(err)
		err = errLinkEnded
	}
	l.unload()
	return ad != nil && err == nil, err
}

// awaitTurn waits until no other goroutine writes. The holder of the poller's token reads
// meanwhile: the other writer may be waiting for what only a reader brings.
func (l *link) awaitTurn(ctx context.Context, reading bool) error {
	w := &l.writing
	select {
	case w.lock <- struct{}{}:
		return nil
	default:
	}
	if !reading {
		select {
		case w.lock <- struct{}{}:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-l.done:
			return errLinkEnded
		}
	}
	w.turn.Store(turnWanted)
	for {
		var err error
		select {
		case w.lock <- struct{}{}:
			w.turn.Store(0)
			return nil
		case <-l.done:
			err = errLinkEnded
		default:
			if ctx.Err() != nil {
				err = context.Cause(ctx)
			}
		}
		switch {
		case err != nil && w.turn.CompareAndSwap(turnWanted, 0):
			return err
		case w.turn.CompareAndSwap(turnGiven, 0):
			return nil // if there is an error, the caller finds it
		}
		l.e.poller.Wait(waitMost(ctx))
	}
}

// await waits for a signal, or until the link or the context ends. The holder of the poller's token
// reads meanwhile.
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

// waitMost is how long the holder of the poller's token may wait there before it looks whether the
// context has ended.
func waitMost(ctx context.Context) time.Duration {
	if t, ok := ctx.Deadline(); ok {
		return min(readSlice, max(time.Until(t), 0))
	}
	return readSlice
}

// trySend writes a frame if no other goroutine writes and there is room. It tells whether it did,
// or the link has ended.
func (l *link) trySend(g *Group, h *Header, payload [][]byte) bool {
	w := &l.writing
	select {
	case w.lock <- struct{}{}:
	default:
		return false
	}
	if g.leaving() || w.broken.Load() {
		l.endTurn()
		return true
	}
	l.load(h, payload, nil)
	l.flush()
	switch {
	case w.err != nil:
		l.writeFailed(w.err)
	case len(w.rest) > 0 && w.wrote == 0:
		l.unload()
		return false
	case len(w.rest) > 0 && l.finishLater():
		return true
	}
	l.unload()
	return true
}

// awaitRoom waits until the wire may take more. A caller that holds the poller's token, or can have
// it, reads meanwhile, so that the peer, which may be writing too, gets on.
func (l *link) awaitRoom(ctx context.Context, reading bool) error {
	p := l.e.poller
	if l.wire.askRoom() {
		return nil
	}
	p.watchWrites(l, true)
	if !reading && p.Take() {
		reading = true
		defer p.Leave()
	}
	if !reading {
		p.StartProgress()
		defer p.StopProgress()
	}
	return l.await(ctx, l.writing.room, reading)
}

// makeRoom lets a writer that waits for room try again.
func (l *link) makeRoom() {
	l.e.poller.watchWrites(l, false)
	select {
	case l.writing.room <- struct{}{}:
	default:
	}
}

// load makes a frame the current one. Of one whose last piece is advertised, the advert goes in its
// place.
func (l *link) load(h *Header, payload [][]byte, ad *unacked) {
	w := &l.writing
	h.put((*[headerSize]byte)(w.header[:]))
	w.iov = append(w.iov[:0], unix.Iovec{Base: &w.header[0], Len: headerSize})
	if ad != nil {
		ad.put((*[advertSize]byte)(w.header[headerSize:]))
		w.iov[0].Len += advertSize
		payload = payload[:len(payload)-1]
	}
	for _, p := range payload {
		if len(p) > 0 {
			w.iov = append(w.iov, unix.Iovec{Base: unsafe.SliceData(p), Len: uint64(len(p))})
		}
	}
	w.rest, w.wrote, w.err = w.iov, 0, nil
}

// unload lets go of the current frame, and of the turn to write.
func (l *link) unload() {
	w := &l.writing
	clear(w.iov)
	w.rest, w.rights = nil, nil
	l.endTurn()
}

// endTurn lets the next writer write.
func (l *link) endTurn() {
	// The poller's holder looks seldom: it would always find the lock taken by another.
	if l.writing.turn.CompareAndSwap(turnWanted, turnGiven) {
		l.e.poller.Kick()
		return
	}
	<-l.writing.lock
}

// flush sends what the wire takes of the current frame.
func (l *link) flush() {
	w := &l.writing
	for len(w.rest) > 0 {
		n, err := l.wire.send(w.rest, w.rights)
		if err != nil {
			w.err = err
			return
		}
		if n == 0 {
			return
		}
		w.rights = nil
		w.sent(n)
	}
}

// sent takes what has gone off the current frame.
func (w *writing) sent(bytes int) {
	w.wrote += bytes
	for left := uint64(bytes); left > 0; {
		v := &w.rest[0]
		if left < v.Len {
			v.Base = (*byte)(unsafe.Add(unsafe.Pointer(v.Base), left))
			v.Len -= left
			break
		}
		left -= v.Len
		w.rest = w.rest[1:]
	}
}

// finishLater copies the rest of the current frame and lets a goroutine send it, which then gives
// the link to the next writer.
func (l *link) finishLater() bool {
	w := &l.writing
	size := 0
	for _, v := range w.rest {
		size += int(v.Len)
	}
	rest := make([]byte, 0, size)
	for _, v := range w.rest {
		rest = append(rest, unsafe.Slice(v.Base, v.Len)...)
	}
	clear(w.iov)
	w.iov = append(w.iov[:0], unix.Iovec{Base: &rest[0], Len: uint64(len(rest))})
	w.rest = w.iov
	ok := l.e.spawn("link writer", func() { l.writeOut(); l.unload() })
	if !ok {
		l.writeFailed(ErrClosed)
	}
	return ok
}

// writeOut sends the current frame, however long it takes.
func (l *link) writeOut() bool {
	w := &l.writing
	for l.flush(); w.err == nil && len(w.rest) > 0; l.flush() {
		if err := l.awaitRoom(context.Background(), false); err != nil {
			w.err = err
		}
	}
	if w.err != nil {
		l.writeFailed(w.err)
		return false
	}
	return true
}

// writeFailed ends the link for this reason, once what the peer has still said, such as a BYE, has
// been read.
func (l *link) writeFailed(err error) {
	if l.writing.broken.Load() {
		return
	}
	l.because(err)
	l.writing.broken.Store(true)
	time.AfterFunc(closeFlush, func() { l.end(err) })
}
