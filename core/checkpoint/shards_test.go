package checkpoint

import (
	"reflect"
	"slices"
	"strings"
	"testing"
)

func TestReplicas(t *testing.T) {
	for _, c := range []struct {
		hosts    string
		replicas int
		want     [][]int
	}{
		{"a", 1, [][]int{nil}},
		{"aa", 0, [][]int{nil, nil}},
		{"aa", 1, [][]int{{1}, {0}}},
		{"aa", 9, [][]int{{1}, {0}}},
		{"aaa", 1, [][]int{{1}, {2}, {0}}},
		{"aaa", 2, [][]int{{1, 2}, {2, 0}, {0, 1}}},
		{"aaabbb", 1, [][]int{{3}, {4}, {5}, {0}, {1}, {2}}},
		{"aaabbb", 2, [][]int{{3, 4}, {4, 5}, {5, 3}, {0, 1}, {1, 2}, {2, 0}}},
		{"abab", 1, [][]int{{1}, {2}, {3}, {0}}},
		{"aaab", 1, [][]int{{3}, {3}, {3}, {0}}},
		{"aaab", 2, [][]int{{3, 1}, {3, 2}, {3, 0}, {0, 1}}},
		{"abc", 1, [][]int{{1}, {2}, {0}}},
		{"aabbcc", 2, [][]int{{2, 4}, {3, 5}, {4, 0}, {5, 1}, {0, 2}, {1, 3}}},
		{"abc", 2, [][]int{{1, 2}, {2, 0}, {0, 1}}},
	} {
		if got := replicasOf(strings.Split(c.hosts, ""), c.replicas); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s, %d replicas: %v, not %v", c.hosts, c.replicas, got, c.want)
		}
	}
}

// Wherever ranks are, none keeps its own model or one twice, a second copy is on a second host, and
// where hosts are alike all keep as many, of up to two replicas, or nearly.
func TestReplicasAreSpread(t *testing.T) {
	for hosts := 1; hosts <= 4; hosts++ {
		for each := 1; each <= 4; each++ {
			for i := range 6 {
				replicas, names := 1+i/2, strings.Split(strings.Repeat("abcd"[:hosts], each), "")
				if i%2 == 1 {
					slices.Sort(names)
				}
				if replicas >= len(names) {
					continue
				}
				load := make([]int, len(names))
				for rank, copies := range replicasOf(names, replicas) {
					on := map[string]bool{}
					for i, k := range copies {
						load[k]++
						on[names[k]] = true
						if k == rank || slices.Contains(copies[:i], k) {
							t.Errorf("%v: rank %d is kept by %v", names, rank, copies)
						}
					}
					delete(on, names[rank])
					if len(on) != min(replicas, hosts-1) {
						t.Errorf("%v: rank %d is kept by %v", names, rank, copies)
					}
				}
				if more := slices.Max(load) - slices.Min(load); more > 0 && replicas <= 2 || more > 2 {
					t.Errorf("%v, %d replicas: they keep %v", names, replicas, load)
				}
			}
		}
	}
}

func TestOwners(t *testing.T) {
	for _, c := range []struct {
		owners string // of shards
		ids    string // of ranks; a capital has not got the version
		want   []int
	}{
		{"abc", "abc", []int{0, 1, 2}},
		{"abc", "ac", []int{0, noRank, 1}},
		{"abc", "caX", []int{1, 2, 0}},
		{"abcd", "bdX", []int{2, 0, noRank, 1}},
		{"abcd", "bdXY", []int{2, 0, 3, 1}},
		{"abc", "bcXY", []int{2, 0, 1}},
		{"abc", "abcX", []int{0, 1, 2}},
		{"abc", "acxY", []int{0, 2, 1}}, // x has joined before, when no shard was free
		{"abc", "Bacx", []int{1, 0, 2}}, // B's shard was given to it, and its load has failed
		{"abc", "aBCX", []int{0, 1, 2}},
		{"abc", "aCB", []int{0, 1, 2}},
	} {
		var shards []shard
		for _, id := range c.owners {
			shards = append(shards, shard{Owner: uint64(id)})
		}
		var ids []uint64
		var current []bool
		for _, id := range strings.ToLower(c.ids) {
			ids = append(ids, uint64(id))
		}
		for _, id := range c.ids {
			current = append(current, id >= 'a')
		}
		if got := ownersOf(shards, ids, current); !slices.Equal(got, c.want) {
			t.Errorf("%s, %s: %v, not %v", c.owners, c.ids, got, c.want)
		}
	}
}

func TestHeirs(t *testing.T) {
	for _, c := range []struct {
		sizes   []uint64
		owners  []int
		holders [][]int
		want    []int
	}{
		{[]uint64{5, 5}, []int{0, 1}, [][]int{{0, 1}, {0, 1}}, []int{-1, -1}},
		{[]uint64{5, 5, 5}, []int{0, -1, 1}, [][]int{{0}, {0, 1}, {1}}, []int{-1, 0, -1}},
		{[]uint64{5, 5, 4}, []int{0, -1, 1}, [][]int{{0}, {0, 1}, {1}}, []int{-1, 1, -1}},
		{[]uint64{5, 5, 4}, []int{-1, -1, 0}, [][]int{{0, 1}, {0, 1}, {0}}, []int{1, 0, -1}},
		{[]uint64{5, 0, 4}, []int{-1, -1, 0}, [][]int{nil, {0}, {0}}, []int{-1, -1, -1}},
	} {
		var shards []shard
		for _, size := range c.sizes {
			shards = append(shards, shard{Local: size})
		}
		if got := heirsOf(shards, c.owners, c.holders); !slices.Equal(got, c.want) {
			t.Errorf("%v, %v, %v: %v, not %v", c.sizes, c.owners, c.holders, got, c.want)
		}
	}
}

func TestStripes(t *testing.T) {
	for _, size := range []uint64{0, 1, 2, 3, 7, 1 << 40, 1<<40 + 5} {
		for of := 1; of <= 7; of++ {
			var last uint64
			for i := range of {
				from, to := stripe(size, i, of)
				if from != last || to < from || to-from > size/uint64(of)+1 {
					t.Errorf("%d bytes, %d of %d: %d to %d", size, i, of, from, to)
				}
				last = to
			}
			if last != size {
				t.Errorf("%d bytes of %d: they end at %d", size, of, last)
			}
		}
	}
}
