package core

import (
	"context"
	"fmt"
	"time"

	"github.com/goccl/goccl/core/call"
	"github.com/goccl/goccl/core/exec"
	"github.com/goccl/goccl/core/transport"
)

// The frames of the point-to-point protocol go as letters between ranks that share memory. A waiter
// finds them by looking. Where none looks, an eager send lies in the mailbox until one does, or a
// test, or until the mailbox is full; of anything else the rank is told over the link, a little
// later.

const (
	// letterSlice is how long a wait for letters, or for room, lasts before the waiter looks around.
	letterSlice = 100 * time.Millisecond
	// announceDelay is for how long a peer is left to find a letter by itself, while this rank waits
	// for it.
	announceDelay = 100 * time.Microsecond
)

// byMail tells whether letters pass between this rank and a peer; of AnySource, whether some do.
func (c *epoch) byMail(peer int) bool { return c.joined(peer, false) }

// byLink tells whether sends and receives between this rank and a peer go over a link; of
// AnySource, whether some do.
func (c *epoch) byLink(peer int) bool { return c.joined(peer, true) }

// joined tells whether a peer, or any, is joined to this rank by a port, or by memory.
func (c *epoch) joined(peer int, port bool) bool {
	if peer != call.AnySource {
		return peer != c.rank && c.port(peer) == port
	}
	for r := range c.size {
		if c.joined(r, port) {
			return true
		}
	}
	return false
}

var errUnmapped = fmt.Errorf("%w: its window could not be mapped", exec.ErrProtocol)

// postWaiting puts a frame into a peer's mailbox once there is room for it.
func (p *pointToPoint) postWaiting(
	ctx context.Context, peer int, h transport.Header, payload []byte,
) error {
	mail := p.c.window.Mail()
	for {
		if err := p.c.group.Connect(ctx, peer); err != nil { // also of a peer that has left meanwhile
			return err
		}
		if !mail.Mapped(peer) {
			return errUnmapped // and the communicator has failed
		}
		if p.post(peer, h, payload) {
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		until := exec.Now() + letterSlice
		if t, ok := ctx.Deadline(); ok {
			until = min(until, exec.Now()+time.Until(t))
		}
		mail.AwaitRoom(peer, len(payload), until)
	}
}

// post puts a frame into a peer's mailbox, if there is room for it.
func (p *pointToPoint) post(peer int, h transport.Header, payload []byte) bool {
	posted, seen := p.c.window.Mail().Post(peer, exec.Letter{Type: h.Type, Seq: h.Seq, Arg: h.Arg},
		payload)
	switch {
	case seen:
	case !posted:
		p.c.group.Notify(peer, transport.Header{Type: frameMail})
	case h.Type != transport.Data:
		p.peers[peer].unannounced.Store(true)
		p.unannounced.Store(true)
		p.attention.later()
	}
	return posted
}

// announce tells the peers who do not look for letters of those that need them, and whether there
// were some. It is put off for a while, in which a peer mostly comes to look.
func (p *pointToPoint) announce() (any bool) {
	if !p.unannounced.Swap(false) {
		return false
	}
	for peer := range p.peers {
		if p.peers[peer].unannounced.Swap(false) && p.c.window.Mail().Unread(peer) {
			p.c.group.Notify(peer, transport.Header{Type: frameMail})
			any = true
		}
	}
	return any
}

// collect takes the letters out of the mailboxes.
func (p *pointToPoint) collect() {
	p.enter()
	defer p.exit()
	p.takeLetters()
}

// takeLetters is collect for a caller that has entered.
func (p *pointToPoint) takeLetters() {
	mail := p.c.window.Mail()
	p.reading.Lock()
	defer p.reading.Unlock()
	if p.reading.closed {
		return
	}
	for peer := range p.c.size {
		for {
			l, ok, err := mail.Next(peer)
			if ok {
				err = p.letter(peer, l)
			}
			if err != nil {
				// Not here: the failure waits for who reads.
				p.c.spawn(func() { handler{p.c}.violation(peer, err) })
				return
			}
			if !ok {
				break
			}
		}
	}
}

// letter takes a letter.
func (p *pointToPoint) letter(src int, l exec.Letter) error {
	mail := p.c.window.Mail()
	if !p.c.byMail(src) {
		return fmt.Errorf("%w: a letter, where none are sent", exec.ErrProtocol)
	}
	h := transport.Header{Type: l.Type, Seq: l.Seq, Arg: l.Arg, Bytes: l.Bytes}
	if l.Type != transport.Data {
		if l.Bytes > transport.MaxControl {
			return fmt.Errorf("%w: a letter of %d bytes", exec.ErrProtocol, l.Bytes)
		}
		payload := make([]byte, l.Bytes)
		mail.Take(src, l, payload)
		return p.control(src, h, payload)
	}
	h.Flags = eagerSend
	data, err := p.slot(src, h)
	if err != nil {
		return err
	}
	mail.Take(src, l, data)
	p.arrived(src, h)
	return nil
}
