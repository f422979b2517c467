package channel

import (
	"time"

	"github.com/goccl/goccl/core/exec"
)

// change tells of changes, to any number of those who wait. The lock of what changes guards it.
type change struct{ next chan struct{} } // closed at the next one; nil: nobody waits

// tell wakes who waits.
func (c *change) tell() {
	if c.next != nil {
		close(c.next)
		c.next = nil
	}
}

// await returns what is closed at the next change.
func (c *change) await() <-chan struct{} {
	if c.next == nil {
		c.next = make(chan struct{})
	}
	return c.next
}

// pump reads what has come from a peer, without waiting.
func (e *Engine) pump(rank int) {
	if e.Reader == nil || e.Local[rank] || !e.Reader.Take() {
		return
	}
	e.links.Pump(rank)
	e.Reader.Leave()
}

// bring waits for what a peer sends, until done reports true or a time, and reports whether done
// did. Where no other thread reads the links, this one does.
func (e *Engine) bring(c *Channel, until time.Duration, done func() bool) bool {
	for !done() {
		if exec.Now() >= until {
			return done()
		}
		switch {
		case e.Reader == nil || e.Local[c.peer]:
			c.sleep(until, done)
		case e.Reader.Take():
			e.read(c, until, done)
			e.Reader.Leave()
		default:
			e.Reader.StartProgress()
			c.sleep(until, done)
			e.Reader.StopProgress()
		}
	}
	return true
}

// read reads the links with the reader's token.
func (e *Engine) read(c *Channel, until time.Duration, done func() bool) {
	for polls := e.Waiting.PortPolls; polls > 0 && !done(); polls-- {
		e.links.Pump(c.peer)
		if polls < e.Waiting.PortPolls {
			exec.YieldCPU()
		}
	}
	for !done() && exec.Now() < until {
		e.Reader.Wait(c.look(until))
	}
}

// lookEach is how often a wait looks for what neither a frame nor a change of the channel tells.
const lookEach = time.Millisecond

// look is how long a wait may sleep at once. Where the peer has mapped this rank's arena, and this
// rank not the peer's, signals come without a frame.
func (c *Channel) look(until time.Duration) time.Duration {
	most := until - exec.Now()
	c.e.mu.Lock()
	defer c.e.mu.Unlock()
	if c.oneSided {
		most = min(most, lookEach)
	}
	return most
}

// sleep waits for a change of a channel, or until a time.
func (c *Channel) sleep(until time.Duration, done func() bool) {
	c.e.mu.Lock()
	changed := c.changed.await()
	c.e.mu.Unlock()
	if done() {
		return
	}
	t := time.NewTimer(c.look(until))
	defer t.Stop()
	select {
	case <-changed:
	case <-t.C:
	}
}
