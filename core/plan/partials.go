package plan

// Where partial sums are something else than elements (Params.PartialSize), a rank reduces in
// stages. At the first level it makes partial sums of inputs, at the last the result of them. If
// they are longer than elements, they lie in scratch memory in between, and messages of all levels
// but the first are longer.

// staged tells whether partial sums are something else than elements.
func (p *Params) staged() bool { return p.PartialSize > 0 }

// scale is how many times as long partial sums are as elements.
func (p *Params) scale() int64 {
	if !p.staged() {
		return 1
	}
	return p.PartialSize / p.ElemSize
}

// mostScratch is the most scratch memory that a plan may use.
func (p *Params) mostScratch() int64 {
	switch {
	case p.Algorithm == Registered:
		return p.Scratch
	case p.scale() == 1:
		return p.Chunk
	}
	most := 2 * p.Chunk
	if len(p.Radices) > 0 {
		most *= int64(p.Radices[0] * len(p.Radices) * p.Slots)
	}
	return most
}

// kept is where partial sums lie in scratch memory: that of the byte at `from` of a block at `at`,
// and so on.
type kept struct{ from, at int64 }

// lone tells whether this rank has no siblings at the first level, of so many ranks, while others
// have.
func (b *builder) lone(radix int) bool { return b.Rank == b.Size-1 && b.Rank%radix == 0 }

// stage is what a Combine at a level is.
func (b *builder) stage(l level) Stage {
	switch {
	case !b.staged():
		return Whole
	case l.stride == 1:
		return First
	case b.completes(l):
		return Last
	}
	return Middle
}

// completes tells whether what is reduced at a level is the result.
func (b *builder) completes(l level) bool { return l.stride*l.radix >= b.Size }

// bytesAt is how long what a rank has reduced over so many ranks is, of some bytes of an input.
func (b *builder) bytesAt(ranks int, bytes int64) int64 {
	if ranks == 1 {
		return bytes
	}
	return bytes * b.scale()
}

// widen makes this rank's own input a partial sum.
func (b *builder) widen(dst, src Ref, bytes int64) {
	if bytes > 0 {
		b.emit(Step{Op: Combine, Stage: First, Bytes: bytes, Dst: dst}, src)
	}
}

// keepPartials has the partial sums of piece j, of which so many are under way at once, lie in
// scratch memory. No piece is longer than most.
func (b *builder) keepPartials(p span, j, live int, most int64) {
	if b.scale() == 1 {
		return
	}
	most = (most + align - 1) &^ (align - 1) * b.scale()
	b.kept = kept{p.off, int64(j%live) * most}
	b.plan.ScratchBytes = max(b.plan.ScratchBytes, int64(min(j+1, live))*most)
}

// longest is the length of the longest of pieces.
func longest(pieces []span) (most int64) {
	for _, p := range pieces {
		most = max(most, p.bytes)
	}
	return most
}
