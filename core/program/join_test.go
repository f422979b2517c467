package program

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/goccl/goccl/core/plan"
)

// finely is a program with each chunk cut into some, and each move into as many, in any order.
func finely(rnd *rand.Rand, p Program, parts int) Program {
	moves := p.Moves
	p.In, p.Out, p.Scratch, p.Moves = p.In*parts, p.Out*parts, p.Scratch*parts+1, nil
	for _, m := range moves {
		for _, i := range rnd.Perm(m.To[0].Count * parts) {
			part := Move{To: slices.Clone(m.To), From: slices.Clone(m.From)}
			for _, places := range [][]Place{part.To, part.From} {
				for k := range places {
					places[k].Chunk, places[k].Count = places[k].Chunk*parts+i, 1
				}
			}
			p.Moves = append(p.Moves, part)
		}
	}
	return p
}

// TestJoined joins moves that were cut, and come in any order. They do the same, with no more moves
// and chunks.
func TestJoined(t *testing.T) {
	for seed := range uint64(150) {
		rnd := rand.New(rand.NewPCG(seed, 5))
		p := randomProgram(rnd)
		c, err := Check(finely(rnd, p, 1+rnd.IntN(3)))
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		joined, err := Check(c.Joined())
		if err != nil {
			t.Fatalf("seed %d: %v\n%s", seed, err, c.Text())
		}
		if joined.Busiest > c.Busiest {
			t.Fatalf("seed %d: a rank is named %d times, before %d", seed, joined.Busiest, c.Busiest)
		}
		if joined.Busiest = c.Busiest; joined.Facts != c.Facts && p.Collective != plan.Custom {
			t.Fatalf("seed %d: %+v, not %+v", seed, joined.Facts, c.Facts)
		}
		if joined.Scratch > c.Scratch || joined.In > c.In || len(joined.Moves) > len(c.runs) {
			t.Fatalf("seed %d: %d moves, %d chunks", seed, len(joined.Moves), joined.In)
		}
		j := randomJob(rnd, joined)
		if err := j.prove(joined, rnd); err != nil {
			t.Fatalf("seed %d: %v: %v\n%s", seed, j, err, joined.Text())
		}
	}
}
