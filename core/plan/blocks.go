package plan

// AllGather and ReduceScatter in levels have a block a rank. It belongs, in each block of ranks of
// some levels, to the one that is there what its rank is: its holder. From holder to holder it goes
// through the levels, from the inner ones to its rank, to be reduced, or from its rank to the inner
// ones, to be gathered.

// sibling is which of the siblings holds a rank's block in the block that they make up.
func (s siblings) sibling(rank int) int { return min(rank/s.stride%s.radix, s.count-1) }

// inTurn calls f for all ranks. At each level, the outer ones first, it goes from sibling to
// sibling, and begins so many after this rank's own. So ranks of a block do in the same order what
// they exchange among themselves, and siblings do not all turn to the same one at once.
func (b *builder) inTurn(after int, f func(rank int)) {
	var walk func(i, rank int)
	walk = func(i, rank int) {
		if i--; i < 0 {
			f(rank)
			return
		}
		s := b.siblings(b.levels[i])
		for d := range s.count {
			from, to := s.parts(s.to(after + d))
			for part := from; part < to; part++ {
				if next := rank + part*s.stride; next < b.Size {
					walk(i, next)
				}
			}
		}
	}
	walk(len(b.levels), 0)
}

// reduceScatterLevels reduces each block from level to level, unless all are packed. This rank's
// own comes last among siblings: then what comes from twins finds the partial sum there. Only the
// last level's is waited for later, so that what goes farthest is under way meanwhile.
func (b *builder) reduceScatterLevels() {
	if p, ok := b.pack(b.InBytes); ok {
		b.reduceScatterPacked(p)
		return
	}
	lag, rounds := b.lag(), b.rounds(blocks(In, b.InBytes))
	last := b.levels[len(b.levels)-1]
	for k := range rounds + lag {
		b.inTurn(1, func(rank int) { b.reduceBlock(rank, k) })
		if own, bytes, ok := b.chunk(In, b.Rank, k-lag); ok {
			from := own
			if !b.alone(last.stride) {
				from = b.heldAt(own, bytes, k-lag)
			}
			b.combineHeld(len(b.levels)-1, b.Rank, block(Out, 0).at(own.Off), from, bytes)
		}
	}
}

// heldAt is where the partial sum of a chunk of a block lies: that of this rank's where its result
// will be, or if it is longer in scratch memory until the last level.
func (b *builder) heldAt(of Ref, bytes int64, k int) Ref {
	own := int(of.Block) == b.Rank
	if own && b.scale() == 1 {
		return block(Out, 0).at(of.Off)
	}
	at := int64(0)
	if own { // behind those of others, and apart from the last ones of this rank
		at = int64(1+k%(b.lag()+1)) * b.Chunk * b.scale()
	}
	b.plan.ScratchBytes = max(b.plan.ScratchBytes, at+bytes*b.scale())
	return block(Scratch, 0).at(at)
}

// reduceBlock sends a chunk of a rank's block on to its holder in the next level, or combines it as
// that, as far as this rank is its holder.
func (b *builder) reduceBlock(rank, k int) {
	of, bytes, ok := b.chunk(In, rank, k)
	if !ok {
		return
	}
	partial := of
	for i, l := range b.levels {
		s := b.siblings(l)
		if s.count == 1 {
			if i == 0 && b.staged() {
				partial = b.heldAt(of, bytes, k)
				b.widen(partial, of, bytes)
			}
			continue
		}
		if j := s.sibling(rank); j != s.own {
			b.put(b.holderIn(s, j, i, rank), partial, b.bytesAt(l.stride, bytes), 0)
			return
		}
		if i == len(b.levels)-1 {
			return
		}
		dst := b.heldAt(of, bytes, k)
		b.combineHeld(i, rank, dst, partial, bytes)
		partial = dst
	}
}

// combineHeld combines what this rank has of a rank's block with what its holders in the siblings
// at level i send, of so many bytes of inputs.
func (b *builder) combineHeld(i, rank int, dst, own Ref, bytes int64) {
	s := b.siblings(b.levels[i])
	ranks := make([]int, s.count)
	for j := range ranks {
		ranks[j] = b.holderIn(s, j, i, rank)
	}
	bytes = b.bytesAt(s.stride, bytes)
	b.waitForAll(s, ranks, own, bytes)
	b.combineSources(s, ranks, dst, bytes)
}

// gatherLevels gets each block from its holder in the next level, chunk by chunk, unless all are
// packed. What goes through the last level is waited for later, as it goes farthest.
func (b *builder) gatherLevels() {
	if p, ok := b.pack(b.OutBytes); ok {
		b.gatherPacked(p)
		return
	}
	lag, rounds := b.lag(), b.rounds(blocks(Out, b.OutBytes))
	last := len(b.levels) - 1
	for k := range rounds + lag {
		if place, bytes, ok := b.chunk(Out, b.Rank, k); ok {
			own := block(In, 0).at(place.Off)
			b.copy(place, own, bytes)
			b.handOn(last, b.Rank, own, bytes)
		}
		b.inTurn(0, func(rank int) {
			if place, bytes, ok := b.chunk(Out, rank, k-lag); ok {
				b.gatherBlock(rank, place, bytes)
			}
		})
	}
}

// gatherBlock gets a chunk of a rank's block as its holder in some level, if this rank is not its
// holder in the one above, and hands it on in those below.
func (b *builder) gatherBlock(rank int, place Ref, bytes int64) {
	for i := len(b.levels) - 1; i >= 0; i-- {
		s := b.siblings(b.levels[i])
		switch above := b.holderIn(s, s.sibling(rank), i, rank); {
		case s.count == 1:
		case above == b.Rank:
			if i < len(b.levels)-1 {
				b.handOn(i, rank, place, bytes)
			}
		case b.holderIn(s, s.own, i, rank) == b.Rank:
			b.take(above, place, bytes, 0)
		}
	}
}

// handOn puts a chunk of a rank's block to its holders in the siblings at level i.
func (b *builder) handOn(i, rank int, place Ref, bytes int64) {
	s := b.siblings(b.levels[i])
	for d := 1; d < s.count; d++ {
		b.put(b.holderIn(s, s.to(d), i, rank), place, bytes, 0)
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
