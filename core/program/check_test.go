package program

import (
	"strings"
	"testing"

	"github.com/goccl/goccl/core/plan"
)

// TestCheckTells refuses what is wrong, and says where and what.
func TestCheckTells(t *testing.T) {
	line := func(p Program) Program {
		p.Moves[len(p.Moves)-1].Line = "x.py:7"
		return p
	}
	with := func(p Program, to, from Place) Program {
		p.copy(to, from)
		return line(p)
	}
	broken := func(change func(p *Program)) Program {
		p := twoShot(3, 1)
		change(&p)
		return p
	}
	last := func(p *Program) *Move { return &p.Moves[len(p.Moves)-1] }
	for _, c := range []struct {
		p    Program
		want string
	}{
		{with(twoShot(3, 1), at(3, Output, 0, 1), at(0, Input, 0, 1)),
			"x.py:7: there is no rank 3; there are ranks 0 to 2"},
		{with(twoShot(3, 1), at(1, Output, 3, 1), at(0, Input, 0, 1)),
			"x.py:7: output chunk 3 of rank 1: there are 3 chunks, counted from 0"},
		{with(twoShot(3, 1), at(1, Output, 2, 2), at(0, Input, 0, 2)),
			"output chunks 2 to 3 of rank 1: there are 3 chunks"},
		{with(twoShot(3, 1), at(1, Output, 2, 1), at(0, Input, 0, 2)), "all must have as many"},
		{with(twoShot(3, 1), at(1, Scratch, 0, 2), at(1, Scratch, 1, 2)), "which overlap"},
		{with(twoShot(3, 1), at(1, Scratch, 0, 1), at(0, Scratch, 0, 1)),
			"reads scratch chunk 0 of rank 0, which nothing has written"},
		{with(directAllToAll(3, 1), at(1, Input, 0, 1), at(0, Input, 0, 1)),
			"writes input chunk 0 of rank 1; an input may be written in place only"},
		{with(flatScatter(3, 1), at(1, Output, 0, 1), at(0, Input, 0, 1)), "rank 0 has no input"},
		{with(flatGather(3, 1), at(0, Output, 0, 1), at(0, Input, 0, 1)), "rank 0 has no output"},
		{with(twoShot(3, 1), at(1, Output, 0, 1), at(0, Input, 1, 1)),
			"at the end output chunk 0 of rank 1 holds the contribution of rank 0 to chunk 1 " +
				"(written by x.py:7); it must hold the sum over all ranks of chunk 0"},
		{broken(func(p *Program) { p.Moves = p.Moves[:len(p.Moves)-1] }),
			"at the end output chunk 2 of rank 0 holds nothing; it must hold the sum over all ranks"},
		{broken(func(p *Program) { last(p).From = append(last(p).From, at(0, Input, 2, 1)) }),
			"move 8: gives the contribution of rank 0 twice to output chunk 2 of rank 2"},
		{broken(func(p *Program) { last(p).From = last(p).From[1:] }),
			"holds the sum over ranks 1 to 2 of chunk 2 (written by move 8)"},
		{broken(func(p *Program) { last(p).From[1] = at(1, Input, 1, 1) }),
			"reduces scratch chunk 0 of rank 2, which is of chunk 2, with input chunk 1 of rank 1, " +
				"which is of chunk 1"},
		{broken(func(p *Program) { last(p).From = nil }), "has 3 destinations and 0 sources"},
		{broken(func(p *Program) { last(p).To = append(last(p).To, last(p).To[0]) }), "which overlap"},
		{broken(func(p *Program) { p.In = 4 }), "chunks.in is 4 and chunks.out 3; allreduce"},
		{broken(func(p *Program) { p.Collective = plan.AllToAll }), "move 6: reduces 3 places"},
		{broken(func(p *Program) { p.Collective = plan.Barrier }), "collective is barrier"},
		{broken(func(p *Program) { p.Ranks = MostRanks + 1 }), "ranks is 4097; it must be in 1..4096"},
		{broken(func(p *Program) { p.Root = 1 }), "root is 1; it must be in 0..0"},
		{broken(func(p *Program) { p.Name = strings.Repeat("x", 65) }), "name is"},
		{broken(func(p *Program) { p.Moves[0].Line = "\n" }), "line is"},
		{broken(func(p *Program) { p.MinBytes, p.MaxBytes = 2, 1 }), "bytes are 2 to 1"},
		{broken(func(p *Program) { p.Ranks, p.Scratch = 4096, MostChunks }), "chunks together"},
	} {
		if _, err := Check(c.p); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("want an error with %q, got %v", c.want, err)
		}
	}
}

func TestFacts(t *testing.T) {
	for _, c := range []struct {
		p    Program
		want Facts
	}{
		{twoShot(4, 1), Facts{InPlace: true, OutOfPlace: true, Canonical: true, SameBits: true,
			Reduces: true}},
		{oneShot(4, 1), Facts{OutOfPlace: true, Canonical: true, SameBits: true, Reduces: true}},
		{twoShotInPlace(4, 1), Facts{InPlace: true, OutOfPlace: true, Canonical: true, SameBits: true,
			Reduces: true}},
		{inPlaceAllGather(4, 1), Facts{InPlace: true, Canonical: true, SameBits: true}},
		{directAllToAll(4, 1), Facts{OutOfPlace: true, Canonical: true, SameBits: true}},
		{hierarchical(5, 1), Facts{InPlace: true, OutOfPlace: true, Canonical: true, SameBits: true,
			Partial: true, Reduces: true}},
		{ringAllReduce(5, 1), Facts{InPlace: true, OutOfPlace: true, SameBits: true, Partial: true,
			Reduces: true}},
	} {
		got, err := Check(c.p)
		if err != nil {
			t.Fatal(err)
		}
		if got.Busiest == 0 {
			t.Errorf("%s: no rank is busy", c.p.Name)
		}
		if got.Busiest = 0; got.Facts != c.want {
			t.Errorf("%s: %+v, want %+v", c.p.Name, got.Facts, c.want)
		}
	}
}

// TestPlanRefuses gives parameters that do not fit the program.
func TestPlanRefuses(t *testing.T) {
	for _, c := range []struct {
		p      Program
		change func(q *plan.Params)
		want   string
	}{
		{twoShot(3, 1), func(q *plan.Params) { q.Collective = plan.Reduce },
			"is of allreduce, not of reduce"},
		{twoShot(3, 1), func(q *plan.Params) { q.Size = 4 }, "is for 3 ranks, not for 4"},
		{flatGather(3, 1), func(q *plan.Params) { q.Root = 0 }, "has root 1, not 0"},
		{ringAllReduce(4, 1), func(q *plan.Params) { q.AnyOrder = false }, "an order of its own"},
		{twoShot(3, 1), func(q *plan.Params) { q.Scratch = 64 }, "bytes of scratch memory; 64 are"},
		{twoShot(3, 1), func(q *plan.Params) { q.Slots = 1 }, "slots is 1"},
		{directAllToAll(2, 1), func(q *plan.Params) {
			q.InBytes, q.OutBytes = []int64{4, 8}, []int64{4, 8}
		}, "all equally long"},
		{halo(3, 1), func(q *plan.Params) { q.InBytes = []int64{404} }, "which are equally long"},
	} {
		checked, err := Check(c.p)
		if err != nil {
			t.Fatal(err)
		}
		j := job{Program: c.p, elements: []int64{100}, chunk: 1024, slots: 3, anyOrder: true,
			scratch: 1 << 20}
		q := j.rank(0)
		c.change(&q)
		if _, err := checked.Planner().Plan(q); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("want an error with %q, got %v", c.want, err)
		}
	}
}
