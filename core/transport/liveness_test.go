package transport

import (
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Of the connections to one host one sends keepalives often. When it ends, or is silent,
// another one does.
func TestOneConnectionAHostIsKeptAliveOften(t *testing.T) {
	eps := []*Endpoint{listen(t, Config{}), listen(t, Config{}), listen(t, Config{}),
		listen(t, Config{})}
	w := newWorld(t, eps, TCP, 1)
	for peer := 1; peer < len(eps); peer++ {
		ok(t, w.groups[0].Connect(within(t), peer))
	}
	var h *hostPulse
	one := func() *pulse { // the one that often does
		t.Helper()
		eps[0].mu.Lock()
		defer eps[0].mu.Unlock()
		if len(eps[0].hosts) != 1 {
			t.Fatalf("%d hosts", len(eps[0].hosts))
		}
		for _, h = range eps[0].hosts {
		}
		h.mu.Lock()
		defer h.mu.Unlock()
		var often []*pulse
		for _, p := range h.pulses {
			idle, err := unix.GetsockoptInt(p.conn.fd, unix.IPPROTO_TCP, unix.TCP_KEEPIDLE)
			ok(t, err)
			switch time.Duration(idle) * time.Second {
			case eps[0].often():
				often = append(often, p)
			case eps[0].rarely():
			default:
				t.Errorf("a connection sends keepalives every %d s", idle)
			}
		}
		if len(often) != 1 {
			t.Fatalf("%d of %d connections send keepalives often", len(often), len(h.pulses))
		}
		return often[0]
	}
	first := one()
	h.mu.Lock()
	eps[0].takeTurns(h)
	h.mu.Unlock()
	second := one()
	if second == first {
		t.Error("a silent connection goes on")
	}
	for peer := 1; peer < len(eps); peer++ {
		if w.groups[0].members[peer].ready.Load().link.pulse == second {
			w.groups[peer].Detach()
			w.groups[0].members[peer].part()
		}
	}
	until(t, "the end of a connection", func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		return !slices.Contains(h.pulses, second)
	})
	if one() == second {
		t.Error("one that has ended goes on")
	}
}
