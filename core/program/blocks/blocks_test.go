package blocks_test

import (
	"strings"
	"testing"

	"github.com/goccl/goccl/core/plan"
	"github.com/goccl/goccl/core/program"
	"github.com/goccl/goccl/core/program/blocks"
)

func at(rank int, space program.Space, chunk, count int) []blocks.Ref {
	return []blocks.Ref{{Place: program.Place{Rank: rank, Space: space, Chunk: chunk, Count: count}}}
}

// alone is a plan of one rank, whose block does the same op again and again.
func alone(chunks, blocksOf, times int, op blocks.Op) *blocks.Plan {
	p := &blocks.Plan{Name: "x", Collective: plan.Custom, Ranks: 1, In: chunks, Out: chunks}
	for i := range blocksOf {
		b := blocks.Block{ID: i}
		for k := range times {
			op.Name, op.Number = "copy", k
			b.Ops = append(b.Ops, op)
		}
		p.Blocks = append(p.Blocks, b)
	}
	return p
}

// What would take for ever, or much memory, is refused at once.
func TestTooMuch(t *testing.T) {
	copies := blocks.Op{Transfers: []blocks.Transfer{{To: at(0, program.Output, 0, 1<<16),
		From: at(0, program.Input, 0, 1<<16)}}}
	part := copies
	part.Parts = 61
	deep := blocks.Op{Body: []blocks.Op{{}, {}}, Unit: 1, Chunks: 1}
	shallow := blocks.Op{Body: []blocks.Op{{}, {}}, Unit: 1 << 30, Chunks: 1}
	two := alone(1, 1, 1, deep)
	two.Blocks[0].Ops = append(two.Blocks[0].Ops, shallow)
	many := alone(1, 1, 1, part)
	many.Blocks[0].Ops = append(many.Blocks[0].Ops, blocks.Op{Parts: 59})
	empty := func(ranks, chunks int) *blocks.Plan {
		return &blocks.Plan{Collective: plan.AllReduce, Ranks: ranks, In: chunks, Out: chunks}
	}
	reads := alone(1<<10, 1500, 1, blocks.Op{Transfers: []blocks.Transfer{{
		To: at(0, blocks.Mail, 0, 1<<10), From: at(0, program.Input, 0, 1<<10)}}})
	reads.Mail = 1 << 10
	for name, c := range map[string]struct {
		*blocks.Plan
		want string
	}{
		"places":  {empty(4096, 1<<16), "too many"},
		"chunks":  {empty(1, 1<<17), "at most 65536"},
		"touches": {alone(1<<16, 1, 1000, copies), "op 31 (copy): up to here ops name more than"},
		"steps":   {alone(1, 2000, 100, blocks.Op{}), "200000 steps of 2000 blocks on 1 ranks are"},
		"reads":   {reads, "there is too much to be checked"},
		"parts":   {many, "op 0 (copy): "},
		"units":   {two, "have no common size"},
	} {
		if _, err := blocks.Convert(c.Plan); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A deadlock is told with what each waits for.
func TestDeadlock(t *testing.T) {
	p := &blocks.Plan{Name: "x", Collective: plan.Custom, Ranks: 2, In: 1, Out: 1,
		Counters: []blocks.Counter{{Name: "a"}, {Name: "b"}}}
	for rank := range 2 {
		p.Blocks = append(p.Blocks, blocks.Block{Rank: rank, Ops: []blocks.Op{
			{Name: "wait", Number: 0, Takes: []int{rank}},
			{Name: "signal", Number: 1, Posts: []int{1 - rank}},
		}})
	}
	_, err := blocks.Convert(p)
	want := "rank 0, block 0, op 0 (wait): waits for ever in run 1 of the plan: for a"
	if err == nil || err.Error() != want {
		t.Errorf("%v, not %s", err, want)
	}
	// Two blocks that wait for one counter may take each other's signals.
	p.Blocks[1].Ops[0].Takes[0], p.Blocks[1].Ops[1].Posts[0] = 0, 0
	p.Blocks[0].Ops[1].Posts[0] = 0
	_, err = blocks.Convert(p)
	if err == nil || !strings.Contains(err.Error(), "as block 0 of rank 0 does, too: one block only") {
		t.Error(err)
	}
}

// A relaxed signal tells that a rank has begun, but not what it has written.
func TestRelaxed(t *testing.T) {
	for _, relaxed := range []bool{false, true} {
		p := &blocks.Plan{Name: "x", Collective: plan.Custom, Ranks: 2, In: 1, Out: 1, Scratch: 1,
			Counters: []blocks.Counter{{Name: "there"}, {Name: "back"}}}
		p.Blocks = []blocks.Block{
			{Rank: 0, Ops: []blocks.Op{
				{Name: "copy", Transfers: []blocks.Transfer{{To: at(0, program.Scratch, 0, 1),
					From: at(0, program.Input, 0, 1)}}},
				{Name: "signal", Number: 1, Posts: []int{0}, Relaxed: relaxed},
				{Name: "wait", Number: 2, Takes: []int{1}},
			}},
			{Rank: 1, Ops: []blocks.Op{
				{Name: "wait", Takes: []int{0}, Relaxed: relaxed},
				{Name: "get", Number: 1, Transfers: []blocks.Transfer{{To: at(1, program.Output, 0, 1),
					From: at(0, program.Scratch, 0, 1)}}},
				{Name: "signal", Number: 2, Posts: []int{1}},
			}},
		}
		_, err := blocks.Convert(p)
		if relaxed != (err != nil) || err != nil && !strings.Contains(err.Error(),
			"rank 1, block 0, op 1 (get): reads scratch chunk 0 of rank 0, which rank 0, block 0, op 0") {
			t.Errorf("relaxed %v: %v", relaxed, err)
		}
	}
}

// Where two blocks count up, the first of two waits does not tell which of them has.
func TestTwoSignals(t *testing.T) {
	copies := func(number int, to, from program.Space, chunk int) blocks.Op {
		return blocks.Op{Name: "copy", Number: number, Transfers: []blocks.Transfer{{
			To: at(0, to, chunk, 1), From: at(0, from, chunk, 1)}}}
	}
	wait := blocks.Op{Name: "wait", Takes: []int{0}}
	for name, c := range map[string]struct {
		initial int
		ops     []blocks.Op
		want    string
	}{
		"both": {0, []blocks.Op{wait, wait, copies(2, program.Output, program.Scratch, 0),
			copies(3, program.Output, program.Scratch, 1)}, ""},
		"one": {0, []blocks.Op{wait, copies(1, program.Output, program.Scratch, 0), wait,
			copies(3, program.Output, program.Scratch, 1)},
			"block 2, op 1 (copy): reads scratch chunk 0 of rank 0, which rank 0, block 0, op 0 (copy)"},
		// One of them is of the start.
		"start": {1, []blocks.Op{wait, wait, copies(2, program.Output, program.Scratch, 0),
			copies(3, program.Output, program.Scratch, 1)}, "block 2, op 2 (copy): reads scratch chunk 0"},
	} {
		p := &blocks.Plan{Name: "x", Collective: plan.Custom, Ranks: 1, In: 2, Out: 2, Scratch: 2,
			Counters: []blocks.Counter{{Name: "it", Initial: c.initial}}}
		for i := range 2 {
			p.Blocks = append(p.Blocks, blocks.Block{ID: i, Ops: []blocks.Op{
				copies(0, program.Scratch, program.Input, i), {Name: "signal", Number: 1, Posts: []int{0}},
			}})
		}
		p.Blocks = append(p.Blocks, blocks.Block{ID: 2, Ops: c.ops})
		_, err := blocks.Convert(p)
		if (c.want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, not %s", name, err, c.want)
		}
	}
}
