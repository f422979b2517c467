package transport

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goccl/goccl/core/address"
	"github.com/goccl/goccl/core/internal/polltest"
)

// That a peer has closed the connection is no proof that it has ended: it may live.
func TestClosedConnectionIsNoProof(t *testing.T) {
	for _, kind := range []string{address.Shm, address.TCP} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			eps := pair(t, kind, Config{})
			w := newWorld(t, eps, kind, 1)
			ok(t, w.groups[0].Connect(within(t), 1))
			ok(t, w.groups[1].Connect(within(t), 0))
			w.groups[1].members[0].ready.Load().link.end(errors.New("a fault of this side"))
			for rank, h := range w.handlers {
				err := h.untilDown(t, 1-rank)
				wants(t, err, ErrPeerDown)
				if errors.Is(err, ErrEnded) {
					t.Errorf("rank %d: %v", rank, err)
				}
			}
		})
	}
}

// A process that has closed its endpoint takes part in nothing any more, though it lives.
func TestClosedEndpointIsProof(t *testing.T) {
	for _, kind := range []string{address.Shm, address.TCP} {
		eps := pair(t, kind, Config{})
		w := newWorld(t, eps, kind, 1)
		ok(t, w.groups[0].Connect(within(t), 1))
		ok(t, w.groups[1].Connect(within(t), 0))
		eps[1].closeListeners()
		w.groups[1].members[0].ready.Load().link.end(errors.New("a fault of this side"))
		wants(t, w.handlers[0].untilDown(t, 1), ErrEnded)
	}
}

// Of a process on another host no answer counts that a firewall may give.
func TestEvidenceOfAnotherHost(t *testing.T) {
	inside(t, "TestEvidenceOfAnotherHostInside", "ip", "nsenter", "iptables")
}

func TestEvidenceOfAnotherHostInside(t *testing.T) {
	if os.Getenv(envInside) == "" {
		t.Skip("run by TestEvidenceOfAnotherHost")
	}
	far := newFarHost(t)
	rejecting := func(with string) func(*child, *Group) {
		return func(c *child, _ *Group) {
			far.run("iptables", "-F")
			far.run("iptables", "-A", "INPUT", "-p", "tcp", "--syn", "-j", "REJECT", "--reject-with",
				with)
			ok(t, c.cmd.Process.Kill())
		}
	}
	for i, c := range []struct {
		name   string
		end    func(*child, *Group)
		proved bool
	}{
		{"killed", func(c *child, _ *Group) { ok(t, c.cmd.Process.Kill()) }, true},
		{"killed, and the first question is lost", func(c *child, _ *Group) {
			far.run("iptables", "-A", "INPUT", "-p", "tcp", "--syn", "-j", "DROP")
			time.AfterFunc(exitPatience+answerPatience/4, func() { far.run("iptables", "-F") })
			ok(t, c.cmd.Process.Kill())
		}, true},
		{"killed, and the kernel closes its listener last", func(c *child, _ *Group) {
			kept := listenersOf(t, c.cmd.Process.Pid)
			time.AfterFunc(3*exitPatience, func() { closeFDs(kept) })
			ok(t, c.cmd.Process.Kill())
		}, true},
		{"closed", func(_ *child, g *Group) {
			g.members[1].ready.Load().link.conn.halfClose() // it answers in kind, and lives
		}, false},
		{"killed with data unread, so that its system resets", func(c *child, g *Group) {
			c.stop(t)
			ctx, cancel := context.WithCancel(within(t))
			defer cancel()
			ok(t, g.Send(ctx, 1, Header{Type: Data}, make([]byte, 1000)))
			polltest.Until(t, "the data", func() bool {
				return acknowledged(t, g.members[1].ready.Load().link.conn)
			})
			ok(t, c.cmd.Process.Kill())
		}, false},
		{"killed behind a firewall that rejects by ICMP", rejecting("icmp-port-unreachable"), false},
	} {
		child := far.start(uint64(i+1), defaultGrace)
		g, h := child.meet(t, listen(t, Config{Interface: "here"}), address.TCP)
		c.end(child, g)
		err := h.untilDown(t, 1)
		wants(t, err, ErrPeerDown)
		if errors.Is(err, ErrEnded) != c.proved {
			t.Errorf("%s: proved %v, want %v: %v", c.name, !c.proved, c.proved, err)
		}
		if c.proved { // to groups that come later, too
			later := attach(t, g.e, GroupConfig{Group: 99, Secret: g.secret, Name: "later",
				Peers: []address.Address{g.e.address, g.members[1].addr},
				Kinds: []string{address.Mem, address.TCP}}, newRecorder())
			wants(t, later.Connect(within(t), 1), ErrEnded)
		}
	}
}

// listenersOf copies the descriptors at which a process listens for TCP.
func listenersOf(t *testing.T, pid int) (fds []int) {
	t.Helper()
	process, err := unix.PidfdOpen(pid, 0)
	ok(t, err)
	defer unix.Close(process)
	all, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	ok(t, err)
	for _, entry := range all {
		number, err := strconv.Atoi(entry.Name())
		ok(t, err)
		fd, err := unix.PidfdGetfd(process, number, 0)
		if err != nil {
			continue // it was that of the reading of the folder
		}
		listens, _ := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ACCEPTCONN)
		domain, _ := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
		if listens == 1 && domain != unix.AF_UNIX {
			fds = append(fds, fd)
		} else {
			unix.Close(fd)
		}
	}
	if len(fds) == 0 {
		t.Fatal("it does not listen")
	}
	return fds
}

// acknowledged tells whether the peer's system has all that was sent.
func acknowledged(t *testing.T, s *conn) bool {
	t.Helper()
	left, err := unix.IoctlGetInt(s.fd, unix.SIOCOUTQ)
	ok(t, err)
	return left == 0
}

// A process that its life word tells to be dead is down, though its sockets are open.
func TestEndedPeerIsDown(t *testing.T) {
	for _, kind := range []string{address.Shm, address.TCP} {
		eps := pair(t, kind, Config{})
		w := newWorld(t, eps, kind, 1)
		ok(t, w.groups[0].Connect(within(t), 1))
		eps[0].Ended(eps[1].id)
		wants(t, w.handlers[0].untilDown(t, 1), ErrEnded)
		later := attach(t, eps[0], groupConfig(eps, kind, 2, 0), newRecorder())
		wants(t, later.Connect(within(t), 1), ErrEnded)
	}
}

// What a dead process has sent is read first: it may have said goodbye.
func TestEndedPeerHasLeft(t *testing.T) {
	for _, kind := range []string{address.Shm, address.TCP} {
		eps := pair(t, kind, Config{})
		w := newWorld(t, eps, kind, 1)
		ok(t, w.groups[0].Connect(within(t), 1))
		l := w.groups[0].members[1].ready.Load().link
		l.reading.lock.Lock()
		w.groups[1].Detach()
		polltest.Until(t, "the goodbye", func() bool {
			left, err := unix.IoctlGetInt(l.conn.fd, unix.TIOCINQ)
			ok(t, err)
			return left > 0
		})
		eps[0].Ended(eps[1].id)
		l.unlock()
		eps[0].poller.revisit(l)
		h := w.handlers[0]
		h.until(t, "its leaving", func() bool { return h.left[1] })
	}
}
