package core

import (
	"errors"
	"testing"
	"time"
	"unsafe"

	"github.com/goccl/goccl/core/internal/polltest"
	"github.com/goccl/goccl/core/plan"
	"github.com/goccl/goccl/core/reduce"
)

// A rank that waits for long announces that in each segment, and once in each.
func TestEachLongWaitIsAnnounced(t *testing.T) {
	w, errs := tryWorld(t, 2, func(_ int, _ *RuntimeConfig, c *Config) {
		c.Transport, c.Thresholds, c.Algorithms = "shm", "get_min=0", "scatter:flat"
	})
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	around(t, w, 2, 1)
	const n = 9 << 20 // two segments
	in, out := buffer(t, n), [2][]int32{buffer(t, n), buffer(t, n)}
	fill(in, 0, 1)
	// Both ranks are run by the test, so that neither comes further than it is to.
	works := make([]*Work, 2)
	letRootGo, letWaiterGo := holdQueue(t, w.comms[0]), holdQueue(t, w.comms[1])
	start := func(rank int) {
		t.Helper()
		k, err := w.comms[rank].Start(CallOptions{}, Operation{Collective: plan.Scatter,
			DType: reduce.Int32, InCounts: []uint64{n, n}, In: []unsafe.Pointer{ptr(in), ptr(in)},
			OutCounts: []uint64{n}, Out: []unsafe.Pointer{ptr(out[rank])}})
		if err != nil {
			t.Fatal(err)
		}
		works[rank] = k
	}
	root, waiter := w.comms[0], w.comms[1]
	// announced runs the waiter until it has announced another wait than one.
	announced := func(before time.Duration) (wait time.Duration) {
		polltest.Until(t, "a wait is announced", func() bool {
			runHeldQueue(waiter, works[1], time.Millisecond)
			wait = *private[time.Duration](waiter, "runner.announced")
			return wait != before
		})
		return wait
	}
	start(1)
	first := announced(0)
	polltest.Until(t, "the root hears of the first wait", func() bool { return hasAnnounced(root, 1) })
	runHeldQueue(waiter, works[1], 200*time.Millisecond)
	if *private[time.Duration](waiter, "runner.announced") != first {
		t.Error("one wait is announced twice")
	}
	start(0)
	for last, step := 0, 0; step >= last; { // until the root is in the second segment
		last, step = step, runHeldQueue(root, works[0], 0)
		runHeldQueue(waiter, works[1], 0)
	}
	announced(first)
	letRootGo()
	letWaiterGo()
	w.each(func(rank int) error {
		if _, err := works[rank].Wait(-1); err != nil {
			return err
		}
		return expect("scattered", out[rank], func(i int) int32 { return value(0, 1, i) })
	})
}
