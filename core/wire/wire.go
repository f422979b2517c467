// Package wire has collectives carry their elements in a narrower dtype than the caller's.
//
// The result is that of converting all tensors before the collective, and back after it: [Narrow]
// makes operations on converted images, whose feeds convert the caller's blocks piece by piece
// while the plans run. Peers see operations of the narrow dtype.
package wire

/*
#cgo CFLAGS: -std=c11 -O3 -fvisibility=hidden
#include <stdlib.h>
#include "wire.h"
*/
import "C"

import (
	"errors"
	"slices"
	"unsafe"

	"github.com/goccl/goccl/core/call"
	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/plan"
	"github.com/goccl/goccl/core/reduce"
	"github.com/goccl/goccl/core/reduce/kernel"
)

// Images are operations on narrow images of the caller's blocks.
type Images struct {
	Operations []call.Operation
	memory     []unsafe.Pointer // of C
	none       bool             // there was no more memory
}

// Narrow returns the operations that carry others, which have been checked, in a group with a
// choice of its own. The caller frees them once no work uses them.
func Narrow(operations []call.Operation, rank int, group call.Wire) (*Images, error) {
	m := &Images{Operations: slices.Clone(operations)}
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
	var ins, outs *C.goccl_wire_block
	n.Out, outs = m.images(o.Out, o.OutCounts, to, out)
	if n.In, ins = n.Out, outs; !both {
		n.In, ins = m.images(o.In, o.InCounts, to, in)
	}
	if m.none {
		return
	}
	c := kernel.Convert(o.DType, to)
	w.sum, w.in, w.out = c.Sum, ins, outs
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
	}
	n.Feed = &call.Feed{Context: unsafe.Pointer(w), Need: C.goccl_wire_need,
		Final: C.goccl_wire_final}
}

// images makes those of blocks, if this rank uses them.
func (m *Images) images(blocks []unsafe.Pointer, counts []uint64, to reduce.DType, used bool) (
	[]unsafe.Pointer, *C.goccl_wire_block) {
	if !used || len(blocks) == 0 {
		return blocks, nil
	}
	all := (*C.goccl_wire_block)(m.take(len(blocks) * int(unsafe.Sizeof(C.goccl_wire_block{}))))
	images := make([]unsafe.Pointer, len(blocks))
	for i, block := range blocks {
		bytes := int(counts[i]) * to.Size()
		units := (bytes + C.GOCCL_WIRE_UNIT - 1) / C.GOCCL_WIRE_UNIT
		images[i] = m.take(bytes)
		done := m.take((units + 63) / 64 * 8)
		if !m.none {
			unsafe.Slice(all, len(blocks))[i] = C.goccl_wire_block{wide: (*C.uint8_t)(block),
				narrow: (*C.uint8_t)(images[i]), done: (*C.uint64_t)(done)}
		}
	}
	return images, all
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
