package tune

import (
	"slices"

	"github.com/goccl/goccl/core/plan"
)

const (
	// nearChunk is the most bytes of a message between ranks that exchange much in levels: they are
	// few, and have longer slots than others where these would be short.
	nearChunk = 128 << 10
	// mostNear is of how many peers a list of radices may be for that.
	mostNear = 32
)

// chunk is the most bytes of a message of an operation of so many bytes, with some radices.
func (s *Shape) chunk(c plan.Collective, radices []int, bytes int64) int64 {
	if c == plan.Send || c == plan.Recv {
		return min(s.SendChunk, max(bytes/leastPieces&^63, leastPiece))
	}
	peers := 0
	for _, r := range radices {
		peers += r - 1
	}
	if peers == 0 || peers > mostNear || bytes <= s.Chunk {
		return s.Chunk
	}
	return max(s.Chunk, s.NearChunk)
}

// sizeClass is the length by which radices are chosen for so many bytes. There are few, so that all
// lists of radices are known, and with them the ranks that exchange in levels.
func sizeClass(bytes int64) int64 {
	class := int64(leastSize)
	for class < bytes && class < mostSize {
		class *= 4
	}
	return class
}

const leastSize, mostSize = 64, 1 << 30

// mostScale is how many times as long as an input a partial sum can be, by a power of two.
const mostScale = 4

// radixLists are all lists of radices of operations that have messages of up to NearChunk bytes, of
// some collectives.
func (s *Shape) radixLists(of func(plan.Collective) bool) (lists [][]int) {
	add := func(radices []int) {
		same := func(other []int) bool { return slices.Equal(radices, other) }
		if radices != nil && !slices.ContainsFunc(lists, same) {
			lists = append(lists, radices)
		}
	}
	for c := plan.AllReduce; c <= plan.Barrier; c++ {
		for _, a := range plan.Algorithms(c) {
			if !a.InLevels() || !of(c) {
				continue
			}
			for class := int64(leastSize); class <= mostSize; class *= 4 {
				for scale := int64(1); scale <= mostScale; scale *= 2 {
					radices := s.placed(c).radicesOf(c, a, load{class, wholes(c), scale})
					if s.chunk(c, radices, class) > s.Chunk {
						add(radices)
					}
				}
			}
		}
	}
	return lists
}

// Near finds the ranks with which one exchanges messages of up to NearChunk bytes, in order,
// whatever the collective; it is nil where NearChunk is 0. The lists of radices are the same for
// all ranks, of which each is asked for whose window is mapped.
func (s *Shape) Near() func(rank int) []int {
	if s.NearChunk == 0 {
		return nil
	}
	inOrder := func(c plan.Collective) bool { return s.Order != nil && !c.Reduces() }
	byRank := s.radixLists(func(c plan.Collective) bool { return !inOrder(c) })
	byPlace, places := s.radixLists(inOrder), plan.Places(s.Order)
	return func(rank int) (near []int) {
		with := make([]bool, s.Size)
		for _, peer := range nearTo(rank, s.Size, byRank) {
			with[peer] = true
		}
		if s.Order != nil {
			for _, place := range nearTo(places[rank], s.Size, byPlace) {
				with[s.Order[place]] = true
			}
		}
		for peer := range with {
			if with[peer] {
				near = append(near, peer)
			}
		}
		return near
	}
}

// nearTo are the ranks that one of so many exchanges with in levels of any of the lists of radices.
func nearTo(rank, size int, lists [][]int) (near []int) {
	for _, radices := range lists {
		for _, a := range []plan.Algorithm{plan.RecursiveMultiplying, plan.Hierarchical} {
			// Long enough for each rank to own a part.
			bytes := []int64{int64(size) << 8}
			built, err := plan.Build(plan.Params{Collective: plan.AllReduce, Algorithm: a,
				Radices: radices, Rank: rank, Size: size, InBytes: bytes, OutBytes: bytes, ElemSize: 1,
				Chunk: bytes[0], Slots: slotsPerChannel})
			if err != nil {
				continue // the radices do not fit: no operation has them
			}
			senders, receivers := built.Peers()
			near = slices.Concat(near, senders, receivers)
		}
	}
	return near
}
