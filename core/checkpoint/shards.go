package checkpoint

import (
	"cmp"
	"slices"
)

// This file decides where local models lie. All ranks decide the same of the same arguments.

// replicasOf returns, for each rank, the ranks that keep copies of its local model, at most
// `replicas` of them. Hosts with the fewest copies come first, and the rank's own host last among
// equals. On a host the rank that keeps the fewest copies comes first, then the next one in order.
func replicasOf(hosts []string, replicas int) [][]int {
	n := len(hosts)
	copies := make([][]int, n)
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
			copies[rank] = append(copies[rank], best)
			on[rank][hosts[best]] = append(on[rank][hosts[best]], best)
			load[best]++
		}
	}
	return copies
}

const noRank = -1

// ownersOf returns the rank that owns each shard of a version now: the one with the shard's id, if
// it has the version. Other shards go to the ranks without one, both in their order. `ids` and
// `current`, which says who has the version, are by rank.
func ownersOf(shards []shard, ids []uint64, current []bool) []int {
	of := make(map[uint64]int, len(shards))
	owners := make([]int, len(shards))
	for at := range shards {
		of[shards[at].Owner] = at
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

// heirsOf returns, for each shard that no rank owns, the rank that gets it beside its own: of those
// that have it the one with the fewest bytes. It is noRank for all other shards.
func heirsOf(shards []shard, owners []int, holders [][]int) []int {
	bytes := map[int]uint64{}
	for at, owner := range owners {
		bytes[owner] += shards[at].Local
	}
	heirs := make([]int, len(shards))
	for at, ranks := range holders {
		heirs[at] = noRank
		if owners[at] == noRank && shards[at].Local > 0 && len(ranks) > 0 {
			heirs[at] = slices.MinFunc(ranks, func(a, b int) int {
				return cmp.Compare(bytes[a], bytes[b])
			})
			bytes[heirs[at]] += shards[at].Local
		}
	}
	return heirs
}

// stripe returns the part of so many bytes that the i-th of some ranks sends.
func stripe(size uint64, i, of int) (from, to uint64) {
	each, more := size/uint64(of), size%uint64(of)
	at := func(i uint64) uint64 { return i*each + min(i, more) }
	return at(uint64(i)), at(uint64(i) + 1)
}
