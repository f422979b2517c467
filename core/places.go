package core

import (
	"cmp"
	"slices"
)

// What follows decides where local models lie. All ranks decide the same of the same arguments.

// keepersOf are, for each rank, those that keep copies of its local model, at most `replicas` each.
// The hosts that have fewest copies come first, the rank's own last among them, and of their ranks
// those that keep least; of these the first that follows.
func keepersOf(hosts []string, replicas int) [][]int {
	n := len(hosts)
	keepers := make([][]int, n)
	load := make([]int, n)            // copies that a rank keeps
	on := make([]map[string][]int, n) // ranks that have the model, by host
	for rank, host := range hosts {
		on[rank] = map[string][]int{host: {rank}}
	}
	for range min(replicas, n-1) {
		for rank, host := range hosts {
			best, least := noRank, [4]int{}
			for peer := range hosts {
				there := on[rank][hosts[peer]]
				if slices.Contains(there, peer) {
					continue
				}
				own, last := 0, rank
				if hosts[peer] == host {
					own = 1
				}
				if len(there) > 0 {
					last = there[len(there)-1]
				}
				cost := [...]int{len(there), own, load[peer], (peer - last + n) % n}
				if best == noRank || slices.Compare(cost[:], least[:]) < 0 {
					best, least = peer, cost
				}
			}
			keepers[rank] = append(keepers[rank], best)
			on[rank][hosts[best]] = append(on[rank][hosts[best]], best)
			load[best]++
		}
	}
	return keepers
}

const noRank = -1

// ownersOf are, for each place of a version, the ranks that it is of now: the one with its id, if
// that has the version, or else, in both their orders, one that has no place. `ids` and `current`,
// who has the version, are by rank.
func ownersOf(places []place, ids []uint64, current []bool) []int {
	of := make(map[uint64]int, len(places))
	owners := make([]int, len(places))
	for at := range places {
		of[places[at].Owner] = at
		owners[at] = noRank
	}
	var without []int
	for rank, id := range ids {
		if at, ok := of[id]; ok && current[rank] {
			owners[at] = rank
		} else {
			without = append(without, rank)
		}
	}
	for at := range owners {
		if owners[at] == noRank && len(without) > 0 {
			owners[at], without = without[0], without[1:]
		}
	}
	return owners
}

// adoptersOf are, for each place, the ranks that get its local model beside their own: where no
// rank owns it, the one that has fewest bytes of those that have it; noRank elsewhere.
func adoptersOf(places []place, owners []int, holders [][]int) []int {
	bytes := map[int]uint64{}
	for at, owner := range owners {
		bytes[owner] += places[at].Local
	}
	adopters := make([]int, len(places))
	for at, ranks := range holders {
		adopters[at] = noRank
		if owners[at] == noRank && places[at].Local > 0 && len(ranks) > 0 {
			adopters[at] = slices.MinFunc(ranks, func(a, b int) int {
				return cmp.Compare(bytes[a], bytes[b])
			})
			bytes[adopters[at]] += places[at].Local
		}
	}
	return adopters
}

// stripe is the part of so many bytes that the i-th of some ranks sends.
func stripe(size uint64, i, of int) (from, to uint64) {
	each, more := size/uint64(of), size%uint64(of)
	at := func(i uint64) uint64 { return i*each + min(i, more) }
	return at(uint64(i)), at(uint64(i) + 1)
}
