package p2p

import (
	"fmt"
	"math"

	"github.com/goccl/goccl/core/exec"
	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/reduce"
	"github.com/goccl/goccl/core/transport"
)

// coming is what a frame of data brings that is being read.
type coming struct {
	eager *arrival // nil: it is a part of a large send
	to    *bulk    // whose buffer it comes into; nil: the arrival has the data
}

// Slot tells where the data of a frame from a link goes. It runs, as do Arrived and Dropped, on the
// goroutine or thread that reads the link.
func (e *Engine) Slot(src int, h transport.Header) ([]byte, error) {
	if e.byMail(src) {
		return nil, fmt.Errorf("%w: a send over the link", exec.ErrProtocol)
	}
	return e.slot(src, h)
}

// slot tells where a frame's data goes: into the buffer of the receive that has met its send, or
// else into memory of its own.
func (e *Engine) slot(src int, h transport.Header) ([]byte, error) {
	q := &e.peers[src]
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.failure != nil {
		q.coming = coming{eager: &arrival{source: src}} // of no use to anybody
		return make([]byte, h.Bytes), nil
	}
	if h.Flags == LargeSend {
		b := e.in[pair{src, h.Seq}]
		if h.Seq == 0 || b == nil || h.Arg[0] != b.moved || h.Bytes == 0 ||
			uint64(h.Bytes) > b.bytes-b.moved {
			return nil,
				fmt.Errorf("%w: %d bytes from %d on of send %d, which was not accepted or not so far",
					exec.ErrProtocol, h.Bytes, h.Arg[0], h.Seq)
		}
		e.to(b, moving)
		q.coming, b.busy = coming{to: b}, true
		return b.memory()[b.moved:][:h.Bytes], nil
	}
	a := &arrival{source: src, tag: int(h.Arg[0] >> 8), dtype: reduce.DType(h.Arg[0] & 0xff),
		bytes: uint64(h.Bytes)}
	if !a.dtype.Valid() || h.Arg[0]>>8 > math.MaxInt32 || q.unexpected+a.bytes > e.eagerWindow {
		return nil, fmt.Errorf("%w: an eager send of dtype %d, tag %d, %d bytes", exec.ErrProtocol,
			a.dtype, h.Arg[0]>>8, a.bytes)
	}
	if err := e.count(src); err != nil {
		return nil, err
	}
	if r := e.match.wanting(a); r != nil && r.fits(a) {
		e.match.cancel(r)
		r.work.SetSource(src)
		r.peer, r.busy = src, true
		e.in[pair{src, 0}] = &r.bulk
		e.to(&r.bulk, moving)
		q.coming = coming{a, &r.bulk}
		return r.memory(), nil
	}
	q.unexpected += a.bytes
	a.data = e.buffers.get(a.bytes)
	q.coming = coming{eager: a}
	return a.data, nil
}

// Arrived tells that the data of the frame last asked a slot for is there.
func (e *Engine) Arrived(src int, h transport.Header) {
	q := &e.peers[src]
	c := q.coming
	q.coming = coming{}
	if c.to == nil {
		e.arrive(c.eager)
		return
	}
	e.mu.Lock()
	c.to.moved += uint64(h.Bytes)
	ended, cause := e.letGo(c.to, c.to.moved == c.to.bytes)
	e.mu.Unlock()
	if ended && cause == nil && c.eager != nil {
		e.consumed(c.eager)
	}
	e.conclude(c.to, ended, cause)
}

// Dropped tells that it will not come.
func (e *Engine) Dropped(src int) {
	q := &e.peers[src]
	b := q.coming.to
	q.coming = coming{}
	if b == nil {
		return
	}
	e.mu.Lock()
	ended, cause := e.letGo(b, false)
	e.mu.Unlock()
	e.conclude(b, ended, cause)
}

// consumed counts a send that has met a receive, and tells the sender now and then.
func (e *Engine) consumed(a *arrival) {
	if a.uncounted {
		return
	}
	q := &e.peers[a.source]
	e.mu.Lock()
	q.unexpected -= uint64(len(a.data))
	q.Taken++
	if a.id == 0 {
		q.Received += a.bytes
	}
	bytes, number := q.Received, q.Taken
	tell := bytes-q.Told >= e.eagerWindow/4 || number-q.ToldTaken >= max(e.most/4, 1)
	if tell {
		q.Told, q.ToldTaken = bytes, number
	}
	e.mu.Unlock()
	if tell {
		e.reply(a.source, transport.Header{Type: FrameCredit, Arg: [2]uint64{bytes, number}}, nil)
	}
}

// Control takes a frame of the protocol, and tells whether a correct peer sends such. It runs on
// the goroutine or thread that reads a link, or where packets are collected.
func (e *Engine) Control(src int, h transport.Header, payload []byte) error {
	switch h.Type {
	case FrameRTS, FrameProbe:
		return e.requested(src, h, payload)
	case FrameNotNow:
		e.notNow(h.Seq, src)
	case FrameWanted:
		if h.Arg[0] > math.MaxInt32 {
			return fmt.Errorf("%w: it wants tag %d", exec.ErrProtocol, h.Arg[0])
		}
		e.wantsHeld(src, int(h.Arg[0]))
	case FrameNoneHeld:
		e.mu.Lock()
		defer e.mu.Unlock()
		e.setHolds(src, false)
	case FrameCTS:
		if s := e.answered(h.Seq, src, accepted); s != nil { // else it has failed, or is another's
			e.peers[src].wire.carry(s)
		}
	case FrameFIN:
		return e.finished(src, h.Seq)
	case FrameReject:
		if s := e.answered(h.Seq, src, done); s != nil {
			e.over(&s.bulk, e.ended(s.op, e.Members.Decode(fault.ErrMismatch, payload)))
		}
	case FrameCredit:
		e.mu.Lock()
		defer e.mu.Unlock()
		q := &e.peers[src]
		if h.Arg[0] > q.EagerSent || h.Arg[1] > q.Sent {
			return fmt.Errorf("%w: it received %d eager bytes of %d, %d sends of %d", exec.ErrProtocol,
				h.Arg[0], q.EagerSent, h.Arg[1], q.Sent)
		}
		q.EagerDone, q.Done = max(q.EagerDone, h.Arg[0]), max(q.Done, h.Arg[1])
		e.release(src)
	default:
		return fmt.Errorf("%w: a frame of type %d", exec.ErrProtocol, h.Type)
	}
	return nil
}

// requested takes an RTS or a probe.
func (e *Engine) requested(src int, h transport.Header, place []byte) error {
	a := &arrival{source: src, tag: int(h.Arg[0] >> 8), dtype: reduce.DType(h.Arg[0] & 0xff),
		bytes: h.Arg[1], id: h.Seq}
	if !a.dtype.Valid() || h.Arg[0]>>8 > math.MaxInt32 || a.id == 0 {
		return fmt.Errorf("%w: RTS %d of dtype %d, tag %d", exec.ErrProtocol, a.id, a.dtype,
			h.Arg[0]>>8)
	}
	if err := e.peers[src].wire.locate(a, place); err != nil {
		return err
	}
	if h.Type == FrameProbe {
		return e.probed(a)
	}
	e.mu.Lock()
	err := e.count(src)
	e.mu.Unlock()
	if err == nil {
		e.arrive(a)
	}
	return err
}

// finished takes a FIN.
func (e *Engine) finished(src int, id uint64) error {
	s := e.answered(id, src, done)
	if s == nil {
		return nil
	}
	if s.bytes > 0 && e.Ports[src] {
		err := fmt.Errorf("%w: data has been read where no memory is shared", exec.ErrProtocol)
		e.over(&s.bulk, e.ended(s.op, e.broken(src, err)))
		return err
	}
	e.over(&s.bulk, nil)
	return nil
}
