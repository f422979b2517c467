package plan

import "slices"

// reduceDirect sends out[r] to each rank r, which combines what all have sent it into its dst.
// The zero dst is of a rank that gets nothing.
func (b *builder) reduceDirect(out []part, dst part) {
	own, lag, puts := out[b.Rank], b.lag(), b.flows(out, b.to)
	for k := range b.rounds(out) + lag {
		b.putRound(puts, k)
		if n, j := b.count(dst.bytes), k-lag; dst.used() && j >= 0 && j < n {
			off, bytes := cut(dst.bytes, n, j)
			b.combine(dst.place.at(off), own.place.at(off), bytes, nil)
		}
	}
}

// reduceScatter is reduceDirect, or of two ranks a swap of their inputs. Of more, a rank that swaps
// with one peer would have to hear from others first.
func (b *builder) reduceScatter() {
	out, dst := blocks(In, b.InBytes), part{block(Out, 0), b.OutBytes[0]}
	peer := b.to(b.Size - 1)
	if b.Size != 2 || !b.swaps(out[peer], dst) {
		b.reduceDirect(out, dst)
		return
	}
	b.swap(swap{peer, b.puts[peer], out[peer], func(from Ref, off, bytes int64) {
		b.src = b.src[:b.Size]
		b.src[b.Rank], b.src[peer] = out[b.Rank].place.at(off), from
		b.emit(Step{Op: Combine, Bytes: bytes, Dst: dst.place.at(off)}, b.src...)
	}})
}

// reduceFlat lets the root combine everything itself.
func (b *builder) reduceFlat() {
	n := b.InBytes[0]
	var dst part
	if b.Rank == b.Root {
		dst = part{block(Out, 0), n}
	}
	b.toRoot(b.others(), func() { b.reduceDirect(b.only(b.Root, part{block(In, 0), n}), dst) })
}

// reduceScatterGather lets every rank combine a slice (see reduceSlices), and so hear from the
// root.
func (b *builder) reduceScatterGather() {
	n := b.InBytes[0]
	if b.Size == 1 || n == 0 {
		b.reduceFlat()
		return
	}
	rounds := b.sliceRounds(nil, 0, n, b.Size)
	idle := slices.DeleteFunc(b.others(), func(owner int) bool {
		return slices.ContainsFunc(rounds, func(round span) bool {
			_, bytes := b.slice(In, round, owner)
			return bytes > 0
		})
	})
	b.toRoot(idle, func() { b.reduceSlices(rounds, b.Root) })
}
