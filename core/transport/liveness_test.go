package transport

import (
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goccl/goccl/core/address"
	"github.com/goccl/goccl/core/internal/polltest"
)

// Of the connections to one host one sends keepalives often. When it ends, or is silent,
// another one does.
func TestOneConnectionAHostIsKeptAliveOften(t *testing.T) {
	eps := []*Endpoint{listen(t, Config{}), listen(t, Config{}), listen(t, Config{}),
		listen(t, Config{})}
	w := newWorld(t, eps, address.TCP, 1)
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
	polltest.Until(t, "the end of a connection", func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		return !slices.Contains(h.pulses, second)
	})
	if one() == second {
		t.Error("one that has ended goes on")
	}
}

// bulletin is what another process of this host tells.
type bulletin struct {
	mu    sync.Mutex // guards what follows
	asked int        // how often
	known bool       // it hears of each host all the time
	saw   int        // how often this process has told that it had just heard of a host
}

func (b *bulletin) Saw(_ uint64, ago time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if ago < time.Second/2 {
		b.saw++
	}
}

func (b *bulletin) Seen(uint64) (time.Duration, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.asked++
	return 0, b.known
}

// Where the grace is too short for keepalives an idle connection carries pings, unless another
// process of this host hears of the peer's. They are told to none of the groups.
func TestIdleConnectionIsPinged(t *testing.T) {
	for _, known := range []bool{false, true} {
		b := &bulletin{known: known}
		eps := []*Endpoint{listen(t, Config{Grace: 1500 * time.Millisecond, Sightings: b}),
			listen(t, Config{})}
		w := newWorld(t, eps, address.TCP, 1)
		ok(t, w.groups[0].Connect(within(t), 1))
		ok(t, w.groups[1].Connect(within(t), 0))
		acked := func() uint64 {
			info, err := unix.GetsockoptTCPInfo(w.groups[0].members[1].ready.Load().link.conn.fd,
				unix.IPPROTO_TCP, unix.TCP_INFO)
			ok(t, err)
			return info.Bytes_acked
		}
		before := acked()
		polltest.Until(t, "looks at the host", func() bool {
			b.mu.Lock()
			defer b.mu.Unlock()
			return b.asked > 12 && (known || b.saw > 10)
		})
		if pings := (acked() - before) / headerSize; known != (pings == 0) {
			t.Errorf("another process knows of the host: %v; %d pings", known, pings)
		}
		for rank, h := range w.handlers {
			h.mu.Lock()
			if len(h.frames) > 0 || len(h.down) > 0 {
				t.Errorf("rank %d: %v, %v", rank, h.frames, h.down)
			}
			h.mu.Unlock()
		}
	}
}
