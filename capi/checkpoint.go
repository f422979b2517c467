package main

// #include "api.h"
import "C"

import (
	"cmp"
	"unsafe"

	"github.com/goccl/goccl/core"
)

//export apiCheckpoint
func apiCheckpoint(handle C.goccl_comm, global unsafe.Pointer, globalSize C.size_t,
	local unsafe.Pointer, localSize C.size_t, replicas C.int, work *C.goccl_work) C.goccl_result {
	return onLong("checkpoint", handle, work, func(c *commHandle) (longCall, error) {
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
		return nil, invalid("checkpoint: "+name, "NULL", "it has %d bytes", size)
	case size > 1<<40:
		return nil, invalid("checkpoint: the size of "+name, size, "that is more than memory holds")
	}
	return unsafe.Slice((*byte)(at), size), nil
}

//export apiLoadCheckpoint
func apiLoadCheckpoint(handle C.goccl_comm, version *C.uint64_t, global *unsafe.Pointer,
	globalSize *C.size_t, local *unsafe.Pointer, localSize *C.size_t,
	work *C.goccl_work) C.goccl_result {
	return onLong("load_checkpoint", handle, work, func(c *commHandle) (longCall, error) {
		if err := cmp.Or(needs(version, "load_checkpoint: version"),
			needs(global, "load_checkpoint: global_model"),
			needs(globalSize, "load_checkpoint: global_size"),
			needs(local, "load_checkpoint: local_model"),
			needs(localSize, "load_checkpoint: local_size")); err != nil {
			c.comm.Refuse(err.Error())
			return nil, err
		}
		return func(t *task) error {
			loaded, err := c.comm.LoadCheckPoint(t.ctx)
			t.deliver = func() error {
				c.mu.Lock()
				defer c.mu.Unlock()
				if c.destroyed {
					return errorf(C.GOCCL_ABORTED, "load_checkpoint: the communicator was destroyed")
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

//export apiOrphans
func apiOrphans(handle C.goccl_comm, orphans *C.goccl_orphan, size C.size_t,
	count *C.size_t) C.goccl_result {
	return onComm("orphans", handle, func(c *commHandle) error {
		c.mu.Lock()
		defer c.mu.Unlock()
		return putList("orphans", "orphans", c.orphans, orphans, size, count,
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

//export apiVersionNumber
func apiVersionNumber(handle C.goccl_comm, version *C.uint64_t) C.goccl_result {
	return onComm("version_number", handle, func(c *commHandle) error {
		return put(version, "version_number: version", C.uint64_t(c.comm.VersionNumber()))
	})
}
