package core

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/goccl/goccl/core/exec"
)

// lateContext is a context with a deadline on exec's clock. It makes a timer only for who waits for its end: a
// timer that is due before all others wakes the thread that waits for Go's network, which costs more than most
// sends.
type lateContext struct {
	parent   context.Context
	deadline time.Duration

	over   atomic.Bool
	once   sync.Once
	timed  context.Context // of parent
	cancel context.CancelFunc
}

// Deadline implements context.Context.
func (l *lateContext) Deadline() (time.Time, bool) {
	t := time.Now().Add(l.deadline - exec.Now())
	if earlier, ok := l.parent.Deadline(); ok && earlier.Before(t) {
		t = earlier
	}
	return t, true
}

// Done implements context.Context.
func (l *lateContext) Done() <-chan struct{} { return l.withTimer().Done() }

// Err implements context.Context.
func (l *lateContext) Err() error {
	if err := l.parent.Err(); err != nil {
		return err
	}
	if l.over.Load() {
		return context.Canceled
	}
	if exec.Now() >= l.deadline {
		<-l.Done() // an error is not there before the end
		return l.timed.Err()
	}
	return nil
}

// Value implements context.Context.
func (l *lateContext) Value(key any) any { return l.withTimer().Value(key) }

func (l *lateContext) withTimer() context.Context {
	l.once.Do(func() {
		l.timed, l.cancel = context.WithTimeout(l.parent, l.deadline-exec.Now())
	})
	return l.timed
}

// end ends the context, and gives back what it holds.
func (l *lateContext) end() {
	l.over.Store(true)
	l.once.Do(func() { l.timed, l.cancel = ended, func() {} })
	l.cancel()
}

// ended is a context that has ended.
var ended = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()
