// Package reduce has the element types and the reduce ops: their names, and which op has a meaning
// for which type. Package kernel combines elements.
//
// Inputs are combined in the canonical order: the balanced binary tree over positions, aligned at
// powers of two. 16- and 8-bit floats are widened to float32, combined there, and rounded once (to
// nearest, ties to even).
//
// What an op means for a dtype:
//
//   - Integers wrap. AVG sums them in 64 bits and truncates towards zero. PREMUL_SUM truncates the
//     factor towards zero, so that one below 1 gives zeros.
//   - Bool: any byte but 0 is true, and results are 0 or 1.
//   - Complex products are (ac-bd) + (ad+bc)i, with none of the special cases of C for infinities.
//   - MIN and MAX of floats hand NaN on. Of zeros of both signs either may be the result, the same
//     on every rank.
//   - Beyond its range float8_e4m3fn, which has no infinity, gives its largest number, as torch
//     does since it changed this; the fnuz formats give NaN.
//
// The bits of a result depend on nothing but the inputs and their order: not on the CPU, the
// alignment, the place of an element or the floating-point mode of the calling thread. Every NaN
// result has the same bits, except that a single input is copied as it is (by all but PREMUL_SUM).
package reduce

import (
	"fmt"
	"strings"
)

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

// Names and sizes by dtype. The names are torch's.
var dtypes = [numDTypes]struct {
	name string
	size int
}{
	Int8: {"int8", 1}, Uint8: {"uint8", 1}, Int16: {"int16", 2}, Uint16: {"uint16", 2},
	Int32: {"int32", 4}, Uint32: {"uint32", 4}, Int64: {"int64", 8}, Uint64: {"uint64", 8},
	Float16: {"float16", 2}, BFloat16: {"bfloat16", 2}, Float32: {"float32", 4},
	Float64: {"float64", 8},
	Bool:    {"bool", 1}, Complex32: {"complex32", 4}, Complex64: {"complex64", 8},
	Complex128:   {"complex128", 16},
	Float8E4M3FN: {"float8_e4m3fn", 1}, Float8E5M2: {"float8_e5m2", 1},
	Float8E4M3FNUZ: {"float8_e4m3fnuz", 1}, Float8E5M2FNUZ: {"float8_e5m2fnuz", 1},
	Bytes1: {"bytes1", 1},
}

var opNames = [numOps]string{"SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR",
	"PREMUL_SUM"}

// Stage is one of those in which ranks reduce that exchange partial sums. The values are those of
// plan.Stage.
type Stage uint8

const (
	Whole  Stage = iota // there are no stages: inputs to a result, or to one that is an input again
	First               // inputs to a partial sum: with the factor of PREMUL_SUM
	Middle              // partial sums to one
	Last                // partial sums to the result: with the division of AVG, and the one rounding
)

// Valid tells whether d is one of the constants.
func (d DType) Valid() bool { return d < numDTypes }

// Size is the number of bytes of an element, 0 where d is not valid.
func (d DType) Size() int {
	if !d.Valid() {
		return 0
	}
	return dtypes[d].size
}

// String is torch's name of the type.
func (d DType) String() string {
	if !d.Valid() {
		return fmt.Sprintf("dtype(%d)", uint8(d))
	}
	return dtypes[d].name
}

// Valid tells whether o is one of the constants.
func (o Op) Valid() bool { return o < numOps }

// String is torch's name of the op.
func (o Op) String() string {
	if !o.Valid() {
		return fmt.Sprintf("op(%d)", uint8(o))
	}
	return opNames[o]
}

// Nests tells whether what comes of some inputs, a subtree of the canonical order, may itself be an
// input, with the same bits in the end: nothing is done once to a whole result, and no partial one
// has more bits than an element.
func Nests(d DType, o Op) bool {
	switch o {
	case Sum, Product:
		switch d {
		case Float16, BFloat16, Complex32, Float8E4M3FN, Float8E5M2, Float8E4M3FNUZ, Float8E5M2FNUZ:
			return false
		}
		return true
	case Min, Max, BAnd, BOr, BXor:
		return true
	}
	return false
}

// IsExact tells whether all orders of the inputs give the same bits.
func IsExact(d DType, o Op) bool {
	switch o {
	case Sum, Product:
		return d <= Uint64 || d == Bool
	case Min, Max, BAnd, BOr, BXor:
		return true
	}
	return false
}

// PartialSize is the number of bytes of a partial sum, or product, of elements where that is
// something else than an element, so that ranks which exchange some reduce in stages. It is 0 where
// the op nests, and of averages of integers below 64 bits, which have no stages.
//
// The partial sums of 16- and 8-bit floats are float32, in the order of elements.
func PartialSize(d DType, o Op) int {
	if !d.Valid() || Nests(d, o) {
		return 0
	}
	switch d {
	case Float16, BFloat16, Float8E4M3FN, Float8E5M2, Float8E4M3FNUZ, Float8E5M2FNUZ:
		return Float32.Size()
	case Complex32:
		return Complex64.Size()
	}
	if o == PreMulSum || o == Avg && d.Size() >= 8 || o == Avg && d == Float32 {
		return d.Size()
	}
	return 0
}

// Narrows tells whether elements of a dtype may travel as those of another one, with fewer bits.
func Narrows(from, to DType) bool {
	return (from == Float32 || from == Float64) && (to == BFloat16 || to == Float16)
}

// HasMeaning tells whether the op has a meaning for the dtype. Both must be valid.
func HasMeaning(d DType, o Op) bool {
	switch d {
	case Bytes1:
		return false
	case Float16, BFloat16, Float32, Float64, Float8E4M3FN, Float8E5M2, Float8E4M3FNUZ, Float8E5M2FNUZ:
		return o != BAnd && o != BOr && o != BXor
	case Complex32, Complex64, Complex128:
		return o == Sum || o == Avg || o == Product || o == PreMulSum
	case Bool:
		return o != Avg && o != PreMulSum
	}
	return true
}

// Check returns nil where the op has a meaning for the dtype, else an error that says what has.
func Check(d DType, o Op) error {
	if !d.Valid() {
		return fmt.Errorf("%v is not a dtype: it must be 0 to %d", d, numDTypes-1)
	}
	if !o.Valid() {
		return fmt.Errorf("%v is not a reduce op: it must be 0 to %d", o, numOps-1)
	}
	if HasMeaning(d, o) {
		return nil
	}
	var allowed []string
	for a := range numOps {
		if HasMeaning(d, a) {
			allowed = append(allowed, a.String())
		}
	}
	if allowed == nil {
		return fmt.Errorf("reduce op %v has no meaning for %v, which can be moved but not reduced", o, d)
	}
	return fmt.Errorf("reduce op %v has no meaning for %v, which allows %s", o, d,
		strings.Join(allowed, ", "))
}
