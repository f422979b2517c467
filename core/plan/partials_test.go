package plan

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// partialSizes are lengths of elements, and of their partial sums.
var partialSizes = [][2]int64{{4, 4}, {2, 4}, {1, 4}, {4, 8}}

// stagedJobs are jobs that reduce in stages: in levels, and along trees to every root.
func stagedJobs(size int) (jobs []job) {
	for root := range size {
		jobs = append(jobs, job{Params: Params{Collective: Reduce, Algorithm: BinomialTree, Root: root}})
	}
	jobs = append(jobs, job{Params: Params{Collective: AllReduce, Algorithm: BinomialTree}})
	for _, radices := range radicesOf(size) {
		for _, j := range levelJobs(size, radices, 0) {
			if j.Collective.Reduces() {
				jobs = append(jobs, j)
			}
		}
	}
	for i := range jobs {
		jobs[i].Size, jobs[i].Chunk = size, 256
	}
	return jobs
}

// TestStages proves that each input is made a partial sum once, and the result of them once, with
// partial sums of every length, and runs some of the plans.
func TestStages(t *testing.T) {
	for _, size := range []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 13, 16, 17, 27} {
		if testing.Short() && size > 13 {
			continue
		}
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			t.Parallel()
			p, rnd := newProver(t), rand.New(rand.NewPCG(uint64(size), 3))
			for i, j := range stagedJobs(size) {
				for k, n := range []int64{0, 1, 300, 40*int64(size) + 3, 300 * int64(size)} {
					if size > 8 && rnd.IntN(3) > 0 || n > 5000 {
						continue
					}
					sizes := partialSizes[(i+k)%len(partialSizes)]
					j.ElemSize, j.PartialSize, j.Memory = sizes[0], sizes[1], (i+k)%3 == 0
					j.Slots = []int{2, 4, 3, 9}[(i/2+k)%4]
					j.Ahead, j.OneShotMax = j.Slots-1, int64(k%2*64)
					j.counts = layouts(j.Collective, size, n)[0]
					p.verifyAlone(j)
					if rnd.IntN(10) == 0 {
						runLevels(t, j, rnd)
					}
				}
			}
		})
	}
}

// Stages are proved rank by rank.
func TestStagesByRank(t *testing.T) {
	for _, size := range []int{4, 7, 9, 16, 27, 33} {
		for i, j := range stagedJobs(size) {
			sizes := partialSizes[i%len(partialSizes)]
			j.ElemSize, j.PartialSize, j.Slots, j.Ahead = sizes[0], sizes[1], 2+i%3, 1
			j.counts = layouts(j.Collective, size, 20*int64(size))[0]
			if j.Algorithm == BinomialTree {
				continue
			}
			if err := proveByRank(size, j.plan, i%2 == 0); err != nil {
				t.Errorf("%v: %v", j, err)
			}
		}
	}
}

// A Combine of another stage than it should be is refused, whichever it is.
func TestWrongStagesAreRefused(t *testing.T) {
	for _, j := range stagedJobs(5) {
		j.ElemSize, j.PartialSize, j.Slots = 4, 4, 4
		j.counts = layouts(j.Collective, 5, 40)[0]
		plans, params := j.build(t)
		if err := Verify(plans, params, false); err != nil {
			t.Fatalf("%v: %v", j, err)
		}
		for rank, p := range plans {
			for i := range p.Steps {
				for stage := Whole; stage <= Last+1; stage++ {
					broken := slices.Clone(plans)
					broken[rank] = &Plan{Algorithm: p.Algorithm, Rank: rank, Size: 5,
						Steps: slices.Clone(p.Steps), ScratchBytes: p.ScratchBytes}
					s := &broken[rank].Steps[i]
					if s.Op != Combine || s.Stage == stage {
						continue
					}
					s.Stage = stage
					if Verify(broken, params, false) == nil {
						t.Fatalf("%v: rank %d, step %d: %v is accepted", j, rank, i, s)
					}
				}
			}
		}
	}
}

func TestPartialSizeIsChecked(t *testing.T) {
	for _, c := range []struct {
		elem, partial, chunk int64
		ok                   bool
	}{{2, 4, 128, true}, {4, 4, 64, true}, {4, 0, 64, true}, {2, 3, 128, false}, {4, 2, 128, false},
		{2, 128, 1 << 20, false}, {2, 4, 64, false}, {2, -4, 128, false}} {
		j := job{Params{Collective: AllReduce, Algorithm: BinomialTree, Size: 3, ElemSize: c.elem,
			PartialSize: c.partial, Chunk: c.chunk, Slots: 4}, []int64{5}}
		_, err := Build(j.rank(0))
		if (err == nil) != c.ok || err != nil && !strings.Contains(err.Error(), "partial sums are of") {
			t.Errorf("%+v: %v", c, err)
		}
	}
}
