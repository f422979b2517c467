package core

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
	"unsafe"

	"github.com/goccl/goccl/core/plan"
	"github.com/goccl/goccl/core/reduce"
)

// Sums of floats have the same bits in levels of any radices, over any transport, as in one shot.
func TestLevelsHaveTheSameBits(t *testing.T) {
	const size = 13
	counts := []int{1, 1000, 60_001}
	var want [][]int32 // by count
	for _, transport := range transports {
		for _, algorithm := range []string{"one_shot", "binomial_tree", "recursive_multiplying",
			"recursive_multiplying(2,2,2,2)", "hierarchical", "hierarchical(4,4)", "hierarchical(2,4,2)"} {
			t.Run(transport+"/"+algorithm, func(t *testing.T) {
				w := newWorldOf(t, transport, size, Config{Algorithms: "allreduce:" + algorithm,
					Timeout: 20 * time.Second})
				for i, n := range counts {
					got := sumsOfFloats(t, w, n)
					if len(want) == i {
						want = append(want, got)
					}
					if !slices.Equal(got, want[i]) {
						t.Errorf("%d elements have other bits", n)
					}
				}
			})
		}
	}
}

// Allgather and reduce_scatter in levels give what others do, packed and not, with blocks of
// different lengths.
func TestBlocksInLevels(t *testing.T) {
	const size = 7
	for _, transport := range []string{"shm", "tcp"} {
		w := newWorldOf(t, transport, size, Config{Timeout: 20 * time.Second,
			Algorithms: "allgather:hierarchical(2,4);reduce_scatter:hierarchical(4,2)"})
		for _, n := range []int{0, 1, 500, 70_000} {
			collectives(t, w, size, n, false)
			collectives(t, w, size, n, true)
		}
	}
}

// sumsOfFloats sums random floats over all ranks. All get the same bits.
func sumsOfFloats(t *testing.T, w *world, n int) []int32 {
	t.Helper()
	sums := make([][]int32, len(w.comms))
	w.each(func(rank int) error {
		rnd := rand.New(rand.NewPCG(uint64(rank), uint64(n)))
		x := buffer(t, n)
		for i := range x {
			x[i] = int32(math.Float32bits(float32(rnd.NormFloat64() * math.Exp(4*rnd.NormFloat64()))))
		}
		all := []uint64{uint64(n)}
		op := Operation{Collective: plan.AllReduce, DType: reduce.Float32, Op: reduce.Sum,
			In: []unsafe.Pointer{ptr(x)}, Out: []unsafe.Pointer{ptr(x)}, InCounts: all, OutCounts: all}
		sums[rank] = x
		return run(w.comms[rank], op)
	})
	for rank, sum := range sums {
		if !slices.Equal(sum, sums[0]) {
			t.Fatal(fmt.Sprint("rank ", rank, " has other bits than rank 0"))
		}
	}
	return sums[0]
}
