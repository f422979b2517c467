package membership

import (
	"cmp"
	"slices"
)

// NonceSize is the size of what makes the secret of an epoch unlike all others.
const NonceSize = 32

// Joiner is a process that asks to be a member.
type Joiner struct {
	// Host: joiners of one host get ranks next to each other. At most MaxHost bytes.
	Host string
	// Handle is how members reach it, and what proves who it is. At most MaxHandle bytes.
	Handle []byte
}

// Value is what can be decided: how an epoch goes on. The members of the next one are the
// survivors, in the order of their ranks, and after them the joiners.
type Value struct {
	Epoch     uint32 // the next one
	Nonce     [NonceSize]byte
	Survivors Set
	// Founders are survivors: see [Config.Founders].
	Founders Set
	Open     bool // somebody who is left out may live, and come to another decision
	Joiners  []Joiner
	// Record says what becomes of the operations that were under way. It is what Config.Judge has
	// made of the reports, in at most MaxOpaque bytes.
	Record []byte
}

// Size is the number of members.
func (v *Value) Size() int { return v.Survivors.count() + len(v.Joiners) }

// Rank is the new rank of a survivor.
func (v *Value) Rank(old int) (rank int, survives bool) {
	return slices.BinarySearch(v.Survivors.Ranks(), old)
}

// NextFounders are the founders, by their new ranks.
func (v *Value) NextFounders() Set {
	founders := NewSet(v.Size())
	for rank, old := range v.Survivors.Ranks() {
		if v.Founders.Has(old) {
			founders.add(rank)
		}
	}
	return founders
}

// Ballot orders proposals: by how many members have ended, as the proposer knows, then by attempt,
// then by rank. So what a member has proposed that has ended comes before all that those propose
// who know of that, whatever its attempt was. The zero ballot comes before all.
type Ballot struct {
	Ended   int
	Attempt uint64 // from 1
	Rank    int
}

func (b Ballot) before(c Ballot) bool {
	return cmp.Or(cmp.Compare(b.Ended, c.Ended), cmp.Compare(b.Attempt, c.Attempt),
		cmp.Compare(b.Rank, c.Rank)) < 0
}

// compose makes a value of the reports that have come, by rank. It returns nil where the next epoch
// would break a rule.
func (a *Agreement) compose(reports map[int]*Message) *Value {
	v := &Value{Epoch: a.config.Epoch + 1, Nonce: a.nonce,
		Survivors: agreeing(a.config.Size, reports), Joiners: a.joiners}
	v.Founders = v.Survivors
	if !a.stable {
		v.Founders = v.Survivors.both(a.founders)
	}
	v.Open = !a.stable || v.Survivors.count()+a.ended.count() < a.config.Size
	closed := false
	if a.config.Judge != nil {
		states := map[int][]byte{}
		for _, rank := range v.Survivors.Ranks() {
			states[rank] = reports[rank].State
		}
		v.Record, closed = a.config.Judge(states)
	}
	if closed {
		v.Joiners = nil
	}
	if !closed && len(v.Joiners) < a.newcomers && a.config.Waits && !a.waited {
		return nil
	}
	if v.Size() < a.config.MinSize || !a.config.Any && v.Founders.count() == 0 {
		return nil
	}
	return v
}

// agreeing are ranks that have reported, of whom none suspects another: two that do not reach each
// other cannot both be members. Those come first who are in the fewest such pairs, and of these the
// lower rank: where one suspects all the others, it is the one that is left out.
func agreeing(size int, reports map[int]*Message) Set {
	conflicts := map[int]Set{} // by rank; of those that have any
	add := func(rank, peer int) {
		if conflicts[rank] == nil {
			conflicts[rank] = NewSet(size)
		}
		conflicts[rank].add(peer)
	}
	ranks := make([]int, 0, len(reports))
	for rank, report := range reports {
		ranks = append(ranks, rank)
		for _, peer := range report.Suspected.Ranks() {
			if reports[peer] != nil && peer != rank {
				add(rank, peer)
				add(peer, rank)
			}
		}
	}
	slices.SortFunc(ranks, func(i, j int) int {
		return cmp.Or(cmp.Compare(conflicts[i].count(), conflicts[j].count()), cmp.Compare(i, j))
	})
	chosen := NewSet(size)
	for _, rank := range ranks {
		if c := conflicts[rank]; c == nil || c.both(chosen).count() == 0 {
			chosen.add(rank)
		}
	}
	return chosen
}

// hear notes joiners, those of one host next to each other, in the order of their arrival.
func (a *Agreement) hear(joiners []Joiner) {
	for _, j := range joiners {
		known := slices.ContainsFunc(a.joiners, func(k Joiner) bool {
			return slices.Equal(j.Handle, k.Handle)
		})
		if !known && !a.gone[string(j.Handle)] && len(a.joiners) < MaxJoiners {
			a.joiners = append(slices.Clone(a.joiners), j)
		}
	}
	slices.SortStableFunc(a.joiners, func(i, j Joiner) int { return cmp.Compare(i.Host, j.Host) })
}
