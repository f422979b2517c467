package transport

import "golang.org/x/sys/unix"

// wire carries a link's bytes, in order and both ways: a socket, or an RDMA queue pair. The link's
// reading and writing know nothing else of what is below them. (Whether the receiver may read the
// sender's memory is the business of get.go, which only knows queue pairs.)
//
// No method waits. The link's reader (see reading.lock) calls recv and expect, the link's writer
// (see writing.turn) calls send and askRoom, and the holder of the poller's token calls ready.
// These three may run at once. The other methods may be called at any time.
type wire interface {
	// kind is what carries the bytes: Shm, TCP or Verbs.
	kind() string
	// fds are the descriptors that the poller watches. They do not change.
	fds() []watched
	// ready takes what the kernel reports of one of them. It tells whether the link is to be read,
	// and whether a writer that has asked for room may try again.
	ready(fd int, events uint32) (read, room bool)
	// recv reads once, into at least one byte of memory. The end of the peer's bytes is io.EOF.
	recv(into []unix.Iovec) (received, error)
	// expect says how many bytes are to be there before a descriptor reports them: a hint.
	expect(bytes int)
	// send writes once, and returns how many bytes it took: none where there is no room. The rights
	// (a control message that passes descriptors) go with the first byte.
	send(from []unix.Iovec, rights []byte) (int, error)
	// askRoom tells whether there may be room already. If not, ready or recv tell when there is, as
	// long as the poller watches for the link's writes.
	askRoom() bool
	// flushed tells whether all that was sent gets to the peer even if this side closes the link.
	flushed() bool
	// close gives back what the wire has beside the link's connection. What recv was to fill is
	// left alone from then on. It may be called more than once.
	close()
}

// watched is a descriptor of a wire, with the epoll events that the poller asks for while the link
// is read (in) and while a writer waits for room (out).
type watched struct {
	fd      int
	in, out uint32
}

// received is what one call of recv has brought.
type received struct {
	bytes   int
	drained bool // nothing is left: a descriptor reports what comes next
	room    bool // a writer that has asked for room may try again
	// descriptors that the peer has passed; lostRights in place of a frame's that were lost
	fds []int
}
