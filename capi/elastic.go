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
	return onComm("comm_revoke", handle, func(c *commHandle) error {
		c.comm.Revoke(text(reason))
		return nil
	})
}

//export apiCommRenew
func apiCommRenew(handle C.goccl_comm, work *C.goccl_work) C.goccl_result {
	return onLong("comm_renew", handle, work, func(c *commHandle) (longCall, error) {
		return func(t *task) error { return c.comm.Renew(t.ctx) }, nil
	})
}

//export apiCommRecover
func apiCommRecover(handle C.goccl_comm, timeout C.int64_t, work *C.goccl_work) C.goccl_result {
	return onLong("comm_recover", handle, work, func(c *commHandle) (longCall, error) {
		return within(timeout, "comm_recover", c.comm.Recover)
	})
}

//export apiCommGrow
func apiCommGrow(
	handle C.goccl_comm, n C.int, timeout C.int64_t, work *C.goccl_work,
) C.goccl_result {
	return onLong("comm_grow", handle, work, func(c *commHandle) (longCall, error) {
		return within(timeout, "comm_grow",
			func(ctx context.Context) error { return c.comm.Grow(ctx, int(n)) })
	})
}

// within is a call that may take so long; one without a deadline has the communicator's timeout.
func within(timeout C.int64_t, name string, f func(context.Context) error) (longCall, error) {
	most, err := limit(name+": timeout_ms", timeout)
	if err != nil {
		return nil, err
	}
	return func(t *task) error {
		if most == 0 {
			return f(t.ctx)
		}
		ctx, cancel := context.WithTimeout(t.ctx, most)
		defer cancel()
		return f(ctx)
	}, nil
}

//export apiCommShrink
func apiCommShrink(handle C.goccl_comm, exclude *C.int, n, flags C.int, shrunk *C.goccl_comm,
	work *C.goccl_work) C.goccl_result {
	return onLong("comm_shrink", handle, work, func(c *commHandle) (longCall, error) {
		if err := put(shrunk, "comm_shrink: shrunk", 0); err != nil {
			return nil, err
		}
		switch {
		case n < 0 || int(n) > c.comm.Size():
			return nil, invalid("comm_shrink: n", n, "allowed are 0 to %d", c.comm.Size())
		case n > 0 && exclude == nil:
			return nil, needs(exclude, "comm_shrink: exclude")
		case flags != C.GOCCL_SHRINK_DEFAULT && flags != C.GOCCL_SHRINK_ABORT:
			return nil, invalid("comm_shrink: flags", flags,
				"allowed are GOCCL_SHRINK_DEFAULT and GOCCL_SHRINK_ABORT")
		}
		o := core.ShrinkOptions{Exclude: ints(exclude, n), Abort: flags == C.GOCCL_SHRINK_ABORT}
		return func(t *task) error {
			made, err := c.comm.Shrink(t.ctx, o)
			if err == nil {
				t.makes(shrunk, made)
			}
			return err
		}, nil
	})
}

// ints copies a list of C's.
func ints(list *C.int, n C.int) []int {
	all := make([]int, n)
	for i, each := range unsafe.Slice(list, n) {
		all[i] = int(each)
	}
	return all
}

//export apiCommAgree
func apiCommAgree(
	handle C.goccl_comm, flags *C.uint64_t, work *C.goccl_work,
) C.goccl_result {
	return onLong("comm_agree", handle, work, func(c *commHandle) (longCall, error) {
		if err := needs(flags, "comm_agree: flags"); err != nil {
			return nil, err
		}
		mine := uint64(*flags)
		return func(t *task) error {
			agreed, err := c.comm.Agree(t.ctx, mine)
			t.deliver = func() error { return put(flags, "comm_agree: flags", C.uint64_t(agreed)) }
			return err
		}, nil
	})
}

//export apiCommMembers
func apiCommMembers(handle C.goccl_comm, members *C.goccl_member, size C.size_t,
	count *C.size_t) C.goccl_result {
	return onComm("comm_members", handle, func(c *commHandle) error {
		return putStructs("comm_members", "members", c.comm.Members(), members,
			leastMember, size, count,
			func(m *core.Member) C.goccl_member {
				to := C.goccl_member{process: C.uint64_t(m.Process), pid: C.int64_t(m.PID)}
				fillText(to.host[:], m.Host)
				return to
			})
	})
}

//export apiCommEpoch
func apiCommEpoch(handle C.goccl_comm, epoch *C.uint32_t) C.goccl_result {
	return onComm("comm_epoch", handle, func(c *commHandle) error {
		return put(epoch, "comm_epoch: epoch", C.uint32_t(c.comm.Epoch()))
	})
}
