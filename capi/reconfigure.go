package main

// #include "api.h"
import "C"

import (
	"context"
	"unsafe"

	"github.com/goccl/goccl/core/bootstrap"
)

//export apiCommHandle
func apiCommHandle(
	handle C.goccl_comm, to *C.char, size C.size_t, needed *C.size_t,
) C.goccl_result {
	return onComm("comm_handle", handle, func(c *commHandle) error {
		if size > 0 {
			if err := needs(to, "comm_handle: handle"); err != nil {
				return err
			}
		}
		own, err := c.comm.Handle()
		if err != nil {
			return err
		}
		copyOut(to, size, []byte(own))
		if needed != nil {
			*needed = C.size_t(len(own) + 1)
		}
		return nil
	})
}

//export apiCommReconfigure
func apiCommReconfigure(handle C.goccl_comm, uuid *C.char, handles **C.char, n, ordered C.int,
	timeout C.int64_t, work *C.goccl_work) C.goccl_result {
	return onLong("comm_reconfigure", handle, work, func(c *commHandle) (longCall, error) {
		members, err := handlesOf(handles, n, "comm_reconfigure")
		if err != nil {
			return nil, err
		}
		name := text(uuid)
		return within(timeout, "comm_reconfigure", func(ctx context.Context) error {
			return c.comm.Reconfigure(ctx, name, members, ordered != 0)
		})
	})
}

// handlesOf copies the handles of members that a function is given.
func handlesOf(handles **C.char, n C.int, function string) ([]string, error) {
	switch {
	case n < 0 || n > bootstrap.MaxSize:
		return nil, invalid(function+": n", n, "allowed are 1 to %d", bootstrap.MaxSize)
	case n > 0 && handles == nil:
		return nil, needs(handles, function+": handles")
	}
	members := make([]string, n)
	for i, member := range unsafe.Slice(handles, n) {
		members[i] = text(member)
	}
	return members, nil
}
