package p2p

import (
	"context"
	"encoding/binary"
	"fmt"
	"time"
	"unsafe"

	"github.com/goccl/goccl/core/exec"
	"github.com/goccl/goccl/core/transport"
)

// The frames of the protocol go as packets between ranks that share memory. A waiter finds them by
// looking. Where none looks, an eager packet lies in the mailbox until one does, or a test, or
// until the mailbox is full; of any other the rank is told over the link, a little later.

const (
	// mailSlice is how long a wait for packets, or for room, lasts before the waiter looks around.
	mailSlice = 100 * time.Millisecond
	// announceDelay is for how long a peer is left to find a packet by itself, while this rank waits
	// for it.
	announceDelay = 100 * time.Microsecond
)

var errUnmapped = fmt.Errorf("%w: its window could not be mapped", exec.ErrProtocol)

// mailWire is the mailboxes of two ranks that share memory.
type mailWire struct {
	e    *Engine
	peer int
}

func (m mailWire) tryPost(h transport.Header, payload []byte) bool {
	return m.e.mail.Mapped(m.peer) && m.push(h, payload)
}

func (m mailWire) begin(s *send) bool {
	if !m.tryPost(s.header, s.first) {
		return false
	}
	m.e.sent(s)
	return true
}

func (m mailWire) readNews() { m.e.takePackets() }

func (m mailWire) eager(payload []byte) bool {
	n := uint64(len(payload))
	return n <= uint64(m.e.Shape.EagerMax) && !m.e.copies(m.peer, n)
}

func (m mailWire) place(s *send) []byte {
	return binary.NativeEndian.AppendUint64(nil, uint64(uintptr(s.op.In[0])))
}

func (m mailWire) locate(a *arrival, place []byte) error {
	if len(place) != int(unsafe.Sizeof(a.at)) {
		return fmt.Errorf("%w: an RTS with %d bytes of payload", exec.ErrProtocol, len(place))
	}
	a.at = binary.NativeEndian.Uint64(place)
	return nil
}

func (m mailWire) accept(b *bulk, at uint64) {
	if m.e.copies(m.peer, b.bytes) {
		m.e.acceptCopy(&transfer{bulk: b, copies: true, at: at})
	} else {
		m.e.acceptPlans(&transfer{bulk: b})
	}
}

func (m mailWire) carry(s *send) { m.e.enqueue(&transfer{bulk: &s.bulk}) }

// copies tells whether the receiver of a large send copies it from the memory of its sender. The
// receiver decides; the sender assumes that both ranks find the same.
func (e *Engine) copies(peer int, bytes uint64) bool {
	least := e.Shape.Thresholds.SendGetMin
	return least > 0 && bytes >= uint64(least) && e.byMail(peer) && e.Window.Reads(peer)
}

// post puts a frame into the peer's mailbox once there is room for it.
func (m mailWire) post(ctx context.Context, h transport.Header, payload []byte) error {
	e := m.e
	for {
		// The peer may have left meanwhile.
		if err := e.links.Connect(ctx, m.peer); err != nil {
			return err
		}
		if !e.mail.Mapped(m.peer) {
			return errUnmapped // and the communicator has failed
		}
		if m.push(h, payload) {
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		until := exec.Now() + mailSlice
		if t, ok := ctx.Deadline(); ok {
			until = min(until, exec.Later(exec.Now(), time.Until(t)))
		}
		e.mail.AwaitRoom(m.peer, len(payload), until)
	}
}

// push puts a frame into the peer's mailbox, if there is room for it.
func (m mailWire) push(h transport.Header, payload []byte) bool {
	e := m.e
	pushed, seen := e.mail.Post(m.peer, exec.Packet{Type: h.Type, Seq: h.Seq, Arg: h.Arg}, payload)
	switch {
	case seen:
	case !pushed:
		e.links.Notify(m.peer, transport.Header{Type: FrameMail}, nil)
	case h.Type != transport.Data:
		e.peers[m.peer].unannounced.Store(true)
		e.unannounced.Store(true)
		e.attention.later()
	}
	return pushed
}

// announce tells the peers that do not look for packets of those that need them, and whether there
// were some. It is put off for a while, in which a peer mostly comes to look.
func (e *Engine) announce() (any bool) {
	if !e.unannounced.Swap(false) {
		return false
	}
	for peer := range e.peers {
		if e.peers[peer].unannounced.Swap(false) && e.mail.Unread(peer) {
			e.links.Notify(peer, transport.Header{Type: FrameMail}, nil)
			any = true
		}
	}
	return any
}

// Told takes the news that packets lie in the mailboxes.
func (e *Engine) Told() {
	e.collect()
	e.Works.Spawn(func() { e.background() })
}

// collect takes the packets out of the mailboxes.
func (e *Engine) collect() {
	e.enter()
	defer e.exit()
	e.takePackets()
}

// takePackets is collect for a caller that has entered.
func (e *Engine) takePackets() {
	e.reading.Lock()
	defer e.reading.Unlock()
	if e.reading.closed {
		return
	}
	for peer := range e.size {
		for {
			l, ok, err := e.mail.Next(peer)
			if ok {
				err = e.takePacket(peer, l)
			}
			if err != nil {
				// Not here: the failure waits for the thread that reads.
				e.Works.Spawn(func() { e.face.Fail(e.broken(peer, err)) })
				return
			}
			if !ok {
				break
			}
		}
	}
}

func (e *Engine) takePacket(src int, l exec.Packet) error {
	if !e.byMail(src) {
		return fmt.Errorf("%w: a packet, where none are sent", exec.ErrProtocol)
	}
	h := transport.Header{Type: l.Type, Seq: l.Seq, Arg: l.Arg, Bytes: l.Bytes}
	if l.Type != transport.Data {
		if l.Bytes > transport.MaxControl {
			return fmt.Errorf("%w: a packet of %d bytes", exec.ErrProtocol, l.Bytes)
		}
		payload := make([]byte, l.Bytes)
		e.mail.Take(src, l, payload)
		return e.Control(src, h, payload)
	}
	h.Flags = EagerSend
	data, err := e.slot(src, h)
	if err != nil {
		return err
	}
	e.mail.Take(src, l, data)
	e.Arrived(src, h)
	return nil
}
