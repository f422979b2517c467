package plan

import (
	"fmt"
	"slices"
	"testing"
)

// everyRadices are all lists of radices that so many ranks can have.
func everyRadices(size int) (lists [][]int) {
	var extend func(powers []int, product int)
	extend = func(powers []int, product int) {
		if len(powers) > 0 {
			last := (size + product - 1) / product
			lists = append(lists, append(slices.Clone(powers), last))
		}
		for r := 2; product*r < size; r *= 2 {
			extend(append(slices.Clone(powers), r), product*r)
		}
	}
	extend(nil, 1)
	return lists
}

// Every list of radices of at most 70 ranks gives the sums of the direct exchange: both are proved
// to be in the canonical order, and to end. Each number of ranks does so along binomial trees.
func TestEveryRadices(t *testing.T) {
	t.Parallel()
	most := 70
	if testing.Short() {
		most = 20
	}
	for size := 3; size <= most; size++ {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			t.Parallel()
			p := newProver(t)
			lists := everyRadices(size)
			for k, radices := range lists {
				for i, j := range levelJobs(size, radices, 256) {
					j.Slots, j.Memory = 2+(i+k)%4, k%2 == 0
					j.Ahead = j.Slots - 1
					j.counts = []int64{2*int64(size) + 3}
					if j.Collective != AllReduce {
						j.counts = slices.Repeat([]int64{int64(3 + 7*(k%2))}, size)
					}
					if err := verifyByRank(size, j.rank, k%2 == 0); err != nil {
						t.Fatalf("%v: %v", j, err)
					}
				}
			}
			for _, c := range allCollectives {
				if j := (job{Params{Collective: c, Algorithm: BinomialTree, Size: size,
					Root: size * 2 / 3}, nil}).with(size); c.Has(BinomialTree) {
					j.counts = layouts(c, size, 9)[0]
					p.verifyAlone(j)
				}
			}
		})
	}
}

// The lists are all those that are allowed, of radices of at most 20.
func TestEveryRadicesAreAll(t *testing.T) {
	for size := 3; size <= 20; size++ {
		found := map[string]bool{}
		for _, radices := range everyRadices(size) {
			found[fmt.Sprint(radices)] = true
		}
		var try func(radices []int, product int)
		try = func(radices []int, product int) {
			p := Params{Size: size, Radices: radices}
			if p.radicesFit() != found[fmt.Sprint(radices)] {
				t.Errorf("%d ranks in %v: allowed %v", size, radices, p.radicesFit())
			}
			for r := 2; r <= size && product < size; r++ {
				try(append(slices.Clone(radices), r), product*r)
			}
		}
		try(nil, 1)
	}
}
