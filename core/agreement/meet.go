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

// Strangers returns the newcomers that this rank has not met, and may do without. A newcomer has no
// strangers.
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

// SetSuccessor links the engine with that of the epoch which a decision has made, and which this
// rank is about to begin. It never holds the locks of both.
func (e *Engine) SetSuccessor(next *Engine) {
	next.mu.Lock()
	next.predecessor = e
	next.mu.Unlock()
	e.mu.Lock()
	e.successor = next
	e.mu.Unlock()
}

// Met tells that the first collective has completed here: this rank has met all members.
func (e *Engine) Met() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.met = true
}

// AllMet tells that the first meeting is over: all members have begun the epoch, and so have gone
// on with all decisions of the epochs before. None of them does without newcomers any more.
func (e *Engine) AllMet() {
	e.mu.Lock()
	waited := e.stable && e.unmet()
	e.met, e.allMet = true, true
	e.mu.Unlock()
	if waited {
		e.tellStable()
	} else if !e.config.Roster.Contested {
		e.becomeStable()
	}
	here := map[address.ProcessID]bool{}
	for rank := range e.config.Roster.Peers {
		here[e.config.Roster.Peers[rank].Process] = true
	}
	for b := e.takePredecessor(); b != nil; b = b.takePredecessor() {
		var ranks []int
		for rank := range b.config.Roster.Peers {
			if here[b.config.Roster.Peers[rank].Process] {
				ranks = append(ranks, rank)
			}
		}
		b.Inform(membership.Installed{Ranks: ranks})()
		b.CheckConfirmed()
	}
}

// takePredecessor returns the engine of the epoch before, and forgets it: each engine is told of
// later epochs only once.
func (e *Engine) takePredecessor() *Engine {
	e.mu.Lock()
	defer e.mu.Unlock()
	p := e.predecessor
	e.predecessor = nil
	return p
}

// CheckConfirmed looks whether all decisions of the epoch are confirmed, and tells the face and the
// successor then. The caller calls it after news of members.
func (e *Engine) CheckConfirmed() {
	e.mu.Lock()
	unconfirmed, successor, stable := e.unconfirmed(), e.successor, e.stable
	e.mu.Unlock()
	if stable && successor != nil && !unconfirmed {
		successor.becomeStable()
	}
	if !unconfirmed {
		e.face.Confirmed()
	}
}

// becomeStable notes that no member of the epoch before can decide otherwise.
func (e *Engine) becomeStable() {
	e.mu.Lock()
	stable := e.stable
	e.stable = true
	e.mu.Unlock()
	if !stable {
		e.tellStable()
		e.CheckConfirmed()
	}
}

// tellStable tells that the epoch is stable, see membership.Stable, unless a member may still do
// without newcomers. These hear of it from the others.
func (e *Engine) tellStable() {
	e.mu.Lock()
	if e.unmet() {
		e.mu.Unlock()
		return
	}
	r := e.config.Roster
	act := e.inform(membership.Stable{})
	tell := membership.Message{Kind: membership.Notice, Epoch: uint32(len(e.decisions)),
		Ended: membership.NewSet(r.Size()), Excluded: membership.NewSet(r.Size()), Stable: true}
	e.mu.Unlock()
	act()
	for rank := range r.Size() {
		if r.Founders.Has(r.Rank) && !r.Founders.Has(rank) {
			e.face.Send(rank, tell.Encode())
		}
	}
}
