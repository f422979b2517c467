package core

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"
	"unsafe"

	"github.com/goccl/goccl/core/plan"
	"github.com/goccl/goccl/core/reduce"
)

// shareable is n int32 of a rank's shareable memory.
func shareable(t testing.TB, w *world, rank, n int) []int32 {
	p, err := w.runtimes[rank].Alloc(int64(4 * n))
	if err != nil {
		panic(err) // not on the test's goroutine
	}
	t.Cleanup(func() {
		if err := w.runtimes[rank].Free(p); err != nil {
			t.Error(err)
		}
	})
	return unsafe.Slice((*int32)(p), n)
}

// allocating has a process allocate memory, and free it again.
func allocating(t *testing.T, r *Runtime) (
	alloc func(bytes int64) unsafe.Pointer, free func(unsafe.Pointer),
) {
	alloc = func(bytes int64) unsafe.Pointer {
		t.Helper()
		p, err := r.Alloc(bytes)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	free = func(p unsafe.Pointer) {
		t.Helper()
		if err := r.Free(p); err != nil {
			t.Fatal(err)
		}
	}
	return alloc, free
}

func TestShareableCollectives(t *testing.T) {
	for _, tr := range []string{"mem", "shm"} {
		for _, size := range []int{1, 2, 3, 4, 9} { // of nine, a short broadcast goes along a tree
			// Whose memory is ordinary: then all plans must be.
			for _, ordinary := range []int{-1, 0, size - 1} {
				if tr == "mem" && size > 3 { // the same plans as of processes
					continue
				}
				t.Run(fmt.Sprintf("%s/%d/ordinary %d", tr, size, ordinary), func(t *testing.T) {
					w := newWorldOf(t, tr, size, Config{Timeout: time.Minute,
						Thresholds: "direct_min=0,stream_min=65536"})
					w.alloc = func(rank, n int) []int32 {
						if rank == ordinary {
							return buffer(t, n)
						}
						return shareable(t, w, rank, n)
					}
					for _, n := range sizes(testing.Short() || size > 4) {
						collectives(t, w, size, n, false)
						collectives(t, w, size, n, true)
					}
				})
			}
		}
	}
}

// The first call of a communicator connects it; later ones are direct where all buffers are
// shareable, small or large, whatever was called before.
func TestDirectPlansAreRun(t *testing.T) {
	const size, n = 3, 400_000
	w := newWorld(t, "shm", size, time.Minute)
	w.each(func(rank int) error { return run(w.comms[rank], allReduce(t, n)) })
	w.each(func(rank int) error { return run(w.comms[rank], allReduce(t, n)) }) // by the fast path
	shared := make([][]int32, size)
	for rank := range size {
		shared[rank] = shareable(t, w, rank, n)
	}
	for _, c := range []struct {
		name   string
		op     func(rank int) Operation
		direct bool
	}{
		{"ordinary", func(int) Operation { return allReduce(t, n) }, false},
		{"shareable", func(rank int) Operation { return inPlace(shared[rank]) }, true},
		{"small", func(rank int) Operation { return inPlace(shared[rank][:1000]) }, false},
		{"at the end", func(rank int) Operation { return inPlace(shared[rank][n-50_001:]) }, true},
		{"one ordinary", func(rank int) Operation {
			if rank == 1 {
				return allReduce(t, n)
			}
			return inPlace(shared[rank])
		}, false},
		{"shareable again", func(rank int) Operation { return inPlace(shared[rank]) }, true},
		{"reduce",
			func(rank int) Operation { return rooted(plan.Reduce, rank, size, 1, shared[rank]) }, true},
		{"broadcast",
			func(rank int) Operation { return rooted(plan.Broadcast, rank, size, 1, shared[rank]) }, true},
		{"gather",
			func(rank int) Operation { return rooted(plan.Gather, rank, size, 1, shared[rank]) }, true},
		{"scatter",
			func(rank int) Operation { return rooted(plan.Scatter, rank, size, 1, shared[rank]) }, true},
	} {
		op := c.op(0)
		star := op.Collective.Rooted() && op.Collective != plan.Reduce
		for range 3 {
			before := make([][]uint64, size)
			for rank := range size {
				before[rank] = sentOn(w.comms[rank], collectiveLane)
			}
			w.each(func(rank int) error { return run(w.comms[rank], c.op(rank)) })
			for rank := range size {
				for peer, now := range sentOn(w.comms[rank], collectiveLane) {
					meet := !star || rank == op.Root || peer == op.Root
					if messages := now - before[rank][peer]; peer != rank &&
						(messages == 2) != (c.direct && meet) {
						t.Errorf("%s: rank %d sent %d messages to %d", c.name, rank, messages, peer)
					}
				}
			}
		}
	}
}

// rooted is an operation in place: of a block, or of one a rank on the root's side.
func rooted(collective plan.Collective, rank, size, root int, b []int32) Operation {
	op := inPlace(b)
	op.Collective, op.Root = collective, root
	var each []unsafe.Pointer
	for r := range size {
		each = append(each, ptr(b[r*len(b)/size:]))
	}
	counts := slices.Repeat([]uint64{uint64(len(b) / size)}, size)
	all, one := each, each[rank:rank+1]
	if rank != root {
		all = nil
	}
	switch collective {
	case plan.Gather:
		op.In, op.InCounts, op.Out, op.OutCounts = one, counts[:1], all, counts
	case plan.Scatter:
		op.In, op.InCounts, op.Out, op.OutCounts = all, counts, one, counts[:1]
	}
	return op
}

func inPlace(b []int32) Operation {
	p := []unsafe.Pointer{ptr(b)}
	return Operation{Collective: plan.AllReduce, DType: reduce.Int32, In: p, Out: p,
		InCounts: []uint64{uint64(len(b))}, OutCounts: []uint64{uint64(len(b))}}
}

// A peer that calls something else is found out, whether its memory is shareable or not.
func TestMismatchOfShareable(t *testing.T) {
	const n = 100_000
	star := func(c plan.Collective, root int) func(int, []int32) Operation {
		return func(rank int, b []int32) Operation { return rooted(c, rank, 2, root, b) }
	}
	all := func(_ int, b []int32) Operation { return inPlace(b) }
	for _, c := range []struct {
		name   string
		ops    [2]func(rank int, b []int32) Operation
		counts [2]int
	}{
		{"counts", [2]func(int, []int32) Operation{all, all}, [2]int{n, n + 1}},
		{"counts of a broadcast", [2]func(int, []int32) Operation{star(plan.Broadcast, 0),
			star(plan.Broadcast, 0)}, [2]int{n, n + 1}},
		{"counts of a gather", [2]func(int, []int32) Operation{star(plan.Gather, 1),
			star(plan.Gather, 1)}, [2]int{n, n + 2}},
		{"roots", [2]func(int, []int32) Operation{star(plan.Scatter, 0), star(plan.Scatter, 1)},
			[2]int{n, n}},
		{"roots of a reduce", [2]func(int, []int32) Operation{star(plan.Reduce, 0), star(plan.Reduce, 1)},
			[2]int{n, n}},
		{"collectives", [2]func(int, []int32) Operation{star(plan.Broadcast, 0), all}, [2]int{n, n}},
		{"stars", [2]func(int, []int32) Operation{star(plan.Scatter, 0), star(plan.Gather, 0)},
			[2]int{n, n}},
	} {
		for _, ordinary := range []bool{false, true} {
			w := newWorld(t, "shm", 2, 20*time.Second)
			w.each(func(rank int) error { return run(w.comms[rank], allReduce(t, n)) })
			// maps the memory
			w.each(func(rank int) error { return run(w.comms[rank], inPlace(shareable(t, w, rank, n))) })
			errs := w.try(func(rank int) error {
				b := shareable(t, w, rank, c.counts[rank])
				if rank == 1 && ordinary {
					b = buffer(t, c.counts[rank])
				}
				return run(w.comms[rank], c.ops[rank](rank, b))
			})
			for rank, err := range errs {
				if !errors.Is(err, ErrMismatch) {
					t.Errorf("%s, ordinary %v, rank %d: %v", c.name, ordinary, rank, err)
				}
			}
		}
	}
}

// Where some slices are empty, some ranks ordinary, or an operation has several plans.
func TestShareableShapes(t *testing.T) {
	for _, c := range []struct {
		size, n    int
		thresholds string
	}{
		{4, 32, "one_shot_max=0,direct_min=0"},
		{4, 255, "one_shot_max=0,direct_min=0,pipeline_min=1"},
		{4, 1024, "one_shot_max=0,direct_min=0,pipeline_min=1"},
		{2, 17_000_000, ""},
		{3, 17_000_000, "flat_max=67108864"}, // of which each is the first segment's, not the whole's
		{3, 100_000, "flat_max=9223372036854775807"},
	} {
		if testing.Short() && c.size == 2 {
			continue
		}
		w := newWorldOf(t, "shm", c.size, Config{Timeout: 20 * time.Second, Thresholds: c.thresholds})
		for _, ordinary := range []int{-1, 0, c.size - 1} {
			for range 2 {
				w.each(func(rank int) error {
					b := buffer(t, c.n)
					if rank != ordinary {
						b = shareable(t, w, rank, c.n)
					}
					fill(b, rank, 0)
					var first int32
					for r := range c.size {
						first += value(r, 0, 0)
					}
					step := int32(c.size) * (value(0, 0, 1) - value(0, 0, 0))
					sum := func(i int) int32 { return first + int32(i)*step } // value() is linear
					root := c.size / 2
					if err := run(w.comms[rank], rooted(plan.Reduce, rank, c.size, root, b)); err != nil {
						return err
					}
					if rank == root {
						if err := expect("reduced", b, sum); err != nil {
							return err
						}
						fill(b, rank, 0)
					}
					if err := run(w.comms[rank], inPlace(b)); err != nil {
						return err
					}
					return expect("sum", b, sum)
				})
			}
		}
	}
}

// Splits that disagree, in one direction of one pair only, write nowhere.
func TestAllToAllMismatchOfShareable(t *testing.T) {
	const n = 50_000
	for _, at := range []struct{ rank, peer int }{{0, 1}, {1, 0}} {
		w := newWorld(t, "shm", 2, 20*time.Second)
		w.each(func(rank int) error { return run(w.comms[rank], allReduce(t, 10)) })
		errs := w.try(func(rank int) error {
			op := Operation{Collective: plan.AllToAll, DType: reduce.Int32}
			for peer := range 2 {
				in := uint64(n)
				if rank == at.rank && peer == at.peer {
					in++ // than the peer expects
				}
				op.In, op.InCounts = append(op.In, ptr(shareable(t, w, rank, int(in)))), append(op.InCounts, in)
				op.Out, op.OutCounts = append(op.Out, ptr(shareable(t, w, rank, n))), append(op.OutCounts, n)
			}
			return run(w.comms[rank], op)
		})
		for rank, err := range errs {
			if !errors.Is(err, ErrMismatch) {
				t.Errorf("rank %d: %v", rank, err)
			}
		}
	}
}
