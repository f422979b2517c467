package plan

import (
	"fmt"
	"math/rand/v2"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
)

var allCollectives = []Collective{AllReduce, Reduce, Broadcast, AllGather, ReduceScatter, Gather,
	Scatter,
	AllToAll, Barrier, Send}

// layouts is the counts to try for a collective whose messages are about n elements.
func layouts(c Collective, size int, n int64) [][]int64 {
	uneven := make([]int64, size)
	equal := make([]int64, size)
	single := make([]int64, size)
	for i := range size {
		equal[i] = n
		uneven[i] = n * int64(i%4) / 2
	}
	single[size/2] = n
	switch c {
	case AllReduce:
		return [][]int64{{n}, {n / 4, 0, n, 1, n/2 + 1}, {0, 0}}
	case AllGather, ReduceScatter, Gather, Scatter, AllToAll:
		return [][]int64{equal, uneven, single}
	case Barrier:
		return [][]int64{nil}
	}
	return [][]int64{{n}}
}

// TestMain has garbage collected rarely: proofs make much of it, and keep next to nothing.
func TestMain(m *testing.M) {
	debug.SetGCPercent(1600)
	debug.SetMemoryLimit(2 << 30)
	os.Exit(m.Run())
}

// TestBuilders proves every builder for many sizes, roots and settings.
func TestBuilders(t *testing.T) {
	sizes := []int{64}
	for p := 1; p <= 33; p++ {
		sizes = append(sizes, p)
	}
	const chunk = 192
	for _, c := range allCollectives {
		t.Run(c.String(), func(t *testing.T) {
			t.Parallel()
			p := newProver(t)
			for _, size := range sizes {
				if testing.Short() && size > 9 && size != 16 && size != 33 || c == Send && size == 1 {
					continue
				}
				few := size > 9 || testing.Short()
				roots := []int{0}
				if c.Rooted() || c == Send {
					roots = []int{0, size / 2, size - 1}
					if few {
						roots = roots[1:2]
					}
				}
				elems := []int64{1, 2, 4, 8, 16}
				slots := []int{2, 3, 4, 9}
				if few {
					elems = []int64{[]int64{1, 2, 4, 8, 16}[size%5]}
					slots = []int{2, 3 + size%3}
				}
				for e, elem := range elems {
					per := chunk / elem
					bytes := []int64{0, 1, 7, per - 1, per, per + 1, 5*per - 3,
						int64(size)*per - 1, int64(size)*per + 1, 4*int64(size)*per + 5}
					if few {
						bytes = []int64{0, 1, per + 1, 3*int64(size)*per + 5}
						if c == AllGather || c == AllToAll || c == ReduceScatter || c == Gather || c == Scatter {
							bytes[3] = 3*per - 1 // a rank
						}
					}
					for k, n := range bytes {
						its := slots
						if !few { // every two of an element, a length and slots meet
							its = []int{slots[(e+k)%2], slots[(e+k)%2+2]}
						}
						for _, counts := range layouts(c, size, n) {
							for _, root := range roots {
								for _, s := range its {
									j := job{Params{Collective: c, Size: size, Root: root, ElemSize: elem,
										Chunk: chunk, Slots: s, Ahead: s - 1,
										Thresholds: Thresholds{PipelineMin: 64 << 10}}, counts}
									j.byEach(func(j job) {
										if j.Algorithm == OneShot && n > 5*per {
											return // rounds of all to all, as at 5 messages
										}
										p.verify(j)
										if j.Algorithm == TwoShot {
											j.OneShotMax = chunk
											p.verify(j)
										}
									})
								}
							}
						}
					}
				}
			}
		})
	}
}

// TestRealSizes proves plans with the chunks and thresholds of real use, up to beyond 4 GiB.
func TestRealSizes(t *testing.T) {
	for _, c := range allCollectives {
		t.Run(c.String(), func(t *testing.T) {
			t.Parallel()
			p := newProver(t)
			for _, size := range []int{1, 2, 3, 8} {
				if c == Send && size == 1 {
					continue
				}
				for _, n := range []int64{1, 63 << 8, 64 << 8, 64<<8 + 1, 128<<8 - 8, 1 << 18, 1<<20 + 3,
					5 << 28} {
					if testing.Short() && n > 1<<28 {
						continue
					}
					if n > 1<<28 && size > 2 {
						n = 1<<26 + 1
					}
					for _, counts := range layouts(c, size, n) {
						j := job{Params{Collective: c, Size: size, Root: size - 1, ElemSize: 4, Chunk: 256 << 10,
							Slots:      4,
							Thresholds: Thresholds{OneShotMax: 2 << 10, SwapMin: 4 << 10, PipelineMin: 64 << 10}},
							counts}
						j.byEach(func(j job) {
							if j.Algorithm != OneShot || n <= 1<<20+3 {
								p.verify(j)
							}
						})
					}
				}
			}
		})
	}
}

// TestRandom proves plans of random parameters.
func TestRandom(t *testing.T) {
	n := 3000
	if testing.Short() {
		n = 300
	}
	t.Parallel()
	p := newProver(t)
	for seed := range n {
		rnd := rand.New(rand.NewPCG(uint64(seed), 1))
		j := job{Params: Params{Collective: allCollectives[rnd.IntN(len(allCollectives))],
			Size:     2 + rnd.IntN(12),
			ElemSize: 1 << rnd.IntN(7), Chunk: 64 * (1 + rnd.Int64N(6)), Slots: 2 + rnd.IntN(10),
			Ahead:    rnd.IntN(6),
			Schedule: []Schedule{BySize, BySize, Sequential, 2, 5, Parallel}[rnd.IntN(6)],
			Thresholds: Thresholds{OneShotMax: rnd.Int64N(2000), SwapMin: rnd.Int64N(1000),
				PipelineMin: rnd.Int64N(2000), WindowMin: rnd.Int64N(2000), Window: 1 + rnd.IntN(8)}}}
		j.Root = rnd.IntN(j.Size)
		if lists := radicesOf(j.Size); j.Collective.Has(Hierarchical) && len(lists) > 0 {
			j.Radices = lists[rnd.IntN(len(lists))]
		}
		counts := layouts(j.Collective, j.Size, 1)
		for range counts[rnd.IntN(len(counts))] {
			j.counts = append(j.counts, rnd.Int64N(1<<rnd.IntN(13)))
		}
		if all := Algorithms(j.Collective); len(all) > 1 {
			j.Algorithm = all[rnd.IntN(len(all))]
			if p := j.rank(0); j.Algorithm == Direct || p.CheckAlgorithm() != nil {
				j.Algorithm = PointToPoint // which stands for the usual one
			}
		}
		p.verify(j)
	}
}

func TestBuildErrors(t *testing.T) {
	good := Params{Collective: AllToAll, Algorithm: Linear, Rank: 1, Size: 2, InBytes: []int64{4, 8},
		OutBytes: []int64{4, 8},
		ElemSize: 4, Chunk: 64, Slots: 2}
	if _, err := Build(good); err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(*Params){
		"no plan":            func(p *Params) { p.Collective = MonitoredBarrier },
		"has no plan":        func(p *Params) { p.Collective = 200 },
		"size is 0":          func(p *Params) { p.Size = 0 },
		"rank is 2":          func(p *Params) { p.Rank = 2 },
		"rank is -1":         func(p *Params) { p.Rank = -1 },
		"chunk is 100":       func(p *Params) { p.Chunk = 100 },
		"chunk is 0":         func(p *Params) { p.Chunk = 0 },
		"slots is 1":         func(p *Params) { p.Slots = 1 },
		"element size is 0":  func(p *Params) { p.ElemSize = 0 },
		"element size is 12": func(p *Params) { p.ElemSize = 12 },
		"can be got":         func(p *Params) { p.GetMin = 1 },
		"6 bytes":            func(p *Params) { p.InBytes = []int64{6, 8} },
		"-4 bytes":           func(p *Params) { p.OutBytes = []int64{-4, 8} },
		"1 input and 2":      func(p *Params) { p.InBytes = []int64{4} },
		"own block has 4":    func(p *Params) { p.InBytes = []int64{4, 4} },
		"0 input and 0": func(p *Params) {
			p.Collective, p.Algorithm, p.InBytes, p.OutBytes = AllReduce, OneShot, nil, nil
		},
		"8 as output": func(p *Params) {
			p.Collective, p.Algorithm, p.InBytes = AllReduce, OneShot, []int64{4, 4}
		},
		"must be 1 and 1": func(p *Params) { p.Collective = Reduce },
		"must be 1 and 2": func(p *Params) { p.Collective = Gather },
		"must be 2 and 1": func(p *Params) { p.Collective = Scatter },
		"root is 2":       func(p *Params) { p.Collective, p.Root = Broadcast, 2 },
		"allreduce has no algorithm linear; there are one_shot, two_shot, recursive_multiplying, " +
			"hierarchical, binomial_tree, direct": func(p *Params) {
			p.Collective, p.InBytes, p.OutBytes = AllReduce, []int64{4}, []int64{4}
		},
		"alltoall by pairwise needs a schedule with a window": func(p *Params) {
			p.Algorithm, p.Memory = Pairwise, true
		},
		"alltoall by linear needs a schedule without": func(p *Params) { p.Schedule = Sequential },
		"alltoall by direct needs several ranks, all": func(p *Params) { p.Algorithm = Direct },
		"no direct plan for 1 blocks": func(p *Params) {
			p.Collective, p.Algorithm, p.Memory, p.InBytes, p.OutBytes = AllReduce, Direct, true, []int64{4},
				[]int64{4}
		},
		"only a schedule makes windows": func(p *Params) { p.Memory, p.WindowMin = true, 1 },
		"peer is the rank":              func(p *Params) { p.Collective, p.Root = Send, 1 },
	} {
		p := good
		change(&p)
		if _, err := Build(p); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want an error with %q, got %v", want, err)
		}
	}
}

// TestShape pins what callers and the speed of the executor count on.
func TestShape(t *testing.T) {
	p := Params{Collective: AllReduce, Algorithm: TwoShot, Size: 2, InBytes: []int64{64 << 20},
		OutBytes: []int64{64 << 20}, ElemSize: 4, Chunk: 256 << 10, Slots: 4,
		Thresholds: Thresholds{OneShotMax: 2 << 10, PipelineMin: 64 << 10}}
	count := func(op Op) (n int) {
		plan, err := Build(p)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range plan.Steps {
			if s.Op == op {
				n++
			}
		}
		return n
	}
	if n := count(Combine); n != 128 {
		t.Errorf("64 MiB over 2 ranks in 256 KiB chunks: %d rounds", n)
	}
	if n := testing.AllocsPerRun(10, func() { Build(p) }); n > 16 {
		t.Errorf("%v allocations", n)
	}
	p.InBytes, p.OutBytes = []int64{1024}, []int64{1024}
	if n := count(Put); n != 1 {
		t.Errorf("a small allreduce puts %d messages", n)
	}
	p.InBytes, p.OutBytes = []int64{128 << 10}, []int64{128 << 10}
	if n := count(Combine); n != 4 {
		t.Errorf("a medium allreduce has %d rounds", n)
	}
	// Small blocks: puts run ahead of waits.
	p.InBytes = slices.Repeat([]int64{8}, 10)
	p.OutBytes = p.InBytes
	plan, err := Build(p)
	if err != nil {
		t.Fatal(err)
	}
	for i, s := range plan.Steps[:3] {
		if s.Op != Put {
			t.Errorf("step %d is %v", i, &s)
		}
	}
	if text := plan.String(); !strings.Contains(text, "put 8 bytes [in[0]+0] to 1") ||
		!strings.Contains(text, "combine 8 bytes [in[0]+0 inbox[1 #0]+0] to out[0]+0") {
		t.Error(text)
	}
}

func BenchmarkBuild(b *testing.B) {
	for _, j := range []job{
		{Params{Collective: AllReduce, Size: 2}, []int64{16 << 20}},
		{Params{Collective: AllReduce, Size: 512}, []int64{1 << 18}},
		{Params{Collective: AllGather, Size: 512}, slices.Repeat([]int64{16}, 512)},
		{Params{Collective: AllToAll, Size: 512}, slices.Repeat([]int64{16}, 512)},
		{Params{Collective: Scatter, Size: 512}, slices.Repeat([]int64{16}, 512)},
	} {
		j.ElemSize, j.Chunk, j.Slots = 4, 256<<10, 4
		p := j.rank(1)
		b.Run(fmt.Sprintf("%v/%d", j.Collective, j.Size), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := Build(p); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
