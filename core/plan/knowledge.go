package plan

// knowledge is of whom each rank has heard: by messages and by releases, at first hand and from
// those who told it.
//
// What a rank knows only grows. So it is kept once, in the order in which the rank has heard it,
// and what the rank knew at some time is how long the list was then: a message needs to carry
// nothing but this number.
type knowledge []heard

// heard is of whom one rank has heard, itself first.
type heard struct {
	order []int32
	has   set
}

func newKnowledge(ranks int) knowledge {
	k := make(knowledge, ranks)
	for r := range k {
		k[r].has = newSet(ranks)
		k[r].add(int32(r))
	}
	return k
}

func (h *heard) add(rank int32) {
	if !h.has.has(int(rank)) {
		h.has.add(int(rank))
		h.order = append(h.order, rank)
	}
}

// tell is what a rank knows now, for others.
func (k knowledge) tell(r int) int32 { return int32(len(k[r].order)) }

// hear has a rank learn what a peer knew, but for what it has learned of that before.
func (k knowledge) hear(r int, peer, before, told int32) {
	if len(k[r].order) == len(k) {
		return // it has heard from all
	}
	for i := before; i < told; i++ {
		k[r].add(k[peer].order[i])
	}
}

// set is a set of ranks, a bit each.
type set []uint64

func newSet(ranks int) set { return make(set, (ranks+63)/64) }

func (s set) add(rank int)      { s[rank/64] |= 1 << (rank % 64) }
func (s set) has(rank int) bool { return s[rank/64]>>(rank%64)&1 != 0 }
