package core

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/goccl/goccl/core/call"
)

// everything has all ranks call collectives, twice, so that what is learned is used, and send
// around.
func everything(t *testing.T, w *world) {
	t.Helper()
	size := len(w.comms)
	for range 2 {
		collectives(t, w, size, 1000, false)
	}
	around(t, w, size, 10)
	around(t, w, size, 1<<19)
}

func renew(w *world) []error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return w.try(func(rank int) error { return w.comms[rank].Renew(ctx) })
}

func renewAll(t *testing.T, w *world, number uint32) {
	t.Helper()
	for rank, err := range renew(w) {
		if err != nil {
			t.Fatalf("rank %d: %v", rank, err)
		}
		if n := now(w.comms[rank]).Number(); n != number {
			t.Fatalf("rank %d is in epoch %d, not %d", rank, n, number)
		}
		if err := w.comms[rank].Err(); err != nil {
			t.Fatalf("rank %d: %v", rank, err)
		}
	}
}

// A communicator goes on in its next epoch, over the same links: after success and after a failure.
func TestEpochs(t *testing.T) {
	for _, transport := range transports {
		t.Run(transport, func(t *testing.T) {
			w := newWorldOf(t, transport, 3, Config{Timeout: time.Minute, Thresholds: getAll})
			everything(t, w)
			renewAll(t, w, 1)
			if n := w.comms[0].Sequence(); n != 1 {
				t.Errorf("after the barrier of its beginning the epoch is at #%d", n)
			}
			everything(t, w)
			if open := fastPathIsOpen(w.comms[0]); open != now(w.comms[0]).Shape().AllMemory {
				t.Errorf("the fast path is open: %v", open)
			}
			if open := sendsInC(w.comms[0]); open != now(w.comms[0]).Shape().AllMemory {
				t.Errorf("callers in C may send: %v", open)
			}

			for number := uint32(2); number < 4; number++ {
				w.comms[1].Abort("it is tried")
				errs := w.try(func(rank int) error { return run(w.comms[rank], allReduce(t, 1000)) })
				for rank, err := range errs {
					if !errors.Is(err, ErrAborted) {
						t.Fatalf("rank %d: %v", rank, err)
					}
				}
				renewAll(t, w, number)
				everything(t, w)
			}
		})
	}
}

// What a rank has under way when it renews its communicator ends.
func TestRenewEndsWorks(t *testing.T) {
	w := newWorld(t, "shm", 2, time.Minute)
	var works []*Work
	for _, op := range []call.Operation{allReduce(t, 1000), recvOp(buffer(t, 10), 1, 3)} {
		k, err := w.comms[0].Start(CallOptions{}, op)
		if err != nil {
			t.Fatal(err)
		}
		works = append(works, k)
	}
	renewAll(t, w, 1)
	for i, k := range works {
		if done, err := k.Test(); !done || !errors.Is(err, ErrAborted) {
			t.Errorf("work %d: %v, %v", i, done, err)
		}
	}
	everything(t, w)
}

// What members have decided in an epoch may still be asked for when they have renewed it.
func TestRenewAfterADecision(t *testing.T) {
	for _, transport := range transports {
		t.Run(transport, func(t *testing.T) {
			w := newWorldOf(t, transport, 3, Config{Timeout: 20 * time.Second})
			for i := range uint32(3) {
				w.each(func(rank int) error {
					_, err := w.comms[rank].Agree(soon(t), 1)
					return err
				})
				renewAll(t, w, i+1)
				everything(t, w)
			}
			checkSettled(t, w)
		})
	}
}

// A decision on a next epoch that could not be made does not outlive a renewal.
func TestRenewInPlaceOfADecision(t *testing.T) {
	w := newWorld(t, "shm", 2, time.Minute)
	for _, c := range w.comms {
		c.decided = &successor{}
	}
	renewAll(t, w, 1)
	w.each(func(rank int) error { return w.comms[rank].Recover(soon(t)) })
	checkMembers(t, w)
}

func TestRenewWithoutAPeer(t *testing.T) {
	w := newWorld(t, "shm", 3, time.Minute)
	collectives(t, w, 3, 1000, false)
	w.end(2)
	for _, c := range w.comms[:2] {
		if err := c.Renew(context.Background()); !errors.Is(err, ErrPeerFailed) {
			t.Errorf("a process has ended: %v", err)
		}
	}

	late := newWorld(t, "shm", 2, time.Minute)
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	err := late.comms[0].Renew(ctx)
	var e *Error
	if !errors.As(err, &e) || !errors.Is(err, ErrTimeout) || len(e.Ranks) != 1 || e.Ranks[0] != 1 {
		t.Errorf("a rank has not come: %v", err)
	}

	gone := newWorld(t, "shm", 2, time.Minute)
	gone.comms[0].Destroy()
	if err := gone.comms[0].Renew(context.Background()); !errors.Is(err, ErrAborted) {
		t.Errorf("it was destroyed: %v", err)
	}
}

// Memory of a failed collective comes back once each rank has left the epoch: it goes on to the
// next one, or destroys its communicator.
func TestRetiredMemoryComesBack(t *testing.T) {
	const n = 1 << 20
	renew := func(c *Comm) error { return c.Renew(context.Background()) }
	destroy := func(c *Comm) error { c.Destroy(); return nil }
	for name, leave := range map[string]func(*Comm) error{"renew": renew, "destroy": destroy} {
		for _, first := range []int{0, 1} {
			t.Run(fmt.Sprintf("%s, rank %d first", name, first), func(t *testing.T) {
				w := newWorld(t, "shm", 2, time.Minute)
				alloc, free := allocating(t, w.runtimes[0])
				beside := alloc(1)
				defer free(beside)
				p := alloc(4 * n)
				op := allReduce(t, n)
				op.In[0], op.Out[0] = p, p
				k, err := w.comms[0].Start(CallOptions{}, op)
				if err != nil {
					t.Fatal(err)
				}
				w.comms[1].Abort("it is tried")
				if _, err := k.Wait(-1); !errors.Is(err, ErrAborted) {
					t.Fatal(err)
				}
				free(p)
				again := func() bool {
					q := alloc(4 * n)
					free(q)
					return q == p
				}
				if again() {
					t.Error("memory that a peer may write is allocated again")
				}
				left := make(chan error, 1)
				if name == "renew" {
					go func() { left <- leave(w.comms[first]) }() // which waits for the other
				} else {
					left <- leave(w.comms[first])
					if again() {
						t.Error("memory that a peer may write is allocated again when one has left")
					}
				}
				if err := errors.Join(leave(w.comms[1-first]), <-left); err != nil {
					t.Fatal(err)
				}
				if !again() {
					t.Error("memory that no peer can write any more is not allocated again")
				}
			})
		}
	}
}
