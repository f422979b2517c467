// Package blocks runs plans of other libraries without data: blocks of all ranks that run at once,
// and wait for each other by signals, semaphores, barriers and packets.
//
// [Convert] refuses a plan in which an order of the blocks gives something else than the
// collective promises. Of one that is right it takes the data that moves, in one order that its
// waits allow. As no two blocks race, that order computes what all others do. So it is a
// [program.Program], which needs no waits.
package blocks

import (
	"fmt"

	"github.com/goccl/goccl/core/plan"
	"github.com/goccl/goccl/core/program"
)

// Mail is, beside the spaces of programs, memory of the receiver for messages of a queue. Nothing
// reads or writes it but the two ends of the queue, each in turn.
const Mail = program.Scratch + 1

// Plan is what blocks do on all ranks.
type Plan struct {
	Name       string
	Collective plan.Collective
	// Exchange tells, of Custom, that each output must be one of the inputs.
	Exchange         bool
	Ranks            int
	In, Out, Scratch int // chunks of a rank
	Mail             int
	// InPlace tells that input and output are the same memory.
	InPlace bool
	// Double tells that runs use two halves of scratch memory by turns.
	Double             bool
	MinBytes, MaxBytes int64
	Counters           []Counter
	Blocks             []Block
}

// Counter is what one block waits for and others count up: a channel in one direction, or a
// semaphore. After a run it must be what it was before.
type Counter struct {
	Name    string // as errors call it
	Initial int
}

// Block does its ops in their order.
type Block struct {
	Rank, ID int
	Ops      []Op
}

// Op is what a block does at once: it waits for other ops, takes from counters, moves data and adds
// to counters, in this order.
type Op struct {
	Name      string
	Number    int
	After     []Point
	Takes     []int // counters
	Transfers []Transfer
	Posts     []int // counters
	// Relaxed tells that taking and posting orders no memory.
	Relaxed bool
	// Barrier is the number of a barrier of the rank, for Blocks blocks; Blocks 0: it is none.
	Barrier, Blocks int
	// Part is of which part of each place the block takes care, if Parts > 1 blocks share them.
	Part, Parts int
	// Body is done in rounds, as often as Unit bytes go into Chunks chunks. A round is Unit bytes of
	// each place.
	Body         []Op
	Unit, Chunks int
}

// Point is an op of a block of the same rank, by their indexes.
type Point struct{ Block, Op int }

// Transfer copies From to each of To. If it is several, it reduces them.
type Transfer struct{ To, From []Ref }

// Ref is chunks of a rank's memory.
type Ref struct {
	program.Place
	// Packet tells that they carry a flag: who reads them waits for what is written in this run.
	// Packets lie in scratch memory, and need twice as much.
	Packet bool
	// Ready tells that packets are read without waiting for them.
	Ready bool
}

func (r Ref) String() string {
	at := r.Place
	if r.Space == Mail {
		return fmt.Sprintf("a message of rank %d", r.Rank)
	}
	if r.Packet {
		return fmt.Sprintf("packets of %v", at)
	}
	return at.String()
}

// Limits.
const (
	mostRounds = 64
	mostParts  = 64
	// mostClocks is how many clocks all steps of a run may have together.
	mostClocks = 1 << 25
	// mostTouches is how many places they may name together. A step counts as stepTouches more.
	mostTouches = 1 << 22
	stepTouches = 8
	// mostWork is how many clocks and accesses all runs may look at, for all cuts together. An access
	// of a place counts as accessWork.
	mostWork   = 1 << 28
	accessWork = 8
	// mostCells is how many places all ranks may have together.
	mostCells = 1 << 21
	runs      = 3
)

// Convert makes a program of a plan, in which sums have the order of the plan. It refuses what is
// wrong, by rank, block and op.
func Convert(p *Plan) (program.Program, error) {
	if err := p.check(); err != nil {
		return program.Program{}, err
	}
	cuts, err := p.cuts()
	if err != nil {
		return program.Program{}, err
	}
	var made *program.Checked
	work := 0
	for i, c := range cuts {
		r, err := newRunner(p, c, &work)
		if err == nil {
			err = r.run()
		}
		var checked *program.Checked
		if err == nil {
			if checked, err = r.program(); err != nil && c.cells > 1 {
				err = fmt.Errorf("%w; each chunk counts as %d", err, c.cells)
			}
		}
		if err != nil {
			return program.Program{}, c.explain(err)
		}
		if i == 0 {
			made = checked
		}
	}
	return made.Joined(), nil
}

// check refuses places that are not there, or do not fit each other.
func (p *Plan) check() error {
	for _, n := range []struct {
		what      string
		got, most int
	}{{"ranks", p.Ranks, program.MostRanks}, {"input chunks", p.In, program.MostChunks},
		{"output chunks", p.Out, program.MostChunks}, {"scratch chunks", p.Scratch, program.MostChunks},
		{"blocks", len(p.Blocks), program.MostChunks}, {"channels and semaphores", len(p.Counters),
			program.MostMoves}} {
		if n.got < 0 || n.got > n.most {
			return fmt.Errorf("there are %d %s; at most %d are allowed", n.got, n.what, n.most)
		}
	}
	if p.Ranks == 0 || p.In+p.Out == 0 {
		return fmt.Errorf("there are %d ranks, %d input and %d output chunks", p.Ranks, p.In, p.Out)
	}
	if err := p.checkForm(); err != nil {
		return err
	}
	used := uses{make([]string, p.Scratch), make([]bool, p.Scratch)}
	for i := range p.Blocks {
		b := &p.Blocks[i]
		for k := range b.Ops {
			if err := p.checkOp(b, &b.Ops[k], &used); err != nil {
				return fmt.Errorf("%s: %w", b.where(&b.Ops[k]), err)
			}
		}
	}
	// Packets are twice as long, so they lie elsewhere than their numbers say.
	for c, where := range used.data {
		if where != "" && used.packets[c/2] {
			return fmt.Errorf("%s: uses scratch chunk %d for data, and others use chunk %d for packets, "+
				"which overlap", where, c, c/2)
		}
	}
	return nil
}

// uses are for what the chunks of scratch memory are used: for data, by which op, and for packets.
type uses struct {
	data    []string
	packets []bool
}

// checkForm refuses numbers of chunks that are not those of the collective.
func (p *Plan) checkForm() error {
	n := p.Ranks
	ok := true
	switch p.Collective {
	case plan.AllGather:
		ok = p.Out == n*p.In
	case plan.ReduceScatter:
		ok = p.In == n*p.Out
	case plan.AllToAll:
		ok = p.In == p.Out && p.In%n == 0
	case plan.AllReduce:
		ok = p.In == p.Out
	case plan.Custom:
		ok = !p.InPlace || p.In == p.Out
	default:
		return fmt.Errorf("plans of %v are not read", p.Collective)
	}
	if !ok {
		return fmt.Errorf("%v among %d ranks has %d input chunks and %d output chunks, which do not fit",
			p.Collective, n, p.In, p.Out)
	}
	return nil
}

// where is how errors call an op.
func (b *Block) where(op *Op) string {
	return fmt.Sprintf("rank %d, block %d, op %d (%s)", b.Rank, b.ID, op.Number, op.Name)
}

func (p *Plan) checkOp(b *Block, op *Op, used *uses) error {
	if op.Parts > 1 && (op.Part < 0 || op.Part >= op.Parts || op.Parts > mostParts) {
		return fmt.Errorf("block %d of a group of %d; there may be %d, counted from 0", op.Part, op.Parts,
			mostParts)
	}
	for _, t := range op.Transfers {
		if len(t.To) == 0 || len(t.From) == 0 {
			return fmt.Errorf("has %d destinations and %d sources; it must have 1 or more of each",
				len(t.To), len(t.From))
		}
		all := append(append([]Ref(nil), t.To...), t.From...)
		for i, ref := range all {
			if err := p.checkRef(ref); err != nil {
				return err
			}
			if ref.Count != all[0].Count {
				return fmt.Errorf("%v has %d chunks, and %v has %d; all must have as many", all[0],
					all[0].Count, ref, ref.Count)
			}
			// Where two places are written, or one is read and one written, they must not overlap.
			for k, other := range all[:min(i, len(t.To))] {
				if p.overlap(ref, other) && (i < len(t.To) || p.first(ref) != p.first(other)) {
					return fmt.Errorf("%v and %v overlap, of which it writes %v", other, ref, all[k])
				}
			}
			for c := range ref.Count {
				switch at := ref.Chunk + c; {
				case ref.Packet:
					used.packets[at] = true
				case ref.Space == program.Scratch && used.data[at] == "":
					used.data[at] = b.where(op)
				}
			}
		}
	}
	for i := range op.Body {
		in := &op.Body[i]
		if len(in.Body) > 0 || in.Blocks > 0 {
			return fmt.Errorf("a pipeline has %s in it, which is not allowed", in.Name)
		}
		if err := p.checkOp(b, in, used); err != nil {
			return fmt.Errorf("op %d of it (%s): %w", in.Number, in.Name, err)
		}
		for _, t := range in.Transfers {
			for _, ref := range append(append([]Ref(nil), t.To...), t.From...) {
				if ref.Packet {
					return fmt.Errorf("op %d of it (%s) has packets, which are not allowed in a pipeline",
						in.Number, in.Name)
				}
			}
		}
	}
	if len(op.Body) > 0 && (op.Unit < 1 || op.Chunks < 0 || op.Chunks > program.MostChunks) {
		return fmt.Errorf("a pipeline of %d chunks in units of %d bytes; there may be up to %d chunks, "+
			"in units of 1 byte or more", op.Chunks, op.Unit, program.MostChunks)
	}
	return nil
}

func (p *Plan) checkRef(ref Ref) error {
	if ref.Rank < 0 || ref.Rank >= p.Ranks {
		return fmt.Errorf("there is no rank %d; there are ranks 0 to %d", ref.Rank, p.Ranks-1)
	}
	has := [...]int{p.In, p.Out, p.Scratch, p.Mail}[ref.Space]
	if ref.Count < 1 || ref.Chunk < 0 || ref.Chunk > has-ref.Count {
		return fmt.Errorf("%v: there are %d chunks, counted from 0", ref, has)
	}
	if ref.Packet && ref.Space != program.Scratch {
		return fmt.Errorf("%v: packets must lie in scratch memory", ref)
	}
	return nil
}

// overlap reports whether two places have memory in common.
func (p *Plan) overlap(a, b Ref) bool {
	i, k := p.first(a), p.first(b)
	return a.Rank == b.Rank && a.Packet == b.Packet && i < k+b.Count && k < i+a.Count
}

// first is the number of a place's first chunk among those of its rank, where what is the same
// memory has the same number.
func (p *Plan) first(r Ref) int {
	user := max(p.In, p.Out)
	switch {
	case r.Space == Mail:
		return user + p.In + p.Out + p.Scratch + r.Chunk
	case r.Space == program.Scratch:
		return user + p.In + p.Out + r.Chunk
	case !p.InPlace && r.Space == program.Output:
		return p.In + r.Chunk
	case !p.InPlace:
		return r.Chunk
	case p.Collective == plan.AllGather && r.Space == program.Input:
		return r.Rank*p.In + r.Chunk
	case p.Collective == plan.ReduceScatter && r.Space == program.Output:
		return r.Rank*p.Out + r.Chunk
	}
	return r.Chunk
}

// cut is into how many places a chunk is cut, and how many of them a round of a pipeline has, by
// its unit.
type cut struct {
	cells int
	parts int // of how many of them a unit of `unit` bytes is made
	unit  int
	chunk string // what errors say of it
}

// round is how many places a round of an op has.
func (c *cut) round(op *Op) int { return op.Unit / c.unit * c.parts }

// explain tells of which cut an error is.
func (c *cut) explain(err error) error {
	if c.chunk == "" {
		return err
	}
	return fmt.Errorf("%w (%s)", err, c.chunk)
}

// cuts are those for which a plan must be right: chunks of which parts are equally long, or not,
// and pipelines of 1 to mostRounds rounds. The first one is what a program is made of.
func (p *Plan) cuts() ([]cut, error) {
	parts, unit, chunks := 1, 0, 1
	var visit func(ops []Op)
	visit = func(ops []Op) {
		for i := range ops {
			op := &ops[i]
			if op.Parts > 1 && parts <= mostParts {
				parts = parts / gcd(parts, op.Parts) * op.Parts
			}
			if len(op.Body) > 0 {
				unit, chunks = gcd(unit, op.Unit), max(chunks, op.Chunks)
				visit(op.Body)
			}
		}
	}
	for i := range p.Blocks {
		visit(p.Blocks[i].Ops)
	}
	if parts > mostParts {
		return nil, fmt.Errorf("groups of blocks have no common size of %d or less", mostParts)
	}
	if unit > 0 {
		return p.rounds(parts, unit, chunks), nil
	}
	all := []cut{{cells: parts, unit: 1}}
	for _, n := range []int{1, parts / 4, parts / 2, parts - parts/4, parts - 1} {
		if n > 0 && parts > 1 && all[len(all)-1].cells != parts+n {
			all = append(all, cut{cells: parts + n, unit: 1})
		}
	}
	for i := range all[1:] {
		all[i+1].chunk = fmt.Sprintf("where a chunk is %d units of 16 bytes", all[i+1].cells)
	}
	return all, nil
}

// rounds are the cuts for pipelines.
func (p *Plan) rounds(parts, unit, chunks int) []cut {
	var all []cut
	for n := 1; ; n++ {
		c := cut{cells: n * parts, parts: chunks * parts, unit: unit}
		most := 0
		for i := range p.Blocks {
			for k := range p.Blocks[i].Ops {
				if op := &p.Blocks[i].Ops[k]; len(op.Body) > 0 {
					most = max(most, c.count(op))
				}
			}
		}
		if most > mostRounds || n > mostRounds*4 {
			return all
		}
		if n > 1 {
			c.chunk = fmt.Sprintf("where a pipeline has %d rounds", most)
		}
		all = append(all, c)
		if most == 0 {
			return all
		}
	}
}

// count is how many rounds an op has.
func (c *cut) count(op *Op) int {
	return (op.Chunks*c.cells + c.round(op) - 1) / c.round(op)
}

func gcd(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}
