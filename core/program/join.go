package program

import "github.com/goccl/goccl/core/plan"

// Joined is the program with moves joined that go on with each other, chunks as long as they can
// be, and no scratch memory that nothing uses. It does the same.
func (c *Checked) Joined() Program {
	p := c.Program
	p.Moves = nil
	for _, r := range c.coalesce(MostChunks) {
		m := Move{To: c.places(r.to, int(r.count)), From: c.places(r.from, int(r.count)),
			Line: c.Moves[r.move].Line}
		p.Moves = append(p.Moves, m)
	}
	unit := p.inBlock()
	if p.Collective == plan.Custom {
		unit = gcd(p.In, p.Out)
	}
	all := func(f func(at *Place)) {
		for i := range p.Moves {
			for _, places := range [][]Place{p.Moves[i].To, p.Moves[i].From} {
				for k := range places {
					f(&places[k])
				}
			}
		}
	}
	all(func(at *Place) { unit = gcd(unit, gcd(at.Chunk, at.Count)) })
	if unit > 1 {
		p.In, p.Out, p.Scratch = p.In/unit, p.Out/unit, (p.Scratch+unit-1)/unit
		all(func(at *Place) { at.Chunk, at.Count = at.Chunk/unit, at.Count/unit })
	}
	used := make([]int, p.Scratch+1)
	all(func(at *Place) {
		for i := range at.Count {
			if at.Space == Scratch {
				used[at.Chunk+i] = 1
			}
		}
	})
	n := 0
	for i, is := range used {
		used[i] = n
		n += is
	}
	p.Scratch = n
	all(func(at *Place) {
		if at.Space == Scratch {
			at.Chunk = used[at.Chunk]
		}
	})
	return p
}

// places are those that begin at some numbers.
func (p *Program) places(numbers []int32, count int) []Place {
	all := make([]Place, len(numbers))
	for i, n := range numbers {
		all[i] = p.placeOf(n)
		all[i].Count = count
	}
	return all
}

func gcd[T int | int64](a, b T) T {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}
