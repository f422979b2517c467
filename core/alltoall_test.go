package core

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/goccl/goccl/core/plan"
	"github.com/goccl/goccl/core/reduce"
)

// allToAll runs one in which rank a sends split(a, b) elements to rank b, and looks at the result.
func allToAll(t testing.TB, c *Comm, schedule plan.Schedule, split func(from, to int) int) error {
	op := Operation{Collective: plan.AllToAll, DType: reduce.Int32, Schedule: schedule}
	outs := make([][]int32, now(c).Size())
	for r := range now(c).Size() {
		in := buffer(t, split(now(c).Rank, r))
		fill(in, now(c).Rank, r)
		outs[r] = buffer(t, split(r, now(c).Rank))
		op.In, op.InCounts = append(op.In, ptr(in)), append(op.InCounts, uint64(len(in)))
		op.Out, op.OutCounts = append(op.Out, ptr(outs[r])), append(op.OutCounts, uint64(len(outs[r])))
	}
	if err := run(c, op); err != nil {
		return err
	}
	for r, out := range outs {
		if err := expect(fmt.Sprintf("schedule %q, from %d", schedule, r), out,
			func(i int) int32 { return value(r, now(c).Rank, i) }); err != nil {
			return err
		}
	}
	return nil
}

// Each schedule, named by the call or by the group, gives the same; twice, for the second time a
// group's goes by the fast path.
func TestAllToAllSchedules(t *testing.T) {
	for _, tr := range transports {
		for _, size := range []int{1, 2, 3, 4, 5, 8} { // package plan proves the plans of all sizes
			if testing.Short() && size > 5 {
				continue
			}
			t.Run(fmt.Sprintf("%s/%d", tr, size), func(t *testing.T) {
				group := newWorldOf(t, tr, size, Config{Timeout: time.Minute, AllToAllSchedule: "window=2"})
				call := newWorld(t, tr, size, time.Minute)
				counts := []int{0, 1, 1000, 100_001}
				if size > 3 {
					counts = []int{0, 1, 20_001}
				}
				for _, n := range counts {
					split := func(from, to int) int { return n * ((from + 2*to) % 3) }
					for range 2 {
						group.each(func(rank int) error { return allToAll(t, group.comms[rank], plan.BySize, split) })
						for _, s := range []plan.Schedule{plan.Sequential, 2, 3, plan.Parallel, plan.BySize} {
							call.each(func(rank int) error { return allToAll(t, call.comms[rank], s, split) })
						}
					}
				}
			})
		}
	}
}

// Large blocks go through windows by themselves where ports join many ranks, of several hosts, of a
// crowded one or if asked; each pair decides for itself.
func TestAllToAllBySize(t *testing.T) {
	const size, least = 11, 4096
	w := newWorldOf(t, "tcp", size, Config{Timeout: time.Minute,
		Thresholds: fmt.Sprintf("window_min=%d", least)})
	split := func(from, to int) int { return least / 4 * ((from + 2*to) % 3) }
	w.each(func(rank int) error { return allToAll(t, w.comms[rank], plan.BySize, split) })
	shape := shapeOf(w.comms[0])
	plan, err := plan.Build(shape.Params(&Operation{Collective: plan.AllToAll, DType: reduce.Int32,
		InCounts: make([]uint64, size), OutCounts: append(make([]uint64, size-1), least/4)}))
	if err != nil {
		t.Fatal(err)
	}
	data := 0
	for _, s := range plan.Steps {
		if s.Peer == size-1 && s.Bytes > 0 {
			data++
		}
	}
	if last := plan.Steps[len(plan.Steps)-1]; data != 1 || last.Peer != size-1 {
		t.Errorf("the only large block does not come last:\n%v", plan)
	}
	// One direction of a pair is of one size at one end and of another at the other.
	for _, c := range []struct {
		n, other int
		says     string
	}{
		// only one goes through a window
		{5, least, named(0, 1) + " have different counts for what they send to each other"},
		{least, 2 * least, named(1) + " sends 16384 bytes to " + named(0) +
			", which expects 32768 bytes from it"},
	} {
		w := newWorldOf(t, "tcp", size, Config{Timeout: time.Minute,
			Thresholds: fmt.Sprintf("window_min=%d", least)})
		errs := w.try(func(rank int) error {
			return allToAll(t, w.comms[rank], 0, func(from, to int) int {
				if from == 1 && to == 0 && rank == 0 {
					return c.other
				}
				return c.n
			})
		})
		for rank, err := range errs {
			if rank > 1 && err == nil {
				continue // it had all that it needs
			}
			if !errors.Is(err, ErrMismatch) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("rank %d: %v", rank, err)
			}
		}
	}
}

// One end of a pair takes it that both send as much, and swaps; the other does not.
func TestSwapOfDifferentCounts(t *testing.T) {
	const n, other = 4096, 2048
	says := regexp.MustCompile(regexp.QuoteMeta(named(0,
		1)+" have different counts for what they send to each other") + "|" +
		regexp.QuoteMeta(named(1)+" sends 16384 bytes to "+named(0)+", which expects 8192 bytes from it"))
	for _, tr := range []string{"mem", "shm"} {
		w := newWorldOf(t, tr, 2, Config{Timeout: time.Minute, Thresholds: "swap_min=1"})
		for rank, err := range w.try(func(rank int) error {
			return allToAll(t, w.comms[rank], 0, func(from, to int) int {
				if from == 1 && to == 0 && rank == 0 {
					return other
				}
				return n
			})
		}) {
			if !errors.Is(err, ErrMismatch) || !says.MatchString(err.Error()) {
				t.Errorf("%s, rank %d: %v", tr, rank, err)
			}
		}
	}
}

// Messages longer than a slot go straight to their places, and are fewer.
func TestLongMessages(t *testing.T) {
	const size = 8
	const longMessage = 512 << 10
	w := newWorldOf(t, "tcp", size, Config{Timeout: time.Minute,
		Thresholds: fmt.Sprint("window_min=1,long_max=", longMessage)})
	chunk := shapeOf(w.comms[0]).Chunk
	if chunk >= longMessage {
		t.Fatalf("a slot takes %d bytes, so that no message is longer", chunk)
	}
	const n = 2*longMessage/4 + 1
	for range 2 {
		w.each(func(rank int) error {
			return allToAll(t, w.comms[rank], plan.BySize,
				func(from, to int) int { return n * ((from + 2*to) % 3) / 2 })
		})
	}
	before := sentOn(w.comms[1], collectiveLane)
	w.each(func(rank int) error {
		return allToAll(t, w.comms[rank], plan.BySize, func(from, to int) int { return n })
	})
	for peer, now := range sentOn(w.comms[1], collectiveLane) {
		if messages := now - before[peer]; peer != 1 && messages != 3+4 {
			t.Errorf("%d messages to %d, expected 3 of data and 4 tokens", messages, peer)
		}
	}
}

// Scatter by tokens, in long messages, in one plan and several.
func TestLongScatter(t *testing.T) {
	const size, root = 8, 3
	const longMessage = 512 << 10
	w := newWorldOf(t, "tcp", size, Config{Timeout: time.Minute,
		Thresholds: fmt.Sprint("window_min=1,long_max=", longMessage)})
	for _, n := range []int{1, 2*longMessage/4 + 1, (64<<20)/size/4 + 1} {
		for _, inPlace := range []bool{false, true} {
			w.each(func(rank int) error {
				op := Operation{Collective: plan.Scatter, DType: reduce.Int32, Root: root,
					InCounts: slices.Repeat([]uint64{uint64(n)}, size), OutCounts: []uint64{uint64(n)}}
				out := buffer(t, n)
				if rank == root {
					for r := range size {
						in := buffer(t, n)
						if r == root && inPlace {
							in = out
						}
						fill(in, root, r)
						op.In = append(op.In, ptr(in))
					}
				}
				op.Out = []unsafe.Pointer{ptr(out)}
				if err := run(w.comms[rank], op); err != nil {
					return err
				}
				return expect(fmt.Sprintf("%d elements", n), out,
					func(i int) int32 { return value(root, rank, i) })
			})
		}
	}
}

func TestMismatchOfSchedules(t *testing.T) {
	for _, tr := range transports {
		for _, n := range []int{0, 50_000} {
			w := newWorldOf(t, tr, 3, Config{Timeout: 20 * time.Second})
			for range 2 { // the second time by the fast path
				w.each(func(rank int) error {
					return allToAll(t, w.comms[rank], 0,
						func(int, int) int { return n })
				})
			}
			errs := w.try(func(rank int) error {
				return allToAll(t, w.comms[rank], []plan.Schedule{0, plan.Sequential, 0}[rank],
					func(int, int) int { return n })
			})
			for rank, err := range errs {
				if !errors.Is(err, ErrMismatch) || !strings.Contains(err.Error(),
					named(1)+" called alltoall(int32, schedule sequential)") {
					t.Errorf("%s, %d elements, rank %d: %v", tr, n, rank, err)
				}
			}
		}
	}
}

// The groups' schedules are the same in whatever form they are written; a split has its parent's.
func TestScheduleOfGroups(t *testing.T) {
	join := func(of ...string) (*world, []error) {
		return tryWorld(t, len(of), func(rank int, r *RuntimeConfig, c *Config) {
			if rank == 0 {
				r.Getenv = func(name string) string {
					if name == EnvSchedule {
						return of[0]
					}
					return ""
				}
			} else {
				c.AllToAllSchedule = of[rank]
			}
		})
	}
	w, errs := join("sequential", "window=1")
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	w.each(func(rank int) error {
		child, err := w.comms[rank].Split(context.Background(), 0, 0)
		if err != nil {
			return err
		}
		defer child.Destroy()
		if shapeOf(child).Schedule != plan.Sequential {
			t.Errorf("rank %d: a split has %q", rank, shapeOf(child).Schedule)
		}
		return allToAll(t, child, 0, func(int, int) int { return 100 })
	})
}

// A window is kept on shareable memory too: no direct plan keeps one.
func TestScheduleOnShareableMemory(t *testing.T) {
	const size, n = 3, 100_000
	w := newWorld(t, "shm", size, time.Minute)
	ops := make([]Operation, size)
	for rank := range size {
		op := Operation{Collective: plan.AllToAll, DType: reduce.Int32}
		for range size {
			op.In, op.Out = append(op.In, unsafe.Pointer(&shareable(t, w, rank, n)[0])),
				append(op.Out, unsafe.Pointer(&shareable(t, w, rank, n)[0]))
			op.InCounts = append(op.InCounts, n)
		}
		op.OutCounts = op.InCounts
		ops[rank] = op
	}
	// the first call connects the ranks
	w.each(func(rank int) error { return run(w.comms[rank], ops[rank]) })
	for _, c := range []struct {
		schedule plan.Schedule
		direct   bool
	}{{plan.BySize, true}, {plan.Sequential, false}, {plan.Parallel, true}, {2, false},
		{plan.BySize, true}} {
		before := make([][]uint64, size)
		for rank := range size {
			before[rank] = sentOn(w.comms[rank], collectiveLane)
		}
		w.each(func(rank int) error {
			op := ops[rank]
			op.Schedule = c.schedule
			return run(w.comms[rank], op)
		})
		for rank := range size {
			for peer, now := range sentOn(w.comms[rank], collectiveLane) {
				if messages := now - before[rank][peer]; peer != rank && (messages == 2) != c.direct {
					t.Errorf("%q: rank %d sent %d messages to %d", c.schedule, rank, messages, peer)
				}
			}
		}
	}
}

func TestAllToAllPeaks(t *testing.T) {
	for by, want := range map[string]string{"shm": "", "tcp": "", "ib": `transport is "ib"`} {
		peaks, err := AllToAllPeaks(4, by, "sequential", 1<<20)
		if want == "" && (err != nil || peaks.Pairs != 1) {
			t.Errorf("%s: %+v, %v", by, peaks, err)
		}
		if want != "" && (!errors.Is(err, ErrInvalidArgument) || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v", by, err)
		}
	}
}
