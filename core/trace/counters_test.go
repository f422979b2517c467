package trace

import (
	"maps"
	"math"
	"strconv"
	"testing"
	"time"

	"github.com/goccl/goccl/core/plan"
)

// ticksOf is how many ticks of a trace so long a time is, rounded up.
func ticksOf(traced *Trace, d time.Duration) uint64 {
	return uint64(math.Ceil(d.Seconds() * 1e6 * math.Ldexp(1, 64) / float64(traced.c.scale)))
}

// Calls are counted by how long they take, to within the error of the scale.
func TestBuckets(t *testing.T) {
	traced := newTrace(t)
	for i := range Buckets {
		longest := Bucket(i)
		if want := time.Duration(math.Pow(4, float64(i))) * time.Microsecond; longest != want {
			t.Fatalf("bucket %d has up to %v, want %v", i, longest, want)
		}
		for factor, want := range map[float64]int{0.99: i, 1.01: min(i+1, Buckets-1)} {
			ticks := ticksOf(traced, time.Duration(factor*float64(longest)))
			if got := int(bucketOf(traced, ticks)); got != min(want, Buckets-1) {
				t.Errorf("%v of %v is in bucket %d, want %d", factor, longest, got, want)
			}
		}
	}
	for ticks, want := range map[uint64]int{0: 0, math.MaxUint64: Buckets - 1} {
		if got := int(bucketOf(traced, ticks)); got != want {
			t.Errorf("%d ticks are in bucket %d", ticks, got)
		}
	}
}

// The scale of traces is that of the clock.
func TestScale(t *testing.T) {
	traced := newTrace(t)
	from := traced.now()
	time.Sleep(10 * time.Millisecond)
	upto := traced.now()
	took, want := traced.took(upto.Ticks-from.Ticks), upto.Monotonic-from.Monotonic
	if took < want*9/10 || took > want*11/10 {
		t.Errorf("%v by the scale are %v by the clock", took, want)
	}
}

// waited adds to what has been waited for a peer, as exec does.
func waited(traced *Trace, peer int, d time.Duration) {
	for range d {
		traced.c.counters[0].waits[peer]++
	}
}

// What was waited for in epochs that are over stays with the ranks that they had.
func TestWaits(t *testing.T) {
	traced := newTrace(t)
	waited(traced, 1, 30)
	check := func(when string, for_ map[Peer]time.Duration, by map[Transport]time.Duration) {
		t.Helper()
		sums := traced.Counters()
		if !maps.Equal(sums.WaitedFor, for_) || !maps.Equal(sums.WaitedBy, by) {
			t.Errorf("%s: %v, %v", when, sums.WaitedFor, sums.WaitedBy)
		}
	}
	check("at first", map[Peer]time.Duration{{"g", 1}: 30}, map[Transport]time.Duration{TCP: 30})
	traced.Enter(Group{Epoch: 4, Name: "g", Ranks: []int{0, 5, 1}}, []Transport{Self, Shm, TCP})
	check("in the next epoch", map[Peer]time.Duration{{"g", 1}: 30},
		map[Transport]time.Duration{TCP: 30})
	waited(traced, 1, 2)
	waited(traced, 2, 3)
	check("after more", map[Peer]time.Duration{{"g", 1}: 33, {"g", 5}: 2},
		map[Transport]time.Duration{TCP: 33, Shm: 2})
}

// A wait is told while it is under way, and where its collective fails. What is told never becomes
// less.
func TestWaitsUnderWay(t *testing.T) {
	traced := newTrace(t)
	told := func() time.Duration {
		sums := traced.Counters()
		if sums.WaitedBy[TCP] != sums.WaitedFor[Peer{"g", 1}] {
			t.Errorf("%v, but %v", sums.WaitedBy, sums.WaitedFor)
		}
		return sums.WaitedBy[TCP]
	}
	traced.Queue(called(1), Queued)
	traced.Begin(1)
	r := traced.collective(1)
	r.peer, r.since = 1, 1 // since the host has started
	last := told()
	if last < time.Millisecond {
		t.Errorf("under way %v", last)
	}
	r.since = 0 // it ends, and is to be counted in a moment
	if now := told(); now < last {
		t.Errorf("%v after %v", now, last)
	}
	waited(traced, 1, 5)
	if now := told(); now < last {
		t.Errorf("%v after %v", now, last)
	}
	last = told()
	r.since = 1
	traced.End(called(1), Ending{State: Failed})
	ended := told()
	if ended <= last || told() != ended {
		t.Errorf("%v after %v, then %v", ended, last, told())
	}
	if c, ok := traced.Collective(1); !ok || c.Waited < time.Millisecond || c.Waiting != 0 {
		t.Errorf("%+v", c)
	}
	traced.Enter(Group{Epoch: 4, Name: "g", Ranks: []int{0, 1}}, []Transport{Self, Shm})
	if now := traced.Counters().WaitedBy; now[TCP] < ended || now[Shm] != 0 {
		t.Errorf("in the next epoch %v", now)
	}
}

// An epoch that follows a failure is a recovery, and one that follows another's good end is none.
func TestFailures(t *testing.T) {
	traced := newTrace(t)
	next := func() { traced.Enter(Group{Name: "g", Ranks: []int{0}}, []Transport{Self}) }
	traced.Fail("", "it ends")
	next()
	traced.Fail("timeout", "rank 1 did not come")
	if sums := traced.Counters(); sums.Failures["timeout"] != 1 || sums.Recoveries != 0 {
		t.Errorf("%+v", sums)
	}
	next()
	next()
	traced.SideStepped("gloo")
	traced.SideStepped("gloo")
	traced.Staged(40)
	if sums := traced.Counters(); len(sums.Failures) != 1 || sums.Recoveries != 1 ||
		sums.SideSteps["gloo"] != 2 || sums.Staged != 40 {
		t.Errorf("%+v", sums)
	}
}

// What communicators have done is still counted when they are gone.
func TestSums(t *testing.T) {
	var r Registry
	work := func(name string, calls int) *Trace {
		traced := newTrace(t)
		r.Add(traced, name)
		for s := range calls {
			m := called(uint64(s + 1))
			m.Collective = uint8(plan.Reduce)
			traced.Queue(m, Queued)
			traced.Begin(m.Sequence)
			traced.End(m, Ending{State: Ended, Algorithm: plan.Flat, Bytes: 10})
		}
		waited(traced, 1, 7)
		traced.Fail("aborted", "")
		return traced
	}
	a := work("a", 3)
	work("b", 1)
	check := func(when string) {
		t.Helper()
		sums := r.Counters()
		if n := sums.Calls; len(n) != 1 || n[0].Operations() != 4 || n[0].Bytes != 40 {
			t.Errorf("%s: %+v", when, n)
		}
		want := map[Peer]time.Duration{{"a", 1}: 7, {"b", 1}: 7}
		if !maps.Equal(sums.WaitedFor, want) || sums.Failures["aborted"] != 2 {
			t.Errorf("%s: %+v", when, sums)
		}
	}
	check("before")
	r.Remove(a)
	check("after")
	for i := range 2 * groupNames {
		last := work(strconv.Itoa(i), 0)
		if i%2 == 0 {
			r.Remove(last)
		}
	}
	names := map[string]time.Duration{}
	for p, d := range r.Counters().WaitedFor {
		names[p.Group] += d
	}
	if len(names) != groupNames+1 || names["a"] != 7 || names[Other] != 7*(groupNames+2) {
		t.Errorf("%d groups: %v", len(names), names)
	}
}
