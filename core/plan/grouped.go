package plan

// Where ranks are in groups (Params.Group), whose members are joined by faster channels than the
// groups, what goes from one group to another goes once, not for each rank there or from each rank
// there is. Each rank has members, the others of its group, and twins, the ranks that are in other
// groups what it is in its own. Only twins send from group to group.

func (b *builder) inGroup(rank int) int { return rank % b.Group }
func (b *builder) groupOf(rank int) int { return rank / b.Group }

// piece is what goes to or from a rank in one message, if there is any.
type piece func(rank int) (place Ref, bytes int64, ok bool)

// reduceInGroup reduces the pieces of one rank of each group after those of another: the members'
// own, then their twins'. What comes of them goes where partial says, and that of a twin to it. All
// members go in the same order, so that few messages are under way from member to member.
func (b *builder) reduceInGroup(in, partial piece) {
	for i := 0; i < b.Size; i += b.Group {
		for _, member := range b.members {
			if place, bytes, ok := in((member + i) % b.Size); ok {
				b.put(member, place, bytes, 0)
			}
		}
		like := (b.Rank + i) % b.Size // this rank itself, then its twins
		own, bytes, ok := in(like)
		if !ok {
			continue
		}
		dst, _, _ := partial(like)
		b.combineAmong(b.members, b.inGroup, dst, own, bytes, nil)
		if i > 0 {
			b.put(like, dst, bytes, 0)
		}
	}
}

// gatherInGroup hands this rank's own piece to the members, and then those that its twins have put
// to it; from the members it gets all others, in the same order.
func (b *builder) gatherInGroup(out piece) {
	for i := 0; i < b.Size; i += b.Group {
		like := (b.Rank + i) % b.Size
		if place, bytes, ok := out(like); ok {
			if i > 0 {
				b.take(like, place, bytes, 0)
			}
			for _, member := range b.members {
				b.put(member, place, bytes, 0)
			}
		}
		for _, member := range b.members {
			if place, bytes, ok := out((member + i) % b.Size); ok {
				b.take(member, place, bytes, 0)
			}
		}
	}
}

// gatherGroups gets each block from its rank's twin in the group, to which it has gone from group
// to group, chunk by chunk.
func (b *builder) gatherGroups() {
	lag, rounds := b.lag(), b.rounds(blocks(Out, b.OutBytes))
	for k := range rounds + lag {
		if place, bytes, ok := b.chunk(Out, b.Rank, k); ok {
			own := block(In, 0).at(place.Off)
			b.copy(place, own, bytes)
			for _, twin := range b.twins {
				b.put(twin, own, bytes, 0)
			}
		}
		b.gatherInGroup(func(rank int) (Ref, int64, bool) { return b.chunk(Out, rank, k-lag) })
	}
}

// reduceScatterGroups reduces each block among the members of a group, for the one that is a twin
// of the block's rank, and then among these.
func (b *builder) reduceScatterGroups() {
	lag, rounds := b.lag(), b.rounds(blocks(In, b.InBytes))
	for k := range rounds + lag {
		in := func(rank int) (Ref, int64, bool) { return b.chunk(In, rank, k) }
		b.reduceInGroup(in, func(rank int) (Ref, int64, bool) {
			place, bytes, ok := in(rank)
			if rank == b.Rank { // it stays where its result will be
				return block(Out, 0).at(place.Off), bytes, ok
			}
			b.plan.ScratchBytes = max(b.plan.ScratchBytes, bytes)
			return block(Scratch, 0), bytes, ok
		})
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

// reduceGroups reduces round by round. Of a round each rank owns a part, which is reduced as by
// reduceScatterGroups, and then goes to all as by gatherGroups.
//
// Iteration k does the first step of round k, the second of round k-lag, and the third of round
// k-2*lag. So to a twin go the partial result of round k and the result of round k-lag, and they
// are waited for in that order lag iterations later: with all ranks in step it holds at most
// 2*lag+1 of them, as in reduceSlices.
//
// A partial result needs no memory of its own: it lies where the result will.
func (b *builder) reduceGroups(rounds []span) {
	lag := min(max(b.Ahead, 1), (b.Slots-2)/2)
	steps := []func(span){
		func(round span) { b.reduceInGroup(b.part(In, round), b.part(Out, round)) },
		b.reduceAmongTwins,
		func(round span) { b.gatherInGroup(b.part(Out, round)) },
	}
	for k := range len(rounds) + (len(steps)-1)*lag {
		for i, step := range steps {
			if j := k - i*lag; j >= 0 && j < len(rounds) {
				step(rounds[j])
			}
		}
	}
}

// part is the slices of a round, of which those that are empty are not sent.
func (b *builder) part(s Space, round span) piece {
	return func(rank int) (Ref, int64, bool) {
		place, bytes := b.slice(s, round, rank)
		return place, bytes, bytes > 0
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
