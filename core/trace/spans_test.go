package trace

import (
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/goccl/goccl/core/plan"
)

func open(t *testing.T) *Session {
	t.Helper()
	s, err := Open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// here has the test stay on its thread, so that its spans have one ring.
func here(t *testing.T) {
	runtime.LockOSThread()
	t.Cleanup(runtime.UnlockOSThread)
}

func kinds(spans []Span) (all []string) {
	for i := range spans {
		all = append(all, spans[i].Kind.String())
	}
	return all
}

// Calls have spans of the time that they are queued and run for, while a session is open.
func TestSpansOfCalls(t *testing.T) {
	here(t)
	traced := newTrace(t)
	call := func(sequence uint64, s State) {
		m := called(sequence)
		traced.Queue(m, s)
		traced.SetBytes(sequence, 40)
		if s == Queued {
			traced.Begin(sequence)
			traced.End(m, Ending{State: Ended, Bytes: 40})
		}
	}
	call(1, Queued)
	before := time.Now()
	s := open(t)
	call(2, Queued)
	call(3, SideStepped)
	message := traced.QueueMessage(plan.Message{Collective: uint8(plan.Recv), Root: 1}, 8)
	message.Begin(1)
	message.End(Ending{State: Ended, Bytes: 8})
	s.Close()
	call(4, Queued)
	spans, missed := s.Read(100)
	if got := kinds(spans); missed != 0 || !slices.Equal(got, []string{"queued", "call", "side-step",
		"call"}) {
		t.Fatalf("%q, %d missed", got, missed)
	}
	if c := &spans[1]; c.Sequence != 2 || c.Bytes != 40 || c.Collective != 2 || c.Group != "g" ||
		c.Peer != -1 || c.Thread == 0 || c.Begin < time.Duration(before.UnixNano())-time.Millisecond ||
		c.End > time.Duration(time.Now().UnixNano()) || c.End < c.Begin {
		t.Errorf("%+v", c)
	}
	if m := &spans[3]; m.Peer != 1 || m.Collective != plan.Recv || m.Bytes != 8 {
		t.Errorf("%+v", m)
	}
}

// Two sessions read the same, each from its beginning.
func TestSessions(t *testing.T) {
	here(t)
	traced := newTrace(t)
	if Begin() != 0 {
		t.Fatal("there is a tick without a session")
	}
	traced.Add(SpanRead, Begin(), nil, 1, 1) // nobody traces
	a := open(t)
	begin := Begin()
	traced.Add(SpanRead, begin, nil, 1, 1)
	b := open(t)
	traced.Add(SpanConnect, begin, called(5), 1, 2)
	ofA, _ := a.Read(1)
	more, _ := a.Read(1)
	ofB, _ := b.Read(10)
	if got := kinds(append(ofA, more...)); !slices.Equal(got, []string{"read", "connect"}) {
		t.Errorf("%q", got)
	}
	if got := kinds(ofB); !slices.Equal(got, []string{"connect"}) {
		t.Fatalf("%q", got)
	}
	if ofB[0].Begin < time.Duration(0) || ofB[0].Begin <= more[0].Begin || ofB[0].Sequence != 5 {
		t.Errorf("a span that began before its session: %+v, in the other %+v", ofB[0], more[0])
	}
	a.Close()
	a.Close()
	if Begin() == 0 {
		t.Error("the other session has been closed, too")
	}
	b.Close()
	for range sessionsMost {
		open(t)
	}
	if _, err := Open(); err != ErrSessions {
		t.Errorf("one more session: %v", err)
	}
}

// A reader at full speed finds only whole spans, and counts those that it misses.
func TestReadWhileWritten(t *testing.T) {
	traced := newTrace(t)
	s := open(t)
	const writers, each = 3, 300_000
	var writing sync.WaitGroup
	var over atomic.Bool
	for range writers {
		writing.Go(func() {
			runtime.LockOSThread()
			for i := range uint32(each) {
				traced.Add(SpanRead, Begin(), &plan.Message{Sequence: uint64(i)}, int(i), uint64(i))
			}
		})
	}
	go func() { writing.Wait(); over.Store(true) }()
	last := map[int]Span{}
	total := uint64(0)
	for ended := false; !ended; {
		ended = over.Load()
		spans, missed := s.Read(1 << 30)
		total += uint64(len(spans)) + missed
		for _, span := range spans {
			before, seen := last[span.Thread]
			if span.Sequence != span.Bytes || int(span.Bytes) != span.Peer ||
				seen && (span.Sequence <= before.Sequence || span.End < before.End) {
				t.Fatalf("%+v after %+v", span, before)
			}
			last[span.Thread] = span
		}
	}
	if total != writers*each || len(last) != writers {
		t.Errorf("%d spans of %d threads, there were %d of %d", total, len(last), writers*each, writers)
	}
}

// A thread that begins after another's end has its ring, once all sessions have read that.
func TestRingIsUsedAgain(t *testing.T) {
	traced := newTrace(t)
	write := func() {
		done := make(chan struct{})
		go func() {
			defer close(done)
			runtime.LockOSThread() // so that the thread ends with the goroutine
			traced.Add(SpanRead, Begin(), nil, -1, 0)
		}()
		<-done
	}
	rings := func() int {
		s := open(t)
		defer s.Close()
		return len(s.next)
	}
	before := rings()
	a, b := open(t), open(t)
	for range 50 {
		write()
		for _, s := range []*Session{a, b} {
			if spans, missed := s.Read(10); len(spans) != 1 || missed != 0 {
				t.Fatalf("%+v, %d missed", spans, missed)
			}
		}
		a.Read(1) // its thread may have ended after the last one
		b.Read(1)
	}
	if n := rings() - before; n > 25 { // a thread ends a little after its goroutine
		t.Errorf("%d rings for 50 threads, one after the other", n)
	}
}

func TestTitle(t *testing.T) {
	for want, s := range map[string]Span{
		"allreduce":         {Kind: SpanCall, Peer: -1},
		"send to rank 0":    {Kind: SpanCall, Collective: plan.Send},
		"recv from rank 2":  {Kind: SpanCall, Collective: plan.Recv, Peer: 2},
		"wait for rank 3":   {Kind: 6, Peer: 3},
		"connect to rank 3": {Kind: SpanConnect, Peer: 3},
		"recover":           {Kind: SpanRecover, Peer: -1},
		"unknown":           {Kind: 99, Peer: 1},
	} {
		if got := s.Title(); got != want {
			t.Errorf("%+v is %q, want %q", s, got, want)
		}
	}
}

func TestPlace(t *testing.T) {
	var rows []intact
	for i, c := range []struct {
		begin, end uint64
		row        int
	}{
		{10, 20, 0},
		{20, 30, 0}, // beside
		{5, 40, 0},  // around both
		{38, 50, 1}, // across the end of that
		{45, 51, 0}, // beside
		{52, 52, 0},
		{37, 60, 1}, // around what the second row has
		{0, 70, 0},
	} {
		if row := place(&rows, c.begin, c.end); row != c.row {
			t.Errorf("%d: row %d, want %d: %v", i, row, c.row, rows)
		}
	}
	for i := range uint64(3 * intactMost) {
		place(&rows, 100+2*i, 101+2*i)
	}
	if n := len(rows[0]); n > intactMost {
		t.Errorf("%d intervals are kept", n)
	}
}

// A tick has the same time however often, and whenever, it is asked for.
func TestTimeline(t *testing.T) {
	l := timeline{{Ticks: 100, Monotonic: 10, Realtime: 1000}}
	l.pass(Moment{Ticks: 200, Monotonic: 110, Realtime: 1100})
	at := l.realtime(150)
	l.pass(Moment{Ticks: 300, Monotonic: 310, Realtime: 5}) // the clock was stepped
	for _, c := range []struct {
		tick uint64
		want time.Duration
	}{{150, at}, {100, 1000}, {200, 1100}, {250, 1200}, {300, 1300}} {
		if got := l.realtime(c.tick); got != c.want {
			t.Errorf("tick %d: %v, want %v", c.tick, got, c.want)
		}
	}
	for i := range uint64(3 * timelineMost) {
		l.pass(Moment{Ticks: 400 + i, Monotonic: time.Duration(410 + i)})
	}
	if got := l.realtime(102); got != 1002 {
		t.Errorf("an old tick is at %v", got)
	}
	if len(l) > timelineMost {
		t.Errorf("%d moments are kept", len(l))
	}
}
