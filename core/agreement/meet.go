package agreement

import (
	"github.com/goccl/goccl/core/address"
	"github.com/goccl/goccl/core/membership"
)

// An epoch's members meet in a first collective. Once it has completed on all of them, all have
// gone on with what was decided before. Where there are newcomers, members may do without those
// that do not come to it.

// Unmet reports whether the epoch has newcomers, and its first meeting is not over.
func (e *Engine) Unmet() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.unmet()
}

// unmet is called with mu held.
func (e *Engine) unmet() bool { return len(e.config.Roster.Joined) > 0 && !e.allMet }

// Strangers are the newcomers that this rank, which is none, has not met: it may do without them.
func (e *Engine) Strangers() (ranks []int) {
	e.mu.Lock()
	met := e.met
	e.mu.Unlock()
	r := e.config.Roster
	for rank := r.Size() - len(r.Joined); rank < r.Size() && !met && !r.IsNewcomer(r.Rank); rank++ {
		ranks = append(ranks, rank)
	}
	return ranks
}

// LeadsTo tells that a decision has made another epoch, which this rank is about to begin.
func (e *Engine) LeadsTo(next *Engine) {
	next.mu.Lock()
	next.before = e
	next.mu.Unlock()
	e.mu.Lock()
	e.next = next
	e.mu.Unlock()
}

// Met tells that a first collective has completed here, and so this rank has met all members.
func (e *Engine) Met() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.met = true
}

// AllMet tells that the first meeting is over: all members have begun the epoch, and have gone on
// with all that was decided in the epochs before. None of them does without newcomers any more.
func (e *Engine) AllMet() {
	e.mu.Lock()
	waited := e.settled && e.unmet()
	e.met, e.allMet = true, true
	e.mu.Unlock()
	if waited {
		e.tellSettled()
	} else if !e.config.Roster.Contested {
		e.settle()
	}
	here := map[address.ProcessID]bool{}
	for rank := range e.config.Roster.Peers {
		here[e.config.Roster.Peers[rank].Process] = true
	}
	for b := e.takeBefore(); b != nil; b = b.takeBefore() {
		var ranks []int
		for rank := range b.config.Roster.Peers {
			if here[b.config.Roster.Peers[rank].Process] {
				ranks = append(ranks, rank)
			}
		}
		b.Inform(membership.Installed{Ranks: ranks})()
		b.CheckSettled()
	}
}

// takeBefore returns the engine of the epoch before, and forgets it: it is told of later ones only
// once.
func (e *Engine) takeBefore() *Engine {
	e.mu.Lock()
	defer e.mu.Unlock()
	before := e.before
	e.before = nil
	return before
}

// CheckSettled does what can be done once nobody can ask for a decision of the epoch any more. It
// follows what informs of members.
func (e *Engine) CheckSettled() {
	e.mu.Lock()
	owes, next, settled := e.owes(), e.next, e.settled
	e.mu.Unlock()
	if settled && next != nil && !owes {
		next.settle()
	}
	if !owes {
		e.face.Settled()
	}
}

// settle tells that no member of the epoch before can decide otherwise.
func (e *Engine) settle() {
	e.mu.Lock()
	settled := e.settled
	e.settled = true
	e.mu.Unlock()
	if !settled {
		e.tellSettled()
		e.CheckSettled()
	}
}

// tellSettled tells that the epoch is settled, see membership.Settle, unless a member may still do
// without newcomers. These hear of it from the others.
func (e *Engine) tellSettled() {
	e.mu.Lock()
	if e.unmet() {
		e.mu.Unlock()
		return
	}
	r := e.config.Roster
	act := e.inform(membership.Settle{})
	tell := membership.Message{Kind: membership.Notice, Epoch: uint32(len(e.decisions)),
		Ended: membership.NewSet(r.Size()), Excluded: membership.NewSet(r.Size()), Settled: true}
	e.mu.Unlock()
	act()
	for rank := range r.Size() {
		if r.Founders.Has(r.Rank) && !r.Founders.Has(rank) {
			e.face.Send(rank, tell.Encode())
		}
	}
}

// Stable reports whether no member of the epoch before can decide otherwise.
func (e *Engine) Stable() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.settled
}
