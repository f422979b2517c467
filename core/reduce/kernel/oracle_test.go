package kernel

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
	"sort"

	"github.com/goccl/goccl/core/reduce"
)

// The oracle: what a reduction must give, one element at a time, written apart from the kernels.
// Small floats are tables of the values of their codes, and rounding is a search in them.

// smallFloat is a format of 8 or 16 bits.
type smallFloat struct {
	bits      int
	value     []float64 // by code
	positive  []float64 // of the codes 0, 1, ... up to the largest finite number
	nan       uint16    // the one that kernels give
	over      uint16    // the code beyond the largest number
	saturates bool      // over is the largest number, and there is no way beyond
	signless  bool      // over has no sign, nor has zero
}

func newSmallFloat(exponent, mantissa, bias int, ieee, fnuz bool) *smallFloat {
	f := &smallFloat{bits: 1 + exponent + mantissa, signless: fnuz}
	sign := 1 << (exponent + mantissa)
	topExponent := 1<<exponent - 1
	for code := range 2 * sign {
		e, m := code&(sign-1)>>mantissa, code&(1<<mantissa-1)
		v := math.Ldexp(float64(m), 1-bias-mantissa)
		if e > 0 {
			v = math.Ldexp(float64(m+1<<mantissa), e-bias-mantissa)
		}
		switch {
		case ieee && e == topExponent && m == 0:
			v = math.Inf(1)
		case ieee && e == topExponent, !ieee && !fnuz && code&(sign-1) == sign-1, fnuz && code == sign:
			v = math.NaN()
		}
		if code >= sign {
			v = math.Copysign(v, -1)
		}
		f.value = append(f.value, v)
		if code < sign && !math.IsNaN(v) && !math.IsInf(v, 0) {
			f.positive = append(f.positive, v)
		}
	}
	largest := uint16(len(f.positive) - 1)
	switch {
	case ieee:
		f.over, f.nan = largest+1, uint16(sign)-1
	case fnuz:
		f.over, f.nan = uint16(sign), uint16(sign)
	default:
		f.over, f.nan, f.saturates = largest, uint16(sign)-1, true
	}
	return f
}

// encode rounds to nearest, ties to the even code.
func (f *smallFloat) encode(v float64) uint16 {
	if math.IsNaN(v) {
		return f.nan
	}
	var sign uint16
	if math.Signbit(v) {
		sign = 1 << (f.bits - 1)
	}
	size := math.Abs(v)
	last := len(f.positive) - 1
	above := sort.SearchFloat64s(f.positive, size) // the first code that is not less
	code := uint16(above)
	if above > last {
		step := f.positive[last] - f.positive[last-1]
		half := f.positive[last] + step/2
		code = uint16(last)
		if size > half || size == half && last%2 == 1 || f.saturates {
			code = f.over
		}
	} else if f.positive[above] != size {
		under := size - f.positive[above-1]
		over := f.positive[above] - size
		if under < over || under == over && above%2 == 1 {
			code--
		}
	}
	if f.signless && (code == 0 || code == f.over) {
		return code
	}
	return code | sign
}

var smallFloats = func() map[reduce.DType]*smallFloat {
	m := map[reduce.DType]*smallFloat{
		reduce.Float16:        newSmallFloat(5, 10, 15, true, false),
		reduce.BFloat16:       newSmallFloat(8, 7, 127, true, false),
		reduce.Float8E4M3FN:   newSmallFloat(4, 3, 7, false, false),
		reduce.Float8E5M2:     newSmallFloat(5, 2, 15, true, false),
		reduce.Float8E4M3FNUZ: newSmallFloat(4, 3, 8, false, true),
		reduce.Float8E5M2FNUZ: newSmallFloat(5, 2, 16, false, true),
	}
	m[reduce.Float16].nan, m[reduce.BFloat16].nan = 0x7e00, 0x7fc0
	m[reduce.Complex32] = m[reduce.Float16]
	return m
}()

// tree combines in the canonical order.
func tree[T any](x []T, op func(a, b T) T) T {
	if len(x) == 1 {
		return x[0]
	}
	half := 1 << (bits.Len(uint(len(x)-1)) - 1)
	return op(tree(x[:half], op), tree(x[half:], op))
}

type float interface{ float32 | float64 }

// expectReal reduces numbers of a type whose arithmetic is that of the partial results.
func expectReal[T float](o reduce.Op, x []T, factor float64) T {
	if o == reduce.PreMulSum {
		y := make([]T, len(x))
		for i, v := range x {
			y[i] = v * T(factor)
		}
		x = y
	}
	r := tree(x, func(a, b T) T {
		switch {
		case o == reduce.Product:
			return a * b
		case (o == reduce.Min || o == reduce.Max) && a != a:
			return a
		case o == reduce.Min && a < b, o == reduce.Max && a > b:
			return a
		case o == reduce.Min, o == reduce.Max:
			return b
		}
		return a + b
	})
	if o == reduce.Avg {
		r /= T(len(x))
	}
	return r
}

type parts[T float] struct{ re, im T }

func expectComplex[T float](o reduce.Op, x []parts[T], factor [2]float64) parts[T] {
	times := func(a, b parts[T]) parts[T] {
		return parts[T]{T(a.re*b.re) - T(a.im*b.im), T(a.re*b.im) + T(a.im*b.re)}
	}
	if o == reduce.PreMulSum {
		y := make([]parts[T], len(x))
		for i, v := range x {
			y[i] = times(parts[T]{T(factor[0]), T(factor[1])}, v)
		}
		x = y
	}
	r := tree(x, func(a, b parts[T]) parts[T] {
		if o == reduce.Product {
			return times(a, b)
		}
		return parts[T]{a.re + b.re, a.im + b.im}
	})
	if o == reduce.Avg {
		r.re /= T(len(x))
		r.im /= T(len(x))
	}
	return r
}

func isSigned(d reduce.DType) bool {
	return d == reduce.Int8 || d == reduce.Int16 || d == reduce.Int32 || d == reduce.Int64
}
func isInteger(d reduce.DType) bool { return d <= reduce.Uint64 }

// expectInteger reduces numbers that were extended to 64 bits. The caller cuts the result.
func expectInteger(d reduce.DType, o reduce.Op, x []uint64, factor float64) uint64 {
	if o == reduce.PreMulSum {
		y := make([]uint64, len(x))
		for i, v := range x {
			y[i] = v * uint64(int64(factor))
		}
		x = y
	}
	less := func(a, b uint64) bool {
		if isSigned(d) {
			return int64(a) < int64(b)
		}
		return a < b
	}
	r := tree(x, func(a, b uint64) uint64 {
		switch o {
		case reduce.Product:
			return a * b
		case reduce.Min:
			if less(a, b) {
				return a
			}
			return b
		case reduce.Max:
			if less(a, b) {
				return b
			}
			return a
		case reduce.BAnd:
			return a & b
		case reduce.BOr:
			return a | b
		case reduce.BXor:
			return a ^ b
		}
		return a + b
	})
	if o == reduce.Avg {
		if isSigned(d) {
			return uint64(int64(r) / int64(len(x)))
		}
		return r / uint64(len(x))
	}
	return r
}

func expectBool(o reduce.Op, x []bool) bool {
	return tree(x, func(a, b bool) bool {
		switch o {
		case reduce.BXor:
			return a != b
		case reduce.Product, reduce.Min, reduce.BAnd:
			return a && b
		}
		return a || b
	})
}

func load(size int, b []byte) uint64 {
	var w [8]byte
	copy(w[:], b[:size])
	return binary.LittleEndian.Uint64(w[:])
}

func store(size int, b []byte, v uint64) {
	var w [8]byte
	binary.LittleEndian.PutUint64(w[:], v)
	copy(b[:size], w[:])
}

func bits32(v float32) uint64 {
	if v != v {
		return 0x7fc00000
	}
	return uint64(math.Float32bits(v))
}

func bits64(v float64) uint64 {
	if v != v {
		return 0x7ff8000000000000
	}
	return math.Float64bits(v)
}

// expect reduces count elements of every src.
func expect(d reduce.DType, o reduce.Op, src [][]byte, count int, factor [2]float64) []byte {
	size := d.Size()
	if len(src) == 1 && o != reduce.PreMulSum && d != reduce.Bool {
		return append([]byte(nil), src[0][:count*size]...)
	}
	out := make([]byte, count*size)
	n := len(src)
	u := make([]uint64, n)
	f32, c64 := make([]float32, n), make([]parts[float32], n)
	f64, c128 := make([]float64, n), make([]parts[float64], n)
	truth := make([]bool, n)
	for i := range count {
		at := i * size
		to := out[at : at+size]
		small := smallFloats[d]
		for r, s := range src {
			e := s[at : at+size]
			switch {
			case isSigned(d):
				shift := 64 - 8*size
				u[r] = uint64(int64(load(size, e)<<shift) >> shift)
			case isInteger(d):
				u[r] = load(size, e)
			case d == reduce.Bool:
				truth[r] = e[0] != 0
			case d == reduce.Complex32:
				c64[r] = parts[float32]{float32(small.value[load(2, e)]), float32(small.value[load(2, e[2:])])}
			case small != nil:
				f32[r] = float32(small.value[load(size, e)])
			case d == reduce.Float32:
				f32[r] = math.Float32frombits(uint32(load(4, e)))
			case d == reduce.Float64:
				f64[r] = math.Float64frombits(load(8, e))
			case d == reduce.Complex64:
				c64[r] = parts[float32]{math.Float32frombits(uint32(load(4, e))),
					math.Float32frombits(uint32(load(4, e[4:])))}
			case d == reduce.Complex128:
				c128[r] = parts[float64]{math.Float64frombits(load(8, e)), math.Float64frombits(load(8, e[8:]))}
			default:
				panic(fmt.Sprintf("no oracle for %v", d))
			}
		}
		switch {
		case isInteger(d):
			store(size, to, expectInteger(d, o, u, factor[0]))
		case d == reduce.Bool:
			if expectBool(o, truth) {
				to[0] = 1
			}
		case d == reduce.Complex32:
			c := expectComplex(o, c64, factor)
			store(2, to, uint64(small.encode(float64(c.re))))
			store(2, to[2:], uint64(small.encode(float64(c.im))))
		case small != nil:
			store(size, to, uint64(small.encode(float64(expectReal(o, f32, factor[0])))))
		case d == reduce.Float32:
			store(4, to, bits32(expectReal(o, f32, factor[0])))
		case d == reduce.Float64:
			store(8, to, bits64(expectReal(o, f64, factor[0])))
		case d == reduce.Complex64:
			c := expectComplex(o, c64, factor)
			store(4, to, bits32(c.re))
			store(4, to[4:], bits32(c.im))
		case d == reduce.Complex128:
			c := expectComplex(o, c128, factor)
			store(8, to, bits64(c.re))
			store(8, to[8:], bits64(c.im))
		}
	}
	return out
}
