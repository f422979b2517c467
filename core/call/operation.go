// Package call has one call of a user: a collective, a send or a receive, with its buffers.
//
// An [Operation] is plain data. One table says how the arguments of each collective look: how many
// blocks there are on either side, which ranks have them, whose counts all ranks know, and where
// inputs and outputs may be the same memory. From it follow what [Operation.Check] refuses, the
// message by which ranks compare their calls, and the words for both.
//
// The package reads no buffer: it looks at addresses and counts only.
package call

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"slices"
	"unsafe"

	"github.com/goccl/goccl/core/plan"
	"github.com/goccl/goccl/core/program"
	"github.com/goccl/goccl/core/reduce"
)

// AnySource as Root of a Recv matches a send of any rank.
const AnySource = -1

// Operation is one collective, send or receive. Buffers are lists of blocks, in memory that the Go
// garbage collector does not own or that is pinned, untouched by the caller until the work has
// ended. Counts are in elements, one a block:
//
//	AllReduce         n blocks in and out, one or more, of equal counts
//	Reduce            one block in, one out (used on the root)
//	Broadcast         one block: In and Out are the same
//	AllGather         one block in, Size blocks out
//	ReduceScatter     Size blocks in, one out
//	Gather            one block in; on the root Size out
//	Scatter           on the root Size blocks in; one out
//	AllToAll          Size blocks in and out
//	Send, Recv        one block; Root is the peer
//	Barrier, MonitoredBarrier  none
//	Custom            one block in, one out
//
// InCounts or OutCounts of blocks that only the root has are given on all ranks.
type Operation struct {
	Collective          plan.Collective
	DType               reduce.DType
	Op                  reduce.Op
	Factor              [2]float64 // of PreMulSum; real and imaginary part
	Root                int
	Tag                 int
	Schedule            plan.Schedule // of AllToAll; 0: the communicator's
	In, Out             []unsafe.Pointer
	InCounts, OutCounts []uint64
	WaitAll             bool // MonitoredBarrier: name all missing ranks
	// PartOf is the call that the operation is a part of, as which ranks compare and name it:
	// plan.Split or what follows it; 0: none.
	PartOf plan.Collective
	// Program runs the operation, which of Custom must have one; nil: as the group chooses.
	Program  *program.Checked
	Programs Programs
	Feed     *Feed // how blocks come and go while the operation runs; nil: they are there
	// Wire is the dtype as which the elements travel.
	Wire Wire
}

// Wire is a dtype as which elements travel: 1 more than its number, or one of the constants.
type Wire int8

// The choices.
const (
	OwnDType Wire = -1 // the operation's own
	AnyDType Wire = 0  // as the group says
)

// As is the choice of a dtype.
func As(d reduce.DType) Wire { return Wire(d) + 1 }

// ParseWire reads a group's choice: the name of a dtype, or "".
func ParseWire(name string) (Wire, error) {
	switch name {
	case "":
		return AnyDType, nil
	case reduce.BFloat16.String():
		return As(reduce.BFloat16), nil
	case reduce.Float16.String():
		return As(reduce.Float16), nil
	}
	return AnyDType, fmt.Errorf("%q, allowed are %q and %q", name, reduce.BFloat16, reduce.Float16)
}

// WireDType is the dtype as which the elements of an operation travel in a group with a choice of
// its own, which is for sums and the like of float32 only: what is moved is to stay as it is. It is
// the operation's own where nothing is narrowed.
func (o *Operation) WireDType(group Wire) reduce.DType {
	switch {
	case o.Wire > 0:
		return reduce.DType(o.Wire - 1)
	case o.Wire == AnyDType && group > 0 && o.DType == reduce.Float32 && o.Collective.Reduces() &&
		o.PartOf == 0:
		return reduce.DType(group - 1)
	}
	return o.DType
}

// Feed is how the inputs of an operation come, and its outputs go, while it runs. It has functions
// in C, nil ones too: see goccl_feed.
type Feed struct {
	Context              unsafe.Pointer
	Need, Final, Segment unsafe.Pointer
	Kept                 unsafe.Pointer // of an exec.Kept; nil: no input is kept
}

// Programs says whether a program runs an operation that the group has registered.
type Programs int8

// The choices.
const (
	NoProgram   Programs = -1 // none does
	AnyProgram  Programs = 0  // one that fits does, but of AllToAll
	EqualBlocks Programs = 1  // also of AllToAll, all of whose blocks are equally long on all ranks
)

// blocks is how many blocks a side of an operation has.
type blocks uint8

const (
	none blocks = iota
	one
	each // one a rank
	many // any number, the same on both sides
)

// side is the inputs or the outputs.
type side uint8

const (
	neither side = iota
	inputs
	outputs
)

// sharing is where inputs and outputs may be the same memory.
type sharing uint8

const (
	apart sharing = iota // nowhere
	own                  // where they hold the same part of the data: see form.own
	same                 // everywhere: they are one buffer
)

// form is how the arguments of a collective look.
type form struct {
	in, out blocks
	known   side // whose counts are the same on all ranks: what they compare
	root    side // which only the root has
	sharing sharing
}

var forms = [...]form{
	plan.AllReduce:        {in: many, out: many, known: inputs, sharing: own},
	plan.Reduce:           {in: one, out: one, known: inputs, root: outputs, sharing: own},
	plan.Broadcast:        {in: one, out: one, known: inputs, sharing: same},
	plan.AllGather:        {in: one, out: each, known: outputs, sharing: own},
	plan.ReduceScatter:    {in: each, out: one, known: inputs, sharing: own},
	plan.Gather:           {in: one, out: each, known: inputs, root: outputs, sharing: own},
	plan.Scatter:          {in: each, out: one, known: outputs, root: inputs, sharing: own},
	plan.AllToAll:         {in: each, out: each},
	plan.Barrier:          {},
	plan.MonitoredBarrier: {},
	plan.Send:             {in: one, known: inputs},
	plan.Recv:             {out: one, known: outputs},
	plan.Custom:           {in: one, out: one},
}

func (o *Operation) form() form { return forms[o.Collective] }

// own reports whether in[i] and out[j] hold the same part of the data on a rank, as far as their
// numbers tell.
func (f form) own(i, j, rank int) bool {
	switch {
	case f.in == many:
		return i == j
	case f.in == each:
		return i == rank
	case f.out == each:
		return j == rank
	}
	return true
}

// Reduces reports whether the operation combines elements with its Op.
func (o *Operation) Reduces() bool {
	return o.Collective.Reduces() || o.Collective == plan.Custom && o.Program != nil &&
		o.Program.Reduces
}

// PointToPoint reports whether the operation is a send or a receive.
func (o *Operation) PointToPoint() bool {
	return o.Collective == plan.Send || o.Collective == plan.Recv
}

// Uses reports whether a rank has the inputs, and whether it has the outputs: some only the root
// has.
func (o *Operation) Uses(rank int) (in, out bool) {
	isRoot, only := o.Root == rank, o.form().root
	return isRoot || only != inputs, isRoot || only != outputs
}

// Length is the number of bytes that a send or receive moves.
func (o *Operation) Length() uint64 { return o.known()[0] * uint64(o.DType.Size()) }

// Largest is the number of bytes in the largest block.
func (o *Operation) Largest() uint64 {
	n := uint64(0)
	for _, counts := range [2][]uint64{o.InCounts, o.OutCounts} {
		for _, count := range counts {
			n = max(n, count)
		}
	}
	return n * uint64(o.DType.Size())
}

// Total is the number of bytes in the inputs or in the outputs, whichever are more.
func (o *Operation) Total() uint64 {
	var sums [2]uint64
	for i, counts := range [2][]uint64{o.InCounts, o.OutCounts} {
		for _, n := range counts {
			sums[i] += n
		}
	}
	return max(sums[0], sums[1]) * uint64(o.DType.Size())
}

// InBytes are the lengths of the input blocks.
func (o *Operation) InBytes() []int64 { return o.bytes(o.InCounts) }

// OutBytes are the lengths of the output blocks.
func (o *Operation) OutBytes() []int64 { return o.bytes(o.OutCounts) }

func (o *Operation) bytes(counts []uint64) []int64 {
	b := make([]int64, len(counts))
	for i, n := range counts {
		b[i] = int64(n) * int64(o.DType.Size())
	}
	return b
}

// known are the counts that all ranks know.
func (o *Operation) known() []uint64 {
	if o.Collective == plan.Custom {
		return slices.Concat(o.InCounts, o.OutCounts)
	}
	switch o.form().known {
	case inputs:
		return o.InCounts
	case outputs:
		return o.OutCounts
	}
	return nil
}

// byProgram is plan.Message.Schedule of what a program runs, but for AllToAll.
const byProgram = 1

// UseProgram has a message say which program runs the operation.
func UseProgram(m *plan.Message, p *program.Checked) {
	digest := p.Digest()
	m.Digest ^= binary.LittleEndian.Uint64(digest[:])
	if m.Collective != uint8(plan.AllToAll) {
		m.Schedule = byProgram
	}
}

// Message says what the operation is, in what all ranks know of it, but for its schedule.
func (o *Operation) Message() plan.Message {
	m := plan.Message{Collective: uint8(o.Collective), Root: -1}
	counts := o.known()
	if len(counts) > 1 {
		m.Digest = Digest(counts)
	}
	for _, n := range counts {
		m.Count += n
	}
	if f := o.form(); f.in != none || f.out != none {
		m.DType = uint8(o.DType)
	}
	if o.Reduces() {
		m.Op = uint8(o.Op)
	}
	if o.Collective.Rooted() {
		m.Root = int32(o.Root)
	}
	if o.PartOf != 0 {
		m.Collective = uint8(o.PartOf)
	}
	return m
}

// Digest is that of counts in a message.
func Digest(counts []uint64) uint64 {
	h := fnv.New64a()
	var word [8]byte
	for _, n := range counts {
		binary.LittleEndian.PutUint64(word[:], n)
		_, _ = h.Write(word[:]) // a hash never fails
	}
	return h.Sum64()
}
