package plan

import "slices"

// view is what a rank knows of the others: what it has been told, by messages and by releases, and
// what those who told it had been told. Once it has been told to others it does not change.
type view struct {
	heard set     // from whom the rank has heard, itself among them
	steps []int32 // of each rank, how many steps it has done for certain; nil where nobody asks
}

// knowledge is the views of all ranks.
type knowledge struct {
	views []*view
	told  []bool // by rank: whether its view has been told to others
	// precise tells that views have steps.
	precise bool
}

// newKnowledge is that of ranks that know nothing. Views of steps are as large as there are ranks,
// and each message has one: only those who need them ask for them.
func newKnowledge(ranks int, precise bool) *knowledge {
	k := &knowledge{make([]*view, ranks), make([]bool, ranks), precise}
	for r := range ranks {
		v := &view{heard: newSet(ranks)}
		v.heard.add(r)
		if precise {
			v.steps = make([]int32, ranks)
		}
		k.views[r] = v
	}
	return k
}

// tell is the view of a rank, for others.
func (k *knowledge) tell(r int) *view {
	k.told[r] = true
	return k.views[r]
}

// hear has a rank learn what a peer knew when it had done so many steps, and that it had done them.
func (k *knowledge) hear(r, peer int, of *view, steps int32) {
	mine := k.views[r]
	if !k.precise && mine.heard.contains(of.heard) {
		return
	}
	if k.told[r] {
		mine = &view{slices.Clone(mine.heard), slices.Clone(mine.steps)}
		k.views[r], k.told[r] = mine, false
	}
	mine.heard.addAll(of.heard)
	if !k.precise {
		return
	}
	for i, n := range of.steps {
		mine.steps[i] = max(mine.steps[i], n)
	}
	mine.steps[peer] = max(mine.steps[peer], steps)
}

// set is a set of ranks, a bit each.
type set []uint64

func newSet(ranks int) set { return make(set, (ranks+63)/64) }

func (s set) add(rank int)      { s[rank/64] |= 1 << (rank % 64) }
func (s set) has(rank int) bool { return s[rank/64]>>(rank%64)&1 != 0 }

func (s set) addAll(t set) {
	for i, bits := range t {
		s[i] |= bits
	}
}

func (s set) contains(t set) bool {
	for i, bits := range t {
		if bits&^s[i] != 0 {
			return false
		}
	}
	return true
}
