package core

import (
	"fmt"
	"math"

	"github.com/goccl/goccl/core/exec"
	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/reduce"
	"github.com/goccl/goccl/core/transport"
)

// slot tells where a frame's data goes: into the buffer of the receive that has accepted it, or
// that an eager send meets, or else into memory of its own. It runs, as do arrived and dropped, on
// the link's goroutine, or where letters are collected.
func (p *pointToPoint) slot(src int, h transport.Header) ([]byte, error) {
	q := &p.peers[src]
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.failure != nil {
		q.coming = &arrival{source: src} // of no use to anybody
		return make([]byte, h.Bytes), nil
	}
	if h.Flags == acceptedSend {
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
	if !a.dtype.Valid() || h.Arg[0]>>8 > math.MaxInt32 || q.unexpected+a.bytes > p.eagerWindow {
		return nil, fmt.Errorf("%w: an eager send of dtype %d, tag %d, %d bytes", exec.ErrProtocol,
			a.dtype, h.Arg[0]>>8, a.bytes)
	}
	if err := p.count(src); err != nil {
		return nil, err
	}
	q.coming = a
	if r := p.match.wanting(a); r != nil && r.bytes == a.bytes && r.op.DType == a.dtype {
		p.match.cancel(r)
		r.work.SetSource(src)
		a.receive, p.filling[r], r.from, r.reading = r, true, src, true
		return r.buffer(), nil
	}
	q.unexpected += a.bytes
	a.data = p.held.get(a.bytes)
	return a.data, nil
}

// arrived tells that the data of the frame last asked a slot for is there.
func (p *pointToPoint) arrived(src int, h transport.Header) {
	switch a, complete := p.read(src, uint64(h.Bytes), true); {
	case a.receive == nil:
		p.arrive(a)
	case complete:
		if h.Flags == eagerSend {
			p.consumed(a)
		}
		a.receive.work.End(nil)
	}
}

// dropped tells that it will not come.
func (p *pointToPoint) dropped(src int) { p.read(src, 0, false) }

// read notes that a frame has been read, or (not whole) will not be. A receive that then is not
// complete goes on waiting, unless the communicator has failed.
func (p *pointToPoint) read(src int, bytes uint64, whole bool) (a *arrival, complete bool) {
	q := &p.peers[src]
	a, q.coming = q.coming, nil
	r := a.receive
	if r == nil {
		return a, false
	}
	p.mu.Lock()
	r.reading = false
	a.come += bytes
	failure := p.failure
	complete = whole && a.come == a.bytes && !r.expired
	if complete || failure != nil {
		delete(p.filling, r)
		delete(q.accepted, a.offer)
	}
	p.mu.Unlock()
	if failure != nil && !complete {
		r.work.End(p.ended(r.op, failure))
	}
	return a, complete
}

// consumed counts a send that has met a receive, and tells the sender now and then.
func (p *pointToPoint) consumed(a *arrival) {
	if a.uncounted {
		return
	}
	q := &p.peers[a.source]
	p.mu.Lock()
	q.unexpected -= uint64(len(a.data))
	q.Taken++
	if a.offer == 0 {
		q.Received += a.bytes
	}
	bytes, number := q.Received, q.Taken
	tell := bytes-q.Told >= p.eagerWindow/4 || number-q.ToldTaken >= max(p.most/4, 1)
	if tell {
		q.Told, q.ToldTaken = bytes, number
	}
	p.mu.Unlock()
	if tell {
		p.reply(a.source, transport.Header{Type: frameConsumed, Arg: [2]uint64{bytes, number}}, nil)
	}
}

// control takes a frame of the point-to-point protocol. It runs on a link's goroutine, or where
// letters are collected.
func (p *pointToPoint) control(src int, h transport.Header, payload []byte) error {
	switch h.Type {
	case frameOffer, frameProbe:
		dtype := reduce.DType(h.Arg[0] & 0xff)
		if !dtype.Valid() || h.Arg[0]>>8 > math.MaxInt32 {
			return fmt.Errorf("%w: an offer of dtype %d, tag %d", exec.ErrProtocol, dtype, h.Arg[0]>>8)
		}
		a := &arrival{source: src, tag: int(h.Arg[0] >> 8), dtype: dtype, bytes: h.Arg[1], offer: h.Seq}
		if err := p.peers[src].wire.placeOf(a, payload); err != nil {
			return err
		}
		if h.Type == frameProbe {
			return p.probed(a)
		}
		p.mu.Lock()
		err := p.count(src)
		p.mu.Unlock()
		if err != nil {
			return err
		}
		p.arrive(a)
	case frameNotNow:
		p.notNow(h.Seq, src)
	case frameWanted:
		if h.Arg[0] > math.MaxInt32 {
			return fmt.Errorf("%w: it wants tag %d", exec.ErrProtocol, h.Arg[0])
		}
		p.wantsHeld(src, int(h.Arg[0]))
	case frameNoneHeld:
		p.mu.Lock()
		defer p.mu.Unlock()
		p.setHolds(src, false)
	case frameAccept:
		if s := p.takeOffer(h.Seq, src); s != nil { // else it has failed, or is not for that peer
			p.peers[src].wire.carry(s)
		}
	case frameGot:
		s := p.takeOffer(h.Seq, src)
		if s == nil {
			return nil
		}
		if err := p.peers[src].wire.got(s); err != nil {
			s.work.End(fault.From(err, fault.ErrInternal, "%s", p.title(s.op)))
			return err
		}
		s.work.End(nil)
	case frameReject:
		if s := p.takeOffer(h.Seq, src); s != nil {
			s.work.End(p.ended(s.op, p.c.members.Decode(fault.ErrMismatch, payload)))
		}
	case frameConsumed:
		p.mu.Lock()
		defer p.mu.Unlock()
		q := &p.peers[src]
		if h.Arg[0] > q.EagerSent || h.Arg[1] > q.Sent {
			return fmt.Errorf("%w: it received %d eager bytes of %d, %d sends of %d", exec.ErrProtocol,
				h.Arg[0], q.EagerSent, h.Arg[1], q.Sent)
		}
		q.EagerDone, q.Done = max(q.EagerDone, h.Arg[0]), max(q.Done, h.Arg[1])
		p.release(src)
	default:
		return fmt.Errorf("%w: a frame of type %d", exec.ErrProtocol, h.Type)
	}
	return nil
}
