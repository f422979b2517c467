package plan

import "slices"

// swap is what two ranks that share memory send each other, as many bytes in either direction. Each
// puts one half of what it has into the other's slots, and finds there, when these have been
// released, what the other has for it of that half. So a line of memory goes from one rank's cache
// to the other's and back and brings data both ways: half as many transfers of lines as with a slot
// for each direction, of which a writer must first take the lines from their last reader.
type swap struct {
	peer int
	put  int32 // the number of its first message to the peer
	out  part
	// deliver is what is to be done with bytes that have come, so far into what the peer sends.
	deliver func(from Ref, off, bytes int64)
}

// swaps tells whether two parts, for a peer and from it, go by a swap. Where everybody gets the
// same of a block, it is written once for all.
func (b *builder) swaps(out, in part) bool {
	return b.Memory && b.SwapMin > 0 && out.used() && in.used() && out.bytes == in.bytes &&
		out.bytes >= max(b.SwapMin, 2*align) && !b.multicasts(out.bytes)
}

// swapsOf parts what is to be exchanged into swaps and what goes each way by itself.
func (b *builder) swapsOf(out, in []part) (swaps []swap, outLeft, inLeft []part) {
	for i := 1; i < b.Size; i++ {
		peer := b.to(i)
		if !b.swaps(out[peer], in[peer]) {
			continue
		}
		if swaps == nil {
			out, in = slices.Clone(out), slices.Clone(in)
		}
		to := in[peer].place
		deliver := func(from Ref, off, bytes int64) { b.copy(to.at(off), from, bytes) }
		swaps = append(swaps, swap{peer, b.puts[peer], out[peer], deliver})
		out[peer], in[peer] = part{}, part{}
	}
	return swaps, out, in
}

// first is the half that this rank puts, and second the one that its peer does.
func (b *builder) first(s swap) (off, bytes int64) {
	return cut(s.out.bytes, 2, halfOf(b.Rank > s.peer))
}

func (b *builder) second(s swap) (off, bytes int64) {
	return cut(s.out.bytes, 2, halfOf(b.Rank < s.peer))
}

func halfOf(higher bool) int {
	if higher {
		return 1
	}
	return 0
}

// swap makes swaps, where there is nothing else to exchange.
func (b *builder) swap(swaps ...swap) {
	lag := b.swapLag()
	for k := range b.swapRounds(swaps) + 2*lag {
		b.putSwaps(swaps, k)
		b.takeSwaps(swaps, k-lag)
		b.collectSwaps(swaps, k-2*lag)
	}
}

// swapLag is by how many rounds the waits run behind the puts, and what is collected behind the
// waits: as in reduceSlices.
func (b *builder) swapLag() int { return min(max(b.Ahead, 1), (b.Slots-2)/2) }

func (b *builder) swapRounds(swaps []swap) (n int) {
	for _, s := range swaps {
		for half := range 2 { // the first may be as long as the second, longer, or shorter
			_, bytes := cut(s.out.bytes, 2, half)
			n = max(n, b.count(bytes))
		}
	}
	return n
}

// putSwaps is round k of the puts.
func (b *builder) putSwaps(swaps []swap, k int) {
	for _, s := range swaps {
		half, length := b.first(s)
		if n := b.count(length); k < n {
			off, bytes := cut(length, n, k)
			b.put(s.peer, s.out.place.at(half+off), bytes, b.total(s.out))
		}
	}
}

// takeSwaps is round k of what peers have put, which goes back with what this rank has for them.
func (b *builder) takeSwaps(swaps []swap, k int) {
	for i := range swaps {
		s := swaps[len(swaps)-1-i] // whom this rank has put to last has put to it first
		half, length := b.second(s)
		if n := b.count(length); k >= 0 && k < n {
			off, bytes := cut(length, n, k)
			message := b.wait(s.peer, bytes, b.total(s.out))
			s.deliver(message, half+off, bytes)
			b.copy(message, s.out.place.at(half+off), bytes)
			b.release(s.peer)
		}
	}
}

// collectSwaps is round k of what comes back.
func (b *builder) collectSwaps(swaps []swap, k int) {
	for _, s := range swaps {
		half, length := b.first(s)
		if n := b.count(length); k >= 0 && k < n {
			off, bytes := cut(length, n, k)
			message := Ref{Space: Outbox, Peer: int32(s.peer), Block: s.put + int32(k)}
			b.emit(Step{Op: Reclaim, Peer: int32(s.peer)}, message)
			s.deliver(message, half+off, bytes)
		}
	}
}
