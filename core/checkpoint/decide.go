package checkpoint

import (
	mathbits "math/bits"
	"slices"

	"github.com/goccl/goccl/core/fault"
)

// draft is what a rank tells before a version is made.
type draft struct {
	ID, Version   int64
	Staged        bool // it has a version whole already that may count
	Behind        bool // it has not loaded since the members have changed
	Digest        int64
	Global, Local int64 // bytes
	LocalDigest   int64
	Replicas      int64
}

// checkDrafts checks what ranks are about to make: alike on all of them.
func checkDrafts(group *fault.Group, drafts []draft, copies [][]int) error {
	held := make([]int64, len(drafts))
	for rank, d := range drafts {
		first, names := &drafts[0], group.Names
		switch {
		case d.Staged:
			return fault.Errorf(fault.ErrInvalidArgument, "the checkpoint before has failed, and %s "+
				"has all of it: call LoadCheckPoint, which tells whether it counts", names(rank)).
				Blaming(rank)
		case d.Version != first.Version:
			return fault.Errorf(fault.ErrMismatch, "the next version is %d on %s, but %d on %s: "+
				"all call LoadCheckPoint after the members have changed", d.Version, names(rank),
				first.Version, names(0)).Blaming(rank)
		case d.Behind:
			return fault.Errorf(fault.ErrMismatch, "the members have changed since %s has got version "+
				"%d: all call LoadCheckPoint first", names(rank), d.Version-1).Blaming(rank)
		case d.Global != first.Global || d.Digest != first.Digest:
			return fault.Errorf(fault.ErrMismatch, "the global models differ: of %d bytes, digest "+
				"%016x, on %s, and of %d bytes, digest %016x, on %s", d.Global, uint64(d.Digest),
				names(rank), first.Global, uint64(first.Digest), names(0)).Blaming(rank)
		case d.Replicas < 0:
			return fault.Errorf(fault.ErrInvalidArgument, "replicas are %d on %s, allowed are 0 and "+
				"more", d.Replicas, names(rank)).Blaming(rank)
		case d.Replicas != first.Replicas:
			return fault.Errorf(fault.ErrMismatch, "replicas are %d on %s, and %d on %s: they are to "+
				"be the same", d.Replicas, names(rank), first.Replicas, names(0)).Blaming(rank)
		}
		if d.Global < 0 || d.Local < 0 || d.Global > MaxBytes || d.Local > MaxBytes {
			return tooLarge(group, rank, max(d.Global, d.Local))
		}
		held[rank] += d.Global + d.Local
		for _, k := range copies[rank] {
			held[k] += d.Local
		}
	}
	for rank, n := range held {
		if 2*n > MaxBytes {
			return tooLarge(group, rank, 2*n)
		}
	}
	return nil
}

func tooLarge(group *fault.Group, rank int, bytes int64) error {
	return fault.Errorf(fault.ErrInvalidArgument, "the models take %d bytes on %s, in two "+
		"versions and with the copies that it keeps for others; allowed are %d", bytes,
		group.Names(rank), MaxBytes).Blaming(rank)
}

// holding is what a rank tells of the versions that it has.
type holding struct {
	id      uint64
	belongs bool
	has     [2]heldVersion // committed and staged
	changed [2]bool        // its global model is not that which was made
}

type heldVersion struct{ Number, Digest, Global, Table, Shards int64 }

func (h *holding) of(number int64) *heldVersion {
	for i := range h.has {
		if h.has[i].Number == number {
			return &h.has[i]
		}
	}
	return nil
}

// whole reports whether the rank has the global model of a version, as it was made.
func (h *holding) whole(number int64) bool {
	for i := range h.has {
		if h.has[i].Number == number {
			return !h.changed[i]
		}
	}
	return false
}

// choose decides which version counts, and which rank others get it from; that is noRank where
// there is none. If a version has been returned by any rank, all that belong have at least staged
// it.
func choose(group *fault.Group, has []holding) (chosen heldVersion, source int, err error) {
	var committed int64
	least := int64(-1)
	for _, h := range has {
		committed = max(committed, h.has[0].Number)
		if newest := max(h.has[0].Number, h.has[1].Number); h.belongs &&
			(least < 0 || newest < least) {
			least = newest
		}
	}
	number := max(committed, least)
	if number == 0 {
		return chosen, noRank, nil
	}
	source = noRank
	for rank := range has {
		switch v := has[rank].of(number); {
		case v == nil:
		case source < 0:
			source, chosen = rank, *v
		case *v != chosen:
			return chosen, noRank, fault.Errorf(fault.ErrMismatch, "%s and %s have different models of "+
				"version %d", group.Names(source), group.Names(rank), number).Blaming(rank)
		}
	}
	whole := func(h holding) bool { return h.whole(number) }
	if source >= 0 && !slices.ContainsFunc(has, whole) {
		return chosen, noRank, fault.Errorf(fault.ErrMismatch, "the global model of version %d "+
			"has changed since it was made, on all ranks that have it", number).Blaming(source)
	}
	if source < 0 || chosen.Global < 0 || chosen.Global > MaxBytes || chosen.Shards < 0 ||
		chosen.Shards > MaxRanks {
		return chosen, noRank, group.Errorf(fault.ErrInternal, "version %d cannot be of %d bytes and %d "+
			"ranks", number, chosen.Global, chosen.Shards)
	}
	return chosen, source, nil
}

// passing says which ranks lack the global model, and which have it.
func passing(has []holding, number int64) (holders, takers []int) {
	for rank := range has {
		if has[rank].whole(number) {
			holders = append(holders, rank)
		} else {
			takers = append(takers, rank)
		}
	}
	return holders, takers
}

// mask has a bit for each of some shards that a rank has.
func mask(shards int, has func(at int) bool) []int64 {
	bits := make([]int64, (shards+63)/64)
	for at := range shards {
		if has(at) {
			bits[at/64] |= 1 << (at % 64)
		}
	}
	return bits
}

// holdersOf returns, for each of some shards, which ranks have it, by the masks of all ranks.
func holdersOf(shards int, masks []int64) [][]int {
	words := (shards + 63) / 64
	holders := make([][]int, shards)
	for i, word := range masks {
		for ; word != 0; word &= word - 1 {
			if at := i%words*64 + mathbits.TrailingZeros64(uint64(word)); at < shards {
				holders[at] = append(holders[at], i/words)
			}
		}
	}
	return holders
}

// moves are the shards that ranks get from others, when others own them than have them.
type move struct {
	shard   int
	to      int
	holders []int
}

// movesOf returns what moves, in the order of shards. A rank owns one shard at most, so it gets one
// at most.
func movesOf(shards []shard, owners []int, holders [][]int) (all []move) {
	for at, owner := range owners {
		if owner != noRank && shards[at].Local > 0 && len(holders[at]) > 0 &&
			!slices.Contains(holders[at], owner) {
			all = append(all, move{at, owner, holders[at]})
		}
	}
	return all
}
