package transport

import (
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
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
func (e *Endpoint) Ended(p ProcessID) {
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

// Kill kills the process of a member on this host, if a look at the process that has its number
// now, and whose descriptor PIDFD has returned, tells that it is the member's. Kill tells whether
// the process has ended, then or before, within a time. Links to it end then.
func (e *Endpoint) Kill(a *Address, within time.Duration, isMember func() bool) bool {
	fd := e.dupPIDFD(a.Process)
	defer closeFDs([]int{fd})
	// As long as the process of the descriptor has not ended, the number is its own.
	if fd >= 0 && isMember() && !exits(fd, 0) {
		_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0) // what counts is whether it ends
	} else {
		within = 0
	}
	const pause = time.Millisecond
	for end := time.Now().Add(within); ; {
		if e.isDead(a.Process) {
			return true
		}
		if exits(fd, min(pause, within)) {
			e.Ended(a.Process)
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
	if l.wire.kind() == Verbs {
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
	fd := l.e.dupPIDFD(l.key.process)
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

func (e *Endpoint) isDead(p ProcessID) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.dead[p]
}

func (l *link) network() string {
	if l.key.kind == Shm {
		return "unix"
	}
	return "tcp"
}

// targets are the addresses of which one that is refused says that the peer has ended: of another
// host only the one by which it is known to be reached.
func (l *link) targets(local bool) []string {
	if l.key.kind == Shm {
		return []string{l.peer.Unix}
	}
	all := l.peer.reachable(&l.e.address)
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
