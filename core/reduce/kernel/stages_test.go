package kernel

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"unsafe"

	"github.com/goccl/goccl/core/reduce"
)

// There are functions of all stages where a partial sum is something else than an element, and for
// the whole alone where it is one or is not to be had.
func TestStagesOf(t *testing.T) {
	eachLevel(t, func(t *testing.T, level int) {
		for d := range numDTypes {
			for o := range numOps {
				size := 0
				if reduce.HasMeaning(d, o) {
					size = reduce.PartialSize(d, o)
				}
				for stage := reduce.First; stage <= reduce.Last; stage++ {
					if has := kernelAt(level, d, o, stage) != nil; has != (size > 0) {
						t.Errorf("%v %v: stage %d: %v, with partial sums of %d bytes", d, o, stage, has, size)
					}
				}
				if size%d.Size() != 0 {
					t.Errorf("%v %v: partial sums of %d bytes", d, o, size)
				}
			}
		}
	})
}

// What is reduced in stages has the bits of what is reduced at once, also where the ranks' CPUs are
// of different levels.
func TestStages(t *testing.T) {
	levels := []int{}
	eachLevel(t, func(_ *testing.T, level int) { levels = append(levels, level) })
	for d := range reduce.Bytes1 {
		t.Run(d.String(), func(t *testing.T) {
			t.Parallel()
			rnd := rand.New(rand.NewPCG(7, uint64(d)))
			counts := []int{1, 3, 67, 1029, 5000}
			if testing.Short() {
				counts = counts[:4]
			}
			for o := range numOps {
				if !reduce.HasMeaning(d, o) || reduce.PartialSize(d, o) == 0 {
					continue
				}
				for _, n := range []int{3, 4, 5, 6, 9, 13, 33} {
					for _, count := range counts {
						testStages(t, rnd, levels, d, o, n, count)
					}
				}
			}
		})
	}
}

func testStages(t *testing.T, rnd *rand.Rand, levels []int, d reduce.DType, o reduce.Op,
	n, count int) {
	factor := [2]float64{[]float64{0.5, -3, 1.0 / 3, 1e3}[rnd.IntN(4)], 0.75}
	inputs := make([][]byte, n)
	for i := range inputs {
		inputs[i] = make([]byte, count*d.Size())
		fill(d, inputs[i], rnd)
	}
	want := place(nil, count*d.Size(), 0)
	combineAt(level, d, o, []unsafe.Pointer{want.pointer()}, pointersTo(inputs...), count, factor)
	if o == reduce.Avg {
		factor[0] = float64(n)
	}
	stage := func(s reduce.Stage, size int, src [][]byte) []byte {
		dst := make([]placed, 1+rnd.IntN(2))
		for i := range dst {
			dst[i] = place(nil, count*size, rnd.IntN(2)*rnd.IntN(16))
		}
		from := make([]placed, len(src))
		for i := range src {
			from[i] = place(src[i], len(src[i]), rnd.IntN(2)*rnd.IntN(16))
		}
		if s == reduce.Middle && rnd.IntN(2) == 0 {
			dst[0] = from[rnd.IntN(len(from))]
		}
		stageAt(levels[rnd.IntN(len(levels))], d, o, s, pointers(dst), pointers(from), len(src[0]),
			factor)
		for i := range dst {
			if !dst[i].intact() || !slices.Equal(dst[i].bytes(), dst[0].bytes()) {
				t.Fatalf("%v %v, stage %d of %d elements: place %d is wrong", d, o, s, count, i)
			}
		}
		return dst[0].bytes()
	}
	partials := inputs
	for s, group := reduce.First, 1<<rnd.IntN(3); ; s, group = reduce.Middle, 2 {
		if len(partials) <= group || s == reduce.Middle && rnd.IntN(3) == 0 {
			if s == reduce.First {
				group = 2
			} else {
				break
			}
		}
		var next [][]byte
		for g := range slices.Chunk(partials, group) {
			next = append(next, stage(s, reduce.PartialSize(d, o), g))
		}
		partials = next
	}
	got := stage(reduce.Last, d.Size(), partials)
	if diff := firstDifference(got, want.bytes(), d.Size()); diff != "" {
		t.Fatalf("%v %v of %d inputs, %d elements, factor %v: %s", d, o, n, count, factor, diff)
	}
}

// Conversions to narrow floats round to nearest, ties to even, and back they are exact: at all
// levels, of any place and number of elements.
func TestConversions(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 9))
	eachLevel(t, func(t *testing.T, level int) {
		for _, from := range []reduce.DType{reduce.Float32, reduce.Float64} {
			for _, to := range []reduce.DType{reduce.BFloat16, reduce.Float16} {
				for _, n := range []int{1, 3, 31, 1025, 5000} {
					wide := make([]byte, n*from.Size())
					fill(from, wide, rnd)
					for i := 0; from == reduce.Float64 && i < len(wide); i += 8 { // within float32
						x := math.Float64frombits(binary.LittleEndian.Uint64(wide[i:]))
						binary.LittleEndian.PutUint64(wide[i:], math.Float64bits(math.Ldexp(math.Sin(x), 3)))
					}
					src := place(wide, len(wide), rnd.IntN(16))
					narrow := place(nil, n*to.Size(), rnd.IntN(16))
					convertAt(level, from, to, false, narrow.pointer(), src.pointer(), n)
					back := place(nil, len(wide), rnd.IntN(16))
					convertAt(level, from, to, true, back.pointer(), narrow.pointer(), n)
					if !narrow.intact() || !back.intact() {
						t.Fatal("it wrote beside the elements")
					}
					for i := range n {
						x, y := number(from, wide, i), number(from, back.bytes(), i)
						want := smallFloats[to].value[smallFloats[to].encode(float64(float32(x)))]
						if want != y && !(math.IsNaN(want) && math.IsNaN(y)) {
							t.Fatalf("%v to %v: %v is %v, want %v", from, to, x, y, want)
						}
					}
				}
			}
		}
	})
}

func number(d reduce.DType, b []byte, i int) float64 {
	if d == reduce.Float64 {
		return math.Float64frombits(binary.LittleEndian.Uint64(b[8*i:]))
	}
	return float64(math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:])))
}
