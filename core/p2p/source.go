package p2p

import (
	"time"

	"github.com/goccl/goccl/core/call"
	"github.com/goccl/goccl/core/exec"
	"github.com/goccl/goccl/core/work"
)

// transit is where the sends and receives of a work get on: mailboxes, links, or both.
type transit struct {
	e           *Engine
	mail, links bool
	peer        int    // of the only send or receive; -1: there are several, or it comes from any rank
	bytes       uint64 // of the longest
}

// Source is where operations get on; nil where the operations exchange nothing with peers.
func (e *Engine) Source(operations []call.Operation) work.Source {
	t := transit{e: e, peer: -1}
	for i := range operations {
		op := &operations[i]
		if !op.PointToPoint() {
			continue
		}
		t.mail = t.mail || e.byMail(op.Root)
		t.links = t.links || e.byLink(op.Root)
		t.bytes = max(t.bytes, op.Length())
		if len(operations) == 1 {
			t.peer = op.Root
		}
	}
	if !t.mail && !t.links {
		return nil
	}
	return &t
}

// Token implements work.Driver.
func (t *transit) Token(*work.Work) work.Token {
	switch {
	case t.e.face.Failed() != nil:
		return nil
	case t.mail:
		return t.e.token
	}
	return t.e.Reader.Token()
}

// Drive implements work.Driver.
func (t *transit) Drive(w *work.Work, until time.Duration) (more bool) {
	if t.mail {
		return t.e.attend(w, t.peer, until)
	}
	return t.readLinks(w, until)
}

// Poll implements work.Source.
func (t *transit) Poll(w *work.Work) {
	if t.mail {
		t.e.collect()
	}
	if t.links && !w.Ended() {
		if r := t.e.Reader; r.Take() {
			r.Wait(0)
			r.Leave()
		}
	}
}

// Wake implements work.Source.
func (t *transit) Wake() {
	if t.mail {
		t.e.mail.Ring()
	}
	if t.links {
		t.e.kick()
	}
}

// Relieve implements work.Source.
func (t *transit) Relieve() {
	if t.links {
		t.e.Reader.YieldProgress()
	}
}

// Detach implements work.Source. Links are read without a waiter; mailboxes are not.
func (t *transit) Detach(w *work.Work) {
	if t.mail {
		t.e.Works.Spawn(func() { _, _ = w.Wait(-1) })
	}
}

// readLinks is Drive by reading the links.
func (t *transit) readLinks(w *work.Work, until time.Duration) (more bool) {
	e := t.e
	defer e.Reader.Leave()
	e.attendLinks(true)
	defer e.attendLinks(false)
	for polls := e.Waiting.PortPollsFor(t.bytes); !w.Ended(); polls-- {
		switch now := exec.Now(); {
		case now >= until, polls > 0 && t.peer < 0:
			e.Reader.Wait(0)
		case polls > 0:
			e.links.Pump(t.peer)
		default:
			e.Reader.Wait(min(until-now, work.Slice))
		}
		e.pushAll()
		switch {
		case exec.Now() >= until:
			return false
		case e.face.Failed() != nil:
			return true
		case polls > 0 && !w.Ended():
			exec.YieldCPU()
		}
	}
	return false
}

// kick has the thread that reads the links look at what it waits for.
func (e *Engine) kick() {
	if e.Reader != nil {
		e.Reader.Kick()
	}
}
