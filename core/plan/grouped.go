package plan

import "slices"

// Where ranks are in groups (Params.Group), whose members are joined by faster channels than the groups, what goes from one group to another goes once, not for each rank
// there or from each rank there is. Each rank has members, the others of its group, and twins, the ranks that are in other groups what it is in its own. Only
// twins send from group to group.

// groups tells whether blocks are long enough to go that way, which has more hops. Without it as many as Group*Group messages go from each group to each.
func (b *builder) groups(bytes []int64) bool {
	return b.Group > 0 && slices.Max(bytes) > b.OneShotMax/int64(b.Group*b.Group)
}

// gatherGroups gets each block from its rank's twin in the group, to which it has gone from group to group, chunk by chunk. All members take those of one group after
// those of another in the same order, so there is one message at most from member to member.
func (b *builder) gatherGroups() {
	own, lag, rounds := part{block(In, 0), b.InBytes[0]}, b.lag(), b.rounds(blocks(Out, b.OutBytes))
	for k := range rounds + lag {
		if k < b.count(own.bytes) {
			off, bytes := cut(own.bytes, b.count(own.bytes), k)
			for _, twin := range b.twins() {
				b.put(twin, own.place.at(off), bytes, 0)
			}
		}
		for i := 0; i < b.Size && k >= lag; i += b.Group {
			like := (b.Rank + i) % b.Size // this rank itself, then its twins
			if place, bytes, ok := b.chunk(Out, like, k-lag); ok {
				if i > 0 {
					b.take(like, place, bytes, 0)
				} else {
					b.copy(place, own.place.at(place.Off), bytes)
				}
				for _, member := range b.members() {
					b.put(member, place, bytes, 0)
				}
			}
			for _, member := range b.members() {
				if place, bytes, ok := b.chunk(Out, (member+i)%b.Size, k-lag); ok {
					b.take(member, place, bytes, 0)
				}
			}
		}
	}
}

// reduceScatterGroups reduces each block among the members of a group, for the one that is a twin of the block's rank, and then among these.
func (b *builder) reduceScatterGroups() {
	lag, rounds := b.lag(), b.rounds(blocks(In, b.InBytes))
	for k := range rounds + lag {
		for i := 0; i < b.Size && k < rounds; i += b.Group {
			for _, member := range b.members() {
				if place, bytes, ok := b.chunk(In, (member+i)%b.Size, k); ok {
					b.put(member, place, bytes, 0)
				}
			}
			like := (b.Rank + i) % b.Size
			place, bytes, ok := b.chunk(In, like, k)
			switch {
			case ok && i == 0: // it stays where its result will be
				b.combineRing(block(Out, 0).at(place.Off), place, bytes, b.members(), b.inGroup)
			case ok:
				partial := block(Scratch, 0)
				b.plan.ScratchBytes = max(b.plan.ScratchBytes, bytes)
				b.combineRing(partial, place, bytes, b.members(), b.inGroup)
				b.put(like, partial, bytes, 0)
			}
		}
		if place, bytes, ok := b.chunk(In, b.Rank, k-lag); ok {
			own := block(Out, 0).at(place.Off)
			b.combineRing(own, own, bytes, b.twins(), b.groupOf)
		}
	}
}

// chunk is chunk k of the block of a rank, if there is one.
func (b *builder) chunk(s Space, rank, k int) (place Ref, bytes int64, ok bool) {
	n := b.OutBytes
	if s == In {
		n = b.InBytes
	}
	count := b.count(n[rank])
	if k < 0 || k >= count {
		return Ref{}, 0, false
	}
	off, bytes := cut(n[rank], count, k)
	return block(s, rank).at(off), bytes, true
}

func (b *builder) inGroup(rank int) int { return rank % b.Group }
func (b *builder) groupOf(rank int) int { return rank / b.Group }

// reduceGroups reduces round by round. With two hosts of four ranks a quarter goes between them of what reduceSlices sends.
//
// Of a round each member of a group owns a slice, the same in all groups, and of that slice each group a part. A slice is
//
//  1. put to the member that owns it;
//  2. combined there, into a partial result, of which each part is put to the twin whose group owns it;
//  3. combined there, into the result, which is put to all other twins;
//  4. taken by them, and put to the other members;
//  5. taken by these.
//
// Iteration k does step 1 of round k, step 2 of round k-lag, and so on. To a member go the contributions of round k and the slice of round
// k-3*lag, to a twin the partial of round k-lag and the result of round k-2*lag, and they are waited for in that order lag iterations later. So with all ranks
// in step a rank holds at most 2*lag+1 messages of another, as in reduceSlices. Where a part of a small round is empty, it is not sent.
//
// A partial result needs no memory of its own: it lies where the result will.
func (b *builder) reduceGroups(rounds []span) {
	lag := min(max(b.Ahead, 1), (b.Slots-2)/2)
	stages := []func(span){b.contribute, b.combineMembers, b.combineTwins, b.spreadResult, b.collectSlices}
	for k := range len(rounds) + (len(stages)-1)*lag {
		for i, stage := range stages {
			if j := k - i*lag; j >= 0 && j < len(rounds) {
				stage(rounds[j])
			}
		}
	}
}

// members is the other ranks of this rank's group, beginning behind it.
func (b *builder) members() []int { return b.ring(b.Rank-b.Rank%b.Group, 1, b.Group) }

// twins is the ranks that are in other groups what this one is in its own.
func (b *builder) twins() []int { return b.ring(b.Rank%b.Group, b.Group, b.Size/b.Group) }

// ring is all others of n ranks that begin at first and are so far apart, from behind this one on.
func (b *builder) ring(first, apart, n int) []int {
	own, ranks := (b.Rank-first)/apart, make([]int, n-1)
	for i := range ranks {
		ranks[i] = first + (own+i+1)%n*apart
	}
	return ranks
}

// memberSlice is the slice of a round that a rank owns in its group, and twinPart the part of it that the rank owns among its twins.
func (b *builder) memberSlice(s Space, round span, rank int) (Ref, int64) {
	off, bytes := cut(round.bytes, b.Group, b.inGroup(rank))
	return block(s, round.block).at(round.off + off), bytes
}

func (b *builder) twinPart(s Space, round span, rank int) (Ref, int64) {
	slice, bytes := b.memberSlice(s, round, rank)
	off, bytes := cut(bytes, b.Size/b.Group, b.groupOf(rank))
	return slice.at(off), bytes
}

func (b *builder) contribute(round span) {
	for _, owner := range b.members() {
		if place, bytes := b.memberSlice(In, round, owner); bytes > 0 {
			b.put(owner, place, bytes, 0)
		}
	}
}

func (b *builder) combineMembers(round span) {
	own, bytes := b.memberSlice(In, round, b.Rank)
	partial, _ := b.memberSlice(Out, round, b.Rank)
	if bytes > 0 {
		b.combineRing(partial, own, bytes, b.members(), b.inGroup)
	}
	for _, twin := range b.twins() {
		if place, bytes := b.twinPart(Out, round, twin); bytes > 0 {
			b.put(twin, place, bytes, 0)
		}
	}
}

func (b *builder) combineTwins(round span) {
	own, bytes := b.twinPart(Out, round, b.Rank)
	if bytes == 0 {
		return
	}
	b.combineRing(own, own, bytes, b.twins(), b.groupOf)
	for _, twin := range b.twins() {
		b.put(twin, own, bytes, 0)
	}
}

// combineRing combines a message of each of some ranks with this rank's own, in the order of their places.
func (b *builder) combineRing(dst, own Ref, bytes int64, ranks []int, place func(rank int) int) {
	b.src = b.src[:len(ranks)+1]
	b.src[place(b.Rank)] = own
	for _, rank := range ranks {
		b.src[place(rank)] = b.wait(rank, bytes, 0)
	}
	if bytes > 0 {
		b.emit(Step{Op: Combine, Bytes: bytes, Dst: dst}, b.src...)
	}
	for _, rank := range ranks {
		b.release(rank)
	}
}

func (b *builder) spreadResult(round span) {
	for _, twin := range b.twins() {
		if place, bytes := b.twinPart(Out, round, twin); bytes > 0 {
			b.take(twin, place, bytes, 0)
		}
	}
	slice, bytes := b.memberSlice(Out, round, b.Rank)
	for _, member := range b.members() {
		if bytes > 0 {
			b.put(member, slice, bytes, 0)
		}
	}
}

func (b *builder) collectSlices(round span) {
	for _, owner := range b.members() {
		if place, bytes := b.memberSlice(Out, round, owner); bytes > 0 {
			b.take(owner, place, bytes, 0)
		}
	}
}
