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

// schedule comes by Go's scheduler now and then. A thread that calls into Go keeps a processor of
// Go's from call to call, until Go's monitor finds that the thread has not come by the scheduler
// for 10 ms, and takes the processor away. From the next call on the monitor then looks around
// every 20 µs, for some milliseconds. Where ranks outnumber CPUs that took a tenth of the CPU time
// of small sends; now it finds nothing, and sleeps.
func schedule() {
	now, last := int64(exec.Now()), scheduledAt.Load()
	if time.Duration(now-last) > scheduleEvery && scheduledAt.CompareAndSwap(last, now) {
		runtime.Gosched()
	}
}
