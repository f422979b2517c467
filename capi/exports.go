// Command capi is libgoccl.so.0: GoCCL behind the C ABI of goccl.h, to be built as a C shared
// library.
//
// The public functions are in api.c. Here is what they call in Go.
package main

// #cgo LDFLAGS: -Wl,--wrap=pthread_create
// #include <stdlib.h>
// #include "api.h"
import "C"

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"sync"
	"unsafe"

	"github.com/goccl/goccl/core"
	"github.com/goccl/goccl/core/bootstrap"
	"github.com/goccl/goccl/core/exec"
	"github.com/goccl/goccl/core/logs"
	"github.com/goccl/goccl/core/plan"
	"github.com/goccl/goccl/core/reduce"
	"github.com/goccl/goccl/core/tune"
)

// main is never called in a shared library.
func main() {}

func init() {
	for d := range C.api_dtype_sizes {
		C.api_dtype_sizes[d] = C.uint8_t(reduce.DType(d).Size())
	}
}

// comm finds the communicator of a handle.
func comm(h C.goccl_comm) (*commHandle, error) { return restoreComm(uint64(h)) }

// give gives a communicator a handle.
func give(c *core.Comm) C.goccl_comm {
	h := save(&commHandle{comm: c})
	C.api_use_fast_path(C.uint64_t(h), (*C.goccl_fast_path)(c.FastPath(h)))
	return C.goccl_comm(h)
}

// work finds the work of a handle.
func work(h C.goccl_work) (*workHandle, error) { return restore[*workHandle](uint64(h), "work") }

// apiAdopt does nothing: a thread that calls it has what Go has for each thread, and a deep
// stack.
//
//export apiAdopt
func apiAdopt() { export("adopt", func() error { return nil }) }

//export apiInfo
func apiInfo(json *C.char, size C.size_t, needed *C.size_t) C.goccl_result {
	return export("info", func() error { return giveJSON("info", process.Info(), json, size, needed) })
}

//export apiGetenv
func apiGetenv(name, value *C.char, size C.size_t, needed *C.size_t) C.goccl_result {
	return export("getenv", func() error {
		if err := needs(name, "getenv: name"); err != nil {
			return err
		}
		return giveText("getenv: value", []byte(process.Getenv(text(name))), value, size, needed)
	})
}

//export apiSetLogger
func apiSetLogger(
	logger C.goccl_logger, context unsafe.Pointer, level C.goccl_log_level,
) C.goccl_result {
	return export("set_logger", func() error {
		if level < C.GOCCL_LOG_DEFAULT || level > C.GOCCL_LOG_TRACE {
			return invalid("set_logger: level", int32(level), "allowed are 0 to %d (goccl_log_level)",
				C.GOCCL_LOG_TRACE)
		}
		return setLogger(logger, context, level)
	})
}

//export apiLog
func apiLog(level C.goccl_log_level, subsystem, words *C.char) C.goccl_result {
	return export("log", func() error {
		if level <= C.GOCCL_LOG_DEFAULT || level > C.GOCCL_LOG_TRACE {
			return invalid("log: level", int32(level), "allowed are 1 to %d (goccl_log_level)",
				C.GOCCL_LOG_TRACE)
		}
		s := logs.Subsystem(text(subsystem))
		if !slices.Contains(logs.Subsystems, s) {
			return invalid("log: subsystem", fmt.Sprintf("%q", s), "allowed are %v", logs.Subsystems)
		}
		if err := needs(words, "log: text"); err != nil {
			return err
		}
		logs.For(logs.New(&journal), s).Log(context.Background(), levels[level], text(words))
		return nil
	})
}

//export apiGetUniqueID
func apiGetUniqueID(id *C.goccl_unique_id) C.goccl_result {
	return export("get_unique_id", func() error {
		if err := needs(id, "get_unique_id: id"); err != nil {
			return err
		}
		made, err := newRoot()
		if err != nil {
			return err
		}
		*(*[bootstrap.IDSize]byte)(unsafe.Pointer(id)) = made
		return nil
	})
}

//export apiCommSplit
func apiCommSplit(
	handle C.goccl_comm, color, key C.int, child *C.goccl_comm, work *C.goccl_work,
) C.goccl_result {
	return onLong("comm_split", handle, work, func(c *commHandle) (longCall, error) {
		if err := put(child, "comm_split: child", 0); err != nil {
			c.comm.Refuse(err.Error())
			return nil, err
		}
		return func(t *task) error {
			made, err := c.comm.Split(t.ctx, int(color), int(key))
			if made != nil {
				t.makes(child, made)
			}
			return err
		}, nil
	})
}

//export apiCommDestroy
func apiCommDestroy(handle C.goccl_comm) C.goccl_result {
	return onComm("comm_destroy", handle, func(c *commHandle) error {
		if !drop(uint64(handle)) {
			return badHandle(uint64(handle), "comm")
		}
		// A split must not be at its second half when the communicator's links go.
		if t := c.abortTasks("the communicator was destroyed"); t != nil {
			<-t.ended
		}
		c.comm.Destroy()
		dropMemories(c.comm)
		c.takeBack()
		return nil
	})
}

//export apiCommAbort
func apiCommAbort(handle C.goccl_comm, reason *C.char) C.goccl_result {
	return onComm("comm_abort", handle, func(c *commHandle) error {
		c.comm.Abort(text(reason))
		c.abortTasks("the communicator was aborted: " + text(reason))
		return nil
	})
}

//export apiCommRefuse
func apiCommRefuse(handle C.goccl_comm, reason *C.char) C.goccl_result {
	return onComm("comm_refuse", handle, func(c *commHandle) error {
		c.comm.Refuse(text(reason))
		return nil
	})
}

//export apiCommSideStep
func apiCommSideStep(handle C.goccl_comm, collective, library *C.char) C.goccl_result {
	return onComm("comm_side_step", handle, func(c *commHandle) error {
		of, ok := plan.ParseCollective(text(collective))
		var err error
		switch {
		case !ok:
			err = invalid("comm_side_step: collective", fmt.Sprintf("%q", text(collective)),
				"allowed are %s", plan.CollectiveNames())
		case text(library) == "":
			err = invalid("comm_side_step: library", "empty", "it must be a name")
		}
		if err != nil {
			c.comm.Refuse(err.Error())
			return err
		}
		return c.comm.SideStep(of, text(library))
	})
}

//export apiCommAsyncError
func apiCommAsyncError(handle C.goccl_comm) C.goccl_result {
	return onComm("comm_async_error", handle, func(c *commHandle) error {
		return c.comm.Err()
	})
}

//export apiCommFailedRanks
func apiCommFailedRanks(
	handle C.goccl_comm, ranks *C.int, size C.size_t, count *C.size_t,
) C.goccl_result {
	return onComm("comm_failed_ranks", handle, func(c *commHandle) error {
		return putList("comm_failed_ranks", "ranks", c.comm.FailedRanks(), ranks, size, count,
			func(rank *int) C.int { return C.int(*rank) })
	})
}

//export apiShutdown
func apiShutdown() C.goccl_result {
	return export("shutdown", func() error {
		var last []*task
		for _, c := range allComms() {
			if !drop(c.number.Load()) {
				continue
			}
			if t := c.abortTasks("goccl_shutdown() was called"); t != nil {
				last = append(last, t)
			}
			defer c.takeBack()
		}
		for _, t := range last {
			<-t.ended
		}
		process.Close()
		return nil
	})
}

//export apiMemAlloc
func apiMemAlloc(memory *unsafe.Pointer, bytes C.size_t) C.goccl_result {
	return export("mem_alloc", func() error {
		if err := needs(memory, "mem_alloc: memory"); err != nil {
			return err
		}
		*memory = nil
		p, err := process.Alloc(int64(min(bytes, math.MaxInt64)))
		if err != nil {
			return err
		}
		*memory = p
		return nil
	})
}

//export apiMemFree
func apiMemFree(memory unsafe.Pointer) C.goccl_result {
	return export("mem_free", func() error { return process.Free(memory) })
}

//export apiMemStats
func apiMemStats(registered, given, taken *C.uint64_t) C.goccl_result {
	return export("mem_stats", func() error {
		stats := process.MemoryStats()
		set := func(to *C.uint64_t, n int64) {
			if to != nil {
				*to = C.uint64_t(n)
			}
		}
		set(registered, stats.Registered)
		set(given, stats.Given)
		set(taken, stats.Taken)
		return nil
	})
}

//export apiCommRank
func apiCommRank(handle C.goccl_comm, rank *C.int) C.goccl_result {
	return onComm("comm_rank", handle, func(c *commHandle) error {
		return put(rank, "comm_rank: rank", C.int(c.comm.Rank()))
	})
}

//export apiCommSize
func apiCommSize(handle C.goccl_comm, size *C.int) C.goccl_result {
	return onComm("comm_size", handle, func(c *commHandle) error {
		return put(size, "comm_size: size", C.int(c.comm.Size()))
	})
}

//export apiCommTransport
func apiCommTransport(handle C.goccl_comm, peer C.int, name **C.char) C.goccl_result {
	return onComm("comm_transport", handle, func(c *commHandle) error {
		if err := needs(name, "comm_transport: name"); err != nil {
			return err
		}
		if peer < 0 || int(peer) >= c.comm.Size() {
			return invalid("comm_transport: peer", peer, "allowed are 0 to %d", c.comm.Size()-1)
		}
		*name = staticName(c.comm.Transport(int(peer)))
		return nil
	})
}

// names are C's copies of the names of transports and algorithms, which are valid for ever.
var names sync.Map

// staticName is C's copy of a name.
func staticName(name string) *C.char {
	if known, ok := names.Load(name); ok {
		return known.(*C.char)
	}
	copied := C.CString(name)
	known, other := names.LoadOrStore(name, copied)
	if other {
		C.free(unsafe.Pointer(copied))
	}
	return known.(*C.char)
}

//export apiCommDescribe
func apiCommDescribe(
	handle C.goccl_comm, json *C.char, size C.size_t, needed *C.size_t,
) C.goccl_result {
	return onComm("comm_describe", handle, func(c *commHandle) error {
		return giveJSON("comm_describe", c.comm.Describe(), json, size, needed)
	})
}

//export apiCommSequence
func apiCommSequence(handle C.goccl_comm, sequence *C.uint64_t) C.goccl_result {
	return onComm("comm_sequence", handle, func(c *commHandle) error {
		return put(sequence, "comm_sequence: sequence", C.uint64_t(c.comm.Sequence()))
	})
}

//export apiCommAlgorithm
func apiCommAlgorithm(handle C.goccl_comm, sequence C.uint64_t, name **C.char) C.goccl_result {
	return onComm("comm_algorithm", handle, func(c *commHandle) error {
		return put(name, "comm_algorithm: name", staticName(c.comm.Algorithm(uint64(sequence))))
	})
}

//export apiCommTimeout
func apiCommTimeout(handle C.goccl_comm, timeout *C.int64_t) C.goccl_result {
	return onComm("comm_timeout", handle, func(c *commHandle) error {
		return put(timeout, "comm_timeout: timeout_ms", C.int64_t(c.comm.Timeout().Milliseconds()))
	})
}

//export apiCommSetTimeout
func apiCommSetTimeout(handle C.goccl_comm, timeout C.int64_t) C.goccl_result {
	return onComm("comm_set_timeout", handle, func(c *commHandle) error {
		most, err := limit("comm_set_timeout: timeout_ms", timeout)
		if err != nil {
			return err
		}
		return c.comm.SetTimeout(cmp.Or(most, core.DefaultTimeout))
	})
}

//export apiStart
func apiStart(a *C.api_operation, call *C.goccl_call, handle *C.goccl_work) C.goccl_result {
	return export(functionOf(a), func() error {
		if handle != nil {
			*handle = 0
		}
		c, err := comm(a.comm)
		if err != nil {
			return err
		}
		o, err := operation(a, c.comm.Rank(), c.comm.Size())
		if b := c.batchOf(a.thread); b != nil {
			if err == nil {
				err = record(&o, call)
			}
			if err == nil && handle != nil {
				err = invalid(functionOf(a)+": work", "not NULL",
					"in a batch it must be NULL: goccl_group_end() gives the work")
			}
			if err != nil && b.refused == nil {
				b.refused = err
			}
			b.operations = append(b.operations, o)
			return err
		}
		if err != nil {
			return c.comm.RefuseStart(err, o)
		}
		return c.run(call, handle, o)
	})
}

// apiCarryOn is apiStart for what C has begun by the fast path.
//
//export apiCarryOn
func apiCarryOn(a *C.api_operation, call *C.goccl_call, handle *C.goccl_work) C.goccl_result {
	return export(functionOf(a), func() error {
		if handle != nil {
			*handle = 0
		}
		c, err := comm(a.comm)
		var o core.Operation
		var s start
		if err == nil {
			o, err = operation(a, c.comm.Rank(), c.comm.Size())
		}
		if err == nil {
			s, err = startOf(call, handle) // by the fast path go none that name a schedule
		}
		if err != nil {
			exec.LeaveStale(unsafe.Pointer(a.begun))
			return err
		}
		w, err := c.comm.CarryOn(s.CallOptions, o)
		if err != nil {
			return err
		}
		return s.finish(c.comm, w, handle, o)
	})
}

//export apiGroupStart
func apiGroupStart(handle C.goccl_comm, thread C.uint64_t) C.goccl_result {
	return onComm("group_start", handle, func(c *commHandle) error {
		return c.startBatch(thread)
	})
}

//export apiGroupEnd
func apiGroupEnd(
	handle C.goccl_comm, thread C.uint64_t, call *C.goccl_call, work *C.goccl_work,
) C.goccl_result {
	return export("group_end", func() error {
		if work != nil {
			*work = 0
		}
		c, err := comm(handle)
		if err != nil {
			return err
		}
		b, err := c.endBatch(thread, "group_end")
		if err != nil {
			return err
		}
		if b.refused != nil {
			return c.comm.RefuseStart(b.refused, b.operations...)
		}
		if err := checkEnd(call); err != nil {
			return c.comm.RefuseStart(err, b.operations...)
		}
		return c.run(call, work, b.operations...)
	})
}

//export apiGroupDrop
func apiGroupDrop(handle C.goccl_comm, thread C.uint64_t, reason *C.char) C.goccl_result {
	return onComm("group_drop", handle, func(c *commHandle) error {
		b, err := c.endBatch(thread, "group_drop")
		// In another epoch no peer waits for them.
		if err == nil && collectives(b.operations) > 0 && b.epoch == c.comm.Epoch() {
			c.comm.Refuse(text(reason))
		}
		return err
	})
}

//export apiPlanInfo
func apiPlanInfo(
	collective *C.char, ranks, perHost, perDomain, byTurns C.int, transport *C.char,
	bytes C.uint64_t, json *C.char, size C.size_t, needed *C.size_t,
) C.goccl_result {
	return export("plan_info", func() error {
		info, err := process.PlanInfo(tune.Question{Collective: text(collective), Ranks: int(ranks),
			PerHost: int(perHost), PerDomain: int(perDomain), ByTurns: byTurns != 0,
			Bytes: uint64(bytes)}, text(transport))
		if err != nil {
			return err
		}
		return giveJSON("plan_info", info, json, size, needed)
	})
}

//export apiAllToAllPeaks
func apiAllToAllPeaks(
	ranks C.int, transport, schedule *C.char, bytes C.uint64_t, to *C.goccl_peaks,
) C.goccl_result {
	return export("alltoall_peaks", func() error {
		if err := needs(to, "alltoall_peaks: peaks"); err != nil {
			return err
		}
		stride, err := strideOf("alltoall_peaks: peaks.struct_size", to, leastPeaks)
		if err != nil {
			return err
		}
		p, err := core.AllToAllPeaks(int(ranks), text(transport), text(schedule), uint64(bytes))
		if err != nil {
			return err
		}
		giveStruct(unsafe.Pointer(to), stride, C.goccl_peaks{in_flight: C.uint64_t(p.Sent),
			staging: C.uint64_t(p.Staging), incast: C.int(p.Incast)})
		return nil
	})
}
