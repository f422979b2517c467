package exec

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A thread that waits for the caller inside sleeps before long: that may have a lower priority, and
// need the same CPU.
func TestShutSendsSleeps(t *testing.T) {
	w := newPair(t)
	run := must(NewRun(w[0].Lane(1)))
	atEnd(t, run.Free)
	s := must(NewFastPath(run, 0))
	atEnd(t, s.Free)
	inside := gateOf(&s.c.sends.gate).inside()
	atomic.StoreUint32(inside, 1)
	tid, over := make(chan int, 1), make(chan struct{})
	go func() {
		defer close(over)
		runtime.LockOSThread()
		tid <- unix.Gettid()
		s.ShutSends()
	}()
	thread := <-tid
	count := func(what string) (n int) {
		status := string(must(os.ReadFile(fmt.Sprintf("/proc/self/task/%d/status", thread))))
		_, status, _ = strings.Cut(status, "\n"+what+"_ctxt_switches:")
		_, _ = fmt.Sscan(status, &n)
		return n
	}
	busy := func() time.Duration {
		var used unix.Timespec
		if err := unix.ClockGettime(int32(^thread<<3|6), &used); err != nil { // a thread's CPU time
			t.Fatal(err)
		}
		return time.Duration(used.Nano())
	}
	const times = 100
	used, yields, enough := busy(), count("nonvoluntary"), count("voluntary")+times
	for begun := time.Now(); count("voluntary") < enough && time.Since(begun) < 20*time.Second; {
		runtime.Gosched()
	}
	used, yields = busy()-used, count("nonvoluntary")-yields
	// Else it sleeps only where Go takes it from its CPU, after 10 ms each; and others have that.
	if missing := enough - count("voluntary"); missing > 0 || used > times*time.Millisecond ||
		yields > 10*times {
		t.Errorf("%d times asleep, %d times not of its own will, after %v of CPU time", times-missing,
			yields, used)
	}
	atomic.StoreUint32(inside, 0)
	<-over
}
