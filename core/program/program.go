// Package program holds users' collectives: programs.
//
// A program is a collective as moves of all ranks in one order. A [Move] copies chunks of one place
// to others, or reduces those of several places; a [Place] is some chunks of a rank's input, of its
// output or of its scratch memory. The order is what moves mean: each sees what those before it
// have written. A program has no messages, no waits and no slots. They are found when it is
// planned.
//
// [Check] runs the moves without data and says what comes of them, or which one is wrong. What it
// has checked has a plan for each rank: see [Planner.Plan].
//
// # Chunks
//
// Data is cut into chunks. A block of AllReduce, Reduce or Broadcast is In chunks, and Out as many.
// Of AllGather and Gather the input is In chunks, and the output as many of each rank, in their
// order; of ReduceScatter and Scatter the output is Out chunks, and the input as many for each
// rank; of AllToAll both are as many of or for each rank. Of Custom both are what the program says.
//
// Chunks of a block are equally long but for the last ones: a multiple of 64 bytes, and as short as
// so many can be. So chunks in succession are bytes in succession, wherever they lie. Those of a
// Custom collective are all equally long.
//
// # In place
//
// A program is right out of place if it writes no input. It is right in place if it is where input
// and output are the same memory. A plan is right either way, if its program is right in one: see
// [Facts].
//
// # Sums
//
// A move reduces its operands in the order of their ranks, wherever it names them. Where all moves
// of a program reduce raw inputs of all ranks at once, or of subtrees of the canonical order, its
// results have the bits of that order. Others have an order of their own, and need that
// Program.AnyOrder allows it, or a kind of sum that has the same bits in any.
package program

import (
	"fmt"

	"github.com/goccl/goccl/core/plan"
)

// Limits of programs.
const (
	MostRanks  = 4096
	MostChunks = 1 << 16 // of each of a rank's input, output and scratch memory
	MostMoves  = 1_000_000
	// MostBusy is the most places of one rank that moves may name in a program that runs: its plans
	// take seconds then.
	MostBusy = 1 << 15
	MostName = 64
	mostLine = 256
	// mostPlaces is how many chunks all ranks may have together.
	mostPlaces = 1 << 24
	// mostTouches is how many chunks all moves may name together.
	mostTouches = 1 << 26
)

// Space is which memory of a rank a place lies in.
type Space uint8

// The spaces.
const (
	Input Space = iota
	Output
	Scratch
)

var spaceNames = [...]string{"input", "output", "scratch"}

func (s Space) String() string {
	if int(s) < len(spaceNames) {
		return spaceNames[s]
	}
	return fmt.Sprintf("space(%d)", uint8(s))
}

// Place is Count chunks of a rank's memory, from Chunk on.
type Place struct {
	Rank         int
	Space        Space
	Chunk, Count int
}

func (p Place) String() string {
	if p.Count == 1 {
		return fmt.Sprintf("%v chunk %d of rank %d", p.Space, p.Chunk, p.Rank)
	}
	return fmt.Sprintf("%v chunks %d to %d of rank %d", p.Space, p.Chunk, p.Chunk+p.Count-1, p.Rank)
}

// Move copies From, if that is one place, to each of To. If it is several, it reduces them: the
// rank of To[0] does, and the result goes to each of To.
type Move struct {
	To, From []Place
	Line     string // where a user has written it, as "ring.py:12"; "": not known
}

// Program is a collective as moves.
type Program struct {
	Name       string
	Collective plan.Collective // one with data, or Custom
	Ranks      int
	Root       int // of rooted collectives, else 0
	// In, Out and Scratch are how many chunks a rank has: see the package's comment. They are the same
	// on all ranks, though of a rooted collective only the root has an input, or an output.
	In, Out, Scratch int
	// AnyOrder allows sums in an order of the program's own, whose bits are not those of other
	// algorithms.
	AnyOrder bool
	// MinBytes and MaxBytes are for which lengths of a rank's larger buffer the program is meant, both
	// inclusive; MaxBytes 0: no limit.
	MinBytes, MaxBytes int64
	PerHost            int // for how many ranks on each host it is meant; 0: any
	Moves              []Move
}

// hasData reports whether programs may be of a collective.
func hasData(c plan.Collective) bool { return c <= plan.AllToAll || c == plan.Custom }

// Blocks is how many blocks the inputs, or the outputs, of a rank are. All have as many chunks.
func (p *Program) Blocks(s Space) int {
	switch p.Collective {
	case plan.AllGather, plan.Gather:
		if s == Output {
			return p.Ranks
		}
	case plan.ReduceScatter, plan.Scatter:
		if s == Input {
			return p.Ranks
		}
	case plan.AllToAll:
		return p.Ranks
	}
	return 1
}

// inBlock is how many chunks a block has.
func (p *Program) inBlock() int {
	if p.Collective == plan.ReduceScatter || p.Collective == plan.Scatter {
		return p.Out
	}
	return p.In / p.Blocks(Input)
}

// has is how many chunks a rank has of a space.
func (p *Program) has(rank int, s Space) int {
	root := rank == p.Root
	switch c := p.Collective; {
	case s == Scratch:
		return p.Scratch
	case s == Input && (root || c != plan.Broadcast && c != plan.Scatter):
		return p.In
	case s == Output && (root || c != plan.Reduce && c != plan.Gather):
		return p.Out
	}
	return 0
}

// inPlace is the output chunk that is the same memory as an input chunk, if a collective is in
// place; -1: there is none.
func (p *Program) inPlace(rank, chunk int) int {
	each, root := p.inBlock(), rank == p.Root
	switch c := p.Collective; {
	case c == plan.AllReduce, root && (c == plan.Reduce || c == plan.Broadcast):
		return chunk
	case c == plan.AllGather, root && c == plan.Gather:
		return rank*each + chunk
	case (c == plan.ReduceScatter || root && c == plan.Scatter) && chunk/each == rank:
		return chunk % each
	}
	return -1
}

// hasInPlace reports whether a collective has a form in place, in which input and output may be
// given as one, or not. A broadcast has no other.
func (p *Program) hasInPlace() bool {
	return p.Collective != plan.AllToAll && p.Collective != plan.Custom &&
		p.Collective != plan.Broadcast
}

// check refuses what no move could mend.
func (p *Program) check() error {
	if !hasData(p.Collective) {
		return fmt.Errorf("collective is %v; it must be one that carries data, or custom", p.Collective)
	}
	if len(p.Name) > MostName || !printable(p.Name) {
		return fmt.Errorf("name is %q; it must be at most %d printable ASCII characters", p.Name,
			MostName)
	}
	for _, n := range []struct {
		what             string
		got, least, most int
	}{
		{"ranks", p.Ranks, 1, MostRanks},
		{"root", p.Root, 0, p.lastRoot()},
		{"chunks.in", p.In, 0, MostChunks},
		{"chunks.out", p.Out, 0, MostChunks},
		{"chunks.scratch", p.Scratch, 0, MostChunks},
		{"per_host", p.PerHost, 0, p.Ranks},
		{"the number of moves", len(p.Moves), 0, MostMoves},
	} {
		if n.got < n.least || n.got > n.most {
			return fmt.Errorf("%s is %d; it must be in %d..%d", n.what, n.got, n.least, n.most)
		}
	}
	if p.MinBytes < 0 || p.MaxBytes < 0 || p.MaxBytes > 0 && p.MinBytes > p.MaxBytes {
		return fmt.Errorf("bytes are %d to %d; the least must be 0 or more, and the most no less",
			p.MinBytes, p.MaxBytes)
	}
	if err := p.checkChunks(); err != nil {
		return err
	}
	if all := p.Ranks * (p.In + p.Out + p.Scratch); all > mostPlaces {
		return fmt.Errorf("all ranks have %d chunks together; %d are allowed", all, mostPlaces)
	}
	return nil
}

// lastRoot is the highest root that there may be.
func (p *Program) lastRoot() int {
	if p.Collective.Rooted() {
		return p.Ranks - 1
	}
	return 0
}

// checkChunks refuses numbers of chunks that are not those of the collective.
func (p *Program) checkChunks() error {
	in, out := p.Blocks(Input), p.Blocks(Output)
	switch {
	case p.Collective == plan.Custom && p.In+p.Out > 0:
	case p.In < 1 || p.In%in != 0 || p.Out%out != 0 || p.In/in != p.Out/out:
		return fmt.Errorf("chunks.in is %d and chunks.out %d; %v among %d ranks has %d blocks of input "+
			"and %d of output, which must all have the same number of chunks, 1 or more", p.In, p.Out,
			p.Collective, p.Ranks, in, out)
	}
	return nil
}

// printable reports whether a text has nothing but printable ASCII characters.
func printable(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}

// where is how errors call a move.
func (p *Program) where(move int) string {
	if line := p.Moves[move].Line; line != "" {
		return line
	}
	return fmt.Sprintf("move %d", move)
}

// checkMove refuses a move whose places are not there, or do not fit each other.
func (p *Program) checkMove(m *Move) error {
	if len(m.To) == 0 || len(m.From) == 0 {
		return fmt.Errorf("has %d destinations and %d sources; it must have 1 or more of each",
			len(m.To), len(m.From))
	}
	if len(m.Line) > mostLine || !printable(m.Line) {
		return fmt.Errorf("line is %q; it must be at most %d printable ASCII characters", m.Line,
			mostLine)
	}
	for _, places := range [][]Place{m.To, m.From} {
		for _, at := range places {
			if err := p.checkPlace(at); err != nil {
				return err
			}
			if at.Count != m.To[0].Count {
				return fmt.Errorf("%v has %d chunks, and %v has %d; all must have as many", at, at.Count,
					m.To[0], m.To[0].Count)
			}
		}
	}
	for i, to := range m.To {
		for _, other := range m.To[:i] {
			if to.overlaps(other) {
				return fmt.Errorf("writes %v and %v, which overlap", other, to)
			}
		}
		for _, from := range m.From {
			if to.overlaps(from) && to != from {
				return fmt.Errorf("reads %v and writes %v, which overlap", from, to)
			}
		}
	}
	if len(m.From) > 1 && !p.Collective.Reduces() && p.Collective != plan.Custom {
		return fmt.Errorf("reduces %d places; %v reduces nothing", len(m.From), p.Collective)
	}
	return nil
}

func (p *Program) checkPlace(at Place) error {
	if at.Rank < 0 || at.Rank >= p.Ranks {
		return fmt.Errorf("there is no rank %d; there are ranks 0 to %d", at.Rank, p.Ranks-1)
	}
	if at.Space > Scratch {
		return fmt.Errorf("there is no %v", at.Space)
	}
	has := p.has(at.Rank, at.Space)
	if has == 0 {
		return fmt.Errorf("rank %d has no %v", at.Rank, at.Space)
	}
	if at.Count < 1 || at.Chunk < 0 || at.Chunk > has-at.Count {
		return fmt.Errorf("%v: there are %d chunks, counted from 0", at, has)
	}
	return nil
}

func (p Place) overlaps(q Place) bool {
	return p.Rank == q.Rank && p.Space == q.Space && p.Chunk < q.Chunk+q.Count &&
		q.Chunk < p.Chunk+p.Count
}
