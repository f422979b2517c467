package main

// #include "api.h"
import "C"

import (
	"fmt"
	"slices"
	"sync"
	"time"
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
		d, err := patience(timeout, "work_wait")
		if err != nil {
			return err
		}
		return ended(w.work.Wait(d))
	})
}

// patience is how long a thread waits; negative: until the end.
func patience(ms C.int64_t, function string) (time.Duration, error) {
	if ms < C.GOCCL_NO_TIMEOUT {
		return 0, invalid(function+": timeout_ms", ms,
			"allowed are 0 and more, and GOCCL_NO_TIMEOUT (%d)", C.GOCCL_NO_TIMEOUT)
	}
	return milliseconds(ms), nil
}

// list is the works of a call that waits for several.
type list struct {
	works []*workHandle
	until time.Time // zero: there is no limit
}

// done is what the handle of a work that has ended well in its start names.
var done = &workHandle{work: endedWell{}}

// endedWell is such a work.
type endedWell struct{}

func (endedWell) Test() (bool, error)              { return true, nil }
func (endedWell) Wait(time.Duration) (bool, error) { return true, nil }
func (endedWell) OnDone(f func(error))             { f(nil) }
func (endedWell) Source() int                      { return core.AnySource }
func (endedWell) Contributors() int                { return 0 }

// maxList bounds the works that one call waits for.
const maxList = 1 << 20

// listOf finds the works of a list. What the caller learns by *index is its place in it.
func listOf(
	function string, from *C.goccl_work, n, least C.int, timeout C.int64_t, index *C.int,
) (l list, err error) {
	place(index, -1)
	if n < least || n > maxList {
		return l, invalid(function+": n", n, "allowed are %d to %d", least, maxList)
	}
	if n > 0 && from == nil {
		return l, invalid(function+": works", "NULL", "it must point to %d works", n)
	}
	d, err := patience(timeout, function)
	if err != nil {
		return l, err
	}
	if d >= 0 {
		l.until = time.Now().Add(d)
	}
	for i, handle := range slices.Clone(unsafe.Slice(from, n)) {
		w := done
		if handle != C.GOCCL_WORK_DONE {
			if w, err = work(handle); err != nil {
				place(index, i)
				return l, fmt.Errorf("%s: works[%d]: %w", function, i, err)
			}
		}
		l.works = append(l.works, w)
	}
	return l, nil
}

// place tells the caller the place of a work, if it wants to know.
func place(index *C.int, i int) {
	if index != nil {
		*index = C.int(i)
	}
}

// left is how long the caller still waits; negative: until the end.
func (l *list) left() time.Duration {
	if l.until.IsZero() {
		return -1
	}
	return max(0, time.Until(l.until))
}

//export apiWorkWaitAll
func apiWorkWaitAll(from *C.goccl_work, n C.int, timeout C.int64_t, index *C.int) C.goccl_result {
	return export("work_wait_all", func() error {
		l, err := listOf("work_wait_all", from, n, 0, timeout, index)
		if err != nil {
			return err
		}
		failed, goesOn := -1, -1
		var first error
		for i, w := range l.works {
			over, err := w.work.Wait(l.left())
			switch {
			case !over && goesOn < 0:
				goesOn = i
			case err != nil && failed < 0:
				failed, first = i, err
			}
		}
		switch {
		case failed >= 0:
			place(index, failed)
			return first
		case goesOn >= 0:
			place(index, goesOn)
			return errInProgress
		}
		return nil
	})
}

//export apiWorkWaitAny
func apiWorkWaitAny(from *C.goccl_work, n C.int, timeout C.int64_t, index *C.int) C.goccl_result {
	return export("work_wait_any", func() error {
		if err := needs(index, "work_wait_any: index"); err != nil {
			return err
		}
		l, err := listOf("work_wait_any", from, n, 1, timeout, index)
		if err != nil {
			return err
		}
		news := make(chan struct{}, 1)
		var late <-chan time.Time
		for {
			for i, w := range l.works {
				if over, err := w.work.Test(); over {
					place(index, i)
					return err
				}
			}
			switch left := l.left(); {
			case left == 0:
				return errInProgress
			case late == nil:
				if left > 0 {
					timer := time.NewTimer(left)
					defer timer.Stop()
					late = timer.C
				} else {
					late = make(chan time.Time) // which never comes
				}
				for _, w := range l.works {
					w.tell(news)
					defer w.forget(news)
				}
			default:
				select {
				case <-news:
				case <-late:
				}
			}
		}
	})
}

// watchers are the threads that wait for one of several works, by the channels that wake them.
type watchers struct {
	mu    sync.Mutex
	asked bool // to be told of the end of the work
	of    map[chan struct{}]bool
}

// tell has a channel get a value when the work ends. The work is asked once, however often it is
// waited for.
func (w *workHandle) tell(news chan struct{}) {
	s := &w.watchers
	s.mu.Lock()
	if s.of == nil {
		s.of = map[chan struct{}]bool{}
	}
	s.of[news] = true
	first := !s.asked
	s.asked = true
	s.mu.Unlock()
	if first {
		w.work.OnDone(func(error) {
			s.mu.Lock()
			defer s.mu.Unlock()
			for each := range s.of {
				wake(each)
			}
		})
		return
	}
	if over, _ := w.work.Test(); over {
		wake(news)
	}
}

// wake gives a value to a channel that has none.
func wake(news chan struct{}) {
	select {
	case news <- struct{}{}:
	default:
	}
}

// forget ends that.
func (w *workHandle) forget(news chan struct{}) {
	w.watchers.mu.Lock()
	defer w.watchers.mu.Unlock()
	delete(w.watchers.of, news)
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
