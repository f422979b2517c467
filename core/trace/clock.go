package trace

// #include "trace.h"
import "C"

import (
	"cmp"
	"math/bits"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
)

// countsTicks reports whether ticks are those of the CPU's counter: it goes on at one rate, and the
// kernel trusts it to be the same on all CPUs.
var countsTicks = sync.OnceValue(func() bool {
	if C.goccl_trace_invariant() == 0 {
		return false
	}
	source, err := os.ReadFile("/sys/devices/system/clocksource/clocksource0/current_clocksource")
	trusted := []string{"tsc", "kvm-clock", "arch_sys_counter"}
	return err == nil && slices.Contains(trusted, strings.TrimSpace(string(source)))
})

// The scales of traces: see scale in trace.h.
const scaleOfNS = (1<<64 - 1) / 1000

var scaleOfTicks = sync.OnceValue(func() uint64 { return uint64(C.goccl_trace_scale()) })

// took is how long so many ticks take, by the trace's scale. Unlike that of a [Clock] it is the
// same each time.
func (t *Trace) took(ticks uint64) time.Duration {
	us, rest := bits.Mul64(ticks, uint64(t.c.scale))
	ns, _ := bits.Mul64(rest, 1000)
	return time.Duration(us)*time.Microsecond + time.Duration(ns)
}

// Moment is one moment by three clocks.
type Moment struct {
	Ticks     uint64
	Monotonic time.Duration // CLOCK_MONOTONIC
	Realtime  time.Duration // CLOCK_REALTIME, since 1970
}

func (t *Trace) now() Moment { return moment(uint32(t.c.counter)) }

// moment is the present one, with ticks of the CPU's counter or not.
func moment(counter uint32) Moment {
	m := C.goccl_trace_moment(C.uint32_t(counter))
	return Moment{uint64(m.ticks), time.Duration(m.monotonic), time.Duration(m.realtime)}
}

// Clock makes times of a trace's ticks up to the moment when it was made. It measures the rate of
// ticks between two moments.
type Clock struct{ from, upto Moment }

// Clock returns a clock for what is read now, or was read before.
func (t *Trace) Clock() Clock { return Clock{t.began, t.now()} }

// Duration is how long so many ticks take.
func (c Clock) Duration(ticks uint64) time.Duration {
	passed := c.upto.Ticks - c.from.Ticks
	if passed == 0 {
		return time.Duration(ticks)
	}
	hi, lo := bits.Mul64(ticks, uint64(c.upto.Monotonic-c.from.Monotonic))
	if hi >= passed { // longer than a time can tell
		return 1<<63 - 1
	}
	ns, _ := bits.Div64(hi, lo, passed)
	return time.Duration(min(ns, 1<<63-1))
}

// Since is how long ago a tick was.
func (c Clock) Since(tick uint64) time.Duration {
	if tick >= c.upto.Ticks {
		return 0
	}
	return c.Duration(c.upto.Ticks - tick)
}

// Monotonic is the time of a tick on CLOCK_MONOTONIC.
func (c Clock) Monotonic(tick uint64) time.Duration { return c.before(tick, c.upto.Monotonic) }

// Realtime is the time of a tick since 1970, by CLOCK_REALTIME as it goes when the clock is made.
func (c Clock) Realtime(tick uint64) time.Duration { return c.before(tick, c.upto.Realtime) }

func (c Clock) before(tick uint64, at time.Duration) time.Duration {
	if tick >= c.upto.Ticks {
		return at + c.Duration(tick-c.upto.Ticks)
	}
	return at - c.Duration(c.upto.Ticks-tick)
}

// timeline makes times of ticks, each always the same one: it goes by moments that are in order. A
// step of CLOCK_REALTIME after the first moment is left out.
type timeline []Moment

// timelineMost is of how many moments a timeline knows.
const timelineMost = 1 << 12

// pass adds the present moment. Of the older ones it keeps fewer.
func (l *timeline) pass(m Moment) {
	if len(*l) == timelineMost {
		kept := (*l)[:0]
		for i, old := range *l {
			if i%2 == 0 || i > timelineMost/2 {
				kept = append(kept, old)
			}
		}
		*l = kept
	}
	*l = append(*l, m)
}

// realtime is the time of a tick that has passed, since 1970.
func (l timeline) realtime(tick uint64) time.Duration {
	i, _ := slices.BinarySearchFunc(l, tick, func(m Moment, tick uint64) int {
		return cmp.Compare(m.Ticks, tick)
	})
	i = min(max(i, 1), len(l)-1)
	from, upto := l[i-1], l[i]
	offset := l[0].Realtime - l[0].Monotonic
	if upto.Ticks == from.Ticks {
		return upto.Monotonic + offset
	}
	share := (float64(tick) - float64(from.Ticks)) / float64(upto.Ticks-from.Ticks)
	return from.Monotonic + offset + time.Duration(share*float64(upto.Monotonic-from.Monotonic))
}
