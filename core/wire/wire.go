// Package wire has collectives carry their elements in a narrower dtype than the caller's.
//
// The result is that of converting all tensors before the collective, and back after it: [Narrow]
// makes operations on converted images, whose feeds convert the caller's blocks piece by piece
// while the plans run. Peers see operations of the narrow dtype. An image has one segment of the
// operation after the other; where that may run once more it is as long as the block.
package wire

/*
#cgo CFLAGS: -std=c11 -O3 -fvisibility=hidden
#include <stdlib.h>
#include "wire.h"
*/
import "C"

import (
	"errors"
	"math"
	"slices"
	"unsafe"

	"github.com/goccl/goccl/core/call"
	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/plan"
	"github.com/goccl/goccl/core/reduce"
	"github.com/goccl/goccl/core/reduce/kernel"
	"github.com/goccl/goccl/core/tune"
)

// Images are operations on narrow images of the caller's blocks.
type Images struct {
	Operations []call.Operation
	reruns     bool
	memory     []unsafe.Pointer // of C
	none       bool             // there was no more memory
}

// Narrow returns the operations that carry others, which have been checked, in a group with a
// choice of its own. Those that may run once more have images of whole blocks. Of others a segment
// has images at a time, and their blocks are named as they were. The caller frees all once no work
// uses them.
func Narrow(operations []call.Operation, rank int, group call.Wire, reruns bool) (*Images, error) {
	m := &Images{Operations: slices.Clone(operations), reruns: reruns}
	for i := range operations {
		if to := operations[i].WireDType(group); to != operations[i].DType {
			m.narrow(&m.Operations[i], rank, to)
		}
	}
	if m.none {
		m.Free()
		return nil, fault.From(errors.New("there is no more memory"), fault.ErrSystem,
			"%s: images for the wire dtype", call.Name(operations))
	}
	return m, nil
}

// narrow replaces an operation by the one that carries it.
func (m *Images) narrow(n *call.Operation, rank int, to reduce.DType) {
	o := *n
	n.DType, n.Wire = to, call.OwnDType
	in, out := o.Uses(rank)
	w := (*C.goccl_wire)(m.take(int(unsafe.Sizeof(C.goccl_wire{}))))
	both := o.Collective == plan.Broadcast
	most := tune.SegmentOf(n) // bytes of an image
	if m.reruns {
		most = math.MaxInt64
	}
	of := map[memory]unsafe.Pointer{} // images
	var ins, outs []C.goccl_wire_block
	n.Out, outs = m.images(o.Out, o.OutCounts, to, out, most, of)
	if n.In, ins = n.Out, outs; !both {
		n.In, ins = m.images(o.In, o.InCounts, to, in, most, of)
	}
	if m.none {
		return
	}
	c := kernel.Convert(o.DType, to)
	w.sum, w.in, w.out = c.Sum, unsafe.SliceData(ins), unsafe.SliceData(outs)
	w.n_in, w.n_out = C.size_t(len(ins)), C.size_t(len(outs))
	*(*unsafe.Pointer)(unsafe.Pointer(&w.to_narrow)) = c.Narrow
	*(*unsafe.Pointer)(unsafe.Pointer(&w.to_wide)) = c.Widen
	w.wide, w.narrow = C.size_t(o.DType.Size()), C.size_t(to.Size())
	if both && rank == o.Root {
		w.rounds = 1
	}
	if f := o.Feed; f != nil {
		w.context = f.Context
		*(*unsafe.Pointer)(unsafe.Pointer(&w.need)) = f.Need
		*(*unsafe.Pointer)(unsafe.Pointer(&w.final)) = f.Final
		*(*unsafe.Pointer)(unsafe.Pointer(&w.segment)) = f.Segment
	}
	n.Feed = &call.Feed{Context: unsafe.Pointer(w), Need: C.goccl_wire_need,
		Final: C.goccl_wire_final}
	if !m.reruns {
		n.Feed.Segment = C.goccl_wire_segment
	}
}

// memory is what has an image.
type memory struct {
	at    unsafe.Pointer
	bytes int
}

// images makes those of blocks, of so many bytes at most, if this rank uses them. Blocks that are
// the same memory have one. It returns what the blocks of the operation are.
func (m *Images) images(blocks []unsafe.Pointer, counts []uint64, to reduce.DType, used bool,
	most int64, of map[memory]unsafe.Pointer) (named []unsafe.Pointer, all []C.goccl_wire_block) {
	if !used || len(blocks) == 0 {
		return blocks, nil
	}
	table := m.take(len(blocks) * int(unsafe.Sizeof(C.goccl_wire_block{})))
	if m.none {
		return blocks, nil
	}
	named = slices.Clone(blocks)
	all = unsafe.Slice((*C.goccl_wire_block)(table), len(blocks))
	for i, block := range blocks {
		bytes := int(min(int64(counts[i])*int64(to.Size()), most))
		image, shared := of[memory{block, bytes}]
		if !shared || m.reruns {
			image = m.take(bytes)
			of[memory{block, bytes}] = image
		}
		all[i] = C.goccl_wire_block{wide: (*C.uint8_t)(block), narrow: (*C.uint8_t)(image),
			image: (*C.uint8_t)(image)}
		if m.reruns {
			units := (bytes + C.GOCCL_WIRE_UNIT - 1) / C.GOCCL_WIRE_UNIT
			named[i], all[i].done = image, (*C.uint64_t)(m.take((units+63)/64*8))
		}
	}
	return named, all
}

// take takes zeroed memory.
func (m *Images) take(bytes int) unsafe.Pointer {
	p := C.calloc(C.size_t(max(bytes, 1)), 1)
	m.memory, m.none = append(m.memory, p), m.none || p == nil
	return p
}

// Free gives the images back.
func (m *Images) Free() {
	for _, p := range m.memory {
		C.free(p)
	}
	m.memory = nil
}
