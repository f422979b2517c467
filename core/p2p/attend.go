package p2p

import (
	"slices"
	"sync/atomic"
	"time"

	"github.com/goccl/goccl/core/call"
	"github.com/goccl/goccl/core/exec"
	"github.com/goccl/goccl/core/work"
)

func (e *Engine) hasTransfers() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.transfers > 0
}

// after calls a function on a goroutine after a time, unless the communicator has failed.
func (e *Engine) after(d time.Duration, f func()) {
	time.AfterFunc(d, func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		if e.failure == nil {
			e.Works.Spawn(f)
		}
	})
}

// background does what waiters have left over: it announces packets, and attends where there are
// transfers and no thread does. It tells whether there was anything left over.
func (e *Engine) background() bool {
	e.enter()
	defer e.exit()
	found := e.announce()
	if found {
		e.attention.found()
	}
	if e.hasTransfers() {
		select {
		case e.token <- struct{}{}:
			e.attention.found()
			e.attend(nil, call.AnySource, exec.Never)
			return true
		default:
		}
	}
	return found
}

// attend looks for packets and carries the transfers on, in the manner of work.Driver: until a work
// has ended (nil: until there is no transfer left), or until a time. Peer is whom the work needs;
// AnySource: it is not known.
func (e *Engine) attend(w *work.Work, peer int, until time.Duration) bool {
	e.enter()
	defer e.exit()
	mail := e.mail
	over := new(atomic.Uint32) // never
	if w != nil {
		over = w.Flag()
	}
	if e.Reader != nil && !e.Shape.AllMemory { // another thread reads the links meanwhile
		e.Reader.StartProgress()
		defer e.Reader.StopProgress()
	}
	mail.Poll(1)
	announceAt := time.Duration(0)
	for {
		e.takePackets()
		heads, more := e.advance()
		now := exec.Now()
		if over.Load() != 0 || w == nil && len(heads) == 0 && !e.hasTransfers() || now >= until ||
			e.face.Failed() != nil {
			break
		}
		runs := make([]*exec.Run, len(heads))
		for i, t := range heads {
			runs[i] = e.queueOf(t).run
		}
		next := min(until, now+mailSlice)
		switch {
		case !e.unannounced.Load():
			announceAt = 0
		case announceAt == 0:
			announceAt = now + announceDelay
		case now >= announceAt:
			e.announce()
			announceAt = 0
		}
		if announceAt != 0 {
			next = min(next, announceAt)
		}
		switch {
		case more && len(runs) == 0:
			continue
		case more: // the runs get on between two parts
			next = now
		}
		why, run, status := mail.Await(runs, over, peer, w != nil, next)
		if why == exec.Ran {
			e.ran(heads[slices.Index(runs, run)], status)
		}
	}
	mail.Poll(-1)
	e.takePackets()
	if err := e.face.Failed(); err != nil {
		e.endTransfersHeld(err)
	}
	<-e.token
	// Only now: a thread that came with something while the token was held has left it to this one.
	if err := e.face.Failed(); err != nil {
		e.endTransfers(err)
	} else if e.hasTransfers() || e.unannounced.Load() {
		e.attention.later()
	}
	return w != nil && !w.Ended() && exec.Now() < until
}
