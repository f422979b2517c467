package channel

import (
	"context"
	"testing"
	"time"

	"github.com/goccl/goccl/core/internal/polltest"
)

// A channel that one side wants to be a port channel is one on both.
func TestOneSideForcesPort(t *testing.T) {
	for _, forced := range []int{0, 1} {
		for _, first := range []int{0, 1} {
			w := joinWorld(t, 2, false)
			var c [2]*Channel
			for _, number := range []int{first, 1 - first} {
				kind := ""
				if number == forced {
					kind = KindPort
				}
				c[number] = w.ranks[number].open(1-number, 0, kind)
				w.settle()
			}
			for number := range c {
				if c[number].Kind() != KindPort {
					t.Errorf("forced by %d, opened by %d first: rank %d has a %s channel", forced, first,
						number, c[number].Kind())
				}
			}
		}
	}
}

// A rank that cannot map its peer's arena takes what a peer has signalled that can.
func TestOnlyThePeerMaps(t *testing.T) {
	w := joinWorld(t, 2, false)
	w.ranks[0].blind = true
	blind, sees := w.ranks[0].open(1, 0, ""), w.ranks[1].open(0, 0, "")
	w.settle()
	if blind.Kind() != KindPort || sees.Kind() != KindMemory {
		t.Fatal(blind.Kind(), sees.Kind())
	}
	took := make(chan error, 1)
	go func() { took <- blind.Wait(context.Background(), 1, 0) }()
	polltest.Until(t, "the peer waits", func() bool {
		blind.e.mu.Lock()
		defer blind.e.mu.Unlock()
		return blind.changed.next != nil
	})
	if err := sees.Signal(1); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-took:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(30 * time.Second): // half of what the wait has
		t.Error("the signal is not taken")
	}
}
