package membership

import "slices"

// tellsAll is the size of a group up to which each rank tells all others.
const tellsAll = 32

// Hearers returns the ranks that a rank tells of a failure before it leaves, unless they have a
// connection and have been told. In a large group they are those at distances of powers of two.
// Then each rank hears from several, and two ranks are few steps apart.
func Hearers(rank, size int) (hearers []int) {
	for step := 1; step < size; {
		hearers = append(hearers, (rank+step)%size, (rank+size-step)%size)
		if size <= tellsAll {
			step++
		} else {
			step *= 2
		}
	}
	slices.Sort(hearers)
	return slices.Compact(hearers)
}
