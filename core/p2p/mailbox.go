package p2p

import (
	"context"
	"fmt"
	"time"

	"github.com/goccl/goccl/core/exec"
	"github.com/goccl/goccl/core/fault"
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

var errUnmapped = fmt.Errorf("%w: its window could not be mapped", exec.ErrProtocol)

// postWaiting puts a frame into a peer's mailbox once there is room for it.
func (e *Engine) postWaiting(
	ctx context.Context, peer int, h transport.Header, payload []byte,
) error {
	mail := e.mail
	for {
		if err := e.links.Connect(ctx, peer); err != nil { // also of a peer that has left meanwhile
			return err
		}
		if !mail.Mapped(peer) {
			return errUnmapped // and the communicator has failed
		}
		if e.post(peer, h, payload) {
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
func (e *Engine) post(peer int, h transport.Header, payload []byte) bool {
	posted, seen := e.mail.Post(peer, exec.Letter{Type: h.Type, Seq: h.Seq, Arg: h.Arg},
		payload)
	switch {
	case seen:
	case !posted:
		e.links.Notify(peer, transport.Header{Type: FrameMail})
	case h.Type != transport.Data:
		e.peers[peer].unannounced.Store(true)
		e.unannounced.Store(true)
		e.attention.later()
	}
	return posted
}

// announce tells the peers who do not look for letters of those that need them, and whether there
// were some. It is put off for a while, in which a peer mostly comes to look.
func (e *Engine) announce() (any bool) {
	if !e.unannounced.Swap(false) {
		return false
	}
	for peer := range e.peers {
		if e.peers[peer].unannounced.Swap(false) && e.mail.Unread(peer) {
			e.links.Notify(peer, transport.Header{Type: FrameMail})
			any = true
		}
	}
	return any
}

// violation fails the communicator because a peer sent what no correct peer sends.
func (e *Engine) violation(src int, err error) {
	e.face.Fail(e.Members.Errorf(fault.ErrInternal, "from %s: %v", e.Members.Names(src), err))
}

// Told takes the news that letters lie in the mailboxes.
func (e *Engine) Told() {
	e.collect()
	e.Works.Spawn(func() { e.background() })
}

// collect takes the letters out of the mailboxes.
func (e *Engine) collect() {
	e.enter()
	defer e.exit()
	e.takeLetters()
}

// takeLetters is collect for a caller that has entered.
func (e *Engine) takeLetters() {
	mail := e.mail
	e.reading.Lock()
	defer e.reading.Unlock()
	if e.reading.closed {
		return
	}
	for peer := range e.size {
		for {
			l, ok, err := mail.Next(peer)
			if ok {
				err = e.letter(peer, l)
			}
			if err != nil {
				// Not here: the failure waits for who reads.
				e.Works.Spawn(func() { e.violation(peer, err) })
				return
			}
			if !ok {
				break
			}
		}
	}
}

// letter takes a letter.
func (e *Engine) letter(src int, l exec.Letter) error {
	mail := e.mail
	if !e.byMail(src) {
		return fmt.Errorf("%w: a letter, where none are sent", exec.ErrProtocol)
	}
	h := transport.Header{Type: l.Type, Seq: l.Seq, Arg: l.Arg, Bytes: l.Bytes}
	if l.Type != transport.Data {
		if l.Bytes > transport.MaxControl {
			return fmt.Errorf("%w: a letter of %d bytes", exec.ErrProtocol, l.Bytes)
		}
		payload := make([]byte, l.Bytes)
		mail.Take(src, l, payload)
		return e.Control(src, h, payload)
	}
	h.Flags = EagerSend
	data, err := e.slot(src, h)
	if err != nil {
		return err
	}
	mail.Take(src, l, data)
	e.Arrived(src, h)
	return nil
}
