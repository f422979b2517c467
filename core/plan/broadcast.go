package plan

// broadcastFlat sends everything from the root to every other rank, by a multicast or to each by
// itself.
func (b *builder) broadcastFlat() {
	all := part{block(Out, 0), b.OutBytes[0]}
	out, in := b.same(all), make([]part, b.Size)
	if b.Rank != b.Root {
		out, in = make([]part, b.Size), b.only(b.Root, all)
	}
	b.fromRoot(func() { b.exchangeMessages(out, in) })
}

// broadcastTree sends along a binomial tree. An acknowledgement speaks for the whole subtree.
func (b *builder) broadcastTree() {
	n, t := b.OutBytes[0], b.tree()
	count := b.count(n)
	for k := range count {
		off, bytes := cut(n, count, k)
		place := block(Out, 0).at(off)
		if b.Rank != b.Root {
			b.take(t.parent, place, bytes, 0)
		}
		for _, child := range t.children {
			b.put(b.numbered(child), place, bytes, 0)
		}
	}
	for _, child := range t.children {
		b.take(b.numbered(child), Ref{}, 0, 0)
	}
	if b.Rank != b.Root {
		b.put(t.parent, Ref{}, 0, 0)
	}
}

// broadcastSlices scatters and gathers, round by round: of a round each rank but the root owns a
// slice, gets it from the root and hands it to the others, so that no rank sends more than once
// the data. An empty slice is not sent.
func (b *builder) broadcastSlices() {
	n := b.OutBytes[0]
	if n == 0 { // nobody would hear from the root
		b.broadcastFlat()
		return
	}
	b.fromRoot(func() { b.scatterAndGather(n) })
}

func (b *builder) scatterAndGather(n int64) {
	owners := b.Size - 1
	count := b.count((n + int64(owners) - 1) / int64(owners))
	// slice is the place of the slice of round k that the rank owns.
	slice := func(k, rank int) (Ref, int64) {
		owner := (rank - b.Root + b.Size) % b.Size
		roundOff, roundBytes := cut(n, count, k)
		off, bytes := cut(roundBytes, owners, owner-1)
		return block(Out, 0).at(roundOff + off), bytes
	}
	lag := b.lag()
	for k := range count + lag {
		switch {
		case k >= count:
		case b.Rank == b.Root:
			for i := 1; i < b.Size; i++ {
				if place, bytes := slice(k, b.to(i)); bytes > 0 {
					b.put(b.to(i), place, bytes, 0)
				}
			}
		default:
			if place, bytes := slice(k, b.Rank); bytes > 0 {
				b.take(b.Root, place, bytes, 0)
				for i := 1; i < b.Size; i++ {
					if peer := b.to(i); peer != b.Root {
						b.put(peer, place, bytes, 0)
					}
				}
			}
		}
		if k < lag || b.Rank == b.Root {
			continue
		}
		for i := 1; i < b.Size; i++ {
			peer := b.from(i)
			if peer == b.Root {
				continue
			}
			if place, bytes := slice(k-lag, peer); bytes > 0 {
				b.take(peer, place, bytes, 0)
			}
		}
	}
}

// broadcastLevels scatters and gathers in levels. At each level the ranks of the root's sibling,
// which have the data by then, put parts of it to their twins. So each block of ranks gets it once,
// each rank a part, and the ranks of a block gather it on the way back. Empty parts are put, too,
// so that each rank hears from all.
func (b *builder) broadcastLevels() {
	if b.Size == 1 {
		b.broadcastFlat()
		return
	}
	rounds := b.sliceRounds(nil, 0, b.OutBytes[0], b.slices())
	b.throughLevels(rounds, levelSteps{b.scatterData, b.takeData, b.putPart, b.takePart})
}

// source is the sibling that the root is in; -1: none of them.
func (b *builder) source(s siblings) int {
	if s.first <= b.Root && b.Root < s.first+s.radix*s.stride {
		return (b.Root - s.first) / s.stride
	}
	return -1
}

func (b *builder) scatterData(c cell, s siblings, ranks []int) {
	for d := 1; d < s.count && s.own == b.source(s); d++ {
		j := s.to(d)
		p := s.sliceOf(c, j)
		b.put(ranks[j], block(Out, p.block).at(p.off), p.bytes, 0)
	}
}

func (b *builder) takeData(c cell, s siblings, ranks []int) {
	if from := b.source(s); from >= 0 && from != s.own {
		p := s.sliceOf(c, s.own)
		b.take(ranks[from], block(Out, p.block).at(p.off), p.bytes, 0)
	}
}

// putPart puts this rank's part to its twins. Those in the sibling that it came from need only hear
// from this rank.
func (b *builder) putPart(c cell, s siblings, ranks []int) {
	for d := 1; d < s.count; d++ {
		j, p := s.to(d), s.sliceOf(c, s.own)
		if j == b.source(s) {
			p.bytes = 0
		}
		b.put(ranks[j], block(Out, p.block).at(p.off), p.bytes, 0)
	}
}

func (b *builder) takePart(c cell, s siblings, ranks []int) {
	for d := 1; d < s.count; d++ {
		j := s.from(d)
		p := s.sliceOf(c, j)
		if s.own == b.source(s) {
			p.bytes = 0
		}
		b.take(ranks[j], block(Out, p.block).at(p.off), p.bytes, 0)
	}
}
