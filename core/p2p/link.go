package p2p

import (
	"context"
	"time"

	"github.com/goccl/goccl/core/exec"
	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/transport"
	"github.com/goccl/goccl/core/work"
)

const (
	eagerLinkMax = 1 << 20 // bytes of an eager send over a link
	partMost     = 4 << 20 // bytes of a large send that go in one frame
	// inlineTime is how long a send may hold its caller.
	inlineTime = time.Millisecond
	// pushTime is how long a large send may hold a waiter, which may wait for another work.
	pushTime = 10 * time.Millisecond
)

// linkWire is a link.
type linkWire struct {
	e    *Engine
	peer int
}

func (l linkWire) tryPost(h transport.Header, payload []byte) bool {
	return l.e.links.TrySend(l.peer, h, payload)
}

func (l linkWire) post(ctx context.Context, h transport.Header, payload []byte) error {
	return l.e.links.Send(ctx, l.peer, h, payload)
}

func (l linkWire) begin(s *send) bool { return l.e.beginSend(s, s.header, inlineTime) }

func (l linkWire) readNews() {
	if r := l.e.Reader; r.Take() {
		l.e.links.Pump(l.peer)
		r.Leave()
	}
}

func (l linkWire) eager(payload []byte) bool {
	return len(payload) <= eagerLinkMax && !l.e.links.Advertises(l.peer, payload)
}

func (l linkWire) place(*send) []byte { return nil }

func (l linkWire) locate(*arrival, []byte) error { return nil }

// accept leaves the rest to the thread that reads the link.
func (l linkWire) accept(b *bulk, _ uint64) { l.e.reply(l.peer, frameOf(FrameCTS, b.id), nil) }

// carry leaves a send to a waiter that reads the links, or else to a goroutine.
func (l linkWire) carry(s *send) {
	e := l.e
	e.mu.Lock()
	attended := e.pushes.attended
	if attended {
		e.pushes.waiting = append(e.pushes.waiting, s)
	}
	e.mu.Unlock()
	if attended {
		e.kick()
	} else {
		e.pushLater(s)
	}
}

// pushes are the large sends over links whose data a waiter is to send. They are under Engine.mu.
type pushes struct {
	attended bool // a waiter reads the links, and will come to it
	waiting  []*send
}

func (e *Engine) pushLater(s *send) {
	e.peers[s.peer].data.do(e, func() { e.push(s, s.work.Context(), false) })
}

// attendLinks has large sends wait for pushAll, or have them wait no longer.
func (e *Engine) attendLinks(yes bool) {
	e.mu.Lock()
	e.pushes.attended = yes
	rest := e.pushes.waiting
	e.pushes.waiting = nil
	e.mu.Unlock()
	for _, s := range rest {
		e.pushLater(s)
	}
}

// pushAll sends the data of large sends. What a peer does not take soon is left to a goroutine. The
// caller has the reader's token.
func (e *Engine) pushAll() {
	e.mu.Lock()
	list := e.pushes.waiting
	e.pushes.waiting = nil
	e.mu.Unlock()
	for _, s := range list {
		ctx := work.WithDeadline(s.work.Context(), exec.Now()+pushTime)
		if !e.push(s, ctx, true) {
			e.pushLater(s)
		}
		ctx.End()
	}
}

// push sends the data of a large send, which is busy. It tells whether all has gone, or never will.
// It has not if only the context has ended.
func (e *Engine) push(s *send, ctx context.Context, reading bool) bool {
	e.mu.Lock()
	e.to(&s.bulk, moving)
	e.mu.Unlock()
	var failure *fault.Error
	for failure == nil && s.moved < s.bytes {
		h := transport.Header{Type: transport.Data, Flags: LargeSend, Seq: s.id,
			Arg: [2]uint64{s.moved}}
		part := s.memory()[s.moved:min(s.moved+partMost, s.bytes)]
		e.mu.Lock()
		s.reads++ // before the peer can have read it
		e.mu.Unlock()
		advertised, err := e.links.Advertise(ctx, reading, s.peer, h, part)
		if !advertised {
			e.Acked(s.id)
		}
		if err != nil {
			if ctx.Err() != nil && s.work.Context().Err() == nil {
				return false
			}
			failure = e.loseSend(s, err)
		}
		s.moved += uint64(len(part))
	}
	e.pushed(s, failure)
	return true
}

// pushed tells that no thread sends data of a send any more. It is over, unless the peer is still
// to read some.
func (e *Engine) pushed(s *send, failure *fault.Error) {
	e.mu.Lock()
	ended := false
	if failure != nil {
		ended = e.to(&s.bulk, left)
	} else {
		ended, failure = e.letGo(&s.bulk, s.reads == 0)
	}
	e.mu.Unlock()
	e.conclude(&s.bulk, ended, failure)
}

// Acked tells that a frame of a large send needs its memory no more.
func (e *Engine) Acked(id uint64) {
	e.mu.Lock()
	s := e.out[id]
	if s == nil { // it has failed
		e.mu.Unlock()
		return
	}
	s.reads--
	over := s.reads == 0 && !s.busy && e.to(&s.bulk, done)
	e.mu.Unlock()
	if over {
		e.over(&s.bulk, nil)
	}
}
