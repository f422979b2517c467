package p2p

import (
	"fmt"
	"math"

	"github.com/goccl/goccl/core/exec"
	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/reduce"
	"github.com/goccl/goccl/core/transport"
)

// Slot tells where the data of a frame from a link goes. It runs, as do Arrived and Dropped, on the
// goroutine or thread that reads the link.
func (e *Engine) Slot(src int, h transport.Header) ([]byte, error) {
	if e.byMail(src) {
		return nil, fmt.Errorf("%w: a send over the link", exec.ErrProtocol)
	}
	return e.slot(src, h)
}

// slot tells where a frame's data goes: into the buffer of the receive that has accepted it, or
// that an eager send meets, or else into memory of its own.
func (e *Engine) slot(src int, h transport.Header) ([]byte, error) {
	q := &e.peers[src]
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.failure != nil {
		q.coming = &arrival{source: src} // of no use to anybody
		return make([]byte, h.Bytes), nil
	}
	if h.Flags == LargeSend {
		a := q.accepted[h.Seq]
		if a == nil || h.Arg[0] != a.come || h.Bytes == 0 || uint64(h.Bytes) > a.bytes-a.come {
			return nil,
				fmt.Errorf("%w: %d bytes from %d on of send %d, which was not accepted or not so far",
					exec.ErrProtocol, h.Bytes, h.Arg[0], h.Seq)
		}
		q.coming, a.receive.reading = a, true
		return a.receive.buffer()[a.come:][:h.Bytes], nil
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
	q.coming = a
	if r := e.match.wanting(a); r != nil && r.bytes == a.bytes && r.op.DType == a.dtype {
		e.match.cancel(r)
		r.work.SetSource(src)
		a.receive, e.filling[r], r.from, r.reading = r, true, src, true
		return r.buffer(), nil
	}
	q.unexpected += a.bytes
	a.data = e.held.get(a.bytes)
	return a.data, nil
}

// Arrived tells that the data of the frame last asked a slot for is there.
func (e *Engine) Arrived(src int, h transport.Header) {
	switch a, complete := e.read(src, uint64(h.Bytes), true); {
	case a.receive == nil:
		e.arrive(a)
	case complete:
		if h.Flags == EagerSend {
			e.consumed(a)
		}
		a.receive.work.End(nil)
	}
}

// Dropped tells that it will not come.
func (e *Engine) Dropped(src int) { e.read(src, 0, false) }

// read notes that a frame has been read, or (not whole) will not be. A receive that then is not
// complete goes on waiting, unless the communicator has failed.
func (e *Engine) read(src int, bytes uint64, whole bool) (a *arrival, complete bool) {
	q := &e.peers[src]
	a, q.coming = q.coming, nil
	r := a.receive
	if r == nil {
		return a, false
	}
	e.mu.Lock()
	r.reading = false
	a.come += bytes
	failure := e.failure
	complete = whole && a.come == a.bytes && !r.expired
	if complete || failure != nil {
		delete(e.filling, r)
		delete(q.accepted, a.offer)
	}
	e.mu.Unlock()
	if failure != nil && !complete {
		r.work.End(e.ended(r.op, failure))
	}
	return a, complete
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
	if a.offer == 0 {
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

// Control takes a frame of the point-to-point protocol. It runs on a link's goroutine, or where
// letters are collected.
func (e *Engine) Control(src int, h transport.Header, payload []byte) error {
	switch h.Type {
	case FrameRTS, FrameProbe:
		dtype := reduce.DType(h.Arg[0] & 0xff)
		if !dtype.Valid() || h.Arg[0]>>8 > math.MaxInt32 {
			return fmt.Errorf("%w: an offer of dtype %d, tag %d", exec.ErrProtocol, dtype, h.Arg[0]>>8)
		}
		a := &arrival{source: src, tag: int(h.Arg[0] >> 8), dtype: dtype, bytes: h.Arg[1], offer: h.Seq}
		if err := e.peers[src].wire.placeOf(a, payload); err != nil {
			return err
		}
		if h.Type == FrameProbe {
			return e.probed(a)
		}
		e.mu.Lock()
		err := e.count(src)
		e.mu.Unlock()
		if err != nil {
			return err
		}
		e.arrive(a)
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
		if s := e.takeOffer(h.Seq, src); s != nil { // else it has failed, or is not for that peer
			e.peers[src].wire.carry(s)
		}
	case FrameFIN:
		s := e.takeOffer(h.Seq, src)
		if s == nil {
			return nil
		}
		if err := e.peers[src].wire.got(s); err != nil {
			s.work.End(fault.From(err, fault.ErrInternal, "%s", e.Title(s.op)))
			return err
		}
		s.work.End(nil)
	case FrameReject:
		if s := e.takeOffer(h.Seq, src); s != nil {
			s.work.End(e.ended(s.op, e.Members.Decode(fault.ErrMismatch, payload)))
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
