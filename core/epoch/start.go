package epoch

import (
	"errors"
	"slices"
	"time"
	"unsafe"

	"github.com/goccl/goccl/core/call"
	"github.com/goccl/goccl/core/config"
	"github.com/goccl/goccl/core/exec"
	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/plan"
	"github.com/goccl/goccl/core/suspended"
	"github.com/goccl/goccl/core/trace"
	"github.com/goccl/goccl/core/wire"
	"github.com/goccl/goccl/core/work"
)

// Options say how operations are to be made.
type Options struct {
	Timeout time.Duration // <= 0: the communicator's
	// WaitSoon tells that the caller will call Wait at once: no worker is woken, and Start itself
	// already waits a little, so that a short operation has ended when it returns.
	WaitSoon bool
	Internal bool // they do not wait for a recovery, which they are a part of
	// Reruns tells that a recovery runs once more what was suspended. Where another member has died
	// meanwhile, it is suspended again: in its place, as on ranks that have not heard of that death.
	Reruns bool
	// Registers tells that they are the registration which others wait for.
	Registers bool
	FailFast  bool // they fail where a member dies: nobody completes them
}

// ErrOver tells that operations were not started, because the members recover by themselves, or
// have done so. The caller starts them in the next epoch.
var ErrOver = errors.New("the epoch is over")

// Start starts one operation, or several as one work. See core.Comm.Start for what it promises. The
// error is [ErrOver] only where survivors complete collectives.
func (e *Epoch) Start(o Options, operations []call.Operation) (*work.Work, error) {
	images, err := e.narrow(operations)
	if err != nil {
		return nil, e.RefuseStart(err, operations)
	}
	if images == nil {
		return e.start(o, operations, nil)
	}
	w, err := e.start(o, images.Operations, images.Free)
	if err != nil {
		images.Free()
	}
	return w, err
}

// narrow makes the images of operations of which some are carried as another dtype; nil: none is.
func (e *Epoch) narrow(operations []call.Operation) (*wire.Images, error) {
	narrows := false
	for i := range operations { // which are large, and are copied nowhere on the usual way
		narrows = narrows || operations[i].WireDType(e.wire) != operations[i].DType
	}
	if !narrows {
		return nil, nil
	}
	for i := range operations {
		if err := e.check(&operations[i]); err != nil {
			return nil, err
		}
	}
	return wire.Narrow(operations, e.Rank, e.wire, e.Recovers())
}

// check refuses what this rank must not ask for. Survivors may run a collective once more, from its
// first byte on.
func (e *Epoch) check(op *call.Operation) error {
	if op.Feed != nil && op.Feed.Segment != nil && e.Recovers() {
		return fault.Errorf(fault.ErrInvalidArgument, "%v: the feed has `segment`: allowed are those "+
			"without where survivors complete collectives (recovery %q)", op.Collective,
			e.config.Settings.Recovery)
	}
	return op.Check(e.Rank, e.Size())
}

// start is Start of operations that are carried as they are. It calls `ended`, where that is no
// nil, once the work has ended; not where it returns an error.
func (e *Epoch) start(o Options, operations []call.Operation, ended func()) (*work.Work, error) {
	w, err := e.prepare(o, operations)
	if err != nil {
		return nil, e.RefuseStart(err, operations)
	}
	if ended != nil {
		w.OnEnd(func(error) { ended() })
	}
	parts := w.Parts()

	if len(parts) > 0 {
		e.lockOrder()
		if !o.Registers {
			e.awaitRegistration()
		}
	} else {
		e.mu.Lock()
	}
	if e.Recovers() && !o.Internal && !o.Reruns && (e.over || e.config.Suspended.Recovery() != nil) {
		e.mu.Unlock()
		return nil, ErrOver
	}
	if err := e.refusal(); err != nil && !o.Reruns {
		defer e.mu.Unlock()
		return nil, err.During(call.Name(operations), 0)
	}
	w.SetTimeout(e.timeoutOf(o))
	var mismatch *fault.Error
	for i := range parts {
		e.useProgram(&parts[i])
		err := e.order.Start(&parts[i].Message)
		e.fast.Trace().SetBytes(parts[i].Message.Sequence, parts[i].Operation.Total())
		if parts[i].Operation.Feed != nil {
			e.fast.Trace().Staged(parts[i].Operation.Total())
		}
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
	e.mu.Unlock()
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
		e.Fail(mismatch, true)
	}
	switch {
	case o.WaitSoon:
		w.HelpAtOnce() // the caller would come back for just that
	case len(parts) > 0:
		e.queue.WakeLater()
	}
	return w, nil
}

// prepare makes the work of some operations. It returns an error for bad arguments.
func (e *Epoch) prepare(o Options, operations []call.Operation) (*work.Work, error) {
	suspends := e.Recovers() && !o.FailFast && len(operations) > 0 &&
		!slices.ContainsFunc(operations, func(op call.Operation) bool {
			return !suspended.Completes(&op)
		})
	n := len(operations)
	if suspends && e.confirms(operations) {
		n++
	}
	w := e.works.New(n, o.WaitSoon)
	w.SetContributors(e.Size())
	for i := range operations {
		op := &operations[i]
		if err := e.check(op); err != nil {
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
	if suspends {
		if err := e.config.Suspended.Guard(w, e.ofWorks(), operations); err != nil {
			return nil, fault.From(err, fault.ErrSystem, "%s", call.Name(operations))
		}
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

func (e *Epoch) timeoutOf(o Options) time.Duration {
	if o.Timeout > 0 {
		return o.Timeout
	}
	return e.config.Owner.Timeout()
}

// small reports whether a collective is as short as those by which callers in C may be held up, and
// sends no frames.
func small(o *call.Operation) bool {
	return o.Collective != plan.MonitoredBarrier && o.Largest() <= exec.AtOnceMax
}

// CarryOn takes over a collective that the caller has begun by the fast path, and goes on as Start
// does.
func (e *Epoch) CarryOn(o Options, operation call.Operation) (*work.Work, error) {
	w := e.works.New(1, o.WaitSoon)
	w.SetContributors(e.Size())
	var h *suspended.Work
	if e.Recovers() && suspended.Completes(&operation) {
		h = e.config.Suspended.GuardBegun(w, e.ofWorks(), operation, e.fast.Before)
	}
	e.mu.Lock()
	begun := e.fast.Leave()
	w.SetTimeout(e.timeoutOf(o))
	if err := e.Failure(); err != nil {
		e.retire(&operation)
		defer e.mu.Unlock()
		w.Add(work.Part{Operation: &operation, Message: e.fast.At(e.fast.Sequence())})
		e.fast.Trace().End(&w.Parts()[0].Message, trace.Ending{State: trace.Failed})
		if h == nil || !h.Suspend(err) { // before the recovery can end
			return nil, err.During(operation.Collective.String(), 0)
		}
		e.leftUndone(e.fast.Sequence())
		return w, nil
	}
	if e.shape.AllMemory && small(&operation) {
		w.UseSmall()
	}
	w.Add(work.Part{Operation: &operation, Message: e.fast.At(e.fast.Sequence()), Begun: begun})
	var tell func()
	if e.trace.collectives != nil {
		tell = e.ranInC()
	}
	e.queue.Push(w)
	e.mu.Unlock()
	if tell != nil {
		tell()
		e.traceStart(w, []call.Operation{operation})
	}
	w.Started()
	if o.WaitSoon {
		w.HelpAtOnce()
	} else {
		e.queue.WakeLater()
	}
	return w, nil
}

// refusal returns why the epoch takes no operations, nil while it works.
func (e *Epoch) refusal() *fault.Error {
	if cause := e.agreement.Cause(); cause != nil {
		return cause // it says more than the failure before
	}
	return e.Failure()
}

// Recovers reports whether survivors complete collectives in which a member dies.
func (e *Epoch) Recovers() bool { return e.config.Settings.Recovery != config.RecoveryStep }

// ofWorks returns the epoch as works that may be suspended know it.
func (e *Epoch) ofWorks() suspended.Epoch {
	return suspended.Epoch{Number: e.number, Rank: e.Rank, Members: &e.Members}
}

// resultMost returns the most bytes of a result that is kept. It is more where a message takes
// longer than a copy.
func (e *Epoch) resultMost() int {
	if e.shape.AllMemory {
		return 64 << 10
	}
	return 512 << 10
}

// confirms reports whether a barrier must follow some operations that survivors complete.
func (e *Epoch) confirms(operations []call.Operation) bool {
	return slices.ContainsFunc(operations, func(op call.Operation) bool {
		return op.Collective.Rooted() || op.Total() > uint64(e.resultMost())
	})
}

// keepResult copies the result of a collective that has ended, if others may ask for it.
func (e *Epoch) keepResult(p *work.Part) {
	op := p.Operation
	if e.Recovers() && suspended.Completes(op) && !op.Collective.Rooted() {
		e.fast.Keep(p.Message.Sequence, op.Out, op.OutBytes())
	}
}

// leftUndone notes that a collective has not ended here. It is called with mu held.
func (e *Epoch) leftUndone(sequence uint64) {
	if e.firstUndone == 0 || sequence < e.firstUndone {
		e.firstUndone = sequence
	}
}

// lockOrder takes mu with nobody in the fast path: then the order of the collectives stands still.
// The gate of the fast path stays shut until unlockOrder, or a later openFastPath.
func (e *Epoch) lockOrder() {
	for since := exec.Now(); ; exec.AwaitCaller(since) {
		e.mu.Lock()
		e.fast.Shut()
		if e.fast.Closed() {
			return
		}
		// A caller inside leaves when it must wait for long, and takes mu to hand its collective over.
		e.mu.Unlock()
	}
}

// FastPath is what callers in C run collectives by, naming it by the handle.
func (e *Epoch) FastPath(handle uint64) unsafe.Pointer { return e.fast.C(handle) }
