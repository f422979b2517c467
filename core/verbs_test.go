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
		if !errors.Is(err, ErrPeerFailed) || !strings.Contains(err.Error(), "removed") {
			t.Errorf("rank %d: %v", rank, err)
		}
	}
}

// A request that fails breaks a connection, which is made anew: nobody is told, and nothing is lost.
func TestBrokenConnectionsAreMended(t *testing.T) {
	const retryExceeded, general = 12, 21
	w, double := newVerbsWorld(t, 3)
	for i, status := range []int{retryExceeded, general, retryExceeded, general} {
		before := double.Calls("modify_qp")
		double.Complete(1+7*i, -1, 0, status, 0x57)
		collectives(t, w, 3, 1000*i, false)
		if double.Calls("modify_qp") == before {
			t.Errorf("status %d: no queue pair has been made anew", status)
		}
	}
}
