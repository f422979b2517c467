package main

// #include "guest.h"
import "C"

import (
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/goccl/goccl/core"
	"github.com/goccl/goccl/core/plan"
	"github.com/goccl/goccl/core/reduce"
)

// commHandle is what a goccl_comm names.
type commHandle struct {
	issued
	comm *core.Comm

	recording atomic.Int32 // batches that are being recorded
	mu        sync.Mutex
	batches   map[C.uint64_t]*batch // by thread
}

// batch is what a thread has called between goccl_group_start() and goccl_group_end().
type batch struct {
	operations []core.Operation
	refused    error // the first call that was bad
}

// workHandle is what a goccl_work names.
type workHandle struct {
	issued
	work     *core.Work
	callback atomic.Bool // one has been given
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
		return errorf(codeInvalidArgument, "group_start: this thread has already started a batch on this communicator, end it first")
	}
	if c.batches == nil {
		c.batches = map[C.uint64_t]*batch{}
	}
	c.batches[thread] = &batch{}
	c.recording.Add(1)
	return nil
}

func (c *commHandle) endBatch(thread C.uint64_t) (*batch, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	b := c.batches[thread]
	if b == nil {
		return nil, errorf(codeInvalidArgument, "group_end: this thread has started no batch on this communicator, call goccl_group_start() first")
	}
	delete(c.batches, thread)
	c.recording.Add(-1)
	return b, nil
}

// Collective names, as in the names of the functions.
var collectives = [...]struct {
	plan plan.Collective
	name string
}{
	C.GUEST_ALLREDUCE:         {plan.AllReduce, "allreduce"},
	C.GUEST_REDUCE:            {plan.Reduce, "reduce"},
	C.GUEST_BROADCAST:         {plan.Broadcast, "broadcast"},
	C.GUEST_ALLGATHER:         {plan.AllGather, "allgather"},
	C.GUEST_REDUCE_SCATTER:    {plan.ReduceScatter, "reduce_scatter"},
	C.GUEST_GATHER:            {plan.Gather, "gather"},
	C.GUEST_SCATTER:           {plan.Scatter, "scatter"},
	C.GUEST_ALLTOALL:          {plan.AllToAll, "alltoall"},
	C.GUEST_BARRIER:           {plan.Barrier, "barrier"},
	C.GUEST_MONITORED_BARRIER: {plan.MonitoredBarrier, "monitored_barrier"},
	C.GUEST_SEND:              {plan.Send, "send"},
	C.GUEST_RECV:              {plan.Recv, "recv"},
}

// functionOf is the name of the function that was called.
func functionOf(a *C.guest_operation) string {
	if a.coalesced != 0 {
		return "allreduce_coalesced"
	}
	return collectives[a.collective].name
}

// maxCoalesced bounds the number of tensors that one call may reduce.
const maxCoalesced = 1 << 20

// operation makes the arguments of a collective core's. Core checks what they mean; here is checked
// what would be lost on the way there.
func operation(a *C.guest_operation, rank, size int) (core.Operation, error) {
	collective := collectives[a.collective].plan
	bad := func(name string, given any, allowed string, args ...any) (core.Operation, error) {
		return core.Operation{Collective: collective}, invalid(functionOf(a)+": "+name, given, allowed, args...)
	}
	o := core.Operation{Collective: collective, Root: int(a.root), Tag: int(a.tag), WaitAll: a.wait_all != 0}
	if a.dtype >= C.GOCCL_DTYPE_COUNT {
		return bad("dtype", int32(a.dtype), "allowed are 0 to %d (goccl_dtype)", C.GOCCL_DTYPE_COUNT-1)
	}
	o.DType = reduce.DType(a.dtype)
	if o.Collective.Reduces() {
		if a.op >= C.GOCCL_REDUCE_OP_COUNT {
			return bad("op", int32(a.op), "allowed are 0 to %d (goccl_reduce_op)", C.GOCCL_REDUCE_OP_COUNT-1)
		}
		o.Op = reduce.Op(a.op)
		if o.Op == reduce.PreMulSum {
			if a.factor == nil {
				return bad("factor", "NULL", "op %s needs one", o.Op)
			}
			o.Factor[0] = float64(*a.factor)
			if o.DType == reduce.Complex32 || o.DType == reduce.Complex64 || o.DType == reduce.Complex128 {
				o.Factor[1] = float64(unsafe.Slice(a.factor, 2)[1])
			}
		}
	}
	isRoot := int(a.root) == rank
	single := &struct { // one piece of memory for what most calls need
		at    [2]unsafe.Pointer
		count [1]uint64
	}{[2]unsafe.Pointer{a.in, a.out}, [1]uint64{uint64(a.count)}}
	in := func() { o.In, o.InCounts = single.at[:1], single.count[:] }
	out := func() { o.Out, o.OutCounts = single.at[1:], single.count[:] }
	// Lists are NULL where this rank does not use them.
	inList := func(n int) { o.In = pointers(unsafe.Pointer(a.in_list), n) }
	outList := func(n int) { o.Out = pointers(unsafe.Pointer(a.out_list), n) }
	same := func(n int) []uint64 {
		c := make([]uint64, n)
		for i := range c {
			c[i] = uint64(a.count)
		}
		return c
	}
	null := func(missing bool, name string, n int) error {
		if !missing {
			return nil
		}
		_, err := bad(name, "NULL", "it must point to %d elements", n)
		return err
	}
	var err error
	check := func(e error) {
		if err == nil {
			err = e
		}
	}
	switch a.collective {
	case C.GUEST_ALLREDUCE:
		if a.coalesced == 0 {
			in()
			out()
			break
		}
		n := int(a.blocks)
		if n < 1 || n > maxCoalesced {
			return bad("n", n, "allowed are 1 to %d", maxCoalesced)
		}
		check(null(a.in_list == nil, "in", n))
		check(null(a.out_list == nil, "out", n))
		check(null(a.in_counts == nil, "counts", n))
		if err == nil {
			inList(n)
			outList(n)
			o.InCounts = counts(a.in_counts, n)
			o.OutCounts = o.InCounts
		}
	case C.GUEST_REDUCE:
		in()
		out()
	case C.GUEST_BROADCAST:
		out()
		o.In, o.InCounts = o.Out, o.OutCounts
	case C.GUEST_ALLGATHER:
		check(null(a.out_list == nil, "out", size))
		check(null(a.out_counts == nil, "counts", size))
		if err == nil {
			outList(size)
			o.OutCounts = counts(a.out_counts, size)
			o.In, o.InCounts = []unsafe.Pointer{a.in}, []uint64{o.OutCounts[rank]}
		}
	case C.GUEST_REDUCE_SCATTER:
		check(null(a.in_list == nil, "in", size))
		check(null(a.in_counts == nil, "counts", size))
		if err == nil {
			inList(size)
			o.InCounts = counts(a.in_counts, size)
			o.Out, o.OutCounts = []unsafe.Pointer{a.out}, []uint64{o.InCounts[rank]}
		}
	case C.GUEST_GATHER:
		in()
		check(null(isRoot && a.out_list == nil, "out", size))
		outList(size)
		o.OutCounts = same(size)
	case C.GUEST_SCATTER:
		out()
		check(null(isRoot && a.in_list == nil, "in", size))
		inList(size)
		o.InCounts = same(size)
	case C.GUEST_ALLTOALL:
		check(null(a.in_list == nil, "in", size))
		check(null(a.in_counts == nil, "in_counts", size))
		check(null(a.out_list == nil, "out", size))
		check(null(a.out_counts == nil, "out_counts", size))
		if err == nil {
			inList(size)
			outList(size)
			o.InCounts, o.OutCounts = counts(a.in_counts, size), counts(a.out_counts, size)
		}
	case C.GUEST_SEND:
		in()
	case C.GUEST_RECV:
		out()
	}
	return o, err
}

// pointers copies a list of C's pointers; of NULL there is none.
func pointers(list unsafe.Pointer, n int) []unsafe.Pointer {
	if list == nil {
		return nil
	}
	return append([]unsafe.Pointer(nil), unsafe.Slice((*unsafe.Pointer)(list), n)...)
}

func counts(list *C.uint64_t, n int) []uint64 {
	return append([]uint64(nil), unsafe.Slice((*uint64)(unsafe.Pointer(list)), n)...)
}

// leastCall is what the first version of goccl_call had to have.
const leastCall = unsafe.Offsetof(C.goccl_call{}.wait_soon)

// callOptions says how a call is to be made, and an all-to-all in it; one that wants no handle waits.
func callOptions(call *C.goccl_call, work *C.goccl_work) (o core.CallOptions, schedule plan.Schedule, err error) {
	o.WaitSoon = work == nil
	if call == nil {
		return o, schedule, nil
	}
	c, err := takeStruct(call, leastCall, "call")
	if err != nil {
		return o, schedule, err
	}
	if schedule, err = plan.ParseSchedule(text(c.alltoall_schedule)); err != nil {
		return o, schedule, errorf(codeInvalidArgument, "call.alltoall_schedule is %v", err)
	}
	o.Timeout = milliseconds(c.timeout_ms)
	o.WaitSoon = o.WaitSoon || c.wait_soon != 0
	return o, schedule, nil
}

// hasSource tells whether the work will be asked where it came from.
func hasSource(o core.Operation) bool { return o.Collective == plan.Recv }

// run starts operations as one work: it gives out a handle or, where none is wanted, waits.
func (c *commHandle) run(call *C.goccl_call, work *C.goccl_work, operations ...core.Operation) error {
	o, schedule, err := callOptions(call, work)
	if err != nil {
		return c.comm.RefuseStart(err, operations...)
	}
	for i := range operations {
		operations[i].Schedule = schedule
	}
	w, err := c.comm.Start(o, operations...)
	if err != nil {
		return err
	}
	return finish(o, w, work, operations...)
}

// finish gives out a handle or, where none is wanted, waits.
func finish(o core.CallOptions, w *core.Work, work *C.goccl_work, operations ...core.Operation) error {
	if work == nil {
		_, err := w.Wait(-1)
		return err
	}
	if done, err := w.Test(); done && err == nil && o.WaitSoon && !slices.ContainsFunc(operations, hasSource) {
		return nil // *work is GOCCL_WORK_DONE
	}
	*work = C.goccl_work(save(&workHandle{work: w}))
	return nil
}
