package p2p

import (
	"slices"

	"github.com/goccl/goccl/core/call"
	"github.com/goccl/goccl/core/reduce"
	"github.com/goccl/goccl/core/transport"
)

// arrival is a send, as the receiver knows it.
type arrival struct {
	source, tag int
	dtype       reduce.DType
	bytes       uint64
	data        []byte // eager: the payload, unless it goes into the buffer of a receive
	id          uint64 // of the RTS; 0: the send is eager
	at          uint64 // where the data lies in the sender's memory, where memory is shared
	uncounted   bool   // it was held: its peer has asked whether a receive waits for it
	local       *send  // a send of this rank to itself
}

// receive is a posted receive.
type receive struct {
	bulk
	source int // wanted; AnySource
}

func (r *receive) matches(a *arrival) bool {
	return r.op.Tag == a.tag && (r.source == call.AnySource || r.source == a.source)
}

// fits tells whether a receive that matches an arrival can take it.
func (r *receive) fits(a *arrival) bool { return r.bytes == a.bytes && r.op.DType == a.dtype }

// send is a send to a peer, or to this rank itself.
type send struct {
	bulk

	header transport.Header // of its first frame, the RTS or all of it
	first  []byte           // what goes with it

	// Under Engine.mu:
	held   bool  // it waits for the peer to receive others
	probe  probe // of one that is held
	wanted bool  // a receive has come while the peer was asked whether one waits
}

// about is what the first frame says of tag and dtype.
func (s *send) about() uint64 { return uint64(s.op.Tag)<<8 | uint64(s.op.DType) }

// matcher pairs arrivals with receives: in the order of their coming, by source and tag.
type matcher struct {
	posted     []*receive
	unexpected []*arrival
}

// post returns the arrival that a receive gets, or keeps the receive.
func (m *matcher) post(r *receive) *arrival {
	for i, a := range m.unexpected {
		if r.matches(a) {
			m.unexpected = slices.Delete(m.unexpected, i, i+1)
			return a
		}
	}
	m.posted = append(m.posted, r)
	return nil
}

// arrive returns the receive that an arrival goes to, or keeps the arrival.
func (m *matcher) arrive(a *arrival) *receive {
	r := m.wanting(a)
	if r == nil {
		m.unexpected = append(m.unexpected, a)
	} else {
		m.cancel(r)
	}
	return r
}

// wanting is the receive that an arrival will go to; nil if there is none yet.
func (m *matcher) wanting(a *arrival) *receive {
	for _, r := range m.posted {
		if r.matches(a) {
			return r
		}
	}
	return nil
}

// cancel takes a posted receive back.
func (m *matcher) cancel(r *receive) {
	i := slices.Index(m.posted, r)
	m.posted = slices.Delete(m.posted, i, i+1)
}
