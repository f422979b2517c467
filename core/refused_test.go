package core

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/goccl/goccl/core/internal/polltest"
	"github.com/goccl/goccl/core/order"
	"github.com/goccl/goccl/core/plan"
	"github.com/goccl/goccl/core/trace"
	"github.com/goccl/goccl/core/transport"
)

// badRoot is a call that every rank refuses.
func badRoot(t testing.TB) Operation { return broadcast(t, 8, 77) }

// refuse makes a bad call, which must be refused for its argument.
func refuse(c *Comm, operations ...Operation) error {
	w, err := c.Start(CallOptions{}, operations...)
	if w != nil || !errors.Is(err, ErrInvalidArgument) ||
		!strings.Contains(err.Error(), "root is 77") {
		return fmt.Errorf("the bad call gave %v, %v", w, err)
	}
	return nil
}

// batch starts operations as one work and waits for it.
func batch(c *Comm, operations ...Operation) error {
	w, err := c.Start(CallOptions{}, operations...)
	if err != nil {
		return err
	}
	_, err = w.Wait(-1)
	return err
}

// tells checks an error that must tell what some rank was refused at a place in the order.
func tells(t *testing.T, err error, sequence int, refusing ...int) {
	t.Helper()
	says := func(rank int) bool {
		return err != nil && strings.Contains(err.Error(),
			"the call of "+named(rank)+" was refused: broadcast: root is 77, allowed are 0 to")
	}
	if !errors.Is(err, ErrMismatch) || !strings.Contains(err.Error(),
		fmt.Sprintf("mismatch at #%d: rank ", sequence)) || !slices.ContainsFunc(refusing, says) {
		t.Errorf("want that one of ranks %v was refused at #%d, got: %v", refusing, sequence, err)
	}
}

// atOnce fails a test that took so long that a timeout must have ended it.
func atOnce(t *testing.T) func() {
	began := time.Now()
	return func() {
		t.Helper()
		if took := time.Since(began); took > 40*time.Second {
			t.Errorf("it took %v", took)
		}
	}
}

// Some ranks are refused, the others make a good call: before it, after it, and while it waits; on
// connections that exist and on such that do not. All ranks fail, and say who was refused what.
func TestRefusedOnSomeRanks(t *testing.T) {
	calls := map[string]func(testing.TB) Operation{
		"allreduce":       func(t testing.TB) Operation { return allReduce(t, 8) },
		"large allreduce": func(t testing.TB) Operation { return allReduce(t, 1_000_000) },
		"broadcast":       func(t testing.TB) Operation { return broadcast(t, 8, 0) },
		"barrier":         func(testing.TB) Operation { return Operation{Collective: plan.Barrier} },
		"monitored barrier": func(testing.TB) Operation {
			return Operation{Collective: plan.MonitoredBarrier}
		},
	}
	for _, tr := range transports {
		for _, size := range []int{2, 3, 5} {
			if size != 3 && (tr == "mem" || tr == "verbs") { // as shm and tcp tell it
				continue
			}
			for name, good := range calls {
				for _, when := range []string{"first", "last", "at once"} {
					for _, warm := range []bool{false, true} {
						t.Run(fmt.Sprintf("%s/%d/%s/%s/warm=%v", tr, size, name, when, warm), func(t *testing.T) {
							refusing := []int{size - 1}
							if size == 5 {
								refusing = []int{0, 3}
							}
							refusedSome(t, tr, size, good, when, warm, refusing)
						})
					}
				}
			}
		}
	}
}

func refusedSome(t *testing.T, tr string, size int, good func(testing.TB) Operation, when string,
	warm bool, refusing []int) {
	w := newWorld(t, tr, size, time.Minute)
	sequence := 1
	if warm {
		sequence = 2
		w.each(func(rank int) error { return run(w.comms[rank], allReduce(t, 8)) })
	}
	defer atOnce(t)()
	refused := make(chan struct{}) // closed when the refused calls have been made
	var started sync.WaitGroup     // the good ones
	started.Add(size - len(refusing))
	errs := w.try(func(rank int) error {
		c := w.comms[rank]
		if slices.Contains(refusing, rank) {
			if when == "last" {
				started.Wait()
			}
			err := refuse(c, badRoot(t))
			if when == "first" && rank == refusing[0] {
				close(refused)
			}
			if err != nil {
				return err
			}
			// It learns what came of it, without a call of its own.
			<-worksOf(c).Context.Done()
			return c.Err()
		}
		switch when {
		case "first":
			<-refused
			polltest.Until(t, "the refusal is known",
				func() bool { return w.announced(rank, refusing[0], uint64(sequence)) || c.Err() != nil })
		case "last":
			work, err := c.Start(CallOptions{}, good(t))
			started.Done()
			if err != nil {
				return err
			}
			_, err = work.Wait(-1)
			return err
		}
		return run(c, good(t))
	})
	for rank, err := range errs {
		if err == nil && good(t).Collective == plan.Broadcast {
			// It does not concern all ranks: one may have got all that it needed.
			<-worksOf(w.comms[rank]).Context.Done()
			err = w.comms[rank].Err()
		}
		tells(t, err, sequence, refusing...)
		if err := run(w.comms[rank], good(t)); !errors.Is(err, ErrMismatch) {
			t.Errorf("rank %d, later: %v", rank, err)
		}
	}
}

// All ranks are refused, each as often as it likes to be before the others are: the communicator
// goes on, and keeps nothing.
func TestRefusedOnAllRanks(t *testing.T) {
	for _, tr := range transports {
		for _, size := range []int{1, 2, 3, 5} {
			t.Run(fmt.Sprintf("%s/%d", tr, size), func(t *testing.T) {
				w := newWorld(t, tr, size, time.Minute)
				for round := range 3 {
					w.each(func(rank int) error {
						for i := range 1000 {
							// Of two kinds, and never for the same argument: what matters is that all are
							// refused.
							op := badRoot(t)
							if i%100 == rank {
								op.Collective = plan.Gather
							}
							if _, err := w.comms[rank].Start(CallOptions{}, op); !errors.Is(err, ErrInvalidArgument) {
								return err
							}
						}
						return nil
					})
					w.each(func(rank int) error { return run(w.comms[rank], allReduce(t, 100)) })
					w.forgotten()
					for rank, c := range w.comms {
						if want := uint64(1001 * (round + 1)); c.Sequence() != want ||
							ownRefusals(c) > order.MaxRefusals {
							t.Errorf("rank %d: at #%d, want #%d; keeps %d refusals", rank, c.Sequence(), want,
								ownRefusals(c))
						}
					}
				}
			})
		}
	}
}

// A rank that was refused more often than its peer, which gets there only later.
func TestRefusedOnceTooOften(t *testing.T) {
	for _, tr := range transports {
		for _, n := range []int{1, 2, 500} {
			t.Run(fmt.Sprintf("%s/%d", tr, n), func(t *testing.T) {
				defer atOnce(t)()
				w := newWorld(t, tr, 2, time.Minute)
				for range n + 1 {
					if err := refuse(w.comms[0], badRoot(t)); err != nil {
						t.Fatal(err)
					}
				}
				polltest.Until(t, "all is told", func() bool { return w.announced(1, 0, uint64(n+1)) })
				for range n {
					if err := refuse(w.comms[1], badRoot(t)); err != nil {
						t.Fatal(err)
					}
				}
				tells(t, run(w.comms[1], allReduce(t, 8)), n+1, 0)
				<-worksOf(w.comms[0]).Context.Done()
				tells(t, w.comms[0].Err(), n+1, 0)
			})
		}
	}
}

// The refused rank goes on to its next call: that, and not the refusal, may be what its peers see
// first.
func TestRefusedAndWentOn(t *testing.T) {
	for _, tr := range transports {
		for range 20 {
			w := newWorld(t, tr, 3, time.Minute)
			w.each(func(rank int) error { return run(w.comms[rank], allReduce(t, 8)) })
			stop := atOnce(t)
			for _, err := range w.try(func(rank int) error {
				if rank == 1 {
					if err := refuse(w.comms[1], badRoot(t)); err != nil {
						return err
					}
				}
				return run(w.comms[rank], allReduce(t, 8))
			}) {
				tells(t, err, 2, 1)
			}
			stop()
		}
	}
}

// The peer has started so many calls since that the one which was refused here is not in its
// history.
func TestRefusedLongAgo(t *testing.T) {
	w := newWorld(t, "tcp", 2, time.Minute)
	defer atOnce(t)()
	var works []*Work
	for range trace.Collectives + order.MaxRefusals {
		work, err := w.comms[0].Start(CallOptions{}, allReduce(t, 8))
		if err != nil {
			t.Fatal(err)
		}
		works = append(works, work)
	}
	if err := refuse(w.comms[1], badRoot(t)); err != nil {
		t.Fatal(err)
	}
	for _, work := range works {
		_, err := work.Wait(-1)
		tells(t, err, 1, 1)
	}
}

// A refused batch takes one place, whatever its length; its sends are not made.
func TestRefusedBatch(t *testing.T) {
	send := func(t testing.TB, rank int) Operation {
		op := allReduce(t, 8)
		op.Collective, op.Root = plan.Send, 1-rank
		op.Out, op.OutCounts = nil, nil
		return op
	}
	for _, tr := range transports {
		t.Run(tr, func(t *testing.T) {
			defer atOnce(t)()
			w := newWorld(t, tr, 2, time.Minute)
			good := allReduce(t, 8)
			w.each(func(rank int) error {
				return refuse(w.comms[rank], slices.Concat([]Operation{send(t, rank)},
					slices.Repeat([]Operation{good}, rank), []Operation{badRoot(t), good})...)
			})
			w.each(func(rank int) error { return batch(w.comms[rank], allReduce(t, 8), allReduce(t, 9)) })
			w.forgotten()
			for rank, err := range w.try(func(rank int) error {
				if rank == 0 {
					if err := refuse(w.comms[0], allReduce(t, 8), badRoot(t)); err != nil {
						return err
					}
					<-worksOf(w.comms[0]).Context.Done()
					return w.comms[0].Err()
				}
				return batch(w.comms[rank], allReduce(t, 8), broadcast(t, 8, 0))
			}) {
				if !errors.Is(err, ErrMismatch) {
					t.Errorf("rank %d: %v", rank, err)
				}
				tells(t, err, 4, 0)
			}
		})
	}
}

// A refused send or receive concerns nobody else.
func TestRefusedPointToPoint(t *testing.T) {
	w := newWorld(t, "shm", 2, time.Minute)
	_, err := w.comms[0].Start(CallOptions{}, Operation{Collective: plan.Send, Root: 5},
		Operation{Collective: plan.Recv, Root: 5})
	if !errors.Is(err, ErrInvalidArgument) {
		t.Fatal(err)
	}
	w.each(func(rank int) error { return run(w.comms[rank], allReduce(t, 8)) })
	if n := w.comms[0].Sequence(); n != 1 {
		t.Errorf("at #%d, want #1", n)
	}
}

// A refused rank may leave at once: the others are told of the call, not of the end alone, even
// where no connection has been made yet.
func TestRefusedThenDestroyed(t *testing.T) {
	for _, tr := range transports {
		for _, warm := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/warm=%v", tr, warm), func(t *testing.T) {
				defer atOnce(t)()
				w := newWorld(t, tr, 3, time.Minute)
				if warm {
					w.each(func(rank int) error { return run(w.comms[rank], allReduce(t, 8)) })
				}
				for rank, err := range w.try(func(rank int) error {
					if rank == 2 {
						err := refuse(w.comms[2], badRoot(t))
						w.comms[2].Destroy()
						return err
					}
					return run(w.comms[rank], allReduce(t, 8))
				}) {
					if rank != 2 && (!errors.Is(err, ErrMismatch) || !strings.Contains(err.Error(), "rank 2")) {
						t.Errorf("rank %d: %v", rank, err)
					}
				}
			})
		}
	}
}

// What a peer announces is checked, and what it says is made printable.
func TestAnnouncementsOfAStranger(t *testing.T) {
	w := newWorld(t, "mem", 2, time.Minute)
	c := w.comms[0]
	refused := plan.Message{Collective: uint8(order.Refused), Root: -1, Sequence: 1, Count: 1}
	handlerOf(c).Control(1, transport.Header{Type: frameAnnounce},
		append(order.Encode(refused), "a\x00b\x1b[31m"...))
	err := run(c, allReduce(t, 8))
	if !errors.Is(err, ErrMismatch) || !strings.Contains(err.Error(), `refused: a\x00b\x1b[31m`) {
		t.Errorf("%q", err)
	}
}

// Parts of a batch that follow a failed monitored barrier are not run: who would wait for them is
// told.
func TestMonitoredBarrierFailsInABatch(t *testing.T) {
	w := newWorld(t, "shm", 3, time.Minute)
	defer atOnce(t)()
	both := func(rank int, timeout time.Duration) error {
		work, err := w.comms[rank].Start(CallOptions{Timeout: timeout},
			Operation{Collective: plan.MonitoredBarrier}, allReduce(t, 8))
		if err != nil {
			return err
		}
		_, err = work.Wait(-1)
		return err
	}
	failed := make(chan struct{})
	errs := w.try(func(rank int) error {
		switch rank {
		case 0:
			defer close(failed)
			return both(0, 300*time.Millisecond)
		case 1:
			return both(1, time.Minute)
		}
		<-failed
		return both(2, time.Minute)
	})
	for rank, err := range errs {
		if !errors.Is(err, ErrTimeout) || !strings.Contains(err.Error(), "Rank 2 failed to pass") {
			t.Errorf("rank %d: %v", rank, err)
		}
	}
}
