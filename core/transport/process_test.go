package transport

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goccl/goccl/core/address"
	"github.com/goccl/goccl/core/internal/polltest"
)

// Environment that makes the test binary something else than a test run.
const (
	envChild  = "GOCCL_TEST_CHILD" // rank 1 of a world of two; its value is the kind of link
	envIface  = "GOCCL_TEST_INTERFACE"
	envGrace  = "GOCCL_TEST_GRACE"
	envGroup  = "GOCCL_TEST_GROUP"  // its number
	envInside = "GOCCL_TEST_INSIDE" // the test runs in a network namespace of its own
)

const (
	typeAsk    = ControlBase + 1 // to the child: how much data has come?
	typeAnswer = ControlBase + 2
)

func TestMain(m *testing.M) {
	if kind := os.Getenv(envChild); kind != "" {
		if err := childMain(kind); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// childHandler counts data and answers.
type childHandler struct {
	group atomic.Pointer[Group]
	bytes atomic.Uint64
}

func (c *childHandler) Dropped(int, Header)       {}
func (c *childHandler) Acked(int, Header, []byte) {}
func (c *childHandler) Slot(_ int, h Header) (head, body []byte, err error) {
	return nil, make([]byte, h.Bytes), nil
}
func (c *childHandler) Arrived(_ int, h Header)   { c.bytes.Add(uint64(h.Bytes)) }
func (c *childHandler) PeerAttached(int, []int)   {}
func (c *childHandler) PeerDown(_ int, err error) { fmt.Fprintln(os.Stderr, err) }
func (c *childHandler) PeerLeft(int)              {}
func (c *childHandler) Control(_ int, h Header, _ []byte) {
	c.group.Load().Broadcast(Header{Type: typeAnswer, Arg: [2]uint64{c.bytes.Load()}}, nil)
}

// childMain: a line "go", its address to the parent, the parent's address; then it lives until its
// input ends.
func childMain(kind string) error {
	in := bufio.NewReader(os.Stdin)
	if _, err := in.ReadString('\n'); err != nil {
		return err
	}
	grace, err := time.ParseDuration(os.Getenv(envGrace))
	if err != nil {
		return err
	}
	c := Config{Interface: os.Getenv(envIface), Grace: grace,
		Logger: slog.New(slog.NewTextHandler(os.Stderr, nil))}
	if c.Interface == "" {
		c.StoreHost = "127.0.0.1"
	}
	e, err := Listen(c)
	if err != nil {
		return err
	}
	if err := json.NewEncoder(os.Stdout).Encode(e.Address()); err != nil {
		return err
	}
	var parent address.Address
	line, err := in.ReadBytes('\n')
	if err != nil {
		return err
	}
	if err := json.Unmarshal(line, &parent); err != nil {
		return err
	}
	group, err := strconv.ParseUint(os.Getenv(envGroup), 10, 64)
	if err != nil {
		return err
	}
	h := &childHandler{}
	g, err := e.Attach(GroupConfig{Job: 1, Group: group, Secret: secret, Name: "world", Rank: 1,
		Peers: []address.Address{parent, e.Address()}, Kinds: []string{kind, address.Mem}, Handler: h})
	if err != nil {
		return err
	}
	h.group.Store(g)
	io.Copy(io.Discard, in)
	return e.Close()
}

type child struct {
	group uint64
	cmd   *exec.Cmd
	in    io.WriteCloser
	out   *bufio.Reader
}

func startChild(t *testing.T, kind, iface string, grace time.Duration,
	attr *syscall.SysProcAttr) *child {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.SysProcAttr = attr
	return startChildBy(t, cmd, 1, kind, iface, grace)
}

// startChildBy starts a child by a command, for a group.
func startChildBy(t *testing.T, cmd *exec.Cmd, group uint64, kind, iface string,
	grace time.Duration) *child {
	t.Helper()
	c := &child{group: group, cmd: cmd}
	c.cmd.Env = append(os.Environ(), envChild+"="+kind, envIface+"="+iface,
		envGrace+"="+grace.String(), envGroup+"="+fmt.Sprint(group))
	c.cmd.Stderr = os.Stderr
	var err error
	c.in, err = c.cmd.StdinPipe()
	ok(t, err)
	out, err := c.cmd.StdoutPipe()
	ok(t, err)
	c.out = bufio.NewReader(out)
	if err := c.cmd.Start(); err != nil {
		t.Skipf("cannot start a child: %v", err)
	}
	t.Cleanup(func() {
		c.cmd.Process.Kill()
		c.cmd.Wait()
	})
	return c
}

// stop stops the child. It has stopped when this returns.
func (c *child) stop(t *testing.T) {
	t.Helper()
	ok(t, c.cmd.Process.Signal(syscall.SIGSTOP))
	ok(t, unix.Waitid(unix.P_PID, c.cmd.Process.Pid, nil, unix.WSTOPPED|unix.WNOWAIT, nil))
}

// meet makes a world of this process and the child.
func (c *child) meet(t *testing.T, e *Endpoint, kind string) (*Group, *recorder) {
	t.Helper()
	g, h := c.attach(t, e, kind)
	ok(t, g.Connect(within(t), 1))
	return g, h
}

// attach is meet without a connection.
func (c *child) attach(t *testing.T, e *Endpoint, kind string) (*Group, *recorder) {
	t.Helper()
	fmt.Fprintln(c.in, "go")
	line, err := c.out.ReadBytes('\n')
	ok(t, err)
	var there address.Address
	ok(t, json.Unmarshal(line, &there))
	b, err := json.Marshal(e.Address())
	ok(t, err)
	fmt.Fprintf(c.in, "%s\n", b)
	h := newRecorder()
	g, err := e.Attach(GroupConfig{Job: 1, Group: c.group, Secret: secret, Name: "world", Rank: 0,
		Peers: []address.Address{e.Address(), there}, Kinds: []string{address.Mem, kind}, Handler: h})
	ok(t, err)
	return g, h
}

func TestKilledPeer(t *testing.T) {
	for _, kind := range []string{address.Shm, address.TCP} {
		t.Run(kind, func(t *testing.T) {
			c := startChild(t, kind, "", defaultGrace, nil)
			_, h := c.meet(t, listen(t, Config{}), kind)
			ok(t, c.cmd.Process.Kill())
			err := h.untilDown(t, 1)
			wants(t, err, ErrPeerDown)
			wants(t, err, ErrEnded)
		})
	}
}

// A stopped process is no dead one, however long it takes, and although its buffers are full.
func TestStoppedPeer(t *testing.T) {
	const grace, size, count = time.Second, 1 << 20, 64
	for _, kind := range []string{address.Shm, address.TCP} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			c := startChild(t, kind, "", grace, nil)
			g, h := c.meet(t, listen(t, Config{Grace: grace}), kind)
			c.stop(t)
			ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
			defer cancel()
			sent := make(chan error, 1)
			go func() {
				for range count {
					if err := g.Send(ctx, 1, Header{Type: Data}, make([]byte, size)); err != nil {
						sent <- err
						return
					}
				}
				sent <- g.Send(ctx, 1, Header{Type: typeAsk})
			}()
			select {
			case err := <-sent:
				t.Fatalf("a stopped process takes all in: %v", err)
			case <-time.After(5 * grace):
			}
			h.isUp(t, 1)
			ok(t, c.cmd.Process.Signal(syscall.SIGCONT))
			ok(t, <-sent)
			if f := h.untilFrames(t, 1)[0]; f.h.Type != typeAnswer || f.h.Arg[0] != size*count {
				t.Fatalf("answer %+v", f.h)
			}
		})
	}
}

// A process that is stopped before it has taken the connection is waited for.
func TestConnectToAStoppedPeer(t *testing.T) {
	const grace = 500 * time.Millisecond
	for _, kind := range []string{address.Shm, address.TCP} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			c := startChild(t, kind, "", grace, nil)
			e := listen(t, Config{Grace: grace})
			fmt.Fprintln(c.in, "go")
			line, err := c.out.ReadBytes('\n')
			ok(t, err)
			var there address.Address
			ok(t, json.Unmarshal(line, &there))
			c.stop(t)
			b, err := json.Marshal(e.Address())
			ok(t, err)
			fmt.Fprintf(c.in, "%s\n", b)
			h := newRecorder()
			g, err := e.Attach(GroupConfig{Job: 1, Group: 1, Secret: secret, Name: "world", Rank: 0,
				Peers: []address.Address{e.Address(), there}, Kinds: []string{address.Mem, kind}, Handler: h})
			ok(t, err)
			ctx, cancel := context.WithTimeout(context.Background(), 4*grace)
			defer cancel()
			wants(t, g.Connect(ctx, 1), context.DeadlineExceeded)
			ok(t, c.cmd.Process.Signal(syscall.SIGCONT))
			ok(t, g.Connect(within(t), 1))
		})
	}
}

// The link between two hosts (network namespaces) is cut: for less than the grace that costs only
// time, for longer the peer is given up.
func TestLinkCut(t *testing.T) { inside(t, "TestLinkCutInside", "ip", "nsenter") }

// inside runs a test in a network namespace of its own, if the tools are there.
func inside(t *testing.T, test string, tools ...string) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("network namespaces need root")
	}
	for _, tool := range tools {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skip(err)
		}
	}
	cmd := exec.Command("/proc/self/exe", "-test.run=^"+test+"$", "-test.v", "-test.timeout=5m")
	cmd.Env = append(os.Environ(), envInside+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	out, err := cmd.CombinedOutput()
	if err != nil && len(out) == 0 {
		t.Skipf("cannot make a network namespace: %v", err)
	}
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if strings.Contains(string(out), "--- SKIP") {
		t.Skipf("%s", out)
	}
}

// farHost is a network namespace that is joined to this one by an interface "there", at 10.77.0.2.
type farHost struct {
	t   *testing.T
	pid string // of a process in it
}

// newFarHost makes a host, for a test that has a namespace of its own.
func newFarHost(t *testing.T) *farHost {
	t.Helper()
	runs(t, "ip", "link", "set", "lo", "up")
	c := startChild(t, address.TCP, "there", 0, &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET})
	f := &farHost{t, fmt.Sprint(c.cmd.Process.Pid)}
	runs(t, "ip", "link", "add", "here", "type", "veth", "peer", "name", "there", "netns", f.pid)
	runs(t, "ip", "addr", "add", "10.77.0.1/24", "dev", "here")
	runs(t, "ip", "link", "set", "here", "up")
	f.run("ip", "addr", "add", "10.77.0.2/24", "dev", "there")
	f.run("ip", "link", "set", "there", "up")
	f.run("ip", "link", "set", "lo", "up")
	return f
}

// run runs a command there.
func (f *farHost) run(args ...string) {
	f.t.Helper()
	runs(f.t, append([]string{"nsenter", "-t", f.pid, "-n"}, args...)...)
}

// start starts a child there, for a group.
func (f *farHost) start(group uint64, grace time.Duration) *child {
	f.t.Helper()
	self, err := os.Executable()
	ok(f.t, err)
	cmd := exec.Command("nsenter", "-t", f.pid, "-n", self)
	return startChildBy(f.t, cmd, group, address.TCP, "there", grace)
}

// runs runs a command, without which the test is skipped.
func runs(t *testing.T, args ...string) {
	t.Helper()
	if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
		t.Skipf("%v: %v: %s", args, err, out)
	}
}

func TestLinkCutInside(t *testing.T) {
	if os.Getenv(envInside) == "" {
		t.Skip("run by TestLinkCut")
	}
	const grace = 3 * time.Second
	far := newFarHost(t)
	there := func(args ...string) { t.Helper(); far.run(append([]string{"ip"}, args...)...) }
	c := far.start(1, grace)
	e := listen(t, Config{Interface: "here", Grace: grace})
	g, h := c.meet(t, e, address.TCP)
	// A second process there: only one of the two connections is kept alive often.
	other := far.start(2, grace)
	_, idle := other.meet(t, e, address.TCP)
	answers := 0
	ask := func(ctx context.Context) {
		t.Helper()
		ok(t, g.Send(ctx, 1, Header{Type: Data}, make([]byte, 100_000)))
		ok(t, g.Send(ctx, 1, Header{Type: typeAsk}))
		answers++
	}
	ask(within(t))
	h.untilFrames(t, 1)

	there("link", "set", "there", "down")
	ask(within(t)) // into the socket's buffer
	conn := g.members[1].ready.Load().link.conn
	polltest.Until(t, "something that is not acknowledged for long", func() bool {
		h.isUp(t, 1)
		info, err := unix.GetsockoptTCPInfo(conn.fd, unix.IPPROTO_TCP, unix.TCP_INFO)
		ok(t, err)
		return info.Unacked > 0 && time.Duration(info.Last_ack_recv)*time.Millisecond > grace/4
	})
	there("link", "set", "there", "up")
	h.untilFrames(t, 2)

	// Idle, for more than the grace: keepalives show that the host is there.
	time.Sleep(grace + grace/2)
	for _, h := range []*recorder{h, idle} {
		h.isUp(t, 1)
	}

	start := time.Now()
	there("link", "set", "there", "down")
	for _, h := range []*recorder{h, idle} {
		err := h.untilDown(t, 1)
		wants(t, err, ErrPeerDown)
		if d := time.Since(start); d < grace/2 {
			t.Errorf("given up after %v: %v", d, err)
		}
		if !strings.Contains(err.Error(), "acknowledged nothing") {
			t.Errorf("error %v", err)
		}
	}
}
