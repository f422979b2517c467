// Package kernel has the C functions that combine elements, in the canonical order that package
// reduce defines.
//
// A kernel combines n raw inputs into one output in a single pass. The bits of a result depend on
// nothing but the inputs and their order: not on the CPU, the alignment, the place of an element or
// the floating-point mode of the calling thread.
package kernel

// Strict ISO C keeps gcc from fusing multiplications with additions, which would make bits depend
// on the CPU.

/*
#cgo CFLAGS: -std=c11 -fvisibility=hidden
#cgo !asan CFLAGS: -O3
// Half the time to compile.
#cgo asan CFLAGS: -O1
#include "kernels.h"

static void convert(goccl_convert_fn *f, goccl_reduce_fn *const *sum, void *dst, const void *src,
                    size_t n) {
  f(sum, dst, src, n);
}

static void call(goccl_reduce_fn *f, void *const *dst, int n_dst, const void *const *src, int n,
                 size_t bytes, double re, double im) {
  const double factor[2] = {re, im};
  f(dst, n_dst, src, n, bytes, factor);
}
*/
import "C"

import (
	"runtime"
	"unsafe"

	"github.com/goccl/goccl/core/reduce"
)

// The tables of C are as long as those of Go.
var (
	_ [numDTypes]struct{} = [C.DTYPES]struct{}{}
	_ [numOps]struct{}    = [C.OPS]struct{}{}
	_ [numStages]struct{} = [C.STAGES]struct{}{}
)

// level is the best level of the instruction set that this CPU has; levels below it work too.
var level = int(C.goccl_reduce_level())

const (
	numDTypes = reduce.Bytes1 + 1
	numOps    = reduce.PreMulSum + 1
	numStages = reduce.Last + 1
)

// stages are C's table of functions, by stage.
type stages *[numStages]*C.goccl_reduce_fn

// stagesAt are those of a level, nil where there is no such level. Dtype and op must be valid.
func stagesAt(level int, d reduce.DType, o reduce.Op) stages {
	return stages(unsafe.Pointer(C.goccl_reduce_kernels(C.int(level), C.int(d), C.int(o))))
}

// kernelAt is the kernel of a level, nil where the op has no meaning, or no stages.
func kernelAt(level int, d reduce.DType, o reduce.Op, stage reduce.Stage) *C.goccl_reduce_fn {
	if s := stagesAt(level, d, o); s != nil {
		return s[stage]
	}
	return nil
}

// kernels is stagesAt of level: small operations ask often, and a crossing into C costs as much as
// they do.
var kernels = func() (k [numDTypes][numOps]stages) {
	for d := range numDTypes {
		for o := range numOps {
			k[d][o] = stagesAt(level, d, o)
		}
	}
	return k
}()

// Of returns the C functions that reduce, an array by [reduce.Stage]: goccl_reduce_fn of kernels.h,
// that is
//
//	void fn(void *const *dst, int n_dst, const void *const *src, int n, size_t bytes,
//	        const double *factor)
//
// It combines n inputs of so many bytes, which are whole elements, 1 <= n <= 65536, and reads them
// once. The n_dst places of the result must be apart from each other; each may be one of the
// inputs. All but the first are copied from the first, part by part as that is written, so that the
// first should be the one that nobody else reads. Any pointer may be of any alignment. factor is
// read for PreMulSum, one double, or two for complex types, and for Avg where there are stages: how
// many inputs there are in all. A function keeps no state and may run on many threads at once; it
// takes less than 80 KiB of stack.
//
// Where reduce.PartialSize is 0, there is a function for reduce.Whole only. Partial sums are
// reduce.PartialSize bytes each. Where that is more than an element, the places of a first or last
// stage's result are apart from its inputs.
func Of(d reduce.DType, o reduce.Op) (unsafe.Pointer, error) {
	if err := reduce.Check(d, o); err != nil {
		return nil, err
	}
	return unsafe.Pointer(kernels[d][o]), nil
}

// Conversions are C functions, goccl_convert_fn of kernels.h, and what these are called with.
type Conversions struct {
	Sum           unsafe.Pointer
	Narrow, Widen unsafe.Pointer
}

// Convert returns the conversions of a dtype to a narrow one, and back. There are those for which
// [reduce.Narrows] is true.
func Convert(from, to reduce.DType) Conversions {
	return Conversions{unsafe.Pointer(kernels[to][reduce.Sum]),
		unsafe.Pointer(C.goccl_narrow(C.int(from))), unsafe.Pointer(C.goccl_widen(C.int(from)))}
}

// combineAt runs the kernel of a level on count elements of memory that may be Go's. It is here for
// the tests, in which cgo cannot be used.
func combineAt(level int, d reduce.DType, o reduce.Op, dst, src []unsafe.Pointer, count int,
	factor [2]float64) {
	stageAt(level, d, o, reduce.Whole, dst, src, count*d.Size(), factor)
}

// stageAt runs the kernel of a stage, on inputs of so many bytes.
func stageAt(level int, d reduce.DType, o reduce.Op, stage reduce.Stage, dst, src []unsafe.Pointer,
	bytes int, factor [2]float64) {
	var pinned runtime.Pinner
	defer pinned.Unpin()
	for _, places := range [][]unsafe.Pointer{dst, src} {
		for _, p := range places {
			if p != nil {
				pinned.Pin(p)
			}
		}
	}
	C.call(kernelAt(level, d, o, stage), &dst[0], C.int(len(dst)), &src[0], C.int(len(src)),
		C.size_t(bytes), C.double(factor[0]), C.double(factor[1]))
}

// convertAt converts n elements at a level, to a narrow dtype or back.
func convertAt(level int, dtype, to reduce.DType, widen bool, dst, src unsafe.Pointer, n int) {
	var pinned runtime.Pinner
	defer pinned.Unpin()
	pinned.Pin(dst)
	pinned.Pin(src)
	f := C.goccl_narrow(C.int(dtype))
	if widen {
		f = C.goccl_widen(C.int(dtype))
	}
	C.convert(f, C.goccl_reduce_kernels(C.int(level), C.int(to), C.SUM), dst, src, C.size_t(n))
}
