package main

// #include "api.h"
import "C"

import (
	"context"
	"unsafe"

	"github.com/goccl/goccl/core"
)

//export apiCommRevoke
func apiCommRevoke(handle C.goccl_comm, reason *C.char) C.goccl_result {
	return export("comm_revoke", func() error {
		c, err := comm(handle)
		if err == nil {
			c.comm.Revoke(text(reason))
		}
		return err
	})
}

//export apiCommRecover
func apiCommRecover(handle C.goccl_comm, timeout C.int64_t) C.goccl_result {
	return export("comm_recover", func() error {
		c, err := comm(handle)
		if err != nil {
			return err
		}
		ctx, cancel, err := within(timeout, "comm_recover")
		if err != nil {
			return err
		}
		defer cancel()
		return c.comm.Recover(ctx)
	})
}

//export apiCommGrow
func apiCommGrow(handle C.goccl_comm, n C.int, timeout C.int64_t) C.goccl_result {
	return export("comm_grow", func() error {
		c, err := comm(handle)
		if err != nil {
			return err
		}
		ctx, cancel, err := within(timeout, "comm_grow")
		if err != nil {
			return err
		}
		defer cancel()
		return c.comm.Grow(ctx, int(n))
	})
}

//export apiCommShrink
func apiCommShrink(handle C.goccl_comm, exclude *C.int, n, flags C.int,
	shrunk *C.goccl_comm) C.goccl_result {
	return export("comm_shrink", func() error {
		c, err := comm(handle)
		if err != nil {
			return err
		}
		if err := needs(shrunk, "comm_shrink: shrunk"); err != nil {
			return err
		}
		*shrunk = 0
		switch {
		case n < 0 || int(n) > c.comm.Size():
			return invalid("comm_shrink: n", n, "allowed are 0 to %d", c.comm.Size())
		case n > 0 && exclude == nil:
			return needs(exclude, "comm_shrink: exclude")
		case flags != C.GOCCL_SHRINK_DEFAULT && flags != C.GOCCL_SHRINK_ABORT:
			return invalid("comm_shrink: flags", flags,
				"allowed are GOCCL_SHRINK_DEFAULT and GOCCL_SHRINK_ABORT")
		}
		ranks := make([]int, n)
		for i, rank := range unsafe.Slice(exclude, n) {
			ranks[i] = int(rank)
		}
		made, err := c.comm.Shrink(context.Background(),
			core.ShrinkOptions{Exclude: ranks, Abort: flags == C.GOCCL_SHRINK_ABORT})
		if err != nil {
			return err
		}
		*shrunk = give(made)
		return nil
	})
}

//export apiCommAgree
func apiCommAgree(handle C.goccl_comm, flags *C.uint64_t) C.goccl_result {
	return export("comm_agree", func() error {
		c, err := comm(handle)
		if err != nil {
			return err
		}
		if err := needs(flags, "comm_agree: flags"); err != nil {
			return err
		}
		agreed, err := c.comm.Agree(context.Background(), uint64(*flags))
		if err == nil {
			*flags = C.uint64_t(agreed)
		}
		return err
	})
}

//export apiCommMembers
func apiCommMembers(handle C.goccl_comm, members *C.goccl_member, size C.size_t,
	count *C.size_t) C.goccl_result {
	return export("comm_members", func() error {
		c, err := comm(handle)
		if err != nil {
			return err
		}
		if err := needs(count, "comm_members: count"); err != nil {
			return err
		}
		if size > 0 {
			if err := needs(members, "comm_members: members"); err != nil {
				return err
			}
		}
		all := c.comm.Members()
		*count = C.size_t(len(all))
		to := unsafe.Slice(members, min(uint64(size), uint64(len(all))))
		for i := range to {
			to[i] = C.goccl_member{process: C.uint64_t(all[i].Process), pid: C.int64_t(all[i].PID)}
			host := to[i].host[:len(to[i].host)-1]
			copy(unsafe.Slice((*byte)(unsafe.Pointer(&host[0])), len(host)), all[i].Host)
		}
		return nil
	})
}

//export apiCommEpoch
func apiCommEpoch(handle C.goccl_comm, epoch *C.uint32_t) C.goccl_result {
	return export("comm_epoch", func() error {
		c, err := comm(handle)
		if err == nil {
			err = needs(epoch, "comm_epoch: epoch")
		}
		if err == nil {
			*epoch = C.uint32_t(c.comm.Epoch())
		}
		return err
	})
}

// within is the time that a function may take; a context without a deadline has the communicator's.
func within(timeout C.int64_t, function string) (context.Context, context.CancelFunc, error) {
	ctx := context.Background()
	switch {
	case timeout == 0 || timeout < C.GOCCL_DEFAULT_TIMEOUT:
		return nil, nil, invalid(function+": timeout_ms", timeout,
			"it must be positive, or GOCCL_DEFAULT_TIMEOUT")
	case timeout < 0:
		return ctx, func() {}, nil
	}
	ctx, cancel := context.WithTimeout(ctx, milliseconds(timeout))
	return ctx, cancel, nil
}
