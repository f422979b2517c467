package kernel

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/goccl/goccl/core/reduce"
	"github.com/goccl/goccl/core/reduce/kernel/internal/floatmode"
)

// There are kernels for what has a meaning, at every level, and for nothing else.
func TestOf(t *testing.T) {
	eachLevel(t, func(t *testing.T, level int) {
		for d := range numDTypes {
			for o := range numOps {
				has := reduce.HasMeaning(d, o)
				fn, err := Of(d, o)
				kernel := kernelAt(level, d, o, reduce.Whole)
				if (kernel != nil) != has || (fn != nil) != has || (err == nil) != has {
					t.Errorf("%v %v has a meaning: %v; its kernel: %v, %v", d, o, has, fn, err)
				}
			}
		}
	})
	if _, err := Of(200, 200); err == nil {
		t.Error("there is a kernel for no type")
	}
}

// What nests has the same bits whether it is reduced at once, or first in groups; of what does not,
// some has others.
func TestNests(t *testing.T) {
	const ranks, count = 8, 203
	rounds := 10
	if testing.Short() {
		rounds = 2
	}
	differ := map[reduce.Op]bool{}
	eachLevel(t, func(t *testing.T, level int) {
		rnd := rand.New(rand.NewPCG(3, 4))
		for d := range numDTypes {
			for o := range numOps {
				for i := 0; i < rounds && reduce.HasMeaning(d, o); i++ {
					inputs := make([][]byte, ranks)
					for k := range inputs {
						inputs[k] = make([]byte, count*d.Size())
						fill(d, inputs[k], rnd)
					}
					combine := func(inputs ...[]byte) []byte { return combineBytes(level, d, o, 1.5, inputs...) }
					for _, group := range []int{2, 4} {
						var partial [][]byte
						for g := range slices.Chunk(inputs, group) {
							partial = append(partial, combine(g...))
						}
						same := bytes.Equal(combine(inputs...), combine(partial...))
						if !same && reduce.Nests(d, o) {
							t.Fatalf("%v %v: other bits in groups of %d", d, o, group)
						}
						differ[o] = differ[o] || !same
					}
				}
			}
		}
	})
	for _, o := range []reduce.Op{reduce.Sum, reduce.Product, reduce.Avg, reduce.PreMulSum} {
		if !differ[o] {
			t.Errorf("%v: the same bits of all types", o)
		}
	}
}

// eachLevel runs a test at every level of the instruction set that this CPU has.
func eachLevel(t *testing.T, f func(t *testing.T, level int)) {
	for l := 0; l <= level; l++ {
		if kernelAt(l, reduce.Float32, reduce.Sum, reduce.Whole) != nil {
			t.Run(fmt.Sprintf("level%d", l), func(t *testing.T) { f(t, l) })
		}
	}
}

// fill makes elements: half of any bits, so that every kind of number occurs, half of modest size,
// so that results are numbers.
func fill(d reduce.DType, b []byte, r *rand.Rand) {
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	real, step := d, d.Size()
	switch d {
	case reduce.Complex32:
		real, step = reduce.Float16, 2
	case reduce.Complex64:
		real, step = reduce.Float32, 4
	case reduce.Complex128:
		real, step = reduce.Float64, 8
	}
	for i := 0; i+step <= len(b); i += step {
		v := math.Ldexp(r.Float64()-0.5, r.IntN(8)-3)
		switch {
		case r.IntN(2) == 0:
		case smallFloats[real] != nil:
			store(step, b[i:], uint64(smallFloats[real].encode(v)))
		case real == reduce.Float32:
			binary.LittleEndian.PutUint32(b[i:], math.Float32bits(float32(v)))
		case real == reduce.Float64:
			binary.LittleEndian.PutUint64(b[i:], math.Float64bits(v))
		case d == reduce.Bool:
			b[i] &= 1
		}
	}
}

// placed is memory at an odd address between guards.
type placed struct {
	all    []byte
	off, n int
}

func place(data []byte, n, off int) placed {
	p := placed{bytes.Repeat([]byte{0xa5}, n+off+64), off, n}
	copy(p.bytes(), data)
	return p
}
func (p placed) bytes() []byte           { return p.all[p.off : p.off+p.n] }
func (p placed) pointer() unsafe.Pointer { return unsafe.Pointer(&p.all[p.off]) }
func (p placed) intact() bool {
	for i, b := range p.all {
		if (i < p.off || i >= p.off+p.n) && b != 0xa5 {
			return false
		}
	}
	return true
}

func firstDifference(got, want []byte, size int) string {
	for i := 0; i < len(want); i += size {
		if !bytes.Equal(got[i:i+size], want[i:i+size]) {
			return fmt.Sprintf("element %d is %x, want %x (bytes in order of memory)", i/size, got[i:i+size],
				want[i:i+size])
		}
	}
	return ""
}

// Everything against the oracle, at every level, apart and in place, at odd addresses.
func TestCombine(t *testing.T) {
	for d := range reduce.Bytes1 {
		t.Run(d.String(), func(t *testing.T) {
			t.Parallel()
			r := rand.New(rand.NewPCG(1, uint64(d)))
			counts := []int{0, 1, 3, 67, 1029}
			if testing.Short() {
				counts = counts[:4]
			}
			for o := range numOps {
				if reduce.HasMeaning(d, o) {
					for _, n := range []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 33} {
						for _, count := range counts {
							testCombine(t, r, d, o, n, count)
						}
					}
				}
			}
		})
	}
}

// Nothing is read or written beyond the page in which an input or the result ends.
func TestAtTheEndOfMemory(t *testing.T) {
	page := os.Getpagesize()
	var ends [3][]byte // two inputs and the result, each before a page that cannot be touched
	for i := range ends {
		mem, err := unix.Mmap(-1, 0, 2*page, unix.PROT_READ|unix.PROT_WRITE,
			unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Munmap(mem)
		if err := unix.Mprotect(mem[page:], unix.PROT_NONE); err != nil {
			t.Fatal(err)
		}
		ends[i] = mem[:page]
	}
	r := rand.New(rand.NewPCG(3, 0))
	factor := [2]float64{0.5, -0.25}
	for d := range reduce.Bytes1 {
		for o := range numOps {
			for _, count := range []int{1, 2, 3, 5, 9, 15, 17, 33} {
				if !reduce.HasMeaning(d, o) {
					continue
				}
				bytes := count * d.Size()
				var at [3][]byte
				for i := range at {
					at[i] = ends[i][page-bytes:]
				}
				fill(d, at[0], r)
				fill(d, at[1], r)
				want := expect(d, o, at[:2], count, factor)
				for l := 0; l <= level; l++ {
					combineAt(l, d, o, pointersTo(at[2]), pointersTo(at[0], at[1]), count, factor)
					if diff := firstDifference(at[2], want, d.Size()); diff != "" {
						t.Errorf("%v %v of %d elements, level %d: %s", d, o, count, l, diff)
					}
				}
			}
		}
	}
}

func pointersTo(blocks ...[]byte) []unsafe.Pointer {
	var p []unsafe.Pointer
	for _, b := range blocks {
		p = append(p, unsafe.Pointer(&b[0]))
	}
	return p
}

// Long enough for every round of every kernel, several blocks and an odd end.
func TestCombineLong(t *testing.T) {
	for d := range reduce.Bytes1 {
		t.Run(d.String(), func(t *testing.T) {
			t.Parallel()
			r := rand.New(rand.NewPCG(2, uint64(d)))
			for _, o := range []reduce.Op{reduce.Sum, reduce.Avg, reduce.PreMulSum} {
				if reduce.HasMeaning(d, o) {
					testCombine(t, r, d, o, 2, 20011)
					testCombine(t, r, d, o, 6, 5003)
				}
			}
		})
	}
}

func testCombine(t *testing.T, r *rand.Rand, d reduce.DType, o reduce.Op, n, count int) {
	size := d.Size()
	factor := [2]float64{[]float64{0.5, -3, 1.0 / 3, 1e3}[r.IntN(4)], 0.75}
	data := make([][]byte, n)
	for i := range data {
		data[i] = make([]byte, count*size)
		fill(d, data[i], r)
	}
	want := expect(d, o, data, count, factor)
	for l := 0; l <= level; l++ {
		if kernelAt(l, d, o, reduce.Whole) == nil {
			t.Fatalf("%v %v: level %d has no kernel", d, o, l)
		}
		// dst apart (-1), then as one of the inputs.
		for _, alias := range []int{-1, 0, n - 1, r.IntN(n)} {
			src := make([]placed, n)
			pointers := make([]unsafe.Pointer, n)
			for i := range src {
				src[i] = place(data[i], len(want), r.IntN(2)*r.IntN(16))
				pointers[i] = src[i].pointer()
			}
			dst := place(nil, len(want), r.IntN(2)*r.IntN(16))
			if alias >= 0 {
				dst = src[alias]
			}
			combineAt(l, d, o, []unsafe.Pointer{dst.pointer()}, pointers, count, factor)
			if diff := firstDifference(dst.bytes(), want, size); diff != "" {
				t.Fatalf("%v %v of %d inputs, %d elements, level %d, dst %d, factor %v: %s", d, o, n, count, l,
					alias, factor, diff)
			}
			if !dst.intact() {
				t.Fatalf("%v %v of %d inputs, %d elements, level %d: wrote beyond dst", d, o, n, count, l)
			}
			for i := range src {
				if i != alias && !bytes.Equal(src[i].bytes(), data[i]) {
					t.Fatalf("%v %v of %d inputs, %d elements, level %d: wrote to input %d", d, o, n, count, l, i)
				}
			}
		}
	}
}

// Several places for the result, none, some or all of which are inputs: below a block of the first
// level of the cache, and beyond it.
func TestCombineInto(t *testing.T) {
	for d := range reduce.Bytes1 {
		t.Run(d.String(), func(t *testing.T) {
			t.Parallel()
			r := rand.New(rand.NewPCG(6, uint64(d)))
			for o := range numOps {
				if !reduce.HasMeaning(d, o) {
					continue
				}
				for _, n := range []int{1, 2, 3, 4, 7} {
					testCombineInto(t, r, d, o, n, 5)
					testCombineInto(t, r, d, o, n, 133)
					if o == reduce.Avg || o == reduce.BXor {
						testCombineInto(t, r, d, o, n, 20011/d.Size())
					}
				}
			}
		})
	}
}

func testCombineInto(t *testing.T, r *rand.Rand, d reduce.DType, o reduce.Op, n, count int) {
	factor := [2]float64{-1.5, 0.75}
	data := make([][]byte, n)
	for i := range data {
		data[i] = make([]byte, count*d.Size())
		fill(d, data[i], r)
	}
	want := expect(d, o, data, count, factor)
	for l := 0; l <= level; l++ {
		src := make([]placed, n)
		for i := range src {
			src[i] = place(data[i], len(want), r.IntN(2)*r.IntN(16))
		}
		dst := append([]placed(nil), src...)
		for range 3 {
			dst = append(dst, place(nil, len(want), r.IntN(2)*r.IntN(16)))
		}
		r.Shuffle(len(dst), func(i, j int) { dst[i], dst[j] = dst[j], dst[i] })
		dst = dst[:2+r.IntN(len(dst)-1)]
		combineAt(l, d, o, pointers(dst), pointers(src), count, factor)
		for i, p := range dst {
			if diff := firstDifference(p.bytes(), want, d.Size()); diff != "" {
				t.Fatalf("%v %v of %d inputs, %d elements, level %d, place %d of %d: %s", d, o, n, count, l, i,
					len(dst), diff)
			}
			if !p.intact() {
				t.Fatalf("%v %v of %d inputs, %d elements, level %d: wrote beyond place %d", d, o, n, count, l,
					i)
			}
		}
		for i, p := range src {
			isPlace := slices.ContainsFunc(dst, func(q placed) bool { return &q.all[0] == &p.all[0] })
			if !isPlace && !bytes.Equal(p.bytes(), data[i]) {
				t.Fatalf("%v %v of %d inputs, %d elements, level %d: wrote to input %d", d, o, n, count, l, i)
			}
		}
	}
}

func pointers(p []placed) []unsafe.Pointer {
	q := make([]unsafe.Pointer, len(p))
	for i := range p {
		q[i] = p[i].pointer()
	}
	return q
}

func combineBytes(level int, d reduce.DType, o reduce.Op, factor float64, src ...[]byte) []byte {
	dst := make([]byte, len(src[0]))
	pointers := make([]unsafe.Pointer, len(src))
	for i := range src {
		pointers[i] = unsafe.Pointer(&src[i][0])
	}
	combineAt(level, d, o, []unsafe.Pointer{unsafe.Pointer(&dst[0])}, pointers, len(dst)/d.Size(),
		[2]float64{factor})
	return dst
}

// Every code of the small floats is decoded and encoded: as its own maximum, and plus zero.
func TestEveryCode(t *testing.T) {
	for d, f := range smallFloats {
		if d == reduce.Complex32 {
			continue
		}
		size := d.Size()
		codes := make([]byte, size<<(8*size))
		for c := range len(codes) / size {
			store(size, codes[c*size:], uint64(c))
		}
		zeros := make([]byte, len(codes))
		eachLevel(t, func(t *testing.T, level int) {
			max := combineBytes(level, d, reduce.Max, 0, codes, codes)
			sum := combineBytes(level, d, reduce.Sum, 0, codes, zeros)
			scaled := combineBytes(level, d, reduce.PreMulSum, 2, codes)
			for c, v := range f.value {
				same := uint64(c)
				if v != v {
					same = uint64(f.nan)
				}
				if got := load(size, max[c*size:]); got != same {
					t.Fatalf("%v: the maximum of %#x and itself is %#x", d, c, got)
				}
				if got, want := load(size, sum[c*size:]), uint64(f.encode(v+0)); got != want {
					t.Fatalf("%v: %#x plus zero is %#x, want %#x", d, c, got, want)
				}
				if got, want := load(size,
					scaled[c*size:]), uint64(f.encode(float64(float32(v)*2))); got != want {
					t.Fatalf("%v: twice %#x is %#x, want %#x", d, c, got, want)
				}
			}
		})
	}
}

// Every pair of codes of 8 bits.
func TestEveryPair(t *testing.T) {
	for d := range smallFloats {
		if d.Size() != 1 {
			continue
		}
		a, b := make([]byte, 65536), make([]byte, 65536)
		for i := range a {
			a[i], b[i] = byte(i), byte(i>>8)
		}
		for _, o := range []reduce.Op{reduce.Sum, reduce.Avg, reduce.Product, reduce.Min, reduce.Max} {
			want := expect(d, o, [][]byte{a, b}, len(a), [2]float64{})
			eachLevel(t, func(t *testing.T, level int) {
				if diff := firstDifference(combineBytes(level, d, o, 0, a, b), want, 1); diff != "" {
					t.Fatalf("%v %v: %s", d, o, diff)
				}
			})
		}
	}
}

// Rounding of any float32: 1 times a factor is the factor, rounded. At each code, at each point
// between two codes and beside it, at random, and at the extremes.
func TestRounding(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 0))
	for d, f := range smallFloats {
		if d == reduce.Complex32 {
			continue
		}
		values := []float32{0, 1, math.MaxFloat32, math.SmallestNonzeroFloat32, float32(math.Inf(1)),
			float32(math.NaN()),
			0x1p-126, 0x1.fffffcp-127, 0x1p-149 * 12345}
		stride := 1
		if d.Size() == 2 {
			stride = 7
		}
		for c := 0; c < len(f.positive); c += stride {
			at := f.positive[c]
			next := 2*at - f.positive[max(c-1, 0)]
			if c+1 < len(f.positive) {
				next = f.positive[c+1]
			}
			middle := float32((at + next) / 2)
			values = append(values, float32(at), middle, math.Nextafter32(middle, 0),
				math.Nextafter32(middle, math.MaxFloat32))
		}
		for range 3000 {
			values = append(values, math.Float32frombits(r.Uint32()), float32(math.Ldexp(r.Float64(),
				r.IntN(40)-30)))
		}
		size := d.Size()
		ones := make([]byte, 5*size)
		for i := 0; i < len(ones); i += size {
			store(size, ones[i:], uint64(f.encode(1)))
		}
		eachLevel(t, func(t *testing.T, level int) {
			for _, v := range values {
				for _, v := range []float32{v, -v} {
					got := combineBytes(level, d, reduce.PreMulSum, float64(v), ones)
					for i := 0; i < len(got); i += size {
						if got, want := load(size, got[i:]), uint64(f.encode(float64(v))); got != want {
							t.Fatalf("%v: %v (%#x) is rounded to %#x, want %#x", d, v, math.Float32bits(v), got, want)
						}
					}
				}
			}
		})
	}
}

// The oracle's own tables, by values known from the definitions of the formats.
func TestOracle(t *testing.T) {
	for _, c := range []struct {
		d     reduce.DType
		code  uint16
		value float64
	}{
		{reduce.Float16, 0x3c00, 1}, {reduce.Float16, 0x7bff, 65504}, {reduce.Float16, 0x0001,
			0x1p-24}, {reduce.Float16, 0x0400, 0x1p-14}, {reduce.Float16, 0xfc00, math.Inf(-1)},
		{reduce.BFloat16, 0x3f80, 1}, {reduce.BFloat16, 0x7f7f, 0x1.fep127}, {reduce.BFloat16, 0x0001,
			0x1p-133}, {reduce.BFloat16, 0x7f80, math.Inf(1)},
		{reduce.Float8E4M3FN, 0x38, 1}, {reduce.Float8E4M3FN, 0x7e, 448}, {reduce.Float8E4M3FN, 0x01,
			0x1p-9}, {reduce.Float8E4M3FN, 0x08, 0x1p-6},
		{reduce.Float8E5M2, 0x3c, 1}, {reduce.Float8E5M2, 0x7b, 57344}, {reduce.Float8E5M2, 0x01,
			0x1p-16}, {reduce.Float8E5M2, 0x7c, math.Inf(1)},
		{reduce.Float8E4M3FNUZ, 0x40, 1}, {reduce.Float8E4M3FNUZ, 0x7f, 240}, {reduce.Float8E4M3FNUZ,
			0x01, 0x1p-10}, {reduce.Float8E4M3FNUZ, 0xff, -240},
		{reduce.Float8E5M2FNUZ, 0x40, 1}, {reduce.Float8E5M2FNUZ, 0x7f, 57344}, {reduce.Float8E5M2FNUZ,
			0x01, 0x1p-17},
	} {
		f := smallFloats[c.d]
		if f.value[c.code] != c.value || f.encode(c.value) != c.code {
			t.Errorf("%v: %#x is %v, want %v; encoded as %#x", c.d, c.code, f.value[c.code], c.value,
				f.encode(c.value))
		}
	}
	for _, c := range []struct {
		d     reduce.DType
		value float64
		code  uint16
	}{
		{reduce.Float16, 65520, 0x7c00}, {reduce.Float16, 65519, 0x7bff}, {reduce.Float8E5M2, 61440,
			0x7c}, {reduce.Float8E5M2, 61439, 0x7b},
		{reduce.Float8E4M3FN, 1e9, 0x7e}, {reduce.Float8E4M3FN, math.Inf(-1),
			0xfe}, {reduce.Float8E4M3FNUZ, 248, 0x80}, {reduce.Float8E4M3FNUZ, 247.9, 0x7f},
		{reduce.Float8E5M2FNUZ, 61440, 0x80}, {reduce.Float8E5M2FNUZ, math.Inf(-1),
			0x80}, {reduce.Float8E5M2FNUZ, -1e-9, 0}, {reduce.Float8E4M3FN, -1e-9, 0x80},
	} {
		if got := smallFloats[c.d].encode(c.value); got != c.code {
			t.Errorf("%v: %v is rounded to %#x, want %#x", c.d, c.value, got, c.code)
		}
	}
}

// As many inputs as a communicator may have ranks, and counts about powers of two.
func TestManyInputs(t *testing.T) {
	r := rand.New(rand.NewPCG(4, 0))
	for _, d := range []reduce.DType{reduce.Float32, reduce.Float16, reduce.Uint64, reduce.Complex64,
		reduce.Float8E5M2} {
		const count, pool = 3, 7
		data := make([][]byte, pool)
		for i := range data {
			data[i] = make([]byte, count*d.Size())
			for j := 0; j < len(data[i]); j += d.Size() {
				fill(d, data[i], r)
			}
		}
		for _, n := range []int{127, 128, 129, 1000, 4097, 65535, 65536} {
			for _, o := range []reduce.Op{reduce.Sum, reduce.Avg} {
				src := make([][]byte, n)
				for i := range src {
					src[i] = data[r.IntN(pool)]
				}
				want := expect(d, o, src, count, [2]float64{})
				eachLevel(t, func(t *testing.T, level int) {
					if diff := firstDifference(combineBytes(level, d, o, 0, src...), want, d.Size()); diff != "" {
						t.Fatalf("%v %v of %d inputs: %s", d, o, n, diff)
					}
				})
			}
		}
	}
}

// Averages at the edges of the division: quotients that are exact, one above and one below, of
// either sign, for as many inputs as there may be.
func TestAverageEdges(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 0))
	for d := range reduce.Float16 {
		size, bits := d.Size(), 8*d.Size()
		const count = 40
		for _, n := range []int{3, 5, 7, 11, 255, 4095, 32768, 40000, 65535, 65536} {
			if testing.Short() && n > 4095 {
				break
			}
			// All inputs are one value but for a few, which are off by one.
			value := make([]uint64, count)
			for i := range value {
				value[i] = []uint64{0, 1, 1 << (bits - 1), 1<<(bits-1) - 1, 1<<bits - 1, 1<<bits - 2,
					r.Uint64()}[r.IntN(7)]
			}
			variants := make([][]byte, 3)
			for v := range variants {
				variants[v] = make([]byte, count*size)
				for i := range value {
					store(size, variants[v][i*size:], value[i]+uint64(v)-1)
				}
			}
			src := make([][]byte, n)
			for i := range src {
				src[i] = variants[1]
			}
			for range r.IntN(3) {
				src[r.IntN(n)] = variants[2*r.IntN(2)]
			}
			want := expect(d, reduce.Avg, src, count, [2]float64{})
			eachLevel(t, func(t *testing.T, level int) {
				if diff := firstDifference(combineBytes(level, d, reduce.Avg, 0, src...), want,
					size); diff != "" {
					t.Fatalf("%v of %d inputs: %s", d, n, diff)
				}
			})
		}
	}
}

// Factors of integers, to both ends of their range.
func TestIntegerFactor(t *testing.T) {
	for _, c := range []struct {
		factor float64
		want   uint64
	}{
		{2.9, 2}, {-2.9, math.MaxUint64 - 1}, {0.5, 0}, {-0.5, 0}, {math.NaN(), 0}, {0x1p63,
			1 << 63}, {0x1.8p63, 3 << 62},
		{-0x1p63, 1 << 63}, {1e300, math.MaxUint64}, {-1e300, 1 << 63}, {math.Inf(1),
			math.MaxUint64}, {math.Inf(-1), 1 << 63},
	} {
		one := make([]byte, 8)
		one[0] = 1
		if got := load(8, combineBytes(level, reduce.Uint64, reduce.PreMulSum, c.factor,
			one)); got != c.want {
			t.Errorf("1 times %v is %d, want %d", c.factor, got, c.want)
		}
	}
}

// The calling thread's rounding and flushing of subnormals make no difference, and stay.
func TestFloatMode(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 0))
	for d := reduce.Float16; d < reduce.Bytes1; d++ {
		if d == reduce.Bool {
			continue
		}
		const count = 4000
		src := make([][]byte, 3)
		for i := range src {
			src[i] = make([]byte, count*d.Size())
			fill(d, src[i], r)
		}
		factor := [2]float64{1.0 / 3, 1.0 / 7}
		for _, o := range []reduce.Op{reduce.Sum, reduce.Avg, reduce.Product, reduce.PreMulSum} {
			want := expect(d, o, src, count, factor)
			got := make([]byte, len(want))
			table, err := Of(d, o)
			if err != nil {
				t.Fatal(err)
			}
			kernel := *(*unsafe.Pointer)(table)
			if !floatmode.Run(kernel, unsafe.Pointer(&got[0]), pointersTo(src...), len(got), factor) {
				t.Errorf("%v %v: the thread's mode was changed", d, o)
			}
			if diff := firstDifference(got, want, d.Size()); diff != "" {
				t.Errorf("%v %v: %s", d, o, diff)
			}
		}
	}
}

func BenchmarkCombine(b *testing.B) {
	for _, d := range []reduce.DType{reduce.Float32, reduce.BFloat16, reduce.Float16, reduce.Int64,
		reduce.Float8E4M3FN} {
		for _, n := range []int{2, 4} {
			for _, size := range []int{4 << 10, 256 << 10, 64 << 20} {
				b.Run(fmt.Sprintf("%v/%d inputs/%d KiB", d, n, size>>10), func(b *testing.B) {
					dst := make([]byte, size)
					src := make([]unsafe.Pointer, n)
					for i := range src {
						x := bytes.Repeat([]byte{0x30}, size)
						src[i] = unsafe.Pointer(&x[0])
					}
					b.SetBytes(int64(size))
					for b.Loop() {
						combineAt(level, d, reduce.Sum, []unsafe.Pointer{unsafe.Pointer(&dst[0])}, src, size/d.Size(),
							[2]float64{})
					}
				})
			}
		}
	}
}
