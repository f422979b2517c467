package plan

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
)

// radicesOf are lists of radices for so many ranks: all of two levels or of radices of one size,
// and some mixed ones.
func radicesOf(size int) (lists [][]int) {
	add := func(powers ...int) {
		product := 1
		for _, r := range powers {
			product *= r
		}
		p := Params{Size: size, Radices: append(powers, (size+product-1)/product)}
		if p.radicesFit() {
			lists = append(lists, p.Radices)
		}
	}
	for r := 2; r < size; r *= 2 {
		add(r)
	}
	for _, r := range []int{2, 4, 8} {
		var powers []int
		for product := r; product < size; product *= r {
			if powers = append(powers, r); len(powers) > 1 {
				add(append([]int{}, powers...)...)
			}
		}
	}
	add(2, 4, 2)
	add(8, 2, 4)
	add(4, 8)
	return lists
}

// levelJobs are jobs in levels of a number of ranks, of which the data tells who hears from whom.
func levelJobs(size int, radices []int, chunk int64) (jobs []job) {
	for _, c := range []Collective{AllReduce, AllGather, ReduceScatter} {
		for _, a := range []Algorithm{RecursiveMultiplying, Hierarchical} {
			if c.Has(a) {
				jobs = append(jobs, job{Params: Params{Collective: c, Algorithm: a, Size: size,
					Radices: radices, ElemSize: 4, Chunk: chunk}})
			}
		}
	}
	return jobs
}

// TestLevels proves that ranks in levels do what others do, for lists of radices that need not
// divide the number of ranks, and runs some of the plans.
func TestLevels(t *testing.T) {
	const chunk = 128
	sizes := []int{24, 27, 31, 32, 33, 48, 50, 61, 64, 65, 70}
	for size := 3; size <= 20; size++ {
		sizes = append(sizes, size)
	}
	for _, size := range sizes {
		if testing.Short() && size > 12 && size != 16 && size != 27 {
			continue
		}
		every := 1 + size/16*size/16 // of the many jobs with many ranks, one in so many
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			t.Parallel()
			p := newProver(t)
			rnd := rand.New(rand.NewPCG(uint64(size), 2))
			for i, radices := range radicesOf(size) {
				broadcast := job{Params: Params{Collective: Broadcast, Algorithm: Hierarchical, Size: size,
					Radices: radices, ElemSize: 4, Chunk: chunk}}
				for _, j := range append(levelJobs(size, radices, chunk), broadcast) {
					all := []int64{0, 1, 33, 32*int64(size) - 5, 97*int64(size) + 3}
					if j.Collective != AllReduce && j.Collective != Broadcast {
						all = []int64{0, 1, 70}
					} else if size > 20 {
						all = []int64{0, 1 + 16*int64(size), 70*int64(size) + 3}
					}
					for k, n := range all {
						for l, counts := range layouts(j.Collective, size, n) {
							if rnd.IntN(every) > 0 {
								continue
							}
							j.counts, j.Memory = counts, (i+k+l)%2 == 0
							j.Slots = []int{2, 3, 4, 9}[(k+l)%4]
							if j.Order = nil; !j.Collective.Reduces() && rnd.IntN(2) > 0 {
								j.Order = rnd.Perm(size)
							}
							if j.Collective.Rooted() {
								j.Root = []int{0, size - 1, rnd.IntN(size)}[rnd.IntN(3)]
							}
							j.Ahead, j.OneShotMax = j.Slots-1, int64(k%2*64)
							if j.Collective.Reduces() {
								j.PartialSize = []int64{0, 4, 8}[rnd.IntN(3)]
							}
							p.verifyAlone(j)
							if rnd.IntN(20) == 0 && size < 34 {
								runLevels(t, j, rnd)
							}
						}
					}
				}
			}
		})
	}
}

func runLevels(t *testing.T, j job, rnd *rand.Rand) {
	t.Helper()
	plans, params := j.build(t)
	if fault := newExecutor(plans, params, rnd).run(nil); fault != "" {
		t.Fatalf("%v: %s", j, fault)
	}
}

// What blocks of each level send to others is as little as can be, where no ranks are missing.
func TestLevelsSendOnce(t *testing.T) {
	for _, c := range []Collective{AllReduce, AllGather, ReduceScatter, Broadcast} {
		for _, radices := range [][]int{{4, 3}, {2, 2, 2}, {4, 2, 3}} {
			size, stride := 1, 1
			for _, r := range radices {
				size *= r
			}
			for _, r := range radices {
				if stride *= r; stride == size {
					break
				}
				counts := layouts(c, size, 64*int64(size))[0]
				j := job{Params{Collective: c, Algorithm: Hierarchical, Size: size, Radices: radices,
					ElemSize: 4, Chunk: 256, Slots: 4}, counts}
				j.Root = size - 2
				want := int64(0)
				for _, n := range counts {
					want += n * j.ElemSize * int64(size/stride-1)
				}
				if c == AllReduce { // there and back
					want *= 2
				}
				if got := between(t, j, stride); got != want {
					t.Errorf("%v: %d bytes from each %d ranks to others, not %d", j, got, stride, want)
				}
			}
		}
	}
}

// between is how many bytes the plans of a job put from each group of ranks to others.
func between(t testing.TB, j job, group int) (bytes int64) {
	t.Helper()
	plans, _ := j.build(t)
	for rank, p := range plans {
		for _, s := range p.Steps {
			if s.Op == Put && int(s.Peer)/group != rank/group {
				bytes += s.Bytes
			}
		}
	}
	return bytes
}

// Recursive multiplying has few messages, also where no radix divides the number of ranks.
func TestLevelsPutLittle(t *testing.T) {
	for _, c := range []struct {
		size    int
		radices []int
		most    int
	}{{128, []int{8, 4, 4}, 13}, {128, []int{2, 2, 2, 2, 2, 2, 2}, 7},
		{1024, []int{4, 4, 4, 4, 4}, 15}, {65, []int{8, 9}, 8 + 7 + 3}} {
		j := job{Params{Collective: AllReduce, Algorithm: RecursiveMultiplying, Size: c.size,
			Radices: c.radices, ElemSize: 4, Chunk: 64, Slots: 4}, []int64{1}}
		plans, _ := j.build(t)
		for rank, p := range plans {
			puts := 0
			for _, s := range p.Steps {
				if s.Op == Put {
					puts++
				}
			}
			if puts > c.most {
				t.Errorf("%d ranks in %v: rank %d puts %d messages, not %d", c.size, c.radices, rank, puts,
					c.most)
			}
		}
	}
}

// Radices in which sums would not be in the canonical order are refused, and if they were not, the
// verifier would refuse their plans.
func TestRadicesAreRefused(t *testing.T) {
	for size, lists := range map[int][][]int{
		12: {{3, 4}, {4, 2}, {4, 4}, {12}, {4, 3, 1}, {16, 1}, {1, 12}, {0, 12}, {-2, -6}, {4, 3, 2},
			nil},
		2: {{2, 1}, {2}},
		1: {{2, 1}, {1}},
	} {
		for _, radices := range lists {
			want := "allreduce by hierarchical needs more than two ranks"
			if size > 2 {
				want = "by hierarchical needs several radices, all but the last powers of two with a " +
					"product of less than 12, the number of ranks, and the last what is left of that, " +
					fmt.Sprintf("rounded up; they are %v", radices)
			}
			j := job{Params{Collective: AllReduce, Algorithm: Hierarchical, Size: size, Radices: radices,
				ElemSize: 4, Chunk: 64, Slots: 4}, []int64{100}}
			if _, err := Build(j.rank(0)); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%v of %d ranks: %v", radices, size, err)
			}
		}
	}
	for _, a := range []Algorithm{RecursiveMultiplying, Hierarchical} {
		j := job{Params{Collective: AllReduce, Algorithm: a, Size: 12, ElemSize: 4, Chunk: 64, Slots: 4},
			[]int64{400}}
		plans, params := make([]*Plan, j.Size), make([]Params, j.Size)
		for r := range plans {
			params[r] = j.rank(r)
			params[r].Radices = []int{3, 4}
			plans[r] = params[r].build((*builder).allReduce)
		}
		if err := Verify(plans, params, false); err == nil ||
			!strings.Contains(err.Error(), "no aligned block of the canonical order") {
			t.Errorf("%v in (3,4): %v", a, err)
		}
	}
}
