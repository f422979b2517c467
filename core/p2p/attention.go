package p2p

import (
	"sync/atomic"
	"time"
)

// leftOver is how long packets and transfers wait for a waiter; mostCalm, how often that is doubled
// at most.
const (
	leftOver = time.Millisecond
	mostCalm = 4
)

// attention has a function called for what waiters leave over, a little later, so that a waiter
// that comes first does it all. Where waiters have come so far, it gives them more time: a thread
// that is woken for nothing takes a CPU from them.
type attention struct {
	after func(time.Duration, func()) // calls a function after a time
	look  func() (found bool)         // does what is left over

	pending atomic.Bool
	calm    atomic.Uint32 // how many of the last looks found nothing
}

// later has look called.
func (a *attention) later() {
	if a.pending.Swap(true) {
		return
	}
	a.after(leftOver<<min(a.calm.Load(), mostCalm), func() {
		a.pending.Store(false)
		if !a.look() {
			a.calm.Add(1)
		}
	})
}

// found tells that something was left over. Look calls it before what takes long.
func (a *attention) found() { a.calm.Store(0) }
