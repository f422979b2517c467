package program

import (
	"crypto/sha256"
	"fmt"
	"slices"

	"github.com/goccl/goccl/core/plan"
)

// Facts are what a check has found.
type Facts struct {
	// InPlace and OutOfPlace are in which form the program is right as it is written: in one at
	// least. Plans are right in both.
	InPlace, OutOfPlace bool
	// Canonical tells that all sums have the bits of the canonical order.
	Canonical bool
	// SameBits tells that all ranks get the same bits of a result, whatever the order of sums.
	SameBits bool
	// Partial tells that some sums are not over all ranks.
	Partial bool
	// Reduces tells that there are sums.
	Reduces bool
	// Busiest is how many places of one rank moves name, of the rank that has most.
	Busiest int
}

// Checked is a program that is right. It never changes.
type Checked struct {
	Program
	Facts
	digest [sha256.Size]byte
	runs   []run
	trees  *trees
}

// Digest is that of the program, which is found once.
func (c *Checked) Digest() [sha256.Size]byte { return c.digest }

// Check runs a program's moves in their order, without data. The error says which move is wrong,
// and where.
func Check(p Program) (*Checked, error) {
	if err := p.check(); err != nil {
		return nil, err
	}
	touches := 0
	for i := range p.Moves {
		m := &p.Moves[i]
		if err := p.checkMove(m); err != nil {
			return nil, fmt.Errorf("%s: %w", p.where(i), err)
		}
		touches += m.To[0].Count * (len(m.To) + len(m.From))
		if touches > mostTouches {
			return nil, fmt.Errorf("%s: up to here all moves name more than %d chunks together",
				p.where(i), mostTouches)
		}
	}
	apart := newChecker(&p, false)
	err := apart.check()
	if !p.hasInPlace() {
		if err != nil {
			return nil, err
		}
		return &Checked{p, apart.facts(true, false), p.Digest(), apart.runs, apart.trees}, nil
	}
	same := newChecker(&p, true)
	errInPlace := same.check()
	c := apart
	switch {
	case err == nil:
	case errInPlace == nil:
		c = same
	case same.at > apart.at:
		return nil, errInPlace // it was meant in place
	default:
		return nil, err
	}
	return &Checked{p, c.facts(err == nil, errInPlace == nil), p.Digest(), c.runs, c.trees}, nil
}

// value is what a chunk holds: a sum, or a raw contribution, of a chunk of a block.
type value struct{ tree, block, chunk int32 }

// cell is what a place holds, and the move that has written it; -1: none has.
type cell struct {
	value
	by int32
}

// run is moves of chunks in succession, all of which hold what is alike.
type run struct {
	move     int32   // whose they are
	to, from []int32 // where they begin
	count    int32
	value            // the result of the first chunk
	operands []int32 // of a reduction: the tree of each of from
}

// checker runs a program without data.
type checker struct {
	*Program
	same  bool // input and output are the same memory
	cells []cell
	trees *trees
	at    int // the present move
	runs  []run

	canonical, partial, reduces bool
	to, from                    []int32 // of the present chunk
	operands                    []int32
}

func newChecker(p *Program, same bool) *checker {
	c := &checker{Program: p, same: same, canonical: true, trees: newTrees(p.Ranks)}
	c.cells = make([]cell, p.Ranks*p.each())
	for i := range c.cells {
		c.cells[i].by = -1
	}
	for rank := range p.Ranks {
		for chunk := range p.has(rank, Input) {
			c.cells[c.number(Place{Rank: rank, Chunk: chunk})].value = p.contribution(rank, chunk)
		}
	}
	return c
}

// each is how many chunks a rank has, of all spaces.
func (p *Program) each() int { return p.In + p.Out + p.Scratch }

// number is that of a place's first chunk among all. Inputs that are the same memory as outputs
// have the outputs' numbers.
func (c *checker) number(at Place) int32 {
	base := at.Rank * c.each()
	switch at.Space {
	case Input:
		if c.same || c.Collective == plan.Broadcast {
			if out := c.inPlace(at.Rank, at.Chunk); out >= 0 {
				return int32(base + c.In + out)
			}
		}
		return int32(base + at.Chunk)
	case Output:
		return int32(base + c.In + at.Chunk)
	}
	return int32(base + c.In + c.Out + at.Chunk)
}

// placeOf is the place of a number.
func (p *Program) placeOf(n int32) Place {
	at := Place{Rank: int(n) / p.each(), Chunk: int(n) % p.each(), Count: 1}
	switch {
	case at.Chunk >= p.In+p.Out:
		at.Space, at.Chunk = Scratch, at.Chunk-p.In-p.Out
	case at.Chunk >= p.In:
		at.Space, at.Chunk = Output, at.Chunk-p.In
	}
	return at
}

// contribution is what an input chunk of a rank holds.
func (p *Program) contribution(rank, chunk int) value {
	each := p.inBlock()
	v := value{raw(rank), 0, int32(chunk)}
	switch p.Collective {
	case plan.AllGather, plan.Gather:
		v.block = int32(rank)
	case plan.ReduceScatter, plan.Scatter, plan.AllToAll:
		v.block, v.chunk = int32(chunk/each), int32(chunk%each)
	case plan.Custom:
		v.chunk = 0 // any chunk may go anywhere
	}
	return v
}

// promised is what an output chunk of a rank must hold. Tree 0 stands for the whole sum.
func (p *Program) promised(rank, chunk int) value {
	each := p.inBlock()
	switch p.Collective {
	case plan.Broadcast:
		return value{raw(p.Root), 0, int32(chunk)}
	case plan.AllGather, plan.Gather:
		return value{raw(chunk / each), int32(chunk / each), int32(chunk % each)}
	case plan.ReduceScatter:
		return value{0, int32(rank), int32(chunk)}
	case plan.Scatter:
		return value{raw(p.Root), int32(rank), int32(chunk)}
	case plan.AllToAll:
		return value{raw(chunk / each), int32(rank), int32(chunk % each)}
	}
	return value{0, 0, int32(chunk)}
}

// check runs all moves, and compares what comes of them with what the collective promises.
func (c *checker) check() error {
	for c.at = range c.Moves {
		m := &c.Moves[c.at]
		for i := range m.To[0].Count {
			if err := c.do(m, i); err != nil {
				return fmt.Errorf("%s: %w", c.where(c.at), err)
			}
		}
	}
	c.at = len(c.Moves)
	if c.Collective == plan.Custom {
		return nil
	}
	for rank := range c.Ranks {
		for chunk := range c.has(rank, Output) {
			if err := c.checkOutput(Place{rank, Output, chunk, 1}); err != nil {
				return err
			}
		}
	}
	return nil
}

// do does a move of chunk i of its places.
func (c *checker) do(m *Move, i int) error {
	c.to, c.from, c.operands = c.to[:0], c.from[:0], c.operands[:0]
	chunk := func(at Place) Place { return Place{at.Rank, at.Space, at.Chunk + i, 1} }
	var v value
	for k, from := range m.From {
		n := c.number(chunk(from))
		got := c.cells[n]
		if got.tree == 0 {
			return fmt.Errorf("reads %v, which nothing has written", chunk(from))
		}
		if k == 0 {
			v = got.value
		} else if got.block != v.block || got.chunk != v.chunk {
			return fmt.Errorf("reduces %v, which is of %s, with %v, which is of %s", chunk(m.From[0]),
				c.chunkText(v), chunk(from), c.chunkText(got.value))
		}
		c.from, c.operands = append(c.from, n), append(c.operands, got.tree)
	}
	if len(m.From) > 1 {
		c.reduces = true
		n, err := c.reduce(m, i)
		if err != nil {
			return err
		}
		v.tree = n
	}
	for _, to := range m.To {
		at := chunk(to)
		if to.Space == Input && !c.same && c.Collective != plan.Broadcast {
			return fmt.Errorf("writes %v; an input may be written in place only, where it is output, too",
				at)
		}
		n := c.number(at)
		if len(c.from) == 1 && c.from[0] == n {
			continue // it is there already
		}
		c.cells[n] = cell{v, int32(c.at)}
		c.to = append(c.to, n)
	}
	if len(c.to) > 0 {
		c.add(v)
	}
	return nil
}

// reduce is the tree of a reduction of chunk i.
func (c *checker) reduce(m *Move, i int) (int32, error) {
	if c.Collective == plan.Custom {
		c.canonical = false
		return c.operands[0], nil // it is of any, in the order in which they are given
	}
	n, twice := c.trees.sum(slices.Clone(c.operands))
	if twice >= 0 {
		at := m.To[0]
		return 0, fmt.Errorf("gives the contribution of rank %d twice to %v", twice,
			Place{at.Rank, at.Space, at.Chunk + i, 1})
	}
	c.canonical = c.canonical && c.trees.all[n].canonical
	c.partial = c.partial || c.trees.isPartial(n)
	return n, nil
}

// add notes what was done, as a part of the run before it if that goes on.
func (c *checker) add(v value) {
	var operands []int32
	if len(c.from) > 1 {
		operands = c.operands
	}
	if n := len(c.runs); n > 0 {
		last := &c.runs[n-1]
		if last.move == int32(c.at) && goesOn(last.to, c.to, last.count) &&
			goesOn(last.from, c.from, last.count) && c.alike(last, v, operands) {
			last.count++
			return
		}
	}
	c.runs = append(c.runs, run{int32(c.at), slices.Clone(c.to), slices.Clone(c.from), 1, v,
		slices.Clone(operands)})
}

// goesOn reports whether places go on where others end that begin so many chunks before.
func goesOn(places, next []int32, count int32) bool {
	if len(places) != len(next) {
		return false
	}
	for i := range places {
		if places[i]+count != next[i] {
			return false
		}
	}
	return true
}

// alike reports whether a value and its operands go on with those of a run.
func (c *checker) alike(r *run, v value, operands []int32) bool {
	if c.Collective == plan.Custom {
		return len(r.operands) == len(operands)
	}
	return r.tree == v.tree && r.block == v.block && r.chunk+r.count == v.chunk &&
		slices.Equal(r.operands, operands)
}

// checkOutput refuses an output chunk that is not what the collective promises.
func (c *checker) checkOutput(at Place) error {
	want, got := c.promised(at.Rank, at.Chunk), c.cells[c.number(at)]
	whole := want.tree == 0
	if whole {
		want.tree = got.tree
	}
	if got.tree != 0 && got.value == want && (!whole || c.trees.isWhole(got.tree)) {
		return nil
	}
	holds, by := "nothing", ""
	if got.tree != 0 {
		holds = c.text(got.value)
	}
	if got.by >= 0 {
		by = fmt.Sprintf(" (written by %s)", c.where(int(got.by)))
	}
	must := fmt.Sprintf("the sum over all ranks of %s", c.chunkText(want))
	if !whole {
		must = c.text(want)
	}
	return fmt.Errorf("at the end %v holds %s%s; it must hold %s", at, holds, by, must)
}

func (c *checker) text(v value) string {
	of := "to"
	if c.trees.isSum(v.tree) {
		of = "of"
	}
	return fmt.Sprintf("%s %s %s", c.trees.text(v.tree), of, c.chunkText(v))
}

func (c *checker) chunkText(v value) string {
	switch c.Collective {
	case plan.AllReduce, plan.Reduce, plan.Broadcast, plan.Custom:
		return fmt.Sprintf("chunk %d", v.chunk)
	}
	return fmt.Sprintf("chunk %d of block %d", v.chunk, v.block)
}

// busiest is Facts.Busiest.
func (c *checker) busiest() int {
	named := make([]int, c.Ranks)
	for i := range c.runs {
		for _, n := range slices.Concat(c.runs[i].to, c.runs[i].from) {
			named[int(n)/c.each()]++
		}
	}
	return slices.Max(named)
}

// facts are what the run has found.
func (c *checker) facts(apart, same bool) Facts {
	f := Facts{InPlace: same, OutOfPlace: apart, Canonical: c.canonical, SameBits: true,
		Partial: c.partial, Reduces: c.reduces, Busiest: c.busiest()}
	if c.Collective != plan.AllReduce {
		return f // no two ranks have the same result
	}
	for chunk := range c.Out {
		first := c.cells[c.number(Place{Space: Output, Chunk: chunk})]
		for rank := range c.Ranks {
			at := c.cells[c.number(Place{Rank: rank, Space: Output, Chunk: chunk})]
			f.SameBits = f.SameBits && at.tree == first.tree
		}
	}
	return f
}
