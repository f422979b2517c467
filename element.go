package goccl

import (
	"math"
	"reflect"

	"github.com/goccl/goccl/core/reduce"
)

// Element is the types that collectives, sends and receives take. Beside Go's own numbers there are
// the short floats of machine learning, which Go has no types for.
//
// A type that is made of another one, such as time.Duration, counts as what it is made of. One that
// is made of a short float counts as the integer below: convert such slices to the short float.
// An int travels as an int64, and a uint as a uint64.
type Element interface {
	~int8 | ~uint8 | ~int16 | ~uint16 | ~int32 | ~uint32 | ~int64 | ~uint64 | ~int | ~uint |
		~float32 | ~float64 | ~bool | ~complex64 | ~complex128 | ~[2]Float16
}

// The short floats, each the bits of one number. They are added in float32 and rounded once.
type (
	// Float16 is IEEE 754's binary16: see [Float16Of].
	Float16 uint16
	// BFloat16 is the upper half of a float32: see [BFloat16Of].
	BFloat16 uint16
	// Float8E4M3FN has 4 bits of exponent and no infinity: torch.float8_e4m3fn.
	Float8E4M3FN uint8
	// Float8E5M2 has 5 bits of exponent: torch.float8_e5m2.
	Float8E5M2 uint8
	// Float8E4M3FNUZ has one zero, one NaN and no infinity: torch.float8_e4m3fnuz.
	Float8E4M3FNUZ uint8
	// Float8E5M2FNUZ has one zero, one NaN and no infinity: torch.float8_e5m2fnuz.
	Float8E5M2FNUZ uint8
	// Complex32 is a real and an imaginary part.
	Complex32 [2]Float16
)

var kinds = map[reflect.Kind]reduce.DType{
	reflect.Int8: reduce.Int8, reflect.Uint8: reduce.Uint8, reflect.Int16: reduce.Int16,
	reflect.Uint16: reduce.Uint16, reflect.Int32: reduce.Int32, reflect.Uint32: reduce.Uint32,
	reflect.Int64: reduce.Int64, reflect.Uint64: reduce.Uint64, reflect.Int: reduce.Int64,
	reflect.Uint: reduce.Uint64, reflect.Float32: reduce.Float32, reflect.Float64: reduce.Float64,
	reflect.Bool: reduce.Bool, reflect.Complex64: reduce.Complex64,
	reflect.Complex128: reduce.Complex128, reflect.Array: reduce.Complex32,
}

func dtypeOf[T Element]() reduce.DType {
	switch any((*T)(nil)).(type) {
	case *float32:
		return reduce.Float32
	case *float64:
		return reduce.Float64
	case *Float16:
		return reduce.Float16
	case *BFloat16:
		return reduce.BFloat16
	case *Float8E4M3FN:
		return reduce.Float8E4M3FN
	case *Float8E5M2:
		return reduce.Float8E5M2
	case *Float8E4M3FNUZ:
		return reduce.Float8E4M3FNUZ
	case *Float8E5M2FNUZ:
		return reduce.Float8E5M2FNUZ
	}
	return kinds[reflect.TypeFor[T]().Kind()]
}

// Float16Of returns the Float16 that is nearest to f, and of two that are as near the even one.
// Beyond 65504 and what rounds to it is infinity.
func Float16Of(f float32) Float16 {
	b := math.Float32bits(f)
	sign := uint16(b >> 16 & 0x8000)
	magnitude := b &^ (1 << 31)
	switch {
	case magnitude > 0x7f800000:
		return Float16(sign | 0x7e00)
	case magnitude < 0x38800000: // below the least normal one, 2^-14
		units := math.RoundToEven(math.Abs(float64(f)) * (1 << 24))
		return Float16(sign | uint16(units))
	}
	// The exponent's bias goes from 127 to 15, 23 bits of mantissa are rounded to 10.
	rounded := (magnitude - 112<<23 + 0xfff + magnitude>>13&1) >> 13
	return Float16(sign | uint16(min(rounded, 0x7c00)))
}

// Float32 returns the number as a float32, which has all of them.
func (f Float16) Float32() float32 {
	exponent, mantissa := int(f>>10&31), int(f&0x3ff)
	var v float64
	switch exponent {
	case 0:
		v = math.Ldexp(float64(mantissa), -24)
	case 31:
		if v = math.Inf(1); mantissa != 0 {
			v = math.NaN()
		}
	default:
		v = math.Ldexp(float64(mantissa|0x400), exponent-25)
	}
	if f>>15 != 0 {
		v = -v
	}
	return float32(v)
}

// BFloat16Of returns the BFloat16 that is nearest to f, and of two that are as near the even one.
func BFloat16Of(f float32) BFloat16 {
	b := math.Float32bits(f)
	if f != f {
		return BFloat16(b>>16 | 0x40)
	}
	return BFloat16((b + 0x7fff + b>>16&1) >> 16)
}

// Float32 returns the number as a float32, which has all of them.
func (f BFloat16) Float32() float32 { return math.Float32frombits(uint32(f) << 16) }

// Op is how a collective combines elements. The zero Op is [Sum].
//
// Elements are combined in one order, the balanced binary tree over ranks, so the result has the
// same bits on all ranks, on every run and over every transport. Integers wrap. An op that has no
// meaning for a type, such as Min of complex numbers, is an [ErrInvalidArgument].
type Op struct {
	op     reduce.Op
	factor complex128
}

// The ops. BAnd, BOr and BXor take integers and bools. Of bools Sum, Max and BOr are "or", and
// Product, Min and BAnd are "and". Avg of integers truncates towards zero. Min and Max of floats
// hand NaN on.
var (
	Sum     = Op{op: reduce.Sum}
	Avg     = Op{op: reduce.Avg}
	Product = Op{op: reduce.Product}
	Min     = Op{op: reduce.Min}
	Max     = Op{op: reduce.Max}
	BAnd    = Op{op: reduce.BAnd}
	BOr     = Op{op: reduce.BOr}
	BXor    = Op{op: reduce.BXor}
)

// PreMulSum is the sum of all ranks' elements, each multiplied by its rank's factor before. An
// imaginary part counts for complex elements only. Of integers the factor is truncated.
func PreMulSum(factor complex128) Op { return Op{reduce.PreMulSum, factor} }

// String returns the op's name, such as "SUM".
func (o Op) String() string { return o.op.String() }
