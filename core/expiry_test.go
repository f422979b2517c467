package core

import (
	"errors"
	"strings"
	"testing"
	"time"
)

// Each receive ends at its own deadline, in whatever order they were posted, and takes no other
// with it.
func TestDeadlinesOfReceives(t *testing.T) {
	w := newWorldOf(t, "shm", 2, Config{Timeout: time.Minute})
	post := func(tag int, timeout time.Duration) *Work {
		work, err := w.comms[0].Start(CallOptions{Timeout: timeout}, recvOp(buffer(t, 1), 1, tag))
		if err != nil {
			t.Fatal(err)
		}
		return work
	}
	long := post(0, time.Minute)
	for _, work := range []*Work{post(1, 200*time.Millisecond), post(2, 100*time.Millisecond),
		post(3, 300*time.Millisecond)} {
		begun := time.Now()
		if done, err := work.Wait(-1); !done || !errors.Is(err, ErrTimeout) ||
			!strings.Contains(err.Error(), "no send matched it") {
			t.Errorf("%v, %v", done, err)
		}
		if took := time.Since(begun); took > 30*time.Second {
			t.Errorf("it took %v", took)
		}
	}
	if done, err := long.Test(); done {
		t.Fatalf("the one that has time has ended, too: %v", err)
	}
	if err := run(w.comms[1], sendOp(buffer(t, 1), 0, 0)); err != nil {
		t.Fatal(err)
	}
	if done, err := long.Wait(-1); !done || err != nil {
		t.Error(done, err)
	}
}
