package main

// #include "api.h"
import "C"

import (
	"cmp"
	"context"
	"unsafe"
)

//export apiCheckpoint
func apiCheckpoint(handle C.goccl_comm, global unsafe.Pointer, globalSize C.size_t,
	local unsafe.Pointer, localSize C.size_t, replicas C.int) C.goccl_result {
	return export("checkpoint", func() error {
		c, err := comm(handle)
		if err != nil {
			return err
		}
		ofGlobal, err := model(global, globalSize, "global_model")
		ofLocal, also := model(local, localSize, "local_model")
		if err := cmp.Or(err, also); err != nil {
			c.comm.Refuse(err.Error())
			return err
		}
		return c.comm.CheckPoint(context.Background(), ofGlobal, ofLocal, int(replicas))
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
	globalSize *C.size_t, local *unsafe.Pointer, localSize *C.size_t) C.goccl_result {
	return export("load_checkpoint", func() error {
		c, err := comm(handle)
		if err != nil {
			return err
		}
		if err := cmp.Or(needs(version, "load_checkpoint: version"),
			needs(global, "load_checkpoint: global_model"),
			needs(globalSize, "load_checkpoint: global_size"),
			needs(local, "load_checkpoint: local_model"),
			needs(localSize, "load_checkpoint: local_size")); err != nil {
			c.comm.Refuse(err.Error())
			return err
		}
		loaded, err := c.comm.LoadCheckPoint(context.Background())
		if err != nil {
			return err
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.loaded.Unpin()
		*version = C.uint64_t(loaded.Version)
		*global, *globalSize = c.lend(loaded.Global)
		*local, *localSize = c.lend(loaded.Local)
		c.orphans = loaded.Orphans
		return nil
	})
}

//export apiOrphans
func apiOrphans(handle C.goccl_comm, orphans *C.goccl_orphan, size C.size_t,
	count *C.size_t) C.goccl_result {
	return export("orphans", func() error {
		c, err := comm(handle)
		if err != nil {
			return err
		}
		if err := needs(count, "orphans: count"); err != nil {
			return err
		}
		if size > 0 {
			if err := needs(orphans, "orphans: orphans"); err != nil {
				return err
			}
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		*count = C.size_t(len(c.orphans))
		to := unsafe.Slice(orphans, min(uint64(size), uint64(len(c.orphans))))
		for i := range to {
			o := &c.orphans[i]
			to[i] = C.goccl_orphan{rank: C.int(o.Rank), size: C.size_t(o.Size)}
			to[i].local_model, _ = c.lend(o.Model)
		}
		return nil
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
	c.orphans = nil
}

//export apiVersionNumber
func apiVersionNumber(handle C.goccl_comm, version *C.uint64_t) C.goccl_result {
	return export("version_number", func() error {
		c, err := comm(handle)
		if err == nil {
			err = needs(version, "version_number: version")
		}
		if err == nil {
			*version = C.uint64_t(c.comm.VersionNumber())
		}
		return err
	})
}
