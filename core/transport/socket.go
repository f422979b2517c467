package transport

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/goccl/goccl/core/address"
)

// socket is the wire of a Unix or TCP connection that has been detached from Go's poller.
type socket struct {
	conn    *conn
	carries string // Shm or TCP

	// The reader's.
	in struct {
		msg      unix.Msghdr
		oob      [64]byte
		bytes    int
		errno    syscall.Errno
		attempt  func(uintptr) // recvmsg, bound once
		expected int           // bytes that wake the reader; 0 means 1
		small    bool          // the kernel's buffer does not grow with them
	}
	// The writer's.
	out struct {
		msg     unix.Msghdr
		bytes   int
		errno   syscall.Errno
		attempt func(uintptr) // sendmsg, bound once
	}
}

const (
	maxRights  = 64
	lostRights = -1 // in place of a frame's descriptors, of which this process can open no more

	// maxPieces is how many pieces of memory one sendmsg takes (UIO_MAXIOV).
	maxPieces = 1024
)

func newSocket(c *conn, kind string) *socket {
	w := &socket{conn: c, carries: kind}
	w.in.attempt, w.out.attempt = w.recvmsg, w.sendmsg
	return w
}

func (w *socket) kind() string { return w.carries }

func (w *socket) fds() []watched {
	return []watched{{fd: w.conn.fd, in: unix.EPOLLIN | unix.EPOLLRDHUP, out: unix.EPOLLOUT}}
}

func (w *socket) ready(_ int, events uint32) (read, room bool) {
	const failed = unix.EPOLLERR | unix.EPOLLHUP
	return events&^unix.EPOLLOUT != 0, events&(unix.EPOLLOUT|failed) != 0
}

func (w *socket) recv(into []unix.Iovec) (got received, err error) {
	r := &w.in
	r.msg = unix.Msghdr{Iov: &into[0], Iovlen: uint64(len(into))}
	if w.carries == address.Shm {
		r.msg.Control = &r.oob[0]
		r.msg.SetControllen(len(r.oob))
	}
	if err := w.conn.raw.Control(r.attempt); err != nil {
		return got, err
	}
	switch {
	case r.errno == unix.EAGAIN:
		return received{drained: true}, nil
	case r.errno != 0:
		return got, r.errno
	}
	if w.carries == address.Shm {
		got.fds = rights(r.oob[:r.msg.Controllen])
		if r.msg.Flags&unix.MSG_CTRUNC != 0 {
			closeFDs(got.fds)
			got.fds = []int{lostRights}
		}
	}
	if r.bytes == 0 {
		return got, io.EOF
	}
	room := 0
	for i := range into {
		room += int(into[i].Len)
	}
	// if the socket has ended, the kernel reports that
	got.bytes, got.drained = r.bytes, r.bytes < room
	return got, nil
}

// recvmsg does not tell Go's scheduler of the call, which never waits: else its monitor would look
// after the thread, over a thousand times a second, and take the CPU from ranks.
func (w *socket) recvmsg(fd uintptr) {
	r := &w.in
	for {
		n, _, errno := syscall.RawSyscall(unix.SYS_RECVMSG, fd, uintptr(unsafe.Pointer(&r.msg)),
			unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC)
		if errno != unix.EINTR {
			r.bytes, r.errno = int(n), errno
			return
		}
	}
}

// expect sets SO_RCVLOWAT. Before Linux 4.18 the kernel's buffer may be too small for that much
// ever to be there.
func (w *socket) expect(bytes int) {
	r := &w.in
	if bytes == max(r.expected, 1) || r.small {
		return
	}
	r.expected = bytes
	w.conn.raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVLOWAT, bytes)
		room, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF)
		if err != nil || room < bytes {
			r.small = true
			_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVLOWAT, 1)
		}
	})
}

func (w *socket) send(from []unix.Iovec, rights []byte) (int, error) {
	t := &w.out
	t.msg = unix.Msghdr{Iov: &from[0], Iovlen: uint64(min(len(from), maxPieces))}
	if len(rights) > 0 {
		t.msg.Control = &rights[0]
		t.msg.SetControllen(len(rights))
	}
	if err := w.conn.raw.Control(t.attempt); err != nil {
		return 0, err
	}
	switch {
	case t.errno == unix.EAGAIN:
		return 0, nil
	case t.errno != 0:
		return 0, t.errno
	}
	return t.bytes, nil
}

// sendmsg does not tell Go's scheduler of the call; see recvmsg.
func (w *socket) sendmsg(fd uintptr) {
	t := &w.out
	for {
		n, _, errno := syscall.RawSyscall(unix.SYS_SENDMSG, fd, uintptr(unsafe.Pointer(&t.msg)),
			unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT)
		if errno != unix.EINTR {
			t.bytes, t.errno = int(n), errno
			return
		}
	}
}

// askRoom leaves it to EPOLLOUT, which the kernel reports at once if there is room.
func (w *socket) askRoom() bool { return false }

// flushed is true, as the kernel goes on with what it took when the socket has been closed.
func (w *socket) flushed() bool { return true }

func (w *socket) close() {}

// conn is a connection whose descriptor is reported to Config.OnFD while it is open.
type conn struct {
	net.Conn
	file   *os.File // in place of Conn, once it has been detached
	raw    syscall.RawConn
	fd     int
	closer sync.Once
	onFD   func(int, bool)
}

func (e *Endpoint) newConn(c net.Conn) *conn {
	s := &conn{Conn: c, fd: -1, onFD: e.onFD}
	s.raw, _ = c.(syscall.Conn).SyscallConn() // fails for a nil connection only
	s.raw.Control(func(f uintptr) { s.fd = int(f) })
	e.onFD(s.fd, true)
	return s
}

// Close ends the connection even where a forked child holds a copy of the descriptor.
func (s *conn) Close() error {
	s.closer.Do(func() {
		s.raw.Control(func(f uintptr) { syscall.Shutdown(int(f), syscall.SHUT_RDWR) })
		s.onFD(s.fd, false)
		if s.file != nil {
			s.file.Close()
		} else {
			s.Conn.Close()
		}
	})
	return nil
}

var errNoDescriptor = errors.New("no descriptor")

// detach takes the connection away from Go's poller, which would be woken by all that comes.
func (s *conn) detach() error {
	fd, err := -1, errNoDescriptor
	s.raw.Control(func(f uintptr) { fd, err = unix.FcntlInt(f, unix.F_DUPFD_CLOEXEC, 0) })
	if err == nil {
		// one that never blocks os.File would give to the poller, too
		err = unix.SetNonblock(fd, false)
	}
	if err != nil {
		closeFDs([]int{fd})
		return fmt.Errorf("taking over a connection: %w", err)
	}
	file := os.NewFile(uintptr(fd), "link")
	raw, err := file.SyscallConn()
	if err != nil {
		file.Close()
		return fmt.Errorf("taking over a connection: %w", err)
	}
	s.onFD(fd, true)
	s.onFD(s.fd, false)
	s.Conn.Close()
	s.file, s.raw, s.fd = file, raw, fd
	return nil
}

// Write implements io.Writer. Of a detached connection it waits without end; links have their own
// ways.
func (s *conn) Write(b []byte) (n int, err error) {
	if s.file == nil {
		return s.Conn.Write(b)
	}
	for n < len(b) && err == nil {
		k := 0
		if e := s.raw.Control(func(fd uintptr) {
			k, err = unix.SendmsgN(int(fd), b[n:], nil, nil, unix.MSG_NOSIGNAL)
		}); e != nil {
			err = e
		}
		n += k
	}
	return n, err
}

// halfClose says that no more will be sent.
func (s *conn) halfClose() {
	s.raw.Control(func(f uintptr) { syscall.Shutdown(int(f), syscall.SHUT_WR) })
}

// remote names the other side in logs: without the port, so that a scanner is one line.
func (s *conn) remote() string {
	if t, ok := s.RemoteAddr().(*net.TCPAddr); ok {
		return t.IP.String()
	}
	return s.unixPeer()
}

// unixPeer names the other side of a Unix socket.
func (s *conn) unixPeer() string {
	who := "a local process"
	s.raw.Control(func(f uintptr) {
		if c, err := unix.GetsockoptUcred(int(f), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			who = fmt.Sprintf("local process %d of user %d", c.Pid, c.Uid)
		}
	})
	return who
}
