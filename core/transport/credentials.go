package transport

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/goccl/goccl/core/address"
)

// A Unix socket is open to all local users, and the name of an ended process's socket is free for
// anybody to take. So before a link carries descriptors both ends compare what the kernel says of
// the other with what it has published: the user, and the number of the process, by which its
// memory may be read.

// addCredentials completes an address with what the kernel tells peers of this process.
func addCredentials(a *address.Address) {
	a.PID, a.UID = os.Getpid(), os.Geteuid()
	// Without /proc they stay empty, and no process shares this host.
	a.PIDSpace, _ = os.Readlink("/proc/self/ns/pid")
	a.UserSpace, _ = os.Readlink("/proc/self/ns/user")
}

// impostor tells why the other end of a Unix socket, which has these credentials here, is not the
// process that published an address. Numbers of other namespaces say nothing.
func impostor(here, published *address.Address, c *unix.Ucred) error {
	if here.UserSpace != "" && here.UserSpace == published.UserSpace &&
		int(c.Uid) != published.UID {
		return fmt.Errorf("it belongs to user %d instead of %d", c.Uid, published.UID)
	}
	if here.SharesPIDs(published) && int(c.Pid) != published.PID {
		return fmt.Errorf("it is process %d instead of %d", c.Pid, published.PID)
	}
	return nil
}

// peerOf is impostor for the other end of a connection.
func (e *Endpoint) peerOf(s *conn, published *address.Address) error {
	var c *unix.Ucred
	err := errNoDescriptor
	s.raw.Control(func(fd uintptr) {
		c, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err != nil {
		return fmt.Errorf("whose it is cannot be told: %w", err)
	}
	return impostor(&e.address, published, c)
}

// process is what an endpoint holds of another process of its host.
type process struct {
	uses int // Hold less Release
	pid  int // as its address tells
	fd   int // its pidfd; -1: none is to be had
	// The kernel has told, over a link whose two ends have proved themselves, that the descriptor is
	// the member's. Before that it is of the process that has the number.
	proved bool
}

// Hold keeps a descriptor of a member's process on this host until Release. It goes on naming the
// process when that has ended and another has its number. It is -1 where none is to be had: of this
// process, of one that has ended or is in another pid namespace, before Linux 5.3, or in a sandbox.
func (e *Endpoint) Hold(a *address.Address) (fd int) {
	if a.Process == e.id {
		return -1
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return -1
	}
	p := e.processes[a.Process]
	if p == nil {
		p = &process{pid: a.PID, fd: -1}
		e.processes[a.Process] = p
		if e.address.SharesPIDs(a) {
			if fd, err := unix.PidfdOpen(a.PID, 0); err == nil {
				p.fd = fd
			}
		}
		if link := e.peers[peerKey{a.Process, address.Shm}]; link != nil && link.link != nil {
			e.prove(link.link)
		}
	}
	p.uses++
	return p.fd
}

// Release gives back one Hold. It reports whether that was the last one of the process.
func (e *Endpoint) Release(id address.ProcessID) (last bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	p := e.processes[id]
	if p == nil {
		return false
	}
	if p.uses--; p.uses > 0 {
		return false
	}
	closeFDs([]int{p.fd})
	delete(e.processes, id)
	return true
}

// peerPIDFD is SO_PEERPIDFD, except in tests.
var peerPIDFD = unix.SO_PEERPIDFD

// prove makes the descriptor of a process the one that the kernel gives of the other end of a link.
// It needs e.mu. The number that the kernel gives has been compared when the link was made.
func (e *Endpoint) prove(l *link) {
	p := e.processes[l.key.process]
	if p == nil || l.key.kind != address.Shm || l.peer.PID != p.pid || !e.address.SharesPIDs(l.peer) {
		return
	}
	fd, err := -1, errNoDescriptor
	var c *unix.Ucred
	l.conn.raw.Control(func(s uintptr) {
		if fd, err = unix.GetsockoptInt(int(s), unix.SOL_SOCKET, peerPIDFD); err != nil {
			c, _ = unix.GetsockoptUcred(int(s), unix.SOL_SOCKET, unix.SO_PEERCRED)
		}
	})
	switch {
	case err == nil && p.fd < 0:
		p.fd, p.proved = fd, true
	case err == nil:
		// by its number others know the descriptor
		p.proved = unix.Dup3(fd, p.fd, unix.O_CLOEXEC) == nil
		unix.Close(fd)
	case errors.Is(err, unix.ENOPROTOOPT) && c != nil && p.fd >= 0: // before Linux 6.5
		// The process that has the number lives, as the peer does, and is of the same user. So it is
		// the peer's, or one that the peer could kill itself.
		var owner unix.Stat_t
		p.proved = unix.Stat(fmt.Sprintf("/proc/%d", p.pid), &owner) == nil && owner.Uid == c.Uid &&
			unix.PidfdSendSignal(p.fd, 0, nil, 0) == nil
	}
}

// pidfdOf is a copy of the descriptor that is held of a process, -1 where there is none, the number
// of the process, and whether a link has proved it. The endpoint may be closed meanwhile.
func (e *Endpoint) pidfdOf(id address.ProcessID) (fd, pid int, proved bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	p := e.processes[id]
	if p == nil || p.fd < 0 {
		return -1, 0, false
	}
	fd, err := unix.FcntlInt(uintptr(p.fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return -1, 0, false
	}
	return fd, p.pid, p.proved
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
func (e *Endpoint) Exited(a *address.Address) bool {
	fd, pid, _ := e.pidfdOf(a.Process)
	defer closeFDs([]int{fd})
	if fd < 0 || !e.isDead(a.Process) && !exits(fd, exitPatience) {
		return false
	}
	status, ok := exitStatus(pid)
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
	fields := statOf(fmt.Sprintf("/proc/%d/stat", pid))
	if len(fields) < 50 {
		return 0, false
	}
	status, err := strconv.Atoi(fields[49])
	return status, err == nil
}

// statOf are the fields of a process or thread from its state on; none where it is not there.
func statOf(path string) []string {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	// The second field is a name in parentheses, which may hold some.
	return strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
}

// isStopped reports whether all threads of the process that has a number are stopped: by a signal,
// or by a debugger.
func isStopped(pid int) (stopped bool) {
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	for _, thread := range threads {
		fields := statOf(thread)
		switch {
		case len(fields) == 0 || fields[0] == "Z" || fields[0] == "X": // it has ended
		case fields[0] == "T" || fields[0] == "t":
			stopped = true
		default:
			return false
		}
	}
	return stopped
}

// closePIDFDs needs e.closed.
func (e *Endpoint) closePIDFDs() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, p := range e.processes {
		closeFDs([]int{p.fd})
	}
	e.processes = nil
}
