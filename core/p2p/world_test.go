package p2p

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/goccl/goccl/core/call"
	"github.com/goccl/goccl/core/exec"
	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/membership"
	"github.com/goccl/goccl/core/plan"
	"github.com/goccl/goccl/core/reduce"
	"github.com/goccl/goccl/core/transport"
	"github.com/goccl/goccl/core/tune"
	"github.com/goccl/goccl/core/work"
	"golang.org/x/sys/unix"
)

// The ways in which the ranks of a world are joined. Links are faked: frames in lists of memory.
const (
	byLinks = "link" // RTS, CTS, frames of data
	byRDMA  = "rdma" // the same, and the receiver reads the frames' payload where it lies
	byPlans = "plan" // mailboxes, and two-rank plans
	byCopy  = "copy" // mailboxes, and the receiver copies from the sender's memory
)

var ways = []string{byLinks, byRDMA, byPlans, byCopy}

// world is ranks of one process, whose engines are joined in memory.
type world struct {
	t     testing.TB
	way   string
	ranks []*rank

	readers, spawned sync.WaitGroup
	closed           bool

	mu     sync.Mutex
	frames [][][]frame // of links: by destination and source
	queued bool        // goroutines stay in tasks until they are run
	tasks  []func()
	log    func(format string, args ...any) // of frames and failures; may be nil
	onData func(user int)                   // called while a rank sends or takes data; may be nil
}

// frame is a frame on its way.
type frame struct {
	transport.Header
	payload    []byte
	advertised bool // the payload is the sender's memory
}

// rank is a rank of a world: it is the face, the links and the reader of its engine.
type rank struct {
	*Engine
	w       *world
	number  int
	works   work.Group
	cancel  context.CancelFunc
	failure atomic.Pointer[fault.Error]
	reader  work.Token
	bell    chan struct{}

	mu   sync.Mutex
	gone map[int]membership.Departure
}

// newWorld makes a world whose frames are taken by the threads that wait, or else by a goroutine.
func newWorld(t testing.TB, way string, size int) *world {
	t.Helper()
	w := join(t, way, size)
	w.read()
	return w
}

// read starts a reader of each rank. What a test changes in the ranks it changes before.
func (w *world) read() {
	for _, r := range w.ranks {
		w.readers.Go(func() {
			for r.works.Context.Err() == nil {
				if r.Take() {
					r.Wait(time.Millisecond)
					r.Leave()
				}
				exec.YieldCPU()
			}
		})
	}
}

// join makes a world in which the test takes all frames, by pass.
func join(t testing.TB, way string, size int) *world {
	t.Helper()
	w := &world{t: t, way: way, frames: make([][][]frame, size)}
	for number := range size {
		w.frames[number] = make([][]frame, size)
		w.ranks = append(w.ranks, w.newRank(number, size))
	}
	for _, r := range w.ranks {
		for _, peer := range w.ranks {
			w.connect(r, peer)
		}
	}
	t.Cleanup(w.close)
	return w
}

// memory tells whether the ranks share memory.
func (w *world) memory() bool { return w.way == byPlans || w.way == byCopy }

func (w *world) newRank(number, size int) *rank {
	t := w.t
	r := &rank{w: w, number: number, reader: work.NewToken(), bell: make(chan struct{}, 1),
		gone: map[int]membership.Departure{}}
	members := fault.NewGroup("test", nil, slices.Repeat([]int{7}, size))
	options := tune.Options{LongMost: transport.MaxData, Thresholds: "send_get_min=0"}
	if w.way == byCopy {
		options.Thresholds = "send_get_min=1024"
	}
	for peer := range size {
		options.Ports = append(options.Ports, peer != number && !w.memory())
	}
	at := tune.Topology{Size: size, Memory: w.memory(), Ports: !w.memory(), Sharing: 1}
	if w.memory() {
		at.Sharing = size
	}
	shape, err := tune.New(at, number, options)
	check(t, err)
	waiting := exec.Waiting{Yields: 100, PortPolls: 3}
	r.works = work.Group{Yields: 3, Spawn: w.spawn}
	r.works.Context, r.cancel = context.WithCancel(context.Background())
	layout := exec.Layout{Ranks: size, Lanes: tune.Lanes, Slots: shape.Slots, Chunk: shape.Chunk,
		Mailbox: exec.MailboxFor(shape.EagerMax), Bounce: exec.BounceFor(shape.EagerMax),
		Pipe: shape.Pipe}
	window, err := exec.NewWindow(layout, number, true, waiting)
	check(t, err)
	run, err := exec.NewRun(window.Lane(0))
	check(t, err)
	fast, err := exec.NewFastPath(run, number)
	check(t, err)
	r.Engine, err = New(Config{Rank: number, Members: &members, Group: 1, Ports: options.Ports,
		Shape: &shape, Waiting: waiting, Works: &r.works, Window: window,
		Lane: window.Lane(tune.Lanes - 1), FastPath: fast, Reader: r}, r)
	check(t, err)
	r.UseLinks(r)
	return r
}

// connect lets a rank reach a peer.
func (w *world) connect(r, peer *rank) {
	if r == peer || !w.memory() {
		return
	}
	fd, err := unix.FcntlInt(uintptr(peer.Window.FD()), unix.F_DUPFD_CLOEXEC, 0)
	check(w.t, err)
	if w.way == byCopy {
		r.Window.UseProcess(peer.number, exec.Process{PID: os.Getpid(), FD: -1})
	}
	check(w.t, r.Window.ConnectMemory(r.number, peer.number, fd))
}

// close may be called again.
func (w *world) close() {
	if w.closed {
		return
	}
	w.closed = true
	w.mu.Lock()
	w.queued = false
	w.mu.Unlock()
	for _, r := range w.ranks {
		r.Fail(fault.Errorf(fault.ErrAborted, "the test is over"))
	}
	w.run()
	w.readers.Wait()
	w.mu.Lock()
	w.queued = true // for good
	w.mu.Unlock()
	w.spawned.Wait()
	w.run()
	for _, r := range w.ranks {
		r.Free()
	}
	for _, r := range w.ranks {
		r.Window.Close()
	}
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (w *world) note(format string, args ...any) {
	if w.log != nil {
		w.log(format, args...)
	}
}

func (w *world) spawn(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.queued {
		w.tasks = append(w.tasks, f)
	} else {
		w.spawned.Go(f)
	}
}

// run runs tasks until there are none. It tells whether there were some.
func (w *world) run() (any bool) {
	for {
		w.mu.Lock()
		tasks := w.tasks
		w.tasks = nil
		w.mu.Unlock()
		if len(tasks) == 0 {
			return any
		}
		any = true
		for _, f := range tasks {
			f()
		}
	}
}

// start starts an operation on a rank.
func (r *rank) start(op call.Operation, timeout time.Duration) *work.Work {
	x := r.works.New(1, false)
	x.SetTimeout(timeout)
	r.startWork(x, op)
	return x
}

// startNoting starts an operation, whose end is told.
func (r *rank) startNoting(op call.Operation, told func(x *work.Work, err error)) {
	x := r.works.New(1, false)
	x.SetTimeout(time.Minute)
	x.OnEnd(func(err error) { told(x, err) })
	r.startWork(x, op)
}

func (r *rank) startWork(x *work.Work, op call.Operation) {
	ops := []call.Operation{op}
	if source := r.Source(ops); source != nil {
		x.UseSource(source)
	}
	r.Start(x, ops)
	x.Started()
}

func sendOp(b []int32, to, tag int) call.Operation {
	return call.Operation{Collective: plan.Send, DType: reduce.Int32, Root: to, Tag: tag,
		In: []unsafe.Pointer{unsafe.Pointer(unsafe.SliceData(b))}, InCounts: []uint64{uint64(len(b))}}
}

func recvOp(b []int32, from, tag int) call.Operation {
	return call.Operation{Collective: plan.Recv, DType: reduce.Int32, Root: from, Tag: tag,
		Out:       []unsafe.Pointer{unsafe.Pointer(unsafe.SliceData(b))},
		OutCounts: []uint64{uint64(len(b))}}
}

// buffer is pinned memory of n int32.
func buffer(t testing.TB, n int) []int32 {
	b := make([]int32, max(n, 1))
	var p runtime.Pinner
	p.Pin(&b[0])
	t.Cleanup(p.Unpin)
	return b[:n]
}

func wait(t testing.TB, what string, works ...*work.Work) {
	t.Helper()
	for i, x := range works {
		if done, err := x.Wait(-1); !done || err != nil {
			t.Fatalf("%s %d: %v, %v", what, i, done, err)
		}
	}
}

// Of a face.

func (r *rank) Failed() *fault.Error { return r.failure.Load() }

// Fail hides Engine.Fail.
func (r *rank) Fail(cause *fault.Error) {
	if !r.failure.CompareAndSwap(nil, cause) {
		return
	}
	r.w.note("%d fails: %s", r.number, cause.Text)
	r.Window.Stop()
	r.cancel()
	r.Kick()
	r.Engine.Fail(cause)
}

// depart ends a peer for a rank: with a goodbye, or without.
func (r *rank) depart(peer int, goodbye bool) {
	d := membership.Departure{Cause: fault.Errorf(fault.ErrPeerFailed, "rank %d has failed", peer)}
	if goodbye {
		d.Cause = fault.Errorf(fault.ErrAborted, "rank %d has left", peer)
	}
	r.mu.Lock()
	r.gone[peer] = d
	r.mu.Unlock()
	r.Window.Leave(peer)
	r.Engine.Depart(peer, d)
	r.Kick()
}

func (r *rank) PeerError(peer int, err error) *fault.Error {
	if failure := r.Failed(); failure != nil {
		return failure
	}
	if errors.Is(err, transport.ErrPeerLeft) {
		return fault.Errorf(fault.ErrAborted, "rank %d has left", peer)
	}
	return fault.Errorf(fault.ErrPeerFailed, "rank %d cannot be reached: %v", peer, err)
}

func (r *rank) RunError(_ *exec.Run, _ plan.Message, s exec.Status) *fault.Error {
	if err := r.Failed(); err != nil {
		return err
	}
	return fault.Errorf(fault.ErrInternal, "a run ended with %d", s)
}

func (r *rank) Departure(peer int) (d membership.Departure, gone bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	d, gone = r.gone[peer]
	return d, gone
}

// Timeout is that of answers. None may end by the longest one.
func (r *rank) Timeout() time.Duration { return math.MaxInt64 }

func (r *rank) Dial(int) {}

// Of links.

func (r *rank) Connected(peer int) bool {
	_, gone := r.Departure(peer)
	return !gone
}

func (r *rank) Connect(_ context.Context, peer int) error {
	switch d, gone := r.Departure(peer); {
	case gone && d.Lost():
		return transport.ErrPeerDown
	case gone:
		return transport.ErrPeerLeft
	}
	return nil
}

func (r *rank) Send(ctx context.Context, peer int, h transport.Header, payload ...[]byte) error {
	_, err := r.send(ctx, peer, h, payload, false)
	return err
}

func (r *rank) TrySend(peer int, h transport.Header, payload ...[]byte) bool {
	_, err := r.send(context.Background(), peer, h, payload, false)
	return err == nil
}

func (r *rank) Notify(peer int, h transport.Header, payload []byte) bool {
	return r.TrySend(peer, h, payload)
}

func (r *rank) Advertises(_ int, payload []byte) bool {
	return r.w.way == byRDMA && len(payload) >= 1024
}

func (r *rank) Advertise(ctx context.Context, _ bool, peer int, h transport.Header,
	payload ...[]byte) (advertised bool, err error) {
	return r.send(ctx, peer, h, payload, r.Advertises(peer, payload[len(payload)-1]))
}

func (r *rank) send(ctx context.Context, peer int, h transport.Header, payload [][]byte,
	advertise bool) (advertised bool, err error) {
	r.w.use(r, h)
	if ctx.Err() != nil {
		return false, context.Cause(ctx)
	}
	if err := r.Connect(ctx, peer); err != nil {
		return false, err
	}
	f := frame{Header: h, advertised: advertise}
	for _, p := range payload {
		if advertise {
			f.payload = p
		} else {
			f.payload = append(f.payload, p...)
		}
	}
	f.Bytes = uint32(len(f.payload))
	r.w.mu.Lock()
	r.w.frames[peer][r.number] = append(r.w.frames[peer][r.number], f)
	r.w.mu.Unlock()
	r.w.note("%d → %d: %s", r.number, peer, textOf(&f))
	r.w.ranks[peer].Kick()
	r.w.use(r, h)
	return advertise, nil
}

// use tells that a rank uses the memory of a large send.
func (w *world) use(r *rank, h transport.Header) {
	if h.Type == transport.Data && h.Flags == LargeSend && w.onData != nil {
		w.onData(r.number)
	}
}

func (r *rank) Pump(peer int) {
	for r.pass(peer) {
	}
}

// pass has a rank take the next frame of a peer. It tells whether there was one.
func (r *rank) pass(peer int) bool {
	w := r.w
	w.mu.Lock()
	list := w.frames[r.number][peer]
	if len(list) == 0 {
		w.mu.Unlock()
		return false
	}
	f := list[0]
	w.frames[r.number][peer] = list[1:]
	w.mu.Unlock()
	if _, gone := r.Departure(peer); gone {
		return true
	}
	if err := r.take(peer, &f); err != nil {
		r.Fail(r.broken(peer, err))
	}
	return true
}

func (r *rank) take(peer int, f *frame) error {
	switch {
	case f.Type == FrameMail && r.w.queued:
		r.collect() // and no thread attends in the background
	case f.Type == FrameMail:
		r.Told()
	case f.Type != transport.Data:
		return r.Control(peer, f.Header, f.payload)
	case r.Failed() != nil: // the group is halted
	default:
		to, err := r.Slot(peer, f.Header)
		if err != nil {
			return err
		}
		copy(to, f.payload)
		r.w.use(r, f.Header)
		r.Arrived(peer, f.Header)
	}
	if f.advertised {
		r.w.note("%d → %d: acked", r.number, peer)
		r.w.ranks[peer].Acked(f.Seq)
	}
	return nil
}

// Of a reader.

func (r *rank) Token() chan struct{} { return r.reader }

func (r *rank) Take() bool {
	select {
	case r.reader <- struct{}{}:
		return true
	default:
		return false
	}
}

func (r *rank) Leave() { <-r.reader }

func (r *rank) Wait(most time.Duration) {
	if most > 0 {
		select {
		case <-r.bell:
		case <-time.After(most):
		}
	}
	for peer := range r.w.ranks {
		r.Pump(peer)
	}
}

func (r *rank) Kick() {
	select {
	case r.bell <- struct{}{}:
	default:
	}
}

// StartProgress has a goroutine read once, which is enough for ranks that take turns.
func (r *rank) StartProgress() {}
func (r *rank) StopProgress()  {}
func (r *rank) YieldProgress() {}

func textOf(f *frame) string {
	names := map[uint8]string{FrameRTS: "RTS", FrameCTS: "CTS", FrameReject: "reject",
		FrameCredit: "credit", FrameFIN: "FIN", FrameProbe: "probe", FrameNotNow: "not now",
		FrameWanted: "wanted", FrameNoneHeld: "none held", FrameMail: "mail"}
	switch f.Type {
	case FrameRTS, FrameProbe:
		return fmt.Sprintf("%s %d: tag %d, %d bytes", names[f.Type], f.Seq, f.Arg[0]>>8, f.Arg[1])
	case FrameCTS, FrameReject, FrameFIN, FrameNotNow:
		return fmt.Sprintf("%s %d", names[f.Type], f.Seq)
	case FrameCredit:
		return fmt.Sprintf("credit: %d bytes, %d sends", f.Arg[0], f.Arg[1])
	case FrameWanted:
		return fmt.Sprintf("wanted: tag %d", f.Arg[0])
	case transport.Data:
		switch {
		case f.Flags == EagerSend:
			return fmt.Sprintf("eager: tag %d, %d bytes", f.Arg[0]>>8, f.Bytes)
		case f.advertised:
			return fmt.Sprintf("data of %d: advert of %d bytes from %d on", f.Seq, f.Bytes, f.Arg[0])
		}
		return fmt.Sprintf("data of %d: %d bytes from %d on", f.Seq, f.Bytes, f.Arg[0])
	}
	return names[f.Type]
}
