package core

import (
	"time"

	"github.com/goccl/goccl/core/call"
	"github.com/goccl/goccl/core/work"
)

// transit is where the sends and receives of a work get on: mailboxes, links, or both.
type transit struct {
	c           *epoch
	mail, links bool
	peer        int    // of the only send or receive; -1: there are several, or it comes from any rank
	bytes       uint64 // of the longest
}

// transitOf is nil where the operations exchange nothing with peers.
func (c *epoch) transitOf(operations []call.Operation) work.Source {
	t := transit{c: c, peer: -1}
	for i := range operations {
		op := &operations[i]
		if !op.PointToPoint() {
			continue
		}
		t.mail = t.mail || c.byMail(op.Root)
		t.links = t.links || c.byLink(op.Root)
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
	case t.c.failed() != nil:
		return nil
	case t.mail:
		return t.c.p2p.token
	}
	return t.c.poller.Token()
}

// Drive implements work.Driver.
func (t *transit) Drive(w *work.Work, until time.Duration) (more bool) {
	if t.mail {
		return t.c.p2p.attend(w, until)
	}
	return t.readLinks(w, until)
}

// Poll implements work.Source.
func (t *transit) Poll(w *work.Work) {
	if t.mail {
		t.c.p2p.collect()
	}
	if t.links && !w.Ended() {
		t.c.readLinks()
	}
}

// Wake implements work.Source.
func (t *transit) Wake() {
	if t.mail {
		t.c.window.Mail().Ring()
	}
	if t.links {
		t.c.kick()
	}
}

// Relieve implements work.Source.
func (t *transit) Relieve() {
	if t.links {
		t.c.poller.YieldProgress()
	}
}

// Detach implements work.Source. Links are read without a waiter; mailboxes are not.
func (t *transit) Detach(w *work.Work) {
	if t.mail {
		t.c.spawn(func() { _, _ = w.Wait(-1) })
	}
}
