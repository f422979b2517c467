package trace

// #include "trace.h"
import "C"

import (
	"cmp"
	"iter"
	"math/bits"
	"time"

	"github.com/goccl/goccl/core/plan"
)

// State is how far a call has come.
type State uint8

// The states of a record.
const (
	Queued      State = C.GOCCL_TRACE_QUEUED
	Begun       State = C.GOCCL_TRACE_BEGUN
	Ended       State = C.GOCCL_TRACE_ENDED
	Failed      State = C.GOCCL_TRACE_FAILED
	Refused     State = C.GOCCL_TRACE_REFUSED
	SideStepped State = C.GOCCL_TRACE_SIDE_STEPPED
)

// trace.h has the numbers of the two.
var (
	_ [C.GOCCL_TRACE_SEND]struct{} = [plan.Send]struct{}{}
	_ [C.GOCCL_TRACE_RECV]struct{} = [plan.Recv]struct{}{}
)

var stateNames = [...]string{Queued: "queued", Begun: "begun", Ended: "ended", Failed: "failed",
	Refused: "refused", SideStepped: "side-stepped"}

func (s State) String() string { return stateNames[s] }

// Transport is what joins this rank to a peer. Its number is that of package address's kind.
type Transport uint8

// The transports.
const (
	Self Transport = iota
	Mem
	Shm
	TCP
	Verbs
	AllTransports = iota // how many there are
)

var _ [C.GOCCL_TRACE_TRANSPORTS]struct{} = [AllTransports]struct{}{}

var transportNames = [AllTransports]string{"self", "mem", "shm", "tcp", "verbs"}

func (t Transport) String() string { return transportNames[t] }

// TransportOf is the transport of a name, as in "tcp"; Self for another one.
func TransportOf(name string) Transport {
	for t, s := range transportNames {
		if s == name {
			return Transport(t)
		}
	}
	return Self
}

// Transports is a set of them: a bit each.
type Transports uint32

// All are the transports of the set.
func (s Transports) All() iter.Seq[Transport] {
	return func(yield func(Transport) bool) {
		for ; s != 0; s &= s - 1 {
			if t := bits.TrailingZeros32(uint32(s)); t >= len(transportNames) || !yield(Transport(t)) {
				return
			}
		}
	}
}

// Record is one call. Ticks are those of the trace's Clock.
type Record struct {
	// Message is what ranks compare. Of a send or receive its root is the peer (-1: any), and its
	// digest the tag.
	Message plan.Message
	Number  uint64 // the sequence; of a send or receive its number among those
	State   State
	Created uint64 // ticks, when it was called
	Begun   uint64 // ticks; 0: it has not
	// Ended is in ticks; 0: it has not. A short call in C that has hardly waited ends when it begins:
	// see GOCCL_UNTIMED_MAX of package exec.
	Ended      uint64
	Bytes      uint64         // of inputs or outputs, whichever are more
	Waited     time.Duration  // in slow waits for peers
	Waiting    time.Duration  // since when it is in such a wait, on CLOCK_MONOTONIC; 0: it is in none
	Peer       int            // of the last slow wait; -1: there was none
	Step       int            // of that wait, in the plan
	Thread     int            // that has begun it: its number in the kernel
	Transports Transports     // that its plan uses; of one that has ended
	Algorithm  plan.Algorithm // of one that has ended
}

// recordOf leaves out what the state gives no meaning to.
func recordOf(c *C.goccl_record) Record {
	r := Record{Message: fromC(&c.message), Number: uint64(c.version >> 8),
		State: State(c.version & 0xff), Created: uint64(c.created), Bytes: uint64(c.bytes), Peer: -1}
	if r.State == Queued || r.State >= Refused {
		return r
	}
	r.Begun, r.Thread = uint64(c.begun), int(c.thread)
	r.Waited, r.Waiting = time.Duration(c.waited), time.Duration(c.since)
	r.Peer, r.Step = int(c.peer), int(c.step)
	if r.State == Begun {
		return r
	}
	r.Ended, r.Transports, r.Algorithm = uint64(c.ended), Transports(c.transports),
		plan.Algorithm(c.algorithm)
	return r
}

// compare orders records of a ring by their calls.
func (r Record) compare(o Record) int {
	return cmp.Or(cmp.Compare(r.Message.Epoch, o.Message.Epoch), cmp.Compare(r.Number, o.Number))
}
