package plan

import (
	"fmt"
	"slices"
	"testing"
)

// BenchmarkVerify proves plans of many ranks, and BenchmarkPeaks finds their peaks.
func BenchmarkVerify(b *testing.B) {
	benchmark(b, func(plans []*Plan, params []Params) error { return Verify(plans, params, false) })
}

func BenchmarkPeaks(b *testing.B) {
	benchmark(b, func(plans []*Plan, params []Params) error {
		_, err := PeaksOf(plans, params)
		return err
	})
}

func benchmark(b *testing.B, prove func([]*Plan, []Params) error) {
	for _, size := range []int{64, 256, 512, 1024} {
		equal := slices.Repeat([]int64{16}, size)
		for _, j := range []job{
			{Params{Collective: AllReduce}, []int64{1 << 18}},
			{Params{Collective: AllReduce, Memory: true}, []int64{1 << 18}},
			{Params{Collective: AllReduce, Memory: true, Algorithm: Direct}, []int64{1 << 18}},
			{Params{Collective: AllGather}, equal},
			{Params{Collective: AllToAll, Schedule: Sequential}, equal},
		} {
			j.Size, j.ElemSize, j.Chunk, j.Slots = size, 4, 64<<10, 4
			name := fmt.Sprintf("%v/%v/memory=%v/%d", j.Collective, j.algorithm(), j.Memory, size)
			b.Run(name, func(b *testing.B) {
				plans, params := j.build(b)
				b.ReportAllocs()
				for b.Loop() {
					if err := prove(plans, params); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
