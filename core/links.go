package core

import (
	"context"
	"time"

	"github.com/goccl/goccl/core/exec"
	"github.com/goccl/goccl/core/transport"
	"github.com/goccl/goccl/core/work"
)

// What a rank waits for from a peer that shares no memory with it comes over a link. The waiter reads the links
// himself, where nobody else does: see transport.Poller.

// linkReader is a waiter's part in it, while he runs plans.
type linkReader struct {
	c      *Comm
	run    *exec.Run
	reads  bool // he has the poller's token
	relies bool // somebody else has
	step   int  // the step that was waited in last
	polls  int  // how often it may still be polled for
}

func (c *Comm) linkReader(run *exec.Run) linkReader { return linkReader{c: c, run: run, step: -1} }

// wait waits for what the run waits for: a little while, or until a time. It tells whether a signal came instead.
func (r *linkReader) wait(until time.Duration) (interrupted bool) {
	p := r.c.poller
	if !r.reads {
		r.reads = p.Take()
		for i := 0; !r.reads && i < r.c.waiting.PortPolls && p.Leaving(); i++ {
			work.YieldCPU()
			r.reads = p.Take()
		}
		if !r.reads {
			r.relies = true
			p.Rely()
			r.run.Brought(true)
			return false
		}
		r.run.Reading(true)
		return false // who read before may have brought it
	}
	if s := r.run.Step(); s != r.step {
		bytes, _ := r.run.Expected()
		r.step, r.polls = s, r.c.portPolls(bytes)
		if bytes > pumpMost {
			p.Wait(0)
			return false
		}
	}
	if r.polls > 0 {
		if r.polls < r.c.waiting.PortPolls {
			work.YieldCPU()
		}
		r.polls--
		r.c.group.Pump(r.run.Peer())
		return false
	}
	return p.Wait(max(until-exec.Now(), 0))
}

// pollMost is the most bytes that are polled for: who waits for more sleeps until it is there, and leaves the CPU to others. Up to 1 MiB
// polling is the faster by up to 1.4 times between two ranks of a host.
const pollMost = 1 << 20

// pumpMost is the most bytes of a step for which a waiter looks at no other link: of longer ones many may come in succession, while others wait.
const pumpMost = 64 << 10

func (c *Comm) portPolls(bytes uint64) int {
	if bytes > pollMost {
		return 0
	}
	return c.waiting.PortPolls
}

// send is Group.Send, for who may be reading.
func (r *linkReader) send(ctx context.Context, peer int, h transport.Header, payload ...[]byte) error {
	if r.reads {
		return r.c.group.SendReading(ctx, peer, h, payload...)
	}
	return r.c.group.Send(ctx, peer, h, payload...)
}

// put carries the message of the run's present step, which the peer may be left to read by itself.
func (r *linkReader) put(ctx context.Context, peer int, h transport.Header) error {
	header, payload := r.run.PortMessage()
	if !r.c.group.Lends(peer, payload) || !r.run.Lend() {
		return r.send(ctx, peer, h, header, payload)
	}
	lent, err := r.c.group.Lend(ctx, r.reads, peer, h, header, payload)
	if !lent {
		r.run.TakeBack()
	}
	return err
}

// leave leaves the links to others.
func (r *linkReader) leave() {
	switch {
	case r.reads:
		r.run.Reading(false)
		r.c.poller.Leave()
	case r.relies:
		r.c.poller.Dismiss()
		r.run.Brought(false)
	}
	r.reads, r.relies = false, false
}

// readLinks is Drive by reading the links.
func (t *transit) readLinks(w *Work, until time.Duration) (more bool) {
	c := t.c
	defer c.poller.Leave()
	c.p2p.attendLinks(true)
	defer c.p2p.attendLinks(false)
	for polls := c.portPolls(t.bytes); !w.Ended(); polls-- {
		interrupted := false
		switch now := exec.Now(); {
		case now >= until, polls > 0 && t.peer < 0:
			c.poller.Wait(0)
		case polls > 0:
			c.group.Pump(t.peer)
		default:
			interrupted = c.poller.Wait(min(until-now, work.Slice))
		}
		c.p2p.giveAccepted()
		switch {
		case interrupted || exec.Now() >= until:
			return false
		case c.failed() != nil:
			return true
		case polls > 0 && !w.Ended():
			work.YieldCPU()
		}
	}
	return false
}

// readNews reads what a peer has sent, unless somebody else reads.
func (c *Comm) readNews(peer int) {
	if c.poller.Take() {
		c.group.Pump(peer)
		c.poller.Leave()
	}
}

// readLinks reads what has come over the links, unless somebody else reads.
func (c *Comm) readLinks() {
	if c.poller.Take() {
		c.poller.Wait(0)
		c.poller.Leave()
	}
}

// kick has who reads the links look at what he waits for.
func (c *Comm) kick() {
	if c.poller != nil {
		c.poller.Kick()
	}
}
