package core

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/goccl/goccl/core/bootstrap"
	"github.com/goccl/goccl/core/config"
	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/internal/logtest"
	"github.com/goccl/goccl/core/internal/polltest"
	"github.com/goccl/goccl/core/plan"
	"github.com/goccl/goccl/rdma/fake"
)

// Ranks are goroutines. "mem" gives them one runtime; the others one each, so that they meet as
// processes do; "verbs" over this host's RDMA device, or a double of one.
var transports = []string{"mem", "shm", "tcp", "verbs"}

// libibverbs is the path of a double, where this host has no RDMA device.
func libibverbs(t testing.TB) string {
	all := NewRuntime(RuntimeConfig{}).Info()["transports"].(map[string]any)
	if all["verbs"].(map[string]any)["usable"] == true {
		return ""
	}
	return fake.New(t).Path
}

// noteVariables has go test know which variables the tests depend on.
var noteVariables = sync.OnceFunc(func() {
	for _, name := range config.Variables() {
		os.Getenv(name)
	}
})

// getenv is os.Getenv for runtimes of which there are thousands: that has go test write a line at
// each call, and the file would outgrow what fewBytesOfFiles leaves it.
func getenv(name string) string {
	noteVariables()
	value, _ := syscall.Getenv(name)
	return value
}

const patience = polltest.Patience

type world struct {
	t        testing.TB
	runtimes []*Runtime
	comms    []*Comm
	alloc    func(rank, n int) []int32    // buffers of collectives(); nil: ordinary memory
	run      func(*Comm, Operation) error // of collectives(); nil: run
	only     []plan.Collective            // of collectives(); nil: all
	beside   sync.WaitGroup               // what happens to ranks meanwhile, and before the world ends
}

func newWorld(t testing.TB, transport string, size int, timeout time.Duration) *world {
	t.Helper()
	return newWorldOf(t, transport, size, Config{Timeout: timeout})
}

// newWorldOf takes from the configuration what is the same on all ranks.
func newWorldOf(t testing.TB, transport string, size int, config Config) *world {
	t.Helper()
	runtime := RuntimeConfig{Logger: logtest.Warnings(t)}
	if transport == "verbs" {
		runtime.Verbs = libibverbs(t)
	}
	return newWorldWith(t, runtime, transport, size, config)
}

func newWorldWith(t testing.TB, runtime RuntimeConfig, transport string, size int,
	config Config) *world {
	t.Helper()
	if runtime.Getenv == nil {
		runtime.Getenv = getenv
	}
	runtimes := []*Runtime{NewRuntime(runtime)}
	for len(runtimes) < size && transport != "mem" {
		runtimes = append(runtimes, NewRuntime(runtime))
	}
	return worldOfRuntimes(t, runtimes, transport, size, config)
}

// worldOfRuntimes has ranks join, of which the last one has those that are too many.
func worldOfRuntimes(t testing.TB, runtimes []*Runtime, transport string, size int,
	config Config) *world {
	t.Helper()
	w := &world{t: t, comms: make([]*Comm, size), runtimes: runtimes}
	for len(w.runtimes) < size {
		w.runtimes = append(w.runtimes, runtimes[len(runtimes)-1])
	}
	store := bootstrap.NewMemStore()
	forced := transport
	if forced == "mem" {
		forced = ""
	}
	config.Size, config.Store, config.GroupName = size, store, "test"
	config.Transport, config.LivenessGrace = forced, 2*time.Second
	timeout := config.Timeout
	config.Timeout = max(timeout, patience)
	t.Cleanup(w.close)
	w.each(func(rank int) error {
		config := config
		config.Rank = rank
		c, err := w.runtimes[rank].Init(context.Background(), config)
		w.comms[rank] = c
		return err
	})
	if timeout > 0 {
		w.limit(timeout)
	}
	return w
}

// limit gives what ranks call from now on so long, once they have met: they may come apart.
func (w *world) limit(timeout time.Duration) {
	w.t.Helper()
	for rank, c := range w.comms {
		if err := c.SetTimeout(timeout); err != nil {
			w.t.Fatalf("rank %d: %v", rank, err)
		}
	}
}

// tryWorld has ranks join that are not all configured alike, and returns how that went.
func tryWorld(t *testing.T, size int, configure func(rank int, r *RuntimeConfig,
	c *Config)) (*world, []error) {
	t.Helper()
	store := bootstrap.NewMemStore()
	w := &world{t: t, comms: make([]*Comm, size), runtimes: make([]*Runtime, size)}
	errs := w.try(func(rank int) (err error) {
		r := RuntimeConfig{Logger: logtest.Warnings(t), Getenv: getenv}
		c := Config{Rank: rank, Size: size, Store: store, GroupName: "test", Timeout: 20 * time.Second}
		configure(rank, &r, &c)
		w.runtimes[rank] = NewRuntime(r)
		w.comms[rank], err = w.runtimes[rank].Init(context.Background(), c)
		return err
	})
	t.Cleanup(w.close)
	return w, errs
}

// close may be called again. What a failed test has left behind may keep it from ending: it is
// then left, too.
func (w *world) close() {
	over := make(chan struct{})
	go func() {
		defer close(over)
		w.beside.Wait()
		for _, c := range w.comms {
			if c != nil {
				c.Destroy()
			}
		}
		for _, r := range w.runtimes {
			r.Close()
		}
	}()
	most := 3 * patience
	if w.t.Failed() {
		most = patience / 6
	}
	w.await(over, most, "the end of the world")
}

// await fails the test where something has not come in time, and tells what all goroutines do.
func (w *world) await(over <-chan struct{}, most time.Duration, what string) {
	w.t.Helper()
	select {
	case <-over:
	case <-time.After(most):
		stacks := make([]byte, 1<<20)
		w.t.Fatalf("never: %s\n%s", what, stacks[:runtime.Stack(stacks, true)])
	}
}

// each runs f for every rank at once and fails the test on an error.
func (w *world) each(f func(rank int) error) {
	w.t.Helper()
	if err := allOf(w.try(f)); err != nil {
		w.t.Fatal(err)
	}
}

// allOf joins the errors of ranks.
func allOf(errs []error) (all error) {
	for rank, err := range errs {
		if err != nil {
			all = errors.Join(all, fmt.Errorf("rank %d: %w", rank, err))
		}
	}
	return all
}

// try runs f for every rank at once. A rank that fails the test in f ends it for all, and so does
// one that waits for another for ever.
func (w *world) try(f func(rank int) error) []error {
	w.t.Helper()
	errs := make([]error, len(w.comms))
	var wg sync.WaitGroup
	var returned atomic.Int64
	for rank := range w.comms {
		wg.Go(func() {
			errs[rank] = f(rank)
			returned.Add(1)
		})
	}
	over := make(chan struct{})
	go func() {
		wg.Wait()
		close(over)
	}()
	w.await(over, 3*patience, "the end of what ranks do")
	if int(returned.Load()) < len(errs) {
		w.t.FailNow()
	}
	return errs
}

// named is how texts name ranks that are goroutines of this process.
func named(ranks ...int) string {
	g := fault.NewGroup("", nil, slices.Repeat([]int{os.Getpid()}, slices.Max(ranks)+1))
	return g.Names(ranks...)
}

// run starts an operation and waits for it.
func run(c *Comm, op Operation) error {
	w, err := c.Start(CallOptions{WaitSoon: true}, op)
	if err != nil {
		return err
	}
	_, err = w.Wait(-1)
	return err
}

// buffer is pinned memory of n int32.
func buffer(t testing.TB, n int) []int32 {
	b := make([]int32, max(n, 1))
	var p runtime.Pinner
	p.Pin(&b[0])
	t.Cleanup(p.Unpin)
	return b[:n]
}

func ptr(b []int32) unsafe.Pointer {
	return unsafe.Pointer(unsafe.SliceData(b))
}

// value is what element i of rank r's block b holds.
func value(r, b, i int) int32 { return int32(r*7919 + b*104729 + i*31 + 1) }

func fill(b []int32, r, blk int) {
	for i := range b {
		b[i] = value(r, blk, i)
	}
}

func expect(what string, b []int32, want func(i int) int32) error {
	for i := range b {
		if b[i] != want(i) {
			return fmt.Errorf("%s: element %d is %d, want %d", what, i, b[i], want(i))
		}
	}
	return nil
}

func sizes(short bool) []int {
	if short {
		return []int{0, 1, 1000, 70_001}
	}
	return []int{0, 1, 7, 4096, 16_384, 16_385, 65_536, 65_537, 300_001}
}
