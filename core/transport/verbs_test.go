package transport

import (
	"bytes"
	"context"
	"net"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/goccl/goccl/core/address"
	"github.com/goccl/goccl/core/internal/polltest"
	"github.com/goccl/goccl/rdma"
	"github.com/goccl/goccl/rdma/fake"
)

// What keeps two processes from using verbs.
var verbsProblems = map[string]struct {
	breaks func(*fake.Library)
	says   string
	once   bool
}{
	"no memory": {func(f *fake.Library) { f.Fail("reg_mr", 1, -1, syscall.ENOMEM) },
		"locked memory", false},
	"no queue": {func(f *fake.Library) { f.Fail("create_cq", 1, -1, syscall.EINVAL) },
		"ibv_create_cq", false},
	"no queue pair": {func(f *fake.Library) { f.Fail("create_qp", 1, -1, syscall.EINVAL) },
		"ibv_create_qp", false},
	"no way": {func(f *fake.Library) { f.Fail("modify_qp", 1, -1, syscall.EHOSTUNREACH) },
		"ibv_modify_qp", false},
	"no answer": {func(f *fake.Library) { f.Complete(1, -1, 0, 12, 0x81) }, "RETRY_EXC_ERR",
		true},
	"one side only": {func(f *fake.Library) { f.Fail("alloc_pd", 1, 1, syscall.ENOMEM) },
		"ibv_alloc_pd", true},
}

func verbsPair(t *testing.T, l *logbook, breaks func(*fake.Library)) []*Endpoint {
	double := fake.New(t)
	c := Config{Logger: l.logger(), Verbs: VerbsConfig{Library: double.Path, GIDIndex: -1}}
	eps := pair(t, address.Verbs, c)
	breaks(double)
	return eps
}

func TestTCPStandsInForVerbs(t *testing.T) {
	for name, c := range verbsProblems {
		t.Run(name, func(t *testing.T) {
			l := newLogbook()
			w := newWorld(t, verbsPair(t, l, c.breaks), address.Verbs, 2)
			payload := bytes.Repeat([]byte{9}, 300_000)
			for rank := range 2 {
				ok(t, w.groups[rank].Send(within(t), 1-rank, Header{Type: Data}, payload))
			}
			for rank := range 2 {
				if f := w.handlers[rank].untilFrames(t, 1)[0]; !bytes.Equal(f.payload, payload) {
					t.Fatal("others have come")
				}
				if kind := w.groups[rank].Kind(1 - rank); kind != address.TCP {
					t.Errorf("rank %d is joined by %q", rank, kind)
				}
			}
			for _, line := range l.wait(t, 2) {
				if !strings.Contains(line, "is joined by TCP") || !strings.Contains(line, c.says) {
					t.Errorf("the log says %q", line)
				}
			}
		})
	}
}

func TestVerbsThatAreDemandedMustWork(t *testing.T) {
	for name, c := range verbsProblems {
		if c.once { // the second try works
			continue
		}
		t.Run(name, func(t *testing.T) {
			eps := verbsPair(t, newLogbook(), c.breaks)
			errs := make(chan error, 2)
			var groups []*Group
			for rank, e := range eps {
				g := groupConfig(eps, address.Verbs, 2, rank)
				for i := range g.Peers {
					g.Peers[i].Net = address.Verbs
				}
				groups = append(groups, attach(t, e, g, newRecorder()))
			}
			for rank, g := range groups {
				go func() { errs <- g.Connect(within(t), 1-rank) }()
			}
			for range groups {
				if err := <-errs; err == nil || !strings.Contains(err.Error(), "verbs") ||
					!strings.Contains(err.Error(), c.says) {
					t.Errorf("the error is %v", err)
				}
			}
		})
	}
}

// What has been said last may have to be sent again, long after Close was called: it is waited for,
// until the adapter gives up, or for the liveness grace.
func TestCloseDelivers(t *testing.T) {
	mend := func(double *fake.Library) { double.Link(0, 1, true) }
	for _, c := range []struct {
		name  string
		bytes int
		grace time.Duration
		ends  func(*fake.Library)
		comes bool
	}{
		{"little", 100, time.Hour, mend, true},
		{"more than there is room for", 3 * rdma.MostRing, time.Hour, mend, true},
		{"given up by the adapter", 100, time.Hour, (*fake.Library).Expire, false},
		{"given up after the grace", 100, 10 * closeFlush, func(*fake.Library) {}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			double := fake.New(t)
			w := newWorld(t, pair(t, address.Verbs,
				Config{Grace: c.grace, Verbs: VerbsConfig{Library: double.Path, GIDIndex: -1}}),
				address.Verbs, 1)
			ok(t, w.groups[0].Connect(within(t), 1))
			payload := bytes.Repeat([]byte{7}, c.bytes)
			double.Link(0, 1, false)
			short, cancel := context.WithTimeout(context.Background(), 5*readSlice)
			defer cancel()
			ok(t, w.groups[0].Send(short, 1, Header{Type: Data}, payload))
			closed := make(chan error, 1)
			go func() { closed <- w.groups[0].e.Close() }()
			select {
			case err := <-closed:
				t.Fatalf("it was not waited for: %v", err)
			case <-time.After(3 * closeFlush):
			}
			probe, err := net.Dial("tcp", w.groups[0].e.Address().TCP[0])
			if err != nil {
				t.Fatalf("a probe is told that the process has ended: %v", err)
			}
			probe.Close()
			c.ends(double)
			if c.comes {
				if f := w.handlers[1].untilFrames(t, 1)[0]; !bytes.Equal(f.payload, payload) {
					t.Error("others have come")
				}
				w.handlers[1].until(t, "the goodbye", func() bool { return w.handlers[1].left[0] })
			}
			select {
			case err := <-closed:
				ok(t, err)
			case <-time.After(patience):
				t.Fatal("it does not end")
			}
		})
	}
}

func TestDecideVerbs(t *testing.T) {
	host := func(name, verbs, net string) address.Address {
		return address.Address{Process: newProcessID(), Name: name, Host: name,
			TCP: []string{"192.0.2.1:1"}, Verbs: verbs, VerbsProblem: "no card", Net: net}
	}
	for _, c := range []struct {
		a, b         address.Address
		forced, want string
		err          string
	}{
		{host("a", "roce2, ipv4", ""), host("b", "roce2, ipv4", ""), "", address.Verbs, ""},
		{host("a", "roce2, ipv4", ""), host("a", "roce2, ipv4", ""), "", address.TCP, ""},
		{host("a", "roce2, ipv4", ""), host("a", "roce2, ipv4", ""), address.Verbs, address.Verbs, ""},
		{host("a", "roce2, ipv4", ""), host("b", "roce2, ipv4", ""), address.TCP, address.TCP, ""},
		{host("a", "roce2, ipv4", address.TCP), host("b", "roce2, ipv4", address.TCP), "", address.TCP,
			""},
		{host("a", "roce2, ipv4", ""), host("b", "", ""), "", address.TCP, ""},
		{host("a", "roce2, ipv4", address.Verbs), host("b", "", address.Verbs), "", "",
			"host b, pid 0: no card"},
		{host("a", "roce2, ipv4", ""), host("b", "infiniband", ""), "", address.TCP, ""},
		{host("a", "roce2, ipv4", ""), host("b", "infiniband", ""), address.Verbs, "",
			"GOCCL_IB_GID_INDEX"},
		{host("a", "roce2, ipv4", address.Verbs), host("b", "roce2, ipv4", address.TCP), "", "",
			"set the same one on all ranks"},
	} {
		for _, p := range [][2]address.Address{{c.a, c.b}, {c.b, c.a}} {
			kind, err := address.Decide(p[0], p[1], c.forced)
			fabric := p[0].Fabric(c.forced)
			apart := err == nil && p[0].Host != p[1].Host
			if apart && (fabric != "" && fabric == p[1].Fabric(c.forced)) != (kind == address.Verbs) {
				t.Errorf("%+v and %+v, forced %q: %q, in network %q", p[0], p[1], c.forced, kind, fabric)
			}
			if kind != c.want || (err == nil) != (c.err == "") || err != nil &&
				!strings.Contains(err.Error(), c.err) {
				t.Errorf("%+v and %+v, forced %q: %q, %v", p[0], p[1], c.forced, kind, err)
			}
		}
	}
}

// Close waits for a dial that is about to use the device, as for other goroutines: the device is
// given back after it.
func TestCloseWaitsForDials(t *testing.T) {
	c := Config{Verbs: VerbsConfig{Library: fake.New(t).Path, GIDIndex: -1}}
	e, peer := listen(t, c), listen(t, c)
	w := newWorld(t, []*Endpoint{e, peer}, address.Verbs, 1)
	e.verbs.mu.Lock()
	ended := make(chan error, 1)
	go func() { ended <- w.groups[0].Connect(context.Background(), 1) }()
	polltest.Until(t, "the dial", func() bool {
		all := make([]byte, 1<<20)
		all = all[:runtime.Stack(all, true)]
		for g := range strings.SplitSeq(string(all), "\n\n") {
			if strings.Contains(g, ".dialOne(") && strings.Contains(g, "(*verbsEnd).open(") {
				return true
			}
		}
		return false
	})
	if err := e.Close(); err == nil {
		t.Error("it has not waited")
	}
	e.verbs.mu.Unlock()
	if err := <-ended; err == nil {
		t.Error("it has connected")
	}
}
