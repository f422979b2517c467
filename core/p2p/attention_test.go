package p2p

import (
	"slices"
	"testing"
	"time"
)

// The time until a look doubles with each that finds nothing, up to a limit.
func TestAttention(t *testing.T) {
	var due []func()
	var delays []time.Duration
	finds := false
	var a attention
	a.after = func(d time.Duration, f func()) {
		delays, due = append(delays, d), append(due, f)
	}
	looks := 0
	a.look = func() bool {
		looks++
		if finds {
			a.found()
		}
		return finds
	}
	pass := func() {
		t.Helper()
		a.later()
		a.later() // one is enough
		if len(due) != 1 {
			t.Fatalf("%d looks are to come", len(due))
		}
		f := due[0]
		due = nil
		f()
	}
	for range mostCalm + 2 {
		pass()
	}
	finds = true
	pass()
	finds = false
	pass()
	pass()
	const ms = time.Millisecond
	want := []time.Duration{ms, 2 * ms, 4 * ms, 8 * ms, 16 * ms, 16 * ms, 16 * ms, ms, 2 * ms}
	if !slices.Equal(delays, want) || looks != len(want) {
		t.Errorf("%d looks after %v, not after %v", looks, delays, want)
	}
}
