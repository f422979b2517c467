// Package completion decides what becomes of collectives in which a member of a group dies, where
// the members that are left complete them.
//
// # Model
//
// The group goes from one epoch, which has failed, to the next, which has fewer members. Each rank
// tells its [Progress] in the old epoch: which collectives it has called and ended, and whose
// results it has. [Judge] makes one [Judgement] of what all of them tell. From that, and from what
// it has itself, each rank finds the [Outcome] of each collective whose work is suspended:
//
//	has result   it has ended, and stays as it is
//	awaits       another member has the result, and passes it on
//	reruns       it runs once more, among the members that are left
//	lost         some have ended it, and none that lives has the result
//
// No rank ends a collective before it has heard from all others, which plans are proved to do. So
// one that any rank has ended has begun on all, and two ranks differ in few ended ones.
//
// Where another member dies before all results have been passed on, the members tell of these
// results again, and [Judgement.Reconsider] goes on from the outcome before.
//
// All is decided by functions of values. The ranks decide the same.
package completion

import (
	"cmp"
	"maps"
	"math"
	"slices"
)

// MaxBytes is the most bytes of a collective that survivors complete. A longer one fails, on all
// ranks.
const MaxBytes = 128 << 20

// Progress is how far a rank has come in an epoch: what it tells the others when it recovers.
type Progress struct {
	Epoch    uint32
	Begun    uint64   // the last collective that has been called here
	Finished uint64   // the last one that has ended here, or whose result is here
	Has      []Result `json:",omitempty"` // of the last ones, and of those that are passed on
	Lacks    []Result `json:",omitempty"` // of those that are passed on
}

// Result is that of a collective of an epoch.
type Result struct {
	Epoch    uint32
	Sequence uint64
	Bytes    uint64
}

// Fetch is a result that some survivors have and others lack.
type Fetch struct {
	Result
	From int // the rank that has it, of the old epoch
}

// Judgement is what all ranks know of an epoch's collectives.
type Judgement struct {
	// The last collectives that have been called on all ranks, that have ended on all, and that have
	// ended anywhere.
	Begun    uint64
	Ended    uint64
	Finished uint64
	Fetch    []Fetch `json:",omitempty"` // the results that are passed on, in their order
}

// Judge makes the judgement of what ranks have come to, by rank.
func Judge(of map[int]Progress) Judgement {
	j := Judgement{Begun: math.MaxUint64, Ended: math.MaxUint64}
	lacks := map[Result]bool{}
	for _, p := range of {
		j.Begun, j.Ended = min(j.Begun, p.Begun), min(j.Ended, p.Finished)
		j.Finished = max(j.Finished, p.Finished)
		for _, r := range p.Lacks {
			lacks[r] = true
		}
	}
	for _, rank := range slices.Sorted(maps.Keys(of)) {
		p := of[rank]
		for _, r := range p.Has {
			known := slices.ContainsFunc(j.Fetch, func(f Fetch) bool { return f.Result == r })
			// What some have not called yet they will call in the next epoch.
			missing := r.Epoch == p.Epoch && r.Sequence > j.Ended && r.Sequence <= j.Begun
			if !known && (missing || lacks[r]) {
				j.Fetch = append(j.Fetch, Fetch{r, rank})
			}
		}
	}
	slices.SortFunc(j.Fetch, func(a, b Fetch) int {
		return cmp.Or(cmp.Compare(a.Epoch, b.Epoch), cmp.Compare(a.Sequence, b.Sequence))
	})
	return j
}

// passes reports whether the result of a collective is passed on.
func (j *Judgement) passes(c Collective) bool {
	return slices.ContainsFunc(j.Fetch, func(f Fetch) bool {
		return f.Epoch == c.Epoch && f.Sequence == c.Sequence
	})
}

// Collective is one whose work is suspended.
type Collective struct {
	Epoch    uint32 // in which it was called
	Sequence uint64
	// Empty tells that it has no result: it is a barrier.
	Empty bool
	// Confirmed tells that its work ends only after a barrier, and so on no rank before all have the
	// result.
	Confirmed bool
}

// Outcome is what becomes of a collective.
type Outcome uint8

const (
	HasResult Outcome = iota
	Awaits            // its result is passed on
	Reruns            // it runs once more, in the present epoch
	Lost              // it cannot be completed
)

// Outcome returns what becomes of a collective of the epoch that has been judged, on a rank that
// has ended those up to `finished`.
func (j *Judgement) Outcome(c Collective, finished uint64) Outcome {
	switch s := c.Sequence; {
	case j.passes(c):
		if s > finished {
			return Awaits
		}
		return HasResult
	case s <= j.Ended:
		return HasResult
	case s > j.Finished:
		return Reruns
	case c.Empty:
		return HasResult
	case c.Confirmed: // it has ended on some ranks, but no work with it has
		return Reruns
	}
	return Lost
}

// Reconsider returns what becomes of a collective whose outcome was o, when the epoch has failed in
// which results were passed on. Here tells whether its result has come. What no rank has that lives
// runs once more: then none has ended it.
func (j *Judgement) Reconsider(o Outcome, c Collective, here bool) Outcome {
	switch {
	case o != Awaits:
		return o
	case here:
		return HasResult
	case j.passes(c):
		return Awaits
	}
	return Reruns
}

// NoRoot is the root of what cannot run again, because its root has ended.
const NoRoot = -1

// Root returns the root of a collective in the next epoch, where `rank` gives members their new
// numbers. Lost tells that it cannot run again.
func Root(o Outcome, root int, rank func(int) (int, bool)) (next int, lost bool) {
	if o == HasResult {
		return root, false
	}
	if root != NoRoot {
		if next, survives := rank(root); survives {
			return next, false
		}
	}
	return NoRoot, o == Reruns
}
