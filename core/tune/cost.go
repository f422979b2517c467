package tune

import (
	"math"
	"math/bits"
)

// The cost of a collective in levels is estimated by LogGP, to choose the radices: at each level
// the latency of a message, what it costs each end, and what its bytes do. All figures are whole
// picoseconds, so that all ranks find the same, whatever their CPUs.

// link is what a message costs on a kind of channel.
type link struct {
	latency  int64 // from end to end
	overhead int64 // of a CPU, at each end
	gap      int64 // a byte
}

// The links by kind. On an oversubscribed host a message costs a change of threads at each end, and
// each level waits for all ranks to have their turn: fewer levels with more messages are no slower.
// Of an allreduce that is what is too long for a tree: see alongTree.
var (
	domainLink             = link{100_000, 100_000, 60} // of CPUs that share a cache
	memoryLink             = link{500_000, 100_000, 100}
	oversubscribedLink     = link{40_000_000, 3_000_000, 200}
	portLink               = link{15_000_000, 4_000_000, 320}
	oversubscribedPortLink = link{200_000_000, 20_000_000, 400} // of an oversubscribed host
)

// reduceGap is what it costs to reduce a byte of an input.
const reduceGap = 50

// linkAt is the link between ranks of a block of so many ranks. Those of a host share what joins it
// to others.
func (t *Topology) linkAt(block int) link {
	within := !t.MultiHost || block <= t.Group
	switch memory := !t.Ports || t.Memory && t.MultiHost && within; {
	case memory && t.Oversubscribed:
		return oversubscribedLink
	case memory && block <= t.Domain:
		return domainLink
	case memory:
		return memoryLink
	case within && t.Oversubscribed:
		return oversubscribedPortLink
	}
	between := portLink
	between.gap *= int64(max(t.Group, 1))
	return between
}

// levelCost is what a level costs a rank: of siblings of stride ranks, so many of which make up a
// block.
type levelCost func(stride, radix int) int64

// multiplyCost is that of sending everything to each twin. Where ranks are missing, it goes on from
// rank to rank.
func (t *Topology) multiplyCost(stride, radix int, bytes int64) int64 {
	k, twins := t.linkAt(stride*radix), int64(radix-1)
	cost := k.latency + twins*(2*k.overhead+bytes*(k.gap+reduceGap))
	if last := t.Size % stride; last > 0 {
		near := t.linkAt(stride)
		hops := int64(bits.Len(uint((stride - 1) / last)))
		cost += hops * (near.latency + 2*near.overhead + bytes*near.gap)
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
	return 2*(k.latency+twins*(2*k.overhead*pieces+part*k.gap)) + twins*part*reduceGap
}

// blocksCost is that of passing one block after another to each twin, or from it.
func (t *Topology) blocksCost(stride, radix int, bytes int64) int64 {
	k := t.linkAt(stride * radix)
	messages := int64(radix-1) * int64(max(t.Size/(stride*radix), 1))
	return k.latency + messages*(2*k.overhead+bytes*k.gap)
}

// mostRadix is the most siblings of a block. With more a rank would have more peers, each with
// inboxes, and gain little: levels move no more bytes than a direct exchange.
const mostRadix = 8

// cheapest finds the radices that cost least, and what they do; nil where there are too few ranks
// for levels.
func (t *Topology) cheapest(cost levelCost) ([]int, int64) {
	if t.Size < 3 {
		return nil, math.MaxInt64
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
	var radices []int
	for stride := 1; stride < t.Size; stride *= radices[len(radices)-1] {
		radices = append(radices, ways[bits.Len(uint(stride))-1].radix)
	}
	return radices, ways[0].cost
}
