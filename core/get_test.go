package core

import (
	"context"
	"errors"
	"fmt"
	osexec "os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/goccl/goccl/core/address"
	"github.com/goccl/goccl/core/exec"
	"github.com/goccl/goccl/core/internal/logtest"
	"github.com/goccl/goccl/core/plan"
	"github.com/goccl/goccl/core/tune"
)

const getAll = "get_min=1,send_get_min=1"

// Collectives and sends come out right where all is got that can be, and where one rank's memory
// cannot be read.
func TestGets(t *testing.T) {
	for _, tr := range []string{"mem", "shm"} {
		for _, size := range []int{1, 2, 3, 5} {
			for _, able := range []bool{true, false} {
				t.Run(fmt.Sprintf("%s/%d/%v", tr, size, able), func(t *testing.T) {
					runtimes := []*Runtime{NewRuntime(RuntimeConfig{Logger: logtest.Warnings(t), unread: !able})}
					for len(runtimes) < size && tr == "shm" {
						runtimes = append(runtimes, NewRuntime(RuntimeConfig{Logger: logtest.Warnings(t)}))
					}
					w := worldOfRuntimes(t, runtimes, tr, size, Config{Timeout: time.Minute,
						Thresholds: getAll})
					for _, n := range sizes(true) {
						collectives(t, w, size, n, false)
						collectives(t, w, size, n, true)
					}
					for rank, c := range w.comms {
						if gets := copiesOnce(c); gets != (able || size == 1) {
							t.Errorf("rank %d: gets %v", rank, gets)
						}
					}
					around(t, w, size, 3<<20/4+1)
				})
			}
		}
	}
}

// What nobody has asked for is got only where that has been measured to be faster.
func TestGetsWhereReadsAreFast(t *testing.T) {
	for _, thresholds := range []string{"", "get_min=1", "send_get_min=1", "send_get_min=0"} {
		w := newWorldOf(t, "shm", 2, Config{Timeout: time.Minute, Thresholds: thresholds})
		around(t, w, 2, 5<<20)
		want := thresholds == "send_get_min=1"
		if !strings.HasPrefix(thresholds, "send_get_min") {
			want = readsCheaply(shapeOf(w.comms[0]), tune.ReadsAt(exec.ReadCost()))
		}
		if sent := sentOn(w.comms[0], pointToPointLane)[1]; (sent == 0) != want {
			t.Errorf("%q: %d messages have gone by plans", thresholds, sent)
		}
	}
}

// readsCheaply reports whether large sends are best read by their receivers.
func readsCheaply(s tune.Shape, reads tune.Reads) bool {
	return reads == tune.CheapReads || s.Oversubscribed && reads == tune.FastReads
}

// One rank of those that read each other's memory measures how fast that is, and all hear of it.
func TestSlowReadsAreFoundOnce(t *testing.T) {
	measured := exec.ReadCost
	t.Cleanup(func() { exec.ReadCost = measured })
	for _, cost := range []float64{0.8, 1.5, 3} {
		var asked atomic.Int64
		exec.ReadCost = func() float64 { asked.Add(1); return cost }
		check := func(of string, comms []*Comm, want int64) {
			t.Helper()
			for rank, c := range comms {
				s := shapeOf(c)
				want := readsCheaply(s, tune.ReadsAt(cost))
				if s.Thresholds.SendGetMin > 0 != want {
					t.Errorf("%s, reads of cost %v: rank %d has sends read from %d on", of, cost, rank,
						s.Thresholds.SendGetMin)
				}
			}
			if n := asked.Swap(0); n != want {
				t.Errorf("%s: %d ranks have measured, want %d", of, n, want)
			}
		}
		w := newWorldOf(t, "shm", 4, Config{Timeout: time.Minute})
		check("a host", w.comms, 1)
		parts := make([]*Comm, 4)
		w.each(func(rank int) (err error) {
			parts[rank], err = w.comms[rank].Split(context.Background(), rank%2, 0)
			return err
		})
		check("a split", parts, 2)
		for _, c := range parts {
			c.Destroy()
		}
		check("two hosts", twoHosts(t, 5, "").comms, 2)
		if newWorld(t, "tcp", 2, time.Minute); asked.Load() != 0 {
			t.Error("a rank that shares no memory has measured")
		}
	}
}

// twoHosts is a world of two ranks that share memory and others that do as well, on another host.
func twoHosts(t *testing.T, size int, thresholds string) *world {
	w, errs := tryWorld(t, size, func(rank int, r *RuntimeConfig, c *Config) {
		if c.Thresholds = thresholds; rank >= 2 {
			r.host = "elsewhere"
		}
	})
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	if c := w.comms[1]; c.Transport(0) != "shm" || !address.IsPort(c.Transport(2)) {
		t.Fatal(c.Transport(0), c.Transport(2))
	}
	return w
}

// Where only some ranks share a host, what is long is got within it, and everything comes out
// right.
func TestGetsWithinAHost(t *testing.T) {
	const size = 3
	w := twoHosts(t, size, "send_get_min=1048576")
	for _, n := range sizes(true) {
		collectives(t, w, size, n, false)
	}
	for _, got := range []bool{false, true} {
		n := int(shapeOf(w.comms[1]).Thresholds.SendGetMin) / 4
		if !got {
			n--
		}
		before := sentOn(w.comms[0], pointToPointLane)[1]
		around(t, w, size, n)
		if sentOn(w.comms[0], pointToPointLane)[1] == before != got {
			t.Errorf("%d bytes: got %v", 4*n, !got)
		}
	}
}

// What cannot be read after all comes through the windows.
func TestGetsUnreadable(t *testing.T) {
	w := newWorldOf(t, "shm", 2, Config{Timeout: time.Minute, Thresholds: "send_get_min=1"})
	other := osexec.Command("sleep", "inf") // which has nothing at such an address
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = other.Process.Kill(), other.Wait() })
	fd, err := unix.PidfdOpen(other.Process.Pid, 0)
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	reads(w.comms[1], 0, exec.Process{PID: other.Process.Pid, FD: fd})
	for _, n := range []int{1, 1000, 5 << 20} {
		around(t, w, 2, n)
	}
}

// Who leaves takes what nobody has received from it back: a receive of it ends, and the
// communicator goes on.
func TestGetFromWhoHasLeft(t *testing.T) {
	w := newWorldOf(t, "shm", 3, Config{Timeout: time.Minute, Thresholds: "send_get_min=1"})
	around(t, w, 3, 1000)
	const n = 10
	send, err := w.comms[0].Start(CallOptions{}, sendOp(buffer(t, n), 1, 0))
	if err != nil {
		t.Fatal(err)
	}
	w.comms[0].Destroy()
	if done, err := send.Wait(time.Minute); !done || !errors.Is(err, ErrAborted) {
		t.Errorf("send: %v, %v", done, err)
	}
	if err := run(w.comms[1], recvOp(buffer(t, n), 0, 0)); !errors.Is(err, ErrAborted) ||
		!strings.Contains(err.Error(), "has left") {
		t.Errorf("receive: %v", err)
	}
	othersGoOn(t, w, n)
}

// around sends n elements from each rank to the next.
func around(t *testing.T, w *world, size, n int) {
	t.Helper()
	w.each(func(rank int) error {
		in, out := buffer(t, n), buffer(t, n)
		fill(in, rank, 1)
		from := (rank + size - 1) % size
		work, err := w.comms[rank].Start(CallOptions{}, sendOp(in, (rank+1)%size, 7),
			recvOp(out, from, 7))
		if err != nil {
			return err
		}
		if _, err := work.Wait(-1); err != nil {
			return err
		}
		return expect("received", out, func(i int) int32 { return value(from, 1, i) })
	})
}

// Which ranks get from each other depends on who is in a group: a split finds out anew, and the
// next epoch stays with it.
func TestGetsInSplits(t *testing.T) {
	const size = 6 // on two hosts; rank 4 cannot be read
	w, errs := tryWorld(t, size, func(rank int, r *RuntimeConfig, c *Config) {
		if c.Thresholds, r.unread = getAll, rank == 4; rank >= 3 {
			r.host = "elsewhere"
		}
	})
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	check := func(what string, w *world, want bool) {
		t.Helper()
		for rank, c := range w.comms {
			if gets := copiesOnce(c); gets != want {
				t.Errorf("%s, rank %d of %d: gets %v", what, rank, len(w.comms), gets)
			}
		}
		collectives(t, w, len(w.comms), 1000, false)
	}
	check("all", w, false)
	for _, c := range []struct {
		colors [size]int
		gets   []bool // by color
	}{
		{[size]int{0, 0, 0, 1, 1, 1}, []bool{true, false}},
		{[size]int{0, 1, 0, 2, 1, 2}, []bool{true, false, true}},
	} {
		parts := make([]*world, len(c.gets))
		for i := range parts {
			parts[i] = &world{t: t}
		}
		children := make([]*Comm, size)
		w.each(func(rank int) (err error) {
			children[rank], err = w.comms[rank].Split(context.Background(), c.colors[rank], rank)
			return err
		})
		for rank, child := range children {
			part := parts[c.colors[rank]]
			part.comms = append(part.comms, child)
			t.Cleanup(child.Destroy)
		}
		for color, part := range parts {
			check(fmt.Sprintf("color %d", color), part, c.gets[color])
			part.each(func(rank int) error { return part.comms[rank].Renew(context.Background()) })
			check(fmt.Sprintf("color %d, renewed", color), part, c.gets[color])
		}
	}
}

// Where one rank cannot be read all ranks are told that what was forced cannot be had.
func TestForcedSingleCopyOfTheUnreadable(t *testing.T) {
	_, errs := tryWorld(t, 3, func(rank int, r *RuntimeConfig, c *Config) {
		c.Algorithms, r.unread = "scatter:single_copy", rank == 1
	})
	const want = "GOCCL_ALGO: scatter:single_copy cannot run in this group: scatter by single_copy " +
		"needs several ranks that can all read each other's memory; allowed here are flat, " +
		"binomial_tree, direct"
	for rank, err := range errs {
		if !errors.Is(err, ErrUnsupported) || !strings.Contains(err.Error(), want) {
			t.Errorf("rank %d: %v", rank, err)
		}
	}
}

// A rank that is to get what another calls no such collective for is told of that.
func TestGetTellsMismatch(t *testing.T) {
	w := newWorldOf(t, "shm", 2, Config{Timeout: time.Minute, Thresholds: getAll})
	errs := w.try(func(rank int) error {
		if rank == 0 {
			return run(w.comms[rank], allReduce(t, 1000))
		}
		op := allReduce(t, 1000)
		op.Collective, op.Root = plan.Scatter, 1
		op.In, op.InCounts = []unsafe.Pointer{ptr(buffer(t, 1000)), op.Out[0]}, []uint64{1000, 1000}
		return run(w.comms[rank], op)
	})
	for rank, err := range errs {
		if !errors.Is(err, ErrMismatch) {
			t.Errorf("rank %d: %v", rank, err)
		}
	}
}

// A rank leaves while it reads what another sends, whose buffer is then its own again: a receive
// that has ended well has what was sent.
func TestLeaveDuringAGet(t *testing.T) {
	const n, rounds = plan.GetMost / 4, 60 // which it reads in one go
	for round := range rounds {
		w := newWorldOf(t, "shm", 2, Config{Timeout: time.Minute, Thresholds: "send_get_min=1"})
		around(t, w, 2, 1)
		in, out := buffer(t, n), buffer(t, n)
		fill(in, 0, 1)
		send, err := w.comms[0].Start(CallOptions{}, sendOp(in, 1, 0))
		if err != nil {
			t.Fatal(err)
		}
		receive, err := w.comms[1].Start(CallOptions{}, recvOp(out, 0, 0))
		if err != nil {
			t.Fatal(err)
		}
		var left sync.WaitGroup
		left.Go(func() {
			for begun := time.Now(); time.Since(begun) < time.Duration(round)*20*time.Microsecond; {
			}
			w.comms[1].Destroy()
		})
		left.Go(func() {
			_, _ = send.Wait(-1)
			clear(in[n-n/8:])
		})
		if _, err := receive.Wait(-1); err == nil {
			if err := expect("received", out, func(i int) int32 { return value(0, 1, i) }); err != nil {
				t.Errorf("round %d: %v", round, err)
			}
		}
		left.Wait()
	}
}
