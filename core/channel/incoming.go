package channel

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/goccl/goccl/core/exec"
	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/transport"
)

// coming is what a frame of data brings that is being read.
type coming struct {
	memory  *Memory // of a put; nil: it is no more
	get     *get
	number  uint64 // of the get
	signals uint64 // that come with it
	end     uint64 // of whom
}

func ownerText(owner uint64) []byte { return binary.LittleEndian.AppendUint64(nil, owner) }

func violation(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{exec.ErrProtocol}, args...)...)
}

// Slot tells where the payload of a frame goes. It runs, as do Arrived and Dropped, on the
// goroutine or thread that reads the link.
func (e *Engine) Slot(src int, h transport.Header) ([]byte, error) {
	if h.Bytes > pieceMost {
		return nil, violation("a piece of %d bytes, allowed are %d", h.Bytes, pieceMost)
	}
	if h.Flags == gotData {
		return e.slotOfGet(src, h)
	}
	e.mu.Lock()
	_, err := e.endOf(src, h.Seq)
	e.mu.Unlock()
	if err != nil {
		return nil, err
	}
	id, signals := h.Arg[0]&math.MaxUint32, h.Arg[0]>>32
	m, err := e.Memories.hold(id, exec.RemoteWrite, h.Arg[1], uint64(h.Bytes))
	if err != nil {
		return nil, err
	}
	e.peers[src].coming = coming{memory: m, signals: signals, end: h.Seq}
	if m == nil {
		e.peers[src].coming.signals = 0 // of a put with signals the peer sees both or none
		e.lose(src, h.Seq, id)
		return make([]byte, h.Bytes), nil // of no use to anybody
	}
	return m.memory()[h.Arg[1]:][:h.Bytes], nil
}

// Arrived tells that the payload of the frame last asked a slot for is there.
func (e *Engine) Arrived(src int, h transport.Header) error {
	c := e.take(src)
	if c.memory != nil {
		e.Memories.let(c.memory)
	}
	if c.get != nil {
		e.pieceOver(c.number, c.get, h.Bytes)
	}
	if c.signals > 0 {
		return e.arrived(src, c.end, c.signals)
	}
	return nil
}

// Dropped tells that it will not come: the link has ended, or the peer, which has failed, has taken
// back what was to be read.
func (e *Engine) Dropped(src int) {
	c := e.take(src)
	e.peers[src].cut = true
	if c.memory != nil {
		e.Memories.let(c.memory)
	}
	if c.get != nil {
		e.pieceOver(c.number, c.get, 0)
	}
}

// take returns what a peer's frame brings, once.
func (e *Engine) take(src int) coming {
	c := e.peers[src].coming
	e.peers[src].coming = coming{}
	return c
}

// endOf returns this rank's end of a frame; nil: it has been closed. It is called with mu held.
func (e *Engine) endOf(src int, id uint64) (*Channel, error) {
	c := e.ends[id]
	if id == 0 || id > e.lastID || c != nil && c.peer != src {
		return nil, violation("a frame for end %d, which was not opened to it", id)
	}
	return c, nil
}

// arrived counts signals.
func (e *Engine) arrived(src int, id, n uint64) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	c, err := e.endOf(src, id)
	switch {
	case n == 0:
		return violation("0 signals")
	case c == nil:
		return err
	case !c.end.Arrived(n):
		return violation("%d signals, with which they are more than 2^64 - 1", n)
	}
	c.changed.tell()
	return nil
}

// lose notes that what a peer has put went to memory that is no more.
func (e *Engine) lose(src int, id, memory uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if c := e.ends[id]; c != nil {
		c.refused = memory
	}
}

// Control takes a frame of the protocol, and reports whether a correct peer sends such.
func (e *Engine) Control(src int, h transport.Header, payload []byte) error {
	if n := e.peers[src].answers.Load(); n > mostAnswers {
		return violation("it takes none of the %d answers to what it has asked", n)
	}
	if e.peers[src].cut && h.Type >= quickFirst && h.Type != frameFlushed {
		return nil // else who takes a signal, or is told of a flush, would miss what was put before
	}
	switch h.Type {
	case frameOpen:
		return e.opened(src, h, payload)
	case frameClose:
		return e.closedByPeer(src, h.Seq)
	case frameClosed:
		return e.closeAnswered(src, h.Seq)
	case frameDrop:
		e.settle(e.answer(src, transport.Header{Type: frameDropped, Seq: h.Seq}))
		return nil
	case frameDropped:
		return e.Memories.answered(e, h.Seq, src)
	case frameSignal:
		return e.arrived(src, h.Seq, h.Arg[0])
	case frameGet:
		return e.asked(src, h, payload)
	case frameNoGet:
		return e.noGet(src, h.Seq)
	case frameFlush:
		return e.flushAsked(src, h)
	case frameFlushed:
		return e.flushed(src, h)
	}
	return violation("a frame of type %d", h.Type)
}

// flushAsked takes a FLUSH: all frames before it are in place.
func (e *Engine) flushAsked(src int, h transport.Header) error {
	e.mu.Lock()
	c, err := e.endOf(src, h.Seq)
	if c == nil { // it was closed: the peer is told of that
		e.mu.Unlock()
		return err
	}
	// Its OPEN may come later: that is handled by another goroutine.
	answer := transport.Header{Type: frameFlushed, Seq: h.Arg[1], Arg: [2]uint64{h.Arg[0], c.refused}}
	c.refused = 0
	e.mu.Unlock()
	if !e.links.TrySend(src, answer) {
		e.answer(src, answer)()
	}
	return nil
}

// flushed takes the answer to a flush.
func (e *Engine) flushed(src int, h transport.Header) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	c, err := e.endOf(src, h.Seq)
	if c == nil {
		return err
	}
	if h.Arg[0] > c.flushes.begun {
		return violation("it answers to flush %d, the last was %d", h.Arg[0], c.flushes.begun)
	}
	if h.Arg[1] != 0 {
		err := c.errorf(fault.ErrInvalidHandle, "flush", "what was put is lost: its owner had "+
			"deregistered the memory before it came")
		c.lost.add(loss{after: c.flushes.ended, by: h.Arg[0], err: err}, c.flushes.ended)
	}
	c.flushes.ended = max(c.flushes.ended, h.Arg[0])
	c.changed.tell()
	return nil
}
