package transport

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// A Unix socket is open to all local users, and the name of an ended process's socket is free for
// anybody to take. So before a link carries descriptors both ends compare what the kernel says of
// the other with what it has published: the user, and the number of the process, by which its
// memory may be read.

// credentials completes an address with what the kernel tells peers of this process.
func (a *Address) credentials() {
	a.PID, a.UID = os.Getpid(), os.Geteuid()
	// Without /proc they stay empty, and no process shares this host.
	a.PIDSpace, _ = os.Readlink("/proc/self/ns/pid")
	a.UserSpace, _ = os.Readlink("/proc/self/ns/user")
}

// sharesPIDs tells whether a process has the same number for both.
func (a *Address) sharesPIDs(b *Address) bool { return a.PIDSpace != "" && a.PIDSpace == b.PIDSpace }

// impostor tells why the other end of a Unix socket, which has these credentials here, is not the
// process that published an address. Numbers of other namespaces say nothing.
func (here *Address) impostor(published *Address, c *unix.Ucred) error {
	if here.UserSpace != "" && here.UserSpace == published.UserSpace && int(c.Uid) != published.UID {
		return fmt.Errorf("it belongs to user %d instead of %d", c.Uid, published.UID)
	}
	if here.sharesPIDs(published) && int(c.Pid) != published.PID {
		return fmt.Errorf("it is process %d instead of %d", c.Pid, published.PID)
	}
	return nil
}

// peerOf is impostor for the other end of a connection.
func (e *Endpoint) peerOf(s *sock, published *Address) error {
	var c *unix.Ucred
	err := errNoDescriptor
	s.raw.Control(func(fd uintptr) { c, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err != nil {
		return fmt.Errorf("whose it is cannot be told: %w", err)
	}
	return e.address.impostor(published, c)
}

// PIDFD returns a descriptor that goes on naming a member's process when that has ended and another
// has its number; -1 where there is none to be had, or the process is this one. It stays open until
// the endpoint is closed. The error tells that the published number does not name that process
// here.
func (e *Endpoint) PIDFD(a *Address) (int, error) {
	if a.Process == e.id {
		return -1, nil
	}
	if !e.address.sharesPIDs(a) {
		return -1, errors.New("pid namespaces differ")
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return -1, ErrClosed
	}
	if fd, ok := e.pidfds[a.Process]; ok {
		return fd, nil
	}
	fd, err := unix.PidfdOpen(a.PID, 0)
	switch {
	case err == nil:
		e.pidfds[a.Process] = fd
	case errors.Is(err, unix.ENOSYS), errors.Is(err, unix.EPERM): // before Linux 5.3, or in a sandbox
		fd, err = -1, nil
	default:
		fd, err = -1, fmt.Errorf("pidfd_open of pid %d: %w", a.PID, err)
	}
	return fd, err
}

// closePIDFDs needs e.closed.
func (e *Endpoint) closePIDFDs() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, fd := range e.pidfds {
		unix.Close(fd)
	}
	e.pidfds = nil
}
