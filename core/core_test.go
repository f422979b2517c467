package core

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/goccl/goccl/core/p2p"
	"github.com/goccl/goccl/core/plan"
	"github.com/goccl/goccl/core/reduce"
	"github.com/goccl/goccl/core/transport"
)

func TestCollectives(t *testing.T) {
	for _, tr := range transports {
		for _, size := range []int{1, 2, 3, 4, 5, 8} {
			t.Run(fmt.Sprintf("%s/%d", tr, size), func(t *testing.T) {
				w := newWorld(t, tr, size, time.Minute)
				for _, n := range sizes(testing.Short() || size > 4) {
					for _, inPlace := range []bool{false, true} {
						collectives(t, w, size, n, inPlace)
					}
				}
			})
		}
	}
}

func TestCollectivesByOtherWays(t *testing.T) {
	// Of multicast_min the first shares whatever it can, the second some blocks of an uneven
	// allgather.
	for thresholds, sizesOf := range map[string][]int{"stream_min=0": {2, 3},
		"multicast_min=1": {2, 3, 5}, "multicast_min=2001": {4}, "multicast_min=0": {3},
		"swap_min=1": {2, 3, 5}} {
		for _, tr := range transports {
			if tr != "shm" && thresholds != "stream_min=0" { // they are of memory channels
				continue
			}
			for _, size := range sizesOf {
				t.Run(fmt.Sprintf("%s/%s/%d", thresholds, tr, size), func(t *testing.T) {
					w := newWorldOf(t, tr, size, Config{Timeout: time.Minute, Thresholds: thresholds})
					for _, n := range sizes(true) {
						collectives(t, w, size, n, false)
						collectives(t, w, size, n, true)
					}
				})
			}
		}
	}
}

// Who has filled its stage waits for all that read it, and names the one that does not.
func TestShareWaitsForAll(t *testing.T) {
	for _, tr := range []string{"mem", "shm"} {
		t.Run(tr, func(t *testing.T) {
			const size, absent = 4, 2
			w := newWorldOf(t, tr, size, Config{Timeout: 2 * time.Second, Thresholds: "multicast_min=1"})
			broadcast := func(rank int) error {
				b := buffer(t, 2<<20)
				fill(b, rank, 0)
				op := Operation{Collective: plan.Broadcast, DType: reduce.Int32, In: []unsafe.Pointer{ptr(b)},
					InCounts: []uint64{uint64(len(b))}}
				op.Out, op.OutCounts = op.In, op.InCounts
				if err := run(w.comms[rank], op); err != nil {
					return err
				}
				return expect("broadcast", b, func(i int) int32 { return value(0, 0, i) })
			}
			w.each(broadcast)
			for rank, err := range w.try(func(rank int) error {
				if rank == absent {
					return nil
				}
				return broadcast(rank)
			}) {
				if rank != absent && (!errors.Is(err, ErrTimeout) ||
					!strings.Contains(err.Error(), fmt.Sprintf("rank %d", absent))) {
					t.Errorf("rank %d: %v", rank, err)
				}
			}
		})
	}
}

func collectives(t *testing.T, w *world, size, n int, inPlace bool) {
	t.Helper()
	run := run
	if w.run != nil {
		run = w.run
	}
	sum := func(blk int) func(int) int32 {
		return func(i int) int32 {
			var s int32
			for r := range size {
				s += value(r, blk, i)
			}
			return s
		}
	}
	counts := make([]uint64, size) // uneven
	for r := range counts {
		counts[r] = uint64(n)
		if r%2 == 1 {
			counts[r] = uint64(n / 2)
		}
	}
	equal := make([]uint64, size)
	for r := range equal {
		equal[r] = uint64(n)
	}
	w.each(func(rank int) error {
		c := w.comms[rank]
		mk := func(n uint64) []int32 {
			if w.alloc != nil {
				return w.alloc(rank, int(n))
			}
			return buffer(t, int(n))
		}
		list := func(counts []uint64) (bufs [][]int32, ptrs []unsafe.Pointer) {
			for _, k := range counts {
				b := mk(k)
				bufs, ptrs = append(bufs, b), append(ptrs, ptr(b))
			}
			return
		}
		base := Operation{DType: reduce.Int32, Op: reduce.Sum}
		wanted := func(all ...plan.Collective) []plan.Collective {
			return slices.DeleteFunc(all, func(c plan.Collective) bool {
				return w.only != nil && !slices.Contains(w.only, c)
			})
		}
		for _, coll := range wanted(plan.AllReduce, plan.Reduce) {
			in, out := mk(uint64(n)), mk(uint64(n))
			if inPlace {
				out = in
			}
			fill(in, rank, 0)
			op := base
			op.Collective, op.Root = coll, size-1
			op.In, op.Out, op.InCounts, op.OutCounts = []unsafe.Pointer{ptr(in)}, []unsafe.Pointer{ptr(out)},
				[]uint64{uint64(n)}, []uint64{uint64(n)}
			if err := run(c, op); err != nil {
				return err
			}
			if coll == plan.AllReduce || rank == size-1 {
				if err := expect(coll.String(), out, sum(0)); err != nil {
					return err
				}
			}
			if !inPlace {
				if err := expect(coll.String()+" input", in,
					func(i int) int32 { return value(rank, 0, i) }); err != nil {
					return err
				}
			}
		}
		for range wanted(plan.Broadcast) {
			b := mk(uint64(n))
			fill(b, rank, 3)
			op := base
			op.Collective, op.Root = plan.Broadcast, size/2
			op.In, op.InCounts = []unsafe.Pointer{ptr(b)}, []uint64{uint64(n)}
			op.Out, op.OutCounts = op.In, op.InCounts
			if err := run(c, op); err != nil {
				return err
			}
			if err := expect("broadcast", b, func(i int) int32 { return value(size/2, 3, i) }); err != nil {
				return err
			}
		}
		for _, coll := range wanted(plan.AllGather, plan.Gather) { // the first is uneven
			k := counts
			if coll == plan.Gather {
				k = equal
			}
			outs, ptrs := list(k)
			in := mk(k[rank])
			if inPlace {
				in = outs[rank]
			}
			fill(in, rank, 0)
			op := base
			op.Collective, op.Root = coll, 0
			op.In, op.InCounts, op.Out, op.OutCounts = []unsafe.Pointer{ptr(in)}, []uint64{k[rank]}, ptrs, k
			if err := run(c, op); err != nil {
				return err
			}
			for r := range size {
				if coll == plan.Gather && rank != 0 {
					break
				}
				if err := expect(fmt.Sprintf("%v %d", coll, r), outs[r],
					func(i int) int32 { return value(r, 0, i) }); err != nil {
					return err
				}
			}
		}
		for _, coll := range wanted(plan.ReduceScatter, plan.Scatter) { // the first is uneven
			k := counts
			if coll == plan.Scatter {
				k = equal
			}
			ins, ptrs := list(k)
			for b := range ins {
				fill(ins[b], rank, b)
			}
			out := mk(k[rank])
			if inPlace && (coll == plan.ReduceScatter || rank == size-1) {
				out = ins[rank]
			}
			op := base
			op.Collective, op.Root = coll, size-1
			op.In, op.InCounts, op.Out, op.OutCounts = ptrs, k, []unsafe.Pointer{ptr(out)}, []uint64{k[rank]}
			if err := run(c, op); err != nil {
				return err
			}
			want := sum(rank)
			if coll == plan.Scatter {
				want = func(i int) int32 { return value(size-1, rank, i) }
			}
			if err := expect(coll.String(), out, want); err != nil {
				return err
			}
		}
		for range wanted(plan.AllToAll) { // with splits, zeros among them
			split := func(from, to int) uint64 { return uint64(n * ((from + 2*to) % 3)) }
			var ic, oc []uint64
			for r := range size {
				ic, oc = append(ic, split(rank, r)), append(oc, split(r, rank))
			}
			ins, inp := list(ic)
			outs, outp := list(oc)
			for b := range ins {
				fill(ins[b], rank, b)
			}
			op := base
			op.Collective, op.In, op.InCounts, op.Out, op.OutCounts = plan.AllToAll, inp, ic, outp, oc
			if err := run(c, op); err != nil {
				return err
			}
			for r := range size {
				if err := expect(fmt.Sprintf("alltoall %d", r), outs[r],
					func(i int) int32 { return value(r, rank, i) }); err != nil {
					return err
				}
			}
		}
		return run(c, Operation{Collective: plan.Barrier})
	})
}

func TestPointToPoint(t *testing.T) {
	for _, tr := range transports {
		t.Run(tr, func(t *testing.T) {
			const size = 3
			w := newWorld(t, tr, size, time.Minute)
			for _, n := range []int{0, 1, 1000, 4096, 4097, 500_000} {
				w.each(func(rank int) error {
					c := w.comms[rank]
					var ops []Operation
					out := make([][]int32, 2*size)
					for r := range size { // to self too; tags in opposite orders
						for tag := range 2 {
							b := buffer(t, n)
							fill(b, rank, r+10*tag)
							ops = append(ops, sendOp(b, r, tag))
						}
						for tag := 1; tag >= 0; tag-- {
							b := buffer(t, n)
							out[2*r+tag] = b
							ops = append(ops, recvOp(b, r, tag))
						}
					}
					work, err := c.Start(CallOptions{}, ops...)
					if err != nil {
						return err
					}
					if _, err := work.Wait(-1); err != nil {
						return err
					}
					for r := range size {
						for tag := range 2 {
							if err := expect(fmt.Sprintf("from %d tag %d", r, tag), out[2*r+tag],
								func(i int) int32 { return value(r, rank+10*tag, i) }); err != nil {
								return err
							}
						}
					}
					return nil
				})
			}
		})
	}
}

func TestManyEagerSends(t *testing.T) {
	w := newWorld(t, "shm", 2, time.Minute)
	const n, each = 1000, 1024 // 4 MB, four times the window
	w.each(func(rank int) error {
		c := w.comms[rank]
		var works []*Work
		bufs := make([][]int32, n)
		for i := range n {
			b := buffer(t, each)
			bufs[i] = b
			op := sendOp(b, 1, 0)
			fill(b, 0, i)
			if rank == 1 {
				clear(b)
				op = recvOp(b, AnySource, 0)
			}
			work, err := c.Start(CallOptions{}, op)
			if err != nil {
				return err
			}
			works = append(works, work)
		}
		for i, work := range works {
			if _, err := work.Wait(-1); err != nil {
				return err
			}
			if rank == 1 {
				if work.Source() != 0 {
					return fmt.Errorf("source is %d", work.Source())
				}
				if err := expect(fmt.Sprint(i), bufs[i],
					func(k int) int32 { return value(0, i, k) }); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// A rank that had no connection to the one that failed, and waits for that one only, hears of it
// when it makes one.
func TestFailedBeforeAPeerConnects(t *testing.T) {
	for _, tr := range transports {
		t.Run(tr, func(t *testing.T) {
			w := newWorld(t, tr, 3, time.Minute)
			w.comms[0].Abort("too hot")
			for i, op := range []Operation{recvOp(buffer(t, 1), 0, 0), sendOp(buffer(t, 1<<20), 0, 0)} {
				if err := run(w.comms[1+i], op); !errors.Is(err, ErrAborted) ||
					!strings.Contains(err.Error(), "too hot") {
					t.Errorf("rank %d: %v", 1+i, err)
				}
			}
		})
	}
}

func sendOp(b []int32, peer, tag int) Operation {
	return Operation{Collective: plan.Send, DType: reduce.Int32, Root: peer, Tag: tag,
		In: []unsafe.Pointer{ptr(b)}, InCounts: []uint64{uint64(len(b))}}
}

func recvOp(b []int32, peer, tag int) Operation {
	return Operation{Collective: plan.Recv, DType: reduce.Int32, Root: peer, Tag: tag,
		Out: []unsafe.Pointer{ptr(b)}, OutCounts: []uint64{uint64(len(b))}}
}

func allReduce(t testing.TB, n int) Operation {
	b := buffer(t, n)
	return Operation{Collective: plan.AllReduce, DType: reduce.Int32, In: []unsafe.Pointer{ptr(b)},
		Out:      []unsafe.Pointer{ptr(b)},
		InCounts: []uint64{uint64(n)}, OutCounts: []uint64{uint64(n)}}
}

func broadcast(t testing.TB, n, root int) Operation {
	op := allReduce(t, n)
	op.Collective, op.Root = plan.Broadcast, root
	return op
}

// A rank that does not exist is named by nobody, and refused as a root or a peer, also where there
// are no peers at all.
func TestRanksThatDoNotExist(t *testing.T) {
	for _, size := range []int{1, 2} {
		c := newWorldOf(t, "", size, Config{Timeout: time.Minute}).comms[0]
		if own := c.Transport(0); own != "self" {
			t.Errorf("size %d: this rank is joined to itself by %q", size, own)
		}
		for _, rank := range []int{-2, size, 1 << 40} {
			if name := c.Transport(rank); name != "" {
				t.Errorf("size %d: rank %d is joined by %q", size, rank, name)
			}
			for _, op := range []Operation{sendOp(buffer(t, 1), rank, 0), recvOp(buffer(t, 1), rank, 0),
				broadcast(t, 1, rank)} {
				if err := run(c, op); !errors.Is(err, ErrInvalidArgument) ||
					!strings.Contains(err.Error(), fmt.Sprint("allowed are 0 to ", size-1)) {
					t.Errorf("size %d: %s with rank %d: %v", size, op.Collective, rank, err)
				}
			}
		}
	}
}

func TestMismatch(t *testing.T) {
	other := func(f func(*Operation)) func(t testing.TB, rank int) Operation {
		return func(t testing.TB, rank int) Operation {
			op := allReduce(t, 8)
			if rank == 0 {
				f(&op)
			}
			return op
		}
	}
	cases := map[string]struct {
		op   func(t testing.TB, rank int) Operation
		says string
	}{
		"op":         {other(func(o *Operation) { o.Op = reduce.Max }), "MAX"},
		"dtype":      {other(func(o *Operation) { o.DType = reduce.Float32 }), "float32"},
		"size":       {other(func(o *Operation) { *o = allReduce(t, 9) }), "9 elements"},
		"collective": {other(func(o *Operation) { *o = broadcast(t, 8, 0) }), "broadcast"},
		"root": {func(t testing.TB, rank int) Operation {
			return broadcast(t, 8, rank)
		}, "root 1"},
		"both receive": {func(t testing.TB, rank int) Operation {
			return broadcast(t, 8, 1-rank)
		}, "root 1"},
		"barrier": {other(func(o *Operation) {
			*o = Operation{Collective: plan.Barrier}
		}), "barrier"},
	}
	for _, tr := range []string{"shm", "tcp"} {
		for name, c := range cases {
			t.Run(tr+"/"+name, func(t *testing.T) {
				w := newWorld(t, tr, 2, time.Minute)
				for rank, err := range w.try(func(rank int) error {
					return run(w.comms[rank], c.op(t, rank))
				}) {
					if !errors.Is(err, ErrMismatch) || !strings.Contains(err.Error(), c.says) {
						t.Errorf("rank %d: %v", rank, err)
					}
				}
			})
		}
	}
}

func TestSplitMismatch(t *testing.T) {
	w := newWorld(t, "shm", 2, time.Minute)
	errs := w.try(func(rank int) error {
		op := Operation{Collective: plan.AllToAll, DType: reduce.Int32}
		for r := range 2 {
			n := 4
			if r != rank && rank == 1 {
				n = 5 // both ways, where rank 0 has 4
			}
			op.In, op.InCounts = append(op.In, ptr(buffer(t, n))), append(op.InCounts, uint64(n))
			op.Out, op.OutCounts = append(op.Out, ptr(buffer(t, n))), append(op.OutCounts, uint64(n))
		}
		return run(w.comms[rank], op)
	})
	for rank, err := range errs {
		if !errors.Is(err, ErrMismatch) {
			t.Errorf("rank %d: %v", rank, err)
		}
	}
}

func TestTimeoutNamesTheMissing(t *testing.T) {
	for _, tr := range transports {
		t.Run(tr, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, tr, 3, 2*time.Second)
			errs := w.try(func(rank int) error {
				if rank == 1 {
					return nil
				}
				return run(w.comms[rank], allReduce(t, 100_000))
			})
			for _, rank := range []int{0, 2} {
				if err := errs[rank]; !errors.Is(err, ErrTimeout) ||
					!strings.Contains(err.Error(), named(1)+" did not arrive") {
					t.Errorf("rank %d: %v", rank, err)
				}
			}
		})
	}
}

func TestAbortReachesAll(t *testing.T) {
	for _, tr := range transports {
		t.Run(tr, func(t *testing.T) {
			w := newWorld(t, tr, 3, time.Minute)
			w.each(func(rank int) error { return run(w.comms[rank], allReduce(t, 10)) })
			errs := w.try(func(rank int) error {
				if rank == 1 {
					w.comms[1].Abort("no more")
					return run(w.comms[1], allReduce(t, 10))
				}
				return run(w.comms[rank], allReduce(t, 10))
			})
			for rank, err := range errs {
				if !errors.Is(err, ErrAborted) || !strings.Contains(err.Error(), "no more") {
					t.Errorf("rank %d: %v", rank, err)
				}
			}
		})
	}
}

func TestDestroyedPeer(t *testing.T) {
	for _, tr := range transports {
		t.Run(tr, func(t *testing.T) {
			w := newWorld(t, tr, 2, time.Minute)
			w.each(func(rank int) error { return run(w.comms[rank], allReduce(t, 10)) })
			errs := w.try(func(rank int) error {
				if rank == 1 {
					w.comms[1].Destroy()
					return nil
				}
				return run(w.comms[rank], allReduce(t, 10))
			})
			if err := errs[0]; !errors.Is(err, ErrAborted) || !strings.Contains(err.Error(), "rank 1") {
				t.Errorf("rank 0: %v", err)
			}
		})
	}
}

func TestSplit(t *testing.T) {
	for _, tr := range transports {
		t.Run(tr, func(t *testing.T) {
			w := newWorld(t, tr, 5, time.Minute)
			children := make([]*Comm, 5)
			w.each(func(rank int) error {
				color := rank % 2
				if rank == 4 {
					color = -1
				}
				child, err := w.comms[rank].Split(context.Background(), color, -rank)
				children[rank] = child
				if err != nil || rank == 4 {
					return err
				}
				if child.Size() != 2 || child.Rank() != map[int]int{0: 1, 2: 0, 1: 1, 3: 0}[rank] {
					return fmt.Errorf("rank %d of %d", child.Rank(), child.Size())
				}
				op := allReduce(t, 1)
				*(*int32)(op.In[0]) = int32(rank)
				if err := run(child, op); err != nil {
					return err
				}
				if got, want := *(*int32)(op.Out[0]), int32(2+2*(rank%2)); got != want {
					return fmt.Errorf("sum is %d, want %d", got, want)
				}
				return nil
			})
			for _, c := range children {
				if c != nil {
					c.Destroy()
				}
			}
		})
	}
}

// Ranks of a group that have other numbers in the job are named by both, in every text.
func TestGlobalRanksAreNamed(t *testing.T) {
	const size = 3
	barrier := Operation{Collective: plan.Barrier}
	monitored := Operation{Collective: plan.MonitoredBarrier}
	absent := func(rank int, op Operation) func(*Comm, int) error { // the others call it
		return func(c *Comm, r int) error {
			if r == rank {
				return nil
			}
			return run(c, op)
		}
	}
	for name, c := range map[string]struct {
		call func(c *Comm, rank int) error
		of   int  // rank whose error it is
		late bool // it is that of a timeout
		says string
	}{
		"timeout": {absent(1, barrier), 0, true,
			", pid PID): rank 1 (global rank 3, pid PID) did not arrive"},
		"timeout of two": {func(c *Comm, rank int) error {
			return absent(max(rank, 1), barrier)(c, rank)
		}, 0, true,
			"on rank 0 (global rank 5, pid PID): ranks 1 (global rank 3, pid PID), 2 (global rank 8, pid " +
				"PID) did not arrive"},
		"receive": {absent(1, recvOp(buffer(t, 1), 1, 0)), 0, true,
			"from rank 1 (global rank 3, pid PID)"},
		"send": {absent(1, sendOp(buffer(t, 1<<20), 1, 0)), 0, true,
			"to rank 1 (global rank 3, pid PID)"},
		"monitored": {absent(1, monitored), 0, true,
			"Rank 1 failed to pass monitoredBarrier in 500 ms: rank 1 (global rank 3, pid PID)"},
		"monitored, 2": {absent(1, monitored), 2, true,
			"This is rank 2 (global rank 8, pid PID). rank 0 (global rank 5, pid PID) said: [Rank 0]: " +
				"Rank 1 failed"},
		"monitored, 0": {absent(0, monitored), 1, true,
			"rank 0 (global rank 5, pid PID) did not answer in time"},
		"mismatch": {func(c *Comm, rank int) error {
			return run(c, []Operation{barrier, barrier, allReduce(t, 1)}[rank])
		}, 0, false,
			"rank 2 (global rank 8, pid PID) called allreduce(int32, 1 elements, SUM)"},
		"refused": {func(c *Comm, rank int) error {
			if rank == 1 {
				c.Refuse("enough")
				return nil
			}
			return run(c, barrier)
		}, 0, false, "the call of rank 1 (global rank 3, pid PID) was refused: enough"},
		"abort": {func(c *Comm, rank int) error {
			if rank == 1 {
				c.Abort("enough")
				return nil
			}
			return run(c, barrier)
		}, 0, false, "rank 1 (global rank 3, pid PID) aborted"},
		"left": {func(c *Comm, rank int) error {
			if rank == 1 {
				c.Destroy()
				return nil
			}
			return run(c, barrier)
		}, 0, false, "rank 1 (global rank 3, pid PID) has left"},
		"ended": {func(c *Comm, rank int) error {
			handlerOf(c).PeerDown(2, fmt.Errorf("rank 2 (host a, pid 7) of group g: %w",
				transport.ErrPeerDown))
			return run(c, barrier)
		}, 0, false, "rank 2 (global rank 8, pid PID)"},
		"sizes": {func(c *Comm, rank int) error {
			switch rank {
			case 0:
				return run(c, recvOp(buffer(t, 2), 1, 0))
			case 1:
				return run(c, sendOp(buffer(t, 1), 0, 0))
			}
			return nil
		}, 0, false,
			"rank 0 (global rank 5, pid PID) receives 2 elements of int32 with tag 0, but rank 1 " +
				"(global rank 3, pid PID) sent 1 elements"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorldOf(t, "shm", size, Config{Timeout: time.Minute, GlobalRanks: []int{5, 3, 8}})
			around(t, w, size, 1) // they are connected
			if c.late {
				w.limit(500 * time.Millisecond)
			}
			err := w.try(func(rank int) error { return c.call(w.comms[rank], rank) })[c.of]
			says := strings.ReplaceAll(c.says, "PID", fmt.Sprint(os.Getpid()))
			if err == nil || !strings.Contains(err.Error(), says) {
				t.Errorf("%v\nwant: %s", err, says)
			}
		})
	}
}

func TestSplitComposesGlobalRanks(t *testing.T) {
	for _, c := range []struct{ given, want []int }{
		{[]int{5, 3, 8}, []int{8, 3}},
		{[]int{0, 1, 2}, []int{2, 1}},
		{nil, []int{2, 1}},
	} {
		w := newWorldOf(t, "shm", 3, Config{Timeout: time.Minute, GlobalRanks: c.given})
		w.each(func(rank int) error {
			child, err := w.comms[rank].Split(context.Background(), min(rank, 1), -rank)
			if err != nil {
				return err
			}
			defer child.Destroy()
			if rank > 0 && !slices.Equal(now(child).Members.GlobalRanks, c.want) {
				return fmt.Errorf("global ranks are %v, want %v", now(child).Members.GlobalRanks, c.want)
			}
			return nil
		})
	}
}

func TestMonitoredBarrier(t *testing.T) {
	w := newWorld(t, "shm", 3, time.Minute)
	barrier := func(rank int, timeout time.Duration) error {
		work, err := w.comms[rank].Start(CallOptions{WaitSoon: true, Timeout: timeout},
			Operation{Collective: plan.MonitoredBarrier, WaitAll: true})
		if err != nil {
			return err
		}
		_, err = work.Wait(-1)
		return err
	}
	w.each(func(rank int) error { return barrier(rank, 0) })
	errs := w.try(func(rank int) error {
		if rank == 2 {
			return nil
		}
		return barrier(rank, 300*time.Millisecond)
	})
	for rank := range 2 {
		if !errors.Is(errs[rank], ErrTimeout) || !strings.Contains(errs[rank].Error(),
			"Ranks 2 failed to pass") {
			t.Errorf("rank %d: %v", rank, errs[rank])
		}
	}
}

// A timeout as long as its type allows does not come.
func TestNever(t *testing.T) {
	for _, tr := range transports {
		t.Run(tr, func(t *testing.T) {
			w := newWorldOf(t, tr, 2, Config{Timeout: math.MaxInt64})
			w.each(func(rank int) error {
				c := w.comms[rank]
				for _, n := range []int{1, 500_000} {
					mine, theirs := buffer(t, n), buffer(t, n)
					work, err := c.Start(CallOptions{Timeout: math.MaxInt64}, sendOp(mine, 1-rank, 0),
						recvOp(theirs, 1-rank, 0))
					if err != nil {
						return err
					}
					if done, err := work.Wait(math.MaxInt64); !done || err != nil {
						return fmt.Errorf("%d elements: %v, %w", n, done, err)
					}
				}
				return cmp.Or(run(c, Operation{Collective: plan.MonitoredBarrier}),
					c.Recover(context.Background()), run(c, allReduce(t, 1)))
			})
		})
	}
}

// No wait ends early by a signal that comes to its thread, such as those by which Go stops threads.
func TestWaitsLastThroughSignals(t *testing.T) {
	for _, tr := range transports {
		for name, op := range map[string]Operation{
			"barrier": {Collective: plan.Barrier}, "receive": recvOp(buffer(t, 1), 1, 0),
		} {
			t.Run(tr+" "+name, func(t *testing.T) {
				w := newWorld(t, tr, 2, patience)
				around(t, w, 2, 1) // they are connected
				work, err := w.comms[0].Start(CallOptions{WaitSoon: true}, op)
				if err != nil {
					t.Fatal(err)
				}
				runtime.LockOSThread()
				defer runtime.UnlockOSThread()
				tid := unix.Gettid()
				over := make(chan struct{})
				var sender sync.WaitGroup
				sender.Go(func() {
					for {
						select {
						case <-over:
							return
						case <-time.After(time.Millisecond):
							_ = unix.Tgkill(os.Getpid(), tid, unix.SIGURG)
						}
					}
				})
				begin := time.Now()
				done, err := work.Wait(50 * time.Millisecond)
				if passed := time.Since(begin); done || err != nil || passed < 50*time.Millisecond {
					t.Errorf("%v, %v after %v", done, err, passed)
				}
				close(over)
				sender.Wait()
				other := op
				if name == "receive" {
					other = sendOp(buffer(t, 1), 0, 0)
				}
				if err := run(w.comms[1], other); err != nil {
					t.Error(err)
				}
				if done, err := work.Wait(patience); !done || err != nil {
					t.Error(done, err)
				}
			})
		}
	}
}

// TestReceivesEndWithoutWaiters has receives found by tests, by callbacks and by their timers, and
// a sender that fills the mailbox of a rank that does not look.
func TestReceivesEndWithoutWaiters(t *testing.T) {
	for _, tr := range transports {
		t.Run(tr, func(t *testing.T) {
			w := newWorld(t, tr, 2, time.Minute)
			const n, each = 40, 10_000 // 1.6 MB: more than a mailbox
			sent := make(chan bool)
			w.each(func(rank int) error {
				c := w.comms[rank]
				var works []*Work
				bufs := make([][]int32, n)
				for i := range n {
					b := buffer(t, each)
					bufs[i] = b
					op := sendOp(b, 1, i)
					if rank == 0 {
						fill(b, 0, i)
					} else {
						op = recvOp(b, 0, i)
					}
					if rank == 1 && i == 0 {
						<-sent // all of them: this rank has not looked once
					}
					work, err := c.Start(CallOptions{}, op)
					if err != nil {
						return err
					}
					works = append(works, work)
				}
				if rank == 0 {
					for _, work := range works {
						if _, err := work.Wait(-1); err != nil {
							return err
						}
					}
					close(sent)
					return nil
				}
				done := make(chan error, n)
				for i, work := range works {
					if i%2 == 0 {
						work.OnDone(func(err error) { done <- err })
						continue
					}
					for ok := false; !ok; {
						var err error
						if ok, err = work.Test(); err != nil {
							return err
						}
						runtime.Gosched()
					}
				}
				for range n / 2 {
					if err := <-done; err != nil {
						return err
					}
				}
				for i, b := range bufs {
					if err := expect(fmt.Sprint(i), b, func(k int) int32 { return value(0, i, k) }); err != nil {
						return err
					}
				}
				return nil
			})
		})
	}
}

// TestTransfersEndByTests has nobody wait for sends and receives that are too long to be eager.
func TestTransfersEndByTests(t *testing.T) {
	for _, tr := range transports {
		t.Run(tr, func(t *testing.T) {
			const n = 1_000_000
			w := newWorld(t, tr, 2, time.Minute)
			w.each(func(rank int) error {
				c := w.comms[rank]
				in, out := buffer(t, n), buffer(t, n)
				fill(in, rank, 0)
				var works []*Work
				for _, op := range []Operation{
					sendOp(in, 1-rank, 0),
					recvOp(out, 1-rank, 0),
				} {
					work, err := c.Start(CallOptions{}, op)
					if err != nil {
						return err
					}
					works = append(works, work)
				}
				for _, work := range works {
					for ok := false; !ok; runtime.Gosched() {
						var err error
						if ok, err = work.Test(); err != nil {
							return err
						}
					}
				}
				return expect("received", out, func(i int) int32 { return value(1-rank, 0, i) })
			})
		})
	}
}

// TestDestroyUnderWaiters destroys a communicator while threads of the rank wait in it, and start
// works.
func TestDestroyUnderWaiters(t *testing.T) {
	for _, tr := range transports {
		t.Run(tr, func(t *testing.T) {
			for range 20 {
				w := newWorld(t, tr, 2, time.Minute)
				w.each(func(rank int) error { return run(w.comms[rank], allReduce(t, 1)) })
				c := w.comms[0]
				small, large := buffer(t, 1), buffer(t, 1<<20)
				ops := []Operation{
					recvOp(small, 1, 0),
					sendOp(large, 1, 1),
					sendOp(large[:1<<14], 1, 2),
				}
				var wg sync.WaitGroup
				var ready sync.WaitGroup
				for _, op := range ops {
					wg.Add(1)
					ready.Add(1)
					go func() {
						defer wg.Done()
						ready.Done()
						for {
							if err := run(c, op); err != nil {
								if !errors.Is(err, ErrAborted) {
									t.Errorf("%v: %v", op.Collective, err)
								}
								return
							}
						}
					}()
				}
				ready.Wait()
				c.Destroy()
				wg.Wait()
			}
		})
	}
}

// TestPeerLeavesWithAFullMailbox has a rank leave that took nothing of what was sent to it.
func TestPeerLeavesWithAFullMailbox(t *testing.T) {
	for _, tr := range transports {
		t.Run(tr, func(t *testing.T) {
			w := newWorld(t, tr, 2, time.Minute)
			w.each(func(rank int) error { return run(w.comms[rank], allReduce(t, 1)) })
			const each = 16 << 10
			b := buffer(t, each)
			var works []*Work
			for range 2 * p2p.EagerBudget / (4 * each) {
				work, err := w.comms[0].Start(CallOptions{},
					Operation{Collective: plan.Send, DType: reduce.Int32, Root: 1,
						In: []unsafe.Pointer{ptr(b)}, InCounts: []uint64{each}})
				if err != nil {
					t.Fatal(err)
				}
				works = append(works, work)
			}
			w.comms[1].Destroy()
			_, err := works[len(works)-1].Wait(-1)
			if !errors.Is(err, ErrAborted) {
				t.Errorf("the last send: %v", err)
			}
		})
	}
}

// TestCallbackOfAReceive has nothing but a callback wait for a message that comes later.
func TestCallbackOfAReceive(t *testing.T) {
	for _, tr := range transports {
		t.Run(tr, func(t *testing.T) {
			w := newWorld(t, tr, 2, time.Minute)
			done, posted := make(chan error), make(chan bool)
			w.each(func(rank int) error {
				b := buffer(t, 1)
				if rank == 0 {
					<-posted
					return run(w.comms[0], sendOp(b, 1, 0))
				}
				work, err := w.comms[1].Start(CallOptions{}, recvOp(b, AnySource, 0))
				if err != nil {
					return err
				}
				work.OnDone(func(err error) { done <- err })
				close(posted)
				return <-done
			})
		})
	}
}

func TestAsynchronousWorksEndWithoutWaiters(t *testing.T) {
	for _, tr := range transports {
		t.Run(tr, func(t *testing.T) {
			w := newWorld(t, tr, 2, time.Minute)
			w.each(func(rank int) error {
				const n = 50
				done := make(chan error, n)
				for range n {
					work, err := w.comms[rank].Start(CallOptions{}, allReduce(t, 1000))
					if err != nil {
						return err
					}
					work.OnDone(func(err error) { done <- err })
				}
				for range n {
					if err := <-done; err != nil {
						return err
					}
				}
				return nil
			})
		})
	}
}

// TestAsynchronousWorksAmongWaitedOnes has the worker used to works that somebody waits for, and
// then leaves it one.
func TestAsynchronousWorksAmongWaitedOnes(t *testing.T) {
	for _, tr := range transports {
		t.Run(tr, func(t *testing.T) {
			w := newWorld(t, tr, 2, time.Minute)
			ended := make(chan bool)
			w.each(func(rank int) error {
				for i := range 300 {
					work, err := w.comms[rank].Start(CallOptions{}, allReduce(t, 100+i%2))
					if err != nil {
						return err
					}
					if left := i%30 == 29; left && rank == 0 {
						<-ended
					}
					if _, err := work.Wait(-1); err != nil {
						return err
					}
					if left := i%30 == 29; left && rank == 1 {
						ended <- true
					}
				}
				return nil
			})
		})
	}
}

// TestLeftWorkBehindWaiter gives up waiting for a work while another waiter runs the one before it.
func TestLeftWorkBehindWaiter(t *testing.T) {
	w := newWorld(t, "mem", 2, 20*time.Second)
	left := make(chan bool)
	w.each(func(rank int) error {
		c := w.comms[rank]
		for range 20 {
			if rank == 1 {
				<-left
				for range 2 {
					if err := run(c, allReduce(t, 10)); err != nil {
						return err
					}
				}
				continue
			}
			first, err := c.Start(CallOptions{}, allReduce(t, 10))
			if err != nil {
				return err
			}
			waited := make(chan error)
			go func() {
				_, err := first.Wait(-1)
				waited <- err
			}()
			for !queueIsRun(c) {
				runtime.Gosched()
			}
			second, err := c.Start(CallOptions{WaitSoon: true}, allReduce(t, 10))
			if err != nil {
				return err
			}
			done := make(chan error)
			second.OnDone(func(err error) { done <- err })
			left <- true
			if err := errors.Join(<-waited, <-done); err != nil {
				return err
			}
		}
		return nil
	})
}

func TestCheckRefuses(t *testing.T) {
	w := newWorld(t, "mem", 2, time.Minute)
	good := func() Operation { return allReduce(t, 4) }
	for want, spoil := range map[string]func(*Operation){
		"in has 0 blocks": func(o *Operation) { *o = Operation{} },
		"dtype is 99":     func(o *Operation) { o.DType = 99 },
		"op is 77":        func(o *Operation) { o.Op = 77 },
		"out[0] has 3":    func(o *Operation) { o.OutCounts = []uint64{3} },
		"as in[": func(o *Operation) {
			*o = Operation{Collective: plan.AllToAll, In: make([]unsafe.Pointer, 2),
				InCounts: []uint64{0, 0},
				Out:      []unsafe.Pointer{o.Out[0], o.Out[0]}, OutCounts: []uint64{1, 1}}
		},
		"in[0] is NULL": func(o *Operation) { o.In = []unsafe.Pointer{nil} },
		"root is 2":     func(o *Operation) { o.Collective, o.Root = plan.Broadcast, 2 },
		"peer is 5":     func(o *Operation) { *o = Operation{Collective: plan.Send, Root: 5} },
		"tag is -1":     func(o *Operation) { *o = Operation{Collective: plan.Send, Tag: -1} },
		"overlap":       func(o *Operation) { o.Out = []unsafe.Pointer{unsafe.Add(o.In[0], 4)} },
		"than memory can": func(o *Operation) {
			o.InCounts, o.OutCounts = []uint64{1 << 62}, []uint64{1 << 62}
		},
	} {
		for rank, c := range w.comms {
			op := good()
			spoil(&op)
			_, err := c.Start(CallOptions{}, op)
			if !errors.Is(err, ErrInvalidArgument) || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: rank %d: %v", want, rank, err)
			}
		}
	}
	w.each(func(rank int) error { return run(w.comms[rank], good()) })
}

// Everything that a communicator opened is closed when it is destroyed.
func TestNothingIsLeft(t *testing.T) {
	fds := func() int {
		d, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(d)
	}
	maps := func() int {
		b, err := os.ReadFile("/proc/self/maps")
		if err != nil {
			t.Fatal(err)
		}
		return bytes.Count(b, []byte("goccl-window"))
	}
	for _, tr := range transports {
		round := func() {
			w := newWorld(t, tr, 3, time.Minute)
			w.each(func(rank int) error { return run(w.comms[rank], allReduce(t, 100_000)) })
			w.try(func(rank int) error { w.comms[rank].Destroy(); return nil })
		}
		round()
		before, goroutines := fds(), runtime.NumGoroutine()
		for range 5 {
			round()
		}
		deadline := time.Now().Add(patience)
		for (fds() > before || runtime.NumGoroutine() > goroutines || maps() > 0) &&
			time.Now().Before(deadline) {
			time.Sleep(time.Millisecond)
		}
		if n := fds(); n > before {
			t.Errorf("%s: %d descriptors, %d before", tr, n, before)
		}
		if n := maps(); n > 0 {
			t.Errorf("%s: %d windows are still mapped", tr, n)
		}
		if n := runtime.NumGoroutine(); n > goroutines {
			buf := make([]byte, 1<<16)
			t.Errorf("%s: %d goroutines, %d before\n%s", tr, n, goroutines, buf[:runtime.Stack(buf, true)])
		}
	}
}

func TestSendToItselfTimesOut(t *testing.T) {
	w := newWorld(t, "mem", 1, 200*time.Millisecond)
	b := buffer(t, 1)
	work, err := w.comms[0].Start(CallOptions{},
		Operation{Collective: plan.Send, DType: reduce.Int32, In: []unsafe.Pointer{ptr(b)},
			InCounts: []uint64{1}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := work.Wait(-1); !errors.Is(err, ErrTimeout) {
		t.Errorf("%v", err)
	}
}

func TestAbortBesideDestroy(t *testing.T) {
	for range 30 {
		w := newWorld(t, "shm", 2, time.Minute)
		w.each(func(rank int) error { return run(w.comms[rank], allReduce(t, 10)) })
		var wg sync.WaitGroup
		for _, c := range w.comms {
			wg.Add(2)
			go func() { defer wg.Done(); c.Abort("now") }()
			go func() { defer wg.Done(); c.Destroy() }()
		}
		wg.Wait()
	}
}
