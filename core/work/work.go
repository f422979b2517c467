// Package work waits for operations that were started together.
//
// A [Work] counts its operations down and keeps the first error. It makes no progress by itself:
// the thread that waits for it drives what the work needs: the [Queue] for its collectives, a
// [Source] for its sends and receives. One thread at a time drives each, the holder of its [Token].
// A thread that finds the token taken sleeps until its work has ended or the token is free. What no
// waiter drives is driven in the background.
//
// Locks: Work.mu and Queue.mu are leaves: nothing is called with them held.
package work

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/goccl/goccl/core/call"
	"github.com/goccl/goccl/core/exec"
	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/plan"
	"github.com/goccl/goccl/core/tune"
)

// Token is a lock that can be waited for together with other channels. To send into it is to take
// it, and to receive from it is to give it back.
type Token chan struct{}

// NewToken makes a token that is free.
func NewToken() Token { return make(Token, 1) }

// Taken reports whether a thread holds the token.
func (t Token) Taken() bool { return len(t) > 0 }

// Driver is where works get on. A thread drives it to bring about the end of a work.
type Driver interface {
	// Token is what the thread must hold; nil if the work needs nothing of the driver now.
	Token(w *Work) Token
	// Drive brings what the work waits for, until it has ended or until a time. The caller holds the
	// token, and Drive gives it back. More tells whether there is anything left to wait for.
	Drive(w *Work, until time.Duration) (more bool)
}

// Source is the driver of sends and receives.
type Source interface {
	Driver
	// Poll takes what has come for the work, without waiting.
	Poll(w *Work)
	// Wake has the thread that drives look at its work, which another thread may have ended.
	Wake()
	// Relieve tells that a thread is back that has waited while another one drove. It can drive next.
	Relieve()
	// Detach tells that no thread will wait for the work.
	Detach(w *Work)
}

// Group is what the works of one communicator share.
type Group struct {
	// Context ends with the communicator, and all contexts of works with it.
	Context context.Context
	// Queue runs the collectives.
	Queue *Queue
	// Yields is how often a waiter gives the CPU away before it sleeps: to sleep and to be woken
	// takes longer than a message.
	Yields int
	// Spawn runs a function in the background, as long as the communicator lives.
	Spawn func(func())
}

// Part is one collective of a work.
type Part struct {
	Operation *call.Operation
	Message   plan.Message
	Begun     *exec.Compiled // the run has been left half done with it by the fast path
	// Plan is what is run, of one segment; nil: what the engine finds best. All ranks give theirs of
	// the same.
	Plan *exec.Compiled
	// Program makes the plans; nil: package plan does.
	Program *tune.Registered
}

// Work is one or several operations that were started together. Its methods may be called from any
// goroutine and thread.
type Work struct {
	group *Group

	// Before the work can end:
	parts     []Part  // collectives, in order
	first     [1]Part // mostly the memory of parts
	timeout   time.Duration
	began     time.Duration // when its clock was started, on exec's
	small     bool          // it holds nobody up but by waiting
	transit   Source        // of its sends and receives; nil: there are none
	trace     func(error)   // told of the end
	suspender Suspender

	soon   bool // under Queue.mu: its caller is about to wait
	queued bool // under Queue.mu

	pending      atomic.Int32 // operations that have not ended
	from         atomic.Int32 // rank that the last receive came from
	contributors atomic.Int32
	finished     atomic.Uint32 // 1, set under mu; read without it by Test, and in C

	mu     sync.Mutex
	err    *fault.Error
	onDone []func(error)
	done   chan struct{} // made by the first that waits for it, closed at the end
	ctx    *Context      // made for the first that sends for the work
}

// New makes a work of a number of operations. It cannot end before Started. With soon the caller is
// about to wait for it, so that no background thread need run it.
func (g *Group) New(operations int, soon bool) *Work {
	w := &Work{group: g, soon: soon}
	w.parts = w.first[:0]
	w.from.Store(-1)
	w.pending.Store(int32(operations) + 1)
	return w
}

// Add adds a collective, before the work is queued.
func (w *Work) Add(p Part) { w.parts = append(w.parts, p) }

// Parts are the collectives, in order.
func (w *Work) Parts() []Part { return w.parts }

// UseSmall tells that the work holds up nobody but by waiting, before the work is queued.
func (w *Work) UseSmall() { w.small = true }

// UseSource says where the sends and receives get on, before the first of them is started.
func (w *Work) UseSource(s Source) { w.transit = s }

// OnEnd has the end of the work told, before the work is started.
func (w *Work) OnEnd(f func(error)) {
	if before := w.trace; before != nil {
		w.trace = func(err error) {
			before(err)
			f(err)
		}
		return
	}
	w.trace = f
}

// Suspender decides what becomes of works that would end with an error.
type Suspender interface {
	// Suspend reports whether the work goes on, until Resolve, though it would end with the error.
	Suspend(err *fault.Error) bool
	// Ended tells that the work has ended.
	Ended()
}

// UseSuspender says who decides, before the work is started.
func (w *Work) UseSuspender(h Suspender) { w.suspender = h }

// Resolve ends a work that goes on because of its Suspender.
func (w *Work) Resolve(err *fault.Error) {
	w.mu.Lock()
	w.err = err
	w.mu.Unlock()
	w.finish()
}

// SetContributors notes how many ranks' contributions are in the result.
func (w *Work) SetContributors(n int) { w.contributors.Store(int32(n)) }

// Contributors is how many ranks' contributions are in the result of the work's collectives, once
// it has ended well; 0 where it has none.
func (w *Work) Contributors() int {
	if len(w.parts) == 0 {
		return 0
	}
	return int(w.contributors.Load())
}

// SetTimeout starts the work's clock.
func (w *Work) SetTimeout(d time.Duration) {
	w.timeout, w.began = d, exec.Now()
}

// Timeout is how long the work may take.
func (w *Work) Timeout() time.Duration { return w.timeout }

// Deadline is when the work must have ended, on exec's clock.
func (w *Work) Deadline() time.Duration { return exec.Later(w.began, w.timeout) }

// Started tells that all operations have been started: from now on the work can end.
func (w *Work) Started() { w.End(nil) }

// SetSource notes the rank that a receive came from.
func (w *Work) SetSource(rank int) { w.from.Store(int32(rank)) }

// Source is the rank that the work's last receive came from, -1 before.
func (w *Work) Source() int { return int(w.from.Load()) }

// Ended reports whether the work has ended.
func (w *Work) Ended() bool { return w.finished.Load() != 0 }

// Flag is 1 once the work has ended, for drivers in C.
func (w *Work) Flag() *atomic.Uint32 { return &w.finished }

// Test reports whether the work has ended, and how. It takes what has come for the work's sends and
// receives, and never waits.
func (w *Work) Test() (done bool, err error) {
	if !w.Ended() && w.transit != nil {
		w.transit.Poll(w)
	}
	if w.Ended() {
		return true, w.result()
	}
	return false, nil
}

// result is meaningful once the work has finished.
func (w *Work) result() error {
	if w.err == nil {
		return nil
	}
	return w.err
}

// Wait waits for the end of the work, for at most the timeout (negative: until it ends, which it
// does by its own timeout at the latest), and tells how it ended. Where no other thread runs the
// communicator's works, the caller does.
func (w *Work) Wait(timeout time.Duration) (done bool, err error) {
	if !w.Ended() {
		until := exec.Never
		if timeout >= 0 {
			until = exec.Later(exec.Now(), timeout)
		}
		w.help(until)
		if !w.Ended() {
			return false, nil
		}
	}
	return true, w.result()
}

// OnDone calls f once the work has ended: at once if it has, or does so in about the time in which
// another thread would have taken over, else on a goroutine of its own, so that f may start works
// and wait for them.
func (w *Work) OnDone(f func(error)) {
	if w.small && !w.Ended() {
		w.group.Queue.spin(w)
	}
	w.mu.Lock()
	if w.Ended() {
		w.mu.Unlock()
		f(w.result())
		return
	}
	w.onDone = append(w.onDone, f)
	w.mu.Unlock()
	if len(w.parts) > 0 {
		w.group.Queue.detach(w)
	}
	if w.transit != nil {
		w.transit.Detach(w)
	}
}

// End ends one operation of the work, with an error or well (nil). The work ends with its last
// operation, and with the first error.
func (w *Work) End(err *fault.Error) {
	if err != nil {
		w.mu.Lock()
		if w.err == nil && !w.Ended() {
			w.err = err
		}
		w.mu.Unlock()
	}
	if w.pending.Add(-1) != 0 {
		return
	}
	if w.suspender != nil {
		w.mu.Lock()
		err := w.err
		w.mu.Unlock()
		if err != nil && w.suspender.Suspend(err) {
			return
		}
	}
	w.finish()
}

// finish ends the work.
func (w *Work) finish() {
	w.mu.Lock()
	w.finished.Store(1)
	callbacks := w.onDone
	w.onDone = nil
	if w.done != nil {
		close(w.done)
	}
	if w.ctx != nil {
		w.ctx.End()
	}
	w.mu.Unlock()
	if w.trace != nil {
		w.trace(w.result())
	}
	if w.suspender != nil {
		w.suspender.Ended()
	}
	if w.transit != nil {
		w.transit.Wake()
	}
	if len(callbacks) > 0 {
		go func() {
			for _, f := range callbacks {
				f(w.result())
			}
		}()
	}
}

// closed is closed when the work ends.
func (w *Work) closed() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.done == nil {
		w.done = make(chan struct{})
		if w.Ended() {
			close(w.done)
		}
	}
	return w.done
}

// Context ends at the work's deadline, with the work, and with the communicator.
func (w *Work) Context() context.Context {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ctx == nil {
		w.ctx = WithDeadline(w.group.Context, w.Deadline())
		if w.Ended() {
			w.ctx.End()
		}
	}
	return w.ctx
}
