package main

import (
	"runtime"
	"sync/atomic"
	"time"

	"github.com/goccl/goccl/core/exec"
)

// scheduleEvery is half of what Go's monitor lets a thread be without having come by the scheduler.
const scheduleEvery = 5 * time.Millisecond

var scheduledAt atomic.Int64 // by exec.Now

// schedule comes by Go's scheduler now and then. A thread of the caller's holds a processor of Go from call to call, but one that has not
// come by the scheduler for 10 ms Go's monitor takes it away from, and then looks around every 20 µs for some milliseconds, from the next call on.
// Where ranks outnumber CPUs that took a tenth of the CPU time of small sends; so it finds no reason to, and sleeps.
func schedule() {
	now, last := int64(exec.Now()), scheduledAt.Load()
	if time.Duration(now-last) > scheduleEvery && scheduledAt.CompareAndSwap(last, now) {
		runtime.Gosched()
	}
}
