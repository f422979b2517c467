package program

import "github.com/goccl/goccl/core/plan"

// Each rank must hear from each before the collective ends, or in a rooted one from the root, and
// the root from all. Where nothing is promised but by the sums and blocks of the others, moves say
// that already: what a rank gets has come from all. Messages without data say the rest.

// greet puts, first of all, an empty message to those peers that must hear from this rank and get
// no message of the program from it.
func (e *emitter) greet() {
	for _, peer := range e.star() {
		if e.isSilent(e.rank, peer) {
			e.emit(plan.Step{Op: plan.Put, Peer: int32(peer)})
		}
	}
}

// heed takes such messages, last of all. A Custom collective has rounds instead, after which each
// rank has heard from all.
func (e *emitter) heed() {
	for _, peer := range e.star() {
		if e.isSilent(peer, e.rank) {
			e.takeEmpty(peer)
		}
	}
	if e.Collective != plan.Custom {
		return
	}
	for d := 1; d < e.Ranks; d *= 2 {
		e.emit(plan.Step{Op: plan.Put, Peer: int32((e.rank + d) % e.Ranks)})
		e.takeEmpty((e.rank - d + e.Ranks) % e.Ranks)
	}
}

func (e *emitter) takeEmpty(peer int) {
	e.emit(plan.Step{Op: plan.Wait, Peer: int32(peer)})
	e.emit(plan.Step{Op: plan.Release, Peer: int32(peer)})
}

// star is, of a rooted collective, the peers that must hear from this rank, and it from them.
func (e *emitter) star() []int {
	if !e.Collective.Rooted() {
		return nil
	}
	if e.rank != e.Root {
		return []int{e.Root}
	}
	others := make([]int, e.Ranks-1)
	for i := range others {
		others[i] = (e.Root + i + 1) % e.Ranks
	}
	return others
}

// isSilent reports whether a rank gets no message of the program from another.
func (e *emitter) isSilent(from, to int) bool {
	return !e.lists.direct[[2]int32{int32(from), int32(to)}]
}
