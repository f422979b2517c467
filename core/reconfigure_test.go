package core

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/goccl/goccl/core/internal/logtest"
	"github.com/goccl/goccl/core/plan"
	"github.com/goccl/goccl/core/reduce"
)

// openWorld opens communicators that have no members yet.
func openWorld(t testing.TB, transport string, size int, config Config) *world {
	t.Helper()
	r := RuntimeConfig{Logger: logtest.Warnings(t)}
	if transport == "verbs" {
		r.Verbs = libibverbs(t)
	}
	w := &world{t: t}
	for rank := range size {
		if rank == 0 || transport != "mem" {
			w.runtimes = append(w.runtimes, NewRuntime(r))
		} else {
			w.runtimes = append(w.runtimes, w.runtimes[0])
		}
		config := config
		config.GroupName, config.LivenessGrace = "test", 2*time.Second
		if transport != "mem" {
			config.Transport = transport
		}
		c, err := w.runtimes[rank].Open(context.Background(), config)
		if err != nil {
			t.Fatal(err)
		}
		w.comms = append(w.comms, c)
	}
	t.Cleanup(w.close)
	return w
}

// handles are those of some members, by their place in the world, or of all.
func (w *world) handles(members ...int) (all []string) {
	w.t.Helper()
	if members == nil {
		members = without(-1, len(w.comms))
	}
	for _, m := range members {
		h, err := w.comms[m].Handle()
		if err != nil || len(h) > 1<<10 {
			w.t.Fatalf("a handle of %d bytes: %v", len(h), err)
		}
		all = append(all, h)
	}
	return all
}

// of is the part of a world, in this order.
func (w *world) of(members ...int) *world {
	part := &world{t: w.t, alloc: w.alloc}
	for _, m := range members {
		part.comms = append(part.comms, w.comms[m])
		part.runtimes = append(part.runtimes, w.runtimes[m])
	}
	return part
}

// reconfigure makes members a group in this order, which must succeed, and tries it.
func (w *world) reconfigure(uuid string, members ...int) {
	w.t.Helper()
	part := w.of(members...)
	part.each(func(i int) error {
		err := part.comms[i].Reconfigure(context.Background(), uuid, w.handles(members...), true)
		if err == nil && (part.comms[i].Rank() != i || part.comms[i].Size() != len(members)) {
			err = fmt.Errorf("rank %d of %d", part.comms[i].Rank(), part.comms[i].Size())
		}
		return err
	})
	part.works()
}

// works tries collectives, and a message along a ring.
func (w *world) works() {
	w.t.Helper()
	n := len(w.comms)
	w.each(func(rank int) error {
		c := w.comms[rank]
		for i, count := range []int{1, 5000, 300_000} {
			in, out := buffer(w.t, count), buffer(w.t, count)
			fill(in, rank, 0)
			if err := run(c, allReduceOf(in, out)); err != nil {
				return err
			}
			if got := c.Sequence(); got != uint64(i+1) {
				return fmt.Errorf("collective %d has number %d", i+1, got)
			}
			if err := expect("allreduce", out, func(i int) (sum int32) {
				for r := range n {
					sum += value(r, 0, i)
				}
				return sum
			}); err != nil {
				return err
			}
		}
		return nil
	})
}

func allReduceOf(in, out []int32) Operation {
	return Operation{Collective: plan.AllReduce, DType: reduce.Int32, Op: reduce.Sum,
		In: []unsafe.Pointer{ptr(in)}, InCounts: []uint64{uint64(len(in))},
		Out: []unsafe.Pointer{ptr(out)}, OutCounts: []uint64{uint64(len(out))}}
}

func TestReconfigure(t *testing.T) {
	for _, transport := range transports {
		t.Run(transport, func(t *testing.T) {
			t.Parallel()
			w := openWorld(t, transport, 4, Config{Timeout: 20 * time.Second})
			b := buffer(t, 1)
			err := run(w.comms[0], allReduceOf(b, b))
			if !errors.Is(err, ErrInvalidArgument) ||
				!strings.Contains(err.Error(), "reconfigure it first") {
				t.Fatal(err)
			}
			w.reconfigure("a", 0, 1, 2)
			w.reconfigure("shrink", 2, 0)
			w.reconfigure("alone", 1)
			w.reconfigure("grow", 3, 2, 1, 0)
			w.reconfigure("again", 3, 2, 1, 0)
			// What is under way ends.
			pending := make([]error, 2)
			part := w.of(0, 1)
			part.each(func(i int) error {
				work, err := part.comms[i].Start(CallOptions{}, allReduceOf(b, buffer(t, 1)))
				if err != nil {
					return err
				}
				err = part.comms[i].Reconfigure(context.Background(), "two", w.handles(0, 1), true)
				_, pending[i] = work.Wait(-1)
				return err
			})
			for _, err := range pending { // ErrAborted where the peer was quicker
				if !errors.Is(err, ErrRevoked) && !errors.Is(err, ErrAborted) {
					t.Error(err)
				}
			}
			part.works()
			w.comms[0].Abort("a test")
			w.reconfigure("after an abort", 0, 1, 2, 3)
		})
	}
}

// Handles without an order: all ranks come to the same one.
func TestReconfigureSet(t *testing.T) {
	w := openWorld(t, "shm", 3, Config{Timeout: 20 * time.Second})
	w.each(func(i int) error {
		handles := w.handles(i, (i+1)%3, (i+2)%3)
		return w.comms[i].Reconfigure(context.Background(), "a", handles, false)
	})
	sorted := slices.Sorted(slices.Values(w.handles(0, 1, 2)))
	byRank := &world{t: t, comms: make([]*Comm, 3)}
	for i, c := range w.comms {
		if c.Rank() != slices.Index(sorted, w.handles(i)[0]) {
			t.Errorf("member %d has rank %d", i, c.Rank())
		}
		byRank.comms[c.Rank()] = c
	}
	byRank.works()
}

// refused is the outcome of ranks that cannot come together.
func (w *world) refused(kind error, words string, f func(i int) error) {
	w.t.Helper()
	for i, err := range w.try(f) {
		if !errors.Is(err, kind) || !strings.Contains(err.Error(), words) {
			w.t.Errorf("member %d: %v; want %v with %q", i, err, kind, words)
		}
	}
}

func TestReconfigureRefusesArguments(t *testing.T) {
	w := openWorld(t, "shm", 2, Config{Timeout: 20 * time.Second})
	w.reconfigure("first", 0, 1)
	own := w.handles(0, 1)
	for i, bad := range []struct {
		uuid    string
		handles []string
		words   string
	}{
		{"", own, "uuid is empty"}, {"first", own, `uuid "first" was already used`},
		{"b", nil, "no handles are given"},
		{"c", []string{own[0], own[1], own[0]}, "handles 1 and 3 of 3"},
		{"d", own[1:], "own handle is not among the 1"},
		{"e", []string{own[0], "x\ny"}, `handle 2 of 2, "x\\ny"`},
		{"f", []string{own[0], "AAAA"}, "malformed"},
		{"g", []string{own[0], own[1][:99]}, "handle 2 of 2"},
	} {
		err := w.comms[0].Reconfigure(context.Background(), bad.uuid, bad.handles, true)
		if !errors.Is(err, ErrInvalidArgument) || !strings.Contains(err.Error(), bad.words) {
			t.Errorf("%d: %v", i, err)
		}
		if bad.uuid > "a" && bad.uuid < "first" { // the peer, which gave good ones, is told
			err := w.comms[1].Reconfigure(context.Background(), bad.uuid, own, true)
			if !errors.Is(err, ErrInvalidArgument) || !strings.Contains(err.Error(), bad.words) {
				t.Errorf("%d, the peer: %v", i, err)
			}
		}
	}
	w.each(func(i int) error { return run(w.comms[i], Operation{Collective: plan.Barrier}) })
}

// What has been made by Init, or by Split, is reconfigured like what has been opened.
func TestReconfigureAfterInit(t *testing.T) {
	w := newWorld(t, "shm", 3, 20*time.Second)
	everything(t, w)
	children := w.of(0, 1, 2)
	w.each(func(rank int) (err error) {
		children.comms[rank], err = w.comms[rank].Split(context.Background(), rank/2, 0)
		return err
	})
	t.Cleanup(children.close)
	for _, whole := range []*world{w, children} {
		handles := whole.handles()
		turned := whole.of(2, 0, 1)
		turned.each(func(rank int) error {
			order := []string{handles[2], handles[0], handles[1]}
			return turned.comms[rank].Reconfigure(context.Background(), "a", order, true)
		})
		checkMembers(t, turned)
	}
}

// A used uuid fails on all ranks, also on one that has not used it, and the old group goes on.
func TestReconfigureUsedUUID(t *testing.T) {
	for newcomer := range 2 {
		w := openWorld(t, "tcp", 3, Config{Timeout: 20 * time.Second})
		w.reconfigure("a", 0, 1)
		members := slices.Insert([]int{0, 1}, 2*newcomer, 2)
		w.refused(ErrInvalidArgument, `uuid "a" was already used`, func(i int) error {
			return w.comms[i].Reconfigure(context.Background(), "a", w.handles(members...), true)
		})
		w.of(0, 1).each(func(i int) error { return run(w.comms[i], Operation{Collective: plan.Barrier}) })
		w.reconfigure("b", 2, 1, 0)
	}
}

// Ranks that were given different handles are all told which.
func TestReconfigureUnequalHandles(t *testing.T) {
	for i, given := range [][][]int{
		{{0, 1}, {1, 0}, nil}, {{0, 1, 2}, {0, 1, 2}, {0, 2, 1}}, {{0, 1, 2}, {0, 1, 2}, {2, 1}},
		{{0, 1, 2}, {1, 0}, {0, 1, 2}}, {{0, 1}, {1, 2}, {2, 0}}, {{0, 1, 2}, {0, 1}, {0, 2}},
	} {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			w := openWorld(t, "shm", 3, Config{Timeout: 20 * time.Second})
			some := w
			if given[2] == nil {
				some = w.of(0, 1)
			}
			some.refused(ErrMismatch, "different lists of handles", func(i int) error {
				return w.comms[i].Reconfigure(context.Background(), "a", w.handles(given[i]...), true)
			})
			w.reconfigure("b", 0, 1, 2)
		})
	}
}

func TestReconfigureDifferentSettings(t *testing.T) {
	for _, c := range []struct {
		other Config
		words string
	}{
		{Config{Secret: "another"}, "different secrets (GOCCL_SECRET)"},
		{Config{Algorithms: "allreduce:two_shot"}, "must be the same on all ranks"},
	} {
		w := openWorld(t, "shm", 2, Config{Timeout: 20 * time.Second, Secret: strings.Repeat("s", 32)})
		if c.other.Secret == "" {
			c.other.Secret = strings.Repeat("s", 32)
		}
		c.other.Timeout = 20 * time.Second
		stranger := openWorld(t, "shm", 1, c.other)
		all := &world{t: t, comms: append(w.comms, stranger.comms...)}
		all.refused(ErrMismatch, c.words, func(i int) error {
			return all.comms[i].Reconfigure(context.Background(), "a", all.handles(0, 1, 2), true)
		})
		w.reconfigure("b", 0, 1)
	}
}

// The handle of a process that has ended, or of a communicator that has been destroyed.
func TestReconfigureDeadProcess(t *testing.T) {
	for _, transport := range transports {
		for dead := range 3 {
			t.Run(fmt.Sprint(transport, dead), func(t *testing.T) {
				t.Parallel()
				w := openWorld(t, transport, 3, Config{Timeout: 20 * time.Second})
				w.reconfigure("a", 0, 1, 2)
				handles := w.handles(0, 1, 2)
				w.comms[dead].Destroy() // and with it the last of its endpoint
				left := slices.Delete([]int{0, 1, 2}, dead, dead+1)
				part := w.of(left...)
				part.refused(ErrPeerFailed, fmt.Sprintf("rank %d (pid ", dead), func(i int) error {
					err := part.comms[i].Reconfigure(context.Background(), "b", handles, true)
					var e *Error
					if errors.As(err, &e) && !slices.Equal(e.Ranks, []int{dead}) {
						t.Errorf("ranks %v are blamed", e.Ranks)
					}
					return err
				})
				w.reconfigure("c", left...)
			})
		}
	}
}

func TestReconfigureTimeout(t *testing.T) {
	for missing := range 3 {
		w := openWorld(t, "shm", 3, Config{Timeout: time.Second})
		part := w.of(slices.Delete([]int{0, 1, 2}, missing, missing+1)...)
		handles := w.handles(0, 1, 2)
		part.refused(ErrTimeout, fmt.Sprintf("rank %d (pid ", missing), func(i int) error {
			return part.comms[i].Reconfigure(context.Background(), "a", handles, true)
		})
		// One that comes late is told at once.
		err := w.comms[missing].Reconfigure(context.Background(), "a", handles, true)
		if !errors.Is(err, ErrTimeout) {
			t.Error(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		if err := w.comms[0].Reconfigure(ctx, "b", handles, true); !errors.Is(err, ErrAborted) {
			t.Error(err)
		}
	}
}

// A rank that waits hears of the end of one that has not come.
func TestReconfigureWithoutTheOther(t *testing.T) {
	for _, transport := range []string{"mem", "shm"} {
		for waits := range 2 {
			w := openWorld(t, transport, 2, Config{Timeout: 20 * time.Second})
			handles, ended := w.handles(0, 1), make(chan error, 1)
			go func() {
				ended <- w.comms[waits].Reconfigure(context.Background(), "a", handles, true)
			}()
			w.comms[1-waits].Destroy()
			if err := <-ended; !errors.Is(err, ErrPeerFailed) {
				t.Error(err)
			}
		}
	}
}

// Destroy and Abort end a Reconfigure that waits.
func TestReconfigureInterrupted(t *testing.T) {
	for i, end := range []func(c *Comm){(*Comm).Destroy, func(c *Comm) { c.Abort("a test") }} {
		w := openWorld(t, "shm", 2, Config{Timeout: time.Minute})
		handles := w.handles(0, 1)
		ended := make(chan error, 1)
		go func() { ended <- w.comms[0].Reconfigure(context.Background(), "a", handles, true) }()
		for len(ended) == 0 {
			end(w.comms[0])
			runtime.Gosched()
		}
		if err := <-ended; !errors.Is(err, ErrAborted) {
			t.Errorf("%d: %v", i, err)
		}
	}
}

// What else changes members works with a group that was reconfigured, and not before.
func TestReconfigureAndRecover(t *testing.T) {
	w := openWorld(t, "shm", 4, Config{Timeout: 20 * time.Second})
	_, shrunk := w.comms[0].Shrink(context.Background(), ShrinkOptions{})
	for _, err := range []error{shrunk, w.comms[0].Recover(context.Background()),
		w.comms[0].Renew(context.Background())} {
		if !errors.Is(err, ErrInvalidArgument) {
			t.Error(err)
		}
	}
	w.reconfigure("a", 0, 1, 2)
	w.comms[2].Destroy()
	w.of(0, 1).each(func(i int) error { return w.comms[i].Recover(context.Background()) })
	w.reconfigure("b", 3, 1, 0)
	part := w.of(3, 1, 0)
	part.each(func(i int) error { return part.comms[i].Renew(context.Background()) })
	part.each(func(i int) error {
		child, err := part.comms[i].Split(context.Background(), i%2, 0)
		if err == nil {
			child.Destroy()
		}
		return err
	})
}
