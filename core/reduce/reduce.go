// Package reduce holds the element types, the reduce ops and the kernels that combine them.
//
// A kernel combines n raw inputs into one output in a single pass, in the canonical order: the
// balanced binary tree over positions, aligned at powers of two. 16- and 8-bit floats are widened
// to float32, combined there, and rounded once (to nearest, ties to even).
package reduce

// DType is an element type. The values are those of goccl_dtype in goccl.h.
type DType uint8

const (
	Int8 DType = iota
	Uint8
	Int16
	Uint16
	Int32
	Uint32
	Int64
	Uint64
	Float16
	BFloat16
	Float32
	Float64
	Bool
	Complex32
	Complex64
	Complex128
	Float8E4M3FN
	Float8E5M2
	Float8E4M3FNUZ
	Float8E5M2FNUZ
	Bytes1
	numDTypes
)

// Op is a reduce op. The values are those of goccl_reduce_op in goccl.h.
type Op uint8

const (
	Sum Op = iota
	Avg
	Product
	Min
	Max
	BAnd
	BOr
	BXor
	PreMulSum
	numOps
)
