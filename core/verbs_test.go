package core

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/goccl/goccl/core/internal/logtest"
	"github.com/goccl/goccl/core/internal/polltest"
	"github.com/goccl/goccl/core/logs"
	"github.com/goccl/goccl/core/plan"
	"github.com/goccl/goccl/core/reduce"
	"github.com/goccl/goccl/rdma/fake"
)

// What no adapter of ours produces, a double does.
func newVerbsWorld(t *testing.T, size int) (*world, *fake.Library) {
	t.Helper()
	double := fake.New(t)
	runtime := RuntimeConfig{Verbs: double.Path, Logger: logtest.Warnings(t)}
	w := newWorldWith(t, runtime, "verbs", size, Config{Timeout: time.Minute})
	w.each(func(rank int) error { return run(w.comms[rank], allReduce(t, 10)) })
	return w, double
}

func TestRemovedDeviceIsTold(t *testing.T) {
	w, double := newVerbsWorld(t, 3)
	errs := w.try(func(rank int) error {
		for i := 0; ; i++ {
			if rank == 1 && i == 100 {
				double.Remove(0)
			}
			if err := run(w.comms[rank], allReduce(t, 10)); err != nil {
				return err
			}
		}
	})
	for rank, err := range errs {
		// What was under way may come back before the device tells that it is gone.
		says := func(text string) bool { return strings.Contains(err.Error(), text) }
		if !errors.Is(err, ErrPeerFailed) || !says("removed") && !says("the connection is broken") {
			t.Errorf("rank %d: %v", rank, err)
		}
	}
}

// A request that fails breaks a connection, and so its link. Who tells first may be the other side,
// whose requests are flushed.
func TestBrokenConnectionIsTold(t *testing.T) {
	w, double := newVerbsWorld(t, 3)
	const general = 21
	double.Complete(1, -1, 0, general, 0x57)
	errs := w.try(func(rank int) error {
		for {
			if err := run(w.comms[rank], allReduce(t, 10)); err != nil {
				return err
			}
		}
	})
	said := 0
	for rank, err := range errs {
		if !errors.Is(err, ErrPeerFailed) {
			t.Errorf("rank %d: %v", rank, err)
		} else if strings.Contains(err.Error(), "the connection is broken") {
			said++
		}
	}
	if said == 0 {
		t.Error("nobody tells why", errs)
	}
}

// What is shareable is read by who needs it, into whatever memory; the results are the same.
func TestShareableIsAdvertised(t *testing.T) {
	for _, size := range []int{2, 3, 4} {
		for _, ordinary := range []int{-1, 0, size - 1} { // whose memory is not
			t.Run(fmt.Sprintf("%d/ordinary %d", size, ordinary), func(t *testing.T) {
				w, double := newVerbsWorld(t, size)
				before := double.Live("mr")
				t.Run("collectives", func(t *testing.T) {
					w.alloc = func(rank, n int) []int32 {
						if rank == ordinary {
							return buffer(t, n)
						}
						return shareable(t, w, rank, n)
					}
					for _, n := range []int{1000, 70_001, 600_001} {
						collectives(t, w, size, n, false)
						collectives(t, w, size, n, true)
					}
				})
				given, taken := advertised(w)
				for rank := range size {
					alone := ordinary >= 0 && ordinary != rank && size == 2 // whose memory is not ordinary
					if (given[rank] > 0) == (rank == ordinary) || (taken[rank] > 0) == alone {
						t.Errorf("peers of rank %d have read %d bytes by themselves, and it %d of theirs", rank,
							given[rank], taken[rank])
					}
				}
				// All has been freed, but for the windows.
				if n := double.Live("mr") - before; n > 2*size {
					t.Errorf("%d regions are left", n)
				}
			})
		}
	}
}

// Sends of shareable memory, to receives of shareable and of ordinary memory.
func TestShareableSendsAreAdvertised(t *testing.T) {
	const n = 3_000_001 // more than one frame
	w, _ := newVerbsWorld(t, 2)
	for _, to := range []func(n int) []int32{
		func(n int) []int32 { return shareable(t, w, 1, n) },
		func(n int) []int32 { return buffer(t, n) },
	} {
		for _, n := range []int{1, advertLeast / 4, n} {
			from := shareable(t, w, 0, n)
			fill(from, 0, n)
			into := to(n)
			given, _ := advertised(w)
			w.each(func(rank int) error {
				if rank == 0 {
					return run(w.comms[0], Operation{Collective: plan.Send, DType: reduce.Int32, Root: 1,
						In: []unsafe.Pointer{ptr(from)}, InCounts: []uint64{uint64(n)}})
				}
				return run(w.comms[1], Operation{Collective: plan.Recv, DType: reduce.Int32, Root: 0,
					Out: []unsafe.Pointer{ptr(into)}, OutCounts: []uint64{uint64(n)}})
			})
			if err := expect("received", into, func(i int) int32 { return value(0, n, i) }); err != nil {
				t.Fatal(err)
			}
			after, _ := advertised(w)
			if want := int64(4 * n); n > 1 && after[0]-given[0] != want || n == 1 && after[0] != given[0] {
				t.Errorf("of %d bytes %d were advertised", want, after[0]-given[0])
			}
		}
	}
}

// advertLeast is as long as a payload must be to be advertised.
const advertLeast = 128 << 10

// Where memory cannot be registered, all goes through the rings, and that is said once.
func TestShareableThatCannotBeRegistered(t *testing.T) {
	double := fake.New(t)
	said := make(chan string, 100)
	logger := logtest.Logger(logs.Warn, func(r logs.Record) {
		if strings.Contains(r.Text, "copied") { // not what is logged of links
			said <- r.Text
		}
	})
	w := newWorldWith(t, RuntimeConfig{Verbs: double.Path, Logger: logger}, "verbs", 2,
		Config{Timeout: time.Minute})
	w.each(func(rank int) error { return run(w.comms[rank], allReduce(t, 10)) })
	double.Fail("reg_mr", 1, -1, syscall.ENOMEM)
	w.alloc = func(rank, n int) []int32 { return shareable(t, w, rank, n) }
	collectives(t, w, 2, 600_001, true)
	collectives(t, w, 2, 600_001, false)
	if given, taken := advertised(w); given[0]+given[1]+taken[0]+taken[1] != 0 {
		t.Errorf("%d and %d bytes were advertised", given, taken)
	}
	for range 2 {
		select {
		case text := <-said:
			if !strings.Contains(text, "locked memory") {
				t.Errorf("the log says %q", text)
			}
		case <-time.After(20 * time.Second):
			t.Fatal("the log does not say it")
		}
	}
	if len(said) > 0 {
		t.Errorf("the log says it again: %q", <-said)
	}
}

// A read that fails breaks the connection, on both sides, and all memory can be freed.
func TestReadThatFailsIsTold(t *testing.T) {
	const read, accessError = 4, 10
	w, double := newVerbsWorld(t, 3)
	double.Complete(3, read, 0, accessError, 0x88)
	errs := w.try(func(rank int) error {
		op := inPlace(shareable(t, w, rank, 600_001))
		for {
			if err := run(w.comms[rank], op); err != nil {
				return err
			}
		}
	})
	said := 0
	for rank, err := range errs {
		if !errors.Is(err, ErrPeerFailed) {
			t.Errorf("rank %d: %v", rank, err)
		} else if strings.Contains(err.Error(), "RDMA READ") {
			said++
		}
	}
	if said == 0 {
		t.Error("nobody tells why", errs)
	}
}

// A sender gives up, and its memory is its user's again, at any moment of its being read: the
// receiver has what was sent, or an error.
func TestAdvertisedByARankThatGaveUp(t *testing.T) {
	const n = 600_001
	late := 0
	for i := range 30 {
		w, double := newVerbsWorld(t, 2)
		from, into := shareable(t, w, 0, n), buffer(t, n)
		fill(from, 0, i)
		received := make(chan error, 1)
		go func() { received <- run(w.comms[1], recvOp(into, 0, 0)) }()
		work, err := w.comms[0].Start(CallOptions{Timeout: 50 * time.Millisecond}, sendOp(from, 1, 0))
		if err != nil {
			t.Fatal(err)
		}
		for begin := time.Now(); time.Since(begin) < time.Duration(i)*10*time.Microsecond; {
			runtime.Gosched()
		}
		double.Link(0, 1, false)
		if _, err := work.Wait(-1); err != nil {
			late++
			fill(from, 7, 7)
		}
		double.Link(0, 1, true)
		if err := <-received; err != nil {
			continue
		}
		if err := expect("received", into, func(k int) int32 { return value(0, i, k) }); err != nil {
			t.Fatalf("time %d: %v", i, err)
		}
	}
	if late == 0 {
		t.Error("no sender gave up")
	}
	// It gives up when all has been received, and it has not heard of that.
	w, _ := newVerbsWorld(t, 2)
	from, into := shareable(t, w, 0, n), buffer(t, n)
	fill(from, 0, 1)
	sent, received, read := sendUnread(t, w, from, into, beingRead)
	letGo := hold(t, w.comms[0])
	read()
	if _, err := received.Wait(-1); err != nil {
		t.Error(err)
	}
	w.comms[0].Abort("enough")
	if _, err := sent.Wait(-1); !errors.Is(err, ErrAborted) {
		t.Error(err)
	}
	fill(from, 7, 7)
	letGo()
	if err := expect("received", into, func(k int) int32 { return value(0, 1, k) }); err != nil {
		t.Error(err)
	}
}

// A rank leaves, and gives its memory back, before what it has advertised has been read: who was to
// receive that is told so, and receives what others send. The rank's other communicator keeps the
// link.
func TestAdvertisedByARankThatLeft(t *testing.T) {
	const n = 600_001
	w, _ := newVerbsWorld(t, 3)
	w.each(func(rank int) error {
		child, err := w.comms[rank].Split(context.Background(), 0, 0)
		if err == nil {
			t.Cleanup(child.Destroy)
		}
		return err
	})
	small := buffer(t, 1)
	other, err := w.comms[1].Start(CallOptions{}, recvOp(small, 2, 0))
	if err != nil {
		t.Fatal(err)
	}
	from, err := w.runtimes[0].Alloc(4 * n)
	if err != nil {
		t.Fatal(err)
	}
	_, received, read := sendUnread(t, w, unsafe.Slice((*int32)(from), n), buffer(t, n), beingRead)
	w.comms[0].Destroy()
	if err := w.runtimes[0].Free(from); err != nil {
		t.Error(err)
	}
	if arena, known := shareableOf(w.runtimes[0]); !arena || known == 0 {
		t.Error("what is advertised is gone")
	}
	read()
	if _, err := received.Wait(-1); !errors.Is(err, ErrAborted) ||
		!strings.Contains(err.Error(), "has left") {
		t.Errorf("what was advertised: %v", err)
	}
	if err := run(w.comms[2], sendOp(buffer(t, 1), 1, 0)); err != nil {
		t.Error(err)
	}
	if done, err := other.Wait(20 * time.Second); !done || err != nil {
		t.Errorf("what another sends: %v, %v", done, err)
	}
	polltest.Until(t, "the end of what was advertised", func() bool {
		arena, known := shareableOf(w.runtimes[0])
		return !arena && known == 0
	})
}

// What lies in shareable memory is read by the peer, into its place: puts, and gets but for their
// last bytes.
func TestChannelsCopyNothing(t *testing.T) {
	const size, bytes, last = 2, 3 << 20, 16 << 10
	w, _ := newVerbsWorld(t, size)
	b, beside := newBoard(t, w, bytes), newBoard(t, w, bytes)
	w.each(func(rank int) error {
		c, err := w.comms[rank].OpenChannel(1-rank, 1, "")
		if err != nil {
			return err
		}
		copy(beside.own[rank], pattern(rank, bytes))
		if err := c.Put(b.peers[rank][1-rank], 0, beside.own[rank], 1); err != nil {
			return err
		}
		if err := c.Wait(context.Background(), 1, 0); err != nil {
			return err
		}
		if string(b.own[rank]) != string(pattern(1-rank, bytes)) {
			return errors.New("what was put is not there")
		}
		if err := c.Flush(context.Background(), 0); err != nil {
			return err
		}
		clear(beside.own[rank])
		if err := c.Get(beside.own[rank], b.peers[rank][1-rank], 0); err != nil {
			return err
		}
		if err := c.Flush(context.Background(), 0); err != nil {
			return err
		}
		if string(beside.own[rank]) != string(pattern(rank, bytes)) {
			return errors.New("what was got is not what was put")
		}
		return nil
	})
	given, taken := advertised(w)
	for rank := range size {
		if want := int64(2*bytes - last); given[rank] != want || taken[rank] != want {
			t.Errorf("rank %d: %d bytes were read by peers, and %d of theirs: want %d", rank,
				given[rank], taken[rank], want)
		}
	}
}
