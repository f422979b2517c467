package main

// #include "api.h"
import "C"

import (
	"context"
	"sync"
	"time"

	"github.com/goccl/goccl/core"
	"github.com/goccl/goccl/core/fault"
)

// task is a call that takes long. Its caller waits for it, or it runs in the background and is a
// work: see goccl.h.
type task struct {
	name   string
	ctx    context.Context
	cancel context.CancelCauseFunc
	giveUp func() // has it end soon once nobody wants its result; nil: other ranks need its end
	before *task  // of the communicator, which comes first; under commHandle.mu
	ended  chan struct{}

	mu      sync.Mutex
	freed   bool         // the caller's memory is not to be touched
	deliver func() error // gets the result there
	discard func()       // ends a result that nobody wants
	onDone  []func(error)
	err     error // once ended is closed
}

// taskError is the error of a task, which another function tells of.
type taskError struct {
	error
	name string // of the function that has failed
}

func (e *taskError) Unwrap() error { return e.error }

// longCall is what a task does.
type longCall func(*task) error

// onLong is export for a function of a communicator that takes long: what it returns is to be done
// once its arguments are found good.
func onLong(name string, handle C.goccl_comm, work *C.goccl_work,
	f func(*commHandle) (longCall, error)) C.goccl_result {
	return export(name, func() error {
		if work != nil {
			*work = 0
		}
		c, err := comm(handle)
		if err != nil {
			return err
		}
		do, err := f(c)
		if err != nil {
			return err
		}
		return begin(name, c, work, nil, do)
	})
}

// begin makes a call that takes long: now where handle is nil, else in the background. Calls on one
// communicator, which may be nil, come after those that run in its background already. The function
// sets what is to be done with its result.
func begin(
	name string, c *commHandle, handle *C.goccl_work, giveUp func(), f longCall,
) error {
	t := &task{name: name, giveUp: giveUp, ended: make(chan struct{})}
	t.ctx, t.cancel = context.WithCancelCause(context.Background())
	if c == nil { // whose end would end it
		life, end := process.Until(t.ctx)
		context.AfterFunc(t.ctx, end)
		t.ctx = life
	}
	if c != nil {
		c.mu.Lock()
		t.before = c.background
		if handle != nil {
			c.background = t
		}
		c.mu.Unlock()
	}
	if handle == nil {
		t.run(c, f)
		return t.err
	}
	*handle = C.goccl_work(save(&workHandle{work: t}))
	go t.run(c, f)
	return nil
}

func (t *task) run(c *commHandle, f longCall) {
	if t.before != nil {
		<-t.before.ended
		c.mu.Lock()
		t.before = nil
		c.mu.Unlock()
	}
	err := safely(func() error { return f(t) })
	t.mu.Lock()
	switch {
	case err != nil:
	case !t.freed && t.deliver != nil:
		err = safely(t.deliver)
	case t.freed && t.discard != nil:
		defer t.discard()
	}
	t.err = err
	callbacks := t.onDone
	t.onDone = nil
	close(t.ended)
	t.mu.Unlock()
	t.cancel(nil)
	if len(callbacks) > 0 {
		callbackTurns <- struct{}{}
		defer func() { <-callbackTurns }()
	}
	for _, f := range callbacks {
		f(t.result())
	}
}

// callbackTurns are for tasks whose callbacks run: each takes a thread, and many tasks may end at
// once. They are so many that callbacks may wait for each other.
var callbackTurns = make(chan struct{}, 256)

// makes says that the task has made a communicator.
func (t *task) makes(to *C.goccl_comm, made *core.Comm) {
	t.deliver = func() error {
		*to = give(made)
		return nil
	}
	t.discard = made.Destroy
}

// free tells that nobody wants the task's result.
func (t *task) free() {
	t.mu.Lock()
	over, _ := t.Test()
	t.freed = true
	t.mu.Unlock()
	if over || t.giveUp == nil {
		return
	}
	t.cancel(fault.Errorf(fault.ErrAborted, "%s: its work was freed", t.name))
	t.giveUp()
}

// abortTasks has what is under way in a communicator's background end, and returns the last of it.
func (c *commHandle) abortTasks(why string) (last *task) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for t := c.background; t != nil; t = t.before {
		t.cancel(fault.Errorf(fault.ErrAborted, "%s: %s", t.name, why))
	}
	return c.background
}

func (t *task) result() error {
	if t.err == nil {
		return nil
	}
	return &taskError{t.err, t.name}
}

// Test is as that of core.Work, and so are the others.
func (t *task) Test() (done bool, err error) {
	select {
	case <-t.ended:
		return true, t.result()
	default:
		return false, nil
	}
}

func (t *task) Wait(timeout time.Duration) (done bool, err error) {
	var late <-chan time.Time
	if timeout >= 0 {
		timer := time.NewTimer(timeout)
		defer timer.Stop()
		late = timer.C
	}
	select {
	case <-t.ended:
	case <-late:
	}
	return t.Test()
}

func (t *task) OnDone(f func(error)) {
	t.mu.Lock()
	over, _ := t.Test()
	if !over {
		t.onDone = append(t.onDone, f)
	}
	t.mu.Unlock()
	if over {
		f(t.result())
	}
}

func (t *task) Source() int { return core.AnySource }

func (t *task) Contributors() int { return 0 }
