package work

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/goccl/goccl/core/exec"
)

// Context is a context with a deadline on exec's clock. It makes a timer only for a caller of Done:
// a timer that is due before all others wakes the thread that waits for Go's network, which costs
// more than most sends.
type Context struct {
	parent   context.Context
	deadline time.Duration

	over   atomic.Bool
	once   sync.Once
	timed  context.Context // of parent
	cancel context.CancelFunc
}

// WithDeadline makes a context with a deadline on exec's clock. End gives back what it holds.
func WithDeadline(parent context.Context, deadline time.Duration) *Context {
	return &Context{parent: parent, deadline: deadline}
}

// Deadline implements context.Context.
func (c *Context) Deadline() (time.Time, bool) {
	t := time.Now().Add(c.deadline - exec.Now())
	if earlier, ok := c.parent.Deadline(); ok && earlier.Before(t) {
		t = earlier
	}
	return t, true
}

// Done implements context.Context.
func (c *Context) Done() <-chan struct{} { return c.withTimer().Done() }

// Err implements context.Context.
func (c *Context) Err() error {
	if err := c.parent.Err(); err != nil {
		return err
	}
	if c.over.Load() {
		return context.Canceled
	}
	if exec.Now() >= c.deadline {
		<-c.Done() // an error is not there before the end
		return c.timed.Err()
	}
	return nil
}

// Value implements context.Context.
func (c *Context) Value(key any) any { return c.withTimer().Value(key) }

func (c *Context) withTimer() context.Context {
	c.once.Do(func() {
		c.timed, c.cancel = context.WithTimeout(c.parent, c.deadline-exec.Now())
	})
	return c.timed
}

// End ends the context, and gives back what it holds.
func (c *Context) End() {
	c.over.Store(true)
	c.once.Do(func() { c.timed, c.cancel = ended, func() {} })
	c.cancel()
}

// ended is a context that has ended.
var ended = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()
