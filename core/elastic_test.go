package core

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/goccl/goccl/core/agreement"
	"github.com/goccl/goccl/core/internal/polltest"
)

func soon(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// checkMembers has ranks be those of the communicators' present epoch, and call everything.
func checkMembers(t *testing.T, w *world) {
	t.Helper()
	for rank, c := range w.comms {
		if c.Rank() != rank || c.Size() != len(w.comms) {
			t.Fatalf("rank %d of %d is rank %d of %d", rank, len(w.comms), c.Rank(), c.Size())
		}
		if err := c.Err(); err != nil {
			t.Fatalf("rank %d: %v", rank, err)
		}
		if n := len(c.Members()); n != len(w.comms) {
			t.Fatalf("rank %d: %d members", rank, n)
		}
	}
	everything(t, w)
}

// without are all ranks below size but one.
func without(rank, size int) (ranks []int) {
	for r := range size {
		if r != rank {
			ranks = append(ranks, r)
		}
	}
	return ranks
}

// Survivors go on in place, down to the last: after a death that nobody has missed yet, and after
// one that has failed a collective.
func TestRecover(t *testing.T) {
	for _, transport := range transports {
		t.Run(transport, func(t *testing.T) {
			w := newWorldOf(t, transport, 4, Config{Timeout: time.Minute, Thresholds: getAll})
			everything(t, w)
			for i, dead := range []int{2, 0, 1} {
				w.end(dead)
				w = w.of(without(dead, len(w.comms))...)
				if i == 1 {
					errs := w.try(func(rank int) error { return run(w.comms[rank], allReduce(t, 9)) })
					for rank, err := range errs {
						if !errors.Is(err, ErrPeerFailed) {
							t.Fatalf("rank %d: %v", rank, err)
						}
					}
				}
				w.each(func(rank int) error { return w.comms[rank].Recover(soon(t)) })
				checkMembers(t, w)
				if n := w.comms[0].Epoch(); n != uint32(i+1) {
					t.Errorf("epoch %d after %d changes", n, i+1)
				}
			}
		})
	}
}

// Where nothing has failed all go on together.
func TestRecoverWhole(t *testing.T) {
	w := newWorld(t, "shm", 3, time.Minute)
	everything(t, w)
	w.each(func(rank int) error { return w.comms[rank].Recover(soon(t)) })
	checkMembers(t, w)
}

// A rank that waits hears that another revokes.
func TestRevoke(t *testing.T) {
	w := newWorld(t, "tcp", 3, time.Minute)
	everything(t, w)
	w.each(func(rank int) error {
		if rank == 1 {
			w.comms[rank].Revoke("it is tried")
		} else if err := run(w.comms[rank], allReduce(t, 9)); !errors.Is(err, ErrRevoked) {
			return fmt.Errorf("it ended with %v", err)
		}
		return w.comms[rank].Recover(soon(t))
	})
	checkMembers(t, w)
}

func TestShrink(t *testing.T) {
	for _, transport := range transports {
		t.Run(transport, func(t *testing.T) {
			shrink := func(left *world, exclude ...int) *world {
				shrunk := left.of(without(-1, len(left.comms))...)
				left.each(func(rank int) (err error) {
					shrunk.comms[rank], err = left.comms[rank].Shrink(soon(t), ShrinkOptions{Exclude: exclude})
					return err
				})
				t.Cleanup(shrunk.close)
				checkMembers(t, shrunk)
				return shrunk
			}
			w := newWorld(t, transport, 4, time.Minute)
			everything(t, w)
			three := shrink(w.of(0, 2, 3), 1)
			everything(t, w) // the old one is as it was
			three.end(0)
			shrink(three.of(1, 2))
		})
	}
}

func TestShrinkRefuses(t *testing.T) {
	w := newWorld(t, "shm", 2, time.Minute)
	for _, rank := range []int{-1, 2, 0} {
		_, err := w.comms[0].Shrink(soon(t), ShrinkOptions{Exclude: []int{rank}})
		if !errors.Is(err, ErrInvalidArgument) {
			t.Errorf("exclude %d: %v", rank, err)
		}
	}
	everything(t, w)
}

// The end of a communicator ends what waits in it for the others.
func TestDestroyEndsAgreements(t *testing.T) {
	calls := map[string]func(*Comm) error{
		"recover": func(c *Comm) error { return c.Recover(context.Background()) },
		"agree": func(c *Comm) error {
			_, err := c.Agree(context.Background(), 1)
			return err
		},
		"shrink": func(c *Comm) error {
			_, err := c.Shrink(context.Background(), ShrinkOptions{})
			return err
		},
	}
	for name, call := range calls {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "shm", 2, time.Minute)
			w.comms[0].Revoke("it is tried") // Recover meets the others first where nothing has failed
			ended := make(chan error, 1)
			go func() { ended <- call(w.comms[0]) }()
			polltest.Until(t, "the call waits for others", func() bool { return decides(w.comms[0]) })
			w.comms[0].Destroy()
			select {
			case err := <-ended:
				if err == nil {
					t.Error("it has succeeded alone")
				}
			case <-time.After(patience):
				t.Error("it goes on")
			}
		})
	}
}

// All members get the flags that all have set: before a failure and after one.
func TestAgree(t *testing.T) {
	w := newWorld(t, "shm", 3, time.Minute)
	agree := func(w *world, want uint64) {
		t.Helper()
		w.each(func(rank int) error {
			flags, err := w.comms[rank].Agree(soon(t), 0b100|1<<rank|0b11)
			if err == nil && flags != want {
				err = fmt.Errorf("flags %b, not %b", flags, want)
			}
			return err
		})
	}
	agree(w, 0b111)
	agree(w, 0b111)
	everything(t, w)
	w.end(1)
	w.comms[0].Revoke("it is tried")
	agree(w.of(0, 2), 0b111)
	left := w.of(0, 2)
	left.each(func(rank int) error { return left.comms[rank].Recover(soon(t)) })
	checkMembers(t, left)
}

func TestDifferentMotions(t *testing.T) {
	w := newWorld(t, "shm", 3, time.Minute)
	for rank, err := range w.try(func(rank int) error {
		if rank == 1 {
			_, err := w.comms[rank].Agree(soon(t), 0)
			return err
		}
		_, err := w.comms[rank].Shrink(soon(t), ShrinkOptions{})
		return err
	}) {
		var e *Error
		if !errors.As(err, &e) || !errors.Is(err, ErrMismatch) || e.Calls[0] != "shrink" ||
			e.Calls[1] != "agree" {
			t.Errorf("rank %d: %v", rank, err)
		}
	}
	everything(t, w)
}

// A rank that does not come is left out, and is told so when it comes.
func TestExcluded(t *testing.T) {
	for _, late := range []int{0, 2} {
		w := newWorld(t, "tcp", 3, time.Minute)
		everything(t, w)
		w.comms[1].Revoke("it is tried")
		left := w.of(without(late, 3)...)
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		left.each(func(rank int) error { return left.comms[rank].Recover(ctx) })
		if err := w.comms[late].Recover(soon(t)); !errors.Is(err, ErrExcluded) {
			t.Errorf("rank %d comes too late: %v", late, err)
		}
		checkMembers(t, left)
	}
}

// Of two that do not reach each other the one that has the lower rank goes on.
func TestNoQuorum(t *testing.T) {
	w := newWorld(t, "tcp", 2, time.Minute)
	everything(t, w)
	w.comms[1].Revoke("it is tried")
	for range 2 {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		if err := w.comms[1].Recover(ctx); !errors.Is(err, ErrNoQuorum) {
			t.Errorf("rank 1 alone: %v", err)
		}
		cancel()
	}
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Second)
	defer cancel()
	if err := w.comms[0].Recover(ctx); err != nil {
		t.Errorf("rank 0: %v", err)
	}
	checkMembers(t, w.of(0))
}

// Settings of who goes on are the same on all ranks, and hold.
func TestLeastSize(t *testing.T) {
	w := newWorldOf(t, "shm", 3, Config{Timeout: time.Minute, MinSize: 3})
	w.end(1)
	left := w.of(0, 2)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	for rank, err := range left.try(func(rank int) error { return left.comms[rank].Recover(ctx) }) {
		if !errors.Is(err, ErrNoQuorum) {
			t.Errorf("rank %d: %v", rank, err)
		}
	}
}

// checkSettled checks that nothing is kept of epochs before, and that members need no longer be of
// those who began the present one.
func checkSettled(t *testing.T, w *world) {
	t.Helper()
	for rank, c := range w.comms {
		polltest.Until(t, "no epoch lingers", func() bool {
			return !lingers(w.runtimes[rank])
		})
		polltest.Until(t, "the epoch is settled", func() bool {
			return isStable(c)
		})
	}
}

// Nothing is kept of epochs before once all are known to have gone on, whatever they have decided.
func TestArchivesClose(t *testing.T) {
	w := newWorld(t, "tcp", 3, time.Minute)
	everything(t, w)
	w.each(func(rank int) error { _, err := w.comms[rank].Agree(soon(t), 1); return err })
	w.end(1)
	left := w.of(0, 2)
	left.each(func(rank int) error { return left.comms[rank].Recover(soon(t)) })
	checkSettled(t, left)
	left.each(func(rank int) error { return left.comms[rank].Renew(soon(t)) })
	checkSettled(t, left)
}

// A member takes part in a decision, and ends before it has begun the epoch that was decided.
func TestEndsBeforeTheNextEpoch(t *testing.T) {
	w := newWorld(t, "tcp", 3, time.Minute)
	everything(t, w)
	w.comms[1].Revoke("it is tried")
	w.each(func(rank int) error {
		if rank == 1 {
			_, err := now(w.comms[1]).Decide(soon(t), agreement.Proposal{Operation: "recover"}, nil)
			polltest.Until(t, "the others have begun", func() bool {
				return w.comms[0].Epoch() == 1 && w.comms[2].Epoch() == 1
			})
			w.runtimes[1].Close()
			return err
		}
		return w.comms[rank].Recover(soon(t))
	})
	left := w.of(0, 2)
	checkSettled(t, left)
	checkMembers(t, left)
}

// One that was excluded is told so when it comes nevertheless, though the others have gone on.
func TestExcludedComes(t *testing.T) {
	w := newWorld(t, "shm", 3, time.Minute)
	everything(t, w)
	left := w.of(0, 1)
	left.each(func(rank int) error {
		_, err := left.comms[rank].Shrink(soon(t), ShrinkOptions{Exclude: []int{2}})
		return err
	})
	left.comms[0].Revoke("it is tried")
	left.each(func(rank int) error { return left.comms[rank].Recover(soon(t)) })
	checkMembers(t, left)
	if err := w.comms[2].Recover(soon(t)); !errors.Is(err, ErrExcluded) {
		t.Errorf("the one that is excluded: %v", err)
	}
}

// Where the members recover by themselves and somebody revokes what they begin, the callers of
// Recover come to it, each once.
func TestRevokeWhileMembersRecover(t *testing.T) {
	for i := range 20 {
		config := Config{Timeout: 10 * time.Second, Recovery: RecoverySurvivors}
		w := newWorldOf(t, "shm", 3, config)
		ended := make(chan struct{})
		go func() {
			w.endFor(0, 1)
			close(ended)
		}()
		left := w.of(0, 2)
		left.each(func(rank int) error {
			c := left.comms[rank]
			for {
				if err := gather(c, 0); err != nil {
					time.Sleep(time.Duration(i*rank) * 20 * time.Microsecond)
					c.Revoke("it is tried")
					return c.Recover(soon(t))
				}
			}
		})
		<-ended
		if n := left.comms[0].Size(); n != 2 {
			t.Fatalf("%d members", n)
		}
	}
}
