package membership

import (
	"slices"
	"testing"
)

// Whoever knows of a failure and leaves tells it. Then a rank that comes last knows of it, also
// where its neighbors on both sides have died, and however few know at first.
func TestHearers(t *testing.T) {
	for _, size := range []int{1, 2, 3, 4, 5, 8, 31, 32, 33, 34, 63, 64, 65, 100, 1000, 4096} {
		for _, late := range []int{0, 1 % size, size / 2, size - 1} {
			dead := []int{(late + 1) % size, (late + size - 1) % size}
			first := (late + 2) % size // knows at first
			told := map[int]bool{first: true}
			for next := []int{first}; len(next) > 0; next = next[1:] {
				hearers := Hearers(next[0], size)
				if slices.Contains(hearers, next[0]) || len(hearers) > max(tellsAll-1, 24) {
					t.Fatalf("rank %d of %d tells %v", next[0], size, hearers)
				}
				for _, rank := range hearers {
					if rank < 0 || rank >= size {
						t.Fatalf("rank %d of %d tells %v", next[0], size, hearers)
					}
					if !told[rank] && !slices.Contains(dead, rank) && rank != late {
						next = append(next, rank)
					}
					told[rank] = true
				}
			}
			if !told[late] && size > 3 {
				t.Errorf("of %d ranks %d hears nothing", size, late)
			}
			if size <= tellsAll && len(Hearers(late, size)) != size-1 {
				t.Errorf("rank %d of %d does not tell all", late, size)
			}
		}
	}
}
