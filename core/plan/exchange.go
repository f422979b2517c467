package plan

import "slices"

// part is a block that goes to a rank, or the place for one that comes from it; the zero part says
// that there is no traffic.
type part struct {
	place Ref
	bytes int64
}

func (p part) used() bool { return p.place.Space != None }

// exchange sends out[r] to each rank r and receives in[r] from it; a rank's part for itself is
// copied. Any rank may have any parts, as long as both ends agree. Parts that can be got are
// offered before the others are put, and got after they have come.
//
// Where everybody would get the same (AllGather, Broadcast), or one rank get it all (Gather),
// messages are faster: then two CPUs share in each copy, and what one rank has put away others find
// in the caches.
func (b *builder) exchange(out, in []part) {
	if b.GetMin == 0 {
		b.exchangeMessages(out, in)
		return
	}
	offered := make([]Ref, b.Size)
	for i := 1; i < b.Size; i++ {
		if peer := b.to(i); b.gets(out[peer]) {
			offered[peer] = b.offer(peer, out[peer].place, b.total(out[peer]))
		}
	}
	b.exchangeMessages(b.toPut(out), b.toPut(in))
	for i := 1; i < b.Size; i++ {
		if peer := b.from(i); b.gets(in[peer]) {
			b.get(peer, in[peer])
		}
	}
	for i := 1; i < b.Size; i++ {
		if peer := b.to(i); offered[peer].Space != None {
			b.reclaim(Ref{}, offered[peer], 0)
		}
	}
}

// gets tells whether a part is got by its receiver from where it lies.
func (b *builder) gets(p part) bool { return p.used() && b.GetMin > 0 && p.bytes >= b.GetMin }

// toPut is the parts that are not got, and this rank's own.
func (b *builder) toPut(parts []part) []part {
	left := slices.Clone(parts)
	for r, p := range parts {
		if r != b.Rank && b.gets(p) {
			left[r] = part{}
		}
	}
	return left
}

// GetMost is how much of a part one step gets: a run can be stopped between two.
const GetMost = 4 << 20

// get gets a part from the peer that offers it.
func (b *builder) get(peer int, p part) {
	message := b.wait(peer, OfferBytes, b.total(p))
	for off := int64(0); off < p.bytes; off += GetMost {
		b.emit(Step{Op: Get, Peer: int32(peer), Bytes: min(GetMost, p.bytes-off), Dst: p.place.at(off)},
			message.at(off))
	}
	b.release(peer)
}

// exchangeMessages exchanges parts by messages, one of each pair a round, and swaps those of pairs
// that are better off so.
//
// It cannot deadlock: if all ranks have ended round k-1, then each put of round k finds a slot
// (lag), and each wait of round k is for a message put in round k or before.
func (b *builder) exchangeMessages(out, in []part) {
	swaps, out, in := b.swapsOf(out, in)
	puts, takes := b.flows(out, b.to), b.flows(in, b.from)
	rounds, lag := max(b.rounds(out), b.rounds(in)), b.lag()
	if len(swaps) > 0 {
		lag = b.swapLag()
		rounds = max(rounds, b.swapRounds(swaps)+lag)
	}
	for k := range rounds + lag {
		b.putRound(puts, k)
		b.putSwaps(swaps, k)
		if own, to := out[b.Rank], in[b.Rank]; own.used() && to.used() && k < b.count(own.bytes) {
			off, bytes := cut(own.bytes, b.count(own.bytes), k)
			b.copy(to.place.at(off), own.place.at(off), bytes)
		}
		for _, f := range takes {
			if j := k - lag; j >= 0 && j < f.count {
				off, bytes := cut(f.bytes, f.count, j)
				b.takeBy(Step{Op: Wait, Peer: int32(f.peer), Bytes: bytes, Total: b.total(f.part),
					Multicast: b.multicasts(f.bytes)}, f.place.at(off))
			}
		}
		b.takeSwaps(swaps, k-lag)
		b.collectSwaps(swaps, k-2*lag)
	}
}

// flow is a part that goes to a peer or comes from it in so many messages.
type flow struct {
	part
	peer, count int
}

// flows are the parts that are used, but for this rank's own, in the order in which peer numbers
// the peers.
func (b *builder) flows(parts []part, peer func(i int) int) []flow {
	used := 0
	for _, p := range parts {
		if p.used() {
			used++
		}
	}
	flows := make([]flow, 0, used)
	for i := 1; i < b.Size && len(flows) < used; i++ {
		if p := parts[peer(i)]; p.used() {
			flows = append(flows, flow{p, peer(i), b.count(p.bytes)})
		}
	}
	return flows
}

// putRound puts message k of each flow.
func (b *builder) putRound(flows []flow, k int) {
	if len(flows) > 0 && b.multicasts(flows[0].bytes) { // what goes to all is the same
		if f := flows[0]; k < f.count {
			off, bytes := cut(f.bytes, f.count, k)
			b.putToAll(f.place.at(off), bytes)
		}
		return
	}
	for _, f := range flows {
		if k < f.count {
			off, bytes := cut(f.bytes, f.count, k)
			b.put(f.peer, f.place.at(off), bytes, b.total(f.part))
		}
	}
}

func (b *builder) rounds(parts []part) int {
	n := 0
	for _, p := range parts {
		if p.used() {
			n = max(n, b.count(p.bytes))
		}
	}
	return n
}

// total is what Step.Total says of a part: only in AllToAll do no others know its length.
func (b *builder) total(p part) int64 {
	if b.Collective == AllToAll {
		return p.bytes
	}
	return 0
}

// blocks is all blocks of a space, one a rank.
func blocks(s Space, bytes []int64) []part {
	parts := make([]part, len(bytes))
	for i, n := range bytes {
		parts[i] = part{block(s, i), n}
	}
	return parts
}

// only is traffic with one rank.
func (b *builder) only(rank int, p part) []part {
	parts := make([]part, b.Size)
	parts[rank] = p
	return parts
}

// same is the same block for every rank.
func (b *builder) same(p part) []part {
	return slices.Repeat([]part{p}, b.Size)
}

func (b *builder) allGather() {
	b.exchangeMessages(b.same(part{block(In, 0), b.InBytes[0]}), blocks(Out, b.OutBytes))
}

func (b *builder) gather() {
	out, in := b.only(b.Root, part{block(In, 0), b.InBytes[0]}), make([]part, b.Size)
	if b.Rank == b.Root {
		in = blocks(Out, b.OutBytes)
	}
	b.toRoot(b.others(), func() { b.exchangeMessages(out, in) })
}

// scattered is what a scatter sends and receives.
func (b *builder) scattered() (out, in []part) {
	out, in = make([]part, b.Size), b.only(b.Root, part{block(Out, 0), b.OutBytes[0]})
	if b.Rank == b.Root {
		out = blocks(In, b.InBytes)
	}
	return out, in
}

func (b *builder) scatter() {
	out, in := b.scattered()
	b.fromRoot(func() { b.exchange(out, in) })
}

// scatterWindowed has each rank ask for what it is sent, so that each message goes straight to its
// place.
func (b *builder) scatterWindowed() {
	out, in := b.scattered()
	peers := []int{b.Root}
	if own := in[b.Rank]; b.Rank == b.Root {
		b.copy(own.place, out[b.Rank].place, own.bytes)
		in, peers = make([]part, b.Size), b.others()
	}
	empty := slices.DeleteFunc(b.others(), func(rank int) bool { return b.InBytes[rank] > 0 })
	b.toRoot(empty, func() { b.window(peers, out, in) })
}

func (b *builder) send() {
	b.exchangeMessages(b.only(b.Root, part{block(In, 0), b.InBytes[0]}), make([]part, b.Size))
}

func (b *builder) recv() {
	b.exchangeMessages(make([]part, b.Size), b.only(b.Root, part{block(Out, 0), b.OutBytes[0]}))
}
