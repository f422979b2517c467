package plan

import "slices"

// span is a piece of a block of AllReduce or Reduce, the same on all ranks.
type span struct {
	block      int
	off, bytes int64
}

// allReduce treats each block as its size asks for. Blocks that follow one another and are
// treated alike share a pipeline.
func (b *builder) allReduce() {
	whole := b.Algorithm == OneShot || b.Algorithm == RecursiveMultiplying
	slices := b.Size
	if b.Algorithm.InLevels() {
		slices = b.slices()
	}
	var shots, sliced []span
	flush := func() {
		if b.Algorithm.InLevels() {
			b.multiply(shots)
			b.reduceLevels(sliced)
		} else {
			b.oneShot(shots)
			b.reduceSlices(sliced, everyRank)
		}
		shots, sliced = shots[:0], sliced[:0]
	}
	empty := true
	for i, n := range b.InBytes {
		switch {
		case n == 0:
			continue
		case b.Size == 1 || whole || n <= b.OneShotMax:
			if len(sliced) > 0 {
				flush()
			}
			shots = b.pieces(shots, i, n)
		default:
			if len(shots) > 0 {
				flush()
			}
			sliced = b.sliceRounds(sliced, i, n, slices)
		}
		empty = false
	}
	if empty {
		shots = b.pieces(shots, 0, 0)
	}
	flush()
}

// pieces cuts a block into messages.
func (b *builder) pieces(to []span, blk int, n int64) []span { return b.sliceRounds(to, blk, n, 1) }

// oneShot sends every piece to every rank, which combines it for itself. As many pieces as the
// slots hold are under way at once: they may be many and small.
func (b *builder) oneShot(pieces []span) {
	lag := min(len(pieces), b.Slots-2)
	for k := range len(pieces) + lag {
		if k < len(pieces) {
			p := pieces[k]
			for i := 1; i < b.Size; i++ {
				b.put(b.to(i), block(In, p.block).at(p.off), p.bytes, 0)
			}
		}
		if k >= lag {
			p := pieces[k-lag]
			b.combine(block(Out, p.block).at(p.off), block(In, p.block).at(p.off), p.bytes, nil)
		}
	}
}

// everyRank is the root of reduceSlices where all ranks get the result.
const everyRank = -1

// reduceSlices reduces round by round. Of a round each rank owns one slice: it is sent everybody's
// contributions to it, combines them, and sends the result to the root, or to every rank; over
// memory channels it leaves the result where the contributions came. An empty slice (of a small
// round) is not sent.
//
// Iteration k puts the contributions of round k, combines round k-lag and collects the results
// of round k-2*lag. So a direction carries contributions k, results k-lag, contributions k+1, ...
// and they are waited for in that order. When a rank puts, its peer holds at most 2*lag+1
// messages that it can release only later, which must fit.
func (b *builder) reduceSlices(rounds []span, root int) {
	lag := min(max(b.Ahead, 1), (b.Slots-2)/2)
	n := len(rounds)
	contributions := make([]Ref, b.Size*(2*lag+1)) // by round, as long as they are needed, and owner
	contribution := func(k, owner int) *Ref { return &contributions[k%(2*lag+1)*b.Size+owner] }
	for k := range n + 2*lag {
		if k < n {
			for i := 1; i < b.Size; i++ {
				owner := b.to(i)
				if place, bytes := b.slice(In, rounds[k], owner); bytes > 0 {
					*contribution(k, owner) = b.put(owner, place, bytes, 0)
				}
			}
		}
		if j := k - lag; j >= 0 && j < n {
			b.reduceSlice(rounds[j], root)
		}
		if j := k - 2*lag; j >= 0 && j < n && (root == everyRank || root == b.Rank) {
			for i := 1; i < b.Size; i++ {
				owner := b.from(i)
				switch place, bytes := b.slice(Out, rounds[j], owner); {
				case bytes == 0:
				case b.Memory:
					b.reclaim(place, *contribution(j, owner), bytes)
				default:
					b.take(owner, place, bytes, 0)
				}
			}
		}
	}
}

// reduceSlice combines this rank's slice and sends it to whom it is for. A rank that has no
// output keeps it in scratch memory until it is sent.
func (b *builder) reduceSlice(round span, root int) {
	own, bytes := b.slice(In, round, b.Rank)
	if bytes == 0 {
		return
	}
	mine := root == everyRank || root == b.Rank
	dst := block(Out, round.block).at(own.Off)
	switch {
	case b.Memory:
		if !mine {
			dst = Ref{}
		}
		b.combine(dst, own, bytes, func(peer int) bool { return root == everyRank || root == peer })
	case !mine:
		scratch := block(Scratch, 0)
		b.plan.ScratchBytes = max(b.plan.ScratchBytes, bytes)
		b.combine(scratch, own, bytes, nil)
		b.put(root, scratch, bytes, 0)
	default:
		b.combine(dst, own, bytes, nil)
		for i := 1; root == everyRank && i < b.Size; i++ {
			b.put(b.to(i), dst, bytes, 0)
		}
	}
}

// slice is the owner's slice of a round.
func (b *builder) slice(s Space, round span, owner int) (Ref, int64) {
	off, bytes := cut(round.bytes, b.Size, owner)
	return block(s, round.block).at(round.off + off), bytes
}

// sliceRounds cuts a block into rounds of so many slices, each of which is a message.
func (b *builder) sliceRounds(to []span, blk int, n int64, per int) []span {
	count := b.count((n + int64(per) - 1) / int64(per))
	to = slices.Grow(to, count)
	for k := range count {
		off, bytes := cut(n, count, k)
		to = append(to, span{blk, off, bytes})
	}
	return to
}
