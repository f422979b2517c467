package program

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/goccl/goccl/core/plan"
)

// randomProgram is sound moves of a random collective: first any, then those that its promise still
// asks for.
func randomProgram(rnd *rand.Rand) Program {
	of := []plan.Collective{plan.AllReduce, plan.Reduce, plan.Broadcast, plan.AllGather,
		plan.ReduceScatter, plan.Gather, plan.Scatter, plan.AllToAll, plan.Custom}
	p := Program{Name: "random", Collective: of[rnd.IntN(len(of))], Ranks: 2 + rnd.IntN(4),
		In: 1, Out: 1, Scratch: rnd.IntN(4)}
	if p.Collective.Rooted() {
		p.Root = rnd.IntN(p.Ranks)
	}
	chunks := 1 + rnd.IntN(3)
	p.In, p.Out = chunks*p.Blocks(Input), chunks*p.Blocks(Output)
	c := newChecker(&p, false)
	for range rnd.IntN(25) {
		c.at = len(p.Moves)
		m, ok := c.randomMove(rnd)
		if !ok {
			continue
		}
		p.Moves = append(p.Moves, m)
		for i := range m.To[0].Count {
			if err := c.do(&p.Moves[c.at], i); err != nil {
				panic(err)
			}
		}
	}
	if p.Collective == plan.Custom {
		return p
	}
	for rank := range p.Ranks {
		for chunk := range p.has(rank, Output) {
			if c.checkOutput(at(rank, Output, chunk, 1)) != nil {
				p.Moves = append(p.Moves, p.promise(rank, chunk))
			}
		}
	}
	return p
}

// promise is the move that does what is promised of an output.
func (p *Program) promise(rank, chunk int) Move {
	m := Move{To: []Place{at(rank, Output, chunk, 1)}}
	want := p.promised(rank, chunk)
	for r := range p.Ranks {
		for in := range p.has(r, Input) {
			got := p.contribution(r, in)
			if got.block == want.block && got.chunk == want.chunk &&
				(want.tree == 0 || want.tree == got.tree) {
				m.From = append(m.From, at(r, Input, in, 1))
			}
		}
	}
	return m
}

func (c *checker) randomPlace(rnd *rand.Rand, written bool) (Place, bool) {
	for range 20 {
		at := at(rnd.IntN(c.Ranks), Space(rnd.IntN(3)), 0, 1)
		has := c.has(at.Rank, at.Space)
		if has == 0 || at.Space == Input && !written {
			continue
		}
		at.Chunk = rnd.IntN(has)
		root := c.Collective == plan.Broadcast && at.Rank == c.Root && at.Space == Output
		if !written && !root || written && c.cells[c.number(at)].tree != 0 {
			return at, true
		}
	}
	return Place{}, false
}

// randomMove is one that is sound, if it is any.
func (c *checker) randomMove(rnd *rand.Rand) (m Move, ok bool) {
	to, ok1 := c.randomPlace(rnd, false)
	from, ok2 := c.randomPlace(rnd, true)
	if !ok1 || !ok2 {
		return m, false
	}
	m = Move{To: []Place{to}, From: []Place{from}}
	if more, ok := c.randomPlace(rnd, false); ok && rnd.IntN(3) == 0 && more != to {
		m.To = append(m.To, more)
	}
	for range rnd.IntN(12) {
		more, ok := c.randomPlace(rnd, true)
		first := c.cells[c.number(from)]
		if !ok || !c.Collective.Reduces() && c.Collective != plan.Custom {
			break
		}
		got := c.cells[c.number(more)]
		if got.block != first.block || got.chunk != first.chunk {
			continue
		}
		if c.Collective != plan.Custom {
			operands := []int32{got.tree}
			for _, at := range m.From {
				operands = append(operands, c.cells[c.number(at)].tree)
			}
			if _, twice := c.trees.sum(operands); twice >= 0 {
				continue
			}
		}
		m.From = append(m.From, more)
	}
	if count := 1 + rnd.IntN(3); count > 1 { // several chunks, if that is sound, too
		long := Move{slices.Clone(m.To), slices.Clone(m.From), ""}
		for _, places := range [][]Place{long.To, long.From} {
			for i := range places {
				places[i].Count = count
			}
		}
		if c.isSound(&long) {
			return long, true
		}
	}
	return m, c.isSound(&m)
}

// isSound reports whether a move may come next.
func (c *checker) isSound(m *Move) bool {
	if c.checkMove(m) != nil {
		return false
	}
	trial := *c
	trial.cells, trial.runs = slices.Clone(c.cells), nil
	for i := range m.To[0].Count {
		if trial.do(m, i) != nil {
			return false
		}
	}
	return true
}

// randomJob is a program with random sizes.
func randomJob(rnd *rand.Rand, c *Checked) *job {
	j := &job{Program: c.Program, chunk: []int64{128, 256, 4096}[rnd.IntN(3)], slots: 2 + rnd.IntN(3),
		ahead: 1 + rnd.IntN(2), anyOrder: !c.Canonical, scratch: 1 << 30}
	for range []int{1, 1, 3}[rnd.IntN(3)] {
		j.elements = append(j.elements, []int64{0, 1, 15, 64, 200, 1000}[rnd.IntN(6)])
	}
	if c.Collective.Reduces() {
		j.partial = []int64{0, 4, 8}[rnd.IntN(3)]
	}
	return j
}

func TestRandomPrograms(t *testing.T) {
	for seed := range uint64(400) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		c, err := Check(randomProgram(rnd))
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		for range 2 {
			j := randomJob(rnd, c)
			if err := j.prove(c, rnd); err != nil {
				t.Fatalf("seed %d: %v: %v\n%s", seed, j, err, c.Text())
			}
		}
	}
}

// changed is a program with one change of its moves.
func changed(rnd *rand.Rand, p Program) Program {
	p.Moves = slices.Clone(p.Moves)
	i, k := rnd.IntN(len(p.Moves)), rnd.IntN(len(p.Moves))
	switch rnd.IntN(4) {
	case 0: // one less
		p.Moves = slices.Delete(p.Moves, i, i+1)
	case 1: // one twice
		p.Moves = slices.Insert(p.Moves, k, p.Moves[i])
	case 2: // two change places
		p.Moves[i], p.Moves[k] = p.Moves[k], p.Moves[i]
	default: // a place is another
		m := &p.Moves[i]
		m.To, m.From = slices.Clone(m.To), slices.Clone(m.From)
		places := [][]Place{m.To, m.From}[rnd.IntN(2)]
		at := &places[rnd.IntN(len(places))]
		switch rnd.IntN(3) {
		case 0:
			at.Rank += 1 - 2*rnd.IntN(2)
		case 1:
			at.Chunk += 1 - 2*rnd.IntN(2)
		default:
			at.Space = Space(rnd.IntN(3))
		}
	}
	return p
}

// TestChanges changes programs at random: what Check does not refuse is right.
func TestChanges(t *testing.T) {
	for name, make := range written {
		t.Run(name, func(t *testing.T) {
			refused, all := 0, 30
			for seed := range uint64(all) {
				rnd := rand.New(rand.NewPCG(seed, 2))
				p := make(3+rnd.IntN(2), 1+rnd.IntN(2))
				c, err := Check(changed(rnd, p))
				if err != nil {
					refused++
					continue
				}
				j := randomJob(rnd, c)
				if err := j.prove(c, rnd); err != nil {
					t.Fatalf("seed %d: %v: %v\n%s", seed, j, err, c.Text())
				}
			}
			if refused == 0 || refused == all {
				t.Errorf("%d of %d are refused", refused, all)
			}
		})
	}
}
