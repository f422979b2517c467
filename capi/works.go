package main

// #include "api.h"
import "C"

import (
	"unsafe"

	"github.com/goccl/goccl/core"
)

//export apiWorkTest
func apiWorkTest(handle C.goccl_work) C.goccl_result {
	return onWork("work_test", handle, func(w *workHandle) error {
		return ended(w.work.Test())
	})
}

// ended is what a call returns for a work that may have ended.
func ended(done bool, err error) error {
	if !done {
		return errInProgress
	}
	return err
}

//export apiWorkWait
func apiWorkWait(handle C.goccl_work, timeout C.int64_t) C.goccl_result {
	return onWork("work_wait", handle, func(w *workHandle) error {
		if timeout < C.GOCCL_NO_TIMEOUT {
			return invalid("work_wait: timeout_ms", timeout,
				"allowed are 0 and more, and GOCCL_NO_TIMEOUT (%d)", C.GOCCL_NO_TIMEOUT)
		}
		return ended(w.work.Wait(milliseconds(timeout)))
	})
}

//export apiWorkOnDone
func apiWorkOnDone(
	handle C.goccl_work, callback C.goccl_callback, context unsafe.Pointer,
) C.goccl_result {
	return onWork("work_on_done", handle, func(w *workHandle) error {
		if callback == nil {
			return invalid("work_on_done: callback", "NULL", "it must be a function")
		}
		if !w.callback.CompareAndSwap(false, true) {
			return errorf(codeInvalidArgument,
				"work_on_done: this work has a callback already, one is allowed")
		}
		w.work.OnDone(func(err error) { callBack(callback, context, err) })
		return nil
	})
}

//export apiWorkError
func apiWorkError(handle C.goccl_work, text *C.char, size C.size_t) C.goccl_result {
	return onWork("work_error", handle, func(w *workHandle) error {
		if size > 0 {
			if err := needs(text, "work_error: text"); err != nil {
				return err
			}
		}
		message := ""
		if _, err := w.work.Test(); err != nil {
			message = err.Error()
		}
		copyOut(text, size, []byte(message))
		return nil
	})
}

//export apiWorkSource
func apiWorkSource(handle C.goccl_work, rank *C.int) C.goccl_result {
	return onWork("work_source", handle, func(w *workHandle) error {
		if err := needs(rank, "work_source: rank"); err != nil {
			return err
		}
		source := w.work.Source()
		if done, _ := w.work.Test(); !done || source == core.AnySource {
			return invalid("work_source: work", "not a receive that has ended",
				"only such a one has a source")
		}
		*rank = C.int(source)
		return nil
	})
}

//export apiWorkContributors
func apiWorkContributors(handle C.goccl_work, n *C.int) C.goccl_result {
	return onWork("work_contributors", handle, func(w *workHandle) error {
		if err := needs(n, "work_contributors: n"); err != nil {
			return err
		}
		if done, err := w.work.Test(); !done || err != nil || w.work.Contributors() == 0 {
			return invalid("work_contributors: work", "not one of collectives that has ended well",
				"only such a one has contributors")
		}
		*n = C.int(w.work.Contributors())
		return nil
	})
}

//export apiWorkFree
func apiWorkFree(handle C.goccl_work) C.goccl_result {
	return onWork("work_free", handle, func(w *workHandle) error {
		if !drop(uint64(handle)) {
			return badHandle(uint64(handle), "work")
		}
		if t, ok := w.work.(*task); ok {
			t.free()
		}
		return nil
	})
}
