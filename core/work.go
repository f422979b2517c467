package core

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/goccl/goccl/core/call"
	"github.com/goccl/goccl/core/exec"
	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/plan"
)

// Work is one or several operations that were started together. Its methods may be called from
// any goroutine and thread.
type Work struct {
	comm     *Comm
	parts    []part // collectives, in order
	timeout  time.Duration
	deadline time.Duration // on exec's clock
	waitSoon bool
	queued   bool         // it is in the queue; under Comm.mu
	small    bool         // one collective, which holds nobody up but by waiting
	ctx      *lateContext // made for the first that sends for the work

	first   [1]part      // the memory of parts, mostly
	pending atomic.Int32 // operations not yet ended
	source  atomic.Int32 // rank that the last receive came from

	finished atomic.Uint32 // 1, set under mu; read without it by Test, and in C
	mail     bool          // it has sends or receives whose letters a waiter looks for
	links    bool          // it has such that come over links, which a waiter reads
	peer     int           // of its only send or receive; -1: there are several, or it comes from any rank
	bytes    uint64        // of the longest
	traced   string        // its sends and receives, where they are logged

	mu     sync.Mutex
	err    *fault.Error
	onDone []func(error)
	done   chan struct{} // made by who waits for it, closed at the end
}

// part is a collective of a work.
type part struct {
	operation *call.Operation
	message   plan.Message
	begun     *exec.Compiled // the runner's run has been left half done with it
}

// setTimeout is called with the communicator's lock held.
func (w *Work) setTimeout(d time.Duration) {
	if d <= 0 {
		d = w.comm.timeout
	}
	w.timeout, w.deadline = d, exec.Now()+d
}

// started is when the work was, on exec's clock.
func (w *Work) started() time.Duration { return w.deadline - w.timeout }

// Test tells whether the work has ended, and how.
func (w *Work) Test() (done bool, err error) {
	if !w.ended() && w.mail {
		w.comm.p2p.collect()
	}
	if !w.ended() && w.links {
		w.comm.readLinks()
	}
	if w.ended() {
		return true, w.result()
	}
	return false, nil
}

func (w *Work) ended() bool { return w.finished.Load() != 0 }

// closed is closed when the work ends.
func (w *Work) closed() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.done == nil {
		w.done = make(chan struct{})
		if w.ended() {
			close(w.done)
		}
	}
	return w.done
}

// result is meaningful once the work has finished.
func (w *Work) result() error {
	if w.err == nil {
		return nil
	}
	return w.err
}

// Wait waits for the end of the work, for at most the timeout (negative: until it ends, which it
// does by its own timeout at the latest), and tells how it ended. With a timeout it also returns
// when a signal comes to the thread. Where no other thread runs the communicator's works, the caller
// does.
func (w *Work) Wait(timeout time.Duration) (done bool, err error) {
	if w.ended() {
		return true, w.result()
	}
	until := time.Duration(1<<62 - 1)
	if timeout >= 0 {
		until = exec.Now() + timeout
	}
	for {
		w.comm.help(w, until)
		switch {
		case w.ended():
			return true, w.result()
		case timeout >= 0:
			return false, nil
		}
	}
}

// OnDone calls f once the work has ended: at once if it has, or does so in about the time in which another thread
// would have taken over, else on a goroutine of its own, so that f may start works and wait for them.
func (w *Work) OnDone(f func(error)) {
	if w.small && !w.ended() {
		w.comm.spin(w)
	}
	w.mu.Lock()
	if !w.ended() {
		w.onDone = append(w.onDone, f)
		w.mu.Unlock()
		if len(w.parts) > 0 {
			w.comm.leave(w)
		}
		if w.mail {
			w.comm.spawn(func() {
				for !w.ended() {
					w.comm.help(w, 1<<62)
				}
			})
		}
		return
	}
	w.mu.Unlock()
	f(w.result())
}

// Source is the rank that the work's last receive came from, -1 before.
func (w *Work) Source() int { return int(w.source.Load()) }

// end ends one operation of the work.
func (w *Work) end(err *fault.Error) {
	if err != nil {
		w.mu.Lock()
		if w.err == nil && !w.ended() {
			w.err = err
		}
		w.mu.Unlock()
	}
	if w.pending.Add(-1) != 0 {
		return
	}
	w.mu.Lock()
	w.finished.Store(1)
	callbacks := w.onDone
	w.onDone = nil
	if w.done != nil {
		close(w.done)
	}
	if w.ctx != nil {
		w.ctx.end()
	}
	w.mu.Unlock()
	if w.traced != "" {
		traceEnd(w.comm.trace.pointToPoint, w.traced, w.result())
	}
	if w.mail {
		w.comm.window.Mail().Ring()
	}
	if w.links {
		w.comm.kick()
	}
	if len(callbacks) > 0 {
		go func() {
			for _, f := range callbacks {
				f(w.result())
			}
		}()
	}
}

// context ends at the work's deadline and with the communicator.
func (w *Work) context() context.Context {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ctx == nil {
		w.ctx = &lateContext{parent: w.comm.ctx, deadline: w.deadline}
		if w.ended() {
			w.ctx.end()
		}
	}
	return w.ctx
}
