package plan

import (
	"math/rand/v2"
	"testing"
)

// Uses are those of a table with an entry for each byte and rank.
func TestUses(t *testing.T) {
	const bytes, ranks = 24, 4
	rnd := rand.New(rand.NewPCG(3, 4))
	for range 2000 {
		var m uses
		var read, written [bytes][ranks]bool
		for range 12 {
			off, rank, writes := rnd.Int64N(bytes), rnd.Int32N(ranks), rnd.IntN(4) == 0
			end := min(bytes, off+1+rnd.Int64N(8))
			clash := false
			for b := off; b < end; b++ {
				for r := range ranks {
					clash = clash || r != int(rank) && (written[b][r] || writes && read[b][r])
				}
			}
			other := m.add(off, end, rank, writes)
			if clash != (other != nobody) || other == rank {
				t.Fatalf("bytes %d to %d, rank %d, writes %v: %d in %v", off, end, rank, writes, other, m)
			}
			if clash {
				continue
			}
			for b := off; b < end; b++ {
				read[b][rank] = read[b][rank] || !writes
				written[b][rank] = written[b][rank] || writes
			}
			for i := range m {
				if m[i].off >= m[i].end || i > 0 && m[i-1].end > m[i].off {
					t.Fatalf("not in order: %v", m)
				}
			}
		}
	}
}
