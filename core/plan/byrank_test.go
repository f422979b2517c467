package plan

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

func (j job) plan(rank int) (*Plan, Params, error) {
	q := j.rank(rank)
	plan, err := Build(q)
	return plan, q, err
}

// Levels are proved rank by rank, also where ranks are missing.
func TestByRank(t *testing.T) {
	for _, size := range []int{4, 6, 7, 12, 16, 27, 50, 64} {
		for k, radices := range radicesOf(size) {
			for i, j := range levelJobs(size, radices, 256) {
				if size > 20 && (i+k)%4 > 0 {
					continue
				}
				j.Slots, j.Ahead, j.Memory = 2+(i+k)%4, 2, k%2 == 0
				j.counts = []int64{16*int64(size) + 5}
				if j.Collective != AllReduce {
					j.counts = slices.Repeat([]int64{20}, size)
				}
				if err := proveByRank(size, j.plan, k%2 == 0); err != nil {
					t.Errorf("%v: %v", j, err)
				}
			}
		}
	}
	// Where inputs are empty it does not show who hears from whom: this is proved by Verify.
	empty := job{Params{Collective: AllGather, Algorithm: Hierarchical, Size: 6, Radices: []int{2, 3}},
		[]int64{1, 2, 0, 3, 0, 4}}.with(6)
	if err := proveByRank(6, empty.plan, false); err == nil {
		t.Error("it is proved of empty inputs that their ranks are heard from")
	}
	if err := verifyByRank(6, empty.rank, false); err != nil {
		t.Error(err)
	}
}

// Thousands of ranks are proved in levels.
func TestByRankOfThousands(t *testing.T) {
	for _, j := range []job{
		{Params{Algorithm: RecursiveMultiplying, Size: 4096, Radices: []int{16, 16, 16}}, []int64{1}},
		{Params{Algorithm: Hierarchical, Size: 1024, Radices: []int{8, 8, 16}}, []int64{1 << 16}},
	} {
		j.ElemSize, j.Chunk, j.Slots = 4, 128<<10, 4
		if err := proveByRank(j.Size, j.plan, false); err != nil {
			t.Errorf("%v: %v", j, err)
		}
	}
}

// What is proved rank by rank Verify accepts as well, whatever is wrong with it.
func TestByRankRefusesMutations(t *testing.T) {
	jobs := []job{
		{Params{Collective: AllReduce, Algorithm: OneShot, Size: 3}, []int64{20, 7}},
		{Params{Collective: AllReduce, Algorithm: TwoShot, Size: 3}, []int64{100}},
		{Params{Collective: AllGather, Size: 3}, []int64{20, 33, 7}},
		{Params{Collective: ReduceScatter, Size: 3}, []int64{20, 33, 7}},
	}
	for i, j := range levelJobs(4, []int{2, 2}, 64) {
		j.counts = [][]int64{{100}, {20, 33, 7, 16}}[min(1, i/2)]
		jobs = append(jobs, j)
	}
	for k, j := range jobs {
		rnd := rand.New(rand.NewPCG(uint64(k), 5))
		j = j.with(j.Size)
		plans, params := j.build(t)
		proved, verified := 0, 0
		for range 1000 {
			broken := mutated(rnd, plans)
			of := func(rank int) (*Plan, Params, error) { return broken[rank], params[rank], nil }
			byRank, all := proveByRank(j.Size, of, false), Verify(broken, params, false)
			if byRank == nil {
				proved++
			}
			if all == nil {
				verified++
			} else if byRank == nil {
				t.Fatalf("%v: proved by rank, but %v", j, all)
			}
		}
		if proved < verified/4 || proved == 0 {
			t.Errorf("%v: %d are proved by rank, of %d that are right", j, proved, verified)
		}
	}
}

func BenchmarkByRank(b *testing.B) {
	for _, j := range []job{
		{Params{Algorithm: RecursiveMultiplying, Size: 4096, Radices: []int{16, 16, 16}}, []int64{1}},
		{Params{Algorithm: Hierarchical, Size: 4096, Radices: []int{16, 16, 16}}, []int64{1 << 18}},
		{Params{Algorithm: Hierarchical, Size: 16384, Radices: []int{32, 32, 16}}, []int64{1 << 20}},
	} {
		j.ElemSize, j.Chunk, j.Slots = 4, 128<<10, 4
		b.Run(fmt.Sprint(j.Algorithm, "/", j.Size), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := proveByRank(j.Size, j.plan, false); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
