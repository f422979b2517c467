package core

import (
	"fmt"
	"testing"
	"unsafe"

	"github.com/goccl/goccl/core/plan"
	"github.com/goccl/goccl/core/reduce"
)

// Ranks of two hosts have what others have, in groups and where they are none, and whichever op was
// called with the same counts before.
func TestGroupsOfTwoHosts(t *testing.T) {
	const size = 4
	for _, thresholds := range []string{"", "one_shot_max=0"} {
		w := twoHosts(t, size, thresholds)
		if got := shapeOf(w.comms[3]).Group; got != 2 {
			t.Fatalf("groups of %d", got)
		}
		for _, n := range append(sizes(true), 20_000, 3<<20/4+1) {
			collectives(t, w, size, n, false)
			collectives(t, w, size, n, true)
		}
		for _, n := range []int{3, 100_000} {
			w.each(func(rank int) error {
				for i, o := range []reduce.Op{reduce.Sum, reduce.PreMulSum, reduce.Avg, reduce.Max, reduce.Sum,
					reduce.Avg} {
					x := buffer(t, n)
					for k := range x {
						// the average of the hosts' averages, cut to whole numbers, is 1
						x[k] = []int32{1, 2, 2, 3}[rank]
					}
					op := Operation{Collective: plan.AllReduce, DType: reduce.Int32, Op: o, Factor: [2]float64{3},
						In: []unsafe.Pointer{ptr(x)}, Out: []unsafe.Pointer{ptr(x)},
						InCounts: []uint64{uint64(n)}, OutCounts: []uint64{uint64(n)}}
					if err := run(w.comms[rank], op); err != nil {
						return err
					}
					want := map[reduce.Op]int32{reduce.Sum: 8, reduce.PreMulSum: 24, reduce.Avg: 2,
						reduce.Max: 3}[o]
					if err := expect(fmt.Sprint(o, i), x, func(int) int32 { return want }); err != nil {
						return err
					}
				}
				return nil
			})
		}
	}
}
