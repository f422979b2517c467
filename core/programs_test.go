package core

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/goccl/goccl/core/call"
	"github.com/goccl/goccl/core/internal/polltest"
	"github.com/goccl/goccl/core/plan"
	"github.com/goccl/goccl/core/program"
	"github.com/goccl/goccl/core/program/formats"
	"github.com/goccl/goccl/core/reduce"
)

// moved is a program whose moves a function adds.
func moved(t testing.TB, p program.Program, moves func(*program.Program)) *program.Checked {
	t.Helper()
	p.Name = "my_" + p.Collective.String()
	moves(&p)
	checked, err := program.Check(p)
	if err != nil {
		t.Fatal(err)
	}
	return checked
}

func placeOf(rank int, s program.Space, chunk, count int) program.Place {
	return program.Place{Rank: rank, Space: s, Chunk: chunk, Count: count}
}

// programsOf are a program for each collective that collectives() calls, with its roots.
func programsOf(t testing.TB, n int) []*program.Checked {
	in := func(rank, chunk int) program.Place { return placeOf(rank, program.Input, chunk, 1) }
	out := func(rank, chunk int) program.Place { return placeOf(rank, program.Output, chunk, 1) }
	move := func(p *program.Program, to []program.Place, from ...program.Place) {
		p.Moves = append(p.Moves, program.Move{To: to, From: from})
	}
	of := func(chunk func(rank int) program.Place) (all []program.Place) {
		for r := range n {
			all = append(all, chunk(r))
		}
		return all
	}
	last := n - 1
	return []*program.Checked{
		moved(t, program.Program{Collective: plan.AllReduce, Ranks: n, In: n, Out: n},
			func(p *program.Program) {
				for me := range n {
					to := []program.Place{out(me, me)}
					for r := range n {
						if r != me {
							to = append(to, out(r, me))
						}
					}
					move(p, to, of(func(r int) program.Place { return in(r, me) })...)
				}
			}),
		moved(t, program.Program{Collective: plan.Reduce, Root: last, Ranks: n, In: 1, Out: 1},
			func(p *program.Program) {
				move(p, []program.Place{out(last, 0)}, of(func(r int) program.Place { return in(r, 0) })...)
			}),
		moved(t, program.Program{Collective: plan.Broadcast, Root: n / 2, Ranks: n, In: 1, Out: 1},
			func(p *program.Program) {
				for r := range n {
					move(p, []program.Place{out(r, 0)}, in(n/2, 0))
				}
			}),
		moved(t, program.Program{Collective: plan.AllGather, Ranks: n, In: 2, Out: 2 * n},
			func(p *program.Program) { // around the ring
				for r := range n {
					move(p, []program.Place{placeOf(r, program.Output, 2*r, 2)}, placeOf(r, program.Input, 0, 2))
				}
				for step := 1; step < n; step++ {
					for r := range n {
						block := (r + n - step + 1) % n
						move(p, []program.Place{placeOf((r+1)%n, program.Output, 2*block, 2)},
							placeOf(r, program.Output, 2*block, 2))
					}
				}
			}),
		moved(t, program.Program{Collective: plan.ReduceScatter, Ranks: n, In: n, Out: 1},
			func(p *program.Program) {
				for me := range n {
					move(p, []program.Place{out(me, 0)}, of(func(r int) program.Place { return in(r, me) })...)
				}
			}),
		moved(t, program.Program{Collective: plan.Gather, Ranks: n, In: 1, Out: n},
			func(p *program.Program) {
				for r := range n {
					move(p, []program.Place{out(0, r)}, in(r, 0))
				}
			}),
		moved(t, program.Program{Collective: plan.Scatter, Root: last, Ranks: n, In: n, Out: 1},
			func(p *program.Program) {
				for r := range n {
					move(p, []program.Place{out(r, 0)}, in(last, r))
				}
			}),
		moved(t, program.Program{Collective: plan.AllToAll, Ranks: n, In: n, Out: n},
			func(p *program.Program) {
				for me := range n {
					for r := range n {
						move(p, []program.Place{out(r, me)}, in(me, r))
					}
				}
			}),
	}
}

// register has all ranks register a program.
func (w *world) register(p *program.Checked, minBytes, maxBytes int64) {
	w.t.Helper()
	w.each(func(rank int) error {
		return w.comms[rank].RegisterProgram(context.Background(), p, minBytes, maxBytes)
	})
}

// reduces has all ranks reduce in place.
func (w *world) reduces(n int) {
	w.t.Helper()
	size := len(w.comms)
	w.each(func(rank int) error {
		b := buffer(w.t, n)
		fill(b, rank, 0)
		err := run(w.comms[rank], inPlace(b))
		return errors.Join(err, expect("allreduce", b, func(i int) (sum int32) {
			for r := range size {
				sum += value(r, 0, i)
			}
			return sum
		}))
	})
}

// ranBy fails the test unless all collectives of a kind that came after the first so many ran by an
// algorithm.
func (w *world) ranBy(c plan.Collective, after uint64, want string) {
	w.t.Helper()
	for rank, comm := range w.comms {
		if names := namesOf(comm, c, after); !slices.Equal(names, []string{want}) {
			w.t.Errorf("rank %d: %v ran by %q, want %q", rank, c, names, want)
		}
	}
}

// Registered programs run all collectives that they fit, until they are unregistered. The results
// are right: of any length, in place or not, and of blocks that are not equally long.
func TestRegisteredPrograms(t *testing.T) {
	for _, transport := range transports {
		for _, size := range []int{1, 2, 3, 4} {
			t.Run(fmt.Sprint(transport, size), func(t *testing.T) {
				w := newWorld(t, transport, size, 0)
				all := programsOf(t, size)
				for _, p := range all {
					w.register(p, 0, 0)
				}
				for _, n := range []int{0, 1, 257, 70_001} {
					before := w.comms[0].Sequence()
					collectives(t, w, size, n, n%2 == 0)
					collectives(t, w, size, n, n%2 == 1) // by the fast path, where there is one
					for _, p := range all[:plan.AllToAll] {
						w.ranBy(p.Collective, before, "plan:"+p.Name)
					}
				}
				for _, p := range all {
					w.each(func(rank int) error {
						return w.comms[rank].UnregisterProgram(context.Background(), p)
					})
				}
				before := w.comms[0].Sequence()
				collectives(t, w, size, 257, false)
				for rank, c := range w.comms {
					for sequence := before + 1; sequence <= c.Sequence(); sequence++ {
						if name := c.Algorithm(sequence); strings.HasPrefix(name, "plan") {
							t.Errorf("rank %d: #%d ran by %q, which is unregistered", rank, sequence, name)
						}
					}
				}
			})
		}
	}
}

// Programs run where some ranks share memory and others do not, and on shareable memory.
func TestRegisteredProgramsOfMixedRanks(t *testing.T) {
	const size = 4
	for name, shares := range map[string]bool{"ordinary": false, "shareable": true} {
		t.Run(name, func(t *testing.T) {
			w, errs := tryWorld(t, size, func(rank int, r *RuntimeConfig, _ *Config) {
				if rank >= size/2 && !shares {
					r.host = "elsewhere"
				}
			})
			if err := errors.Join(errs...); err != nil {
				t.Fatal(err)
			}
			if shares {
				w.alloc = func(rank, n int) []int32 { return shareable(t, w, rank, n) }
			}
			for _, p := range programsOf(t, size) {
				w.register(p, 0, 0)
			}
			for _, n := range []int{1, 70_001} {
				before := w.comms[0].Sequence()
				collectives(t, w, size, n, n == 1)
				w.ranBy(plan.AllReduce, before, "plan:my_allreduce")
				w.ranBy(plan.AllGather, before, "plan:my_allgather")
			}
		})
	}
}

// allToAllOfEqual is an operation with equal blocks, and what comes of it.
func allToAllOfEqual(t *testing.T, rank, size, n int) (op Operation, check func() error) {
	op = Operation{Collective: plan.AllToAll, DType: reduce.Int32}
	var outs [][]int32
	for to := range size {
		in, out := buffer(t, n), buffer(t, n)
		fill(in, rank, to)
		outs = append(outs, out)
		op.In, op.Out = append(op.In, ptr(in)), append(op.Out, ptr(out))
		op.InCounts, op.OutCounts = append(op.InCounts, uint64(n)), append(op.OutCounts, uint64(n))
	}
	return op, func() error {
		for from, out := range outs {
			want := func(i int) int32 { return value(from, rank, i) }
			if err := expect("alltoall", out, want); err != nil {
				return err
			}
		}
		return nil
	}
}

// A caller's word switches programs off, or on for an all-to-all with equal blocks. Where blocks
// are not equal the call is refused on all ranks.
func TestProgramsOfACall(t *testing.T) {
	const size = 3
	w := newWorld(t, "shm", size, 0)
	all := programsOf(t, size)
	w.register(all[plan.AllReduce], 8, 800)
	w.register(all[plan.AllToAll], 0, 0)
	for _, c := range []struct {
		n, times int
		programs call.Programs
		want     string
	}{
		{1, 2, call.AnyProgram, "one_shot"}, {2, 3, call.AnyProgram, "plan:my_allreduce"},
		{2, 3, call.NoProgram, "one_shot"}, {200, 1, call.AnyProgram, "plan:my_allreduce"},
		{201, 1, call.AnyProgram, "one_shot"}, {2, 1, call.EqualBlocks, "plan:my_allreduce"},
	} {
		before := w.comms[0].Sequence()
		for range c.times {
			w.each(func(rank int) error {
				op := inPlace(buffer(t, c.n))
				op.Programs = c.programs
				return run(w.comms[rank], op)
			})
		}
		w.ranBy(plan.AllReduce, before, c.want)
	}
	for programs, want := range map[call.Programs]string{call.AnyProgram: "linear",
		call.EqualBlocks: "plan:my_alltoall", call.NoProgram: "linear"} {
		before := w.comms[0].Sequence()
		for range 3 {
			w.each(func(rank int) error {
				op, check := allToAllOfEqual(t, rank, size, 100)
				op.Programs = programs
				if err := run(w.comms[rank], op); err != nil {
					return err
				}
				return check()
			})
		}
		w.ranBy(plan.AllToAll, before, want)
	}
	errs := w.try(func(rank int) error {
		op, _ := allToAllOfEqual(t, rank, size, 4)
		op.Programs, op.InCounts[(rank+1)%size] = call.EqualBlocks, 3
		return run(w.comms[rank], op)
	})
	for rank, err := range errs {
		if !errors.Is(err, ErrInvalidArgument) || !strings.Contains(err.Error(), "equally long") {
			t.Errorf("rank %d: %v", rank, err)
		}
	}
}

// Programs serve only what they may sum, in an order of their own if they must.
func TestProgramsOfSums(t *testing.T) {
	const size = 3
	in := func(rank int) program.Place { return placeOf(rank, program.Input, 0, 1) }
	out := func(rank int) program.Place { return placeOf(rank, program.Output, 0, 1) }
	chain := func(name string, anyOrder bool) *program.Checked {
		p := program.Program{Collective: plan.AllReduce, Ranks: size, In: 1, Out: 1, Scratch: 1,
			AnyOrder: anyOrder}
		checked := moved(t, p, func(p *program.Program) {
			s := placeOf(2, program.Scratch, 0, 1)
			p.Moves = []program.Move{{To: []program.Place{s}, From: []program.Place{in(1), in(2)}},
				{To: []program.Place{out(2), out(0), out(1)}, From: []program.Place{s, in(0)}}}
		})
		checked.Name = name
		return checked
	}
	w := newWorld(t, "tcp", size, 0)
	w.register(chain("exact", false), 0, 0)
	for _, c := range []struct {
		dtype reduce.DType
		op    reduce.Op
		want  string
	}{
		{reduce.Int32, reduce.Sum, "plan:exact"}, {reduce.Float32, reduce.Max, "plan:exact"},
		{reduce.Float32, reduce.Sum, "one_shot"}, {reduce.Int32, reduce.Avg, "one_shot"},
	} {
		before := w.comms[0].Sequence()
		w.each(func(rank int) error {
			op := inPlace(buffer(t, 8))
			op.DType, op.Op = c.dtype, c.op
			return run(w.comms[rank], op)
		})
		w.ranBy(plan.AllReduce, before, c.want)
	}
	w.register(chain("own order", true), 0, 0)
	for dtype, want := range map[reduce.DType]string{reduce.Float32: "plan:own order",
		reduce.BFloat16: "plan:own order"} {
		before := w.comms[0].Sequence()
		w.each(func(rank int) error {
			op := inPlace(buffer(t, 8))
			op.DType = dtype
			return run(w.comms[rank], op)
		})
		w.ranBy(plan.AllReduce, before, want)
	}
}

// Where ranks register different programs, or one is refused, none has one, all are told, and the
// group goes on.
func TestProgramsThatDiffer(t *testing.T) {
	const size = 3
	good := programsOf(t, size)
	w := newWorld(t, "shm", size, 0)
	for name, c := range map[string]struct {
		program func(rank int) *program.Checked
		most    func(rank int) int64
		says    []string // of each rank
	}{
		"programs": {program: func(rank int) *program.Checked { return good[rank/2] },
			says: slices.Repeat([]string{"my_reduce\" (digest "}, size)},
		"lengths": {most: func(rank int) int64 { return int64(100 + rank/2) },
			says: slices.Repeat([]string{"of 0 to 101 bytes"}, size)},
		"number of ranks": {program: func(rank int) *program.Checked {
			return programsOf(t, size+rank/2)[0]
		}, says: []string{"refused on rank 2", "refused on rank 2", "is for 4 ranks, not for 3"}},
		"bytes": {most: func(rank int) int64 { return int64(-rank / 2) },
			says: []string{"refused on rank 2", "refused on rank 2", "bytes are 0 to -1"}},
	} {
		errs := w.try(func(rank int) error {
			p, most := good[0], int64(0)
			if c.program != nil {
				p = c.program(rank)
			}
			if c.most != nil {
				most = c.most(rank)
			}
			return w.comms[rank].RegisterProgram(context.Background(), p, 0, most)
		})
		for rank, err := range errs {
			kind := ErrMismatch // but for the rank that was refused
			if strings.Contains(c.says[rank], "is for") || strings.Contains(c.says[rank], "bytes are") {
				kind = ErrInvalidArgument
			}
			if !errors.Is(err, kind) || !strings.Contains(err.Error(), c.says[rank]) {
				t.Errorf("%s, rank %d: %v", name, rank, err)
			}
		}
		before := w.comms[0].Sequence()
		w.reduces(5)
		w.ranBy(plan.AllReduce, before, "one_shot")
	}
	busy := moved(t, program.Program{Collective: plan.Custom, Ranks: size, In: 1, Out: 1},
		func(p *program.Program) {
			for i := range program.MostBusy + 1 {
				p.Moves = append(p.Moves, program.Move{To: []program.Place{placeOf(1, program.Output, 0, 1)},
					From: []program.Place{placeOf(2*(i%2), program.Input, 0, 1)}})
			}
		})
	for rank, err := range w.try(func(rank int) error {
		return w.comms[rank].RegisterProgram(context.Background(), busy, 0, 0)
	}) {
		if !errors.Is(err, ErrInvalidArgument) || !strings.Contains(err.Error(), "places of one rank") {
			t.Errorf("rank %d: %v", rank, err)
		}
	}
	w.register(good[0], 0, 0)
	for _, say := range []string{"is registered already", "is not registered"} {
		p := good[0]
		do := (*Comm).UnregisterProgram
		if say == "is registered already" {
			do = func(c *Comm, ctx context.Context, p *program.Checked) error {
				return c.RegisterProgram(ctx, p, 0, 0)
			}
		} else {
			p = good[1]
		}
		for rank, err := range w.try(func(rank int) error {
			return do(w.comms[rank], context.Background(), p)
		}) {
			if !errors.Is(err, ErrInvalidArgument) || !strings.Contains(err.Error(), say) {
				t.Errorf("rank %d: %v, want %q", rank, err, say)
			}
		}
	}
}

// What other threads start behind a registration waits for it, so that all ranks run it alike.
func TestProgramsInOrder(t *testing.T) {
	const size = 3
	w := newWorld(t, "shm", size, 0)
	p := programsOf(t, size)[0]
	w.reduces(5)
	before := w.comms[0].Sequence()
	w.each(func(rank int) error {
		registered := make(chan error, 1)
		c := w.comms[rank]
		go func() { registered <- c.RegisterProgram(context.Background(), p, 0, 0) }()
		polltest.Until(t, "the registration has its place in the order", func() bool {
			return c.Sequence() > before
		})
		err := run(c, inPlace(buffer(t, 5)))
		return errors.Join(err, <-registered)
	})
	w.ranBy(plan.AllReduce, before, "plan:my_allreduce")
}

// A program that runs once: neighbours exchange what they have at their borders.
func TestRunProgram(t *testing.T) {
	for _, transport := range transports {
		for _, size := range []int{1, 2, 5} {
			halo := moved(t, program.Program{Collective: plan.Custom, Ranks: size, In: 2, Out: 2},
				func(p *program.Program) {
					for me := range size {
						left, right := (me+size-1)%size, (me+1)%size
						p.Moves = append(p.Moves,
							program.Move{To: []program.Place{placeOf(left, program.Output, 1, 1)},
								From: []program.Place{placeOf(me, program.Input, 0, 1)}},
							program.Move{To: []program.Place{placeOf(right, program.Output, 0, 1)},
								From: []program.Place{placeOf(me, program.Input, 1, 1)}})
					}
				})
			w := newWorld(t, transport, size, 0)
			for _, n := range []int{0, 1, 1000, 300_000} {
				w.each(func(rank int) error {
					in, out := buffer(t, 2*n), buffer(t, 2*n)
					fill(in[:n], rank, 0)
					fill(in[n:], rank, 1)
					err := run(w.comms[rank], Operation{Collective: plan.Custom, DType: reduce.Int32,
						Program: halo, In: []unsafe.Pointer{ptr(in)}, Out: []unsafe.Pointer{ptr(out)},
						InCounts: []uint64{uint64(2 * n)}, OutCounts: []uint64{uint64(2 * n)}})
					left, right := (rank+size-1)%size, (rank+1)%size
					return errors.Join(err,
						expect("left", out[:n], func(i int) int32 { return value(left, 1, i) }),
						expect("right", out[n:], func(i int) int32 { return value(right, 0, i) }))
				})
			}
			for rank, err := range w.try(func(rank int) error {
				in := buffer(t, 3)
				return run(w.comms[rank], Operation{Collective: plan.Custom, DType: reduce.Int32,
					Program: halo, In: []unsafe.Pointer{ptr(in)}, Out: []unsafe.Pointer{ptr(in)},
					InCounts: []uint64{3}, OutCounts: []uint64{2}})
			}) {
				if !errors.Is(err, ErrInvalidArgument) || !strings.Contains(err.Error(), "3 elements") {
					t.Errorf("%s, rank %d: %v", transport, rank, err)
				}
			}
		}
	}
}

// The programs that a setting names serve each group that they fit, and each epoch. Where a rank
// lacks one all are told.
func TestProgramsOfASetting(t *testing.T) {
	const size = 3
	folder := t.TempDir()
	for _, p := range append(programsOf(t, size), programsOf(t, size-1)...) {
		name := fmt.Sprintf("%s_%d.json", p.Name, p.Ranks)
		if err := os.WriteFile(filepath.Join(folder, name), p.Text(), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	w, errs := tryWorld(t, size, func(_ int, _ *RuntimeConfig, c *Config) { c.Plans = folder })
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	check := func(w *world) {
		t.Helper()
		before := w.comms[0].Sequence()
		w.reduces(5)
		w.ranBy(plan.AllReduce, before, "plan:my_allreduce")
	}
	check(w)
	w.each(func(rank int) error { return w.comms[rank].Renew(context.Background()) })
	check(w)
	parts := &world{t: t, comms: make([]*Comm, size)}
	w.each(func(rank int) (err error) {
		parts.comms[rank], err = w.comms[rank].Split(context.Background(), rank/2, 0)
		return err
	})
	parts.comms = parts.comms[:2]
	check(parts)
	w.comms[2].Abort("rank 2 leaves")
	w.comms[2].Destroy()
	w.comms = w.comms[:2]
	w.each(func(rank int) error { return w.comms[rank].Recover(context.Background()) })
	check(w)

	one := filepath.Join(folder, "my_allreduce_3.json")
	_, errs = tryWorld(t, size, func(rank int, _ *RuntimeConfig, c *Config) {
		if c.Plans = folder; rank == 1 {
			c.Plans = one
		}
	})
	for rank, err := range errs {
		if !errors.Is(err, ErrMismatch) || !strings.Contains(err.Error(), "the programs (GOCCL_PLANS)") {
			t.Errorf("rank %d: %v", rank, err)
		}
	}
}

// A registration ends with the epoch.
func TestProgramsEndWithTheEpoch(t *testing.T) {
	const size = 3
	w := newWorld(t, "tcp", size, 0)
	w.register(programsOf(t, size)[0], 0, 0)
	w.each(func(rank int) error { return w.comms[rank].Renew(context.Background()) })
	before := w.comms[0].Sequence()
	w.reduces(5)
	w.ranBy(plan.AllReduce, before, "one_shot")
}

// callOf is a call of a program's collective on equal blocks of n elements, and what comes of it.
func callOf(t *testing.T, p *program.Checked, rank, n int) (op Operation, check func() error) {
	size := p.Ranks
	op = Operation{Collective: p.Collective, DType: reduce.Int32, Root: p.Root,
		Programs: call.EqualBlocks}
	ins, outs := p.Blocks(program.Input), p.Blocks(program.Output)
	var results [][]int32
	for i := range max(ins, outs) {
		in, out := buffer(t, n), buffer(t, n)
		fill(in, rank, i)
		if i < ins {
			op.In, op.InCounts = append(op.In, ptr(in)), append(op.InCounts, uint64(n))
		}
		if i < outs {
			op.Out, op.OutCounts = append(op.Out, ptr(out)), append(op.OutCounts, uint64(n))
			results = append(results, out)
		}
	}
	return op, func() error {
		for b, out := range results {
			want := func(i int) int32 { return value(b, 0, i) }
			switch p.Collective {
			case plan.AllToAll:
				want = func(i int) int32 { return value(b, rank, i) }
			case plan.AllReduce, plan.ReduceScatter:
				of := 0
				if p.Collective == plan.ReduceScatter {
					of = rank
				}
				want = func(i int) (sum int32) {
					for r := range size {
						sum += value(r, of, i)
					}
					return sum
				}
			}
			if err := expect(p.Name, out, want); err != nil {
				return err
			}
		}
		return nil
	}
}

// The plans of MSCCL++ run in groups: those that are sound give what their collectives promise.
func TestForeignPlansRun(t *testing.T) {
	files, err := filepath.Glob("program/mscclpp/testdata/plans/*.json")
	if err != nil || len(files) < 20 {
		t.Fatal(files, err)
	}
	worlds := map[string]*world{}
	ran := 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		p, err := formats.Read(text)
		if err != nil {
			continue // package mscclpp tests why
		}
		ran++
		for _, transport := range []string{"shm", "tcp", "verbs"} {
			if transport == "verbs" && p.Ranks > 4 {
				continue // a device is no host of many
			}
			key := fmt.Sprint(transport, p.Ranks)
			if worlds[key] == nil {
				worlds[key] = newWorld(t, transport, p.Ranks, 0)
			}
			w := worlds[key]
			if p.Collective == plan.Custom {
				w.each(func(rank int) error {
					in, out := buffer(t, 64*p.In), buffer(t, 64*p.Out)
					return run(w.comms[rank], Operation{Collective: plan.Custom, DType: reduce.Int32,
						Program: p, In: []unsafe.Pointer{ptr(in)}, Out: []unsafe.Pointer{ptr(out)},
						InCounts: []uint64{uint64(len(in))}, OutCounts: []uint64{uint64(len(out))}})
				})
				continue
			}
			w.register(p, 0, 1<<40)
			for _, n := range []int{1, 257, 100_003} {
				w.each(func(rank int) error {
					op, check := callOf(t, p, rank, n)
					if err := run(w.comms[rank], op); err != nil {
						return err
					}
					if by := w.comms[rank].Algorithm(w.comms[rank].Sequence()); by != "plan:"+p.Name {
						return fmt.Errorf("%v ran by %q, not by %q", p.Collective, by, p.Name)
					}
					return check()
				})
			}
			w.each(func(rank int) error {
				return w.comms[rank].UnregisterProgram(context.Background(), p)
			})
		}
	}
	if ran < 22 {
		t.Errorf("%d of %d plans ran", ran, len(files))
	}
}

// A rank that calls something else, ends, or aborts while others register: all are told, nobody
// waits, and what other threads have started behind it ends, too.
func TestRegistrationFails(t *testing.T) {
	for name, c := range map[string]struct {
		last func(c *Comm) error // what the last rank does
		want error
		says string
	}{
		"another call": {func(c *Comm) error { return run(c, Operation{Collective: plan.Barrier}) },
			ErrMismatch, "program_register"},
		"destroy": {func(c *Comm) error { c.Destroy(); return ErrPeerFailed }, ErrPeerFailed, ""},
		"abort":   {func(c *Comm) error { c.Abort("enough"); return ErrAborted }, ErrAborted, "enough"},
	} {
		for _, transport := range []string{"shm", "tcp"} {
			t.Run(name+" "+transport, func(t *testing.T) {
				const size = 3
				w := newWorld(t, transport, size, 0)
				p := programsOf(t, size)[0]
				w.reduces(5)
				before := w.comms[0].Sequence()
				for rank, err := range w.try(func(rank int) error {
					comm := w.comms[rank]
					if rank == size-1 {
						return c.last(comm)
					}
					behind := make(chan error, 1)
					go func() {
						err := errors.New("it was not started")
						defer func() { behind <- err }() // also where the wait is over
						polltest.Until(t, "the registration has its place, or the group has failed", func() bool {
							return comm.Sequence() > before || comm.Err() != nil
						})
						err = run(comm, inPlace(buffer(t, 5)))
					}()
					err := comm.RegisterProgram(context.Background(), p, 0, 0)
					if <-behind == nil {
						t.Errorf("rank %d: what comes behind it has ended well", rank)
					}
					return err
				}) {
					if !errors.Is(err, c.want) && !(name == "destroy" && errors.Is(err, ErrAborted)) ||
						rank < size-1 && !strings.Contains(err.Error(), c.says) {
						t.Errorf("rank %d: %v", rank, err)
					}
				}
			})
		}
	}
}
