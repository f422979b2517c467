package channel

import (
	"maps"
	"slices"

	"github.com/goccl/goccl/core/exec"
	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/transport"
)

// endHeld ends a channel: the first cause stays. It is called with mu held.
func (e *Engine) endHeld(c *Channel, cause *fault.Error) {
	if c.cause == nil {
		c.cause = cause
		c.end.End()
		if c.attended {
			e.Reader.Attend(-1)
		}
	}
	c.changed.tell()
}

// causeOf returns why a channel has ended.
func (e *Engine) causeOf(c *Channel) *fault.Error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if c.cause == nil {
		return fault.Errorf(fault.ErrInternal, "it has ended").In(e.Members)
	}
	return c.cause
}

// lost is the cause of the end of a peer's link: what the engine was told, or else what the link
// says.
func (e *Engine) lost(rank int, err error) *fault.Error {
	e.mu.Lock()
	cause := e.gone[rank]
	if e.failure != nil {
		cause = e.failure
	}
	e.mu.Unlock()
	if cause != nil {
		return cause
	}
	return e.face.PeerError(rank, err)
}

// closeChannel ends a channel for its user.
func (e *Engine) closeChannel(c *Channel) {
	e.mu.Lock()
	if c.closed {
		e.mu.Unlock()
		return
	}
	c.closed = true
	delete(e.handles, c.Handle())
	e.endHeld(c, fault.Errorf(fault.ErrAborted, "it was closed on this rank").In(e.Members))
	c.end.Close() // behind the cause, which callers tell
	q := e.queue(c)
	if q.open == c {
		q.open = nil
	}
	e.forget(c.peer, c.tag)
	e.dropGets(func(g *get) bool { return g.channel == c })
	over, alone := e.over, c.peer == e.Rank
	switch {
	case over:
	case alone || e.failure == nil && e.gone[c.peer] == nil:
		if alone {
			c.acked = true
		} else {
			e.tell(c.peer, transport.Header{Type: frameClose, Seq: c.id}, nil)
		}
	}
	e.mu.Unlock()
	e.kick()
	e.awaitPieces(c)
	if over { // Free has given the rest back, or is about to
		quiet(c)
		c.end.Free()
		return
	}
	e.release(c)
}

// awaitPieces waits until nothing is read into the destination of a get any more. A peer that is
// stopped in the middle of a piece is waited for for the communicator's timeout, and then fails it.
func (e *Engine) awaitPieces(c *Channel) {
	until := exec.Later(exec.Now(), e.face.Timeout())
	idle := func() bool {
		e.mu.Lock()
		defer e.mu.Unlock()
		for _, g := range e.gets {
			if g.channel == c && g.busy {
				return false
			}
		}
		return true
	}
	for !idle() {
		if !e.bring(c, until, idle) {
			e.face.Fail(c.late("close", e.face.Timeout(), "the rest of what was got does not come"))
			until = exec.Never
		}
	}
}

// release gives back what a closed channel has, if nobody can be using it: once the peer has
// answered, and no caller is inside.
func (e *Engine) release(c *Channel) {
	e.mu.Lock()
	ready := c.closed && c.acked && e.ends[c.id] == c
	if ready {
		delete(e.ends, c.id)
		e.releases.Add(1) // Free has not begun: it takes all ends
	}
	e.mu.Unlock()
	if !ready {
		return
	}
	c.end.Leave()
	drain := func() {
		quiet(c)
		e.free(c, false)
		c.end.Free()
		e.releases.Done()
	}
	if c.end.Copies() || c.end.Takes() {
		e.Spawn(drain)
	} else {
		drain()
	}
}

// free gives a channel's semaphore back. With retire the peer may still store to it.
func (e *Engine) free(c *Channel, retire bool) {
	if retire {
		e.face.Retire(c.semaphore, exec.SemaphoreBytes)
	}
	_ = e.arena.Free(c.semaphore) // it fails only for what was not allocated
}

// quiet waits until no caller is in a copy or takes signals. They must have been told to leave.
func quiet(c *Channel) {
	for since := exec.Now(); c.end.Copies() || c.end.Takes(); exec.AwaitCaller(since) {
	}
}

// Depart ends all channels to a peer that is gone. What it has signalled can still be taken.
func (e *Engine) Depart(rank int, cause *fault.Error) {
	e.mu.Lock()
	e.gone[rank] = cause
	for _, c := range e.ends {
		if c.peer == rank {
			e.endHeld(c, cause)
		}
	}
	e.endGets(func(g *get) bool { return g.channel.peer == rank })
	e.takeBack(rank)
	e.mu.Unlock()
	e.kick()
}

// Fail ends all channels and proxies.
func (e *Engine) Fail(cause *fault.Error) {
	e.mu.Lock()
	if e.failure == nil {
		e.failure = cause
	}
	for _, c := range e.ends {
		e.endHeld(c, cause)
	}
	e.endGets(func(*get) bool { return true })
	e.mu.Unlock()
	e.endProxies(cause)
	e.kick()
}

// Free gives back what the engine has, after its last frame and its last goroutine. It waits for
// callers that are in a copy. Channels that are not closed stay ended until they are.
func (e *Engine) Free() {
	e.Memories.leave(e)
	e.mu.Lock()
	all := slices.Collect(maps.Values(e.ends))
	clear(e.ends)
	e.over = true
	for rank := range e.peers {
		e.takeBack(rank)
	}
	e.mu.Unlock()
	for _, c := range all {
		c.end.Leave()
	}
	for _, c := range all {
		quiet(c)
		e.mu.Lock()
		closed, acked := c.closed, c.acked || c.peer == e.Rank
		e.mu.Unlock()
		e.free(c, !acked)
		if closed {
			c.end.Free()
		}
	}
	e.releases.Wait()
	if e.arena != nil {
		e.Memories.Arenas.Release()
	}
}
