package plan

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"testing"
)

// feedOf has ranks take their inputs, and give their outputs, piece by piece: all, or some of them.
func feedOf(plans []*Plan, params []Params, apart bool, has func(rank int) bool) []*Plan {
	fed := slices.Clone(plans)
	for r, p := range plans {
		if p != nil && has(r) {
			grain := int64(64)
			for _, n := range slices.Concat(params[r].InBytes, params[r].OutBytes) {
				grain = max(grain, (n/64+63)/64*64)
			}
			fed[r] = p.Feed(&params[r], apart, grain)
		}
	}
	return fed
}

func allRanks(int) bool { return true }

// feedJobs are those of mutationJobs that may have feeds, with blocks of several pieces.
func feedJobs() (jobs []job) {
	for _, j := range mutationJobs() {
		if j.Algorithm == Direct {
			continue
		}
		j.counts = slices.Clone(j.counts)
		for i := range j.counts {
			j.counts[i] *= 7
		}
		jobs = append(jobs, j.with(cmp.Or(j.Size, 3)))
	}
	return jobs
}

// A feed adds steps of its own alone: messages are the same. Whoever has one, plans are right in
// random schedules, in which inputs come as late as they may or earlier, and in place, too. What is
// final stays as it is.
func TestFeed(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 4))
	for _, j := range feedJobs() {
		plans, params := j.build(t)
		for _, inPlace := range []bool{false, hasInPlace(j.Collective)} {
			for _, apart := range []bool{false, !inPlace} {
				fed := feedOf(plans, params, apart, allRanks)
				mixed := feedOf(plans, params, apart, func(int) bool { return rnd.IntN(2) == 0 })
				for _, some := range [][]*Plan{fed, mixed} {
					if err := Verify(some, params, inPlace); err != nil {
						t.Fatalf("%v in place %v, apart %v: %v", j, inPlace, apart, err)
					}
					for range 3 {
						e := newExecutor(some, params, rnd)
						e.feed(inPlace)
						if fault := e.run(nil); fault != "" {
							t.Fatalf("%v in place %v, apart %v: %s", j, inPlace, apart, fault)
						}
					}
				}
				for r, p := range fed {
					bare := slices.DeleteFunc(slices.Clone(p.Steps), func(s Step) bool {
						return s.Op == Need || s.Op == Final
					})
					for i := range bare {
						if bare[i].String() != plans[r].Steps[i].String() {
							t.Fatalf("%v: step %d of rank %d is %v", j, i, r, &bare[i])
						}
					}
				}
			}
		}
	}
}

// feed has the inputs of plans with feeds come while these run. In place outputs share their
// memory.
func (e *executor) feed(inPlace bool) {
	e.came = make([][][]bool, len(e.plans))
	for r := range e.plans {
		m, q := &e.memory[r], &e.params[r]
		for i := range m.in {
			for k := range m.out {
				if inPlace && q.shares(i, k) {
					m.out[k] = m.in[i]
				}
			}
		}
		space, in := q.source()
		if !e.plans[r].Fed || space == None {
			continue
		}
		e.came[r] = make([][]bool, len(in))
		for i := range in {
			clear(e.place(r, Ref{Space: space, Block: int32(i)}, -1))
		}
	}
}

// come has bytes of an input come that are not there.
func (e *executor) come(r int, block int32, off, end int64) {
	space, _ := e.params[r].source()
	to := e.place(r, Ref{Space: space, Block: block}, -1)
	if e.came[r][block] == nil {
		e.came[r][block] = make([]bool, len(to))
	}
	for at := off; at < end; at++ {
		if !e.came[r][block][at] {
			to[at] = value{rank: int32(r), block: block, off: at}
			e.came[r][block][at] = true
		}
	}
}

// early has some of a rank's inputs come, at random.
func (e *executor) early(r int) {
	if e.came == nil || len(e.came[r]) == 0 || e.rnd.IntN(3) > 0 {
		return
	}
	_, in := e.params[r].source()
	block := e.rnd.IntN(len(in))
	off := e.rnd.Int64N(in[block] + 1)
	e.come(r, int32(block), off, off+e.rnd.Int64N(in[block]-off+1))
}

// Where a step of a feed is left out, comes too late or tells too much, the verifier sees it.
func TestFeedMutations(t *testing.T) {
	for _, j := range feedJobs() {
		plans, params := j.build(t)
		fed := feedOf(plans, params, false, allRanks)
		seen := 0
		refuses := func(what string, broken []*Plan, r, i int) {
			if err := Verify(broken, params, false); err == nil {
				t.Errorf("%v: accepted with %s at rank %d step %d\n%v", j, what, r, i, fed[r])
			}
			seen++
		}
		each(fed, func(broken []*Plan, r, i int) {
			p := broken[r]
			s := p.Steps[i]
			if s.Op != Need && s.Op != Final {
				return
			}
			p.Steps = slices.Delete(p.Steps, i, i+1)
			refuses("a missing step", broken, r, i)
			if s.Op == Need {
				// A Need may stand before one that is for another use, or for writing in place.
				last := i
				for last < len(p.Steps) && !reads(&p.Steps[last], s) {
					last++
				}
				if last < len(p.Steps) {
					p.Steps = slices.Insert(p.Steps, last+1, s)
					refuses("a late need", broken, r, i)
				}
				return
			}
			// Before the step after which it comes.
			k := i - 1
			for k >= 0 && p.Steps[k].Op != Copy && p.Steps[k].Op != Combine && p.Steps[k].Op != Get {
				k--
			}
			p.Steps = slices.Insert(p.Steps, k, s)
			refuses("an early end", broken, r, i)
		})
		if seen == 0 && j.Collective != Barrier {
			t.Errorf("%v: there is nothing to break", j)
		}
	}
}

// reads tells whether a step reads bytes that a Need brings.
func reads(s *Step, need Step) bool {
	return slices.ContainsFunc(s.Src, func(ref Ref) bool {
		from := need.Src[0]
		return s.Op != Need && ref.Space == from.Space && ref.Block == from.Block &&
			ref.Off < from.Off+need.Bytes && ref.Off+s.Bytes > from.Off
	})
}

// A block counts in sixteenths, in the grain at least and in sixteen grains at most.
func TestFeedGrain(t *testing.T) {
	for bytes, want := range map[int64]int{100: 1, FeedGrain: 1, 4 * FeedGrain: 4, 16 * FeedGrain: 16,
		100 * FeedGrain: 16, 256 * FeedGrain: 16, 512 * FeedGrain: 32} {
		q := Params{Collective: AllReduce, Size: 1, Algorithm: TwoShot, InBytes: []int64{bytes},
			OutBytes: []int64{bytes}, ElemSize: 4, Chunk: 4096, Slots: 4}
		p := &Plan{Size: 1}
		for at := int64(0); at < bytes; at += 1 << 16 {
			place := func(space Space) Ref { return Ref{Space: space, Off: at} }
			p.Steps = append(p.Steps, Step{Op: Copy, Src: []Ref{place(In)}, Dst: place(Out),
				Bytes: min(1<<16, bytes-at)})
		}
		counts := map[Op]int{}
		for _, s := range p.Feed(&q, true, FeedGrain).Steps {
			counts[s.Op]++
		}
		if counts[Need] != want || counts[Final] != want {
			t.Errorf("%d bytes: %d needs and %d finals, not %d", bytes, counts[Need], counts[Final], want)
		}
	}
}
