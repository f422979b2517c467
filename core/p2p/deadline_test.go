package p2p

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/work"
)

// Each receive ends at its own deadline, in whatever order they were posted, and takes no other
// with it.
func TestDeadlinesOfReceives(t *testing.T) {
	w := newWorld(t, byPlans, 2)
	post := func(tag int, timeout time.Duration) *work.Work {
		return w.ranks[0].start(recvOp(buffer(t, 1), 1, tag), timeout)
	}
	long := post(0, time.Minute)
	for _, x := range []*work.Work{post(1, 200*time.Millisecond), post(2, 100*time.Millisecond),
		post(3, 300*time.Millisecond)} {
		if done, err := x.Wait(-1); !done || !errors.Is(err, fault.ErrTimeout) ||
			!strings.Contains(err.Error(), "no send matched it") {
			t.Errorf("%v, %v", done, err)
		}
	}
	if done, err := long.Test(); done {
		t.Fatalf("the one that has time has ended, too: %v", err)
	}
	wait(t, "send", w.ranks[1].start(sendOp(buffer(t, 1), 0, 0), time.Minute))
	wait(t, "the one that has time", long)
}
