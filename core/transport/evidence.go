package transport

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goccl/goccl/core/address"
)

// Evidence. A peer that is down is proved to have ended, or only suspected: see ErrEnded. Proof
// must never be wrong, as ranks go on without asking a peer that has ended.
//
// Of a process of this host the kernel tells. Its pidfd (or its life word: see [Endpoint.Ended])
// says that it has ended, or nobody listens any more where its endpoint did, which does so for as
// long as it takes part in anything. That a connection has ended says less: the peer may live, and
// have closed it because of what this side has sent.
//
// Of another host no single answer is proof, for what stands between can reset a connection and
// reject the next. What counts is two answers of the peer's own system: the connection has come to
// its orderly end (FIN), which no firewall makes, and then another one to the same address is
// refused by a reset. One refused by an ICMP message is a firewall's.

// downError wraps ErrPeerDown, and ErrEnded where that is proved. It leaves the text.
type downError struct {
	error
	proved bool
}

func (e *downError) Unwrap() error { return e.error }

func (e *downError) Is(target error) bool {
	return target == ErrPeerDown || e.proved && target == ErrEnded
}

// down makes an error one of a peer that is suspected to have ended.
func down(err error) error { return &downError{err, false} }

// ended makes an error one of a peer that is proved to have ended.
func ended(err error) error { return &downError{err, true} }

var errDead = ended(errors.New("its process has ended"))

// Ended tells that a process is proved to have ended: of one of this host its life word says so,
// before the kernel closes its sockets. What it has sent, a goodbye perhaps, is read before links
// to it end.
func (e *Endpoint) Ended(p address.ProcessID) {
	e.mu.Lock()
	e.dead[p] = true
	links := e.allLinks()
	e.mu.Unlock()
	for _, l := range links {
		if l.key.process == p && l.started.Load() {
			e.spawn("last words", l.endWhenRead)
		}
	}
}

// fencePatience is how long a process that is killed may take to end: it may be in the kernel.
const fencePatience = time.Second

// Fence kills a member's process that is stopped, as one that goes on later would write to memory
// which it shares with this process. That takes a link over a Unix socket, at some time while the
// process is held, for that tells which process it is. No other process is ever signalled. Fence
// reports whether it is proved that the process has ended, now or before: links to it end then. If
// not, it reports whether a process that it could signal is seen to live, and not to be stopped.
func (e *Endpoint) Fence(id address.ProcessID) (ended, lives bool) {
	fd, pid, proved := e.pidfdOf(id)
	defer closeFDs([]int{fd})
	stopped := fd >= 0 && isStopped(pid)
	// As long as the process of the descriptor has not ended, the number is its own.
	err := unix.PidfdSendSignal(fd, 0, nil, 0)
	there := err == nil || err == unix.EPERM
	within := time.Duration(0)
	if there && stopped && proved && pid != os.Getpid() &&
		unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0) == nil {
		within = fencePatience
	}
	ended = e.endsWithin(id, fd, within)
	return ended, !ended && proved && there && !stopped
}

// endsWithin reports whether a process, of which there may be a pidfd, has ended within a time.
func (e *Endpoint) endsWithin(id address.ProcessID, fd int, within time.Duration) bool {
	const pause = time.Millisecond
	for end := time.Now().Add(within); ; {
		if e.isDead(id) {
			return true
		}
		if exits(fd, min(pause, within)) {
			e.Ended(id)
			return true
		}
		if !time.Now().Before(end) {
			return false
		}
	}
}

const (
	// readLooks is how often in succession nothing must be found unread, a readPause apart. The
	// kernel goes on to send over TCP what a full buffer has kept back.
	readLooks = 3
	readPause = 2 * time.Millisecond
)

// endWhenRead ends a link whose peer is dead, once nothing is left to be read. How much is on its
// way over RDMA cannot be told: such a link ends with its connection.
func (l *link) endWhenRead() {
	if l.wire.kind() == address.Verbs {
		return
	}
	for looks := 0; looks < readLooks; {
		select {
		case <-l.done:
			return
		case <-time.After(readPause):
		}
		if looks++; !l.isRead() {
			looks = 0
		}
	}
	l.end(errDead)
}

// isRead tells whether all that has come is read, and handled.
func (l *link) isRead() bool {
	in := &l.reading
	left := 1
	l.conn.raw.Control(func(fd uintptr) { left, _ = unix.IoctlGetInt(int(fd), unix.TIOCINQ) })
	if left > 0 || !in.lock.TryLock() {
		return false
	}
	read := in.phase != atSlow && !in.more && !in.claimed.Load()
	l.unlock()
	l.e.poller.revisit(l) // a reader may have found the lock taken meanwhile
	return read
}

const (
	// exitPatience is for a process whose sockets are closed to end.
	exitPatience = 100 * time.Millisecond
	// answerPatience is that where the process is on another host. What is lost of the question or of
	// the answer is sent again after a second. And a kernel may close the listener last, after it has
	// let go of an adapter's memory.
	answerPatience = 1200 * time.Millisecond
)

// judge adds to why a link has ended whether the peer's process is proved to have. It takes a
// moment where the peer lives, and longer where a process of another host does not answer.
func (l *link) judge(why error) error {
	local := l.peer.Host == l.e.address.Host
	if errors.Is(why, ErrEnded) || !local && !l.reading.shut.Load() {
		return why
	}
	targets := l.targets(local)
	fd, _, _ := l.e.pidfdOf(l.key.process)
	defer closeFDs([]int{fd})
	patience := answerPatience
	if local {
		patience = exitPatience
	}
	end := time.Now().Add(patience)
	for pause := time.Millisecond; ; pause = min(2*pause, exitPatience/4) {
		refused, lives := false, false
		for _, t := range targets {
			refuses, answers := l.e.sound(l.network(), t, local, time.Until(end))
			refused, lives = refused || refuses, lives || answers
		}
		switch {
		case l.e.isDead(l.key.process) || exits(fd, 0) || refused:
			l.e.Ended(l.key.process) // a group that has no link to it yet could find no proof
			return ended(why)
		case lives || time.Now().After(end) || l.e.ctx.Err() != nil:
			return why
		}
		exits(fd, pause)
	}
}

func (e *Endpoint) isDead(p address.ProcessID) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.dead[p]
}

func (l *link) network() string {
	if l.key.kind == address.Shm {
		return "unix"
	}
	return "tcp"
}

// targets are the addresses of which one that is refused says that the peer has ended: of another
// host only the one by which it is known to be reached.
func (l *link) targets(local bool) []string {
	if l.key.kind == address.Shm {
		return []string{l.peer.Unix}
	}
	all := l.peer.Reachable(&l.e.address)
	if local {
		return all
	}
	return slices.DeleteFunc(all, func(t string) bool { return !sameHost(l.conn.RemoteAddr(), t) })
}

// sound asks at an address, for a time, whether the process there has ended: refused tells that its
// system says that nobody listens there, and lives that a process of another host has answered.
func (e *Endpoint) sound(network, target string, local bool, patience time.Duration) (refused,
	lives bool) {
	own := -1
	d := net.Dialer{Timeout: max(patience, time.Millisecond), Control: func(_, _ string,
		c syscall.RawConn) error {
		return c.Control(func(fd uintptr) {
			if local {
				return
			}
			// Else what refuses could not be told. Where these fail nothing is.
			_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_RECVERR, 1)
			_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_RECVERR, 1)
			own, _ = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0)
		})
	}}
	until := time.Now().Add(patience)
	c, err := d.DialContext(e.ctx, network, target)
	defer func() { closeFDs([]int{own}) }()
	if err != nil {
		return errors.Is(err, syscall.ECONNREFUSED) && (local || own >= 0 && !rejected(own)), false
	}
	defer c.Close()
	return false, !local && e.answersProbe(c, until)
}

// answersProbe tells whether the process at the other end of a connection lives: it closes the
// connection when it has read what asks no more. Where it has ended its system accepts the
// connection as long as it listens, and resets it then.
func (e *Endpoint) answersProbe(c net.Conn, until time.Time) bool {
	defer context.AfterFunc(e.ctx, func() { c.SetDeadline(time.Unix(1, 0)) })()
	c.SetDeadline(until)
	h := hello{purpose: purposeProbe, from: e.id}
	b := h.bytes()
	_, _ = c.Write(b[:]) // a failure is read, too
	_, err := c.Read(b[:1])
	return err == io.EOF
}

// rejected tells whether an ICMP message has ended a connection.
func rejected(fd int) bool {
	var packet [1]byte
	_, _, _, _, err := unix.Recvmsg(fd, packet[:], nil, unix.MSG_ERRQUEUE|unix.MSG_DONTWAIT)
	return err == nil
}
