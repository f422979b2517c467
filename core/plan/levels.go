package plan

// Many ranks exchange in levels (Params.Radices), so that each has few messages: as many as the sum
// of the radices, not their product. Ranks near each other come first, so what goes far goes once,
// not for each rank there.
//
// A block of i levels is as many ranks in succession as the product of the first i radices, cut off
// at the last rank. It is made of blocks of a level less: siblings. At each level a rank exchanges
// with its twins: the ranks that are in the siblings of its block what it is in its own.
//
// All radices but the last are powers of two: then a block is a subtree of the canonical order, and
// partial sums over blocks may be summed further, with the same bits in the end. The number of
// ranks need be a multiple of none of them. In the last block of a level, siblings may be missing,
// and of the last one ranks; how their twins get on without them, each algorithm says.

// level is one of the levels: blocks of so many siblings, each of stride ranks.
type level struct{ radix, stride int }

// radicesFit tells whether partial sums are in the canonical order with these radices, which reach
// all ranks.
func (p *Params) radicesFit() bool {
	product, last := 1, len(p.Radices)-1
	if last < 1 {
		return false
	}
	for _, r := range p.Radices[:last] {
		if r < 2 || r&(r-1) != 0 || product >= p.Size {
			return false
		}
		product *= r
	}
	return product < p.Size && p.Radices[last] == (p.Size+product-1)/product
}

// levels are those of the radices.
func (p *Params) levels() []level {
	levels, stride := make([]level, len(p.Radices)), 1
	for i, r := range p.Radices {
		levels[i] = level{r, stride}
		stride *= r
	}
	return levels
}

// siblings are the blocks that make up this rank's block at a level.
type siblings struct {
	level
	first int // the first rank of the first
	count int // how many there are
	own   int // which of them is this rank's
	last  int // how many ranks the last has
}

func (b *builder) siblings(l level) siblings {
	first := b.Rank - b.Rank%(l.radix*l.stride)
	count := b.countBlocks(first, l)
	return siblings{l, first, count, (b.Rank - first) / l.stride,
		min(l.stride, b.Size-first-(count-1)*l.stride)}
}

// to and from number the other siblings, d in 1..count-1, as those of the builder number peers.
func (s siblings) to(d int) int   { return (s.own + d) % s.count }
func (s siblings) from(d int) int { return (s.own - d + s.count) % s.count }

// countBlocks is how many siblings make up the block of a level that begins at a rank.
func (b *builder) countBlocks(first int, l level) int {
	return min(l.radix, (b.Size-first+l.stride-1)/l.stride)
}

// alone tells whether this rank is the only one of its block of so many ranks: then it has reduced
// nothing yet. In stages it has made its input a partial sum even so.
func (b *builder) alone(stride int) bool {
	return stride == 1 || b.lone(stride) && !b.staged()
}

// partial is where this rank has its partial sum of a piece over its block of so many ranks: in an
// output, where its result will be, or if it is alone there in an input. What is longer than its
// result is in scratch memory.
func (b *builder) partial(stride int, p span) Ref {
	switch {
	case b.alone(stride):
		return block(In, p.block).at(p.off)
	case b.scale() > 1:
		return block(Scratch, 0).at(b.kept.at + (p.off-b.kept.from)*b.scale())
	}
	return block(Out, p.block).at(p.off)
}

// reducedTo is where what this rank reduces of a piece at a level goes.
func (b *builder) reducedTo(l level, p span) Ref {
	if b.completes(l) {
		return block(Out, p.block).at(p.off)
	}
	return b.partial(l.stride*l.radix, p)
}

// multiply is one shot in each level: recursive multiplying, which with radices of two is recursive
// doubling. At each level a rank sends its partial sum to its twins, and combines theirs with it.
// As many pieces are under way at once as slots hold.
//
// Ranks whose twin in the last sibling is missing get the partial sum of that block along binomial
// trees among the ranks of their own, from those that have a twin. These are hops within a level:
// then there is one piece at a time.
func (b *builder) multiply(pieces []span) {
	lag := b.lag()
	for _, l := range b.levels {
		if b.Size%l.stride != 0 {
			lag = 0
		}
	}
	m, most := len(b.levels), longest(pieces)
	for k := range len(pieces) + m*lag {
		for i := range m + 1 {
			j := k - i*lag
			if j < 0 || j >= len(pieces) {
				continue
			}
			if i > 0 {
				b.keepPartials(pieces[j], j, (m-1)*lag+1, most)
				b.combineTwins(b.levels[i-1], pieces[j])
			}
			if i < m {
				b.putTwins(b.levels[i], pieces[j])
			}
		}
	}
}

// putTwins puts this rank's partial sum over its block to its twins.
func (b *builder) putTwins(l level, p span) {
	s := b.siblings(l)
	for d := 1; d < s.count; d++ {
		if twin := s.twin(b.Rank, s.to(d)); twin < b.Size {
			b.put(twin, b.partial(l.stride, p), b.bytesAt(l.stride, p.bytes), 0)
		}
	}
}

// twin is that of a rank in sibling j.
func (s siblings) twin(rank, j int) int { return s.first + j*s.stride + rank%s.stride }

// combineTwins combines this rank's partial sum with those of all siblings.
func (b *builder) combineTwins(l level, p span) {
	s := b.siblings(l)
	if s.count == 1 {
		if l.stride == 1 && b.staged() {
			b.widen(b.reducedTo(l, p), block(In, p.block).at(p.off), p.bytes)
		}
		return
	}
	bytes := b.bytesAt(l.stride, p.bytes)
	from := make([]int, s.count) // by sibling
	for j := range from {
		from[j] = s.twin(b.Rank, j)
	}
	b.src = b.src[:s.count]
	last := s.count - 1
	if s.last < s.stride && s.own != last {
		at := b.Rank % s.stride / s.last // of the tree
		bit := 1                         // the first by which a child differs
		for bit <= at {
			bit *= 2
		}
		if at > 0 {
			from[last] = b.Rank - bit/2*s.last
		}
		b.src[last] = b.wait(from[last], bytes, 0)
		for ; b.Rank%s.stride+bit*s.last < s.stride; bit *= 2 {
			b.put(b.Rank+bit*s.last, b.src[last], bytes, 0)
		}
	} else if s.own != last {
		b.src[last] = b.wait(from[last], bytes, 0)
	}
	for j := range last {
		if j != s.own {
			b.src[j] = b.wait(from[j], bytes, 0)
		}
	}
	b.src[s.own] = b.partial(l.stride, p)
	b.combineSources(s, from, b.reducedTo(l, p), bytes)
}

// waitForAll makes what the ranks of all siblings have the sources: this rank's own, and messages,
// each of so many bytes.
func (b *builder) waitForAll(s siblings, ranks []int, own Ref, bytes int64) {
	b.src = b.src[:s.count]
	b.src[s.own] = own
	for d := 1; d < s.count; d++ {
		j := s.from(d)
		b.src[j] = b.wait(ranks[j], bytes, 0)
	}
}

// combineSources combines the sources into dst, and releases the messages among them.
func (b *builder) combineSources(s siblings, ranks []int, dst Ref, bytes int64) {
	if bytes > 0 {
		b.emit(Step{Op: Combine, Stage: b.stage(s.level), Bytes: bytes, Dst: dst}, b.src...)
	}
	b.releaseAll(s, ranks)
}

// releaseAll releases a message of the rank of each sibling but this rank's own.
func (b *builder) releaseAll(s siblings, ranks []int) {
	for j, rank := range ranks {
		if j != s.own {
			b.release(rank)
		}
	}
}

// holder returns the rank that has the data of a place in the block of i levels that begins at rank
// first. In a full block each place is a rank's own, and number counts the places. In a block that
// is not full, the last sibling of a level stands in for those that are missing.
func (b *builder) holder(first, i, number int) int {
	for i--; i >= 0; i-- {
		l := b.levels[i]
		first += min(number/l.stride, b.countBlocks(first, l)-1) * l.stride
		number %= l.stride
	}
	return first
}

// holderIn returns the holder within sibling j at level i. The place is given by its number in the
// sibling's block, or by a rank that holds it in another sibling's.
func (b *builder) holderIn(s siblings, j, i, number int) int {
	return b.holder(s.first+j*s.stride, i, number%s.stride)
}

// parts are those of a full block's siblings that sibling j has: its own, and the last also those
// of the missing ones.
func (s siblings) parts(j int) (from, to int) {
	if j == s.count-1 {
		return j, s.radix
	}
	return j, j + 1
}

// cell is a piece of a round: at each level a block's pieces are cut into one for each sibling, so
// that in a block of i levels each rank has one, or in place of missing ranks several.
type cell struct {
	number int // that of the rank that has it in a full block
	span
}

// cells are those of this rank in its block of i levels.
func (b *builder) cells(round span, i int) []cell {
	cells := []cell{{0, round}}
	for _, l := range b.levels[:i] {
		s := b.siblings(l)
		from, to := s.parts(s.own)
		var next []cell
		for _, c := range cells {
			for part := from; part < to; part++ {
				next = append(next, cell{c.number + part*l.stride, s.slice(c, part, part+1)})
			}
		}
		cells = next
	}
	return cells
}

// slice is some of the parts into which siblings cut a cell.
func (s siblings) slice(c cell, from, to int) span {
	off, _ := cut(c.bytes, s.radix, from)
	last, bytes := cut(c.bytes, s.radix, to-1)
	return span{c.block, c.off + off, last + bytes - off}
}

// cellStep is what a rank does with a cell at a level, with the siblings and their ranks that have
// the same cell.
type cellStep func(c cell, s siblings, ranks []int)

// levelSteps are what a rank does with a cell at each level: on the way out, by which ranks get
// their parts of it, and on the way back, by which all get what these ranks then have.
type levelSteps struct{ put, take, putBack, takeBack cellStep }

// reduceLevels scatters and reduces, and gathers the results.
func (b *builder) reduceLevels(rounds []span) {
	b.throughLevels(rounds, levelSteps{b.scatterCell, b.combineCell, b.putResult, b.takeResult})
}

// throughLevels goes round by round. At each level, a rank's cells are scattered among its twins,
// and when that is done at all, the results are gathered on the way back. What is put in one of
// these stages is waited for in the next, lag iterations later. To a twin go a part of a cell and a
// result, as in reduceSlices.
func (b *builder) throughLevels(rounds []span, steps levelSteps) {
	lag := min(max(b.Ahead, 1), (b.Slots-2)/2)
	m := len(b.levels)
	own := make([]span, len(rounds)) // what this rank has of each round after the first level
	for j, round := range rounds {
		s := b.siblings(b.levels[0])
		own[j] = s.sliceOf(cell{0, round}, s.own)
	}
	most := longest(own)
	for k := range len(rounds) + 2*m*lag {
		for stage := range 2*m + 1 {
			j := k - stage*lag
			if j < 0 || j >= len(rounds) {
				continue
			}
			if stage > 0 && stage <= m {
				b.keepPartials(own[j], j, (m-1)*lag+1, most)
			}
			if stage == 1 && b.staged() && b.lone(b.levels[0].radix) {
				b.widen(b.reducedTo(b.levels[0], own[j]), block(In, own[j].block).at(own[j].off),
					own[j].bytes)
			}
			if stage > m {
				b.exchangeCells(2*m-stage, rounds[j], steps.takeBack)
			} else if stage > 0 {
				b.exchangeCells(stage-1, rounds[j], steps.take)
			}
			if stage < m {
				b.exchangeCells(stage, rounds[j], steps.put)
			} else if stage < 2*m {
				b.exchangeCells(2*m-1-stage, rounds[j], steps.putBack)
			}
		}
	}
}

// exchangeCells does a step with each cell at level i.
func (b *builder) exchangeCells(i int, round span, do cellStep) {
	s := b.siblings(b.levels[i])
	if s.count == 1 {
		return
	}
	ranks := make([]int, s.count)
	for _, c := range b.cells(round, i) {
		for j := range ranks {
			ranks[j] = b.holderIn(s, j, i, c.number)
		}
		do(c, s, ranks)
	}
}

// sliceOf is what sibling j has of a cell.
func (s siblings) sliceOf(c cell, j int) span {
	from, to := s.parts(j)
	return s.slice(c, from, to)
}

func (b *builder) scatterCell(c cell, s siblings, ranks []int) {
	for d := 1; d < s.count; d++ {
		j := s.to(d)
		if p := s.sliceOf(c, j); p.bytes > 0 {
			b.put(ranks[j], b.partial(s.stride, p), b.bytesAt(s.stride, p.bytes), 0)
		}
	}
}

func (b *builder) combineCell(c cell, s siblings, ranks []int) {
	p := s.sliceOf(c, s.own)
	if p.bytes == 0 {
		return
	}
	bytes := b.bytesAt(s.stride, p.bytes)
	b.waitForAll(s, ranks, b.partial(s.stride, p), bytes)
	b.combineSources(s, ranks, b.reducedTo(s.level, p), bytes)
}

func (b *builder) putResult(c cell, s siblings, ranks []int) {
	p := s.sliceOf(c, s.own)
	if p.bytes == 0 {
		return
	}
	for d := 1; d < s.count; d++ {
		b.put(ranks[s.to(d)], block(Out, p.block).at(p.off), p.bytes, 0)
	}
}

func (b *builder) takeResult(c cell, s siblings, ranks []int) {
	for d := 1; d < s.count; d++ {
		j := s.from(d)
		if p := s.sliceOf(c, j); p.bytes > 0 {
			b.take(ranks[j], block(Out, p.block).at(p.off), p.bytes, 0)
		}
	}
}

// slices is how many messages' worth of bytes a round has: its longest message is a slice of the
// first level.
func (b *builder) slices() int {
	l := b.levels[0]
	longest := 1
	if count := b.Size % l.radix; count > 1 {
		longest = l.radix - count + 1 // the last rank stands in for those that are missing
	}
	return l.radix / longest
}
