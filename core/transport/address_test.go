package transport

import (
	"fmt"
	"net"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goccl/goccl/core/address"
	"github.com/goccl/goccl/core/internal/polltest"
)

func TestIPv6(t *testing.T) {
	if l, err := net.Listen("tcp", "[::1]:0"); err != nil {
		t.Skipf("no IPv6 here: %v", err)
	} else {
		l.Close()
	}
	eps := pair(t, address.TCP, Config{StoreHost: "::1"})
	if a := eps[0].Address().TCP; len(a) != 1 || !strings.HasPrefix(a[0], "[::1]:") {
		t.Fatalf("listens on %v", a)
	}
	w := newWorld(t, eps, address.TCP, 2)
	ok(t, w.groups[0].Send(within(t), 1, Header{Type: ControlBase}))
	w.handlers[1].untilFrames(t, 1)
}

func TestInterfaceByName(t *testing.T) {
	e := listen(t, Config{Interface: "lo"})
	for _, a := range e.Address().TCP {
		if !strings.HasPrefix(a, "127.") && !strings.HasPrefix(a, "[::1]") {
			t.Fatalf("listens on %v", a)
		}
	}
}

// TestLoopbackOfUnknownHosts joins processes that cannot tell which host they are on, as where
// /proc is hidden, and that listen on loopback alone.
func TestLoopbackOfUnknownHosts(t *testing.T) {
	eps := pair(t, address.TCP, Config{StoreHost: "localhost"})
	for _, e := range eps {
		e.address.Host = e.id.String()
	}
	kind, err := address.Decide(eps[0].Address(), eps[1].Address(), "")
	if kind != address.TCP || err != nil {
		t.Fatal(kind, err)
	}
	w := newWorld(t, eps, address.TCP, 2)
	ok(t, w.groups[0].Send(within(t), 1, Header{Type: ControlBase}))
	w.handlers[1].untilFrames(t, 1)
}

// What a process publishes of itself is read by others as it is.
func TestOwnAddressIsRead(t *testing.T) {
	a := listen(t, Config{}).Address()
	if a.ShmProblem != "" || a.Unix == "" {
		t.Fatalf("shared memory does not work here: %s", a.ShmProblem)
	}
	if read := a.AsRead(); !reflect.DeepEqual(read, a) {
		t.Errorf("%+v\nbecame\n%+v", a, read)
	}
}

func TestDeadPeerIsRefused(t *testing.T) {
	for _, kind := range []string{address.Shm, address.TCP} {
		t.Run(kind, func(t *testing.T) {
			eps := pair(t, kind, Config{})
			h := newRecorder()
			g := attach(t, eps[0], groupConfig(eps, kind, 1, 0), h)
			ok(t, eps[1].Close())
			wants(t, g.Connect(within(t), 1), ErrEnded)
			err := h.untilDown(t, 1)
			if !strings.Contains(err.Error(), "rank 1") || !strings.Contains(err.Error(), "pid") {
				t.Errorf("error %v", err)
			}
			wants(t, g.Send(within(t), 1, Header{Type: ControlBase}), ErrPeerDown)
		})
	}
}

// Somebody else has got the port of a dead process.
func TestStaleAddress(t *testing.T) {
	eps := pair(t, address.TCP, Config{})
	other := listen(t, Config{})
	c := groupConfig(eps, address.TCP, 1, 0)
	c.Peers[1].TCP = other.Address().TCP
	h := newRecorder()
	g := attach(t, eps[0], c, h)
	wants(t, g.Connect(within(t), 1), ErrPeerDown)
	h.untilDown(t, 1)
}

func TestUnreachableUntilGrace(t *testing.T) {
	const grace = 500 * time.Millisecond
	e := listen(t, Config{Grace: grace})
	far := e.Address()
	far.Process, far.TCP = address.ProcessID{1}, []string{"127.0.0.1:1"}
	c := groupConfig([]*Endpoint{e}, address.TCP, 1, 0)
	// A socket that listens with a full backlog swallows further connections.
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	ok(t, err)
	defer unix.Close(fd)
	ok(t, unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}))
	ok(t, unix.Listen(fd, 0))
	sa, err := unix.Getsockname(fd)
	ok(t, err)
	far.TCP = []string{fmt.Sprintf("127.0.0.1:%d", sa.(*unix.SockaddrInet4).Port)}
	for range 2 {
		if c, err := net.DialTimeout("tcp", far.TCP[0], 100*time.Millisecond); err == nil {
			defer c.Close()
		}
	}
	c.Peers, c.Kinds = append(c.Peers, far), append(c.Kinds, address.TCP)
	h := newRecorder()
	g := attach(t, e, c, h)
	start := time.Now()
	wants(t, g.Connect(within(t), 1), ErrPeerDown)
	if d := time.Since(start); d < grace {
		t.Errorf("given up after %v", d)
	}
	h.untilDown(t, 1)
}

// Connections within a host do not pace what they send; others keep to the system's choice.
func TestCongestionControl(t *testing.T) {
	b, err := os.ReadFile("/proc/sys/net/ipv4/tcp_congestion_control")
	if err != nil {
		t.Skip(err)
	}
	system := strings.TrimSpace(string(b))
	want := system
	if strings.HasPrefix(system, "bbr") {
		want = "reno"
	}
	var here sockets
	eps := []*Endpoint{listen(t, Config{OnFD: here.note}), listen(t, Config{})}
	w := newWorld(t, eps, address.TCP, 1)
	ok(t, w.groups[0].Connect(within(t), 1))
	ok(t, w.groups[1].Connect(within(t), 0))
	for i, e := range eps {
		e.mu.Lock()
		if len(e.links) == 0 {
			t.Errorf("end %d has no link", i)
		}
		for l := range e.links {
			if name := congestionOf(l.conn.fd); name != want {
				t.Errorf("end %d: %s, want %s", i, name, want)
			}
		}
		e.mu.Unlock()
	}
	elsewhere := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}
	c, err := elsewhere.DialContext(within(t), "tcp", eps[0].Address().TCP[0])
	ok(t, err)
	defer c.Close()
	polltest.Until(t, "the system's choice from elsewhere", func() bool {
		_, fd := here.seen()
		return congestionOf(fd) == system
	})
}
