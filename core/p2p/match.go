package p2p

import (
	"slices"
	"unsafe"

	"github.com/goccl/goccl/core/call"
	"github.com/goccl/goccl/core/reduce"
	"github.com/goccl/goccl/core/transport"
	"github.com/goccl/goccl/core/work"
)

// arrival is a send, as the receiver knows it.
type arrival struct {
	source, tag int
	dtype       reduce.DType
	bytes       uint64
	data        []byte   // eager: the payload, unless it goes into receive
	receive     *receive // whose buffer the payload comes into
	come        uint64   // bytes of it that are there
	offer       uint64   // number of the offer, where the data has not come
	uncounted   bool     // it was held: its peer has asked whether a receive waits for it
	at          uint64   // and where it lies in the sender's memory, where memory is shared
	local       *send    // a send of this rank to itself
}

// receive is a posted receive.
type receive struct {
	work   *work.Work
	op     *call.Operation
	bytes  uint64
	source int // wanted; AnySource
	// Under Engine.mu, of one whose data comes into its buffer:
	from    int  // the sender
	reading bool // a frame is being read
	expired bool // the data has come too late: the receive ends with the communicator
}

// buffer is where the received data goes.
func (r *receive) buffer() []byte {
	if r.bytes == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(r.op.Out[0]), r.bytes)
}

func (r *receive) matches(a *arrival) bool {
	return r.op.Tag == a.tag && (r.source == call.AnySource || r.source == a.source)
}

// send is a send to a peer, or to this rank itself.
type send struct {
	work  *work.Work
	op    *call.Operation
	peer  int
	bytes uint64

	id     uint64           // of its offer; 0: it is eager
	header transport.Header // of its first frame, the offer or all of it
	first  []byte           // what goes with it

	// Under Engine.mu:
	held   bool  // it waits for the peer to receive others
	probe  probe // of one that is held
	wanted bool  // a receive has come while the peer was asked whether one waits
}

// begun tells that the first frame is on its way.
func (s *send) begun() {
	if s.id == 0 {
		s.work.End(nil)
	}
}

// about is what the first frame says of tag and dtype.
func (s *send) about() uint64 { return uint64(s.op.Tag)<<8 | uint64(s.op.DType) }

func (s *send) payload() []byte {
	if s.bytes == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(s.op.In[0]), s.bytes)
}

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

// cancel takes a receive back; false if it has been matched.
func (m *matcher) cancel(r *receive) bool {
	i := slices.Index(m.posted, r)
	if i < 0 {
		return false
	}
	m.posted = slices.Delete(m.posted, i, i+1)
	return true
}
