package trace

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/goccl/goccl/core/plan"
)

func newTrace(t *testing.T) *Trace {
	t.Helper()
	traced, err := New()
	if err != nil {
		t.Fatal(err)
	}
	traced.Enter(Group{ID: 7, Epoch: 3, Name: "g", Ranks: []int{0, 1}}, []Transport{Self, TCP})
	return traced
}

// called is the message of a collective, all of which follows from its number.
func called(sequence uint64) *plan.Message {
	return &plan.Message{Group: 7, Epoch: 3, Sequence: sequence, Count: 2 * sequence,
		Digest: ^sequence, Root: -1, Collective: uint8(sequence % 3)}
}

func only(t *testing.T, all []Record, missed int) Record {
	t.Helper()
	if len(all) != 1 || missed != 0 {
		t.Fatalf("%d records, %d left out: %+v", len(all), missed, all)
	}
	return all[0]
}

// A record has what its state gives a meaning to.
func TestPhases(t *testing.T) {
	traced := newTrace(t)
	m := called(1)
	collective := func() Record {
		all, missed := traced.ReadCollectives()
		return only(t, all, missed)
	}
	traced.Queue(m, Queued)
	traced.SetBytes(1, 40)
	r := collective()
	if r.Message != *m || r.State != Queued || r.Bytes != 40 || r.Created == 0 || r.Begun != 0 ||
		r.Peer != -1 {
		t.Errorf("queued: %+v", r)
	}
	traced.Begin(1)
	if r = collective(); r.State != Begun || r.Begun < r.Created || r.Ended != 0 || r.Thread == 0 {
		t.Errorf("begun: %+v", r)
	}
	begun := r.Begun
	traced.Begin(1) // it goes on
	end := Ending{State: Ended, Algorithm: plan.TwoShot, Transports: 1 << TCP, Bytes: 40}
	traced.End(m, end)
	if r = collective(); r.State != Ended || r.Begun != begun || r.Ended < begun ||
		r.Algorithm != plan.TwoShot || r.Transports != 1<<TCP {
		t.Errorf("ended: %+v", r)
	}
	sums := traced.Counters()
	if n := sums.Calls; len(n) != 1 || n[0].Collective != plan.Reduce || n[0].Operations() != 1 ||
		n[0].Bytes != 40 || n[0].Algorithm != plan.TwoShot || n[0].Time != traced.took(r.Ended-begun) {
		t.Errorf("counted: %+v", sums)
	}
}

// What ends before it begins has taken no time, and what fails is counted apart.
func TestEndings(t *testing.T) {
	traced := newTrace(t)
	for sequence, s := range []State{1: Failed, 2: Refused, 3: SideStepped} {
		if s == 0 {
			continue
		}
		m := called(uint64(sequence))
		if s == Failed {
			traced.Queue(m, Queued)
			traced.End(m, Ending{State: s})
		} else {
			traced.Queue(m, s)
		}
		r, ok := traced.Collective(m.Sequence)
		if !ok || r.State != s || r.Begun != r.Ended || traced.Counters().Others[s] != 1 {
			t.Errorf("%v: %+v, %v; %v", s, r, ok, traced.Counters().Others)
		}
	}
	if calls := traced.Counters().Calls; len(calls) != 0 {
		t.Errorf("they count as ended: %v", calls)
	}
}

// A call that ends after a later one has taken its place leaves that as it is.
func TestLateEnd(t *testing.T) {
	traced := newTrace(t)
	first, later := called(1), called(1+Collectives)
	traced.Queue(first, Queued)
	traced.Queue(later, Queued)
	traced.Begin(1)
	traced.End(first, Ending{State: Ended, Algorithm: plan.OneShot})
	r, ok := traced.Collective(later.Sequence)
	if !ok || r.State != Queued || r.Message != *later {
		t.Errorf("%+v, %v", r, ok)
	}
	if _, ok := traced.Collective(1); ok {
		t.Error("the first one is still there")
	}
}

// A call of an epoch is not taken for one of another that has its number.
func TestEpochs(t *testing.T) {
	traced := newTrace(t)
	traced.Queue(called(1), Queued)
	traced.Fail("timeout", "a reason")
	traced.Enter(Group{ID: 8, Epoch: 4, Name: "g", Ranks: []int{0}}, []Transport{Self})
	if _, ok := traced.Called(1); ok {
		t.Error("it is called in the next epoch")
	}
	if _, ok := traced.Collective(1); ok {
		t.Error("it has a record of the next epoch")
	}
	traced.Restart(1)
	m := called(1)
	m.Epoch = 4
	traced.Queue(m, Queued)
	if r, ok := traced.Collective(1); !ok || r.Message.Epoch != 4 {
		t.Errorf("%+v, %v", r, ok)
	}
	if all, _ := traced.ReadCollectives(); len(all) != 2 || all[0].Message.Epoch != 3 {
		t.Errorf("%+v", all)
	}
	for epoch := range uint32(2 * groupsKept) {
		traced.Enter(Group{Epoch: 5 + epoch}, nil)
	}
	groups := traced.Groups()
	if n := len(groups); n != groupsKept || groups[n-1].Epoch != 4+2*groupsKept {
		t.Errorf("%d groups: %+v", n, groups)
	}
}

func TestMessages(t *testing.T) {
	traced := newTrace(t)
	Message{}.Begin(1) // of calls that are not noted
	Message{}.End(Ending{State: Ended})
	send := plan.Message{Collective: uint8(plan.Send), Root: 1, Digest: 5, Count: 10}
	m := traced.QueueMessage(send, 40)
	m.Begin(1)
	m.End(Ending{State: Ended, Transports: 1 << TCP, Bytes: 40})
	all, missed := traced.ReadMessages()
	r := only(t, all, missed)
	send.Group, send.Epoch, send.Sequence = 7, 3, 1
	if r.Message != send || r.State != Ended || r.Peer != 1 || r.Bytes != 40 {
		t.Errorf("%+v", r)
	}
	if n := traced.Counters().Carried[TCP]; n != 40 {
		t.Errorf("%d bytes went by TCP", n)
	}
}

// Readers take no lock, and find what belongs together: calls are queued by one goroutine, and
// begun and ended by another, which lags behind up to several rings.
func TestReadersAndWriters(t *testing.T) {
	const calls = 30000
	traced := newTrace(t)
	queued := make(chan uint64, 2*Collectives)
	var over atomic.Bool
	var readers, writers sync.WaitGroup
	writers.Go(func() {
		defer close(queued)
		for s := uint64(1); s <= calls; s++ {
			traced.Queue(called(s), Queued)
			traced.SetBytes(s, s)
			queued <- s
		}
	})
	writers.Go(func() {
		for s := range queued {
			traced.Begin(s)
			traced.End(called(s), Ending{State: Ended, Algorithm: plan.Flat, Bytes: s})
		}
	})
	for range 2 {
		readers.Go(func() {
			for !over.Load() {
				all, _ := traced.ReadCollectives()
				for _, r := range all {
					if r.Message != *called(r.Number) ||
						r.State == Ended && (r.Ended < r.Begun || r.Algorithm != plan.Flat) {
						t.Errorf("%+v", r)
						return
					}
				}
				if c := traced.Counters().Calls; len(c) > 3 {
					t.Errorf("%+v", c)
					return
				}
				runtime.Gosched()
			}
		})
	}
	writers.Wait()
	over.Store(true)
	readers.Wait()
	ended := uint64(0)
	for _, n := range traced.Counters().Calls {
		ended += n.Operations()
	}
	if ended != calls {
		t.Errorf("%d of %d calls are counted", ended, calls)
	}
}

func TestClock(t *testing.T) {
	c := Clock{Moment{1000, 50, 1_000_000}, Moment{4000, 1050, 2_000_000}} // 3 ticks a nanosecond
	for ticks, want := range map[uint64]time.Duration{0: 0, 3: 1, 3000: 1000, 1 << 62: 1 << 62 / 3,
		3 * (1<<63 - 1) / 2: (1<<63 - 1) / 2} {
		if got := c.Duration(ticks); got != want {
			t.Errorf("%d ticks take %d ns, want %d", ticks, got, want)
		}
	}
	for tick, want := range map[uint64]time.Duration{4000: 2_000_000, 1000: 1_999_000,
		4300: 2_000_100} {
		if got := c.Realtime(tick); got != want {
			t.Errorf("tick %d is at %d, want %d", tick, got, want)
		}
	}
	if got := c.Monotonic(1000); got != 50 {
		t.Errorf("the first tick is at %d", got)
	}
	if got := (Clock{Moment{Ticks: 5}, Moment{Ticks: 5}}).Duration(7); got != 7 {
		t.Errorf("with no time between: %d", got)
	}
	traced := newTrace(t)
	before := traced.now()
	after := traced.Clock()
	if at := after.Monotonic(before.Ticks); at < before.Monotonic-time.Second ||
		at > before.Monotonic+time.Second {
		t.Errorf("%v is at %v", before, at)
	}
}

func TestRegistry(t *testing.T) {
	var r Registry
	if n := len(r.All()); n != 0 {
		t.Errorf("the zero one has %d", n)
	}
	a, b := newTrace(t), newTrace(t)
	r.Add(a, "a")
	all := r.All()
	r.Add(b, "b")
	r.Remove(a)
	r.Remove(a)
	if now := r.All(); len(now) != 1 || now[0] != b || len(all) != 1 || all[0] != a {
		t.Errorf("%v after %v", now, all)
	}
}

// Memory that is used again has nothing of its former user.
func TestUsedAgain(t *testing.T) {
	traced := newTrace(t)
	traced.Queue(called(1), Queued)
	retire(traced.c)
	if all, missed := traced.ReadCollectives(); len(all) != 0 || missed != 0 {
		t.Errorf("a late reader finds %v", all)
	}
	retired.Lock()
	n := len(retired.free)
	if n == 0 || retired.free[n-1] != traced.c {
		retired.Unlock()
		t.Skip("the memory cannot be cleared")
	}
	retired.free = retired.free[:n-1] // its cleanup gives it back
	retired.Unlock()
}
