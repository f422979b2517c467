package transport

import (
	"errors"
	"slices"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/goccl/goccl/rdma"
)

// Over a verbs link the last bytes of a Data frame's payload may stay where they are, if that is memory that devices may be given access to: a
// loan comes in their place, and the receiver reads them by itself (RDMA READ), to where they belong. The frame's place in the order is that of its
// loan: nothing behind it is handled before it has been fetched. The receiver answers for each loan, in order, also for one that it does not want.
//
// What has been lent stays registered until it is answered for, or the queue pair is gone. But a rank that gives up gives its memory back to its user,
// whether it has been read or not. So it sets a word before that, GroupConfig.Stopped, which the receiver reads after the rest: if it is set, no data of
// that rank counts any more. That it has failed, or has left, comes behind them; only a failure concerns the other ranks.

// outstanding is a loan that the peer has not answered for.
type outstanding struct {
	loan
	g    *Group
	rank int // of the peer
	h    Header
	uses [2]*rdma.Use // of the payload, and of the word
}

// knows tells whether the device may be given access to memory.
func (v *verbsEnd) knows(b []byte) bool {
	return v.memory.Knows(v.device, unsafe.Pointer(unsafe.SliceData(b)), len(b))
}

// use gives the device access to memory; nil where that is not to be had.
func (v *verbsEnd) use(b []byte) *rdma.Use {
	use, err := v.memory.Use(v.device, unsafe.Pointer(unsafe.SliceData(b)), len(b))
	if err != nil {
		v.copies.Do(func() { v.e.warnf("shareable memory is copied where it need not be: %v", err) })
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

// lends tells whether a payload may be lent.
func (l *link) lends(g *Group, payload []byte) bool {
	return l.lendable(g, payload) && l.e.verbs.knows(payload) && l.e.verbs.knows(g.word())
}

// lendable tells it of the link, and of how long the payload is.
func (l *link) lendable(g *Group, payload []byte) bool {
	s := l.side.stream
	return len(payload) >= lendMin && g.stopped != nil && s != nil && s.Reads()
}

// word is GroupConfig.Stopped.
func (g *Group) word() []byte { return unsafe.Slice((*byte)(g.stopped), 4) }

// lend makes a loan of the last piece of a payload, or returns nil. The frame is written next.
func (l *link) lend(g *Group, h *Header, payload [][]byte) *outstanding {
	if len(payload) == 0 || !l.lendable(g, payload[len(payload)-1]) {
		return nil
	}
	last := payload[len(payload)-1]
	uses := [2]*rdma.Use{l.e.verbs.use(last)}
	if uses[0] == nil {
		return nil
	}
	uses[1] = l.e.verbs.use(g.word())
	v := &l.side
	v.mu.Lock()
	defer v.mu.Unlock()
	if uses[1] == nil || v.ended || len(v.loans) == rdma.MostLoans {
		l.e.verbs.unuse(uses)
		return nil
	}
	h.lent = true
	out := &outstanding{g: g, rank: int(h.Dst), h: *h, uses: uses}
	out.loan = loan{at: uses[0].Remote(), bytes: uint32(len(last)), stopped: uses[1].Remote()}
	v.loans = append(v.loans, out)
	return out
}

// takeBack undoes the last lend, whose frame has not been written.
func (l *link) takeBack(out *outstanding) {
	v := &l.side
	v.mu.Lock()
	defer v.mu.Unlock()
	if i := slices.Index(v.loans, out); i >= 0 {
		v.loans = slices.Delete(v.loans, i, i+1)
		l.e.verbs.unuse(out.uses)
	}
}

// settle takes the peer's answers.
func (l *link) settle() error {
	v := &l.side
	for ; v.served != v.stream.Served(); v.served++ {
		v.mu.Lock()
		if len(v.loans) == 0 {
			v.mu.Unlock()
			return violation("an answer for memory that was not lent")
		}
		out := v.loans[0]
		v.loans = slices.Delete(v.loans, 0, 1)
		v.mu.Unlock()
		l.e.verbs.unuse(out.uses)
		l.e.verbs.memory.Given.Add(int64(out.bytes))
		out.g.call(func(to Handler) { to.Fetched(out.rank, out.h) })
	}
	return nil
}

// endLoans ends all loans. The queue pair is gone.
func (l *link) endLoans() {
	v := &l.side
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, out := range v.loans {
		l.e.verbs.unuse(out.uses)
	}
	v.loans, v.ended = nil, true
}

// fetch is the receiving of what is lent. It belongs to who has locked the receiving half.
type fetch struct {
	loan    loan
	owed    bool      // the peer waits for an answer
	to      [2][]byte // where it goes
	uses    [2]*rdma.Use
	forgone atomic.Bool // nobody wants it, but it has been asked for
	late    *time.Timer // then it must have come
}

// borrow takes a loan in.
func (l *link) borrow(b *[loanSize]byte) (err error) {
	f := &l.reading.fetch
	if l.side.stream == nil {
		return violation("a loan over a socket")
	}
	if f.loan, err = parseLoan(b, l.reading.h.Bytes); err != nil {
		return violation("%w", err)
	}
	f.owed = true
	return nil
}

// inline is how much of the payload comes over the link.
func (in *reading) inline() int {
	if in.h.lent {
		return int(in.h.Bytes - in.fetch.loan.bytes)
	}
	return int(in.h.Bytes)
}

// split parts dst, where the payload goes: what comes over the link, and what is fetched.
func (in *reading) split() {
	at := in.inline()
	for i, d := range in.dst {
		k := min(at, len(d))
		in.dst[i], in.fetch.to[i] = d[:k], d[k:]
		at -= k
	}
}

// beginFetch asks for what is lent.
func (l *link) beginFetch() error {
	f := &l.reading.fetch
	for i, b := range f.to {
		if len(b) > 0 {
			f.uses[i] = l.e.verbs.use(b)
		}
	}
	l.reading.phase = fetching
	return l.side.stream.Fetch(f.loan.at, f.loan.stopped, f.to, f.uses)
}

// carryFetch carries a fetch on. It tells whether that has ended.
func (l *link) carryFetch() (bool, error) {
	f := &l.reading.fetch
	all, err := l.side.stream.Fetched()
	withdrawn := errors.Is(err, rdma.ErrWithdrawn)
	if err != nil && !withdrawn {
		return false, l.broke(err)
	}
	if !all {
		return false, nil
	}
	unwanted := f.forgone.Load()
	l.endFetch()
	if unwanted || withdrawn {
		l.reading.from.cut = l.reading.from.cut || withdrawn
		l.forget(l.reading.into.Load())
		return true, nil
	}
	l.e.verbs.memory.Taken.Add(int64(f.loan.bytes))
	f.to = [2][]byte{}
	l.complete()
	return true, nil
}

// forgo ends a fetch that nobody wants any more. It tells whether that has ended: else what has been asked for still comes, and the link ends
// if that takes long.
func (l *link) forgo() bool {
	f := &l.reading.fetch
	l.side.stream.Forgo()
	all, err := l.side.stream.Fetched()
	if all || errors.Is(err, rdma.ErrClosed) {
		l.endFetch()
		return true
	}
	if err != nil {
		l.e.poller.revisit(l) // who reads then ends the link
	}
	if !f.forgone.Swap(true) {
		f.late = time.AfterFunc(fetchGrace, func() {
			if f.forgone.Load() {
				l.end(errors.New("what has been asked for of the peer's memory does not come"))
			}
		})
	}
	return false
}

// endFetch ends a fetch of which nothing is under way.
func (l *link) endFetch() {
	f := &l.reading.fetch
	if f.forgone.Swap(false) {
		f.late.Stop()
	}
	l.e.verbs.unuse(f.uses)
	f.uses = [2]*rdma.Use{}
	l.answer()
}

// answer tells the peer that what it has lent is its own again.
func (l *link) answer() {
	if f := &l.reading.fetch; f.owed {
		f.owed = false
		l.side.stream.Answer()
	}
}
