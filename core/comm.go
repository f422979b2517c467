package core

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/goccl/goccl/core/call"
	"github.com/goccl/goccl/core/exec"
	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/logs"
	"github.com/goccl/goccl/core/order"
	"github.com/goccl/goccl/core/plan"
	"github.com/goccl/goccl/core/reduce"
	"github.com/goccl/goccl/core/transport"
	"github.com/goccl/goccl/core/tune"
)

// The lanes of a communicator's windows: tune.Lanes of them.
const (
	collectiveLane = iota
	pointToPointLane
)

// Comm is a communicator: a rank's part in a group. Its methods may be called from any goroutine
// and thread; collectives are ordered by their calls to Start.
type Comm struct {
	runtime    *Runtime
	end        *sharedEndpoint
	members    fault.Group // its name, and those of its ranks
	rank, size int
	addresses  []transport.Address
	kinds      []string
	identity   identity
	grace      time.Duration
	logger     *slog.Logger // of the group and rank
	trace      tracers
	shape      tune.Shape
	settings   map[string]Setting // in effect, by the names of their variables
	arena      *exec.Arena        // this process's, where some peer shares memory
	mapped     []exec.ArenaID     // of peers, for this communicator
	waiting    exec.Waiting

	poller   *transport.Poller // nil where there are no links
	group    *transport.Group
	attached chan struct{} // closed once group is set
	window   *exec.Window
	known    [][]byte // of it, to devices; nil where verbs join no peer

	ctx    context.Context // ends when the communicator fails or is destroyed
	cancel context.CancelFunc

	mu        sync.Mutex
	timeout   time.Duration
	queue     []*Work
	failure   *fault.Error
	destroyed bool
	departed  map[int]departure       // peers that are gone
	order     order.Order             // calls, and what peers announced of theirs
	tellers   sync.WaitGroup          // goroutines that tell of refused calls
	answers   map[int]plan.Message    // what peers answered to ask
	answered  chan struct{}           // a new answer
	checkIns  map[uint64]map[int]bool // monitored barriers, by sequence: who came to rank 0
	checkOuts map[uint64]*fault.Error // likewise: what rank 0 said, nil: all came
	checked   chan struct{}           // a change of the two
	barriers  uint64                  // sequence of the last monitored barrier that ended here
	splits    uint64

	dials map[int]chan struct{} // connections being made, by peer: closed when each has ended

	stopped chan struct{} // closed when the first fail has done all that it does
	token   chan struct{} // held by who runs the queue
	wake    chan struct{} // to the worker
	hurry   atomic.Uint32 // a futex: whether it shall not doze
	worker  sync.Once

	runner   runner
	shortcut *exec.Shortcut // also holds the order of the collectives
	p2p      pointToPoint
	tasks    sync.WaitGroup // goroutines of the communicator
	ending   sync.Mutex
	ended    bool // under it: no task begins any more
}

// identity is what makes a group's traffic its own.
type identity struct {
	job, group uint64
	epoch      uint32
	secret     []byte
}

// Rank is this rank's number.
func (c *Comm) Rank() int { return c.rank }

// Size is the number of ranks.
func (c *Comm) Size() int { return c.size }

// Transport names what joins this rank to a peer: "mem", "shm", "tcp" or "verbs"; "self" for
// itself, and "" for a rank that does not exist.
func (c *Comm) Transport(peer int) string {
	switch {
	case peer == c.rank:
		return "self"
	case peer < 0 || peer >= c.size:
		return ""
	}
	return c.group.Kind(peer)
}

// port tells whether the channels to a peer are port channels.
func (c *Comm) port(peer int) bool { return transport.IsPort(c.kinds[peer]) }

// Sequence is the number of the last collective that was started or refused, 0 before the first.
func (c *Comm) Sequence() uint64 { return c.shortcut.Sequence() }

// SetTimeout changes the timeout of operations started from now on.
func (c *Comm) SetTimeout(d time.Duration) error {
	if d <= 0 {
		return fault.Errorf(fault.ErrInvalidArgument, "timeout is %v, it must be positive", d)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.timeout = d
	return nil
}

func (c *Comm) defaultTimeout() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.timeout
}

// Err is the first cause of the communicator's failure, nil while it works. It also tells of a peer
// whose process has ended without a goodbye, though nothing has needed the peer yet.
func (c *Comm) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.failure != nil {
		return c.failure
	}
	for _, peer := range slices.Sorted(maps.Keys(c.departed)) {
		if d := c.departed[peer]; d.lost() {
			return d.cause
		}
	}
	return nil
}

// FailedRanks are the ranks to which the failure that Err tells of is owed: see Error.Ranks.
func (c *Comm) FailedRanks() []int {
	var e *fault.Error
	if !errors.As(c.Err(), &e) {
		return nil
	}
	return slices.Clone(e.Ranks)
}

// CallOptions says how an operation is to be made.
type CallOptions struct {
	Timeout time.Duration // <= 0: the communicator's
	// WaitSoon tells that the caller will call Wait at once: no worker is woken, and Start itself already
	// waits a little, so that a short operation has ended when it returns.
	WaitSoon bool
}

// soon is for how long Start waits with WaitSoon: a caller that has several communicators, and starts a
// work on each before it waits for the first, loses no more.
const soon = time.Millisecond

// Start starts one operation, or several as one work. Without CallOptions.WaitSoon it does not wait for peers. The operations
// are refused, and nothing is started, if an argument is bad or the communicator has failed. Peers are
// told of collectives with bad arguments: they fail, and this rank with them, unless theirs are refused too.
func (c *Comm) Start(o CallOptions, operations ...Operation) (*Work, error) {
	w := &Work{comm: c, waitSoon: o.WaitSoon}
	w.source.Store(-1)
	w.parts = w.first[:0]
	for i := range operations {
		op := &operations[i]
		if err := op.Check(c.rank, c.size); err != nil {
			return nil, c.RefuseStart(err, operations...)
		}
		if !op.PointToPoint() {
			w.parts = append(w.parts, part{operation: op, message: c.message(op)})
			continue
		}
		w.mail = w.mail || c.byMail(op.Root)
		w.links = w.links || c.byLink(op.Root)
		w.bytes = max(w.bytes, op.Length())
		w.peer = op.Root
	}
	if len(operations) != len(w.parts)+1 {
		w.peer = -1
	}
	w.small = c.shape.AllMemory && len(operations) == 1 && len(w.parts) == 1 && small(&operations[0])
	// One more than there are operations, so that the work cannot end while it is being started.
	w.pending.Store(int32(len(operations)) + 1)

	if len(w.parts) > 0 {
		c.lockOrder()
	} else {
		c.mu.Lock()
	}
	if c.failure != nil {
		defer c.mu.Unlock()
		return nil, c.failure.During(call.Name(operations), 0)
	}
	w.setTimeout(o.Timeout)
	var mismatch *fault.Error
	for i := range w.parts {
		err := c.order.Start(&w.parts[i].message)
		if mismatch == nil {
			mismatch = err
		}
	}
	if len(w.parts) > 0 {
		c.enqueue(w)
	}
	c.mu.Unlock()
	if c.trace != (tracers{}) {
		c.traceStart(w, operations)
	}

	for i := range operations {
		if op := &operations[i]; op.PointToPoint() {
			c.p2p.start(w, op)
		}
	}
	w.end(nil)
	if mismatch != nil {
		c.fail(mismatch, true)
	}
	switch {
	case o.WaitSoon:
		c.helpAtOnce(w) // the caller would come back for just that
	case len(w.parts) > 0:
		c.wakeLater()
	}
	return w, nil
}

// small tells whether a collective is as short as those by which callers in C may be held up, and
// sends no frames.
func small(o *call.Operation) bool {
	return o.Collective != plan.MonitoredBarrier && o.Largest() <= exec.AtOnceMax
}

// message says what an operation is, in what all ranks know of it.
func (c *Comm) message(op *call.Operation) plan.Message {
	m := op.Message()
	m.Schedule = uint8(c.shape.ScheduleOf(op))
	return m
}

// CarryOn takes over a collective that the caller has begun by the shortcut, and goes on as Start does.
func (c *Comm) CarryOn(o CallOptions, operation call.Operation) (*Work, error) {
	w := &Work{comm: c, waitSoon: o.WaitSoon}
	w.source.Store(-1)
	w.pending.Store(1)
	c.mu.Lock()
	begun := c.shortcut.Leave()
	if c.failure != nil {
		defer c.mu.Unlock()
		c.retire(&operation)
		return nil, c.failure.During(operation.Collective.String(), 0)
	}
	w.setTimeout(o.Timeout)
	w.small = c.shape.AllMemory && small(&operation)
	w.first[0] = part{operation: &operation, message: c.shortcut.At(c.shortcut.Sequence()), begun: begun}
	w.parts = w.first[:]
	c.enqueue(w)
	c.mu.Unlock()
	if o.WaitSoon {
		c.helpAtOnce(w)
	} else {
		c.wakeLater()
	}
	return w, nil
}

// Shortcut is what callers in C run collectives by, naming it by the handle.
func (c *Comm) Shortcut(handle uint64) unsafe.Pointer { return c.shortcut.C(handle) }

// lockOrder locks the communicator with nobody in the shortcut: the order of the collectives stands still.
func (c *Comm) lockOrder() {
	for {
		c.mu.Lock()
		c.shortcut.Shut()
		if c.shortcut.Closed() {
			return
		}
		c.mu.Unlock()
		// Who is inside leaves when it must wait for long, and takes the lock to hand its collective over.
		yieldCPU()
	}
}

// openShortcut lets callers in C in if nothing is under way that must come first, and if calls are not
// logged, which C does not do. It is called with the lock held.
func (c *Comm) openShortcut() {
	if c.failure == nil && len(c.queue) == 0 && !c.order.Ahead() && len(c.departed) == 0 &&
		c.shape.AllMemory &&
		c.trace.collectives == nil {
		c.shortcut.Open()
	}
}

// unlockOrder undoes lockOrder.
func (c *Comm) unlockOrder() {
	c.openShortcut()
	c.mu.Unlock()
}

// head is the oldest work with collectives to run.
func (c *Comm) head() *Work {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.queue) == 0 {
		return nil
	}
	return c.queue[0]
}

// enqueue is called with the lock held.
func (c *Comm) enqueue(w *Work) {
	w.queued = true
	c.queue = append(c.queue, w)
}

func (c *Comm) pop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.queue[0].queued = false
	c.queue = slices.Delete(c.queue, 0, 1)
}

// queues tells whether a work has collectives to run.
func (c *Comm) queues(w *Work) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return w.queued
}

// help waits for a work's end until a time. What the work needs the caller does, where nobody else does it: it
// runs the queue, and looks for letters.
func (c *Comm) help(w *Work, until time.Duration) {
	if !c.helpNow(w, until) {
		return
	}
	if w.links { // somebody else has read for it: the next wait does so itself
		defer c.poller.Relieve()
	}
	if c.yieldUntil(w, until) {
		return
	}
	token, do := c.needed(w)
	timer := time.NewTimer(until - exec.Now())
	defer timer.Stop()
	for {
		select {
		case <-w.closed():
			return
		case <-timer.C:
			return
		case token <- struct{}{}: // kept: given back, it would go to another waiter, who would do the same
			if !do(w, until) {
				return
			}
			token, do = c.needed(w)
		}
	}
}

// helpAtOnce is help for a little while, and without sleep where somebody else does what is needed.
func (c *Comm) helpAtOnce(w *Work) {
	until := exec.Now() + soon
	if !w.ended() && c.helpNow(w, until) {
		c.yieldUntil(w, until)
		if w.links { // as in help
			c.poller.Relieve()
		}
	}
}

// spin runs a work for a little while, if it is the next and nobody runs the queue. If it has not ended then, the
// caller leaves it to the worker.
func (c *Comm) spin(w *Work) {
	select {
	case c.token <- struct{}{}:
	default:
		return
	}
	if c.head() == w {
		c.run(w, exec.Spin)
	}
	<-c.token
	if w.ended() {
		c.handOver()
	}
}

// helpNow does what a work needs, if nobody else does. It tells whether there is anything left to wait for.
func (c *Comm) helpNow(w *Work, until time.Duration) bool {
	token, do := c.needed(w)
	if token == nil {
		return true
	}
	select {
	case token <- struct{}{}:
		return do(w, until)
	default:
		return true
	}
}

// needed is what a waiter can do for a work, and the token that he needs for it; none if there is nothing. Do gives
// the token back, and tells whether there is anything left to wait for.
func (c *Comm) needed(w *Work) (token chan struct{}, do func(*Work, time.Duration) bool) {
	switch {
	case len(w.parts) > 0 && c.queues(w):
		return c.token, c.runHeld
	case w.mail && c.failed() == nil:
		return c.p2p.token, c.p2p.attend
	case w.links && c.failed() == nil:
		return c.poller.Token(), c.readFor
	}
	return nil, nil
}

// runHeld runs the queue.
func (c *Comm) runHeld(w *Work, until time.Duration) bool {
	c.run(w, until)
	interrupted := c.runner.interrupted
	<-c.token
	c.handOver()
	return !w.ended() && exec.Now() < until && !interrupted
}

// yieldUntil gives the CPU away for a while, in the hope that another thread ends the work: to
// sleep and to be woken takes longer than a message.
func (c *Comm) yieldUntil(w *Work, until time.Duration) bool {
	for range c.waiting.PortPolls {
		if w.ended() {
			return true
		}
		yieldCPU()
	}
	return exec.Now() >= until
}

// yieldCPU lets other threads run: those in C, too, of which runtime.Gosched knows nothing.
func yieldCPU() {
	_, _, _ = syscall.RawSyscall(syscall.SYS_SCHED_YIELD, 0, 0, 0) // it never fails
}

// handOver wakes the worker if works are left over that nobody may be waiting for. If none are, the
// shortcut is open again.
func (c *Comm) handOver() {
	c.mu.Lock()
	c.openShortcut()
	wake := false
	for _, w := range c.queue {
		wake = wake || !w.waitSoon
	}
	wake = wake || c.failure != nil && len(c.queue) > 0
	c.mu.Unlock()
	if wake {
		c.wakeWorker()
	}
}

// How long the worker leaves a work to somebody who comes to wait for it: it would take the queue from a
// waiter who comes a little later, and then have to wake it in turn. The longer, the more often somebody has come:
// where nobody is needed, to look around takes a CPU from those who work.
const (
	shortestDelay = 20 * time.Microsecond
	longestDelay  = 640 * time.Microsecond
)

// wakeLater has the worker run the queue, unless somebody comes to do so.
func (c *Comm) wakeLater() {
	if len(c.token) > 0 {
		return // who runs the queue looks at it again when done
	}
	c.hurry.Store(0)
	c.notifyWorker()
}

// leave has the worker run a work at once, also one whose caller was about to wait for it.
func (c *Comm) leave(w *Work) {
	c.mu.Lock()
	w.waitSoon = false
	c.mu.Unlock()
	c.wakeWorker()
}

// wakeWorker has the worker run the queue at once.
func (c *Comm) wakeWorker() {
	c.hurry.Store(1)
	_, _, _ = unix.RawSyscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(&c.hurry)), futexWakePrivate, 1, 0, 0, 0) // it never fails
	c.notifyWorker()
}

func (c *Comm) notifyWorker() {
	c.worker.Do(func() { c.spawn(c.runLeftovers) })
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// runLeftovers is the worker: it runs what no waiter does. It keeps away from the token where there is nothing for
// it, for a waiter who finds it taken goes to sleep.
func (c *Comm) runLeftovers() {
	delay := shortestDelay
	for {
		select {
		case <-c.wake:
		case <-c.ctx.Done():
			c.token <- struct{}{}
			c.runQueued()
			return
		}
		c.doze(delay)
		w := c.head()
		for ; w != nil && c.hurry.Load() == 0 && exec.Now() < w.started()+delay; w = c.head() {
			c.doze(delay)
		}
		if w == nil {
			delay = min(2*delay, longestDelay)
			continue
		}
		delay = shortestDelay
		select {
		case c.token <- struct{}{}:
			c.runQueued()
		default: // who runs the queue wakes the worker if anything is left
		}
	}
}

// doze waits for a while, or until somebody is in a hurry. Go's timers would make a millisecond of it.
func (c *Comm) doze(d time.Duration) {
	t := unix.NsecToTimespec(int64(d))
	_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(&c.hurry)), futexWaitPrivate, 0, uintptr(unsafe.Pointer(&t)), 0, 0)
}

// From linux/futex.h, for threads of one process.
const (
	futexWaitPrivate = 0 | 128
	futexWakePrivate = 1 | 128
)

// runQueued runs the queue until it is empty. The caller holds the token, which is given back.
func (c *Comm) runQueued() {
	for c.head() != nil {
		c.run(nil, exec.Now()+workerSlice)
	}
	<-c.token
	c.handOver()
}

// workerSlice is how long the worker stays in C before it looks around.
const workerSlice = 100 * time.Millisecond

// spawn runs f in a goroutine that Destroy waits for; where Destroy has waited already, on the caller's. A panic in
// it fails the communicator.
func (c *Comm) spawn(f func()) {
	guarded := func() {
		defer func() {
			if r := recover(); r != nil {
				c.fail(c.members.Errorf(fault.ErrInternal, "panic: %v", r), true)
			}
		}()
		f()
	}
	c.ending.Lock()
	over := c.ended
	if !over {
		c.tasks.Add(1)
	}
	c.ending.Unlock()
	if over {
		guarded()
		return
	}
	go func() {
		defer c.tasks.Done()
		guarded()
	}()
}

// Abort fails the communicator at once on all ranks.
func (c *Comm) Abort(reason string) {
	if reason == "" {
		reason = "no reason given"
	}
	c.fail(c.members.Errorf(fault.ErrAborted, "%s aborted it: %s", c.members.Names(c.rank),
		reason).Blaming(c.rank), true)
}

// Destroy ends the communicator in good order: works that have not ended end with ErrAborted, peers
// are told that this rank has left, and all that it held is given back: memory that an adapter may still
// read for a peer once that is over. It waits for a peer only where that has not been told yet of a
// call that this rank was refused, and then for half a second at most. The last of a process may wait
// for an adapter that has to send its last words again.
func (c *Comm) Destroy() {
	c.mu.Lock()
	if c.destroyed {
		c.mu.Unlock()
		return
	}
	c.destroyed = true
	c.mu.Unlock()
	c.fail(c.members.Errorf(fault.ErrAborted, "it was destroyed on this rank, %s",
		c.members.Names(c.rank)).Blaming(c.rank), false)
	<-c.stopped // by this call or by a failure before it
	// After the goodbye nothing can be said. Peers that were not told of a refusal would blame the
	// end of this process instead.
	c.tellers.Wait()
	c.token <- struct{}{}
	c.runQueued()
	if c.group != nil {
		c.group.Detach()
	}
	c.ending.Lock()
	c.ended = true
	c.ending.Unlock()
	c.tasks.Wait()
	c.lockOrder() // who is in the shortcut leaves, and sees the failure
	c.shortcut.Free()
	c.mu.Unlock()
	c.runner.free()
	c.p2p.free()
	c.closeWindow()
	c.partArenas()
	c.log(logs.Init).Info("the group is destroyed", "collectives", c.Sequence())
	c.runtime.forget(c)
}

// Split parts the communicator: ranks of equal color (>= 0) meet in a new one, ordered by key and
// then by rank. With a negative color a rank takes part and gets nil. A collective call: it fails
// on all ranks where one cannot make its communicator.
func (c *Comm) Split(ctx context.Context, color, key int) (*Comm, error) {
	mine := [2]int64{int64(color), int64(key)}
	all := make([]int64, 2*c.size)
	var pin pinner
	defer pin.Unpin()
	op := call.Operation{Collective: plan.AllGather, DType: reduce.Int64,
		In: []unsafe.Pointer{pin.pin(&mine[0])}, InCounts: []uint64{2}}
	for r := range c.size {
		op.Out = append(op.Out, pin.pin(&all[2*r]))
		op.OutCounts = append(op.OutCounts, 2)
	}
	do := func(op call.Operation) error {
		op.OfSplit = true
		o := CallOptions{WaitSoon: true}
		if t, ok := ctx.Deadline(); ok {
			o.Timeout = time.Until(t)
		}
		w, err := c.Start(o, op)
		if err == nil {
			_, err = w.Wait(-1)
		}
		return err
	}
	c.mu.Lock()
	c.splits++
	n := c.splits
	c.mu.Unlock()
	if err := do(op); err != nil {
		return nil, err
	}
	var child *Comm
	if color >= 0 {
		var err error
		if child, err = c.child(n, int64(color), splitMembers(all, int64(color))); err != nil {
			c.Refuse(err.Error())
			var e *fault.Error
			if errors.As(err, &e) {
				return nil, e.In(&c.members).During(plan.Split.String(), 0)
			}
			return nil, err
		}
	}
	// The ranks of the child would wait for one that could not make its own.
	if err := do(call.Operation{Collective: plan.Barrier}); err != nil {
		if child != nil {
			child.Destroy()
		}
		return nil, err
	}
	return child, nil
}
