package transport

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
	"unsafe"

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
func (a *Address) sharesPIDs(b *Address) bool {
	return a.PIDSpace != "" && a.PIDSpace == b.PIDSpace
}

// impostor tells why the other end of a Unix socket, which has these credentials here, is not the
// process that published an address. Numbers of other namespaces say nothing.
func (here *Address) impostor(published *Address, c *unix.Ucred) error {
	if here.UserSpace != "" && here.UserSpace == published.UserSpace &&
		int(c.Uid) != published.UID {
		return fmt.Errorf("it belongs to user %d instead of %d", c.Uid, published.UID)
	}
	if here.sharesPIDs(published) && int(c.Pid) != published.PID {
		return fmt.Errorf("it is process %d instead of %d", c.Pid, published.PID)
	}
	return nil
}

// peerOf is impostor for the other end of a connection.
func (e *Endpoint) peerOf(s *conn, published *Address) error {
	var c *unix.Ucred
	err := errNoDescriptor
	s.raw.Control(func(fd uintptr) {
		c, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err != nil {
		return fmt.Errorf("whose it is cannot be told: %w", err)
	}
	return e.address.impostor(published, c)
}

// PIDFD returns a descriptor that goes on naming a member's process when that has ended and another
// has its number; -1 where there is none to be had, or the process is this one. It stays open until
// the endpoint is closed, or DropEnded finds it of no more use. The error tells that the published
// number does not name that process here.
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
	// before Linux 5.3, or in a sandbox
	case errors.Is(err, unix.ENOSYS), errors.Is(err, unix.EPERM):
		fd, err = -1, nil
	default:
		fd, err = -1, fmt.Errorf("pidfd_open of pid %d: %w", a.PID, err)
	}
	return fd, err
}

// dupPIDFD is a copy of the descriptor that PIDFD has returned for a process; -1 where there is
// none. The endpoint may be closed meanwhile.
func (e *Endpoint) dupPIDFD(p ProcessID) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	kept, ok := e.pidfds[p]
	if !ok {
		return -1
	}
	fd, err := unix.FcntlInt(uintptr(kept), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return -1
	}
	return fd
}

// exits tells whether the process of a pidfd ends within a time. Of no descriptor it waits, and
// does not know.
func exits(fd int, within time.Duration) bool {
	over := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for end := time.Now().Add(within); ; {
		n, err := unix.Poll(over, max(0, int(time.Until(end).Milliseconds())))
		if !errors.Is(err, unix.EINTR) {
			return n == 1 && over[0].Revents&unix.POLLIN != 0
		}
	}
}

// Exited tells of a member whose link has ended whether its process has ended by itself, with
// status 0, and not by a signal or an error. It is false where the kernel does not tell: of another
// host, of another's process, and of one whose status has been taken, before Linux 6.15.
func (e *Endpoint) Exited(a *Address) bool {
	fd := e.dupPIDFD(a.Process)
	defer closeFDs([]int{fd})
	if fd < 0 || !e.isDead(a.Process) && !exits(fd, exitPatience) {
		return false
	}
	status, ok := exitStatus(a.PID)
	// The number is the process's for as long as it can be signalled.
	if !ok || unix.PidfdSendSignal(fd, 0, nil, 0) != nil {
		info := unix.PidfdInfo{Mask: unix.PIDFD_INFO_EXIT}
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.PIDFD_GET_INFO,
			uintptr(unsafe.Pointer(&info)))
		status, ok = int(info.Exit_code), errno == 0 && info.Mask&unix.PIDFD_INFO_EXIT != 0
	}
	return ok && status == 0
}

// exitStatus is the status of a process that is about to end, or has ended and its parent has not
// taken the status yet.
func exitStatus(pid int) (status int, ok bool) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, false
	}
	// The second field is a name in parentheses, which may hold some.
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	if len(fields) < 50 {
		return 0, false
	}
	status, err = strconv.Atoi(fields[49])
	return status, err == nil
}

// DropEnded closes the descriptors of processes that have ended and are members of no group that is
// attached here, and returns these processes.
func (e *Endpoint) DropEnded() (ended []ProcessID) {
	e.mu.Lock()
	defer e.mu.Unlock()
	members := map[ProcessID]bool{}
	for _, g := range e.groups {
		for _, m := range g.members {
			if m != nil {
				members[m.addr.Process] = true
			}
		}
	}
	for process, fd := range e.pidfds {
		if !members[process] && exits(fd, 0) {
			unix.Close(fd)
			delete(e.pidfds, process)
			ended = append(ended, process)
		}
	}
	return ended
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
