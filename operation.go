package goccl

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"time"
	"unsafe"

	"github.com/goccl/goccl/core"
	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/plan"
	"github.com/goccl/goccl/core/program"
	"github.com/goccl/goccl/core/reduce"
)

// Operation is one collective, send or receive, with its slices, for [Comm.Run] and [Comm.Start].
// It may be used again once what was started with it has ended.
type Operation struct {
	collective plan.Collective
	program    *program.Checked // that runs it; nil: the group chooses
	dtype      reduce.DType
	op         Op
	root, tag  int
	in, out    side
	feed       Feed // nil: the slices are there
	wire       WireDType
}

// Feed has the inputs of a collective come, and its outputs go, piece by piece while it runs: for a
// producer that is not ready, or a consumer that need not wait for the end. The collective takes
// its place in the order at once, and stops at the first byte that is not there. Ranks need not
// agree: each has a feed or none.
//
// Blocks are numbered as the slices of the inputs, or of the outputs, are, or as the parts of a
// slice that is for several ranks. The methods are called by the thread that runs the collective,
// one at a time. They must not block, nor call the communicator. Both may be called for the same
// bytes again: survivors run a collective once more.
//
// Need(block, from, upto) reports whether the bytes from one on, up to another one, of an input
// block are there; it is asked again, after 200 µs at most, until they are. An error fails the
// communicator on all ranks, with [ErrSystem]. Final(block, from, upto) tells that nothing writes
// to those bytes of an output block any more.
type Feed = core.Feeder

// WithFeed returns the operation with a feed. A send or a receive with one is refused.
func (o Operation) WithFeed(f Feed) Operation {
	o.feed = f
	return o
}

// WireDType is as which dtype the elements of a collective travel.
type WireDType = core.WireDType

// The choices. The zero value is that of [Config].
const (
	OwnDType     = core.OwnDType // the elements' own
	WireBFloat16 = WireDType(reduce.BFloat16 + 1)
	WireFloat16  = WireDType(reduce.Float16 + 1)
)

// WithWireDType returns the collective with float32 or float64 elements that travel as another
// dtype. The result is that of converting all slices before, and back after, also where a rank
// keeps its own part; it is the same on all ranks. It takes memory for narrow images of the slices.
// Another element type, and a send or a receive, is refused.
func (o Operation) WithWireDType(d WireDType) Operation {
	o.wire = d
	return o
}

// side is the inputs or the outputs of an operation.
type side struct {
	name   string
	at     unsafe.Pointer // of one slice: a block, or blocks of one size
	length int
	blocks []unsafe.Pointer // of several slices
	counts []uint64
}

func slice[T Element](name string, s []T) side {
	return side{name: name, at: unsafe.Pointer(unsafe.SliceData(s)), length: len(s)}
}

func slicesOf[T Element](name string, all [][]T) side {
	s := side{name: name, blocks: make([]unsafe.Pointer, len(all)), counts: make([]uint64, len(all))}
	for i, b := range all {
		s.blocks[i], s.counts[i] = unsafe.Pointer(unsafe.SliceData(b)), uint64(len(b))
	}
	return s
}

func (o *Operation) bad(format string, args ...any) error {
	return fault.Errorf(ErrInvalidArgument, "%v: %s", o.collective, fmt.Sprintf(format, args...))
}

// singles is one piece of memory for what most operations need.
type singles struct {
	at    [2]unsafe.Pointer
	count [2]uint64
}

// operation makes core's of it, for a rank of a group. Core checks what the arguments mean; here is
// checked what would be lost on the way there.
func (o *Operation) operation(rank, size int) (core.Operation, error) {
	to := core.Operation{Collective: o.collective, DType: o.dtype, Op: o.op.op, Root: o.root,
		Tag: o.tag, Program: o.program, Factor: [2]float64{real(o.op.factor), imag(o.op.factor)},
		Wire: o.wire}
	room := new(singles)
	block := func(i int, s *side) ([]unsafe.Pointer, []uint64) {
		room.at[i], room.count[i] = s.at, uint64(s.length)
		return room.at[i : i+1 : i+1], room.count[i : i+1 : i+1]
	}
	var err error
	switch o.collective {
	case plan.AllReduce:
		to.In, to.InCounts = block(0, &o.in)
		to.Out, to.OutCounts = block(1, &o.out)
		err = o.sameLength(1, &o.out, &o.in, "")
	case plan.Reduce:
		to.In, to.InCounts = block(0, &o.in)
		to.Out, to.OutCounts = block(1, &o.out)
		if rank == o.root {
			err = o.sameLength(1, &o.out, &o.in, " on the root")
		} else {
			to.Out, to.OutCounts = nil, to.InCounts
		}
	case plan.Broadcast:
		to.In, to.InCounts = block(0, &o.in)
		to.Out, to.OutCounts = to.In, to.InCounts
	case plan.AllGather, plan.Gather:
		to.In, to.InCounts = block(0, &o.in)
		to.Out, to.OutCounts, err = o.each(&o.out, &o.in, rank, size)
	case plan.ReduceScatter, plan.Scatter:
		to.Out, to.OutCounts = block(1, &o.out)
		to.In, to.InCounts, err = o.each(&o.in, &o.out, rank, size)
	case plan.AllToAll:
		if o.in.blocks == nil {
			err = o.sameLength(1, &o.out, &o.in, "")
		}
		if err == nil {
			to.In, to.InCounts, err = o.parts(&o.in, size)
		}
		if err == nil {
			to.Out, to.OutCounts, err = o.parts(&o.out, size)
		}
	case plan.Custom:
		to.In, to.InCounts = block(0, &o.in)
		to.Out, to.OutCounts = block(1, &o.out)
	case plan.Send:
		to.In, to.InCounts = block(0, &o.in)
	case plan.Recv:
		to.Out, to.OutCounts = block(1, &o.out)
	}
	return to, err
}

// sameLength refuses a slice that is not so many times as long as another one.
func (o *Operation) sameLength(times int, s, as *side, where string) error {
	want := times * as.length
	if s.length == want {
		return nil
	}
	is := fmt.Sprintf("as %s has", as.name)
	if times > 1 {
		is = fmt.Sprintf("%s has %d, and there are %d ranks", as.name, as.length, times)
	}
	return o.bad("%s has %d elements, expected %d%s: %s", s.name, s.length, want, where, is)
}

// each returns the blocks of a side that has one for each rank, if on the root only, with those of
// the other side, which has one.
func (o *Operation) each(s, one *side, rank, size int) ([]unsafe.Pointer, []uint64, error) {
	rooted := o.collective.Rooted()
	switch {
	case s.blocks != nil:
		return s.blocks, s.counts, nil
	case rooted && rank != o.root:
		return nil, slices.Repeat([]uint64{uint64(one.length)}, size), nil
	}
	where := ""
	if rooted {
		where = " on the root"
	}
	if err := o.sameLength(size, s, one, where); err != nil {
		return nil, nil, err
	}
	return o.parts(s, size)
}

// parts returns the blocks of a side, one for each rank.
func (o *Operation) parts(s *side, size int) ([]unsafe.Pointer, []uint64, error) {
	if s.blocks != nil {
		return s.blocks, s.counts, nil
	}
	if s.length%size != 0 {
		return nil, nil, o.bad("%s has %d elements, which must be a multiple of the %d ranks", s.name,
			s.length, size)
	}
	blocks, n := make([]unsafe.Pointer, size), s.length/size
	for r := range blocks {
		blocks[r] = unsafe.Add(s.at, r*n*o.dtype.Size())
	}
	return blocks, slices.Repeat([]uint64{uint64(n)}, size), nil
}

// pin keeps the slices where they are, and alive, until the pins are given up: C code keeps their
// addresses meanwhile.
func (o *Operation) pin(pins *runtime.Pinner) {
	if o.in.length > 0 {
		pins.Pin(o.in.at)
	}
	if o.out.length > 0 && (o.out.at != o.in.at || o.in.length == 0) {
		pins.Pin(o.out.at)
	}
	for _, s := range [2]*side{&o.in, &o.out} {
		for i, at := range s.blocks {
			if s.counts[i] > 0 {
				pins.Pin(at)
			}
		}
	}
}

// Run runs operations and waits for their end: one, or several as one batch, which all end before
// it returns. Of sends and receives that wait for each other a batch is the way to make them at
// once. The collectives of a batch take their places in the order of collectives as they stand
// there. Where one operation is refused none is started.
//
// A deadline of the context is the operations' timeout; without one it is the communicator's: see
// [Config.Timeout]. Where the context is cancelled before the end the communicator is aborted on
// all ranks, as [Comm.Abort] does, for the others wait for this rank. In either case Run returns
// once the slices are not used any more. Collectives with a context that has ended already are
// refused, and the other ranks are told.
func (c *Comm) Run(ctx context.Context, operations ...Operation) error {
	_, err := c.run(ctx, operations)
	return err
}

func (c *Comm) run(ctx context.Context, operations []Operation) (*core.Work, error) {
	var pins runtime.Pinner
	defer pins.Unpin()
	w, err := c.begin(ctx, &pins, true, operations)
	if err != nil {
		return nil, err
	}
	if !w.Ended() && ctx.Done() != nil {
		defer c.abortWith(ctx, w, operations)()
	}
	if _, err := w.Wait(-1); err != nil {
		return nil, public(ctx, nameOf(operations), err)
	}
	return w, nil
}

// Start starts operations and waits for nothing: see [Comm.Run] for what they are together, and
// what becomes of them when the context ends. The context is theirs, from here to their end: it
// must not be cancelled before [Work.Wait] has returned.
//
// Until the work has ended the caller must not change the slices that are read, nor touch those
// that are written to, nor give memory of [Alloc] back. It need not keep them: the work does.
func (c *Comm) Start(ctx context.Context, operations ...Operation) (*Work, error) {
	w := &Work{operation: nameOf(operations), done: make(chan struct{})}
	var err error
	if w.work, err = c.begin(ctx, &w.pins, false, operations); err != nil {
		w.pins.Unpin()
		return nil, err
	}
	stop := func() bool { return true }
	if ctx.Done() != nil {
		stop = c.abortWith(ctx, w.work, operations)
	}
	w.work.OnDone(func(err error) {
		stop()
		w.pins.Unpin()
		w.err = public(ctx, w.operation, err)
		close(w.done)
	})
	return w, nil
}

func nameOf(operations []Operation) string {
	if len(operations) != 1 {
		return "batch"
	}
	return operations[0].collective.String()
}

// begin starts operations whose slices it pins.
func (c *Comm) begin(ctx context.Context, pins *runtime.Pinner, soon bool,
	operations []Operation) (*core.Work, error) {
	var room [1]core.Operation
	all := room[:0]
	var refused error
	rank, size := c.core.Rank(), c.core.Size()
	for i := range operations {
		o, err := operations[i].operation(rank, size)
		if refused == nil {
			refused = err
		}
		all = append(all, o)
	}
	options := core.CallOptions{WaitSoon: soon}
	if deadline, ok := ctx.Deadline(); ok {
		options.Timeout = max(time.Until(deadline), 1)
	}
	if err := ctx.Err(); err != nil && refused == nil {
		refused = fmt.Errorf("%s: the context had ended before: %w", nameOf(operations), err)
	}
	if refused != nil {
		return nil, public(ctx, nameOf(operations), c.core.RefuseStart(refused, all...))
	}
	for i := range operations {
		operations[i].pin(pins)
	}
	releases := c.feeds(operations, all)
	w, err := c.core.Start(options, all...)
	if len(releases) > 0 {
		release := func(error) {
			for _, f := range releases {
				f()
			}
		}
		if err != nil {
			release(err)
		} else {
			w.OnDone(release)
		}
	}
	return w, public(ctx, nameOf(operations), err)
}

// feeds gives core's operations the feeds of others, and returns what releases these.
func (c *Comm) feeds(operations []Operation, all []core.Operation) (releases []func()) {
	for i := range operations {
		if f := operations[i].feed; f != nil {
			feed, release := c.core.NewFeed(f)
			all[i].Feed = feed
			releases = append(releases, release)
		}
	}
	return releases
}

// abortWith aborts the communicator when the context is cancelled while a work has not ended. A
// deadline is not waited for: it is the work's.
func (c *Comm) abortWith(ctx context.Context, w *core.Work, operations []Operation) (
	stop func() bool) {
	name := nameOf(operations)
	return context.AfterFunc(ctx, func() {
		if ctx.Err() != context.DeadlineExceeded && !w.Ended() {
			c.core.Abort(fmt.Sprintf("%s: its context was cancelled: %v", name, context.Cause(ctx)))
		}
	})
}

// Work is operations that [Comm.Start] has started. Its methods may be called from any goroutine.
// Every work ends, by its timeout at the latest, whether somebody waits for it or not.
type Work struct {
	work      *core.Work
	operation string
	pins      runtime.Pinner
	done      chan struct{}
	err       error // set before done is closed
}

// Done returns a channel that is closed when the work has ended.
func (w *Work) Done() <-chan struct{} { return w.done }

// Wait waits for the end of the work and returns its error. Where ctx ends first it returns the
// context's error, and the work goes on: wait again.
func (w *Work) Wait(ctx context.Context) error {
	select {
	case <-w.done:
		return w.err
	default:
	}
	select {
	case <-w.done:
		return w.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Err returns the work's error, nil before its end.
func (w *Work) Err() error {
	select {
	case <-w.done:
		return w.err
	default:
		return nil
	}
}

// Source returns the rank that the work's last receive came from, -1 before and where there is
// none.
func (w *Work) Source() int { return w.work.Source() }

// Contributors returns how many ranks' contributions are in the results of a work with
// collectives that has ended well: fewer than all ranks after a recovery, see [Config.Recovery].
func (w *Work) Contributors() int { return w.work.Contributors() }
