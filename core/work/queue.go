package work

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/goccl/goccl/core/exec"
)

// Engine runs the works of a queue.
type Engine interface {
	// Run runs works from the queue's head until the given one has ended (nil: until the queue is
	// empty), or until a time. The caller holds the queue's token.
	Run(w *Work, until time.Duration)
	// Rest tells that the token has been given back.
	Rest()
}

// Queue holds the works with collectives, in the order of their calls. It is their
// [Driver]: the thread that holds its token runs the head. Its worker is a goroutine that runs what
// no waiter does.
type Queue struct {
	group  *Group
	engine Engine
	token  Token
	worker sync.Once
	wake   chan struct{} // to the worker
	hurry  atomic.Uint32 // a futex: whether the worker shall not doze

	mu      sync.Mutex
	works   []*Work
	stopped bool // the worker runs all, also what callers are about to wait for
}

// NewQueue makes the queue of a group.
func NewQueue(g *Group, e Engine) *Queue {
	return &Queue{group: g, engine: e, token: NewToken(), wake: make(chan struct{}, 1)}
}

// Push adds a work with collectives.
func (q *Queue) Push(w *Work) {
	q.mu.Lock()
	defer q.mu.Unlock()
	w.queued = true
	q.works = append(q.works, w)
}

// Head is the oldest work; nil if the queue is empty.
func (q *Queue) Head() *Work {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.works) == 0 {
		return nil
	}
	return q.works[0]
}

// Pop takes the head out.
func (q *Queue) Pop() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.works[0].queued = false
	q.works = slices.Delete(q.works, 0, 1)
}

// Has reports whether a work is in the queue.
func (q *Queue) Has(w *Work) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return w.queued
}

// All are the works in the queue.
func (q *Queue) All() []*Work {
	q.mu.Lock()
	defer q.mu.Unlock()
	return slices.Clone(q.works)
}

// Empty reports whether the queue is.
func (q *Queue) Empty() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.works) == 0
}

// Token implements Driver. Without a work it is that of the queue.
func (q *Queue) Token(w *Work) Token {
	if w == nil || q.Has(w) {
		return q.token
	}
	return nil
}

// Drive implements Driver.
func (q *Queue) Drive(w *Work, until time.Duration) (more bool) {
	defer q.giveBack() // after a panic, too: who ends the works needs the token
	q.engine.Run(w, until)
	return !w.Ended() && exec.Now() < until
}

// detach has the worker run the work at once, though its caller was about to wait.
func (q *Queue) detach(w *Work) {
	q.mu.Lock()
	w.soon = false
	q.mu.Unlock()
	q.wakeWorker()
}

// spin runs a work for a little while, if it is the next and no thread runs the queue. If it has
// not ended then, the caller leaves it to the worker.
func (q *Queue) spin(w *Work) {
	select {
	case q.token <- struct{}{}:
	default:
		return
	}
	func() {
		defer func() { <-q.token }() // as in Drive
		if q.Head() == w {
			q.engine.Run(w, exec.Spin)
		}
	}()
	if w.Ended() {
		q.rest()
	}
}

// giveBack gives the token back.
func (q *Queue) giveBack() {
	<-q.token
	q.rest()
}

// rest wakes the worker if works are left over for which no thread may be waiting.
func (q *Queue) rest() {
	q.engine.Rest()
	q.mu.Lock()
	wake := q.stopped && len(q.works) > 0 || slices.ContainsFunc(q.works,
		func(w *Work) bool { return !w.soon })
	q.mu.Unlock()
	if wake {
		q.wakeWorker()
	}
}

// Stop has the worker run all that is queued, unless a waiter does.
func (q *Queue) Stop() {
	q.mu.Lock()
	q.stopped = true
	idle := len(q.works) == 0
	q.mu.Unlock()
	if !idle {
		q.wakeWorker()
	}
}

// Drain waits for the token, and runs all that is queued.
func (q *Queue) Drain() {
	q.token <- struct{}{}
	q.drain()
}

// drain runs the queue until it is empty. The caller holds the token, which is given back.
func (q *Queue) drain() {
	defer q.giveBack() // as in Drive
	for q.Head() != nil {
		q.engine.Run(nil, exec.Now()+Slice)
	}
}

// How long the worker leaves a work to a thread that comes to wait for it: it would take the queue
// from a waiter that comes a little later, and then have to wake it in turn. The delay grows as
// long as waiters come: to look around for nothing takes a CPU from threads that work.
const (
	shortestDelay = 20 * time.Microsecond
	longestDelay  = 640 * time.Microsecond
)

// Slice is how long a driver stays in C, or in the kernel, before it looks around.
const Slice = 100 * time.Millisecond

// WakeLater has the worker run the queue, unless a waiter comes to do so.
func (q *Queue) WakeLater() {
	if q.token.Taken() {
		return // its holder looks at the queue again when done
	}
	q.hurry.Store(0)
	q.notifyWorker()
}

// wakeWorker has the worker run the queue at once.
func (q *Queue) wakeWorker() {
	q.hurry.Store(1)
	_, _, _ = unix.RawSyscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(&q.hurry)), futexWakePrivate,
		1, 0, 0, 0) // it never fails
	q.notifyWorker()
}

func (q *Queue) notifyWorker() {
	q.worker.Do(func() { q.group.Spawn(q.work) })
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// work is the worker: it runs what no waiter does. It keeps away from the token where there is
// nothing for it, for a waiter that finds the token taken goes to sleep.
func (q *Queue) work() {
	delay := shortestDelay
	for {
		select {
		case <-q.wake:
		case <-q.group.Context.Done():
			q.Drain()
			return
		}
		q.doze(delay)
		w := q.Head()
		for ; w != nil && q.hurry.Load() == 0 && exec.Now() < w.began+delay; w = q.Head() {
			q.doze(delay)
		}
		if w == nil {
			delay = min(2*delay, longestDelay)
			continue
		}
		delay = shortestDelay
		select {
		case q.token <- struct{}{}:
			q.drain()
		default: // the token's holder wakes the worker if anything is left
		}
	}
}

// doze waits for a while, or until the worker is to hurry. Go's timers would make a millisecond of
// it.
func (q *Queue) doze(d time.Duration) {
	t := unix.NsecToTimespec(int64(d))
	_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(&q.hurry)), futexWaitPrivate, 0,
		uintptr(unsafe.Pointer(&t)), 0, 0)
}

// From linux/futex.h, for threads of one process.
const (
	futexWaitPrivate = 0 | 128
	futexWakePrivate = 1 | 128
)
