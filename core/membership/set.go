package membership

import (
	"math/bits"

	"github.com/goccl/goccl/core/internal/untrusted"
)

// Set is a set of an epoch's ranks: a bit a rank.
type Set []byte

// NewSet makes a set of ranks below size.
func NewSet(size int, ranks ...int) Set {
	s := make(Set, (size+7)/8)
	for _, r := range ranks {
		s.add(r)
	}
	return s
}

// Has reports whether a rank is in the set.
func (s Set) Has(rank int) bool { return s[rank/8]>>(rank%8)&1 != 0 }

// Ranks are those in the set, in order.
func (s Set) Ranks() (ranks []int) {
	for i, b := range s {
		for ; b != 0; b &= b - 1 {
			ranks = append(ranks, 8*i+bits.TrailingZeros8(b))
		}
	}
	return ranks
}

func (s Set) add(rank int) { s[rank/8] |= 1 << (rank % 8) }

func (s Set) count() (n int) {
	for _, b := range s {
		n += bits.OnesCount8(b)
	}
	return n
}

// within reports whether t has all of the set.
func (s Set) within(t Set) bool {
	for i, b := range s {
		if b&^t[i] != 0 {
			return false
		}
	}
	return true
}

// both are the ranks that are in the two sets.
func (s Set) both(t Set) Set {
	u := make(Set, len(s))
	for i, b := range s {
		u[i] = b & t[i]
	}
	return u
}

// without are the ranks of the set that t has not.
func (s Set) without(t Set) Set {
	u := make(Set, len(s))
	for i, b := range s {
		u[i] = b &^ t[i]
	}
	return u
}

// merge adds the ranks of t, and reports whether one is new.
func (s Set) merge(t Set) (grown bool) {
	grown = !t.within(s)
	for i, b := range t {
		s[i] |= b
	}
	return grown
}

// decodeSet reads a set of ranks below size.
func decodeSet(r *untrusted.Reader, size int) Set {
	s := NewSet(size)
	r.Fixed(s)
	if size%8 != 0 && s[len(s)-1]>>(size%8) != 0 {
		r.Fail()
	}
	return s
}
