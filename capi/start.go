package main

// #include "api.h"
import "C"

import (
	"math"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/goccl/goccl/core"
	"github.com/goccl/goccl/core/call"
	"github.com/goccl/goccl/core/plan"
	"github.com/goccl/goccl/core/reduce"
	"github.com/goccl/goccl/core/tune"
)

// commHandle is what a goccl_comm names.
type commHandle struct {
	issued
	comm *core.Comm

	recording  atomic.Int32 // batches that are being recorded
	mu         sync.Mutex
	batches    map[C.uint64_t]*batch // by thread
	loaded     runtime.Pinner        // models of the last checkpoint that was loaded
	orphans    []core.Orphan         // of that
	destroyed  bool                  // nothing is lent any more
	background *task                 // that was begun last in the background; nil: none
}

// batch is what a thread has called between goccl_group_start() and goccl_group_end().
type batch struct {
	operations []core.Operation
	refused    error  // the first call that was bad
	epoch      uint32 // in which it was started
}

// workHandle is what a goccl_work names.
type workHandle struct {
	issued
	work     ender
	callback atomic.Bool // one has been given
	watchers watchers
}

// ender is what a work is: a *core.Work or a *task.
type ender interface {
	Test() (done bool, err error)
	Wait(timeout time.Duration) (done bool, err error)
	OnDone(f func(error))
	Source() int
	Contributors() int
}

// batchOf is the batch that a thread is recording on a communicator, or nil.
func (c *commHandle) batchOf(thread C.uint64_t) *batch {
	if c.recording.Load() == 0 {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.batches[thread]
}

func (c *commHandle) startBatch(thread C.uint64_t) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.batches[thread] != nil {
		return errorf(codeInvalidArgument, "group_start: this thread has already started a batch on "+
			"this communicator, end it first")
	}
	if c.batches == nil {
		c.batches = map[C.uint64_t]*batch{}
	}
	c.batches[thread] = &batch{epoch: c.comm.Epoch()}
	c.recording.Add(1)
	return nil
}

func (c *commHandle) endBatch(thread C.uint64_t, function string) (*batch, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	b := c.batches[thread]
	if b == nil {
		return nil, errorf(codeInvalidArgument, "%s: this thread has started no batch on this "+
			"communicator, call goccl_group_start() first", function)
	}
	delete(c.batches, thread)
	c.recording.Add(-1)
	return b, nil
}

// The numbers of C's collectives are those of package plan.
var _ = [1]struct{}{}[C.API_CUSTOM-C.int(plan.Custom)]

// functionOf is the name of the function that was called.
func functionOf(a *C.api_operation) string {
	switch {
	case a.collective == C.API_CUSTOM:
		return "program_run"
	case a.in.form == C.API_LIST:
		return "allreduce_coalesced"
	case a.in.form == C.API_FLAT || a.out.form == C.API_FLAT:
		return plan.Collective(a.collective).String() + "_single"
	}
	return plan.Collective(a.collective).String()
}

// maxCoalesced bounds the number of tensors that one call may reduce.
const maxCoalesced = 1 << 20

// operation makes the arguments of a collective core's. Core checks what they mean; here is checked
// what would be lost on the way there.
func operation(a *C.api_operation, rank, size int) (core.Operation, error) {
	o := core.Operation{Collective: plan.Collective(a.collective), Root: int(a.root), Tag: int(a.tag),
		WaitAll: a.wait_all != 0}
	if a.collective == C.API_CUSTOM {
		return o, programOperation(a, &o, rank, size)
	}
	if err := scalars(a, &o); err != nil {
		return o, err
	}
	usesIn, usesOut := o.Uses(rank)
	if err := checkSide(a, &a.in, &a.out, "in", usesIn, size); err != nil {
		return o, err
	}
	if err := checkSide(a, &a.out, &a.in, "out", usesOut, size); err != nil {
		return o, err
	}
	room := new(singles)
	o.In, o.InCounts = room.blocks(a, &a.in, &a.out, usesIn, rank, size)
	o.Out, o.OutCounts = room.blocks(a, &a.out, &a.in, usesOut, rank, size)
	return o, nil
}

// scalars takes over dtype, op and factor.
func scalars(a *C.api_operation, o *core.Operation) error {
	bad := func(name string, given any, allowed string, args ...any) error {
		return invalid(functionOf(a)+": "+name, given, allowed, args...)
	}
	if a.dtype >= C.GOCCL_DTYPE_COUNT {
		return bad("dtype", int32(a.dtype), "allowed are 0 to %d (goccl_dtype)", C.GOCCL_DTYPE_COUNT-1)
	}
	o.DType = reduce.DType(a.dtype)
	if !o.Reduces() {
		return nil
	}
	if a.op >= C.GOCCL_REDUCE_OP_COUNT {
		return bad("op", int32(a.op), "allowed are 0 to %d (goccl_reduce_op)", C.GOCCL_REDUCE_OP_COUNT-1)
	}
	o.Op = reduce.Op(a.op)
	if o.Op != reduce.PreMulSum {
		return nil
	}
	if a.factor == nil {
		return bad("factor", "NULL", "op %s needs one", o.Op)
	}
	o.Factor[0] = float64(*a.factor)
	if o.DType == reduce.Complex32 || o.DType == reduce.Complex64 || o.DType == reduce.Complex128 {
		o.Factor[1] = float64(unsafe.Slice(a.factor, 2)[1])
	}
	return nil
}

// checkSide checks that the lists of a side are there, as far as this rank has a use for them.
func checkSide(
	a *C.api_operation, side, other *C.api_side, name string, used bool, size int,
) error {
	counts := "counts"
	switch side.form {
	case C.API_NONE, C.API_ONE:
		return nil
	case C.API_FLAT:
		most := math.MaxInt64 / int64(reduce.DType(a.dtype).Size()) / int64(size)
		switch {
		case uint64(a.count) > uint64(most):
			return invalid(functionOf(a)+": count", a.count, "allowed are 0 to %d of each of %d ranks",
				most, size)
		case side.block == nil && a.count > 0:
			return invalid(functionOf(a)+": "+name, "NULL", "it must point to %d elements",
				int(a.count)*size)
		}
		return nil
	case C.API_LIST:
		if a.blocks < 1 || a.blocks > maxCoalesced {
			return invalid(functionOf(a)+": n", a.blocks, "allowed are 1 to %d", maxCoalesced)
		}
		size = int(a.blocks)
	case C.API_EACH:
		if other.form == C.API_EACH {
			counts = name + "_counts"
		}
	}
	missing := ""
	if used && side.list == nil {
		missing = name
	} else if side.form != C.API_EQUAL && side.counts == nil {
		missing = counts
	}
	if missing != "" {
		return invalid(functionOf(a)+": "+missing, "NULL", "it must point to %d elements", size)
	}
	return nil
}

// singles is one piece of memory for what most calls need.
type singles struct {
	at    [2]unsafe.Pointer
	count [2]uint64
	used  int
}

// blocks are the blocks of a side that has been checked, and their counts.
func (s *singles) blocks(
	a *C.api_operation, side, other *C.api_side, used bool, rank, size int,
) (blocks []unsafe.Pointer, counts []uint64) {
	switch side.form {
	case C.API_NONE:
		return nil, nil
	case C.API_ONE:
		i := s.used
		s.used++
		s.at[i], s.count[i] = side.block, uint64(a.count)
		if other.form == C.API_EACH {
			s.count[i] = uint64(unsafe.Slice(other.counts, size)[rank])
		}
		return s.at[i:s.used:s.used], s.count[i:s.used:s.used]
	case C.API_EQUAL:
		counts = slices.Repeat([]uint64{uint64(a.count)}, size)
	case C.API_FLAT:
		step := int(a.count) * reduce.DType(a.dtype).Size()
		for i := range size {
			blocks = append(blocks, unsafe.Add(side.block, i*step))
			counts = append(counts, uint64(a.count))
		}
		return blocks, counts
	case C.API_EACH:
		counts = slices.Clone(unsafe.Slice((*uint64)(side.counts), size))
	case C.API_LIST:
		size = int(a.blocks)
		counts = slices.Clone(unsafe.Slice((*uint64)(side.counts), size))
	}
	if used {
		blocks = slices.Clone(unsafe.Slice(side.list, size))
	}
	return blocks, counts
}

// leastCall is what the first version of goccl_call had to have.
const leastCall = unsafe.Offsetof(C.goccl_call{}.wait_soon)

// start is how a call is made, as its caller says, and where its results go.
type start struct {
	core.CallOptions
	schedule     plan.Schedule
	programs     call.Programs
	feed         *call.Feed
	wire         call.Wire
	sequence     *C.uint64_t
	contributors *C.int
}

// startOf reads how a call is to be made; one that wants no handle waits.
func startOf(how *C.goccl_call, work *C.goccl_work) (s start, err error) {
	s.WaitSoon = work == nil
	if how == nil {
		return s, nil
	}
	c, err := takeStruct(how, leastCall, "call")
	if err != nil {
		return s, err
	}
	if s.schedule, err = plan.ParseSchedule(text(c.alltoall_schedule)); err != nil {
		return s, errorf(codeInvalidArgument, "call.alltoall_schedule is %v", err)
	}
	if s.Timeout, err = limit("call.timeout_ms", c.timeout_ms); err != nil {
		return s, err
	}
	s.WaitSoon = s.WaitSoon || c.wait_soon != 0
	s.sequence, s.contributors = c.sequence, c.contributors
	if c.program < -1 || c.program > 1 {
		return s, invalid("call.program", c.program, "allowed are -1, 0 and 1")
	}
	s.programs = call.Programs(c.program)
	if s.wire, err = wireOf(&c); err != nil {
		return s, err
	}
	s.feed, err = feedOf(&c)
	return s, err
}

// wireOf reads as which dtype the elements of a call travel. Whether they may, Start says.
func wireOf(how *C.goccl_call) (call.Wire, error) {
	if how.wire_dtype < -1 || how.wire_dtype > C.GOCCL_DTYPE_COUNT {
		return 0, invalid("call.wire_dtype", how.wire_dtype,
			"allowed are -1, 0 and one more than a goccl_dtype")
	}
	return call.Wire(how.wire_dtype), nil
}

// leastFeed is what the first version of goccl_feed had to have.
const leastFeed = unsafe.Offsetof(C.goccl_feed{}.segment)

// The header's GOCCL_SEGMENT_BYTES is the length of segments.
var _ [C.GOCCL_SEGMENT_BYTES]struct{} = [tune.SegmentBytes]struct{}{}

// feedOf reads the feed of a call; nil: it has none.
func feedOf(how *C.goccl_call) (*call.Feed, error) {
	if how.feed == nil {
		return nil, nil
	}
	f, err := takeStruct(how.feed, leastFeed, "feed")
	if err != nil {
		return nil, err
	}
	return &call.Feed{Context: f.context, Need: *(*unsafe.Pointer)(unsafe.Pointer(&f.need)),
		Final:   *(*unsafe.Pointer)(unsafe.Pointer(&f.final)),
		Segment: *(*unsafe.Pointer)(unsafe.Pointer(&f.segment))}, nil
}

// record reads how a call is to be made that is recorded in a batch. All else the end of that says.
func record(o *core.Operation, how *C.goccl_call) error {
	if how == nil {
		return nil
	}
	c, err := takeStruct(how, leastCall, "call")
	if err != nil {
		return err
	}
	if o.Wire, err = wireOf(&c); err != nil {
		return err
	}
	o.Feed, err = feedOf(&c)
	return err
}

// checkEnd refuses at a batch's end what its recorded calls say themselves.
func checkEnd(how *C.goccl_call) error {
	var o core.Operation
	err := record(&o, how)
	switch {
	case err != nil:
		return err
	case o.Feed != nil:
		return invalid("group_end: call.feed", "not NULL",
			"it must be NULL: each recorded call names its own")
	case o.Wire != 0:
		return invalid("group_end: call.wire_dtype", int(o.Wire),
			"it must be 0: each recorded call names its own")
	}
	return nil
}

// collectives is how many operations have a place in the order of collectives.
func collectives(operations []core.Operation) (n int) {
	for i := range operations {
		if !operations[i].PointToPoint() {
			n++
		}
	}
	return n
}

// hasSource tells whether the work will be asked where it came from.
func hasSource(o core.Operation) bool { return o.Collective == plan.Recv }

// run starts operations as one work: it gives out a handle or, where none is wanted, waits.
func (c *commHandle) run(
	call *C.goccl_call, work *C.goccl_work, operations ...core.Operation,
) error {
	s, err := startOf(call, work)
	if err != nil {
		return c.comm.RefuseStart(err, operations...)
	}
	for i := range operations {
		operations[i].Schedule, operations[i].Programs = s.schedule, s.programs
		if s.feed != nil {
			operations[i].Feed = s.feed
		}
		if s.wire != 0 {
			operations[i].Wire = s.wire
		}
	}
	w, err := c.comm.Start(s.CallOptions, operations...)
	if err != nil {
		return err
	}
	return s.finish(c.comm, w, work, operations...)
}

// finish gives out a handle or, where none is wanted, waits. It tells the results of the start.
func (s *start) finish(
	c *core.Comm, w *core.Work, work *C.goccl_work, operations ...core.Operation,
) error {
	sequence := uint64(0)
	if s.sequence != nil {
		sequence = c.Sequence()
		if n := collectives(operations); n > 0 {
			sequence = w.Parts()[n-1].Message.Sequence
		}
	}
	ended := work == nil
	if ended {
		if _, err := w.Wait(-1); err != nil {
			return err
		}
	} else if done, err := w.Test(); done && err == nil && s.WaitSoon &&
		!slices.ContainsFunc(operations, hasSource) {
		ended = true // *work is GOCCL_WORK_DONE
		C.api_keep_contributors(C.int(w.Contributors()))
	} else {
		*work = C.goccl_work(save(&workHandle{work: w}))
	}
	if s.sequence != nil {
		*s.sequence = C.uint64_t(sequence)
	}
	if s.contributors != nil {
		*s.contributors = 0
		if ended {
			*s.contributors = C.int(w.Contributors())
		}
	}
	return nil
}
