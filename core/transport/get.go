package transport

import (
	"errors"
	"slices"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/goccl/goccl/rdma"
)

// A rendezvous get: over a queue pair the last bytes of a Data frame's payload may stay where they
// are, if that is memory that devices may be given access to. An advert comes in their place, and
// the receiver reads the advertised buffer (RDMA READ), to where the bytes belong. The frame's
// place in the order is that of its advert: nothing behind it is handled before the buffer has been
// read. The receiver acks each buffer, in order, also one that it does not want.
//
// An advertised buffer stays registered until it is acked, or the queue pair is gone. But a rank
// that gives up gives its memory back to its user, whether it has been read or not. So it sets a
// word before that, GroupConfig.Stopped, which the receiver reads after the rest: if it is set, no
// data of that rank counts any more. That it has failed, or has left, comes behind them; only a
// failure concerns the other ranks.

// unacked is an advertised buffer for which no ack of the peer has come.
type unacked struct {
	advert
	g    *Group
	rank int // of the peer
	h    Header
	last []byte       // the buffer: the last piece of the frame's payload
	uses [2]*rdma.Use // of the buffer, and of the word
}

// queuePair is the link's wire, if it is one; else nil.
func (l *link) queuePair() *queuePair {
	q, _ := l.wire.(*queuePair)
	return q
}

// knows tells whether the device may be given access to memory.
func (v *verbsEnd) knows(b []byte) bool {
	return v.memory.Knows(v.device, unsafe.Pointer(unsafe.SliceData(b)), len(b))
}

// use gives the device access to memory; nil where that is not to be had.
func (v *verbsEnd) use(b []byte) *rdma.Use {
	use, err := v.memory.Use(v.device, unsafe.Pointer(unsafe.SliceData(b)), len(b))
	if err != nil {
		v.copies.Do(func() {
			v.e.warnf("shareable memory is copied where it need not be: %v", err)
		})
	}
	return use
}

// unuse takes it away again.
func (v *verbsEnd) unuse(uses [2]*rdma.Use) {
	for _, use := range uses {
		if err := use.End(); err != nil {
			v.e.warnf("%v", err)
		}
	}
}

// advertises tells whether a payload may be advertised.
func (l *link) advertises(g *Group, payload []byte) bool {
	return l.mayAdvertise(g, payload) && l.e.verbs.knows(payload) && l.e.verbs.knows(g.word())
}

// mayAdvertise tells it of the link, and of how long the payload is.
func (l *link) mayAdvertise(g *Group, payload []byte) bool {
	q := l.queuePair()
	return len(payload) >= getMin && g.stopped != nil && q != nil && q.stream.Reads()
}

// word is GroupConfig.Stopped.
func (g *Group) word() []byte { return unsafe.Slice((*byte)(g.stopped), 4) }

// advertise makes an advertised buffer of the last piece of a payload, or returns nil. The frame is
// written next.
func (l *link) advertise(g *Group, h *Header, payload [][]byte) *unacked {
	if len(payload) == 0 || !l.mayAdvertise(g, payload[len(payload)-1]) {
		return nil
	}
	last := payload[len(payload)-1]
	uses := [2]*rdma.Use{l.e.verbs.use(last)}
	if uses[0] == nil {
		return nil
	}
	uses[1] = l.e.verbs.use(g.word())
	q := l.queuePair()
	q.mu.Lock()
	defer q.mu.Unlock()
	if uses[1] == nil || q.closed || len(q.unacked) == rdma.MostLoans {
		l.e.verbs.unuse(uses)
		return nil
	}
	h.advertised = true
	ad := &unacked{g: g, rank: int(h.Dst), h: *h, last: last, uses: uses}
	ad.advert = advert{at: uses[0].Remote(), bytes: uint32(len(last)), stopped: uses[1].Remote()}
	q.unacked = append(q.unacked, ad)
	return ad
}

// withdraw undoes the last advertise (nil: there was none), whose frame has not been written.
func (l *link) withdraw(ad *unacked) {
	if ad == nil {
		return
	}
	q := l.queuePair()
	q.mu.Lock()
	defer q.mu.Unlock()
	if i := slices.Index(q.unacked, ad); i >= 0 {
		q.unacked = slices.Delete(q.unacked, i, i+1)
		l.e.verbs.unuse(ad.uses)
	}
}

// takeAcks takes the acks that have come.
func (q *queuePair) takeAcks() error {
	for ; q.acks != q.stream.Served(); q.acks++ {
		q.mu.Lock()
		if len(q.unacked) == 0 {
			q.mu.Unlock()
			return violation("an ack for a buffer that was not advertised")
		}
		ad := q.unacked[0]
		q.unacked = slices.Delete(q.unacked, 0, 1)
		q.mu.Unlock()
		q.end.unuse(ad.uses)
		q.end.memory.Given.Add(int64(ad.bytes))
		ad.g.call(func(to Handler) { to.Acked(ad.rank, ad.h, ad.last) })
	}
	return nil
}

// get is the receiver's side. It belongs to the link's reader.
type get struct {
	advert   advert
	owed     bool      // the peer waits for an ack
	to       [2][]byte // where the bytes belong
	uses     [2]*rdma.Use
	unwanted atomic.Bool // they are dropped, but the device has been asked for them
	late     *time.Timer // then the device must have done
}

// readAdvert takes an advert in.
func (l *link) readAdvert(b *[advertSize]byte) (err error) {
	f := &l.reading.get
	if l.queuePair() == nil {
		return violation("an advertised buffer over a socket")
	}
	if f.advert, err = parseAdvert(b, l.reading.h.Bytes); err != nil {
		return violation("%w", err)
	}
	f.owed = true
	return nil
}

// inline is how much of the payload comes over the link.
func (in *reading) inline() int {
	if in.h.advertised {
		return int(in.h.Bytes - in.get.advert.bytes)
	}
	return int(in.h.Bytes)
}

// split parts dst, where the payload goes: what comes over the link, and what is read from the
// peer.
func (in *reading) split() {
	at := in.inline()
	for i, d := range in.dst {
		k := min(at, len(d))
		in.dst[i], in.get.to[i] = d[:k], d[k:]
		at -= k
	}
}

// beginGet asks the device for the advertised buffer.
func (l *link) beginGet() error {
	f, q := &l.reading.get, l.queuePair()
	for i, b := range f.to {
		if len(b) > 0 {
			f.uses[i] = l.e.verbs.use(b)
		}
	}
	l.reading.phase, q.getting = inGet, true
	return q.stream.Fetch(f.advert.at, f.advert.stopped, f.to, f.uses)
}

// advanceGet carries the get on. It tells whether it has ended.
func (l *link) advanceGet() (bool, error) {
	f, q := &l.reading.get, l.queuePair()
	all, err := q.stream.Fetched()
	withdrawn := errors.Is(err, rdma.ErrWithdrawn)
	if err != nil && !withdrawn {
		return false, q.broke(err)
	}
	if !all {
		return false, nil
	}
	unwanted := f.unwanted.Load()
	l.endGet()
	if unwanted || withdrawn {
		l.reading.from.cut = l.reading.from.cut || withdrawn
		l.forget(l.reading.into.Load())
		return true, nil
	}
	l.e.verbs.memory.Taken.Add(int64(f.advert.bytes))
	f.to = [2][]byte{}
	l.complete()
	return true, nil
}

// abandonGet ends a get whose bytes are not wanted any more. It tells whether it has ended: else
// the device still writes what it has been asked for, and the link ends if that takes long.
func (l *link) abandonGet() bool {
	f, q := &l.reading.get, l.queuePair()
	q.stream.Forgo()
	all, err := q.stream.Fetched()
	if all || errors.Is(err, rdma.ErrClosed) {
		l.endGet()
		return true
	}
	if err != nil {
		l.e.poller.revisit(l) // the reader then ends the link
	}
	if !f.unwanted.Swap(true) {
		f.late = time.AfterFunc(getGrace, func() {
			if f.unwanted.Load() {
				l.end(errors.New("what has been asked for of the peer's memory does not come"))
			}
		})
	}
	return false
}

// endGet ends a get of which the device does nothing any more.
func (l *link) endGet() {
	f := &l.reading.get
	if f.unwanted.Swap(false) {
		f.late.Stop()
	}
	l.e.verbs.unuse(f.uses)
	f.uses = [2]*rdma.Use{}
	l.queuePair().getting = false
	l.ack()
}

// ack tells the peer that its advertised buffer is its own again, if there is one.
func (l *link) ack() {
	if f := &l.reading.get; f.owed {
		f.owed = false
		l.queuePair().stream.Answer()
	}
}
