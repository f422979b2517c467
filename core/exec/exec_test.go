package exec

import (
	"bytes"
	"encoding/binary"
	"errors"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/goccl/goccl/core/plan"
)

var layout = Layout{Ranks: 2, Lanes: 2, Slots: 2, Chunk: 64, Mailbox: MailboxFor(longest),
	Bounce: BounceFor(longest), Pipe: 64 << 10}

// brief is for waits that soon sleep.
var brief = Waiting{Spin: time.Microsecond, Yields: 10}

// atEnd gives back what a test has used. What a failed test has left behind may use it still: it is
// then left, too.
func atEnd(t testing.TB, giveBack func()) {
	t.Cleanup(func() {
		if !t.Failed() {
			giveBack()
		}
	})
}

func newPair(t *testing.T) [2]*Window {
	t.Helper()
	return newPairWaiting(t, brief)
}

func newPairWaiting(t *testing.T, wait Waiting) [2]*Window {
	t.Helper()
	w := newStrangers(t, wait)
	connect(t, w, 0)
	connect(t, w, 1)
	return w
}

// newStrangers makes the windows of two ranks, neither of which knows the other's.
func newStrangers(t *testing.T, wait Waiting) (w [2]*Window) {
	t.Helper()
	for i := range w {
		win, err := NewWindow(layout, i, true, wait)
		if err != nil {
			t.Fatal(err)
		}
		w[i] = win
		atEnd(t, win.Close)
	}
	return w
}

// connect has a rank map the other's window.
func connect(t *testing.T, w [2]*Window, rank int) {
	t.Helper()
	fd, err := unix.Dup(w[1-rank].FD())
	if err != nil {
		t.Fatal(err)
	}
	if err := w[rank].ConnectMemory(rank, 1-rank, fd); err != nil {
		t.Fatal(err)
	}
}

func off(t *testing.T, n int) unsafe.Pointer {
	t.Helper()
	b, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	atEnd(t, func() { _ = unix.Munmap(b) })
	return unsafe.Pointer(&b[0])
}

// started returns a run of a Send from rank 0 or a Recv on rank 1 of n bytes.
func started(t *testing.T, w [2]*Window, rank int, n int64, m plan.Message) (*Run, unsafe.Pointer) {
	t.Helper()
	p := plan.Params{Collective: plan.Send, Rank: rank, Size: 2, Root: 1 - rank, ElemSize: 1,
		Chunk: layout.Chunk, Slots: layout.Slots}
	buf := off(t, 4096)
	b := Binding{Message: m}
	if rank == 0 {
		p.InBytes, b.In = []int64{n}, []unsafe.Pointer{buf}
	} else {
		p.Collective, p.OutBytes, b.Out = plan.Recv, []int64{n}, []unsafe.Pointer{buf}
	}
	built, err := plan.Build(p)
	if err != nil {
		t.Fatal(err)
	}
	c := must(Compile(built, true, false))
	atEnd(t, c.Free)
	r := must(NewRun(w[rank].Lane(1)))
	atEnd(t, r.Free)
	r.Bind(b)
	r.Begin(c, 0)
	return r, buf
}

func soon() time.Duration { return Now() + time.Millisecond }

func TestRunIsLeftAndTakenUpAgain(t *testing.T) {
	w := newPair(t)
	send, in := started(t, w, 0, 300, plan.Message{Sequence: 1})
	recv, out := started(t, w, 1, 300, plan.Message{Sequence: 1})
	for i := range 300 {
		*(*byte)(unsafe.Add(in, i)) = byte(i)
	}
	// Five messages through two slots: each side blocks until the other has got on.
	a, b := Blocked, Blocked
	for a != Done || b != Done {
		if a != Done {
			a = send.Continue(soon())
		}
		if b != Done {
			b = recv.Continue(soon())
		}
		if a != Done && a != Blocked || b != Done && b != Blocked {
			t.Fatalf("status %d, %d", a, b)
		}
	}
	for i := range 300 {
		if got := *(*byte)(unsafe.Add(out, i)); got != byte(i) {
			t.Fatalf("byte %d is %d", i, got)
		}
	}
}

// Of any alignment and length, and nothing beside it.
func TestCopies(t *testing.T) {
	win, err := NewWindow(Layout{Ranks: 1, Lanes: 1, Slots: 2, Chunk: 64}, 0, false, Waiting{})
	if err != nil {
		t.Fatal(err)
	}
	defer win.Close()
	r := must(NewRun(win.Lane(0)))
	defer r.Free()
	const room = 1 << 14
	from, to := off(t, room), off(t, room)
	in, out := unsafe.Slice((*byte)(from), room), unsafe.Slice((*byte)(to), room)
	for i := range in {
		in[i] = byte(1 + i%251)
	}
	for _, n := range []int{0, 1, 2, 3, 7, 8, 12, 15, 31, 55, 56, 57, 63, 64, 65, 255, 256, 257, 319,
		320, 4095, 4096, 10_000} {
		p, err := plan.Build(plan.Params{Collective: plan.AllGather, Algorithm: plan.Linear, Size: 1,
			InBytes: []int64{int64(n)}, OutBytes: []int64{int64(n)},
			ElemSize: 1, Chunk: 64, Slots: 2, Memory: true})
		if err != nil {
			t.Fatal(err)
		}
		c := must(Compile(p, false, false))
		for _, at := range []int{0, 1, 32, 63, 64, 75, 79, 100} { // at 64, 75 and 79 rep movs would crawl
			for _, streams := range []plan.Streams{plan.StreamNone, plan.StreamAll} {
				clear(out)
				r.Bind(Binding{In: []unsafe.Pointer{unsafe.Add(from, 127-at)},
					Out: []unsafe.Pointer{unsafe.Add(to, at)}, Streams: streams})
				r.Begin(c, 0)
				if s := r.Continue(soon()); s != Done {
					t.Fatalf("status %d", s)
				}
				want := make([]byte, room)
				copy(want[at:], in[127-at:][:n])
				if !bytes.Equal(out, want) {
					t.Errorf("%d bytes at %d, streams %d", n, at, streams)
				}
			}
		}
		c.Free()
	}
}

func TestRunTellsMismatch(t *testing.T) {
	w := newPair(t)
	send, _ := started(t, w, 0, 10, plan.Message{Sequence: 1, Count: 10})
	recv, _ := started(t, w, 1, 10, plan.Message{Sequence: 1, Count: 11})
	if s := send.Continue(soon()); s != Done {
		t.Fatalf("send: status %d", s)
	}
	if s := recv.Continue(soon()); s != Mismatch || recv.Peer() != 0 {
		t.Fatalf("recv: status %d, peer %d", s, recv.Peer())
	}
	if seen, bytes, _ := recv.Seen(); seen.Count != 10 || bytes != 10 {
		t.Fatalf("seen %+v, %d bytes", seen, bytes)
	}
}

// A bell is rung without a fence: who has gone to sleep meanwhile is not seen, and looks again
// after a nap.
func TestMissedRing(t *testing.T) {
	w := newPair(t)
	bell := w[1].lanes[1].c.bell
	unheard := *bell
	var pinner runtime.Pinner
	pinner.Pin(&unheard)
	defer pinner.Unpin()
	w[0].lanes[1].channels[1].peer_bell = &unheard
	const trials = 100
	// this thread has lost its CPU for longer than the nap took: then a look for sleepers would have
	// seen one
	missed := 0
	for i := range trials {
		m := plan.Message{Sequence: uint64(i + 1)}
		send, _ := started(t, w, 0, 10, m)
		recv, _ := started(t, w, 1, 10, m)
		status := make(chan Status)
		go func() { status <- recv.Continue(Now() + time.Minute) }()
		for atomic.LoadUint32((*uint32)(&bell.sleepers)) == 0 {
		}
		if s := send.Continue(soon()); s != Done {
			t.Fatalf("send %d: status %d", i, s)
		}
		select {
		case s := <-status:
			if s != Done {
				t.Fatalf("recv %d: status %d", i, s)
			}
		case <-time.After(20 * time.Millisecond):
			missed++
			w[1].ring()
			<-status
		}
	}
	if missed > trials*95/100 {
		t.Errorf("%d of %d sleepers have missed what they waited for", missed, trials)
	}
}

// receive has rank 1 wait for a message, and rank 0 send it when `send` tells to.
func receive(
	t *testing.T, w [2]*Window, sequence uint64, waited bool, send func(began time.Duration) bool,
) {
	t.Helper()
	m := plan.Message{Sequence: sequence}
	out, _ := started(t, w, 0, 10, m)
	in, _ := started(t, w, 1, 10, m)
	in.Waited(waited)
	status, beginning := make(chan Status), make(chan time.Duration)
	go func() {
		beginning <- Now()
		status <- in.Continue(Now() + time.Minute)
	}()
	for began := <-beginning; !send(began); {
		if Now()-began > time.Minute {
			t.Fatalf("receive %d: the time to send does not come", sequence)
		}
	}
	if s := out.Continue(soon()); s != Done {
		t.Fatalf("send %d: status %d", sequence, s)
	}
	if s := <-status; s != Done {
		t.Fatalf("receive %d: status %d", sequence, s)
	}
}

func sleeps(w *Window) bool {
	return atomic.LoadUint32((*uint32)(&w.Lane(1).c.bell.sleepers)) > 0
}

// Waits that yield in vain do so less and less.
func TestYieldsInVain(t *testing.T) {
	w := newPair(t)
	p := &w[1].Lane(1).c.patience
	for i := range uint64(50) {
		receive(t, w, i+1, false, func(time.Duration) bool { return sleeps(w[1]) })
	}
	if p.yields == 0 || p.yields >= p.yields_most {
		t.Errorf("%d of %d yields", p.yields, p.yields_most)
	}
}

// A caller that has nothing else to do spins for as long as its peer may be at work. It spins for
// less where waits last longer, and longer again once they are short.
func TestSpinOfWaiters(t *testing.T) {
	const most = time.Millisecond
	w := newPairWaiting(t, Waiting{Spin: most, Yields: 10})
	p := &w[1].Lane(1).c.patience
	yields := p.yields
	sequence := uint64(0)
	next := func(send func(began time.Duration) bool) {
		sequence++
		receive(t, w, sequence, true, send)
	}
	next(func(began time.Duration) bool {
		if !sleeps(w[1]) {
			return false
		}
		if slept := Now() - began; slept < most {
			t.Errorf("a receiver slept after %v, its spin is %v", slept, most)
		}
		return true
	})
	for range 50 {
		slept := time.Duration(0) // since when: it may have begun long after it was told to
		next(func(time.Duration) bool {
			if slept == 0 && sleeps(w[1]) {
				slept = Now()
			}
			return slept > 0 && Now()-slept > 2*most
		})
	}
	if p.spin == 0 || time.Duration(p.spin) > most/10 {
		t.Errorf("a spin of %d ns after long waits only", p.spin)
	}
	for i := 0; time.Duration(p.spin) < most/2; i++ {
		if i == 1000 { // some of them last long on a busy host
			t.Fatalf("a spin of %d ns after short waits only, of at most %d", p.spin, p.spin_most)
		}
		next(func(began time.Duration) bool { return Now()-began > most/10 })
	}
	if p.yields != yields {
		t.Errorf("%d yields in a row, want %d: a waiter does none", p.yields, yields)
	}
}

func TestStopAndLeaveEndWaits(t *testing.T) {
	for name, c := range map[string]struct {
		do   func(*Window)
		want Status
	}{"stop": {(*Window).Stop, Stopped}, "leave": {func(w *Window) { w.Leave(0) }, Gone}} {
		w := newPair(t)
		recv, _ := started(t, w, 1, 10, plan.Message{})
		status := make(chan Status)
		go func() { status <- recv.Continue(Now() + time.Minute) }()
		c.do(w[1])
		if s := <-status; s != c.want {
			t.Errorf("%s: status %d, want %d", name, s, c.want)
		}
	}
}

func TestGoneStillDelivers(t *testing.T) {
	w := newPair(t)
	send, _ := started(t, w, 0, 10, plan.Message{})
	if s := send.Continue(soon()); s != Done {
		t.Fatalf("send: status %d", s)
	}
	w[1].Leave(0)
	recv, _ := started(t, w, 1, 10, plan.Message{})
	if s := recv.Continue(soon()); s != Done {
		t.Fatalf("recv: status %d", s)
	}
}

// What a peer on a port channel says is checked before it is used.
func TestPortChecks(t *testing.T) {
	w, err := NewWindow(layout, 0, false, Waiting{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	w.ConnectPort(1)
	l := w.Lane(0)
	header := int(MessageHeader)
	for name, f := range map[string]func() error{
		"number":   func() error { _, _, err := l.Slot(1, 7, header); return err },
		"short":    func() error { _, _, err := l.Slot(1, 0, header-1); return err },
		"long":     func() error { _, _, err := l.Slot(1, 0, header+int(layout.Chunk)+1); return err },
		"released": func() error { return l.Released(1, 1) },
	} {
		if err := f(); !errors.Is(err, ErrProtocol) {
			t.Errorf("%s: %v", name, err)
		}
	}
	place := off(t, 4096)
	p := l.placement(1, 0)
	for _, c := range []struct{ posted, message int }{{4096, 4096}, {100, 4096},
		{4096, int(layout.Chunk)}} {
		*(*unsafe.Pointer)(unsafe.Pointer(&p.to)) = place
		*(*uint64)(&p.bytes), *(*uint64)(&p.state) = uint64(c.posted), posted(0)
		_, body, err := l.Slot(1, 0, header+c.message)
		switch fits, slots := c.posted == c.message, c.message <= int(layout.Chunk); {
		case fits && (err != nil || unsafe.Pointer(&body[0]) != place), !fits && slots &&
			(err != nil || unsafe.Pointer(&body[0]) == place):
			t.Errorf("%+v: %d bytes at %p, %v", c, len(body), body, err)
		case !fits && !slots && !errors.Is(err, ErrProtocol):
			t.Errorf("%+v: %v", c, err)
		}
	}
	p.state = 0
	for n := range layout.Slots {
		head, body, err := l.Slot(1, uint64(n), header+int(layout.Chunk))
		if err != nil || len(head) != header || len(body) != int(layout.Chunk) {
			t.Fatalf("slot %d: %d and %d bytes, %v", n, len(head), len(body), err)
		}
		l.Arrived(1)
	}
	if _, _, err := l.Slot(1, uint64(layout.Slots), header); !errors.Is(err, ErrProtocol) {
		t.Errorf("one too many: %v", err)
	}
	// A run that has given up has no places any more, which is no fault of the peer's.
	w.Stop()
	atomic.AddUint64((*uint64)(&l.channels[1].freed), 1)
	if _, body, err := l.Slot(1, uint64(layout.Slots), header+4096); err != nil || len(body) != 4096 {
		t.Errorf("after the end: %d bytes, %v", len(body), err)
	}
}

func TestForeignWindowIsChecked(t *testing.T) {
	w := newPair(t)
	fd, err := unix.MemfdCreate("other", unix.MFD_ALLOW_SEALING)
	if err != nil {
		t.Fatal(err)
	}
	size, _ := layout.Size(1)
	if err := unix.Ftruncate(fd, size); err != nil {
		t.Fatal(err)
	}
	small, err := unix.Dup(fd)
	if err != nil {
		t.Fatal(err)
	}
	if err := w[0].ConnectMemory(0, 1, fd); err == nil ||
		!strings.Contains(err.Error(), "not sealed") {
		t.Errorf("unsealed: %v", err)
	}
	if err := unix.Ftruncate(small, 100); err != nil {
		t.Fatal(err)
	}
	if err := w[0].ConnectMemory(0, 1, small); err == nil ||
		!strings.Contains(err.Error(), "100 bytes") {
		t.Errorf("small: %v", err)
	}
}

// A port channel's receiver: its window, and a Recv of three messages of the given length from rank
// 1 that waits for the first.
func postedRecv(t *testing.T, bytes int64) (*Window, *Run, []byte) {
	t.Helper()
	return postedRecvInSlots(t, bytes, bytes)
}

// postedRecvInSlots is postedRecv with slots of another length.
func postedRecvInSlots(t *testing.T, bytes, slot int64) (*Window, *Run, []byte) {
	t.Helper()
	w, err := NewWindow(Layout{Ranks: 2, Lanes: 1, Slots: 2, Chunk: slot}, 0, false, Waiting{})
	if err != nil {
		t.Fatal(err)
	}
	atEnd(t, w.Close)
	w.ConnectPort(1)
	built, err := plan.Build(plan.Params{Collective: plan.Recv, Size: 2, Root: 1,
		OutBytes: []int64{3 * bytes}, ElemSize: 1, Chunk: bytes, Slots: 2})
	if err != nil {
		t.Fatal(err)
	}
	c := must(Compile(built, true, false))
	atEnd(t, c.Free)
	r := must(NewRun(w.Lane(0)))
	atEnd(t, r.Free)
	out := off(t, int(3*bytes))
	r.Bind(Binding{Out: []unsafe.Pointer{out}})
	r.Begin(c, 0)
	if s := r.Continue(soon()); s != Receive {
		t.Fatalf("status %d, expected %d", s, Receive)
	}
	return w, r, unsafe.Slice((*byte)(out), 3*bytes)
}

// bring does what the reader of a link does for message n, which is filled with one byte.
func bring(t *testing.T, l *Lane, n uint64, bytes int64, fill byte) (body []byte) {
	t.Helper()
	head, body, err := l.Slot(1, n, int(MessageHeader+bytes))
	if err != nil {
		t.Fatal(err)
	}
	clear(head)
	binary.LittleEndian.PutUint32(head[44:], uint32(bytes)) // goccl_message.bytes
	for i := range body {
		body[i] = fill
	}
	return body
}

func TestPayloadsGoStraightToPostedPlaces(t *testing.T) {
	const bytes = 32 << 10
	w, r, out := postedRecv(t, bytes)
	l := w.Lane(0)
	// The first two are posted; the third comes before it is and goes through the inbox.
	placed := 0
	for n := range uint64(3) {
		body := bring(t, l, n, bytes, byte(n+1))
		if &body[0] == &out[n*bytes] {
			placed++
		}
		l.Arrived(1)
		if n == 1 {
			for s := r.Continue(soon()); s == Released; s = r.Continue(soon()) {
				if l.Freed(1) == 1 {
					break // message 2 is not posted yet, but has a slot
				}
			}
		}
	}
	s := r.Continue(soon())
	for s == Released {
		s = r.Continue(soon())
	}
	if s != Done {
		t.Fatalf("status %d", s)
	}
	if placed != 2 {
		t.Errorf("%d messages went straight to their places, expected 2", placed)
	}
	for i, b := range out {
		if int(b) != i/bytes+1 {
			t.Fatalf("byte %d is %d", i, b)
		}
	}
}

// A message longer than a slot goes to its place only; one that is shorter than it says goes
// nowhere.
func TestLongerThanASlot(t *testing.T) {
	const bytes = 32 << 10
	for _, sent := range []int64{bytes, 100} {
		w, r, out := postedRecvInSlots(t, bytes, 128)
		l := w.Lane(0)
		body := bring(t, l, 0, sent, 7)
		head := unsafe.Slice((*byte)(unsafe.Pointer(l.channels[1].inbox)), MessageHeader)
		binary.LittleEndian.PutUint32(head[44:], bytes)
		l.Arrived(1)
		s := r.Continue(soon())
		if sent == bytes && (s != Released || &body[0] != &out[0] || out[bytes-1] != 7) || sent < bytes &&
			(s != Violation || out[0] != 0) {
			t.Errorf("%d bytes: status %d, the first is %d", sent, s, out[0])
		}
	}
}

// Where another thread brings the messages of port channels, a wait for one sleeps until it is
// there.
func TestBrought(t *testing.T) {
	const bytes = 32 << 10
	w, r, _ := postedRecv(t, bytes)
	r.Brought(true)
	if s := r.Continue(Now() + 10*time.Millisecond); s != Blocked {
		t.Fatalf("status %d, expected %d", s, Blocked)
	}
	come := make(chan Status)
	go func() { come <- r.Continue(Now() + time.Minute) }()
	bring(t, w.Lane(0), 0, bytes, 1)
	w.Lane(0).Arrived(1)
	if s := <-come; s != Released {
		t.Fatalf("status %d, expected %d", s, Released)
	}
	r.Brought(false)
	if s := r.Continue(soon()); s != Receive {
		t.Fatalf("status %d, expected %d", s, Receive)
	}
}

// Once Withdraw has returned nobody writes to the run's buffers.
func TestWithdraw(t *testing.T) {
	const bytes = 32 << 10
	w, r, out := postedRecv(t, bytes)
	l := w.Lane(0)
	bring(t, l, 0, bytes, 1) // the reader is in the middle of it
	w.Stop()
	withdrawn := make(chan struct{})
	go func() {
		defer close(withdrawn)
		r.Withdraw()
	}()
	select {
	case <-withdrawn:
		t.Fatal("the reader was not waited for")
	case <-time.After(20 * time.Millisecond):
	}
	l.Dropped(1, 0)
	<-withdrawn
	body := bring(t, l, 0, bytes, 2)
	if &body[0] == &out[0] {
		t.Error("a placement was taken after Withdraw")
	}
	l.Arrived(1)
	if body := bring(t, l, 1, bytes, 2); &body[0] == &out[bytes] {
		t.Error("the second placement was taken after Withdraw")
	}
}

// What is advertised stays as it is until the peer has fetched it: no step writes there, nothing
// that comes is put there, and the run is not done before.
func TestAdvertisedBuffersAreNotOverwritten(t *testing.T) {
	const bytes = 32 << 10
	for _, early := range []bool{false, true} { // it is fetched before anything has come
		w, err := NewWindow(Layout{Ranks: 2, Lanes: 1, Slots: 2, Chunk: bytes}, 0, false, Waiting{})
		if err != nil {
			t.Fatal(err)
		}
		w.ConnectPort(1)
		l := w.Lane(0)
		c := must(Compile(&plan.Plan{Rank: 0, Size: 2, Steps: []plan.Step{
			{Op: plan.Put, Peer: 1, Bytes: bytes, Src: []plan.Ref{{Space: plan.In}}},
			{Op: plan.Wait, Peer: 1, Bytes: bytes},
			{Op: plan.Copy, Bytes: bytes, Dst: plan.Ref{Space: plan.Out},
				Src: []plan.Ref{{Space: plan.Inbox, Peer: 1}}},
			{Op: plan.Release, Peer: 1},
			{Op: plan.Put, Peer: 1, Bytes: bytes, Src: []plan.Ref{{Space: plan.Out}}},
		}}, true, false))
		r := must(NewRun(l))
		p := off(t, bytes)
		mine := unsafe.Slice((*byte)(p), bytes)
		r.Bind(Binding{In: []unsafe.Pointer{p}, Out: []unsafe.Pointer{p}})
		r.Begin(c, 0)
		advertise := func() {
			t.Helper()
			if s := r.Continue(soon()); s != NeedPut {
				t.Fatalf("status %d, expected %d", s, NeedPut)
			}
			l.MarkSent(1)
			if !r.Advertise() {
				t.Fatal("nothing can be advertised")
			}
			r.Advance()
		}
		waits := func(what string) {
			t.Helper()
			if s := r.Continue(soon()); s != Receive || r.Peer() != 1 {
				t.Fatalf("status %d of peer %d, expected %d: %s", s, r.Peer(), Receive, what)
			}
		}
		advertise()
		waits("the message")
		if early {
			l.Fetched(1)
			waits("the message")
		}
		body := bring(t, l, 0, bytes, 7)
		if placed := &body[0] == &mine[0]; placed != early {
			t.Errorf("the message is put to its place: %v", placed)
		}
		l.Arrived(1)
		if !early {
			waits("what is advertised")
			if mine[0] != 0 || mine[bytes-1] != 0 {
				t.Fatal("what is advertised has been overwritten")
			}
			l.Fetched(1)
		}
		if s := r.Continue(soon()); s != Released || mine[0] != 7 || mine[bytes-1] != 7 {
			t.Fatalf("status %d, and %d is there", s, mine[0])
		}
		advertise()
		waits("what is advertised then")
		if bytes, total := r.Expected(); bytes != 0 || total != 0 {
			t.Errorf("%d bytes are expected behind the last step", bytes)
		}
		l.Fetched(1)
		if s := r.Continue(soon()); s != Done {
			t.Fatalf("status %d, expected %d", s, Done)
		}
		r.Free()
		c.Free()
		w.Close()
	}
}

// A peer's memory may be known before the peer is connected: the root of a star looks at its peers
// before it has put anything to them.
func TestDirectPlanOfAnUnconnectedPeer(t *testing.T) {
	win, err := NewWindow(Layout{Ranks: 2, Lanes: 1, Slots: 4, Chunk: 4096}, 0, false, Waiting{})
	if err != nil {
		t.Fatal(err)
	}
	defer win.Close()
	const n = 4096
	mem, theirs := off(t, n), off(t, n)
	win.UseArena(unsafe.Slice((*byte)(mem), n))
	win.ConnectArena(1, unsafe.Slice((*byte)(theirs), n))
	p, err := plan.Build(plan.Params{Collective: plan.Broadcast, Algorithm: plan.Direct, Size: 2,
		InBytes: []int64{n}, OutBytes: []int64{n}, ElemSize: 1, Chunk: 4096, Slots: 4,
		Memory: true})
	if err != nil {
		t.Fatal(err)
	}
	c := must(Compile(p, false, false))
	defer c.Free()
	r := must(NewRun(win.Lane(0)))
	defer r.Free()
	blocks := []unsafe.Pointer{mem}
	r.Bind(Binding{In: blocks, Out: blocks})
	r.Begin(c, 0)
	if status := r.Continue(Now() + time.Millisecond); status != Indirect {
		t.Fatal(status)
	}
}
