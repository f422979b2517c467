package core

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/goccl/goccl/core/call"
	"github.com/goccl/goccl/core/checkpoint"
	"github.com/goccl/goccl/core/config"
	"github.com/goccl/goccl/core/endpoint"
	"github.com/goccl/goccl/core/exec"
	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/logs"
	"github.com/goccl/goccl/core/plan"
	"github.com/goccl/goccl/core/work"
)

// Comm is a communicator: a rank's part in a group. Its methods may be called from any goroutine
// and thread; collectives are ordered by their calls to Start. It holds what survives a change of
// membership; see epoch for the rest.
type Comm struct {
	runtime *Runtime
	end     *endpoint.Endpoint // nil where there are no peers
	config  config.Completed
	arena   *exec.Arena    // this process's, where some peer shares memory
	fast    *exec.FastPath // collectives in C; it also holds their order. Of the present epoch

	life    context.Context // ends when the communicator is destroyed, and what waits in it
	endLife context.CancelCauseFunc

	present     atomic.Pointer[epoch]
	changing    sync.Mutex        // held while an epoch ends
	decided     *decision         // on the next epoch, which could not be installed; under changing
	checkpoints *checkpoint.Store // under changing

	opening sync.Mutex // held while the door is opened; before changing

	mu    sync.Mutex
	entry entry // for those that come; under mu
	completing
	timeout   time.Duration
	destroyed bool
}

// Rank is this rank's number.
func (c *Comm) Rank() int { return c.present.Load().Rank }

// Size is the number of ranks.
func (c *Comm) Size() int { return c.present.Load().Size() }

// Transport names what joins this rank to a peer: "mem", "shm", "tcp" or "verbs"; "self" for
// itself, and "" for a rank that does not exist.
func (c *Comm) Transport(peer int) string {
	e := c.present.Load()
	switch {
	case peer == e.Rank:
		return "self"
	case peer < 0 || peer >= e.Size():
		return ""
	}
	return e.group.Kind(peer)
}

// Sequence is the number of the last collective that was started or refused, 0 before the first.
func (c *Comm) Sequence() uint64 { return c.fast.Sequence() }

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
	e := c.present.Load()
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := e.membership.Err(); err != nil {
		return err
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
	// WaitSoon tells that the caller will call Wait at once: no worker is woken, and Start itself
	// already waits a little, so that a short operation has ended when it returns.
	WaitSoon bool
	internal bool   // it does not wait for a recovery, which it is a part of
	failFast bool   // it fails where a member dies: nobody completes it
	in       *epoch // that it is for, and for no later one; nil: the present one
}

// Start starts one operation, or several as one work. Without CallOptions.WaitSoon it does not wait
// for peers, unless the members recover: see Config.Recovery. The operations are refused, and
// nothing is started, if an argument is bad or the communicator has failed. Peers are told of
// collectives with bad arguments: they fail, and this rank with them, unless theirs are refused
// too.
func (c *Comm) Start(o CallOptions, operations ...Operation) (*Work, error) {
	e := c.present.Load()
	if o.in != nil && o.in != e {
		return nil, e.Members.Errorf(fault.ErrRevoked, "the members have changed").
			During(call.Name(operations), 0)
	}
	w, err := e.prepare(o, operations)
	if err != nil {
		return nil, c.RefuseStart(err, operations...)
	}
	parts := w.Parts()

	if len(parts) > 0 {
		c.lockOrder()
	} else {
		c.mu.Lock()
	}
	if recovering := c.recovering; recovering != nil && !o.internal {
		c.mu.Unlock()
		<-recovering.done
		return c.Start(o, operations...)
	}
	if c.recovers() && c.present.Load() != e { // a recovery has come between
		c.mu.Unlock()
		return c.Start(o, operations...)
	}
	if err := e.refusal(); err != nil {
		defer c.mu.Unlock()
		return nil, err.During(call.Name(operations), 0)
	}
	w.SetTimeout(c.timeoutOf(o))
	var mismatch *fault.Error
	for i := range parts {
		err := e.order.Start(&parts[i].Message)
		if mismatch == nil {
			mismatch = err
		}
	}
	var tell func()
	if len(parts) > 0 {
		if e.trace.collectives != nil {
			tell = e.ranInC()
		}
		e.starting.Add(1)
		e.queue.Push(w)
	}
	c.mu.Unlock()
	if tell != nil {
		tell()
	}
	if e.trace.collectives != nil || e.trace.pointToPoint != nil {
		e.traceStart(w, operations)
	}

	if len(w.Parts()) < len(operations) {
		e.p2p.Start(w, operations)
	}
	w.Started()
	if len(parts) > 0 {
		e.starting.Done()
	}
	if mismatch != nil {
		e.fail(mismatch, true)
	}
	switch {
	case o.WaitSoon:
		w.HelpAtOnce() // the caller would come back for just that
	case len(parts) > 0:
		e.queue.WakeLater()
	}
	return w, nil
}

// prepare makes the work of some operations. It refuses bad arguments.
func (e *epoch) prepare(o CallOptions, operations []Operation) (*Work, error) {
	holds := e.recovers() && !o.failFast && len(operations) > 0 &&
		!slices.ContainsFunc(operations, func(op Operation) bool { return !completes(&op) })
	n := len(operations)
	if holds && e.confirms(operations) {
		n++
	}
	w := e.works.New(n, o.WaitSoon)
	w.SetContributors(e.Size())
	for i := range operations {
		op := &operations[i]
		if err := op.Check(e.Rank, e.Size()); err != nil {
			return nil, err
		}
		if !op.PointToPoint() {
			w.Add(work.Part{Operation: op, Message: e.message(op)})
		}
	}
	if n > len(operations) {
		barrier := &call.Operation{Collective: plan.Barrier}
		w.Add(work.Part{Operation: barrier, Message: e.message(barrier)})
	}
	if holds {
		e.suspendOnFailure(w, operations, nil)
	}
	if source := e.p2p.Source(operations); source != nil {
		w.UseSource(source)
	}
	if e.shape.AllMemory && len(operations) == 1 && len(w.Parts()) == 1 &&
		small(&operations[0]) {
		w.UseSmall()
	}
	return w, nil
}

// timeoutOf is called with the lock held.
func (c *Comm) timeoutOf(o CallOptions) time.Duration {
	if o.Timeout > 0 {
		return o.Timeout
	}
	return c.timeout
}

// small tells whether a collective is as short as those by which callers in C may be held up, and
// sends no frames.
func small(o *call.Operation) bool {
	return o.Collective != plan.MonitoredBarrier && o.Largest() <= exec.AtOnceMax
}

// CarryOn takes over a collective that the caller has begun by the fast path, and goes on as Start
// does.
func (c *Comm) CarryOn(o CallOptions, operation call.Operation) (*Work, error) {
	e := c.present.Load()
	w := e.works.New(1, o.WaitSoon)
	w.SetContributors(e.Size())
	var h *suspended
	if c.recovers() && completes(&operation) {
		h = e.suspendOnFailure(w, []Operation{operation}, e.lost(&operation))
	}
	c.mu.Lock()
	begun := c.fast.Leave()
	w.SetTimeout(c.timeoutOf(o))
	if err := e.failed(); err != nil {
		e.retire(&operation)
		defer c.mu.Unlock()
		if h == nil || !e.suspends(err) {
			return nil, err.During(operation.Collective.String(), 0)
		}
		w.Add(work.Part{Operation: &operation, Message: c.fast.At(c.fast.Sequence())})
		e.leftUndone(c.fast.Sequence())
		c.suspended = append(c.suspended, h) // before the recovery can end
		return w, nil
	}
	if e.shape.AllMemory && small(&operation) {
		w.UseSmall()
	}
	w.Add(work.Part{Operation: &operation, Message: c.fast.At(c.fast.Sequence()), Begun: begun})
	var tell func()
	if e.trace.collectives != nil {
		tell = e.ranInC()
	}
	e.queue.Push(w)
	c.mu.Unlock()
	if tell != nil {
		tell()
		e.traceStart(w, []Operation{operation})
	}
	w.Started()
	if o.WaitSoon {
		w.HelpAtOnce()
	} else {
		e.queue.WakeLater()
	}
	return w, nil
}

// FastPath is what callers in C run collectives by, naming it by the handle.
func (c *Comm) FastPath(handle uint64) unsafe.Pointer { return c.fast.C(handle) }

// lockOrder locks the communicator with nobody in the fast path: the order of the collectives
// stands still.
func (c *Comm) lockOrder() {
	for since := exec.Now(); ; exec.AwaitCaller(since) {
		c.mu.Lock()
		c.fast.Shut()
		if c.fast.Closed() {
			return
		}
		// A caller inside leaves when it must wait for long, and takes the lock to hand its collective
		// over.
		c.mu.Unlock()
	}
}

// Abort fails the communicator at once on all ranks. While the members recover by themselves this
// rank gives that up.
func (c *Comm) Abort(reason string) {
	if reason == "" {
		reason = "no reason given"
	}
	e := c.present.Load()
	cause := e.Members.Errorf(fault.ErrAborted, "%s aborted it: %s", e.Members.Names(e.Rank), reason).
		Blaming(e.Rank)
	if d := c.entrance(); d != nil {
		d.meetings.Interrupt(cause)
	}
	e.fail(cause, true)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.recovering != nil {
		c.recovering.giveUp(cause)
	}
}

// Destroy ends the communicator in good order: works that have not ended end with ErrAborted, peers
// are told that this rank has left, and all that it held is given back: memory that an adapter may
// still read for a peer once that is over. It waits for a peer only where that has not been told
// yet of a call that this rank was refused, and then for half a second at most. The last of a
// process may wait for an adapter that has to send its last words again.
func (c *Comm) Destroy() {
	c.mu.Lock()
	if c.destroyed {
		c.mu.Unlock()
		return
	}
	c.destroyed = true
	c.mu.Unlock()
	cause := destroyedHere(c.present.Load())
	if d := c.entrance(); d != nil {
		d.shut(cause)
	}
	c.endLife(cause)
	c.mu.Lock()
	n := c.entry.notice
	c.mu.Unlock()
	if n != nil {
		n.takeDown()
	}
	c.changing.Lock()
	defer c.changing.Unlock()
	e := c.present.Load()
	e.finish(destroyedHere(e))
	c.lockOrder() // a thread in the fast path leaves, and sees the failure
	c.fast.Free()
	c.mu.Unlock()
	e.free()
	if c.arena != nil {
		c.runtime.arenas.Release()
	}
	e.log(logs.Init).Info("the group is destroyed", "collectives", c.Sequence())
	c.runtime.forget(c)
}

func destroyedHere(e *epoch) *fault.Error {
	return e.Members.Errorf(fault.ErrAborted, "it was destroyed on this rank, %s",
		e.Members.Names(e.Rank)).Blaming(e.Rank)
}
