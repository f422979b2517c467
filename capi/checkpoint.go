package main

// #include "api.h"
import "C"

import (
	"cmp"
	"unsafe"

	"github.com/goccl/goccl/core"
)

//export apiCommCheckpoint
func apiCommCheckpoint(handle C.goccl_comm, global unsafe.Pointer, globalSize C.size_t,
	local unsafe.Pointer, localSize C.size_t, replicas C.int, work *C.goccl_work) C.goccl_result {
	return onLong("comm_checkpoint", handle, work, func(c *commHandle) (longCall, error) {
		ofGlobal, err := model(global, globalSize, "global_model")
		ofLocal, also := model(local, localSize, "local_model")
		if err := cmp.Or(err, also); err != nil {
			c.comm.Refuse(err.Error())
			return nil, err
		}
		return func(t *task) error {
			return c.comm.CheckPoint(t.ctx, ofGlobal, ofLocal, int(replicas))
		}, nil
	})
}

// model is the memory of a model that a caller gives.
func model(at unsafe.Pointer, size C.size_t, name string) ([]byte, error) {
	switch {
	case size > 0 && at == nil:
		return nil, invalid("comm_checkpoint: "+name, "NULL", "it has %d bytes", size)
	case size > 1<<40:
		return nil, invalid("comm_checkpoint: the size of "+name, size, "that is more than memory holds")
	}
	return unsafe.Slice((*byte)(at), size), nil
}

//export apiCommLoadCheckpoint
func apiCommLoadCheckpoint(handle C.goccl_comm, version *C.uint64_t, global *unsafe.Pointer,
	globalSize *C.size_t, local *unsafe.Pointer, localSize *C.size_t,
	work *C.goccl_work) C.goccl_result {
	return onLong("comm_load_checkpoint", handle, work, func(c *commHandle) (longCall, error) {
		if err := cmp.Or(needs(version, "comm_load_checkpoint: version"),
			needs(global, "comm_load_checkpoint: global_model"),
			needs(globalSize, "comm_load_checkpoint: global_size"),
			needs(local, "comm_load_checkpoint: local_model"),
			needs(localSize, "comm_load_checkpoint: local_size")); err != nil {
			c.comm.Refuse(err.Error())
			return nil, err
		}
		return func(t *task) error {
			loaded, err := c.comm.LoadCheckPoint(t.ctx)
			t.deliver = func() error {
				c.mu.Lock()
				defer c.mu.Unlock()
				if c.destroyed {
					return errorf(C.GOCCL_ABORTED, "comm_load_checkpoint: the communicator was destroyed")
				}
				c.loaded.Unpin()
				*version = C.uint64_t(loaded.Version)
				*global, *globalSize = c.lend(loaded.Global)
				*local, *localSize = c.lend(loaded.Local)
				c.orphans = loaded.Orphans
				return nil
			}
			return err
		}, nil
	})
}

//export apiCommOrphans
func apiCommOrphans(handle C.goccl_comm, orphans *C.goccl_orphan, size C.size_t,
	count *C.size_t) C.goccl_result {
	return onComm("comm_orphans", handle, func(c *commHandle) error {
		c.mu.Lock()
		defer c.mu.Unlock()
		return putStructs("comm_orphans", "orphans", c.orphans, orphans,
			leastOrphan, size, count,
			func(o *core.Orphan) C.goccl_orphan {
				to := C.goccl_orphan{rank: C.int(o.Rank), size: C.size_t(o.Size)}
				to.local_model, _ = c.lend(o.Model)
				return to
			})
	})
}

// lend pins memory that a caller in C reads. It is called with the lock held.
func (c *commHandle) lend(b []byte) (unsafe.Pointer, C.size_t) {
	if len(b) == 0 {
		return nil, 0
	}
	at := unsafe.SliceData(b)
	c.loaded.Pin(at)
	return unsafe.Pointer(at), C.size_t(len(b))
}

// takeBack takes back what the caller was lent.
func (c *commHandle) takeBack() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.loaded.Unpin()
	c.orphans, c.destroyed = nil, true
}

//export apiCommCheckpointVersion
func apiCommCheckpointVersion(handle C.goccl_comm, version *C.uint64_t) C.goccl_result {
	return onComm("comm_checkpoint_version", handle, func(c *commHandle) error {
		return put(version, "comm_checkpoint_version: version", C.uint64_t(c.comm.VersionNumber()))
	})
}
