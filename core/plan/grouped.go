package plan

import "slices"

// Where ranks are in groups (Params.Group), whose members are joined by faster channels than the groups, what goes from one group to another goes once, not for each rank
// there or from each rank there is. Each rank has members, the others of its group, and twins, the ranks that are in other groups what it is in its own. Only
// twins send from group to group.

// findGroup finds out who this rank's members and twins are: each list begins behind this rank.
func (b *builder) findGroup() {
	if b.Group == 0 {
		return
	}
	for i := 1; i < b.Group; i++ {
		b.members = append(b.members, b.Rank-b.inGroup(b.Rank)+(b.Rank+i)%b.Group)
	}
	for i := b.Group; i < b.Size; i += b.Group {
		b.twins = append(b.twins, (b.Rank+i)%b.Size)
	}
}

func (b *builder) inGroup(rank int) int { return rank % b.Group }
func (b *builder) groupOf(rank int) int { return rank / b.Group }

// oneShotMax is less with groups, where as many as Group*Group messages go from each to each. What is longer goes by members and twins, which are more hops.
func (b *builder) oneShotMax() int64 {
	each := int64(max(b.Group, 1))
	return b.OneShotMax / (each * each)
}

// inGroups tells whether the longest of blocks goes by members and twins.
func (b *builder) inGroups(bytes []int64) bool {
	return b.Group > 0 && slices.Max(bytes) > b.oneShotMax()
}

// gatherGroups gets each block from its rank's twin in the group, to which it has gone from group to group, chunk by chunk. All members take those of one group after
// those of another in the same order, so that few messages are under way from member to member.
func (b *builder) gatherGroups() {
	own, lag, rounds := part{block(In, 0), b.InBytes[0]}, b.lag(), b.rounds(blocks(Out, b.OutBytes))
	for k := range rounds + lag {
		if k < b.count(own.bytes) {
			off, bytes := cut(own.bytes, b.count(own.bytes), k)
			for _, twin := range b.twins {
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
				for _, member := range b.members {
					b.put(member, place, bytes, 0)
				}
			}
			for _, member := range b.members {
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
			for _, member := range b.members {
				if place, bytes, ok := b.chunk(In, (member+i)%b.Size, k); ok {
					b.put(member, place, bytes, 0)
				}
			}
			like := (b.Rank + i) % b.Size
			place, bytes, ok := b.chunk(In, like, k)
			switch {
			case ok && i == 0: // it stays where its result will be
				b.combineAmong(b.members, b.inGroup, block(Out, 0).at(place.Off), place, bytes, nil)
			case ok:
				partial := block(Scratch, 0)
				b.plan.ScratchBytes = max(b.plan.ScratchBytes, bytes)
				b.combineAmong(b.members, b.inGroup, partial, place, bytes, nil)
				b.put(like, partial, bytes, 0)
			}
		}
		if place, bytes, ok := b.chunk(In, b.Rank, k-lag); ok {
			own := block(Out, 0).at(place.Off)
			b.combineAmong(b.twins, b.groupOf, own, own, bytes, nil)
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

// reduceGroups reduces round by round. Of a round each rank owns a part, which is reduced as by reduceScatterGroups, and then goes to all as by gatherGroups.
//
// Iteration k does the first step of round k, the second of round k-lag, and the third of round k-2*lag. So to a twin go the partial result of round k and the result of round
// k-lag, and they are waited for in that order lag iterations later: with all ranks in step it holds at most 2*lag+1 of them, as in reduceSlices.
//
// A partial result needs no memory of its own: it lies where the result will.
func (b *builder) reduceGroups(rounds []span) {
	lag := min(max(b.Ahead, 1), (b.Slots-2)/2)
	steps := []func(span){b.reduceInGroup, b.reduceAmongTwins, b.gatherFromTwins}
	for k := range len(rounds) + (len(steps)-1)*lag {
		for i, step := range steps {
			if j := k - i*lag; j >= 0 && j < len(rounds) {
				step(rounds[j])
			}
		}
	}
}

func (b *builder) reduceInGroup(round span) {
	for i := 0; i < b.Size; i += b.Group {
		for _, member := range b.members {
			if place, bytes := b.slice(In, round, (member+i)%b.Size); bytes > 0 {
				b.put(member, place, bytes, 0)
			}
		}
		like := (b.Rank + i) % b.Size
		if own, bytes := b.slice(In, round, like); bytes > 0 {
			partial := block(Out, round.block).at(own.Off)
			b.combineAmong(b.members, b.inGroup, partial, own, bytes, nil)
			if i > 0 {
				b.put(like, partial, bytes, 0)
			}
		}
	}
}

func (b *builder) reduceAmongTwins(round span) {
	own, bytes := b.slice(Out, round, b.Rank)
	if bytes == 0 {
		return
	}
	b.combineAmong(b.twins, b.groupOf, own, own, bytes, nil)
	for _, twin := range b.twins {
		b.put(twin, own, bytes, 0)
	}
}

func (b *builder) gatherFromTwins(round span) {
	for i := 0; i < b.Size; i += b.Group {
		like := (b.Rank + i) % b.Size
		if place, bytes := b.slice(Out, round, like); bytes > 0 {
			if i > 0 {
				b.take(like, place, bytes, 0)
			}
			for _, member := range b.members {
				b.put(member, place, bytes, 0)
			}
		}
		for _, member := range b.members {
			if place, bytes := b.slice(Out, round, (member+i)%b.Size); bytes > 0 {
				b.take(member, place, bytes, 0)
			}
		}
	}
}
