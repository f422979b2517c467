package plan

import "slices"

// Blocks that together fit a message are packed in levels: what one rank sends another at a level
// is one message of many blocks. They lie in scratch memory so that what goes to a sibling at any
// level is in succession: sorted by the digits of their ranks' numbers, where the radices are the
// bases, and the digit of the inner level comes first.

// packing is where the block of each rank lies in scratch memory.
type packing struct {
	at, bytes []int64
}

// pack lays out the blocks of all ranks, if they fit a message.
func (b *builder) pack(bytes []int64) (p packing, ok bool) {
	p = packing{make([]int64, b.Size), bytes}
	total := int64(0)
	var walk func(i, rank int)
	walk = func(i, rank int) {
		if i == len(b.levels) {
			p.at[rank] = total
			total += bytes[rank]
			return
		}
		for l, part := b.levels[i], 0; part < l.radix; part++ {
			if next := rank + part*l.stride; next < b.Size {
				walk(i+1, next)
			}
		}
	}
	walk(0, 0)
	if total > b.Chunk {
		return p, false
	}
	b.plan.ScratchBytes = total
	return p, true
}

// bundle is blocks that lie in succession in scratch memory, and go in one message.
type bundle struct {
	ranks      []int // of the blocks
	off, bytes int64
}

// bundleOf is what sibling j has of a cell at a level.
func (p *packing) bundleOf(c cell, s siblings, j int) bundle {
	from, to := s.parts(j)
	var of bundle
	for part := from; part < to; part++ {
		for rank := c.number + part*s.stride; rank < len(p.at); rank += s.stride * s.radix {
			if of.ranks == nil {
				of.off = p.at[rank]
			}
			of.ranks = append(of.ranks, rank)
			of.bytes += p.bytes[rank]
		}
	}
	return of
}

// exchangeBundles does something with what each sibling has of each cell at level i, and the rank
// that has it there.
func (b *builder) exchangeBundles(
	i int, p *packing, do func(s siblings, bundles []bundle, ranks []int),
) {
	b.exchangeCells(i, span{}, func(c cell, s siblings, ranks []int) {
		bundles := make([]bundle, s.count)
		for j := range bundles {
			bundles[j] = p.bundleOf(c, s, j)
		}
		do(s, bundles, ranks)
	})
}

// partials is where their partial sums lie: in the same places, or if they are longer behind them.
func (b *builder) partials(p packing) packing {
	scale := b.scale()
	if scale == 1 {
		return p
	}
	q := packing{make([]int64, b.Size), make([]int64, b.Size)}
	behind := (b.plan.ScratchBytes + align - 1) &^ (align - 1)
	b.plan.ScratchBytes = behind + b.plan.ScratchBytes*scale
	for rank := range q.at {
		q.at[rank], q.bytes[rank] = behind+p.at[rank]*scale, p.bytes[rank]*scale
	}
	return q
}

// reduceScatterPacked reduces and scatters bundles level by level.
func (b *builder) reduceScatterPacked(p packing) {
	scratch := block(Scratch, 0)
	for rank, n := range b.InBytes {
		b.copy(scratch.at(p.at[rank]), block(In, rank), n)
	}
	partials := b.partials(p)
	if b.staged() && b.lone(b.levels[0].radix) {
		for rank, n := range p.bytes {
			b.widen(scratch.at(partials.at[rank]), scratch.at(p.at[rank]), n)
		}
	}
	for i := range b.levels {
		b.exchangeBundles(i, &p, func(s siblings, bundles []bundle, ranks []int) {
			for d := 1; d < s.count; d++ {
				j := s.to(d)
				b.putBundle(ranks[j], bundles[j])
			}
		})
		b.exchangeBundles(i, &p, func(s siblings, bundles []bundle, ranks []int) {
			b.combineBundle(&p, &partials, s, bundles[s.own], ranks)
		})
		p = partials
	}
}

func (b *builder) putBundle(peer int, of bundle) {
	if of.ranks != nil {
		b.put(peer, block(Scratch, 0).at(of.off), of.bytes, 0)
	}
}

// combineBundle combines a bundle with those of the siblings, block by block.
func (b *builder) combineBundle(
	p, partials *packing, s siblings, own bundle, ranks []int,
) {
	if own.ranks == nil {
		return
	}
	b.waitForAll(s, ranks, block(Scratch, 0).at(own.off), own.bytes)
	messages := slices.Clone(b.src)
	for _, rank := range own.ranks {
		for j, m := range messages {
			b.src[j] = m.at(p.at[rank] - own.off)
		}
		dst := block(Scratch, 0).at(partials.at[rank])
		if b.completes(s.level) {
			dst = block(Out, 0) // the last bundle is this rank's block
		}
		if n := p.bytes[rank]; n > 0 {
			b.emit(Step{Op: Combine, Stage: b.stage(s.level), Bytes: n, Dst: dst}, b.src...)
		}
	}
	b.releaseAll(s, ranks)
}

// gatherPacked gathers bundles level by level, the outer ones first.
func (b *builder) gatherPacked(p packing) {
	scratch := block(Scratch, 0)
	b.copy(scratch.at(p.at[b.Rank]), block(In, 0), b.InBytes[0])
	b.copy(block(Out, b.Rank), block(In, 0), b.InBytes[0])
	for i := len(b.levels) - 1; i >= 0; i-- {
		b.exchangeBundles(i, &p, func(s siblings, bundles []bundle, ranks []int) {
			for d := 1; d < s.count; d++ {
				b.putBundle(ranks[s.to(d)], bundles[s.own])
			}
		})
		b.exchangeBundles(i, &p, func(s siblings, bundles []bundle, ranks []int) {
			for d := 1; d < s.count; d++ {
				j := s.from(d)
				if of := bundles[j]; of.ranks != nil {
					b.take(ranks[j], scratch.at(of.off), of.bytes, 0)
				}
			}
		})
	}
	for rank, n := range b.OutBytes {
		if rank != b.Rank {
			b.copy(block(Out, rank), scratch.at(p.at[rank]), n)
		}
	}
}
