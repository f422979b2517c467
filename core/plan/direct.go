package plan

// Direct plans are for blocks in memory that every rank maps: whoever owns a slice reads it where the others have it, and
// writes it where they want it. Nothing is staged.
//
// A rank first exposes to each peer the block that is the peer's to read, or to write, and waits until it has access
// to theirs. Then all work at once, each on places that nobody else touches. A rank ends when all
// have told it that they are done with its memory.

// HasDirect tells whether there is a direct plan.
func (p *Params) HasDirect() bool {
	switch p.Collective {
	case AllReduce: // so long that in the other plan, too, every rank hears first from each
		return len(p.InBytes) == 1 && p.InBytes[0] >= align*pipelineDepth*int64(p.Size)
	case AllGather, ReduceScatter:
		return true
	case AllToAll: // in which all work at once
		return p.Schedule.Window() == 0
	}
	return false
}

// direct exposes in[r] and out[r] to rank r, has it work on theirs, and waits for their ends.
func (b *builder) direct(in, out []part, work func()) {
	for i := 1; i < b.Size; i++ {
		peer := b.to(i)
		b.expose(peer, in[peer], out[peer])
	}
	for i := 1; i < b.Size; i++ {
		peer := b.from(i)
		b.access(peer, in[b.Rank].used(), out[b.Rank].used(), theirs(in[peer], out[peer]))
	}
	work()
	for i := 1; i < b.Size; i++ {
		b.put(b.to(i), Ref{}, 0, 0)
	}
	for i := 1; i < b.Size; i++ {
		b.take(b.from(i), Ref{}, 0, 0)
	}
}

// theirs is how much of this rank's memory a peer uses to whom these parts are exposed.
func theirs(in, out part) int64 { return max(in.bytes, out.bytes) }

func (b *builder) expose(peer int, in, out part) {
	s := Step{Op: Expose, Peer: int32(peer), Bytes: theirs(in, out), Total: b.total(part{bytes: b.mine(peer)})}
	var refs [2]Ref
	n := 0
	for _, p := range []part{in, out} {
		if p.used() {
			refs[n] = p.place
			n++
		}
	}
	b.emit(s, refs[:n]...)
}

// access takes what the peer exposes, an input, an output or both; the peer uses so many bytes here.
func (b *builder) access(peer int, in, out bool, theirs int64) {
	var refs [2]Ref
	n := 0
	if in {
		refs[n] = Ref{Space: PeerIn, Peer: int32(peer)}
		n++
	}
	if out {
		refs[n] = Ref{Space: PeerOut, Peer: int32(peer)}
		n++
	}
	b.emit(Step{Op: Access, Peer: int32(peer), Bytes: b.mine(peer), Total: b.total(part{bytes: theirs})}, refs[:n]...)
}

// mine is how much of a peer's memory this rank uses.
func (b *builder) mine(peer int) int64 {
	switch b.Collective {
	case ReduceScatter:
		return b.OutBytes[0]
	case AllToAll:
		return b.InBytes[peer]
	}
	return b.InBytes[0]
}

func (b *builder) directAllReduce() {
	n := b.InBytes[0]
	b.direct(b.same(part{block(In, 0), n}), b.same(part{block(Out, 0), n}), func() {
		off, bytes := cut(n, b.Size, b.Rank)
		b.combineThere(block(In, 0).at(off), block(Out, 0).at(off), off, bytes, true)
	})
}

func (b *builder) directReduceScatter() {
	b.direct(blocks(In, b.InBytes), make([]part, b.Size), func() {
		b.combineThere(block(In, b.Rank), block(Out, 0), 0, b.OutBytes[0], false)
	})
}

// combineThere combines this rank's slice where it lies, off from the beginning of what the peers expose, and writes the result to dst
// and, if it goes back, to where they want it.
func (b *builder) combineThere(own, dst Ref, off, bytes int64, back bool) {
	for at := int64(0); at < bytes; at += b.Chunk {
		b.src, b.also = b.src[:b.Size], b.also[:0]
		for r := range b.Size {
			if r == b.Rank {
				b.src[r] = own.at(at)
				continue
			}
			b.src[r] = Ref{Space: PeerIn, Peer: int32(r), Off: off + at}
			if back {
				b.also = append(b.also, Ref{Space: PeerOut, Peer: int32(r), Off: off + at})
			}
		}
		b.emit(Step{Op: Combine, Bytes: min(b.Chunk, bytes-at), Dst: dst.at(at), Also: b.also}, b.src...)
	}
}

func (b *builder) directAllGather() {
	b.direct(make([]part, b.Size), blocks(Out, b.OutBytes), func() {
		b.copyThere(b.same(part{block(In, 0), b.InBytes[0]}), block(Out, b.Rank))
	})
}

func (b *builder) directAllToAll() {
	b.direct(make([]part, b.Size), blocks(Out, b.OutBytes), func() {
		b.copyThere(blocks(In, b.InBytes), block(Out, b.Rank))
	})
}

// copyThere copies out[r] to where rank r wants it, and this rank's own part to dst, a chunk of each in turn.
func (b *builder) copyThere(out []part, dst Ref) {
	for at, more := int64(0), true; more; at += b.Chunk {
		more = false
		for i := range b.Size {
			r := b.to(i)
			to := Ref{Space: PeerOut, Peer: int32(r)}
			if r == b.Rank {
				to = dst
			}
			if left := out[r].bytes - at; left > 0 {
				b.copy(to.at(at), out[r].place.at(at), min(left, b.Chunk))
				more = true
			}
		}
	}
}
