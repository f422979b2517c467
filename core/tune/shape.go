// Package tune chooses how a communicator moves data.
//
// A [Topology] says where the ranks are. From it, and from what the user sets, [New] makes a rank's
// [Shape], once for the life of a communicator: how its memory is laid out (slots, chunks, eager
// packets), and the [Thresholds] between the ways to move data. The shape then chooses for each
// operation: the [Segment]s that it is cut into, with the parameters of their plans, and whether a
// direct plan, a single copy or streamed outputs are to be tried. What a plan's builder chooses by
// those parameters package plan says.
//
// All of it is pure: ranks with the same topology, options and operation choose the same, which is
// what makes their plans fit together.
package tune

import (
	"math"

	"github.com/goccl/goccl/core/call"
	"github.com/goccl/goccl/core/plan"
	"github.com/goccl/goccl/core/program"
)

// Lanes is how many lanes a window has: one for collectives, one for sends and receives.
const Lanes = 2

const (
	slotsPerChannel = 4
	mostSlots       = 16
	// windowBudget is how many bytes of inboxes and of a stage there are. With mailBudget and the
	// budget of eager sends, staging stays within 17 MiB a communicator. Where no ranks share memory
	// one lane is in use instead of two, and there are no mailboxes.
	windowBudget = 8 << 20
	largestChunk = 256 << 10 // of which a core's cache holds several
	// largestPortChunk is longer: over a port channel each message also costs system calls and
	// wake-ups at both ends.
	largestPortChunk = 512 << 10
	smallestChunk    = 256
	// largestSend is shorter: while one piece is copied into a slot, the one before is copied out.
	largestSend = 128 << 10
	// leastPieces is into how many messages a send is cut at least that is longer than leastPiece.
	leastPieces, leastPiece = 8, 16 << 10
	// manyChunks is of how many chunks a block is better put in long messages, by direct placement,
	// where ports join the ranks of an oversubscribed host.
	manyChunks = 16
	// mailBudget is about how many bytes of mailboxes and their bounce buffers there are: three of the
	// longest eager packet a peer.
	mailBudget   = 3 << 20
	largestEager = 256 << 10 // where memory is shared: what is longer goes faster through the windows
	leastEager   = 4 << 10
	// pipeBudget is about how many bytes of pipes there are. The largest is as long as a core's own
	// cache: see pipe.h.
	pipeBudget             = 2 << 20
	largestPipe, leastPipe = 1 << 20, 16 << 10
)

// SegmentBytes is how much of an operation one plan moves: it bounds the length of plans.
const SegmentBytes = 64 << 20

// Shape is how a rank's communicator moves data.
type Shape struct {
	Topology
	Rank       int
	Thresholds Thresholds
	Schedule   plan.Schedule // of alltoall, where a call names none
	Algorithms Algorithms

	Chunk int64 // the most bytes of a message that goes through a slot
	// NearChunk is the same where an operation goes in levels; 0: Chunk is no less.
	NearChunk int64
	// SendChunk is the same of a send between ranks that share memory: their number limits it alone.
	SendChunk int64
	Slots     int   // a direction of a channel
	Ahead     int   // see plan.Params
	EagerMax  int64 // the most bytes of an eager packet between ranks that share memory
	Pipe      int64 // the bytes of a pipe between such ranks; 0: see Pipes
	// AllMemory tells that all pairs of ranks share memory: no channel is a port.
	AllMemory bool
	// SingleCopy tells that all ranks can read each other's memory, on which they have agreed.
	SingleCopy bool

	// StreamMinSet tells that the user says from where on outputs are written past the caches, whether
	// that was found to be faster or not.
	StreamMinSet bool

	ports    []bool // see Options; nil: there are none in the group
	programs []*Registered
	longMost int64
	byReads  [CheapReads + 1]Thresholds // by how fast it is to read the memory of others: see Agree
}

// Options are what a shape depends on beside the topology.
type Options struct {
	Thresholds string // that differ from the defaults: see Thresholds.Set
	Schedule   string // see plan.ParseSchedule
	Algorithms string // see ParseAlgorithms
	Links      string // that cost something else than the defaults: see Links.Set
	Ports      []bool // by rank: whether a port joins it to this one
	SingleCopy bool   // all ranks can read each other's memory
	Reads      Reads  // how fast that is
	LongMost   int64  // the most bytes of a message that a port carries
}

// New makes the shape of a rank.
func New(t Topology, rank int, o Options) (Shape, error) {
	s := Shape{Topology: t, Rank: rank, Chunk: largestChunk, Slots: slotsPerChannel, Ahead: 1,
		EagerMax: largestEager, AllMemory: !t.Ports, longMost: o.LongMost}
	s.links = defaultLinks
	if err := s.links.Set(o.Links); err != nil {
		return Shape{}, err
	}
	rings := int64(t.Sharing-1) * Lanes // of slots, of which a window is made
	if t.Ports {
		s.Chunk, s.ports = largestPortChunk, o.Ports
		rings += int64(t.Size - 1)
	} else if t.Size > 2 {
		rings++ // the stage
	}
	s.SendChunk = fitting(largestSend, int64(t.Sharing-1)*Lanes)
	s.Chunk = fitting(s.Chunk, rings)
	for s.EagerMax > leastEager && 3*s.EagerMax*int64(t.Sharing-1) > mailBudget {
		s.EagerMax /= 2
	}
	if !t.Oversubscribed {
		s.Pipe = largestPipe
	}
	for s.Pipe > leastPipe && s.Pipe*int64(t.Sharing-1) > pipeBudget {
		s.Pipe /= 2
	}
	if t.Ports {
		// Until a slot's release is back at the sender, several more can be under way.
		fit := windowBudget / (s.Chunk * max(rings, 1))
		s.Slots = int(max(slotsPerChannel, min(mostSlots, fit)))
		s.Ahead = s.Slots / 4
	}
	for reads := range s.byReads {
		at := t.thresholds(s.Chunk, Reads(reads))
		streamMin := at.StreamMin
		at.StreamMin = -1
		if err := at.Set(o.Thresholds); err != nil {
			return Shape{}, err
		}
		if s.StreamMinSet = at.StreamMin >= 0; !s.StreamMinSet {
			at.StreamMin = streamMin
		}
		s.byReads[reads] = at
	}
	s.Agree(o.SingleCopy, o.Reads)
	var err error
	if s.Algorithms, err = ParseAlgorithms(o.Algorithms); err != nil {
		return Shape{}, err
	}
	if t.Size > 2 && s.Chunk < nearChunk {
		s.NearChunk = nearChunk
	}
	s.Schedule, err = plan.ParseSchedule(o.Schedule)
	return s, err
}

// Agree settles, before the first operation, whether all ranks can read each other's memory, and
// how fast, which a shape may have been made to assume. What it has assumed rightly it leaves
// alone: a call beside a recovery, which is against the rules, may be reading it.
func (s *Shape) Agree(singleCopy bool, reads Reads) {
	if at := s.byReads[reads]; s.SingleCopy != singleCopy || s.Thresholds != at {
		s.SingleCopy, s.Thresholds = singleCopy, at
	}
}

// Pipes are the least and the most bytes of a send that goes through a pipe where both ranks are in
// their calls; most 0: none does. Ranks that share a CPU copy one after the other anyway, and each
// piece would cost a change of threads.
func (s *Shape) Pipes() (least, most uint64) {
	if s.Pipe == 0 || s.Thresholds.SendPipeMin == 0 {
		return 0, 0
	}
	return uint64(s.Thresholds.SendPipeMin), math.MaxUint64
}

// fitting is the longest chunk of which the slots of so many inboxes fit into memory.
func fitting(chunk, inboxes int64) int64 {
	for chunk > smallestChunk && chunk*slotsPerChannel*inboxes > windowBudget {
		chunk /= 2
	}
	return chunk
}

// placed is the shape as a collective sees it: what is only moved finds the ranks in Order.
func (s *Shape) placed(c plan.Collective) *Shape {
	if s.Order == nil || c.Reduces() {
		return s
	}
	q := *s
	q.Group, q.Domain = s.OrderGroup, s.OrderDomain
	return &q
}

// Params is what a plan's builder is told of an operation.
func (s *Shape) Params(op *call.Operation) plan.Params {
	s = s.placed(op.Collective)
	p := plan.Params{Collective: op.Collective, Algorithm: s.Choose(op), Rank: s.Rank, Size: s.Size,
		Root: op.Root, InBytes: op.InBytes(), OutBytes: op.OutBytes(),
		ElemSize: int64(op.DType.Size()),
		Chunk:    s.Chunk, Slots: s.Slots, Ahead: s.Ahead, Ports: s.ports, Memory: s.AllMemory,
		Long:           min(s.Thresholds.LongMax, s.longMost) &^ 63,
		Oversubscribed: s.Oversubscribed, Schedule: s.ScheduleOf(op), Thresholds: s.Thresholds.Thresholds}
	p.PartialSize = partialSize(op, p.Algorithm)
	p.Radices = s.radices(op, p.Algorithm)
	nearFirst := p.Algorithm.InLevels() || p.Algorithm == plan.BinomialTree
	if nearFirst && !op.Collective.Reduces() {
		p.Order = s.Order
	}
	p.Chunk = s.chunk(op.Collective, p.Radices, int64(op.Largest()))
	s.limits(&p, op)
	return p
}

// Segment is a plan that moves a part of an operation, by a builder of package plan or as a program
// says.
type Segment struct {
	Params       plan.Params
	Offset, Upto int64 // bytes of each block that are the part, as far as it reaches
}

// Segments cuts an operation into plans of bounded length, all by a program, or where that is nil
// by the algorithm that Choose names.
func (s *Shape) Segments(op *call.Operation, by *program.Checked) []Segment {
	if by != nil {
		return cut(op, s.programParams(op, by))
	}
	p := s.Params(op)
	all := cut(op, p)
	inPlace := s.hasDirect(&p, &all[0].Params)
	for i := range all {
		all[i].Params.InPlaceOfDirect = inPlace
	}
	return all
}

// cut cuts an operation into plans of bounded length.
func cut(op *call.Operation, p plan.Params) []Segment {
	most, step := int64(op.Largest()), SegmentOf(op)
	if most <= step {
		return []Segment{{p, 0, most}}
	}
	var all []Segment
	for offset := int64(0); offset < most; offset += step {
		q := p
		q.InBytes, q.OutBytes = clip(p.InBytes, offset, step), clip(p.OutBytes, offset, step)
		all = append(all, Segment{q, offset, min(offset+step, most)})
	}
	return all
}

// SegmentOf is how many bytes of each block of an operation one plan moves at most.
func SegmentOf(op *call.Operation) int64 {
	// With splits only a pair knows how much it moves, so the ranks could not agree on segments. Of
	// Custom any chunk may go anywhere.
	if op.Collective == plan.AllToAll || op.Collective == plan.Custom {
		return int64(op.Largest())
	}
	blocks := max(len(op.InCounts), len(op.OutCounts), 1)
	return max(int64(SegmentBytes)/int64(blocks)&^4095, 4096)
}

func clip(bytes []int64, offset, most int64) []int64 {
	c := make([]int64, len(bytes))
	for i, n := range bytes {
		c[i] = min(max(n-offset, 0), most)
	}
	return c
}
