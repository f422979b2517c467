package goccl_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/goccl/goccl"
	"github.com/goccl/goccl/core"
)

// patience is how long tests wait for what must come, on however busy a machine.
const patience = time.Minute

func background(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	t.Cleanup(cancel)
	return ctx
}

// world is ranks that are goroutines of this process.
func world(t testing.TB, size int, config goccl.Config) []*goccl.Comm {
	t.Helper()
	config.Size, config.Store, config.Group = size, goccl.NewMemStore(), t.Name()
	if config.Timeout == 0 {
		config.Timeout = patience
	}
	comms := make([]*goccl.Comm, size)
	all(t, size, func(rank int) (err error) {
		config := config
		config.Rank = rank
		comms[rank], err = goccl.Init(background(t), config)
		return err
	})
	t.Cleanup(func() {
		for _, c := range comms {
			_ = c.Close()
		}
	})
	return comms
}

// all runs f for every rank at once, and fails the test where one fails.
func all(t testing.TB, size int, f func(rank int) error) {
	t.Helper()
	for rank, err := range try(size, f) {
		if err != nil {
			t.Fatalf("rank %d: %v", rank, err)
		}
	}
}

func try(size int, f func(rank int) error) []error {
	errs := make([]error, size)
	var done sync.WaitGroup
	for rank := range size {
		done.Go(func() { errs[rank] = f(rank) })
	}
	done.Wait()
	return errs
}

func same[T comparable](name string, got, want []T) error {
	if !slices.Equal(got, want) {
		return fmt.Errorf("%s is %v, want %v", name, got, want)
	}
	return nil
}

// ramp is n elements that tell ranks apart.
func ramp[T any](of func(int) T, rank, n int) []T {
	s := make([]T, n)
	for i := range s {
		s[i] = of(10*(rank+1) + i)
	}
	return s
}

// collectives tries all of them on one type, whose sums are exact for small numbers.
func collectives[T interface {
	goccl.Element
	comparable
}](t *testing.T, comms []*goccl.Comm, of func(int) T) {
	t.Helper()
	const n, root = 5, 1
	size := len(comms)
	sums := func(n int) []T {
		s := make([]T, n)
		for i := range s {
			sum := 0
			for r := range size {
				sum += 10*(r+1) + i
			}
			s[i] = of(sum)
		}
		return s
	}
	ctx := background(t)
	all(t, size, func(rank int) error {
		c, in, none := comms[rank], ramp(of, rank, n), make([]T, n)
		isRoot := rank == root
		onRoot := func(s []T) []T {
			if isRoot {
				return s
			}
			return nil
		}
		var errs []error
		check := func(err error, name string, got, want []T) {
			errs = append(errs, err)
			if err == nil {
				errs = append(errs, same(name, got, want))
			}
		}
		every := func(n int) (s []T) {
			for r := range size {
				s = append(s, ramp(of, r, n)...)
			}
			return s
		}

		out := make([]T, n)
		check(goccl.AllReduce(ctx, c, in, out, goccl.Sum), "allreduce", out, sums(n))
		out = slices.Clone(in)
		check(goccl.AllReduce(ctx, c, out, out, goccl.Sum), "allreduce in place", out, sums(n))
		out = make([]T, n)
		check(goccl.Reduce(ctx, c, in, onRoot(out), goccl.Sum, root), "reduce", onRoot(out),
			onRoot(sums(n)))
		out = slices.Clone(none)
		if isRoot {
			copy(out, in)
		}
		check(goccl.Broadcast(ctx, c, out, root), "broadcast", out, ramp(of, root, n))

		out = make([]T, n*size)
		check(goccl.AllGather(ctx, c, in, out), "allgather", out, every(n))
		out = make([]T, n*size)
		copy(out[rank*n:], in)
		check(goccl.AllGather(ctx, c, out[rank*n:][:n], out), "allgather in place", out, every(n))
		out = make([]T, n*size)
		check(goccl.Gather(ctx, c, in, onRoot(out), root), "gather", onRoot(out), onRoot(every(n)))
		out = make([]T, n)
		check(goccl.Scatter(ctx, c, onRoot(every(n)), out, root), "scatter", out, in)

		long := ramp(of, rank, n*size)
		check(goccl.ReduceScatter(ctx, c, long, out, goccl.Sum), "reduce_scatter", out,
			sums(n * size)[rank*n:][:n])

		out = make([]T, n*size)
		var want []T
		for r := range size {
			want = append(want, ramp(of, r, n*size)[rank*n:][:n]...)
		}
		check(goccl.AllToAll(ctx, c, long, out), "alltoall", out, want)

		// With lengths of their own: rank r has r elements, and sends r elements to each.
		parts := make([][]T, size)
		for r := range parts {
			parts[r] = make([]T, r)
		}
		err := goccl.AllGatherV(ctx, c, ramp(of, rank, rank), parts)
		for r := range parts {
			check(err, "allgather of lengths", parts[r], ramp(of, r, r))
		}
		for r := range parts {
			parts[r] = ramp(of, rank, r)
		}
		out = make([]T, rank)
		check(goccl.ReduceScatterV(ctx, c, parts, out, goccl.Sum), "reduce_scatter of lengths", out,
			sums(rank))
		sent := slices.Repeat([][]T{ramp(of, rank, rank)}, size)
		for r := range parts {
			parts[r] = make([]T, r)
		}
		err = goccl.AllToAllV(ctx, c, sent, parts)
		for r := range parts {
			check(err, "alltoall of lengths", parts[r], ramp(of, r, r))
		}
		errs = append(errs, goccl.Barrier(ctx, c))

		// Around a ring, at once.
		right, left := (rank+1)%size, (rank+size-1)%size
		out = make([]T, n)
		check(c.Run(ctx, goccl.SendOp(in, right, 7), goccl.RecvOp(out, left, 7)), "ring", out,
			ramp(of, left, n))
		return errors.Join(errs...)
	})
}

type meters float64

func TestCollectives(t *testing.T) {
	comms := world(t, 3, goccl.Config{})
	t.Run("int8", func(t *testing.T) { collectives(t, comms, func(i int) int8 { return int8(i) }) })
	t.Run("uint16", func(t *testing.T) {
		collectives(t, comms, func(i int) uint16 { return uint16(i) })
	})
	t.Run("int", func(t *testing.T) { collectives(t, comms, func(i int) int { return i << 40 }) })
	t.Run("duration", func(t *testing.T) {
		collectives(t, comms, func(i int) time.Duration { return time.Duration(i) })
	})
	t.Run("float32", func(t *testing.T) {
		collectives(t, comms, func(i int) float32 { return float32(i) / 4 })
	})
	t.Run("meters", func(t *testing.T) {
		collectives(t, comms, func(i int) meters { return meters(i) / 4 })
	})
	t.Run("float16", func(t *testing.T) {
		collectives(t, comms, func(i int) goccl.Float16 { return goccl.Float16Of(float32(i) / 4) })
	})
	t.Run("bfloat16", func(t *testing.T) {
		collectives(t, comms, func(i int) goccl.BFloat16 { return goccl.BFloat16Of(float32(i)) })
	})
	t.Run("complex32", func(t *testing.T) {
		collectives(t, comms, func(i int) goccl.Complex32 {
			return goccl.Complex32{goccl.Float16Of(float32(i)), goccl.Float16Of(float32(-i))}
		})
	})
	t.Run("complex128", func(t *testing.T) {
		collectives(t, comms, func(i int) complex128 { return complex(float64(i), 1/2.*float64(i)) })
	})
}

// Each op is what it says, on types of which the oracle is a loop.
func TestOps(t *testing.T) {
	comms := world(t, 2, goccl.Config{})
	a, b := []int32{6, -7, 12}, []int32{3, 5, 10}
	for _, x := range []struct {
		op   goccl.Op
		want func(a, b int32) int32
	}{
		{goccl.Sum, func(a, b int32) int32 { return a + b }},
		{goccl.Op{}, func(a, b int32) int32 { return a + b }},
		{goccl.Avg, func(a, b int32) int32 { return (a + b) / 2 }},
		{goccl.Product, func(a, b int32) int32 { return a * b }},
		{goccl.Min, func(a, b int32) int32 { return min(a, b) }},
		{goccl.Max, func(a, b int32) int32 { return max(a, b) }},
		{goccl.BAnd, func(a, b int32) int32 { return a & b }},
		{goccl.BOr, func(a, b int32) int32 { return a | b }},
		{goccl.BXor, func(a, b int32) int32 { return a ^ b }},
		{goccl.PreMulSum(3), func(a, b int32) int32 { return 3*a + 3*b }},
	} {
		all(t, 2, func(rank int) error {
			data, want := slices.Clone([][]int32{a, b}[rank]), make([]int32, len(a))
			for i := range want {
				want[i] = x.want(a[i], b[i])
			}
			if err := goccl.AllReduce(background(t), comms[rank], data, data, x.op); err != nil {
				return err
			}
			return same(x.op.String(), data, want)
		})
	}
	all(t, 2, func(rank int) error {
		z := []complex64{complex(float32(rank), 2)}
		err := goccl.AllReduce(background(t), comms[rank], z, z, goccl.PreMulSum(1i))
		return errors.Join(err, same("product", z, []complex64{(2i + 1 + 2i) * 1i}))
	})
	all(t, 2, func(rank int) error {
		b := []bool{rank == 0, true, false}
		err := goccl.AllReduce(background(t), comms[rank], b, b, goccl.BXor)
		return errors.Join(err, same("xor", b, []bool{true, false, false}))
	})
}

// What is wrong is named. All go on where all are refused; else the others are told why.
func TestArguments(t *testing.T) {
	f := func(n int) []float32 { return make([]float32, n) }
	shared := f(4)
	for _, x := range []struct {
		says   string
		of     goccl.Operation
		onRoot bool // on which alone it is wrong
	}{
		{"allreduce: out has 3 elements, expected 2: as in has",
			goccl.AllReduceOp(f(2), f(3), goccl.Sum), false},
		{"allreduce: reduce op BAND has no meaning for float32",
			goccl.AllReduceOp(f(2), f(2), goccl.BAnd), false},
		{"allreduce: in[0] and out[0] overlap",
			goccl.AllReduceOp(shared[:3], shared[1:], goccl.Sum), false},
		{"reduce: out has 1 elements, expected 2 on the root: as in has",
			goccl.ReduceOp(f(2), f(1), goccl.Sum, 0), true},
		{"broadcast: root is 2, allowed are 0 to 1", goccl.BroadcastOp(f(2), 2), false},
		{"allgather: out has 3 elements, expected 4: in has 2, and there are 2 ranks",
			goccl.AllGatherOp(f(2), f(3)), false},
		{"allgather: out has 1 blocks, expected 2",
			goccl.AllGatherVOp(f(2), [][]float32{f(2)}), false},
		{"reduce_scatter: in has 3 elements, expected 4: out has 2, and there are 2 ranks",
			goccl.ReduceScatterOp(f(3), f(2), goccl.Sum), false},
		{"gather: out has 5 elements, expected 4 on the root: in has 2, and there are 2 ranks",
			goccl.GatherOp(f(2), f(5), 0), true},
		{"scatter: in has 0 elements, expected 4 on the root: out has 2",
			goccl.ScatterOp(nil, f(2), 0), true},
		{"alltoall: in has 3 elements, which must be a multiple of the 2 ranks",
			goccl.AllToAllOp(f(3), f(3)), false},
		{"alltoall: in has 0 blocks, expected 2",
			goccl.AllToAllVOp(nil, [][]float32{f(2), f(2)}), false},
		{"send: peer is 2, allowed are 0 to 1", goccl.SendOp(f(1), 2, 0), false},
		{"recv: tag is -1, allowed are 0 to", goccl.RecvOp(f(1), 0, -1), false},
	} {
		t.Run(x.says, func(t *testing.T) {
			comms := world(t, 2, goccl.Config{})
			errs := try(2, func(rank int) error { return comms[rank].Run(background(t), x.of) })
			var e *goccl.Error
			name, _, _ := strings.Cut(x.says, ":")
			if !errors.Is(errs[0], goccl.ErrInvalidArgument) || !errors.As(errs[0], &e) ||
				!strings.HasPrefix(errs[0].Error(), x.says) || e.Operation != name {
				t.Errorf("%v (%+v)", errs[0], e)
			}
			if !x.onRoot {
				all(t, 2, func(rank int) error { return goccl.Barrier(background(t), comms[rank]) })
			} else if !errors.Is(errs[1], goccl.ErrMismatch) ||
				!strings.Contains(errs[1].Error(), x.says) {
				t.Errorf("rank 1: %v", errs[1])
			}
		})
	}
}

// Ranks that call different things are told what the others called.
func TestMismatch(t *testing.T) {
	comms := world(t, 2, goccl.Config{})
	errs := try(2, func(rank int) error {
		b := make([]float32, 4+rank)
		return goccl.AllReduce(background(t), comms[rank], b, b, goccl.Sum)
	})
	for rank, err := range errs {
		var e *goccl.Error
		if !errors.Is(err, goccl.ErrMismatch) || !errors.As(err, &e) || len(e.Calls) != 2 ||
			e.Group != t.Name() || e.Sequence != 1 {
			t.Errorf("rank %d: %v (%+v)", rank, err, e)
		}
	}
}

func TestContexts(t *testing.T) {
	t.Run("cancelled", func(t *testing.T) {
		comms := world(t, 2, goccl.Config{})
		ctx, cancel := context.WithCancelCause(background(t))
		begun := make(chan struct{})
		errs := try(2, func(rank int) error {
			if rank == 1 {
				<-begun
				cancel(errors.New("enough"))
				return nil
			}
			w, err := comms[0].Start(ctx, goccl.BarrierOp())
			close(begun)
			return errors.Join(err, w.Wait(background(t)))
		})
		if !errors.Is(errs[0], context.Canceled) || !errors.Is(errs[0], goccl.ErrAborted) ||
			!strings.Contains(errs[0].Error(), "barrier: its context was cancelled: enough") {
			t.Error(errs[0])
		}
		err := goccl.Barrier(background(t), comms[1])
		var e *goccl.Error
		if !errors.As(err, &e) || e.Kind != goccl.ErrAborted || !slices.Equal(e.Ranks, []int{0}) ||
			errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
	t.Run("cancelled while it blocks", func(t *testing.T) {
		comms := world(t, 2, goccl.Config{})
		ctx, cancel := context.WithCancel(background(t))
		errs := try(2, func(rank int) error {
			if rank == 1 {
				// It comes when rank 0 is in its call.
				_, err := goccl.Recv(background(t), comms[1], make([]int8, 1), 0, 0)
				cancel()
				return err
			}
			return comms[0].Run(ctx, goccl.SendOp(make([]int8, 1), 1, 0), goccl.BarrierOp())
		})
		if !errors.Is(errs[0], context.Canceled) || errs[1] != nil {
			t.Error(errs)
		}
	})
	t.Run("deadline", func(t *testing.T) {
		comms := world(t, 2, goccl.Config{})
		ctx, cancel := context.WithTimeout(background(t), 100*time.Millisecond)
		defer cancel()
		err := goccl.Barrier(ctx, comms[0])
		var e *goccl.Error
		if !errors.Is(err, context.DeadlineExceeded) || !errors.As(err, &e) ||
			e.Kind != goccl.ErrTimeout || !slices.Equal(e.Ranks, []int{1}) {
			t.Errorf("%v (%+v)", err, e)
		}
	})
	t.Run("deadline of a receive", func(t *testing.T) {
		comms := world(t, 2, goccl.Config{})
		ctx, cancel := context.WithTimeout(background(t), 50*time.Millisecond)
		defer cancel()
		source, err := goccl.Recv(ctx, comms[0], make([]int32, 1), goccl.AnySource, 0)
		if source != -1 || !errors.Is(err, context.DeadlineExceeded) || comms[0].Err() != nil {
			t.Error(source, err, comms[0].Err())
		}
		all(t, 2, func(rank int) error {
			b := []int32{int32(rank)}
			if rank == 1 {
				return goccl.Send(background(t), comms[1], []int32{5}, 0, 0)
			}
			source, err := goccl.Recv(background(t), comms[0], b, goccl.AnySource, 0)
			return errors.Join(err, same("what came", []int32{b[0], int32(source)}, []int32{5, 1}))
		})
	})
	t.Run("ended before", func(t *testing.T) {
		comms := world(t, 2, goccl.Config{})
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		errs := try(2, func(rank int) error {
			return goccl.Barrier([]context.Context{ctx, background(t)}[rank], comms[rank])
		})
		if !errors.Is(errs[0], context.Canceled) || !errors.Is(errs[1], goccl.ErrMismatch) ||
			!strings.Contains(errs[1].Error(), "the context had ended before") {
			t.Error(errs)
		}
	})
	t.Run("of Init", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
		defer cancel()
		_, err := goccl.Init(ctx, goccl.Config{Size: 2, Store: goccl.NewMemStore()})
		if !errors.Is(err, goccl.ErrTimeout) || !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		cancelled, cancel := context.WithCancel(context.Background())
		cancel()
		_, err = goccl.Init(cancelled, goccl.Config{Size: 2, Store: goccl.NewMemStore()})
		if !errors.Is(err, goccl.ErrAborted) || !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}

// A work keeps its slices alive and in place, though nobody else has them.
func TestWorkKeepsSlices(t *testing.T) {
	comms := world(t, 2, goccl.Config{})
	const n = 1 << 18
	ones := func() []float64 { return slices.Repeat([]float64{1}, n) }
	work, err := comms[0].Start(background(t), goccl.ReduceOp(ones(), nil, goccl.Sum, 1))
	if err != nil {
		t.Fatal(err)
	}
	var garbage [][]float64
	for range 20 {
		runtime.GC()
		garbage = append(garbage, slices.Repeat([]float64{-1}, n))
	}
	out := make([]float64, n)
	if err := goccl.Reduce(background(t), comms[1], ones(), out, goccl.Sum, 1); err != nil {
		t.Fatal(err)
	}
	if err := work.Wait(background(t)); err != nil {
		t.Fatal(err)
	}
	if i := slices.IndexFunc(out, func(v float64) bool { return v != 2 }); i >= 0 {
		t.Errorf("out[%d] is %g", i, out[i])
	}
	runtime.KeepAlive(garbage)
}

func TestWork(t *testing.T) {
	comms := world(t, 2, goccl.Config{})
	got := make([]int64, 1)
	work, err := comms[0].Start(background(t), goccl.RecvOp(got, goccl.AnySource, 3))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	select {
	case <-work.Done():
		t.Fatal("it is done before anything was sent")
	default:
	}
	if err := work.Wait(ctx); err != context.Canceled || work.Err() != nil || work.Source() != -1 {
		t.Error(err, work.Err(), work.Source())
	}
	if err := goccl.Send(background(t), comms[1], []int64{9}, 0, 3); err != nil {
		t.Fatal(err)
	}
	<-work.Done()
	if work.Wait(ctx) != nil || work.Source() != 1 || got[0] != 9 {
		t.Error(work.Err(), work.Source(), got)
	}
	// Two collectives and a send to itself are one work.
	all(t, 2, func(rank int) error {
		a, b, c, d := []int8{1}, []int8{2}, []int8{int8(rank)}, []int8{0}
		w, err := comms[rank].Start(background(t), goccl.AllReduceOp(a, a, goccl.Sum),
			goccl.AllReduceOp(b, b, goccl.Max), goccl.SendOp(c, rank, 0), goccl.RecvOp(d, rank, 0))
		if err != nil {
			return err
		}
		err = w.Wait(background(t))
		return errors.Join(err, same("results", []int8{a[0], b[0], d[0]}, []int8{2, 2, int8(rank)}),
			same("contributors", []int{w.Contributors()}, []int{2}))
	})
}

const swap = `{"format": "goccl.plan/1", "name": "swap", "collective": "custom", "ranks": 2,
"chunks": {"in": 1, "out": 1, "scratch": 0}, "symmetric": true,
"moves": [{"to": [[1, "o", 0, 1]], "from": [[0, "i", 0, 1]]}]}`

const sums = `{"format": "goccl.plan/1", "name": "sums", "collective": "allreduce", "ranks": 2,
"chunks": {"in": 1, "out": 1, "scratch": 0}, "symmetric": true,
"moves": [{"to": [[0, "o", 0, 1]], "from": [[0, "i", 0, 1], [1, "i", 0, 1]]}]}`

// Programs run once, and serve what calls of the package ask for; what is wrong is told.
func TestPrograms(t *testing.T) {
	comms := world(t, 2, goccl.Config{})
	load := func(text string) *goccl.Program {
		p, err := goccl.LoadProgram([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	once, each := load(swap), load(sums)
	all(t, 2, func(rank int) error {
		in, out := []int32{int32(rank), 7}, make([]int32, 2)
		err := goccl.RunProgram(background(t), comms[rank], once, in, out, goccl.Sum)
		return errors.Join(err, same("out", out, []int32{int32(1 - rank), 7}))
	})
	all(t, 2, func(rank int) error {
		return comms[rank].RegisterProgram(background(t), each, 0, 0)
	})
	all(t, 2, func(rank int) error {
		b := []float64{float64(rank), 1}
		err := goccl.AllReduce(background(t), comms[rank], b, b, goccl.Sum)
		return errors.Join(err, same("sum", b, []float64{1, 2}))
	})
	all(t, 2, func(rank int) error {
		return comms[rank].UnregisterProgram(background(t), each)
	})
	for rank, err := range try(2, func(rank int) error {
		return comms[rank].RegisterProgram(background(t), []*goccl.Program{each, once}[rank], 0, 0)
	}) {
		if !errors.Is(err, goccl.ErrMismatch) || !strings.Contains(err.Error(), `"swap"`) {
			t.Errorf("rank %d: %v", rank, err)
		}
	}
	for rank, err := range try(2, func(rank int) error {
		return goccl.RunProgram(background(t), comms[rank], once, []int32{1}, []int32{}, goccl.Sum)
	}) {
		if !errors.Is(err, goccl.ErrInvalidArgument) || !strings.Contains(err.Error(), "equally long") {
			t.Errorf("rank %d: %v", rank, err)
		}
	}
	if _, err := goccl.LoadProgram([]byte("{")); !errors.Is(err, goccl.ErrInvalidArgument) {
		t.Error(err)
	}
}

func TestAlloc(t *testing.T) {
	comms := world(t, 2, goccl.Config{})
	all(t, 2, func(rank int) error {
		s, err := goccl.Alloc[float64](1000)
		if err != nil {
			return err
		}
		for i := range s {
			s[i] = float64(rank + i)
		}
		err = goccl.AllReduce(background(t), comms[rank], s, s, goccl.Sum)
		if err == nil && (len(s) != 1000 || cap(s) != 1000 || s[999] != 2*999+1) {
			err = fmt.Errorf("%d elements, the last is %g", len(s), s[999])
		}
		return errors.Join(err, goccl.Free(s))
	})
	_, negative := goccl.Alloc[int16](-1)
	for says, err := range map[string]error{
		"alloc: n is -1, allowed are 0 to": negative,
		"mem_free: memory":                 goccl.Free(make([]int16, 4)),
	} {
		if !errors.Is(err, goccl.ErrInvalidArgument) || !strings.HasPrefix(err.Error(), says) {
			t.Errorf("%v, want %q", err, says)
		}
	}
}

// Members come and go, and what is in the memory of members stays.
func TestElastic(t *testing.T) {
	comms := world(t, 3, goccl.Config{})
	ctx := background(t)
	all(t, 3, func(rank int) error {
		return comms[rank].Checkpoint(ctx, []byte("global"), []byte{byte(rank)}, 2)
	})
	if v := comms[0].CheckpointVersion(); v != 1 {
		t.Errorf("version %d", v)
	}
	left := comms[:2]
	comms[2].Abort("it has had enough")
	_ = comms[2].Close()
	all(t, 2, func(rank int) error {
		if err := goccl.Barrier(ctx, left[rank]); !errors.Is(err, goccl.ErrAborted) {
			return fmt.Errorf("a barrier with one that has left: %w", err)
		}
		if err := left[rank].Recover(ctx); err != nil {
			return err
		}
		flags, err := left[rank].Agree(ctx, 6+uint64(rank))
		return errors.Join(err, same("flags", []uint64{flags}, []uint64{6}),
			same("members", []int{left[rank].Size(), left[rank].Rank(), len(left[rank].Members())},
				[]int{2, rank, 2}))
	})
	handle, err := left[1].Handle()
	if err != nil {
		t.Fatal(err)
	}
	all(t, 3, func(rank int) (err error) {
		if rank == 2 {
			comms[2], err = goccl.Join(ctx, goccl.Config{Group: t.Name()}, handle)
		} else {
			err = left[rank].Grow(ctx, 1)
		}
		if err != nil {
			return err
		}
		c := comms[rank]
		last, err := c.LoadCheckpoint(ctx)
		if err != nil {
			return err
		}
		return errors.Join(same("global", last.Global, []byte("global")),
			same("local", last.Local, []byte{byte(rank)}),
			same("version", []uint64{last.Version, c.CheckpointVersion()}, []uint64{1, 1}))
	})
	if n := comms[0].NumWaiting(); n != 0 || comms[0].Epoch() == 0 {
		t.Errorf("%d wait, epoch %d", n, comms[0].Epoch())
	}
	// Rank 1 is left out. It takes no part.
	comms[1].Revoke("to be shrunk")
	all(t, 3, func(rank int) error {
		if rank == 1 {
			return nil
		}
		child, err := comms[rank].Shrink(ctx, goccl.ShrinkOptions{Exclude: []int{1}})
		if err != nil {
			return err
		}
		defer child.Close()
		return errors.Join(goccl.Barrier(ctx, child), same("ranks", []int{child.Rank(), child.Size()},
			[]int{rank / 2, 2}))
	})
	all(t, 3, func(rank int) error {
		return errors.Join(comms[rank].Renew(ctx), goccl.Barrier(ctx, comms[rank]))
	})
}

func TestSplit(t *testing.T) {
	comms := world(t, 3, goccl.Config{})
	all(t, 3, func(rank int) error {
		child, err := comms[rank].Split(background(t), []int{4, -1, 4}[rank], -rank)
		if err != nil || rank == 1 {
			if child != nil {
				err = fmt.Errorf("a communicator of %d", child.Size())
			}
			return err
		}
		defer child.Close()
		return same("child", []int{child.Rank(), child.Size()}, []int{1 - rank/2, 2})
	})
}

func TestReconfigure(t *testing.T) {
	var comms [2]*goccl.Comm
	var handles [2]string
	all(t, 2, func(rank int) (err error) {
		if comms[rank], err = goccl.Open(background(t), goccl.Config{Group: t.Name()}); err == nil {
			handles[rank], err = comms[rank].Handle()
		}
		return err
	})
	if err := goccl.Barrier(background(t), comms[0]); !errors.Is(err, goccl.ErrInvalidArgument) {
		t.Error(err)
	}
	all(t, 2, func(rank int) error {
		defer comms[rank].Close()
		err := comms[rank].Reconfigure(background(t), "first", handles[:], true)
		return errors.Join(err, goccl.Barrier(background(t), comms[rank]))
	})
}

func TestUniqueID(t *testing.T) {
	t.Setenv("GOCCL_SOCKET_IFNAME", "lo")
	id, err := goccl.NewUniqueID()
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := goccl.ParseUniqueID(id.String())
	if err != nil || parsed != id {
		t.Error(parsed, err)
	}
	all(t, 2, func(rank int) error {
		c, err := goccl.Init(background(t), goccl.Config{Rank: rank, Size: 2, ID: id})
		if err != nil {
			return err
		}
		defer c.Close()
		return errors.Join(goccl.Barrier(background(t), c),
			same("transports", []string{c.Transport(1 - rank), c.Transport(rank), c.Transport(9)},
				[]string{"mem", "self", ""}))
	})
	damaged := id
	damaged[5]++
	for says, config := range map[string]goccl.Config{
		"was used before":                       {Size: 2, ID: id},
		"the unique id is damaged":              {Size: 2, ID: damaged},
		"one of them is allowed":                {Size: 2, ID: id, Store: goccl.NewMemStore()},
		"no store is given":                     {Size: 2},
		"size is 0, allowed are 1 to 65536":     {},
		"rank is 2, allowed are 0 to 1":         {Rank: 2, Size: 2, Store: goccl.NewMemStore()},
		`transport is "ipx"`:                    {Size: 1, Transport: "ipx"},
		"timeout is -1ns, it must be positive":  {Size: 1, Timeout: -1},
		"global ranks are 2, there must be one": {Size: 1, GlobalRanks: []int{0, 1}},
	} {
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		_, err := goccl.Init(ctx, config)
		cancel()
		var e *goccl.Error
		if !errors.Is(err, goccl.ErrInvalidArgument) || !errors.As(err, &e) || e.Operation != "init" ||
			!strings.Contains(err.Error(), says) {
			t.Errorf("%v (%+v), want %q", err, e, says)
		}
	}
	for _, text := range []string{"", "!", id.String()[4:], damaged.String()} {
		if _, err := goccl.ParseUniqueID(text); !errors.Is(err, goccl.ErrInvalidArgument) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// A short float is the nearest of all, and each is found by its float32.
func TestShortFloats(t *testing.T) {
	var halves, brains []float64 // the finite ones from 0, by their bits
	for b := range 0x7c00 {
		exponent, mantissa := b>>10, float64(b&0x3ff)
		v := math.Ldexp(1+mantissa/1024, exponent-15)
		if exponent == 0 {
			v = math.Ldexp(mantissa/1024, -14)
		}
		halves = append(halves, v)
	}
	for b := range 0x7f80 {
		exponent, mantissa := b>>7, float64(b&0x7f)
		v := math.Ldexp(1+mantissa/128, exponent-127)
		if exponent == 0 {
			v = math.Ldexp(mantissa/128, -126)
		}
		brains = append(brains, v)
	}
	for _, x := range []struct {
		name  string
		all   []float64
		least float64 // that is rounded to infinity
		of    func(float32) (bits uint16, back float32)
	}{
		{"float16", halves, 65520, func(f float32) (uint16, float32) {
			h := goccl.Float16Of(f)
			return uint16(h), h.Float32()
		}},
		{"bfloat16", brains, math.Ldexp(511, 119), func(f float32) (uint16, float32) {
			h := goccl.BFloat16Of(f)
			return uint16(h), h.Float32()
		}},
	} {
		check := func(f float64) {
			t.Helper()
			f = float64(float32(f))
			at, found := slices.BinarySearch(x.all, f)
			if !found && at > 0 && f < x.least {
				if at == len(x.all) {
					at--
				} else if down, up := f-x.all[at-1], x.all[at]-f; down < up || down == up && at%2 == 1 {
					at--
				}
			}
			want := math.Inf(1)
			if f < x.least {
				want = x.all[at]
			}
			for _, sign := range []float64{1, -1} {
				bits, back := x.of(float32(sign * f))
				if float64(back) != sign*want || math.Signbit(float64(back)) != (sign < 0) ||
					bits&0x7fff != uint16(at) {
					t.Fatalf("%s of %g is %#x, %g: want %g", x.name, sign*f, bits, back, sign*want)
				}
			}
		}
		for i, v := range x.all {
			check(v)
			if i > 0 {
				for _, part := range []float64{0.25, 0.5, 0.75} {
					check(x.all[i-1] + part*(v-x.all[i-1]))
				}
			}
		}
		check(x.least)
		check(math.Nextafter(x.least, 0))
		for _, f := range []float64{math.NaN(), math.Float64frombits(0x7ff0000020000000)} {
			if _, back := x.of(float32(f)); back == back {
				t.Errorf("%s of NaN is %g", x.name, back)
			}
		}
	}
}

func TestSetLogger(t *testing.T) {
	var mu sync.Mutex
	var text bytes.Buffer
	goccl.SetLogger(slog.New(slog.NewTextHandler(writer(func(b []byte) (int, error) {
		mu.Lock()
		defer mu.Unlock()
		return text.Write(b)
	}), nil)))
	c, err := goccl.Init(background(t), goccl.Config{Size: 1, Group: "logged"})
	if err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
	goccl.SetLogger(nil) // the logger has heard all then
	if s := text.String(); !strings.Contains(s, `level=INFO msg="the group is destroyed`) ||
		!strings.Contains(s, "subsystem=INIT group=logged rank=0") {
		t.Errorf("%q", s)
	}
}

type writer func([]byte) (int, error)

func (w writer) Write(b []byte) (int, error) { return w(b) }

// Elements travel as a narrower dtype where the operation, or the group, says so.
func TestWireDType(t *testing.T) {
	for _, group := range []string{"", "bfloat16"} {
		t.Run(group, func(t *testing.T) {
			comms := world(t, 2, goccl.Config{WireDType: group})
			all(t, 2, func(rank int) error {
				x := []float32{1 + 0x1p-12*float32(rank+1), 2}
				op := goccl.AllReduceOp(x, x, goccl.Sum)
				if group == "" {
					op = op.WithWireDType(goccl.WireBFloat16)
				}
				if err := comms[rank].Run(background(t), op); err != nil {
					return err
				}
				if !slices.Equal(x, []float32{2, 4}) {
					return fmt.Errorf("the sum is %v", x)
				}
				x[0] = 1 + 0x1p-12
				own := goccl.AllReduceOp(x, x, goccl.Max).WithWireDType(goccl.OwnDType)
				if err := comms[rank].Run(background(t), own); err != nil || x[0] != 1+0x1p-12 {
					return fmt.Errorf("the maximum is %v: %w", x, err)
				}
				return nil
			})
		})
	}
}

// Whoever adds a choice to the core decides whether it is one of this package, too.
func TestConfigHasAll(t *testing.T) {
	without := []string{
		"GroupName",              // Group
		"StoreSecret", "Meeting", // they come with ID
		"StoreHost",                                // Interface says more
		"Thresholds", "Algorithms", "Links", "Net", // for those who tune: the environment
		"HCA", "GIDIndex", // of a host's adapters: the environment
		"SideStep", // other backends are torch's
	}
	for i := range reflect.TypeFor[core.Config]().NumField() {
		name := reflect.TypeFor[core.Config]().Field(i).Name
		_, has := reflect.TypeFor[goccl.Config]().FieldByName(name)
		if has == slices.Contains(without, name) {
			t.Errorf("%s: in Config %v, in the list of those that are not %v", name, has, !has)
		}
	}
}

// run runs a program that must end in success.
func run(t *testing.T, folder string, environment []string, program string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*patience)
	defer cancel()
	c := exec.CommandContext(ctx, program, args...)
	c.Dir, c.Env = folder, append(os.Environ(), environment...)
	out, err := c.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", program, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// A module outside the tree builds the examples, without a network, and runs one.
func TestOtherModule(t *testing.T) {
	root, err := filepath.Abs(".")
	if err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	if err := os.CopyFS(folder, os.DirFS("examples/go")); err != nil {
		t.Fatal(err)
	}
	sums, err := os.ReadFile("go.sum")
	if err == nil {
		err = os.WriteFile(filepath.Join(folder, "go.sum"), sums, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	module := fmt.Sprintf("module example.com/user\n\ngo %s\n\nrequire github.com/goccl/goccl v%s\n\n"+
		"replace github.com/goccl/goccl => %s\n", strings.TrimPrefix(runtime.Version(), "go"),
		goccl.Version, root)
	if err := os.WriteFile(filepath.Join(folder, "go.mod"), []byte(module), 0o600); err != nil {
		t.Fatal(err)
	}
	run(t, folder, []string{"GOFLAGS=-mod=mod", "GOPROXY=off", "GOWORK=off"}, "go", "build",
		"-o", "bin/", "./...")
	out := run(t, folder, []string{"GOCCL_SOCKET_IFNAME=lo"}, "bin/allreduce", "2")
	if strings.Count(out, "is right (next rank by: shm)") != 2 {
		t.Error(out)
	}
}

func TestCapacityExample(t *testing.T) {
	program := filepath.Join(t.TempDir(), "capacity")
	run(t, ".", nil, "go", "build", "-o", program, "./examples/go/capacity")
	out := run(t, ".", nil, program, "3")
	for _, says := range []string{"rank 0: ", "rank 1: ", "before ", "after Init ",
		"allreduce of 4 B ", "allreduce of 1 MiB ", "alltoall of 64 B each ", " Pss ", " Threads ",
		" descriptors "} {
		if !strings.Contains(out, says) {
			t.Errorf("%q is not in:\n%s", says, out)
		}
	}
}

func TestElasticExample(t *testing.T) {
	program := filepath.Join(t.TempDir(), "elastic")
	run(t, ".", nil, "go", "build", "-o", program, "./examples/go/elastic")
	out := run(t, ".", []string{"GOCCL_SOCKET_IFNAME=lo"}, program)
	if strings.Count(out, "3 of 4 members are left") != 3 ||
		strings.Count(out, "of 4: 30 steps, total 120") != 4 {
		t.Error(out)
	}
}

// BenchmarkAllReduce is what a call costs beside that of the core's benchmark of this name.
func BenchmarkAllReduce(b *testing.B) {
	for _, n := range []int{1, 256, 4096} {
		b.Run(fmt.Sprint(4*n), func(b *testing.B) {
			comms := world(b, 2, goccl.Config{})
			b.ReportAllocs()
			b.ResetTimer()
			all(b, 2, func(rank int) error {
				buffer := make([]int32, n)
				for range b.N {
					err := goccl.AllReduce(context.Background(), comms[rank], buffer, buffer, goccl.Sum)
					if err != nil {
						return err
					}
				}
				return nil
			})
		})
	}
}
