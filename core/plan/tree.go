package plan

// tree is this rank's place in a binomial tree, in which ranks are counted from the root: the
// parent of number v is v without its lowest bit, and its subtree is the numbers from v on.
type tree struct {
	number   int
	end      int   // of the numbers in this rank's subtree
	parent   int   // a rank, the root's is itself
	children []int // numbers, that with the largest subtree first
}

func (b *builder) tree() tree {
	t := tree{number: (b.Rank - b.Root + b.Size) % b.Size}
	reach := t.number & -t.number
	for t.number == 0 && reach < b.Size {
		reach = max(1, 2*reach)
	}
	t.parent, t.end = b.numbered(t.number&(t.number-1)), min(t.number+reach, b.Size)
	for d := reach / 2; d > 0; d /= 2 {
		if t.number+d < b.Size {
			t.children = append(t.children, t.number+d)
		}
	}
	return t
}

// numbered is the rank of a number.
func (b *builder) numbered(v int) int { return (v + b.Root) % b.Size }

// endOf is the end of the subtree of the i-th child.
func (t *tree) endOf(i int) int {
	if i == 0 {
		return t.end
	}
	return t.children[i-1]
}

// told lets those hear from the root to whom nothing else comes from it: along a tree, after they
// have sent what they have.
func (b *builder) told(parent int, children []int, send func()) {
	tell := func() {
		for _, child := range children {
			b.put(child, Ref{}, 0, 0)
		}
	}
	if b.Rank == b.Root {
		tell()
	}
	send()
	if b.Rank != b.Root {
		b.take(parent, Ref{}, 0, 0)
		tell()
	}
}

// packedTree is the tree, and where the blocks of all numbers begin, packed in their order, and the
// end of the last: if as a whole they fit a message.
func (b *builder) packedTree(bytes []int64) (t tree, at []int64, ok bool) {
	at = make([]int64, b.Size+1)
	for v := range b.Size {
		at[v+1] = at[v] + bytes[b.numbered(v)]
	}
	return b.tree(), at, at[b.Size] <= b.Chunk
}

// gatherTree gathers along the tree what fits a message as a whole: each rank packs the blocks of
// its subtree. Longer blocks go straight to the root.
func (b *builder) gatherTree() {
	t, at, ok := b.packedTree(b.OutBytes)
	if !ok {
		b.gather()
		return
	}
	scratch := block(Scratch, 0)
	children := make([]int, len(t.children))
	for i, v := range t.children {
		children[i] = b.numbered(v)
	}
	b.told(t.parent, children, func() {
		own, n := block(In, 0), b.InBytes[0]
		if b.Rank == b.Root {
			b.copy(block(Out, b.Rank), own, n)
		} else if len(children) > 0 {
			b.plan.ScratchBytes = at[t.end] - at[t.number]
			b.copy(scratch, own, n)
			own, n = scratch, b.plan.ScratchBytes
		}
		for i := len(children) - 1; i >= 0; i-- { // the smallest subtree is ready first
			from, to := t.children[i], t.endOf(i)
			if b.Rank != b.Root {
				b.take(children[i], scratch.at(at[from]-at[t.number]), at[to]-at[from], 0)
				continue
			}
			message := b.wait(children[i], at[to]-at[from], 0)
			for v := from; v < to; v++ {
				b.copy(block(Out, b.numbered(v)), message.at(at[v]-at[from]), at[v+1]-at[v])
			}
			b.release(children[i])
		}
		if b.Rank != b.Root {
			b.put(t.parent, own, n, 0)
		}
	})
}

// scatterTree is gatherTree the other way. An acknowledgement speaks for the whole subtree.
func (b *builder) scatterTree() {
	t, at, ok := b.packedTree(b.InBytes)
	if !ok {
		b.scatter()
		return
	}
	from := block(Scratch, 0)
	if b.Rank == b.Root {
		b.plan.ScratchBytes = at[b.Size]
		for v := 1; v < b.Size; v++ {
			rank := b.numbered(v)
			b.copy(from.at(at[v]), block(In, rank), b.InBytes[rank])
		}
	} else {
		from = b.wait(t.parent, at[t.end]-at[t.number], 0)
	}
	for i, v := range t.children {
		b.put(b.numbered(v), from.at(at[v]-at[t.number]), at[t.endOf(i)]-at[v], 0)
	}
	if b.Rank == b.Root {
		b.copy(block(Out, 0), block(In, b.Rank), b.OutBytes[0])
	} else {
		b.copy(block(Out, 0), from, b.OutBytes[0])
		b.release(t.parent)
	}
	for _, v := range t.children {
		b.take(b.numbered(v), Ref{}, 0, 0)
	}
	if b.Rank != b.Root {
		b.put(t.parent, Ref{}, 0, 0)
	}
}

// owner is the rank that has the partial sum over an aligned block of ranks: the root, or if it is
// not among them the first.
func (b *builder) owner(first, ranks int) int {
	if first <= b.Root && b.Root < first+ranks {
		return b.Root
	}
	return first
}

// reduceTree reduces along a binomial tree of ranks in their own order, not in that from the root:
// partial sums must be over aligned blocks. The owners of two halves are joined.
func (b *builder) reduceTree() {
	if b.Size == 1 {
		b.reduceFlat()
		return
	}
	parent, children := b.ordered()
	b.told(parent, children, func() {
		for _, p := range b.pieces(nil, 0, b.InBytes[0]) {
			b.reduceUp(p, parent, children, b.Rank == b.Root)
		}
	})
}

// ordered is this rank's place in the tree of reduceTree: its parent, the root's is itself, and its
// children, that with the smallest block first.
func (b *builder) ordered() (parent int, children []int) {
	parent = b.Rank
	for half := 1; half < b.Size && parent == b.Rank; half *= 2 {
		first := b.Rank &^ (2*half - 1)
		if first+half >= b.Size {
			continue
		}
		if parent = b.owner(first, 2*half); parent == b.Rank {
			children = append(children, b.otherHalf(half))
		}
	}
	return parent, children
}

// reduceUp combines this rank's piece with those of its children for its parent: in the output, if
// it has one that takes it, or in scratch memory.
func (b *builder) reduceUp(p span, parent int, children []int, output bool) {
	result, to := block(Out, p.block).at(p.off), block(Scratch, 0)
	if output && b.scale() == 1 {
		to = result
	}
	partial, ranks := block(In, p.block).at(p.off), 1
	reduced := func(to Ref) {
		if partial, ranks = to, 2; to.Space == Scratch {
			b.plan.ScratchBytes = max(b.plan.ScratchBytes, p.bytes*b.scale())
		}
	}
	if b.staged() && b.lone(2) {
		b.widen(to, partial, p.bytes)
		reduced(to)
	}
	for i, child := range children {
		bytes, dst := b.bytesAt(ranks, p.bytes), to
		last := parent == b.Rank && i == len(children)-1
		if last {
			dst = result
		}
		message := b.wait(child, bytes, 0)
		b.src = append(b.src[:0], partial, message)
		if child < b.Rank {
			b.src[0], b.src[1] = message, partial
		}
		if bytes > 0 {
			b.emit(Step{Op: Combine, Stage: b.stageUp(ranks == 1, last), Bytes: bytes, Dst: dst},
				b.src...)
		}
		b.release(child)
		reduced(dst)
	}
	if parent != b.Rank {
		b.put(parent, partial, b.bytesAt(ranks, p.bytes), 0)
	}
}

// stageUp is what a Combine along a tree is: the first of this rank, the last of all, or both.
func (b *builder) stageUp(first, last bool) Stage {
	switch {
	case !b.staged() || first && last:
		return Whole
	case first:
		return First
	case last:
		return Last
	}
	return Middle
}

// allReduceTree reduces along a binomial tree to the first rank, and hands the result back along
// it: no way has fewer messages in all.
func (b *builder) allReduceTree() {
	if b.Size == 1 {
		b.allReduce()
		return
	}
	var pieces []span
	for i, n := range b.InBytes {
		if n > 0 {
			pieces = b.pieces(pieces, i, n)
		}
	}
	if len(pieces) == 0 {
		pieces = b.pieces(pieces, 0, 0)
	}
	parent, children := b.ordered()
	lag := b.lag()
	for k := range len(pieces) + lag {
		if k < len(pieces) {
			b.reduceUp(pieces[k], parent, children, true)
		}
		if k >= lag {
			p := pieces[k-lag]
			result := block(Out, p.block).at(p.off)
			if parent != b.Rank {
				b.take(parent, result, p.bytes, 0)
			}
			for i := len(children) - 1; i >= 0; i-- { // the largest subtree first
				b.put(children[i], result, p.bytes, 0)
			}
		}
	}
}

// otherHalf is the owner of the half that makes up a block with this rank's.
func (b *builder) otherHalf(half int) int {
	return b.owner(b.Rank&^(half-1)^half, half)
}
