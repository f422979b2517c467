package p2p

import (
	"fmt"
	"iter"
	"unsafe"

	"github.com/goccl/goccl/core/call"
	"github.com/goccl/goccl/core/exec"
	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/plan"
	"github.com/goccl/goccl/core/trace"
	"github.com/goccl/goccl/core/work"
)

// A send that is not eager is large: an RTS tells of it, and its data flows once a receive has met
// it, in one of four ways:
//
//	frames    over a link, after a CTS: data frames, straight into the receive's buffer
//	adverts   over a link, the same frames, whose payload the receiver reads by RDMA and acks
//	plans     over memory, after a CTS: both ranks run a two-rank plan for each segment
//	a copy    over memory: the receiver copies from the sender's memory (CMA), and sends a FIN
//
// On each of the two ranks the data is a bulk, whose states are the same whatever the way:
//
//	            on the sender                            on the receiver
//	offered     the RTS is out, or is held back          the receive waits for its send
//	accepted    a CTS is here                            the receive has met the RTS
//	moving      data flows: this is the first in turn    data flows: this is the first in turn
//	done        the peer has taken all                   all is here, and a FIN, if any, is out
//	late        its time is up: the communicator is about to fail
//	left        the peer is gone, or the communicator has failed
//
//	from                       event                                    to
//	offered                    CTS; a receive meets the RTS             accepted
//	offered                    eager data comes into a receive's buffer moving
//	offered                    FIN, or a refusal of what does not fit   done
//	accepted                   its turn comes                           moving
//	moving                     the sender's memory cannot be read       accepted, by plans
//	moving                     the last byte, or the last ack           done
//	offered, accepted, moving  its deadline                             late
//	all but done               the peer's end, the failure              left
//
// With done or left the work ends, and the bulk is forgotten. While a thread of this rank uses the
// memory (busy), no other ends it: that thread finds out, when it lets the memory go.
type state uint8

const (
	offered state = iota
	accepted
	moving
	done
	late
	left
)

var states = [...]string{"offered", "accepted", "moving", "done", "late", "left"}

func (s state) String() string { return states[s] }

// follows tells which states may come after each.
var follows = [...][len(states)]bool{
	offered:  {accepted: true, moving: true, done: true, late: true, left: true},
	accepted: {moving: true, done: true, late: true, left: true},
	moving:   {accepted: true, done: true, late: true, left: true},
	done:     {},
	late:     {left: true},
	left:     {},
}

// bulk is the data of a send, as one of its two ranks knows it. One that is eager is a bulk at its
// receiver, which is moving from the first, where its data comes straight into a buffer.
type bulk struct {
	work  *work.Work
	op    *call.Operation
	bytes uint64
	peer  int    // of a receive: once it has met a send
	id    uint64 // of the RTS, by its sender's count; 0: there is none
	note  trace.Message

	// Under Engine.mu:
	state state
	busy  bool   // a thread of this rank uses the memory, and ends the work
	moved uint64 // bytes that have been sent, or are here; over a link
	reads int    // frames that the peer is still to read where they lie
}

// sends tells whether this rank is the sender.
func (b *bulk) sends() bool { return b.op.Collective == plan.Send }

// memory is the sender's data, or what the receiver's data goes to.
func (b *bulk) memory() []byte {
	switch {
	case b.bytes == 0:
		return nil
	case b.sends():
		return unsafe.Slice((*byte)(b.op.In[0]), b.bytes)
	}
	return unsafe.Slice((*byte)(b.op.Out[0]), b.bytes)
}

// bulks are those that are neither done nor left, but for receives that have met no send. They are
// under Engine.mu.
type bulks struct {
	out     map[uint64]*send // by number
	in      map[pair]*bulk
	offered int    // of out
	last    uint64 // number of the last one
}

// pair names a bulk of a peer; its id is 0 for the one that is eager.
type pair struct {
	peer int
	id   uint64
}

// all are the bulks, in no order.
func (b *bulks) all() iter.Seq[*bulk] {
	return func(yield func(*bulk) bool) {
		for _, s := range b.out {
			if !yield(&s.bulk) {
				return
			}
		}
		for _, r := range b.in {
			if !yield(r) {
				return
			}
		}
	}
}

// to moves a bulk to a state. It tells whether that may follow; if not, nothing changes.
func (b *bulks) to(x *bulk, next state) bool {
	if !follows[x.state][next] {
		return false
	}
	if x.sends() && x.state == offered {
		b.offered--
	}
	if next == accepted || next == moving {
		x.note.Begin(x.peer)
	}
	x.state = next
	switch {
	case next != done && next != left:
	case x.sends():
		delete(b.out, x.id)
	default:
		delete(b.in, pair{x.peer, x.id})
	}
	return true
}

// end ends a bulk with an error, unless it has ended. Its memory is the caller's, or no thread's.
func (e *Engine) end(b *bulk, err *fault.Error) {
	e.mu.Lock()
	ended := e.to(b, left)
	e.mu.Unlock()
	if ended {
		e.over(b, err)
	}
}

// over ends the work of a send or receive, which ends once.
func (e *Engine) over(b *bulk, err *fault.Error) {
	end := trace.Ending{State: trace.Ended, Bytes: b.bytes}
	if err != nil {
		end.State = trace.Failed
	}
	if b.peer >= 0 {
		end.Transports = 1 << e.FastPath.Trace().Transport(b.peer)
	}
	b.note.End(end)
	b.work.End(err)
}

// complete ends a bulk of which all has moved. Its memory was the caller's.
func (e *Engine) complete(b *bulk) {
	e.mu.Lock()
	ended, cause := e.letGo(b, true)
	e.mu.Unlock()
	e.conclude(b, ended, cause)
}

// letGo tells that the thread to which the memory of a bulk belonged uses it no more, and whether
// the bulk has ended by that: for all has moved, or else because nothing more can. One that is late
// ends with the failure that is to come. It needs e.mu.
func (e *Engine) letGo(b *bulk, complete bool) (ended bool, cause *fault.Error) {
	b.busy = false
	if complete && e.to(b, done) {
		return true, nil
	}
	cause = e.refuse(b.peer)
	return cause != nil && e.to(b, left), cause
}

// conclude ends the work of a bulk that letGo says has ended.
func (e *Engine) conclude(b *bulk, ended bool, cause *fault.Error) {
	switch {
	case !ended:
	case cause != nil:
		e.miss(b, cause)
	default:
		e.over(b, nil)
	}
}

// offer makes a large send of one. It needs e.mu.
func (e *Engine) offer(s *send) {
	e.last++
	s.id = e.last
	e.out[s.id] = s
	e.offered++
	e.expect(s.work.Deadline())
}

// answered is the send of a number to a peer, which goes from offered to a state; nil if there is
// none such, or no more. A sender that may go on is busy.
func (e *Engine) answered(id uint64, peer int, next state) *send {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.out[id]
	if s == nil || s.peer != peer || s.state != offered {
		return nil
	}
	e.to(&s.bulk, next)
	s.busy = next == accepted
	if s.held {
		e.unhold(s)
	}
	return s
}

// accept has the data of an RTS come to the receive that has met it.
func (e *Engine) accept(r *receive, a *arrival) {
	r.peer, r.id = a.source, a.id
	at := pair{a.source, a.id}
	e.mu.Lock()
	err, twice := e.refuse(a.source), e.in[at] != nil
	if err == nil && !twice {
		e.in[at] = &r.bulk
		e.to(&r.bulk, accepted)
		r.busy = !e.Ports[a.source]
		e.expect(r.work.Deadline())
	}
	e.mu.Unlock()
	switch {
	case err != nil:
		e.miss(&r.bulk, err)
	case twice:
		err := e.broken(a.source, fmt.Errorf("%w: RTS %d, twice", exec.ErrProtocol, a.id))
		e.over(&r.bulk, e.ended(r.op, err))
		e.Works.Spawn(func() { e.face.Fail(err) })
	default:
		e.peers[a.source].wire.accept(&r.bulk, a.at)
	}
}

// finish tells a sender that its data has been read, and ends the receive: only then, as the
// communicator may be destroyed after it.
func (e *Engine) finish(b *bulk) {
	h := frameOf(FrameFIN, b.id)
	q := &e.peers[b.peer]
	if q.answers.Now(func() bool { return q.wire.tryPost(h, nil) }) {
		e.complete(b)
		return
	}
	q.answers.do(e, func() {
		// a sender that is not told has left, or finds that it is late
		_ = q.wire.post(b.work.Context(), h, nil)
		e.complete(b)
	})
}

// overdue is the error for a bulk whose time is up.
func (e *Engine) overdue(b *bulk) *fault.Error {
	var why string
	switch peer := e.Members.Names(b.peer); {
	case b.sends() && b.state == offered:
		if why = "no receive matched it"; e.copies(b.peer, b.bytes) {
			why += ", or its data was not read"
		}
	case !e.Ports[b.peer]:
		why = peer + " has not done its part"
	case b.sends():
		why = "its receiver has not taken all of it"
	default:
		why = "the rest of the data did not come from " + peer
	}
	return e.late(b.work, b.op, b.peer, why)
}

func (b *bulk) String() string {
	verb, way := "receives", "of"
	if b.sends() {
		verb, way = "sends", "to"
	}
	text := fmt.Sprintf("%s %d %s %d: %v", verb, b.id, way, b.peer, b.state)
	if b.state == moving && b.reads > 0 && !b.busy {
		text += " (the peer reads)"
	}
	return text
}
