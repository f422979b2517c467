// Package collective runs collectives, one at a time: the head of a communicator's queue.
//
// An [Engine] makes plans of an operation, compiles them, and runs them in C. It keeps what it has
// made, so that a collective that is called again builds nothing, and publishes it to the fast
// path. The engine answers, and never acts: [Engine.Advance] returns an [Outcome], and its caller
// decides what a failure means for the communicator. What the loop in C cannot do for peers that
// share no memory goes through a [Wire].
//
// An Engine belongs to the thread that holds the queue's token, and has no lock.
package collective

import (
	"context"
	"errors"
	"time"
	"unsafe"

	"github.com/goccl/goccl/core/call"
	"github.com/goccl/goccl/core/exec"
	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/plan"
	"github.com/goccl/goccl/core/reduce"
	"github.com/goccl/goccl/core/reduce/kernel"
	"github.com/goccl/goccl/core/trace"
	"github.com/goccl/goccl/core/tune"
	"github.com/goccl/goccl/core/work"
)

// Wire carries messages between ranks that share no memory. The engine's thread uses it.
type Wire interface {
	// Enter tells that the engine begins to drive a run, or goes on with it.
	Enter()
	// Connect makes sure that there is a connection to a peer, or that one is being made: until the
	// channel is closed. It also begins to make those to the peers that are needed next.
	Connect(peer int, next []int) <-chan struct{}
	// Put carries the message of the run's present step. The context's end leaves it unsent.
	Put(ctx context.Context, run *exec.Run) error
	// Release gives slots back that the run has released to its present peer.
	Release(ctx context.Context, run *exec.Run)
	// Wait waits for what the run waits for: a little while, or until a time.
	Wait(run *exec.Run, until time.Duration)
	// Leave leaves reading to other threads, until the next Wait.
	Leave(run *exec.Run)
}

// Status is what has become of a collective.
type Status int

// The statuses.
const (
	Done Status = iota
	Blocked
	Failed
)

// Outcome is the answer of Advance.
type Outcome struct {
	Status Status

	// Of one that is Blocked:
	Since time.Duration // when it last got on, on exec's clock
	Input *Input        // it waits for this one of the caller's; nil: for a peer

	// Of one that has Failed, one of these:
	Err         *fault.Error // on this rank
	Unreachable error        // a message could not be carried to Peer
	Run         exec.Status  // the run has ended so, because of Peer
	Peer        int
}

// Input is what a feed has not brought yet.
type Input struct {
	Block      int   // -1: it is the memory of all blocks, inputs and outputs
	From, Upto int64 // bytes of the block
}

// Config says what an engine works with.
type Config struct {
	Rank     int
	Shape    *tune.Shape
	Window   *exec.Window
	Arena    *exec.Arena // this process's; nil: no peer shares memory
	Wire     Wire        // nil where no peer is joined by a port
	FastPath *exec.FastPath
	Recovers bool // survivors complete collectives in which a member dies
}

// Engine runs collectives.
type Engine struct {
	Config
	run     *exec.Run
	binding exec.Binding // of run
	plans   planCache
	laid    layout

	// Of the present collective:
	begun     bool           // it is bound
	segments  []tune.Segment // still to run
	current   *exec.Compiled
	dialed    bool          // connections to all peers of the present plan are being made
	since     time.Duration // when it last got on; 0: it has
	algorithm plan.Algorithm
	via       trace.Transports // of its plans
}

// New makes an engine for a run on its lane.
func New(c Config, run *exec.Run) *Engine {
	return &Engine{Config: c, run: run, plans: planCache{freeing: c.FastPath.Forget,
		trace: c.FastPath.Trace()}}
}

// Run is the engine's.
func (e *Engine) Run() *exec.Run { return e.run }

// Algorithm is that of the present or last collective.
func (e *Engine) Algorithm() plan.Algorithm { return e.algorithm }

// Transports are those of the present or last collective.
func (e *Engine) Transports() trace.Transports { return e.via }

// Begun reports whether the present collective has begun.
func (e *Engine) Begun() bool { return e.begun }

// Abandon gives the present collective up.
func (e *Engine) Abandon() {
	e.run.Withdraw()
	e.reset()
}

func (e *Engine) reset() {
	e.begun, e.dialed, e.segments, e.current = false, false, nil, nil
}

// Advance carries a collective of a work on, which has not ended: until it has, or until a time. A
// failure of the communicator ends it, too.
func (e *Engine) Advance(w *work.Work, p *work.Part, until time.Duration) Outcome {
	for {
		if !e.begun {
			if err := e.begin(p); err != nil {
				return Outcome{Status: Failed, Err: err}
			}
		}
		if e.current == nil {
			if len(e.segments) == 0 {
				e.publish(p)
				e.reset()
				return Outcome{Status: Done}
			}
			if err := e.beginSegment(p); err != nil {
				return Outcome{Status: Failed, Err: err}
			}
		}
		if o := e.drive(w, p, until); o.Status != Done {
			return o
		}
		e.current, e.dialed = nil, false
		e.since = 0
	}
}

// streamsMeasuredFrom is how many bytes a collective has before it is measured whether writes past
// the caches are faster, which takes no longer than such a collective.
const streamsMeasuredFrom = 4 << 20

// streams tells which outputs are written past the caches. That depends on this rank alone.
func (e *Engine) streams(op *call.Operation) plan.Streams {
	if op.Total() >= streamsMeasuredFrom && !exec.FastStreams() && !e.Shape.StreamMinSet {
		return plan.StreamNone
	}
	return e.Shape.Streams(op)
}

// begin binds a collective and lays out its segments.
func (e *Engine) begin(p *work.Part) *fault.Error {
	e.since, e.via = 0, 0
	if p.Begun != nil {
		e.via = p.Begun.Transports
		e.begun, e.segments, e.current, e.algorithm = true, nil, p.Begun, p.Begun.Algorithm
		return nil
	}
	op := p.Operation
	b := exec.Binding{In: op.In, Out: op.Out, Factor: op.Factor, Message: p.Message,
		Streams: e.streams(op)}
	if op.Collective == plan.Broadcast {
		b.In = op.Out
	}
	if op.Feed != nil {
		b.Feed = new(exec.Feed(*op.Feed))
	}
	if op.Reduces() {
		k, err := kernel.Of(op.DType, op.Op)
		if err != nil {
			return fault.From(err, fault.ErrInternal, "%s", call.Describe(p.Message))
		}
		b.Kernels = k
		if op.Op == reduce.Avg {
			b.Factor[0] = float64(e.Shape.Size)
		}
	}
	if err := e.run.Bind(b); err != nil {
		return fault.From(err, fault.ErrSystem, "%s", call.Describe(p.Message))
	}
	e.binding = b
	e.begun, e.segments, e.current = true, nil, p.Plan
	if p.Plan == nil {
		e.layOut(p)
		e.segments, e.algorithm = e.laid.segments, e.laid.algorithm()
		if op.Feed == nil && e.shareable(op) { // else all ranks run the other plan, as this one does
			e.current = e.direct(op)
		}
	}
	if e.current != nil {
		e.algorithm, e.via = e.current.Algorithm, e.current.Transports
		if err := e.run.Begin(e.current, 0); err != nil {
			return fault.From(err, fault.ErrSystem, "%s", call.Describe(p.Message))
		}
	}
	return nil
}

// beginSegment begins the next segment.
func (e *Engine) beginSegment(p *work.Part) *fault.Error {
	s := &e.segments[0]
	e.segments = e.segments[1:]
	compiled, err := e.compile(s)
	if err != nil {
		return fault.From(err, fault.ErrInternal, "%s", call.Describe(p.Message))
	}
	e.current = compiled
	e.via |= compiled.Transports
	if err := e.run.Begin(compiled, s.Offset); err != nil {
		return fault.From(err, fault.ErrSystem, "%s", call.Describe(p.Message))
	}
	e.run.Locate(s.Upto)
	return nil
}

// drive runs the current plan until it is done, blocked or failed, and does for it what the loop in
// C cannot.
func (e *Engine) drive(w *work.Work, p *work.Part, until time.Duration) Outcome {
	if e.Wire != nil {
		e.Wire.Enter()
		defer e.Wire.Leave(e.run)
	}
	for {
		switch status := e.run.Continue(until); status {
		case exec.Receive:
			e.Wire.Wait(e.run, until)
			if exec.Now() >= until {
				return e.blocked()
			}
		case exec.Done:
			if e.algorithm == plan.Direct { // it needs no other plan
				e.segments = nil
			}
			return Outcome{Status: Done}
		case exec.Indirect:
			e.layOut(p)
			e.segments, e.algorithm = e.laid.segments, e.laid.algorithm()
			return Outcome{Status: Done}
		case exec.Blocked:
			return e.blocked()
		case exec.WaitsForInput:
			o := e.blocked()
			o.Input = new(Input)
			o.Input.Block, o.Input.From, o.Input.Upto = e.run.Unfed()
			return o
		case exec.Rest:
			if e.Wire != nil {
				e.Wire.Leave(e.run)
			}
		case exec.Connect:
			begin, peer := trace.Begin(), e.run.Peer()
			connected := e.connect(until)
			e.FastPath.Trace().Add(trace.SpanConnect, begin, &p.Message, peer, 0)
			if !connected {
				return e.blocked()
			}
		case exec.NeedPut:
			peer := e.run.Peer()
			ctx := work.WithDeadline(w.Context(), until)
			err := e.Wire.Put(ctx, e.run)
			ctx.End()
			switch {
			case err == nil:
				e.run.Advance()
			case errors.Is(err, context.DeadlineExceeded):
				return e.blocked()
			default:
				return Outcome{Status: Failed, Unreachable: err, Peer: peer}
			}
		case exec.Released:
			e.Wire.Release(w.Context(), e.run)
		default:
			return Outcome{Status: Failed, Run: status, Peer: e.run.Peer()}
		}
	}
}

// blocked is the outcome of a plan that waits for a peer.
func (e *Engine) blocked() Outcome {
	if e.since == 0 {
		e.since = exec.Now()
	}
	return Outcome{Status: Blocked, Since: e.since}
}

// connect waits for the connection to the run's peer. It reports whether that is over before a
// time.
func (e *Engine) connect(until time.Duration) bool {
	e.Wire.Leave(e.run)
	var next []int
	if !e.dialed {
		next, e.dialed = e.run.Peers(), true
	}
	t := time.NewTimer(until - exec.Now())
	defer t.Stop()
	select {
	case <-e.Wire.Connect(e.run.Peer(), next):
		return true
	case <-t.C:
		return false
	}
}

// fastPathMax is the most bytes in a block for which it matters what a way through Go costs.
const fastPathMax = 1 << 20

// publish lets a collective that has ended be called by the fast path from now on.
func (e *Engine) publish(p *work.Part) {
	op := p.Operation
	// Calls by the fast path name no schedule.
	if p.Begun != nil || p.Plan != nil || op.Program != nil || op.Feed != nil ||
		op.PartOf != 0 || op.Schedule != 0 || op.Wire != call.AnyDType ||
		!e.Shape.AllMemory || e.Window.Layout.Ranks > exec.FastPathBlocks || op.Op == reduce.PreMulSum ||
		e.Recovers && (op.Collective == plan.Reduce || op.Collective == plan.Broadcast) ||
		op.Collective == plan.AllReduce && len(op.InCounts) != 1 || op.Largest() > fastPathMax {
		return
	}
	k := exec.Known{Binding: e.binding, Element: op.DType.Size(), Total: op.Total(),
		Collective: uint8(op.Collective),
		DType:      uint8(op.DType), Op: uint8(op.Op), Root: op.Root, Programs: int8(op.Programs),
		InCounts: op.InCounts, OutCounts: op.OutCounts}
	k.UsesIn, k.UsesOut = op.Uses(e.Rank)
	k.Completes = e.Recovers && (op.Collective == plan.AllReduce || op.Collective == plan.Barrier)
	e.layOut(p)
	direct := e.direct(op)
	if compiled, err := e.compile(&e.laid.segments[0]); err == nil {
		e.FastPath.Learn(&k, compiled, direct)
	}
}

// shareable reports whether an operation's buffers may be: whether the first one is.
func (e *Engine) shareable(op *call.Operation) bool {
	for _, blocks := range [][]unsafe.Pointer{op.In, op.Out} {
		if len(blocks) > 0 {
			return e.Arena != nil && e.Arena.Contains(blocks[0])
		}
	}
	return false
}

// Free frees the plans and the run. The fast path is closed.
func (e *Engine) Free() {
	e.plans.free()
	e.run.Free()
}
