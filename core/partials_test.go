package core

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"
	"unsafe"

	"github.com/goccl/goccl/core/plan"
	"github.com/goccl/goccl/core/reduce"
)

// Every op of every type has the same bits in levels and along trees as in a direct exchange, over
// any transport, also where a rank has no siblings at the first level: 16- and 8-bit floats are
// rounded once, averages divided once, and each input multiplied once by the factor of PREMUL_SUM.
func TestStagesHaveTheSameBits(t *testing.T) {
	direct := "allreduce:one_shot;reduce:flat;reduce_scatter:linear"
	inLevels := func(allreduce, reduceScatter string) string {
		return fmt.Sprintf("allreduce:%s;reduce:binomial_tree;reduce_scatter:hierarchical(%s)", allreduce,
			reduceScatter)
	}
	for size, others := range map[int][]string{
		4: {inLevels("hierarchical(2,2)", "2,2")},
		9: {inLevels("binomial_tree", "2,2,2,2"), inLevels("recursive_multiplying(4,3)", "8,2"),
			inLevels("recursive_multiplying(8,2)", "4,3"), inLevels("hierarchical(8,2)", "2,5"),
			inLevels("hierarchical(2,2,3)", "2,2,3")},
		13: {inLevels("binomial_tree", "4,4"), inLevels("hierarchical(4,4)", "4,2,2"),
			inLevels("recursive_multiplying(2,4,2)", "8,2")},
	} {
		want := stagedResults(t, "shm", size, direct, testing.Short())
		for i, algorithms := range others {
			for _, transport := range []string{"shm", "tcp"} {
				// A transport carries bytes, whatever they are, and the ways of one size round alike: all
				// types go one way by one transport, and those of the other ways are few.
				few := transport == "tcp" || i > 0 || testing.Short()
				if transport == "tcp" && i > 0 || testing.Short() && (transport == "tcp") != (i%2 == 0) {
					continue
				}
				got := stagedResults(t, transport, size, algorithms, few)
				for what, all := range got {
					for rank := range all {
						if !bytes.Equal(want[what][rank], all[rank]) {
							t.Errorf("%s, %d ranks, %s: %s has other bits on rank %d", transport, size, algorithms,
								what, rank)
							break
						}
					}
				}
			}
		}
	}
}

// stagedResults are the results of all reductions that have a meaning, or of those of few types, by
// their names and by rank.
func stagedResults(t *testing.T, transport string, size int, algorithms string, few bool) (
	results map[string][][]byte) {
	t.Helper()
	w := newWorldOf(t, transport, size, Config{Algorithms: algorithms, Timeout: time.Minute})
	results = map[string][][]byte{}
	for _, c := range []plan.Collective{plan.AllReduce, plan.Reduce, plan.ReduceScatter} {
		for d := range reduce.Bytes1 {
			// One of each width and way to round; the longest reductions are theirs alone.
			long := d == reduce.BFloat16 || d == reduce.Float8E4M3FN || d == reduce.Float32
			if few && !long && d != reduce.Int8 && d != reduce.Complex64 {
				continue
			}
			for o := reduce.Sum; o <= reduce.PreMulSum; o++ {
				for _, n := range []int{1, 77, 3000} {
					if !reduce.HasMeaning(d, o) || n == 3000 && !long {
						continue
					}
					all := make([][]byte, size)
					w.each(func(rank int) error {
						op, out := reduction(t, c, d, o, n, rank, size)
						err := run(w.comms[rank], op)
						all[rank] = bytes.Clone(out)
						return err
					})
					results[fmt.Sprintf("%v of %d %v, %v", c, n, d, o)] = all
				}
			}
		}
	}
	return results
}

// reduction is one of random elements, and the memory of its result.
func reduction(t *testing.T, c plan.Collective, d reduce.DType, o reduce.Op, n, rank, size int) (
	op Operation, out []byte) {
	memory := func(count int) []byte {
		b := buffer(t, count*d.Size()/4+1)
		return unsafe.Slice((*byte)(unsafe.Pointer(&b[0])), 4*len(b))[:count*d.Size()]
	}
	rnd := rand.New(rand.NewPCG(uint64(rank), uint64(d)<<8|uint64(o)))
	op = Operation{Collective: c, DType: d, Op: o, Factor: [2]float64{1.0 / 3, -0.5}, Root: size / 2}
	blocks, own := []int{n}, n
	if c == plan.ReduceScatter {
		blocks = nil
		for peer := range size {
			blocks = append(blocks, n+peer%3)
		}
		own = blocks[rank]
	}
	for _, count := range blocks {
		in := memory(count)
		fillWith(in, d, rnd)
		op.In = append(op.In, unsafe.Pointer(unsafe.SliceData(in)))
		op.InCounts = append(op.InCounts, uint64(count))
	}
	out = memory(own)
	op.Out = []unsafe.Pointer{unsafe.Pointer(unsafe.SliceData(out))}
	op.OutCounts = []uint64{uint64(own)}
	if c == plan.Reduce && rank != op.Root {
		out = nil
	}
	return op, out
}

// fillWith makes numbers of modest size, whose sums must be rounded, and integers of any.
func fillWith(b []byte, d reduce.DType, rnd *rand.Rand) {
	put := func(i, size int, bits uint64) {
		for k := range size {
			b[i+k] = byte(bits >> (8 * k))
		}
	}
	v := func() float64 { return rnd.NormFloat64() * math.Exp(2*rnd.NormFloat64()) }
	for i := 0; i < len(b); {
		switch d {
		case reduce.Float32, reduce.Complex64:
			put(i, 4, uint64(math.Float32bits(float32(v()))))
			i += 4
		case reduce.Float64, reduce.Complex128:
			put(i, 8, math.Float64bits(v()))
			i += 8
		case reduce.BFloat16:
			put(i, 2, uint64(math.Float32bits(float32(v()))>>16))
			i += 2
		case reduce.Float16, reduce.Complex32:
			put(i, 2, rnd.Uint64()&0xbfff) // below 2
			i += 2
		case reduce.Float8E4M3FN, reduce.Float8E4M3FNUZ, reduce.Float8E5M2, reduce.Float8E5M2FNUZ:
			put(i, 1, rnd.Uint64()&0xbf) // below 2
			i++
		default:
			put(i, 1, rnd.Uint64())
			i++
		}
	}
}
