// Package membership decides who takes part in a communicator, and when it has failed.
//
// A [Machine] takes the news that one rank has of itself and of its peers, as [Event]s, and answers
// each with the [Action]s that follow, in their order. The policy is to fail fast. A peer's end
// harms only operations that still need the peer. The first operation that misses a peer which
// ended without a goodbye fails the communicator on all ranks. A process that ends without a
// goodbye may have been killed, or may have done its part.
//
// The package is pure: its caller holds a lock over each call, and carries the actions out.
//
// # Agreement
//
// An [Agreement] is one member's part in the decision on what follows an epoch: a [Value]. Members
// are processes that may crash, and then do nothing any more. Messages may be lost and come in any
// order. What has ended is known by proof ([Lost] with Proof, [Left]); a suspicion may be wrong.
//
// It is Paxos for one value. The members are its acceptors. The lowest rank that is not known to
// have ended, and is not suspected, proposes; if it comes to no end, the next one does. The
// proposer asks all members to promise in a [Ballot], and each promise reports what its member
// knows. The proposer takes the value of the highest ballot that is reported, or else makes one of
// the reports. It decides once enough members have accepted the value:
//
//   - A: a majority; of exactly half, the half that has the lowest rank.
//   - B: all members that it has no proof of that they have ended.
//
// Enough to promise is the same. Rule B lets one of two, and the last of many, go on.
//
// Two living members never decide differently. To see why, let a value be decided in one ballot,
// and look at a later ballot. Either a member has accepted in the one and then promised in the
// other, so that its report hands the value on. Or the two have no member in common. Two of A
// always have one. So one of them is of B, and all members of the other one, its proposer too, had
// ended before the one of B began. For this the messages of a ballot tell who has ended, which
// stays the same as long as the ballot lasts. Who hears of it ignores the ended from then on: what
// these had sent, a decision too, may still come. So the other ballot's value is known
// to ended members only: a living one that had heard of it before would have said so, or refused
// the one of B.
//
// A decision that ended members alone have known is forgotten, then, and another one may be made.
// This is harmless among members. Joiners are none: they may have begun the epoch that is
// forgotten. So an epoch has founders, who were members before, and a value must have one of them
// as a survivor. As long as one lives that has begun the epoch, no other decision is made before
// it. The rule ends once no member of the epoch before can decide otherwise: see [Stable].
//
// A faulty member may tell of any ballot. One that is far beyond what the other members have come
// to is not answered. One that is answered comes before those of the others once these have proof
// that the faulty member has ended; until then they go beyond it, in turns.
//
// Who gets neither A nor B ends with [ErrNoQuorum]. So do, at once, newcomers whose founders have
// all ended, where none of them knows that the epoch is stable. Who is no survivor ends with
// [ErrExcluded], and is told if it can be reached. With Config.Any those that reach each other go
// on: under a partition several epochs do.
//
// Time comes from outside. Ticks of members should not be in step: two that propose at once could
// stop each other for long.
package membership

import (
	"fmt"
	"maps"
	"slices"

	"github.com/goccl/goccl/core/call"
	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/plan"
)

// Evidence is how sure it is that a peer has ended.
type Evidence int

const (
	// Suspicion: the peer has been silent for too long, has closed its connection or broken the
	// protocol. It may go on.
	Suspicion Evidence = iota
	// Proof: a kernel tells that the peer's process has ended, or no longer takes part in anything.
	Proof
)

func (e Evidence) String() string {
	if e == Proof {
		return "proof"
	}
	return "suspicion"
}

// Event is news.
type Event interface {
	step(m *Machine) []Action
}

// Lost tells that a peer has ended without a goodbye.
type Lost struct {
	Peer     int
	Cause    *fault.Error // of kind fault.ErrPeerFailed
	Evidence Evidence
	Exited   bool           // the process has ended by itself, with status 0
	Broken   bool           // the peer has broken the protocol, so that it has not done its part
	Last     uint64         // number of this rank's last collective
	Awaited  []plan.Message // collectives that peers wait in, and this rank has not come to
}

// Left tells that a peer has said goodbye.
type Left struct {
	Peer    int
	Cause   *fault.Error   // of kind fault.ErrAborted
	Last    uint64         // as in Lost
	Awaited []plan.Message // as in Lost
}

// Awaits tells that peers wait in a collective that this rank has not come to.
type Awaits struct{ Message plan.Message }

// Needs tells that this rank comes to a collective.
type Needs struct{ Message plan.Message }

// Failure tells that the communicator cannot go on.
type Failure struct {
	Cause *fault.Error
	Quiet bool // peers hear of it in another way
}

// Action is what a caller does.
type Action interface{ action() }

// Stop is the first action of a failure: nothing of the communicator moves data any more. It comes
// before any rank can hear of the failure, and gives buffers back that peers read.
type Stop struct{ Cause *fault.Error }

// Tell has all peers told of the failure.
type Tell struct{ Cause *fault.Error }

// EndWorks ends all works with the cause.
type EndWorks struct{ Cause *fault.Error }

// Part has those operations ended that can no longer be matched because a peer is gone.
type Part struct {
	Peer int
	Departure
}

func (Stop) action()     {}
func (Tell) action()     {}
func (EndWorks) action() {}
func (Part) action()     {}

// Departure is a peer's end.
type Departure struct {
	Cause    *fault.Error
	Evidence Evidence
	Exited   bool   // as in Lost
	Last     uint64 // as in Lost
}

// Lost reports whether the peer has ended without a goodbye.
func (d Departure) Lost() bool { return d.Cause.Kind == fault.ErrPeerFailed }

// MissedBy is the failure of a collective that needs the peer.
func (d Departure) MissedBy(m plan.Message) *fault.Error {
	if d.Lost() {
		return d.Cause
	}
	missed := *d.Cause
	missed.Text += fmt.Sprintf(" and can no longer take part in #%d %s", m.Sequence, call.Describe(m))
	return missed.Hinting("").During(m.Name(), m.Sequence)
}

// Machine is what one rank knows of who takes part.
type Machine struct {
	rank     int
	cause    *fault.Error // of the failure: the first
	departed map[int]Departure
}

// New makes the machine of a rank all whose peers take part.
func New(rank int) Machine { return Machine{rank: rank, departed: map[int]Departure{}} }

// Step takes an event, and returns what to do.
func (m *Machine) Step(e Event) []Action { return e.step(m) }

// Err is the first cause of the failure, or else what has ended a peer that said no goodbye, though
// nothing has needed it yet; nil if there is neither.
func (m *Machine) Err() *fault.Error {
	if m.cause != nil {
		return m.cause
	}
	return m.Lost()
}

// Lost is what has ended the first of the peers that said no goodbye; nil if there is none.
func (m *Machine) Lost() *fault.Error {
	for _, peer := range m.Departed() {
		if d := m.departed[peer]; d.Lost() {
			return d.Cause
		}
	}
	return nil
}

// Departed are the peers that are gone, in order. It holds those, too, of which the news came after
// a failure.
func (m *Machine) Departed() []int { return slices.Sorted(maps.Keys(m.departed)) }

// Departure is how a peer has ended.
func (m *Machine) Departure(peer int) (d Departure, gone bool) {
	d, gone = m.departed[peer]
	return d, gone
}

// Whole reports whether all peers take part.
func (m *Machine) Whole() bool { return m.cause == nil && len(m.departed) == 0 }

// Missing returns the failure of a collective that misses a peer which was gone before this rank
// came to it; nil if there is no such peer. No rank is through a collective before it has heard
// from all others, which plans are proved to do. In one with a root the root has heard from all
// others, and these from the root.
func (m *Machine) Missing(needed plan.Message) *fault.Error {
	for _, peer := range m.Departed() {
		root, d := int(needed.Root), m.departed[peer]
		if needed.Sequence > d.Last && (root < 0 || root == m.rank || root == peer) {
			return d.MissedBy(needed)
		}
	}
	return nil
}

func (m *Machine) fail(cause *fault.Error, quiet bool) []Action {
	if cause == nil || m.cause != nil {
		return nil
	}
	m.cause = cause
	if quiet {
		return []Action{Stop{cause}, EndWorks{cause}}
	}
	return []Action{Stop{cause}, Tell{cause}, EndWorks{cause}}
}

func (m *Machine) depart(peer int, d Departure, awaited []plan.Message) []Action {
	m.departed[peer] = d
	actions := []Action{Part{peer, d}}
	for _, a := range awaited {
		actions = append(actions, m.fail(m.Missing(a), false)...)
	}
	return actions
}

func (e Lost) step(m *Machine) []Action {
	d := Departure{Cause: e.Cause, Evidence: e.Evidence, Exited: e.Exited, Last: e.Last}
	actions := m.depart(e.Peer, d, e.Awaited)
	if e.Broken {
		actions = append(actions, m.fail(e.Cause, false)...)
	}
	return actions
}

func (e Left) step(m *Machine) []Action {
	return m.depart(e.Peer, Departure{Cause: e.Cause, Evidence: Proof, Last: e.Last}, e.Awaited)
}

func (e Awaits) step(m *Machine) []Action { return m.fail(m.Missing(e.Message), false) }

func (e Needs) step(m *Machine) []Action { return m.fail(m.Missing(e.Message), false) }

func (e Failure) step(m *Machine) []Action { return m.fail(e.Cause, e.Quiet) }
