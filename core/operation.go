package core

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"math"
	"slices"
	"strings"
	"unsafe"

	"github.com/goccl/goccl/core/exec"
	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/plan"
	"github.com/goccl/goccl/core/reduce"
)

// AnySource as Root of a Recv matches a send of any rank.
const AnySource = -1

// Operation is one collective, send or receive. Buffers are lists of blocks, in memory that the Go
// garbage collector does not own or that is pinned, untouched by the caller until the work has
// ended. Counts are in elements, one a block:
//
//	AllReduce         n blocks in and out, of equal counts
//	Reduce            one block in, one out (used on the root)
//	Broadcast         one block: In and Out are the same
//	AllGather         one block in, Size blocks out
//	ReduceScatter     Size blocks in, one out
//	Gather            one block in; on the root Size out
//	Scatter           on the root Size blocks in; one out
//	AllToAll          Size blocks in and out
//	Send, Recv        one block; Root is the peer
//	Barrier, MonitoredBarrier  none
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
}

func (o *Operation) pointToPoint() bool {
	return o.Collective == plan.Send || o.Collective == plan.Recv
}

// length is the number of bytes that a send or receive moves.
func (o *Operation) length() uint64 {
	count := o.OutCounts
	if o.Collective == plan.Send {
		count = o.InCounts
	}
	return count[0] * uint64(o.DType.Size())
}

// largest is the number of bytes in the largest block of a collective.
func (o *Operation) largest() uint64 {
	n := uint64(0)
	for _, counts := range [][]uint64{o.InCounts, o.OutCounts} {
		for _, count := range counts {
			n = max(n, count)
		}
	}
	return n * uint64(o.DType.Size())
}

// small tells whether a collective is as short as those that callers in C may be held up by, and sends nothing.
func (o *Operation) small() bool {
	return o.Collective != plan.MonitoredBarrier && o.largest() <= exec.AtOnceMax
}

// uses tells whether a rank has the inputs, and the outputs: of some collectives only the root does.
func (o *Operation) uses(rank int) (in, out bool) {
	isRoot := o.Root == rank
	return o.Collective != plan.Scatter || isRoot, o.Collective != plan.Reduce && o.Collective != plan.Gather || isRoot
}

// aftermath is what a rank finds in its buffers of a collective that has failed; "" where it has none.
func (o *Operation) aftermath(rank int, begun bool) string {
	in, out := o.uses(rank)
	result := out && slices.ContainsFunc(o.OutCounts, func(n uint64) bool { return n > 0 })
	switch {
	case len(o.InCounts)+len(o.OutCounts) == 0:
		return ""
	case !begun, !result, o.Collective == plan.Broadcast && o.Root == rank:
		return "It has not changed its buffers"
	case o.Collective == plan.Broadcast, in && slices.ContainsFunc(o.In, func(p unsafe.Pointer) bool { return p != nil && slices.Contains(o.Out, p) }):
		return "Its buffer, into which the result was to come in place, holds no usable data"
	}
	if !in {
		return "Its output holds no usable data"
	}
	return "Its output holds no usable data, its input is as it was"
}

// check refuses what no rank may ask for.
func (o *Operation) check(rank, size int) error {
	bad := func(format string, args ...any) error {
		return fault.Errorf(fault.ErrInvalidArgument, o.Collective.String()+": "+format, args...)
	}
	if o.Collective > plan.Recv {
		return bad("no such collective")
	}
	if !o.DType.Valid() {
		return bad("dtype is %d, allowed are the values of goccl_dtype", o.DType)
	}
	if o.Collective.Reduces() {
		if !o.Op.Valid() {
			return bad("op is %d, allowed are the values of goccl_reduce_op", o.Op)
		}
		if err := reduce.Check(o.DType, o.Op); err != nil {
			return bad("%v", err)
		}
	}
	if o.Collective.Rooted() && (o.Root < 0 || o.Root >= size) {
		return bad("root is %d, allowed are 0 to %d", o.Root, size-1)
	}
	if o.pointToPoint() {
		if any := o.Collective == plan.Recv && o.Root == AnySource; !any && (o.Root < 0 || o.Root >= size) {
			return bad("peer is %d, allowed are 0 to %d", o.Root, size-1)
		}
		if o.Tag < 0 || o.Tag > math.MaxInt32 {
			return bad("tag is %d, allowed are 0 to %d", o.Tag, math.MaxInt32)
		}
	}
	usesIn, usesOut := o.uses(rank)
	type side struct {
		name   string
		blocks []unsafe.Pointer
		counts []uint64
		want   int // blocks; -1: any number
		used   bool
	}
	in := side{"in", o.In, o.InCounts, 1, usesIn}
	out := side{"out", o.Out, o.OutCounts, 1, usesOut}
	switch o.Collective {
	case plan.AllReduce:
		in.want, out.want = -1, len(o.InCounts)
	case plan.AllGather:
		out.want = size
	case plan.ReduceScatter:
		in.want = size
	case plan.Gather:
		out.want = size
	case plan.Scatter:
		in.want = size
	case plan.AllToAll:
		in.want, out.want = size, size
	case plan.Barrier, plan.MonitoredBarrier:
		in.want, out.want = 0, 0
	case plan.Send:
		out.want = 0
	case plan.Recv:
		in.want = 0
	}
	for _, s := range []side{in, out} {
		if s.want >= 0 && len(s.counts) != s.want {
			return bad("%s has %d blocks, expected %d", s.name, len(s.counts), s.want)
		}
		if !s.used {
			continue
		}
		if len(s.blocks) != len(s.counts) {
			return bad("%s has %d blocks and %d counts", s.name, len(s.blocks), len(s.counts))
		}
		for i, n := range s.counts {
			if n > math.MaxInt64/16/uint64(len(s.counts)) {
				return bad("%s[%d] has %d elements, which is more than memory can hold", s.name, i, n)
			}
			if n > 0 && s.blocks[i] == nil {
				return bad("%s[%d] is NULL, but has %d elements", s.name, i, n)
			}
		}
	}
	equal := func(name string, i int, got, want uint64) error {
		switch {
		case got == want:
			return nil
		case i >= 0:
			name = fmt.Sprintf("%s[%d]", name, i)
		}
		return bad("%s has %d elements, expected %d", name, got, want)
	}
	const single = -1
	switch o.Collective {
	case plan.AllReduce:
		for i := range o.InCounts {
			if err := equal("out", i, o.OutCounts[i], o.InCounts[i]); err != nil {
				return err
			}
		}
	case plan.Reduce, plan.Broadcast:
		if err := equal("out", single, o.OutCounts[0], o.InCounts[0]); err != nil {
			return err
		}
	case plan.AllGather:
		if err := equal("in", single, o.InCounts[0], o.OutCounts[rank]); err != nil {
			return err
		}
	case plan.ReduceScatter:
		if err := equal("out", single, o.OutCounts[0], o.InCounts[rank]); err != nil {
			return err
		}
	case plan.Gather:
		for i := range o.OutCounts {
			if err := equal("out", i, o.OutCounts[i], o.InCounts[0]); err != nil {
				return err
			}
		}
	case plan.Scatter:
		for i := range o.InCounts {
			if err := equal("in", i, o.InCounts[i], o.OutCounts[0]); err != nil {
				return err
			}
		}
	case plan.AllToAll:
		if err := equal("out", rank, o.OutCounts[rank], o.InCounts[rank]); err != nil {
			return err
		}
	}
	return o.checkOverlap(rank, in.used, out.used, bad)
}

// checkOverlap refuses inputs and outputs that share memory in any other way than the one in which
// the collective is in place.
func (o *Operation) checkOverlap(rank int, inUsed, outUsed bool, bad func(string, ...any) error) error {
	if !inUsed || !outUsed || o.Collective == plan.Broadcast {
		return nil
	}
	inPlace := func(i, j int) bool { // in[i] may be out[j]
		switch o.Collective {
		case plan.AllReduce:
			return i == j
		case plan.Reduce:
			return true
		case plan.AllGather, plan.Gather:
			return j == rank
		case plan.ReduceScatter, plan.Scatter:
			return i == rank
		}
		return false
	}
	size := uint64(o.DType.Size())
	// The usual case of few blocks on one side: compare all pairs. Many blocks on both sides are
	// compared only where the block numbers are equal.
	pairs := len(o.In) * len(o.Out)
	for i, in := range o.In {
		for j, out := range o.Out {
			if pairs > 1<<16 && i != j {
				continue
			}
			a, b := uintptr(in), uintptr(out)
			an, bn := uintptr(o.InCounts[i]*size), uintptr(o.OutCounts[j]*size)
			if an == 0 || bn == 0 || a >= b+bn || b >= a+an {
				continue
			}
			if a == b && an == bn && inPlace(i, j) {
				continue
			}
			return bad("in[%d] and out[%d] overlap: they must be the same memory where the operation is in place, and else disjoint", i, j)
		}
	}
	return nil
}

func (o *Operation) bytes(counts []uint64) []int64 {
	b := make([]int64, len(counts))
	for i, n := range counts {
		b[i] = int64(n) * int64(o.DType.Size())
	}
	return b
}

// message says what the operation is, but for its schedule.
func (o *Operation) message() plan.Message {
	m := plan.Message{Collective: uint8(o.Collective), Root: -1}
	var counts []uint64
	switch o.Collective {
	case plan.AllReduce, plan.Reduce, plan.Broadcast, plan.ReduceScatter:
		counts = o.InCounts
	case plan.AllGather:
		counts = o.OutCounts
	case plan.Gather:
		counts = o.InCounts
	case plan.Scatter:
		counts = o.OutCounts
	case plan.Send:
		counts = o.InCounts
	case plan.Recv:
		counts = o.OutCounts
	}
	if len(counts) > 1 {
		h := fnv.New64a()
		for _, n := range counts {
			_ = binary.Write(h, binary.LittleEndian, n) // a hash never fails
		}
		m.Digest = h.Sum64()
	}
	for _, n := range counts {
		m.Count += n
	}
	if o.Collective != plan.Barrier && o.Collective != plan.MonitoredBarrier {
		m.DType = uint8(o.DType)
	}
	if o.Collective.Reduces() {
		m.Op = uint8(o.Op)
	}
	if o.Collective.Rooted() {
		m.Root = int32(o.Root)
	}
	return m
}

// describe puts a message into words, as in "allreduce(float32, 8 elements, SUM)".
func describe(m plan.Message) string {
	c := plan.Collective(m.Collective)
	if c == plan.Barrier || c == plan.MonitoredBarrier {
		return c.String()
	}
	words := []string{reduce.DType(m.DType).String()}
	if c != plan.AllToAll {
		words = append(words, fmt.Sprintf("%d elements", m.Count))
	}
	if c.Reduces() {
		words = append(words, reduce.Op(m.Op).String())
	}
	if m.Schedule != 0 {
		words = append(words, "schedule "+plan.Schedule(m.Schedule).String())
	}
	if m.Root >= 0 {
		words = append(words, fmt.Sprintf("root %d", m.Root))
	}
	return c.String() + "(" + strings.Join(words, ", ") + ")"
}
