package transport

import (
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goccl/goccl/core/address"
	"github.com/goccl/goccl/rdma"
)

// queuePair is the wire of an RDMA queue pair, beside which the link's connection stays: its end is
// that of the peer's bytes, too.
type queuePair struct {
	end    *verbsEnd
	stream *rdma.Stream
	conn   *conn
	fail   func(error) // ends the link

	rung   atomic.Bool // the stream's descriptor has been reported
	spoken atomic.Bool // so has the connection's
	wants  atomic.Bool // a writer has asked for room

	// The reader's.
	gone    error // the connection has ended
	late    bool  // so the link ends soon
	getting bool  // the peer's memory is being read
	acks    uint32

	mu      sync.Mutex // guards what follows
	unacked []*unacked // in the order of their frames
	closed  bool
}

// newQueuePair makes the wire of a stream that works. Fail ends the link.
func newQueuePair(end *verbsEnd, s *rdma.Stream, c *conn, fail func(error)) *queuePair {
	q := &queuePair{end: end, stream: s, conn: c, fail: fail}
	end.mu.Lock()
	end.pairs[q] = struct{}{}
	end.mu.Unlock()
	return q
}

func (q *queuePair) kind() string { return address.Verbs }

// fds has the connection reported once for each event (EPOLLET): its end stays, and what a peer
// that has ended has sent over the queue pair is still to be read.
func (q *queuePair) fds() []watched {
	return []watched{
		{fd: q.stream.FD(), in: unix.EPOLLIN},
		{fd: q.conn.fd, in: unix.EPOLLIN | unix.EPOLLRDHUP | unix.EPOLLET},
	}
}

func (q *queuePair) ready(fd int, _ uint32) (read, room bool) {
	if fd == q.conn.fd {
		q.spoken.Store(true)
	} else {
		q.rung.Store(true)
	}
	return true, false // recv tells of room
}

func (q *queuePair) recv(into []unix.Iovec) (got received, err error) {
	if q.rung.Swap(false) {
		q.stream.Wake()
		got.room = q.wants.Load() && q.stream.Ask()
	}
	if q.spoken.Swap(false) && q.gone == nil {
		q.gone = q.listen()
	}
	n, room, err := q.stream.Read(&into[0], len(into))
	got.bytes, got.drained, got.room = n, n == 0, got.room || room
	if got.room {
		q.wants.Store(false)
	}
	if err := q.takeAcks(); err != nil {
		return got, err
	}
	switch {
	case n > 0:
	case q.gone != nil && q.getting: // what the peer has said last lies behind that
		if gone := q.gone; !q.late {
			q.late = true
			time.AfterFunc(closeFlush, func() { q.fail(gone) })
		}
	case q.gone != nil: // all that it had sent before has come
		return got, q.gone
	case err != nil:
		return got, q.broke(err)
	}
	return got, nil
}

func (q *queuePair) expect(int) {}

func (q *queuePair) send(from []unix.Iovec, _ []byte) (int, error) {
	n, err := q.stream.Write(&from[0], min(len(from), maxPieces))
	switch {
	case errors.Is(err, rdma.ErrClosed):
		return n, errLinkEnded
	case err != nil:
		return n, q.broke(err)
	}
	return n, nil
}

func (q *queuePair) askRoom() bool {
	q.wants.Store(true)
	return q.stream.Ask()
}

// flushed waits for the adapter: what a peer has not acknowledged may have to be sent again.
func (q *queuePair) flushed() bool {
	all, err := q.stream.Flush()
	return all || err != nil
}

func (q *queuePair) close() {
	q.mu.Lock()
	closed := q.closed
	q.closed = true
	q.mu.Unlock()
	if closed {
		return
	}
	q.end.mu.Lock()
	delete(q.end.pairs, q)
	q.end.mu.Unlock()
	q.end.drop(q.stream)
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, ad := range q.unacked { // nothing reads them any more
		q.end.unuse(ad.uses)
	}
	q.unacked = nil
}

// listen tells why the connection has been reported: nothing is to come over it but its end.
func (q *queuePair) listen() error {
	var b [1]byte
	n, err := 0, errNoDescriptor
	if e := q.conn.raw.Control(func(fd uintptr) {
		n, _, err = unix.Recvfrom(int(fd), b[:], unix.MSG_DONTWAIT)
	}); e != nil {
		return e
	}
	switch {
	case err == unix.EINTR:
		q.spoken.Store(true) // looked at again by the next recv
		return nil
	case err == unix.EAGAIN:
		return nil
	case err != nil:
		return err
	case n == 0:
		return io.EOF
	}
	return violation("something came beside a verbs link")
}

// broke is why a link has to end whose queue pair is broken.
func (q *queuePair) broke(err error) error {
	if errors.Is(err, rdma.ErrProtocol) {
		return fmt.Errorf("%w: %w", ErrProtocol, err)
	}
	q.end.hear(q.end.device) // which says more, if all of it has failed
	return err
}
