package blocks

import (
	"errors"
	"fmt"
	"slices"

	"github.com/goccl/goccl/core/plan"
	"github.com/goccl/goccl/core/program"
)

// memory is that of all ranks: a rank's inputs and outputs, both halves of its scratch memory, of
// data and of packets, and its mail.
type memory struct {
	all                   []cell
	each                  int // cells of a rank
	user, scratch, half   int // how many of a rank are for the user, and of what there are two
	data, packets, mailed int // where these begin
	usesPackets           bool
}

// cell is a place, or what a rank has in it.
type cell struct {
	last   access // that has written it; block -1: none has
	run    int32  // in which run; -1: in none, or for the user
	unread int32  // of packets: reads of them that are to come
	reads  []access
	told   *clocks // of packets: by whom they are
	readBy int32   // of packets: how many steps read it in a run
}

// access is a step that reads or writes.
type access struct{ block, clock, step int32 }

// lay lays out the memory.
func (r *runner) lay() error {
	m := &r.memory
	for i := range r.Plan.Blocks {
		for _, op := range r.Plan.Blocks[i].Ops {
			for _, t := range op.Transfers {
				for _, ref := range slices.Concat(t.To, t.From) {
					m.usesPackets = m.usesPackets || ref.Packet
				}
			}
		}
	}
	m.user = r.In + r.Out
	if r.InPlace {
		m.user = max(r.In, r.Out)
	}
	m.user, m.scratch = m.user*r.cells, r.Scratch*r.cells
	m.data = m.user
	m.packets, m.half = m.data+m.scratch, m.scratch
	if m.usesPackets {
		m.half *= 2
	}
	m.mailed = m.data + 2*m.half
	m.each = m.mailed + r.Mail*r.cells
	if m.each > mostCells/r.Plan.Ranks {
		return fmt.Errorf("%d ranks with %d chunks each, in %d parts, are too many to be checked",
			r.Plan.Ranks, r.In+r.Out+r.Scratch+r.Mail, r.cells)
	}
	m.all = make([]cell, m.each*r.Plan.Ranks)
	for i := range m.all {
		m.all[i].last.block, m.all[i].run = -1, -1
	}
	return nil
}

// number is that of the first cell of a place, in the first half of scratch memory.
func (r *runner) number(ref *Ref) int {
	base := ref.Rank * r.each
	switch {
	case ref.Space == Mail:
		return base + r.mailed + ref.Chunk*r.cells
	case ref.Packet:
		return base + r.packets + ref.Chunk*r.cells
	case ref.Space == program.Scratch:
		return base + r.data + ref.Chunk*r.cells
	}
	return base + r.first(*ref)*r.cells
}

// expectReads counts how many steps read each packet in a run.
func (r *runner) expectReads() {
	for i := range r.blocks {
		for k := range r.blocks[i].steps {
			for _, m := range r.blocks[i].steps[k].moves {
				for _, from := range m.from {
					for n := range from.count {
						if from.ref.Packet {
							r.all[from.first+n].readBy++
						}
					}
				}
			}
		}
	}
}

// at is a cell of a span in a run.
func (r *runner) at(s span, i int32, run int) *cell {
	n := int(s.first + i)
	if s.ref.Space == program.Scratch && r.Double && run%2 == 1 {
		n += r.half
	}
	return &r.all[n]
}

// hasCome reports whether packets have been written in the run of a block.
func (r *runner) hasCome(b *block, s span) bool {
	for i := range s.count {
		*r.work++
		if r.at(s, i, b.run).run != int32(b.run) {
			return false
		}
	}
	return true
}

// where is how errors call the step of an access.
func (r *runner) whereOf(a access) string {
	b := &r.blocks[a.block]
	return b.where(b.steps[a.step].op)
}

// text is how errors call a cell of a span.
func (r *runner) text(s span, i int32) string {
	ref := *s.ref
	off := int(s.first+i) - r.number(s.ref)
	ref.Chunk, ref.Count = ref.Chunk+off/r.cells, 1
	return ref.String()
}

// move does a transfer, cell by cell.
func (r *runner) move(b *block, s *step, m *move, told *clocks) error {
	if r.Exchange && len(m.from) > 1 {
		return errors.New("reduces, which an exchange does not")
	}
	from, to := make([]program.Place, len(m.from)), make([]program.Place, len(m.to))
	line := ""
	if b.run == 0 {
		line = b.where(s.op)
	}
	for i := range m.to[0].count {
		for k, at := range m.from {
			written, err := r.read(b, at, i)
			if err != nil {
				return err
			}
			from[k] = r.placeOf(at, i, written)
		}
		for k, at := range m.to {
			if err := r.write(b, at, i, told); err != nil {
				return err
			}
			to[k] = r.placeOf(at, i, true)
		}
		if b.run == 0 {
			r.emit(to, from, line, i > 0)
		}
	}
	return nil
}

// access is the present one of a block.
func (b *block) access() access {
	return access{int32(b.index), b.clocks.seen[b.index], int32(b.next)}
}

// sees reports whether a clock has an access.
func sees(c clock, a access) bool { return a.block < 0 || c[a.block] >= a.clock }

// owned refuses an access of another rank's input or output while it is its user's.
func (r *runner) owned(b *block, s span, i int32, does string) error {
	rank := int(s.rank)
	switch {
	case s.ref.Space > program.Output || rank == b.Rank:
	case r.ranks[rank].run > b.run:
		return fmt.Errorf("%s %s, when rank %d may have ended its run: nothing has it wait", does,
			r.text(s, i), rank)
	case int(b.clocks.known[len(r.blocks)+rank]) <= b.run:
		return fmt.Errorf("%s %s, when rank %d may not have begun its run: nothing tells that it has",
			does, r.text(s, i), rank)
	}
	return nil
}

// read notes that a block reads a cell, and reports whether it has been written in the run.
func (r *runner) read(b *block, s span, i int32) (written bool, err error) {
	if err := r.owned(b, s, i, "reads"); err != nil {
		return false, err
	}
	c := r.at(s, i, b.run)
	written = c.run == int32(b.run)
	if s.ref.Space == Mail {
		return written, nil
	}
	clock := b.clocks.seen
	if s.ref.Packet {
		clock = b.clocks.known
		c.unread--
	}
	if written || s.ref.Space <= program.Output {
		if !sees(clock, c.last) {
			return false, fmt.Errorf("reads %s, which %s writes, and nothing says which is first",
				r.text(s, i), r.whereOf(c.last))
		}
	}
	if !written && (s.ref.Space == program.Scratch || r.inputOf(s, i) < 0) {
		return false, fmt.Errorf("reads %s, which nothing has written in this run", r.text(s, i))
	}
	*r.work += len(c.reads)
	c.reads = slices.DeleteFunc(c.reads, func(a access) bool { return int(a.block) == b.index })
	c.reads = append(c.reads, b.access())
	return written, nil
}

// write notes that a block writes a cell.
func (r *runner) write(b *block, s span, i int32, told *clocks) error {
	if err := r.owned(b, s, i, "writes"); err != nil {
		return err
	}
	if s.ref.Space == program.Input && !r.InPlace {
		return fmt.Errorf("writes %s; an input may be written in place only", r.text(s, i))
	}
	c := r.at(s, i, b.run)
	if s.ref.Space == Mail {
		c.run = int32(b.run)
		return nil
	}
	clock := b.clocks.seen
	if s.ref.Packet {
		clock = b.clocks.known
		switch {
		case c.run == int32(b.run):
			return fmt.Errorf("writes %s, which %s writes in the same run", r.text(s, i), r.whereOf(c.last))
		case c.run >= 0 && c.unread > 0:
			return fmt.Errorf("writes %s, before what the last run has written there has been read",
				r.text(s, i))
		}
		c.unread, c.told = r.at(s, i, 0).readBy, told
	} else if !sees(clock, c.last) {
		return fmt.Errorf("writes %s, which %s writes, too, and nothing says which is first",
			r.text(s, i), r.whereOf(c.last))
	}
	for _, a := range c.reads {
		if !sees(clock, a) {
			return fmt.Errorf("writes %s, which %s reads, and nothing says which is first", r.text(s, i),
				r.whereOf(a))
		}
	}
	c.last, c.run, c.reads = b.access(), int32(b.run), c.reads[:0]
	return nil
}

// giveBack gives a rank's input and output back to its user, at the end of a run.
func (r *runner) giveBack(rank int, known clock) error {
	for n := range r.user {
		c := &r.all[rank*r.each+n]
		for _, a := range append(c.reads, c.last) {
			if !sees(known, a) {
				does := "reads"
				if a == c.last {
					does = "writes"
				}
				return fmt.Errorf("%s: %s input or output of rank %d, and nothing has that wait for it before "+
					"its run ends", r.whereOf(a), does, rank)
			}
		}
		if r.ranks[rank].run == 0 {
			if err := r.checkOutput(rank, n, c.run == 0); err != nil {
				return err
			}
		}
		c.reads, c.run, c.last.block = c.reads[:0], -1, -1
	}
	return nil
}

// checkOutput refuses an output that is not written. In place it may be an input.
func (r *runner) checkOutput(rank, n int, written bool) error {
	out := r.outputCell(rank, n)
	if out < 0 || written {
		return nil
	}
	at := program.Place{Rank: rank, Space: program.Output, Chunk: out, Count: 1}
	in := r.inputCell(rank, n)
	if !r.InPlace || in < 0 {
		if r.Collective == plan.Custom && !r.Exchange {
			return nil
		}
		at.Chunk /= r.cells
		return fmt.Errorf("at the end nothing has written %v", at)
	}
	r.emit([]program.Place{at}, []program.Place{{Rank: rank, Chunk: in, Count: 1}}, "", true)
	return nil
}

// inputCell is the number of a user's cell among the inputs of its rank; -1: it is none.
func (r *runner) inputCell(rank, n int) int {
	in, first := r.In*r.cells, 0
	if r.InPlace && r.Collective == plan.AllGather {
		first = rank * in
	}
	if n < first || n >= first+in {
		return -1
	}
	return n - first
}

// outputCell is that among the outputs.
func (r *runner) outputCell(rank, n int) int {
	out, first := r.Out*r.cells, 0
	switch {
	case !r.InPlace:
		first = r.In * r.cells
	case r.Collective == plan.ReduceScatter:
		first = rank * out
	}
	if n < first || n >= first+out {
		return -1
	}
	return n - first
}

func (r *runner) inputOf(s span, i int32) int {
	return r.inputCell(int(s.rank), int(s.first+i)-int(s.rank)*r.each)
}

// placeOf is where a cell lies in the program. What is written in place does not overwrite the
// input there, but lies in the output, or in scratch memory.
func (r *runner) placeOf(s span, i int32, written bool) program.Place {
	rank := int(s.rank)
	n := int(s.first+i) - rank*r.each
	at := program.Place{Rank: rank, Space: program.Scratch, Count: 1}
	switch out := r.outputCell(rank, n); {
	case n >= r.mailed:
		at.Chunk = n - r.mailed + r.half + r.shadows()
	case n >= r.user:
		at.Chunk = n - r.user
	case !written:
		at.Space, at.Chunk = program.Input, r.inputCell(rank, n)
	case out >= 0:
		at.Space, at.Chunk = program.Output, out
	default:
		at.Chunk = r.half + r.inputCell(rank, n)
	}
	return at
}

// shadows is how much scratch memory is for what is written to inputs.
func (r *runner) shadows() int {
	if r.InPlace && r.Collective == plan.ReduceScatter {
		return r.In * r.cells
	}
	return 0
}

// emit adds a move of one chunk each, as a part of the one before it if that may go on and does.
func (r *runner) emit(to, from []program.Place, line string, may bool) {
	if n := len(r.moves); n > 0 && may {
		last := &r.moves[n-1]
		if last.Line == line && goesOn(last.To, to) && goesOn(last.From, from) {
			for _, places := range [][]program.Place{last.To, last.From} {
				for k := range places {
					places[k].Count++
				}
			}
			return
		}
	}
	r.moves = append(r.moves, program.Move{To: slices.Clone(to), From: slices.Clone(from), Line: line})
}

// goesOn reports whether places go on where others end.
func goesOn(places, next []program.Place) bool {
	if len(places) != len(next) {
		return false
	}
	for i, at := range places {
		if at.Rank != next[i].Rank || at.Space != next[i].Space || at.Chunk+at.Count != next[i].Chunk {
			return false
		}
	}
	return true
}

// program is what has been moved in the first run.
func (r *runner) program() (*program.Checked, error) {
	c, err := program.Check(program.Program{Name: r.Name, Collective: r.Collective,
		Ranks: r.Plan.Ranks, In: r.In * r.cells, Out: r.Out * r.cells,
		Scratch: r.half + r.shadows() + r.Mail*r.cells, MinBytes: r.MinBytes, MaxBytes: r.MaxBytes,
		Moves: r.moves})
	if err == nil && !c.OutOfPlace {
		err = errors.New("outputs are not what the collective promises")
	}
	return c, err
}
