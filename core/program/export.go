package program

import (
	"errors"
	"fmt"
	"math"
	"math/bits"

	"github.com/goccl/goccl/core/plan"
)

// Limits of a collective that is exported.
const (
	mostExported = 1 << 22 // chunks that its moves may write together
	mostSteps    = 1 << 20 // of the plans of all ranks
)

// wholeMessage is as long as no message is.
const wholeMessage = 1 << 50

// Export makes a program of a collective that package plan builds, of parameters of any rank: with
// an algorithm that Build has, and blocks that are all equally long. It is right for all lengths,
// and goes as the plans of this one do.
//
// The plans are built for blocks that are cut evenly, each message whole. They run without data: a
// message is scratch memory of the rank that gets it. Copies that nobody needs are left out after.
func Export(name string, q plan.Params) (*Checked, error) {
	fail := func(err error) (*Checked, error) {
		return nil, fmt.Errorf("%v by %v among %d ranks: %w", q.Collective, q.Algorithm, q.Size, err)
	}
	if !hasData(q.Collective) || q.Collective == plan.Custom {
		return fail(errors.New("cannot be a program, which moves data"))
	}
	if q.Size > MostRanks {
		return fail(fmt.Errorf("a program has at most %d ranks", MostRanks))
	}
	var best *exporter
	for _, cuts := range evenCuts(&q) {
		x, err := newExporter(q, cuts)
		if err != nil {
			return fail(err)
		}
		if best == nil || x.chunks < best.chunks {
			best = x
		}
	}
	p, err := best.program(name)
	if err != nil {
		return fail(err)
	}
	c, err := Check(p)
	if err == nil && !(c.OutOfPlace && c.Canonical) {
		err = errors.New("sums have another order")
	}
	if err != nil {
		return fail(fmt.Errorf("a fault of GoCCL: %w", err))
	}
	return c, nil
}

// evenCuts are into how many parts a block may have to be cut so that all cuts are even. The first
// ones are tried only to find whether fewer do.
func evenCuts(q *plan.Params) []int64 {
	n, product := int64(q.Size), int64(1)
	for _, radix := range q.Radices {
		product *= int64(radix)
	}
	common := n / gcd(n, product) * product
	return []int64{1, product, n, common, n * product}
}

// exporter runs the plans of a collective without data.
type exporter struct {
	Program
	plans  []*plan.Plan
	slots  int
	unit   int64 // bytes of a chunk
	chunks int64 // of a block

	spaces  [2]int32 // how many chunks a rank has of its inputs, and of its outputs
	owners  []int32  // of each chunk of scratch memory that follows those: its rank
	scratch []int32  // of each rank: where that of its plan begins
	rings   map[[2]int]*exportRing
	exposed map[[2]int][2]int32 // by owner and peer: the blocks of inputs and outputs it exposes
	written int
	moves   []strip
}

// exportRing is the messages of a rank to another.
type exportRing struct {
	places []int32 // where each of them lies, or what it offers
}

// strip is a move of so many chunks: each place is the number of its first chunk.
type strip struct {
	to, from []int32
	count    int32
	order    int32 // in which its rank does it among others that need nothing of each other
}

// newExporter builds the plans of all ranks for blocks that so many cuts divide.
func newExporter(q plan.Params, cuts int64) (*exporter, error) {
	real, even := int64(1), cuts*align
	for _, blocks := range [][]int64{q.InBytes, q.OutBytes} {
		for _, n := range blocks {
			real = max(real, n)
		}
	}
	even *= (real + even - 1) / even
	q.PartialSize, q.ElemSize, q.Chunk, q.Long = 0, align, wholeMessage, 0
	q.Thresholds = scaled(q.Thresholds, real, even)
	x := &exporter{plans: make([]*plan.Plan, q.Size), slots: q.Slots, unit: even,
		rings: map[[2]int]*exportRing{}, exposed: map[[2]int][2]int32{},
		Program: Program{Collective: q.Collective, Ranks: q.Size}}
	if q.Collective.Rooted() {
		x.Root = q.Root
	}
	blocks := func(s Space) []int64 {
		all := make([]int64, x.Blocks(s))
		for i := range all {
			all[i] = even
		}
		return all
	}
	if q.InBytes, q.OutBytes = blocks(Input), blocks(Output); q.Collective == plan.Broadcast {
		q.InBytes = nil
	}
	steps := 0
	for r := range x.plans {
		q.Rank = r
		p, err := plan.Build(q)
		if err != nil {
			return nil, err
		}
		if steps += len(p.Steps); steps > mostSteps {
			return nil, fmt.Errorf("the plans of the first %d ranks have %d steps; %d are allowed", r+1,
				steps, mostSteps)
		}
		x.plans[r] = p
		x.unit = gcd(x.unit, p.ScratchBytes)
		for i := range p.Steps {
			s := &p.Steps[i]
			if s.Op != plan.Offer && s.Op != plan.Wait { // whose messages may carry no data
				x.unit = gcd(x.unit, s.Bytes)
			}
			for _, refs := range [][]plan.Ref{{s.Dst}, s.Src, s.Also} {
				for _, ref := range refs {
					x.unit = gcd(x.unit, ref.Off)
				}
			}
		}
	}
	x.chunks = even / x.unit
	return x, nil
}

// scaled are thresholds for blocks of other lengths, that say of them what they say of real ones,
// which are no longer.
func scaled(t plan.Thresholds, real, even int64) plan.Thresholds {
	for _, n := range []*int64{&t.OneShotMax, &t.MulticastMin, &t.WindowMin, &t.GetMin} {
		if *n <= 0 {
			continue
		}
		if hi, lo := bits.Mul64(uint64(*n), uint64(even)); hi < uint64(real) {
			quotient, _ := bits.Div64(hi, lo, uint64(real))
			*n = int64(min(max(quotient, 1), math.MaxInt64))
		} else {
			*n = math.MaxInt64
		}
	}
	t.PipelineMin, t.SwapMin = 0, 0 // which is how memory carries what is the same moves
	return t
}

// program is what the plans do.
func (x *exporter) program(name string) (Program, error) {
	x.Name = name
	each := int(min(x.chunks, MostChunks+1))
	x.In, x.Out = each*x.Blocks(Input), each*x.Blocks(Output)
	if err := x.check(); err != nil {
		return Program{}, err
	}
	x.spaces = [2]int32{int32(x.In), int32(x.Out)}
	for _, p := range x.plans {
		x.scratch = append(x.scratch, x.take(len(x.scratch), p.ScratchBytes))
	}
	if err := plan.Walk(x.plans, x.slots, x.do); err != nil {
		return Program{}, err
	}
	x.join()
	x.stayLocal()
	x.skipInbox()
	x.dropUnread()
	x.sort()
	x.join()
	x.place()
	return x.Program, x.Program.check()
}

// take finds scratch memory of a rank.
func (x *exporter) take(rank int, bytes int64) int32 {
	first := x.first(x.Ranks, Input) + int32(len(x.owners))
	for range bytes / x.unit {
		x.owners = append(x.owners, int32(rank))
	}
	return first
}

// first is the number of the first chunk of a rank's input or output.
func (x *exporter) first(rank int, s Space) int32 {
	return int32(rank)*(x.spaces[0]+x.spaces[1]) + int32(s)*x.spaces[0]
}

// of is whose chunk that of a number is, and of which memory.
func (x *exporter) of(n int32) (rank int32, s Space) {
	fixed := x.first(x.Ranks, Input)
	switch each := x.spaces[0] + x.spaces[1]; {
	case n >= fixed:
		return x.owners[n-fixed], Scratch
	case n%each >= x.spaces[0]:
		return n / each, Output
	default:
		return n / each, Input
	}
}

func (x *exporter) isScratch(n int32) bool { return n >= x.first(x.Ranks, Input) }

func (x *exporter) ring(from, to int) *exportRing {
	g := x.rings[[2]int{from, to}]
	if g == nil {
		g = &exportRing{}
		x.rings[[2]int{from, to}] = g
	}
	return g
}

// find is the number of the first chunk of a place of a rank.
func (x *exporter) find(rank int, ref plan.Ref) int32 {
	block := int64(ref.Block)
	owner, s, peer := rank, Input, int(ref.Peer)
	at := ref.Off / x.unit
	switch ref.Space {
	case plan.Scratch:
		return x.scratch[rank] + int32(at)
	case plan.Inbox:
		return x.ring(peer, rank).places[block] + int32(at)
	case plan.Outbox:
		return x.ring(rank, peer).places[block] + int32(at)
	case plan.Out:
		s = Output
	case plan.PeerIn:
		owner, block = peer, int64(x.exposed[[2]int{peer, rank}][0])
	case plan.PeerOut:
		owner, block, s = peer, int64(x.exposed[[2]int{peer, rank}][1]), Output
	}
	return x.first(owner, s) + int32(block*x.chunks+at)
}

// do notes what a step moves.
func (x *exporter) do(rank int, s *plan.Step) error {
	m := strip{count: int32(s.Bytes / x.unit), order: int32(len(x.moves))}
	for _, ref := range s.Src {
		if s.Op == plan.Put || s.Op == plan.PutToAll || s.Op == plan.Copy || s.Op == plan.Combine {
			m.from = append(m.from, x.find(rank, ref))
		}
	}
	switch s.Op {
	case plan.Put:
		m.to = []int32{x.message(rank, int(s.Peer), s.Bytes)}
	case plan.PutToAll:
		for d := 1; d < x.Ranks; d++ {
			m.to = append(m.to, x.message(rank, (rank+d)%x.Ranks, s.Bytes))
		}
	case plan.Offer:
		g := x.ring(rank, int(s.Peer))
		g.places = append(g.places, x.find(rank, s.Src[0]))
	case plan.Expose:
		blocks := x.exposed[[2]int{rank, int(s.Peer)}]
		for _, ref := range s.Src {
			blocks[ref.Space-plan.In] = ref.Block
		}
		x.exposed[[2]int{rank, int(s.Peer)}] = blocks
	case plan.Get:
		m.to, m.from = []int32{x.find(rank, s.Dst)}, []int32{x.find(rank, s.Src[0])}
	case plan.Copy, plan.Combine:
		m.to = []int32{x.find(rank, s.Dst)}
		for _, ref := range s.Also {
			m.to = append(m.to, x.find(rank, ref))
		}
	}
	if len(m.to) == 0 || m.count == 0 || len(m.from) == 1 && m.from[0] == m.to[0] {
		return nil
	}
	if x.written += len(m.to) * int(m.count); x.written > mostExported {
		return fmt.Errorf("up to here the moves write more than %d chunks", mostExported)
	}
	x.moves = append(x.moves, m)
	return nil
}

// message is the place of the next message of a rank to another.
func (x *exporter) message(from, to int, bytes int64) int32 {
	g := x.ring(from, to)
	at := x.take(to, bytes)
	g.places = append(g.places, at)
	return at
}
