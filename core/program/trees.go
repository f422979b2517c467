package program

import (
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// span is ranks in succession: [lo, hi).
type span struct{ lo, hi int32 }

// tree is how a sum was made: of which ranks' contributions, in which order.
type tree struct {
	ranks     []span // in order, none of which meet
	canonical bool   // its bits are those of the canonical order
}

// trees numbers all trees that come up: 0 stands for nothing, and r+1 for the raw contribution of
// rank r. Sums with the same bits have the same number.
type trees struct {
	size    int
	all     []tree
	numbers map[string]int32
}

func newTrees(ranks int) *trees {
	t := &trees{size: ranks, all: make([]tree, ranks+1), numbers: map[string]int32{}}
	for r := range ranks {
		t.all[r+1] = tree{[]span{{int32(r), int32(r) + 1}}, true}
	}
	return t
}

// clone is trees of which more can be made.
func (t *trees) clone() *trees {
	return &trees{size: t.size, all: slices.Clone(t.all), numbers: maps.Clone(t.numbers)}
}

func raw(rank int) int32 { return int32(rank) + 1 }

// isSum reports whether a tree is of several contributions.
func (t *trees) isSum(n int32) bool { return int(n) > t.size }

// isWhole reports whether a tree is of all contributions.
func (t *trees) isWhole(n int32) bool {
	r := t.all[n].ranks
	return n > 0 && len(r) == 1 && r[0].lo == 0 && int(r[0].hi) == t.size
}

// isPartial reports whether a tree is of several contributions, but not of all.
func (t *trees) isPartial(n int32) bool { return t.isSum(n) && !t.isWhole(n) }

// first is the lowest rank whose contribution a tree has.
func (t *trees) first(n int32) int32 { return t.all[n].ranks[0].lo }

// sum is the tree of a sum of others, which it sorts by their first ranks. Twice is a rank whose
// contribution would be in it twice, or -1.
func (t *trees) sum(operands []int32) (n int32, twice int) {
	slices.SortFunc(operands, func(a, b int32) int { return int(t.first(a) - t.first(b)) })
	var ranks []span
	canonical := true
	for _, o := range operands {
		ranks = append(ranks, t.all[o].ranks...)
		canonical = canonical && t.all[o].canonical
	}
	slices.SortFunc(ranks, func(a, b span) int { return int(a.lo - b.lo) })
	joined := ranks[:1]
	for _, r := range ranks[1:] {
		switch last := &joined[len(joined)-1]; {
		case r.lo < last.hi:
			return 0, int(r.lo)
		case r.lo == last.hi:
			last.hi = r.hi
		default:
			joined = append(joined, r)
		}
	}
	canonical = canonical && len(joined) == 1 && isSubtree(joined[0], t.size)
	var key []byte
	if canonical { // whatever it was made of
		key = binary.AppendVarint(binary.AppendVarint(key, int64(joined[0].lo)), int64(-joined[0].hi))
	} else {
		for _, o := range operands {
			key = binary.AppendVarint(key, int64(o))
		}
	}
	n, ok := t.numbers[string(key)]
	if !ok {
		n = int32(len(t.all))
		t.numbers[string(key)] = n
		t.all = append(t.all, tree{slices.Clone(joined), canonical})
	}
	return n, -1
}

// isSubtree reports whether ranks are those of a subtree of the canonical order over so many: an
// aligned block of 2^j ranks, cut off at the last rank.
func isSubtree(s span, size int) bool {
	block := int32(1)
	for block < s.hi-s.lo {
		block *= 2
	}
	return s.lo%block == 0 && s.hi == min(s.lo+block, int32(size))
}

// text is how errors call what is of a tree.
func (t *trees) text(n int32) string {
	if !t.isSum(n) {
		return fmt.Sprintf("the contribution of rank %d", n-1)
	}
	var ranks []string
	for _, s := range t.all[n].ranks {
		switch s.hi - s.lo {
		case 1:
			ranks = append(ranks, fmt.Sprint(s.lo))
		default:
			ranks = append(ranks, fmt.Sprintf("%d to %d", s.lo, s.hi-1))
		}
	}
	return "the sum over ranks " + strings.Join(ranks, ", ")
}
