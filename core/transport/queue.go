package transport

import (
	"time"

	"golang.org/x/sys/unix"
)

// sendQueue holds the frames that a goroutine writes because their sender must not block. It is
// guarded by link.mu.
type sendQueue struct {
	frames   []queued
	bytes    int
	draining bool // the goroutine is there
}

// queued is a frame in a sendQueue.
type queued struct {
	h       Header
	payload []byte
	fds     []int   // passed along and then closed
	attach  *member // of an attach: it is told when the frame has been written
	last    bool    // no frame: close the sending half
}

func (q *queued) size() int { return len(q.payload) + headerSize }

// enqueue lets a goroutine write a frame. It tells whether the link still takes any.
func (l *link) enqueue(q queued) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.enqueueLocked(q)
}

// enqueueLocked needs l.mu.
func (l *link) enqueueLocked(q queued) bool {
	if l.ended || q.h.Type >= ControlBase && l.queue.bytes > maxQueued {
		closeFDs(q.fds)
		return false
	}
	l.queue.frames = append(l.queue.frames, q)
	l.queue.bytes += q.size()
	if !l.queue.draining {
		l.queue.draining = l.e.spawn("link queue", l.drain)
	}
	return true
}

// next takes the oldest frame out. There is one.
func (q *sendQueue) next() queued {
	f := q.frames[0]
	q.frames[0] = queued{}
	q.frames = q.frames[1:]
	q.bytes -= f.size()
	return f
}

// drop gives all frames up.
func (q *sendQueue) drop() {
	for _, f := range q.frames {
		closeFDs(f.fds)
	}
	q.frames, q.bytes = nil, 0
}

// drain writes the queue, and ends when it is empty.
func (l *link) drain() {
	w := &l.writing
	for {
		select {
		case w.lock <- struct{}{}:
		case <-l.done:
			return
		}
		l.mu.Lock()
		if len(l.queue.frames) == 0 || w.broken.Load() {
			l.queue.drop()
			l.queue.draining = false
			l.mu.Unlock()
			l.endTurn()
			return
		}
		q := l.queue.next()
		l.mu.Unlock()
		if q.last {
			l.closeWrites()
			l.endTurn()
			continue
		}
		l.load(&q.h, [][]byte{q.payload}, nil)
		if len(q.fds) > 0 {
			w.rights = unix.UnixRights(q.fds...)
		}
		written := l.writeOut()
		l.unload()
		closeFDs(q.fds)
		if written && q.attach != nil {
			q.attach.attachWritten(l)
		}
	}
}

// closeWrites closes the sending half, when all that has been written has reached the peer: over
// the connection it is told that no more comes.
func (l *link) closeWrites() {
	t := time.NewTicker(time.Millisecond)
	defer t.Stop()
	for l.delivers() {
		select {
		case <-l.done:
			return
		case <-t.C:
		}
	}
	l.conn.halfClose()
}
