package plan

import (
	"math"
	"slices"
)

// Direct plans are for blocks in memory that every rank maps: the owner of a slice reads it where
// the others have it, and writes it where they want it. Nothing is staged.
//
// A rank first exposes to each peer the block that is the peer's to read, or to write, and waits
// until it has access to theirs. Then all work at once, each on places that nobody else touches. A
// rank ends when all have told it that they are done with its memory.
//
// A rank may find, as long as it waits for access, that another runs the other plan, and so must
// all. So in that one, too, each rank hears first from each, or of a star, the root from each and
// each from the root; and its root exposes nothing before it has access to all.

// HasDirect tells whether there is a direct plan.
func (p *Params) HasDirect() bool {
	if p.Size == 1 {
		return false
	}
	// So long that in the other plan no slice of the first round is empty.
	least := align * PipelineDepth * int64(p.Size)
	if p.Chunk < 2*align {
		least = math.MaxInt64
	}
	switch p.Collective {
	case AllReduce:
		return len(p.InBytes) == 1 && p.InBytes[0] >= least
	case Reduce, Broadcast:
		return len(p.OutBytes) == 1 && p.OutBytes[0] >= least
	case AllGather, ReduceScatter, Gather, Scatter:
		return true
	case AllToAll: // in which all work at once
		return p.Schedule.Window() == 0
	}
	return false
}

// star tells whether the direct plan joins the root with each other rank, and no others.
func star(c Collective) bool { return c.Rooted() && c != Reduce }

// exposed is what a rank exposes to a peer, an input, an output or both, as far as the peer uses
// it; the zero value is nothing.
type exposed struct{ in, out part }

func (e exposed) bytes() int64 { return max(e.in.bytes, e.out.bytes) }

// direct exposes mine[r] to rank r, has this rank work on theirs[r], of which only the lengths
// count, and waits for the ends of all. The ranks that a rank exposes nothing to expose nothing to
// it.
func (b *builder) direct(mine, theirs []exposed, work func()) {
	last := star(b.Collective) && b.Rank == b.Root
	if !last {
		b.expose(mine, theirs)
	}
	for i := 1; i < b.Size; i++ {
		if peer := b.from(i); theirs[peer] != (exposed{}) {
			b.access(peer, theirs[peer], mine[peer])
		}
	}
	if last {
		b.expose(mine, theirs)
	}
	work()
	for i := 1; i < b.Size; i++ {
		if peer := b.to(i); mine[peer] != (exposed{}) {
			b.put(peer, Ref{}, 0, 0)
		}
	}
	for i := 1; i < b.Size; i++ {
		if peer := b.from(i); mine[peer] != (exposed{}) {
			b.take(peer, Ref{}, 0, 0)
		}
	}
}

func (b *builder) expose(mine, theirs []exposed) {
	for i := 1; i < b.Size; i++ {
		peer := b.to(i)
		var refs [2]Ref
		n := 0
		for _, p := range []part{mine[peer].in, mine[peer].out} {
			if p.used() {
				refs[n] = p.place
				n++
			}
		}
		if n > 0 {
			b.emit(Step{Op: Expose, Peer: int32(peer), Bytes: mine[peer].bytes(),
				Total: b.total(part{bytes: theirs[peer].bytes()})}, refs[:n]...)
		}
	}
}

func (b *builder) access(peer int, theirs, mine exposed) {
	var refs [2]Ref
	n := 0
	if theirs.in.used() {
		refs[n] = Ref{Space: PeerIn, Peer: int32(peer)}
		n++
	}
	if theirs.out.used() {
		refs[n] = Ref{Space: PeerOut, Peer: int32(peer)}
		n++
	}
	b.emit(Step{Op: Access, Peer: int32(peer), Bytes: theirs.bytes(),
		Total: b.total(part{bytes: mine.bytes()})}, refs[:n]...)
}

// inputs and outputs are one part a peer.
func inputs(parts []part) []exposed {
	all := make([]exposed, len(parts))
	for r, p := range parts {
		all[r].in = p
	}
	return all
}

func outputs(parts []part) []exposed {
	all := make([]exposed, len(parts))
	for r, p := range parts {
		all[r].out = p
	}
	return all
}

func (b *builder) directAllReduce() {
	n := b.InBytes[0]
	all := slices.Repeat([]exposed{{part{block(In, 0), n}, part{block(Out, 0), n}}}, b.Size)
	b.direct(all, all, func() {
		off, bytes := cut(n, b.Size, b.Rank)
		b.combineThere(block(In, 0).at(off), block(Out, 0).at(off), off, bytes, everyRank)
	})
}

func (b *builder) directReduce() {
	n := b.InBytes[0]
	in := exposed{in: part{block(In, 0), n}}
	both := exposed{part{block(In, 0), n}, part{block(Out, 0), n}}
	mine, theirs := slices.Repeat([]exposed{in}, b.Size), slices.Repeat([]exposed{in}, b.Size)
	if theirs[b.Root] = both; b.Rank == b.Root {
		mine = slices.Repeat([]exposed{both}, b.Size)
	}
	b.direct(mine, theirs, func() {
		off, bytes := cut(n, b.Size, b.Rank)
		b.combineThere(block(In, 0).at(off), block(Out, 0).at(off), off, bytes, b.Root)
	})
}

func (b *builder) directReduceScatter() {
	own := part{block(In, b.Rank), b.OutBytes[0]}
	b.direct(inputs(blocks(In, b.InBytes)), inputs(b.same(own)), func() {
		b.combineThere(own.place, block(Out, 0), 0, own.bytes, b.Rank)
	})
}

// combineThere combines this rank's slice where it lies, off from the beginning of what the peers
// expose, and writes the result to dst if it is for this rank, and to where the peers want it that
// it is for: the root, or every rank.
func (b *builder) combineThere(own, dst Ref, off, bytes int64, root int) {
	for at := int64(0); at < bytes; at += b.Chunk {
		b.src, b.also = b.src[:b.Size], b.also[:0]
		if root == everyRank || root == b.Rank {
			b.also = append(b.also, dst.at(at))
		}
		for r := range b.Size {
			if r == b.Rank {
				b.src[r] = own.at(at)
				continue
			}
			b.src[r] = Ref{Space: PeerIn, Peer: int32(r), Off: off + at}
			if root == everyRank || root == r {
				b.also = append(b.also, Ref{Space: PeerOut, Peer: int32(r), Off: off + at})
			}
		}
		b.emit(Step{Op: Combine, Bytes: min(b.Chunk, bytes-at), Dst: b.also[0], Also: b.also[1:]},
			b.src...)
	}
}

func (b *builder) directAllGather() {
	all := b.same(part{block(In, 0), b.InBytes[0]})
	b.direct(outputs(blocks(Out, b.OutBytes)), outputs(all), func() {
		b.moveThere(append(b.pushes(all), move{block(Out, b.Rank), block(In, 0), b.InBytes[0]}))
	})
}

func (b *builder) directAllToAll() {
	out := blocks(In, b.InBytes)
	b.direct(outputs(blocks(Out, b.OutBytes)), outputs(out), func() {
		b.moveThere(append(b.pushes(out), move{block(Out, b.Rank), block(In, b.Rank), b.InBytes[b.Rank]}))
	})
}

// directBroadcast has the root write a share of the block to each other rank, and that one read the
// rest, so that all move the same.
func (b *builder) directBroadcast() {
	all := part{block(Out, 0), b.OutBytes[0]}
	_, share := cut(all.bytes, b.Size, 0)
	if b.Rank == b.Root {
		each := outputs(b.same(all))
		b.direct(each, each, func() { b.moveThere(b.pushes(b.same(part{all.place, share}))) })
		return
	}
	root := outputs(b.only(b.Root, all))
	b.direct(root, root, func() {
		from := Ref{Space: PeerOut, Peer: int32(b.Root), Off: share}
		b.moveThere([]move{{all.place.at(share), from, all.bytes - share}})
	})
}

// directScatter has each rank read its block, so that all move the same.
func (b *builder) directScatter() {
	own := part{block(Out, 0), b.OutBytes[0]}
	root := b.only(b.Root, own)
	mine, theirs, from := outputs(root), inputs(root), Ref{Space: PeerIn, Peer: int32(b.Root)}
	if b.Rank == b.Root {
		in := blocks(In, b.InBytes)
		mine, theirs, from = inputs(in), outputs(in), in[b.Rank].place
	}
	b.direct(mine, theirs, func() { b.moveThere([]move{{own.place, from, own.bytes}}) })
}

// directGather has each rank write its block, so that all move the same.
func (b *builder) directGather() {
	own := part{block(In, 0), b.InBytes[0]}
	root := b.only(b.Root, own)
	mine, theirs, to := inputs(root), outputs(root), Ref{Space: PeerOut, Peer: int32(b.Root)}
	if b.Rank == b.Root {
		out := blocks(Out, b.OutBytes)
		mine, theirs, to = outputs(out), inputs(out), out[b.Rank].place
	}
	b.direct(mine, theirs, func() { b.moveThere([]move{{to, own.place, own.bytes}}) })
}

// move is a copy of so many bytes.
type move struct {
	dst, src Ref
	bytes    int64
}

// pushes moves out[r] to where each other rank r wants it.
func (b *builder) pushes(out []part) (moves []move) {
	for i := 1; i < b.Size; i++ {
		r := b.to(i)
		moves = append(moves, move{Ref{Space: PeerOut, Peer: int32(r)}, out[r].place, out[r].bytes})
	}
	return moves
}

// moveThere makes moves, a chunk of each in turn.
func (b *builder) moveThere(moves []move) {
	for at, more := int64(0), true; more; at += b.Chunk {
		more = false
		for _, m := range moves {
			if left := m.bytes - at; left > 0 {
				b.copy(m.dst.at(at), m.src.at(at), min(left, b.Chunk))
				more = true
			}
		}
	}
}
