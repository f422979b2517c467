package work

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/goccl/goccl/core/exec"
	"github.com/goccl/goccl/core/fault"
)

// stepper is an engine: each part takes a step, which steps lets it do.
type stepper struct {
	queue *Queue
	steps chan struct{}
	runs  atomic.Int32 // threads in Run
	fails atomic.Bool  // it panics, once
	rests atomic.Int32
}

func (s *stepper) Run(w *Work, until time.Duration) {
	if s.runs.Add(1) != 1 {
		panic("two threads run one queue")
	}
	defer s.runs.Add(-1)
	if s.fails.Swap(false) {
		panic("test")
	}
	for w == nil || s.queue.Has(w) {
		head := s.queue.Head()
		if head == nil {
			return
		}
		select {
		case <-s.steps:
		case <-time.After(max(min(until, exec.Now()+time.Hour)-exec.Now(), 0)):
			return
		}
		s.queue.Pop()
		for range head.Parts() {
			head.End(nil)
		}
	}
}

func (s *stepper) Rest() { s.rests.Add(1) }

type world struct {
	group  *Group
	engine *stepper
	tasks  sync.WaitGroup
}

func newWorld(t *testing.T) *world {
	w := &world{engine: &stepper{steps: make(chan struct{}, 1000)}}
	ctx, cancel := context.WithCancel(context.Background())
	w.group = &Group{Context: ctx, Yields: 2, Spawn: func(f func()) { w.tasks.Go(f) }}
	w.group.Queue = NewQueue(w.group, w.engine)
	w.engine.queue = w.group.Queue
	t.Cleanup(func() {
		close(w.engine.steps)
		cancel()
		w.tasks.Wait()
	})
	return w
}

// start starts a work of a number of collectives.
func (w *world) start(parts int, soon bool) *Work {
	k := w.group.New(parts, soon)
	for range parts {
		k.Add(Part{})
	}
	k.SetTimeout(time.Minute)
	w.group.Queue.Push(k)
	k.Started()
	if !soon {
		w.group.Queue.WakeLater()
	}
	return k
}

func await(t *testing.T, k *Work) {
	t.Helper()
	if done, err := k.Wait(time.Minute); !done || err != nil {
		t.Fatal(done, err)
	}
}

func TestAWaiterRunsTheQueue(t *testing.T) {
	w := newWorld(t)
	first, second := w.start(1, true), w.start(3, true)
	w.engine.steps <- struct{}{}
	w.engine.steps <- struct{}{}
	await(t, second)
	if done, err := first.Test(); !done || err != nil {
		t.Error("a later work has ended before an earlier one:", done, err)
	}
	if !w.group.Queue.Empty() {
		t.Error("the queue is not empty")
	}
}

func TestTheWorkerRunsWhatNoWaiterDoes(t *testing.T) {
	w := newWorld(t)
	k := w.start(1, false)
	done := make(chan error, 1)
	k.OnDone(func(err error) { done <- err })
	w.engine.steps <- struct{}{}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// A caller that said it would wait, and then does not, is replaced by the worker.
func TestDetachedWork(t *testing.T) {
	w := newWorld(t)
	k := w.start(1, true)
	done := make(chan error, 1)
	k.OnDone(func(err error) { done <- err })
	w.engine.steps <- struct{}{}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// Waiters whose turn has not come sleep, and each takes the token over in turn.
func TestManyWaiters(t *testing.T) {
	w := newWorld(t)
	var works []*Work
	for range 50 {
		works = append(works, w.start(1, true))
	}
	var waiters sync.WaitGroup
	for _, k := range works {
		waiters.Go(func() { await(t, k) })
	}
	for range works {
		w.engine.steps <- struct{}{}
	}
	waiters.Wait()
}

func TestWaitEndsAtItsTimeout(t *testing.T) {
	w := newWorld(t)
	k := w.start(1, true)
	if done, err := k.Wait(time.Millisecond); done || err != nil {
		t.Error(done, err)
	}
	if w.group.Queue.Token(k).Taken() {
		t.Error("the waiter has kept the token")
	}
}

func TestStopRunsWhatIsLeft(t *testing.T) {
	w := newWorld(t)
	k := w.start(1, true)
	w.engine.steps <- struct{}{}
	w.group.Queue.Stop()
	<-k.closed()
}

func TestTheFirstErrorStays(t *testing.T) {
	w := newWorld(t)
	k := w.group.New(3, true)
	var traced error
	k.OnEnd(func(err error) { traced = err })
	k.SetTimeout(time.Minute)
	first := fault.Errorf(fault.ErrAborted, "first")
	k.End(nil)
	k.End(first)
	k.End(fault.Errorf(fault.ErrTimeout, "second"))
	if k.Ended() {
		t.Fatal("it has ended before it was started")
	}
	ctx := k.Context()
	k.Started()
	if done, err := k.Test(); !done || !errors.Is(err, fault.ErrAborted) || traced != err {
		t.Error(done, err, traced)
	}
	if ctx.Err() == nil {
		t.Error("the context outlives the work")
	}
}

// source is one of sends: a poll ends the work.
type source struct {
	token                   Token
	polled, woken, relieved atomic.Int32
	detached                atomic.Int32
}

func (s *source) Token(*Work) Token { return s.token }
func (s *source) Poll(w *Work)      { s.polled.Add(1); w.End(nil) }
func (s *source) Wake()             { s.woken.Add(1) }
func (s *source) Relieve()          { s.relieved.Add(1) }
func (s *source) Detach(*Work)      { s.detached.Add(1) }
func (s *source) Drive(w *Work, _ time.Duration) bool {
	w.End(nil)
	<-s.token
	return false
}

func TestSource(t *testing.T) {
	w := newWorld(t)
	begin := func() (*source, *Work) {
		s, k := &source{token: NewToken()}, w.group.New(1, true)
		k.UseSource(s)
		k.SetTimeout(time.Minute)
		k.Started()
		return s, k
	}
	s, k := begin()
	await(t, k)
	if s.woken.Load() != 1 || s.relieved.Load() != 0 || s.token.Taken() {
		t.Error("after a wait that drove:", s)
	}
	s, k = begin()
	if done, err := k.Test(); !done || err != nil || s.polled.Load() != 1 {
		t.Error("after a test:", done, err, s)
	}
	// Another thread drives, and ends the work.
	s, k = begin()
	s.token <- struct{}{}
	w.tasks.Go(func() { s.Drive(k, 0) })
	await(t, k)
	if s.relieved.Load() > 1 {
		t.Error("after a wait that did not drive:", s)
	}
	s, k = begin()
	ended := make(chan error, 1)
	k.OnDone(func(err error) { ended <- err })
	k.End(nil)
	if err := <-ended; err != nil || s.detached.Load() != 1 {
		t.Error("after OnDone:", err, s)
	}
}

// After a panic of the engine the queue can be run by others: who ends the works needs its token.
func TestPanicGivesTheTokenBack(t *testing.T) {
	for name, run := range map[string]func(q *Queue, w *Work){
		"a waiter":  func(q *Queue, w *Work) { q.token <- struct{}{}; q.Drive(w, exec.Never) },
		"an end":    func(q *Queue, _ *Work) { q.Drain() },
		"a look in": func(q *Queue, w *Work) { q.spin(w) },
	} {
		w := newWorld(t)
		k := w.group.New(1, true)
		k.Add(Part{})
		w.group.Queue.Push(k)
		k.Started()
		w.engine.fails.Store(true)
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: there was no panic", name)
				}
			}()
			run(w.group.Queue, k)
		}()
		w.engine.steps <- struct{}{}
		w.group.Queue.Drain()
		if !k.Ended() {
			t.Errorf("%s: the work has not ended", name)
		}
	}
}
