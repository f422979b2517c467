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
