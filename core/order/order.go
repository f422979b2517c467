// Package order finds out whether ranks call the same collectives in the same order.
//
// Each rank has a [Log]: its collectives, numbered from 1. A call that was refused for its
// arguments takes a place in it, too, one for a whole batch. Messages of a plan say which
// collective they belong to, so ranks that exchange data compare their calls by that. An [Order]
// finds out the rest, by what ranks announce to each other:
//
//   - A rank that waits for long says in which collective it does.
//   - A rank that was refused a call tells all others of that at once.
//
// A rank compares an announcement with its own call at that place, or keeps it until it gets there.
// A rank whose own call at a place is good fails where another's was refused, and so all do. One
// that was refused there too goes on.
//
// The package is pure: it takes calls and announcements, and returns what to tell peers and the
// error of a mismatch. Its caller sends, fails the communicator, and holds a lock over all of it.
package order

import (
	"fmt"
	"iter"
	"maps"
	"slices"

	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/internal/printable"
	"github.com/goccl/goccl/core/plan"
)

// Log is a rank's collectives, in order.
type Log interface {
	// Last is the number of the last one, 0 before the first.
	Last() uint64
	// At is the collective of a number. If that is not kept any more, it is one with another number.
	At(number uint64) plan.Message
	// Append gives a collective the next number and adds it.
	Append(m *plan.Message)
	// Queued finds a collective between two numbers, both included, that was started and has not
	// ended. At may have lost it.
	Queued(first, last uint64) (m plan.Message, ok bool)
}

// Order is what one rank knows of its calls and of those that peers announced.
type Order struct {
	log     Log
	members *fault.Group
	rank    int
	group   uint64 // in each message
	epoch   uint32 // in each message

	refused   refusals              // of this rank, the last of them
	told      []told                // of them, by peer; made by the first
	announced map[int]*announcement // by peers, of places that this rank has not come to
}

// told is how far a peer has been told of this rank's refusals.
type told struct {
	upTo uint64
	busy bool // Refuse has named the peer, and Tell has not said that it knows all
}

// announcement is what a peer announced that this rank has not come to.
type announcement struct {
	waits   plan.Message // what it waits in; Sequence 0: it has not said
	refused refusals
}

// New makes the order of a rank that has called nothing.
func New(log Log, members *fault.Group, rank int, group uint64, epoch uint32) Order {
	return Order{log: log, members: members, rank: rank, group: group, epoch: epoch}
}

// Start takes a call: it completes the message and appends it to the log.
func (o *Order) Start(m *plan.Message) *fault.Error {
	m.Group, m.Epoch = o.group, o.epoch
	o.log.Append(m)
	return o.compare(*m)
}

// Refuse takes a call that was refused. It names the peers to tell: see Tell.
func (o *Order) Refuse(reason string) (tell []int, mismatch *fault.Error) {
	m := o.refusedMessage(0)
	o.log.Append(&m)
	s := m.Sequence
	o.refused = o.refused.add(refusal{s, s, printable.Text(reason, fault.MaxText)})
	if len(o.refused) > MaxRefusals {
		o.refused = slices.Delete(o.refused, 0, 1)
	}
	if o.told == nil {
		o.told = make([]told, len(o.members.PIDs))
	}
	for peer := range o.told {
		if t := &o.told[peer]; peer != o.rank && !t.busy {
			t.busy = true
			tell = append(tell, peer)
		}
	}
	return tell, o.compare(m)
}

// Tell returns the next announcement for a peer that Refuse has named, and its number. ok is false
// where the peer has been told all: then the next Refuse names it again.
func (o *Order) Tell(peer int) (announcement []byte, number uint64, ok bool) {
	t := &o.told[peer]
	i := slices.IndexFunc(o.refused, func(f refusal) bool { return f.last > t.upTo })
	if i < 0 {
		t.busy = false
		return nil, 0, false
	}
	f := o.refused[i]
	f.first = max(f.first, t.upTo+1)
	t.upTo = f.last
	return o.encode(f), f.last, true
}

// Hear takes what a peer announces. It compares that with what this rank called there, or keeps it
// for when this rank gets there.
func (o *Order) Hear(peer int, a Announcement) *fault.Error {
	m, last := a.Message, o.log.Last()
	if !a.Waits() {
		f := a.refusal()
		if mine, ok := o.goodCall(f); ok {
			return o.refusedError(peer, f.reason, o.rank, mine)
		}
		if f.last > last {
			f.first = max(f.first, last+1)
			o.announcedBy(peer).keep(f)
		}
		return nil
	}
	if m.Sequence > last {
		o.announcedBy(peer).waits = m
		return nil
	}
	if mine := o.log.At(m.Sequence); mine.Sequence == m.Sequence && mine != m {
		return o.Differ(mine, peer, m)
	}
	return nil
}

// Ahead reports whether peers have announced what this rank has not come to.
func (o *Order) Ahead() bool { return len(o.announced) > 0 }

// Waiting are the collectives that this rank has not come to, and that peers wait in.
func (o *Order) Waiting() iter.Seq[plan.Message] {
	return func(yield func(plan.Message) bool) {
		for _, peer := range slices.Sorted(maps.Keys(o.announced)) {
			if m := o.announced[peer].waits; m.Sequence > 0 && !yield(m) {
				return
			}
		}
	}
}

func (o *Order) announcedBy(peer int) *announcement {
	a := o.announced[peer]
	if a == nil {
		if o.announced == nil {
			o.announced = map[int]*announcement{}
		}
		a = &announcement{}
		o.announced[peer] = a
	}
	return a
}

// keep keeps a refusal that comes after all that are kept, up to a number of them.
func (a *announcement) keep(f refusal) {
	if n := len(a.refused); n > 0 && a.refused[n-1].last >= f.first {
		return
	}
	if more := a.refused.add(f); len(more) <= MaxRefusals {
		a.refused = more
	}
}

// compare compares what this rank starts, or is refused, with what peers announced. It forgets what
// needs no further comparison.
func (o *Order) compare(mine plan.Message) *fault.Error {
	if !o.Ahead() {
		return nil
	}
	for _, peer := range slices.Sorted(maps.Keys(o.announced)) {
		a := o.announced[peer]
		if reason, ok := a.refused.at(mine.Sequence); ok && mine.Collective != uint8(Refused) {
			return o.refusedError(peer, reason, o.rank, mine)
		}
		if a.waits.Sequence == mine.Sequence && a.waits != mine {
			return o.Differ(mine, peer, a.waits)
		}
		a.refused = slices.DeleteFunc(a.refused, func(f refusal) bool { return f.last <= mine.Sequence })
		if a.waits.Sequence <= mine.Sequence && len(a.refused) == 0 {
			delete(o.announced, peer)
		}
	}
	return nil
}

// goodCall finds a collective that this rank has started at a place where a peer was refused one.
func (o *Order) goodCall(f refusal) (plan.Message, bool) {
	if m, ok := o.log.Queued(f.first, f.last); ok {
		return m, true
	}
	last := o.log.Last()
	for s := max(f.first, last-min(last, MaxRefusals)+1); s <= min(f.last, last); s++ {
		if m := o.log.At(s); m.Collective != uint8(Refused) {
			return m, true
		}
	}
	return plan.Message{}, false
}

// String tells what is kept, for tests and debuggers.
func (o *Order) String() string {
	text := fmt.Sprintf("at #%d", o.log.Last())
	for _, f := range o.refused {
		text += fmt.Sprintf(", refused %v", f)
	}
	for peer, t := range o.told {
		if t.busy {
			text += fmt.Sprintf(", tells %d", peer)
		}
	}
	for _, peer := range slices.Sorted(maps.Keys(o.announced)) {
		a := o.announced[peer]
		if a.waits.Sequence > 0 {
			text += fmt.Sprintf(", %d waits in #%d", peer, a.waits.Sequence)
		}
		for _, f := range a.refused {
			text += fmt.Sprintf(", %d was refused %v", peer, f)
		}
	}
	return text
}
