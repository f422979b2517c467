package channel

import (
	"context"
	"sync"
	"time"
	"unsafe"

	"github.com/goccl/goccl/core/exec"
)

// Calls in the background take turns: one of them works or waits, and the others need no thread.
// Their order is that of WaitLater or PutLater, and not that of the goroutines which make them.

// turns is the order of calls of one kind. The zero value has none.
type turns struct {
	mu   sync.Mutex
	last <-chan struct{} // closed once all of them are over; nil: there were none
}

// turn is the place of one call.
type turn struct {
	before <-chan struct{}
	over   chan struct{}
}

func (t *turns) take() turn {
	own := turn{over: make(chan struct{})}
	t.mu.Lock()
	defer t.mu.Unlock()
	own.before, t.last = t.last, own.over
	return own
}

// come waits until all calls before are over, or until a time, and reports whether they are. If so,
// end is to be called, else nothing is left to do.
func (t turn) come(until time.Duration) bool {
	if t.before == nil {
		return true
	}
	late := time.NewTimer(until - exec.Now())
	defer late.Stop()
	select {
	case <-t.before:
		return true
	case <-late.C:
		go func() {
			<-t.before
			t.end()
		}()
		return false
	}
}

// end lets the next call come.
func (t turn) end() { close(t.over) }

// WaitLater returns a [Channel.Wait] for another goroutine to make, once. It takes its signals
// behind those waits which have begun so before. Its time begins now.
func (c *Channel) WaitLater(n uint64, timeout time.Duration) func() error {
	l := c.e.limit(context.Background(), timeout)
	own := c.waits.take()
	return func() error {
		if !own.come(l.until) {
			return c.late("wait", l.most, "other waits come first, and "+c.missing(n))
		}
		defer own.end()
		return c.take(n, &l)
	}
}

// PutLater returns a [Channel.PutFrom] and a [Channel.Flush] for another goroutine to make, once.
// Memory nil is for signals alone, which need no flush. It comes behind those which have begun so
// before. Its time begins now.
func (c *Channel) PutLater(
	m *Memory, offset uint64, src unsafe.Pointer, bytes, signals uint64, timeout time.Duration,
) func() error {
	l := c.e.limit(context.Background(), timeout)
	own := c.puts.take()
	put := func() (f flushing, err error) {
		if !own.come(l.until) {
			return f, c.late("put", l.most, "the puts before it have not ended")
		}
		defer own.end()
		if m == nil {
			return f, c.signal(signals, &l)
		}
		c.e.mu.Lock()
		before := c.flushes.begun
		c.e.mu.Unlock()
		if err := c.put(m, offset, src, bytes, signals, &l); err != nil {
			return f, err
		}
		f, err = c.beginFlush(&l)
		f.puts = &before
		return f, err
	}
	return func() error {
		f, err := put()
		if err != nil {
			return err
		}
		return c.awaitFlush(f, &l)
	}
}
