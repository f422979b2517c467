package core

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/goccl/goccl/rdma/fake"
)

// What no adapter of ours produces, a double does.
func newVerbsWorld(t *testing.T, size int) (*world, *fake.Library) {
	t.Helper()
	double := fake.New(t)
	runtime := RuntimeConfig{Verbs: double.Path, Logf: t.Logf}
	w := newWorldWith(t, runtime, "verbs", size, Config{Timeout: time.Minute})
	w.each(func(rank int) error { return run(w.comms[rank], allReduce(t, 10)) })
	return w, double
}

func TestRemovedDeviceIsTold(t *testing.T) {
	w, double := newVerbsWorld(t, 3)
	errs := w.try(func(rank int) error {
		for i := 0; ; i++ {
			if rank == 1 && i == 100 {
				double.Remove(0)
			}
			if err := run(w.comms[rank], allReduce(t, 10)); err != nil {
				return err
			}
		}
	})
	for rank, err := range errs {
		// What was under way may come back before the device tells that it is gone.
		says := func(text string) bool { return strings.Contains(err.Error(), text) }
		if !errors.Is(err, ErrPeerFailed) || !says("removed") && !says("the connection is broken") {
			t.Errorf("rank %d: %v", rank, err)
		}
	}
}

// A request that fails breaks a connection, and so its link. Who tells first may be the other side, whose requests are flushed.
func TestBrokenConnectionIsTold(t *testing.T) {
	w, double := newVerbsWorld(t, 3)
	const general = 21
	double.Complete(1, -1, 0, general, 0x57)
	errs := w.try(func(rank int) error {
		for {
			if err := run(w.comms[rank], allReduce(t, 10)); err != nil {
				return err
			}
		}
	})
	said := 0
	for rank, err := range errs {
		if !errors.Is(err, ErrPeerFailed) {
			t.Errorf("rank %d: %v", rank, err)
		} else if strings.Contains(err.Error(), "the connection is broken") {
			said++
		}
	}
	if said == 0 {
		t.Error("nobody tells why", errs)
	}
}
