package tune

import (
	"math"
	"math/bits"
)

// The cost of a collective is estimated by LogGP, to choose the algorithm, and the radices of
// levels: the latency of a message, what it costs each end, and what its bytes do. All figures are
// whole picoseconds, so that all ranks find the same, whatever their CPUs.

// ReduceGap is what it costs to reduce a byte of an input.
const ReduceGap = 50

// levelCost is what a level costs a rank: of siblings of stride ranks, so many of which make up a
// block.
type levelCost func(stride, radix int) int64

// of is what levels of some radices cost in all.
func (cost levelCost) of(radices []int) (all int64) {
	stride := 1
	for _, radix := range radices {
		all += cost(stride, radix)
		stride *= radix
	}
	return all
}

// multiplyCost is that of sending everything to each twin. Where ranks are missing, it goes on from
// rank to rank.
func (t *Topology) multiplyCost(stride, radix int, bytes int64) int64 {
	k, twins := t.linkAt(stride*radix), int64(radix-1)
	cost := k.Latency + times(twins, 2*k.Overhead+times(bytes, k.Gap+ReduceGap))
	if last := t.Size % stride; last > 0 {
		near := t.linkAt(stride)
		hops := int64(bits.Len(uint((stride - 1) / last)))
		cost += hops * (near.Latency + 2*near.Overhead + times(bytes, near.Gap))
	}
	return cost
}

// scatterCost is that of scattering a piece, which levels before have cut, and of gathering it; the
// same radices do best where only one of both is done. The last rank also has the pieces of missing
// ranks.
func (t *Topology) scatterCost(stride, radix int, bytes int64) int64 {
	k, pieces := t.linkAt(stride*radix), int64(1)
	if last := t.Size % stride; last > 0 {
		pieces = int64(stride - last + 1)
	}
	twins := int64(radix - 1)
	part := bytes * pieces / int64(stride) / int64(radix)
	exchange := k.Latency + times(twins, 2*k.Overhead*pieces+times(part, k.Gap))
	return 2*exchange + times(twins, times(part, ReduceGap))
}

// blocksCost is that of passing one block after another to each twin, or from it.
func (t *Topology) blocksCost(stride, radix int, bytes int64) int64 {
	k := t.linkAt(stride * radix)
	messages := int64(radix-1) * int64(max(t.Size/(stride*radix), 1))
	return k.Latency + times(messages, 2*k.Overhead+times(bytes, k.Gap))
}

// mostRadix is the most siblings of a block. With more a rank would have more peers, each with
// inboxes, and gain little: levels move no more bytes than a direct exchange.
const mostRadix = 8

// cheapest finds the radices that cost least; nil where there are too few ranks for levels.
func (t *Topology) cheapest(cost levelCost) (radices []int) {
	if t.Size < 3 {
		return nil
	}
	type way struct {
		cost  int64
		radix int
	}
	ways := make([]way, bits.Len(uint(t.Size-1))) // by level: from blocks of 1<<i ranks to all
	for i := len(ways) - 1; i >= 0; i-- {
		rest := (t.Size + 1<<i - 1) >> i
		if ways[i] = (way{math.MaxInt64, rest}); i > 0 && rest <= mostRadix {
			ways[i].cost = cost(1<<i, rest)
		}
		for next := len(ways) - 1; next > i; next-- { // of equals that with fewer levels
			radix := 1 << (next - i)
			if radix > mostRadix || ways[next].cost == math.MaxInt64 {
				continue
			}
			if c := cost(1<<i, radix) + ways[next].cost; c < ways[i].cost {
				ways[i] = way{c, radix}
			}
		}
	}
	for stride := 1; stride < t.Size; stride *= radices[len(radices)-1] {
		radices = append(radices, ways[bits.Len(uint(stride))-1].radix)
	}
	return radices
}

// pairs are the ranks with which one exchanges at once, by kind: those of its own group, and those
// of others.
func (t *Topology) pairs() (near, far int64) {
	if !t.MultiHost {
		return int64(t.Size - 1), 0
	}
	near = int64(max(min(t.Group, t.Size), 1) - 1)
	return near, int64(t.Size-1) - near
}

// toAllCost is that of sending so many bytes to each other rank, or to one that all send to, and of
// gap more for each byte. It takes so many messages to each.
func (t *Topology) toAllCost(bytes, messages, gap int64) int64 {
	near, far := t.pairs()
	k, between := t.linkAt(max(t.Group, 1)), t.linkAt(t.Size)
	if !t.MultiHost {
		k = between
	}
	each := func(k Link) int64 { return times(messages, 2*k.Overhead) + times(bytes, k.Gap+gap) }
	return between.Latency + times(near, each(k)) + times(far, each(between))
}

// treeCost is that of the longest way along a binomial tree: at each hop of so many bytes, where
// packed of as many blocks as are behind it. Of a host one rank at a time goes on to others.
func (t *Topology) treeCost(bytes, gap int64, packed bool) (cost int64) {
	for reach := 1; reach < t.Size; reach *= 2 {
		k, hop := t.linkAt(2*reach), bytes
		if t.MultiHost && 2*reach > t.Group {
			k.Gap /= int64(max(t.Group, 1))
		}
		if packed {
			hop = times(hop, int64(min(reach, t.Size-reach)))
		}
		cost += k.Latency + 2*k.Overhead + times(hop, k.Gap+gap)
	}
	return cost
}

// crowded tells whether ranks are on one host, which is oversubscribed: there it counts how many
// messages there are in all.
func (t *Topology) crowded() bool { return t.Oversubscribed && !t.MultiHost }

// treesCost is that of a tree and the way back. On a crowded host each rank in its turn does what
// the tree has for it, once each way for each message, and the longest way counts little.
func (t *Topology) treesCost(bytes, messages int64) int64 {
	if !t.crowded() {
		return t.treeCost(bytes, ReduceGap, false) + t.treeCost(bytes, 0, false)
	}
	k := t.linkAt(t.Size)
	return 2*times(messages, k.Latency+2*k.Overhead) + t.passes(3)*times(bytes, 2*k.Gap+ReduceGap)
}

// passes is how many times as much as in a direct exchange bytes cost on a crowded host that ranks
// copy as partial results: so many where they share memory, of which little is in the caches at a
// rank's next turn. What ports carry is copied by the system in any case.
func (t *Topology) passes(memory int64) int64 {
	if !t.crowded() || t.Ports {
		return 1
	}
	return memory
}
