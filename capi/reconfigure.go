package main

// #include "api.h"
import "C"

import (
	"unsafe"

	"github.com/goccl/goccl/core/bootstrap"
)

//export apiCommHandle
func apiCommHandle(
	handle C.goccl_comm, to *C.char, size C.size_t, needed *C.size_t,
) C.goccl_result {
	return export("comm_handle", func() error {
		c, err := comm(handle)
		if err != nil {
			return err
		}
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
	timeout C.int64_t) C.goccl_result {
	return export("comm_reconfigure", func() error {
		c, err := comm(handle)
		if err != nil {
			return err
		}
		members, err := handlesOf(handles, n, "comm_reconfigure")
		if err != nil {
			return err
		}
		ctx, cancel, err := within(timeout, "comm_reconfigure")
		if err != nil {
			return err
		}
		defer cancel()
		return c.comm.Reconfigure(ctx, text(uuid), members, ordered != 0)
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
