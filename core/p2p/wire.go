package p2p

import (
	"context"

	"github.com/goccl/goccl/core/transport"
)

// wire carries sends to one peer, and receives from it, of which the engine decides what happens.
// It is chosen once for each peer: its link, or mailboxes where the two share memory.
type wire interface {
	// tryPost carries a frame if that takes no waiting, and tells whether it did.
	tryPost(h transport.Header, payload []byte) bool
	// post carries a frame. Nothing of it is sent when there is an error.
	post(ctx context.Context, h transport.Header, payload []byte) error
	// begin carries the first frame of a send on the thread that calls it, if that takes little
	// waiting. It tells whether that is over, well or not.
	begin(s *send) bool
	// readNews handles what the peer has sent, unless another thread does.
	readNews()

	// eager tells whether a payload is small enough to go at once, and of no use to a peer that reads
	// it by itself.
	eager(payload []byte) bool
	// place is what an RTS says of where its data lies, for a peer that can read it; locate notes it.
	place(s *send) []byte
	locate(a *arrival, place []byte) error
	// accept has data come to a receive, which lies at a place of the sender's memory.
	accept(b *bulk, at uint64)
	// carry sends the data of a send that the peer has accepted.
	carry(s *send)
}

// wireTo is the wire to a peer.
func (e *Engine) wireTo(peer int) wire {
	if e.byMail(peer) {
		return mailWire{e, peer}
	}
	return linkWire{e, peer}
}

// frameOf is a frame about a large send.
func frameOf(kind uint8, id uint64) transport.Header {
	return transport.Header{Type: kind, Seq: id}
}
