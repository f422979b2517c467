package collective

import (
	"fmt"
	"slices"
	"testing"

	"github.com/goccl/goccl/core/exec"
	"github.com/goccl/goccl/core/plan"
	"github.com/goccl/goccl/core/trace"
)

// allGather is that of some ranks, of which each gives so many bytes, or the last one more.
func allGather(ranks int, bytes, more int64) plan.Params {
	out := slices.Repeat([]int64{bytes}, ranks)
	out[ranks-1] += more
	return plan.Params{Collective: plan.AllGather, Algorithm: plan.Linear, Size: ranks, ElemSize: 4,
		InBytes: out[:1], OutBytes: out, Chunk: 64 << 10, Slots: 4}
}

func newCache(t testing.TB, freeing func(*exec.Compiled)) planCache {
	t.Helper()
	traced, err := trace.New()
	if err != nil {
		t.Fatal(err)
	}
	return planCache{freeing: freeing, trace: traced}
}

func get(t *testing.T, c *planCache, p plan.Params) *exec.Compiled {
	t.Helper()
	compiled, err := c.get(p, nil, sides{})
	if err != nil {
		t.Fatal(err)
	}
	return compiled
}

// Plans of any number of blocks are kept, whether these are equally long or not.
func TestPlansOfManyBlocksAreKept(t *testing.T) {
	c := newCache(t, func(*exec.Compiled) {})
	defer c.free()
	seen := map[*exec.Compiled]bool{}
	for range 2 {
		for _, ranks := range []int{2, 65, 300} {
			for _, bytes := range []int64{0, 4, 64} {
				for _, more := range []int64{0, 4, 8} {
					seen[get(t, &c, allGather(ranks, bytes, more))] = true
				}
			}
		}
	}
	if len(seen) != 3*3*3 || len(c.plans) != len(seen) {
		t.Errorf("%d plans of 27 were made, %d are kept", len(seen), len(c.plans))
	}
}

// The last part of a long operation may have longer messages than an operation of that length, and
// other blocks are reduced as a whole where partial sums may be reduced further.
func TestPlansOfOtherChunksAndLimits(t *testing.T) {
	c := newCache(t, func(*exec.Compiled) {})
	defer c.free()
	p := allGather(5, 64<<10, 0)
	p.Collective, p.Algorithm, p.InBytes = plan.AllReduce, plan.TwoShot, p.OutBytes
	longer, whole := p, p
	longer.Chunk, whole.OneShotMax = 2*p.Chunk, 64<<10
	first := get(t, &c, p)
	if get(t, &c, longer) == first || get(t, &c, whole) == first || get(t, &c, p) != first {
		t.Error("plans stand in for others")
	}
}

// Blocks with the digest of others do not get their plan.
func TestPlansWithOneDigest(t *testing.T) {
	var freed []*exec.Compiled
	c := newCache(t, func(p *exec.Compiled) { freed = append(freed, p) })
	defer c.free()
	first := get(t, &c, allGather(5, 64, 4))
	for key, kept := range c.plans { // as if its digest were that of the second
		delete(c.plans, key)
		key.out = lengthsOf(allGather(5, 64, 8).OutBytes)
		c.plans[key] = kept
	}
	second := get(t, &c, allGather(5, 64, 8))
	if second == first || !slices.Equal(freed, []*exec.Compiled{first}) {
		t.Errorf("%p and then %p, freed are %v", first, second, freed)
	}
	if get(t, &c, allGather(5, 64, 8)) != second {
		t.Error("the second is not kept")
	}
}

// The plans that were got last stay, the others as many and as large as may be.
func TestOldPlansAreDropped(t *testing.T) {
	freed := map[*exec.Compiled]bool{}
	c := newCache(t, func(p *exec.Compiled) { freed[p] = true })
	defer c.free()
	stays := get(t, &c, allGather(2, 4, 0))
	for i := range int64(2 * mostPlans) {
		get(t, &c, allGather(2, 8+4*i, 0))
		get(t, &c, allGather(2, 4, 0))
	}
	if freed[stays] || len(c.plans) != mostPlans {
		t.Errorf("%d plans are kept, the one that is got again and again: %v", len(c.plans),
			!freed[stays])
	}
	for i := range int64(2 * leastPlans) { // each larger than all may be
		p := allGather(3, 0, 0)
		p.OutBytes = slices.Repeat([]int64{64 * (mostPlanBytes/100 + i)}, 3)
		p.InBytes, p.Chunk = p.OutBytes[:1], 64
		get(t, &c, p)
	}
	if len(c.plans) != leastPlans || c.bytes < mostPlanBytes {
		t.Errorf("%d large plans are kept, of %d bytes", len(c.plans), c.bytes)
	}
	for key := range c.plans {
		c.drop(key)
	}
	if c.bytes != 0 {
		t.Errorf("%d bytes in no plans", c.bytes)
	}
}

func BenchmarkGet(b *testing.B) {
	for _, ranks := range []int{64, 512, 4096} {
		for _, more := range []int64{0, 4} {
			b.Run(fmt.Sprintf("%d ranks, %d more", ranks, more), func(b *testing.B) {
				c := newCache(b, func(*exec.Compiled) {})
				defer c.free()
				for b.Loop() {
					if _, err := c.get(allGather(ranks, 64, more), nil, sides{}); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
