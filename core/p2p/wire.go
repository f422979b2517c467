package p2p

import (
	"context"
	"encoding/binary"
	"fmt"
	"unsafe"

	"github.com/goccl/goccl/core/exec"
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
	// place says where the data of an offer lies, for a peer that can read it; of is what it says.
	place(s *send) []byte
	placeOf(a *arrival, place []byte) error
	// accept has the data of an offer come into the buffer of a receive.
	accept(r *receive, a *arrival)
	// carry sends the data of an offer that the peer has accepted.
	carry(s *send)
	// gets tells whether the peer reads an offer of so many bytes by itself.
	gets(bytes uint64) bool
	// got checks that the peer could have read an offer by itself.
	got(s *send) error
}

// wireTo is the wire to a peer.
func (e *Engine) wireTo(peer int) wire {
	if e.byMail(peer) {
		return mailWire{e, peer}
	}
	return linkWire{e, peer}
}

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
	return len(payload) <= eagerPortMax && !l.e.links.Advertises(l.peer, payload)
}

func (l linkWire) place(*send) []byte { return nil }

func (l linkWire) placeOf(*arrival, []byte) error { return nil }

func (l linkWire) accept(r *receive, a *arrival) { l.e.take(r, a) }

func (l linkWire) carry(s *send) { l.e.give(&gift{send: s, offer: s.id}) }

func (l linkWire) gets(uint64) bool { return false }

func (l linkWire) got(s *send) error {
	if s.bytes == 0 {
		return nil
	}
	return fmt.Errorf("%w: a send has been got where no memory is shared", exec.ErrProtocol)
}

// mailWire is the mailboxes of two ranks that share memory.
type mailWire struct {
	e    *Engine
	peer int
}

func (m mailWire) tryPost(h transport.Header, payload []byte) bool {
	return m.e.mail.Mapped(m.peer) && m.e.post(m.peer, h, payload)
}

func (m mailWire) post(ctx context.Context, h transport.Header, payload []byte) error {
	return m.e.postWaiting(ctx, m.peer, h, payload)
}

func (m mailWire) begin(s *send) bool {
	if !m.tryPost(s.header, s.first) {
		return false
	}
	s.begun()
	return true
}

func (m mailWire) readNews() { m.e.takeLetters() }

func (m mailWire) eager(payload []byte) bool {
	n := uint64(len(payload))
	return n <= uint64(m.e.Shape.EagerMax) && !m.gets(n)
}

func (m mailWire) place(s *send) []byte {
	return binary.NativeEndian.AppendUint64(nil, uint64(uintptr(s.op.In[0])))
}

func (m mailWire) placeOf(a *arrival, place []byte) error {
	if len(place) != int(unsafe.Sizeof(a.at)) {
		return fmt.Errorf("%w: an offer with %d bytes of payload", exec.ErrProtocol, len(place))
	}
	a.at = binary.NativeEndian.Uint64(place)
	return nil
}

func (m mailWire) accept(r *receive, a *arrival) {
	m.e.accept(&transfer{work: r.work, op: r.op, peer: m.peer, offer: a.offer, get: m.gets(r.bytes),
		at: a.at})
}

func (m mailWire) carry(s *send) { m.e.transfer(&transfer{work: s.work, op: s.op, peer: m.peer}) }

// The receiver decides. The sender assumes that both ranks find the same.
func (m mailWire) gets(bytes uint64) bool {
	least := m.e.Shape.Thresholds.SendGetMin
	return least > 0 && bytes >= uint64(least) && m.e.Window.Reads(m.peer)
}

func (m mailWire) got(*send) error { return nil }
