package core

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/goccl/goccl/core/agreement"
	"github.com/goccl/goccl/core/epoch"
	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/internal/polltest"
	"github.com/goccl/goccl/core/plan"
	"github.com/goccl/goccl/core/reduce"
	"github.com/goccl/goccl/core/work"
)

// sumOf is an allreduce of values that depend on the rank, in place or not.
func sumOf(t testing.TB, identity, n int, inPlace bool) (Operation, []int32) {
	o := allReduce(t, n)
	in := buffer(t, n)
	fill(in, identity, 0)
	o.In[0], o.Op = ptr(in), reduce.Sum
	out := in
	if !inPlace {
		out = buffer(t, n)
	}
	o.Out[0] = ptr(out)
	return o, out
}

func sumIs(out []int32, identities []int) error {
	return expect("the sum", out, func(i int) (sum int32) {
		for _, r := range identities {
			sum += value(r, 0, i)
		}
		return sum
	})
}

// A member dies before it has begun an allreduce that the others wait in: they complete it among
// themselves, whether it was begun in C or in Go, and whatever its length; and what they call later
// comes after it.
func TestAllReduceCompletes(t *testing.T) {
	for _, transport := range transports {
		for _, n := range []int{1, 5000, 200_000} {
			for _, inPlace := range []bool{false, true} {
				t.Run(fmt.Sprint(transport, n, inPlace), func(t *testing.T) {
					w := newWorldOf(t, transport, 4, Config{Timeout: 20 * time.Second,
						Recovery: RecoverySurvivors})
					everything(t, w)
					left := w.of(0, 1, 3)
					ids := []int{0, 1, 3}
					w.beside.Go(func() { w.endFor(0, 2) })
					left.each(func(rank int) error {
						op, out := sumOf(t, ids[rank], n, inPlace)
						k, err := left.comms[rank].Start(CallOptions{WaitSoon: rank > 0}, op)
						if err != nil {
							return err
						}
						if _, err := k.Wait(-1); err != nil {
							return err
						}
						if got := k.Contributors(); got != 3 {
							return fmt.Errorf("%d contributors", got)
						}
						return sumIs(out, ids)
					})
					checkMembers(t, left)
				})
			}
		}
	}
}

// A rank that a death keeps from ending an allreduce gets the result that another one has, with the
// contribution of the dead one.
func TestResultIsFetched(t *testing.T) {
	for _, transport := range transports {
		t.Run(transport, func(t *testing.T) {
			w := newWorldOf(t, transport, 3, Config{Timeout: 20 * time.Second,
				Recovery: RecoverySurvivors})
			everything(t, w)
			letGo := holdQueue(t, w.comms[0])
			outs, works := make([][]int32, 3), make([]*Work, 3)
			for rank, c := range w.comms {
				var op Operation
				op, outs[rank] = sumOf(t, rank, 10, true)
				var err error
				if works[rank], err = c.Start(CallOptions{}, op); err != nil {
					t.Fatal(err)
				}
				if rank == 0 { // and takes nothing any more
					sendsItsPart(t, c, works[0])
				}
			}
			if _, err := works[2].Wait(-1); err != nil {
				t.Fatal(err)
			}
			if works[0].Ended() {
				t.Fatal("rank 0 has ended the collective, too")
			}
			w.endFor(2, 1)
			op, next := sumOf(t, 2, 20, true) // it misses rank 1
			later, err := w.comms[2].Start(CallOptions{}, op)
			if err != nil {
				t.Fatal(err)
			}
			awaitFailure(w.comms[0])
			letGo()
			op, last := sumOf(t, 0, 20, true)
			if err := run(w.comms[0], op); err != nil {
				t.Fatal(err)
			}
			if _, err := later.Wait(-1); err != nil {
				t.Fatal(err)
			}
			for _, out := range [][]int32{next, last} {
				if err := sumIs(out, []int{0, 2}); err != nil {
					t.Error(err)
				}
			}
			for _, rank := range []int{0, 2} {
				if _, err := works[rank].Wait(-1); err != nil {
					t.Fatalf("rank %d: %v", rank, err)
				}
				if n := works[rank].Contributors(); n != 3 {
					t.Errorf("rank %d: %d contributors", rank, n)
				}
				if err := sumIs(outs[rank], []int{0, 1, 2}); err != nil {
					t.Errorf("rank %d: %v", rank, err)
				}
			}
		})
	}
}

// Of a reduction only the root has a result: where another rank has sent its part, and a third one
// dies before it has, all run it once more.
func TestReduceCompletes(t *testing.T) {
	for _, transport := range transports {
		t.Run(transport, func(t *testing.T) {
			w := newWorldOf(t, transport, 4, Config{Timeout: 20 * time.Second,
				Recovery: RecoverySurvivors})
			everything(t, w)
			left, ids := w.of(0, 1, 3), []int{0, 1, 3}
			out, works := buffer(t, 10), make([]*Work, 3)
			letGo := holdQueue(t, w.comms[3])
			for rank, c := range left.comms {
				in := buffer(t, 10)
				fill(in, ids[rank], 0)
				op := allReduceOf(in, in)
				op.Collective, op.Out[0] = plan.Reduce, nil
				if rank == 0 {
					op.Out[0] = ptr(out)
				}
				var err error
				if works[rank], err = c.Start(CallOptions{}, op); err != nil {
					t.Fatal(err)
				}
			}
			comesToPart(t, w.comms[3], works[2], 1) // it has sent its part of the reduction
			w.endFor(0, 2)
			awaitFailure(w.comms[3])
			letGo()
			left.each(func(rank int) error {
				_, err := works[rank].Wait(-1)
				return err
			})
			if err := sumIs(out, ids); err != nil {
				t.Error(err)
			}
			checkMembers(t, left)
		})
	}
}

// A rank may have the data of a broadcast before another one has called it. Where a third one dies
// then, all get the data.
func TestBroadcastCompletes(t *testing.T) {
	for _, transport := range transports {
		t.Run(transport, func(t *testing.T) {
			w := newWorldOf(t, transport, 4, Config{Timeout: 20 * time.Second,
				Recovery: RecoverySurvivors})
			everything(t, w)
			left := w.of(0, 1, 3)
			outs, works := make([][]int32, 3), make([]*Work, 3)
			start := func(rank int) {
				outs[rank] = buffer(t, 10)
				fill(outs[rank], rank, 0)
				op := allReduceOf(outs[rank], outs[rank])
				op.Collective = plan.Broadcast
				var err error
				if works[rank], err = left.comms[rank].Start(CallOptions{}, op); err != nil {
					t.Fatal(err)
				}
			}
			letGo := holdQueue(t, w.comms[1])
			start(0)
			start(1)
			comesToPart(t, w.comms[1], works[1], 1) // it has got the data
			w.failFor(0, 2)
			awaitFailure(w.comms[1])
			letGo()
			start(2)
			left.each(func(rank int) error {
				_, err := works[rank].Wait(-1)
				return errors.Join(err, expect("the data", outs[rank], func(i int) int32 {
					return value(0, 0, i)
				}))
			})
			checkMembers(t, left)
		})
	}
}

// A call may be held up right after its work has been queued, while a member dies. The recovery
// waits for it: the work is suspended, too.
func TestStartIsHeldUp(t *testing.T) {
	w := newWorldOf(t, "tcp", 3, Config{Timeout: 20 * time.Second, Recovery: RecoverySurvivors})
	everything(t, w)
	left, e := w.of(0, 1), now(w.comms[0])
	op, out := sumOf(t, 0, 10, true)
	starting := private[sync.WaitGroup](w.comms[0], "starting")
	starting.Add(1)
	queue := queueOf(w.comms[0])
	k := queued(t, w.comms[0], 20*time.Second, &op, func(*work.Part) {})
	w.failFor(0, 2)
	left.each(func(rank int) error {
		if rank == 0 {
			polltest.Until(t, "the part has ended", queue.Empty)
			begun := func() bool { return e.Decisions().Waits() }
			for late := time.Now().Add(50 * time.Millisecond); time.Now().Before(late); {
				if begun() {
					return errors.New("the recovery has not waited for the call")
				}
				runtime.Gosched()
			}
			k.Started()
			starting.Done()
			_, err := k.Wait(-1)
			return errors.Join(err, sumIs(out, []int{0, 1}))
		}
		op, out := sumOf(t, 1, 10, true)
		return errors.Join(run(left.comms[1], op), sumIs(out, []int{0, 1}))
	})
	checkMembers(t, left)
}

// A gather of a split that has begun in an epoch is made in no other one.
func TestSplitBesideRecovery(t *testing.T) {
	w := newWorldOf(t, "tcp", 3, Config{Timeout: 20 * time.Second, Recovery: RecoverySurvivors})
	everything(t, w)
	left, before := w.of(0, 1), now(w.comms[0])
	w.beside.Go(func() { w.failFor(0, 2) })
	left.each(func(rank int) error {
		op, out := sumOf(t, rank, 10, true)
		return errors.Join(run(left.comms[rank], op), sumIs(out, []int{0, 1}))
	})
	if _, err := w.comms[0].gatherIn(soon(t), before, 1); !errors.Is(err, ErrRevoked) {
		t.Errorf("a gather of the epoch before: %v", err)
	}
	left.each(func(rank int) error {
		child, err := left.comms[rank].Split(soon(t), 0, -rank)
		if err != nil {
			return err
		}
		defer child.Destroy()
		op, out := sumOf(t, rank, 10, true)
		return errors.Join(run(child, op), sumIs(out, []int{0, 1}))
	})
	checkMembers(t, left)
}

// What is called while members recover waits for that alone: not for a call of another thread that
// waits for ranks which come to that later. Where the recovery fails it fails by the same cause.
func TestStartWaitsForRecovery(t *testing.T) {
	calls := map[string]func(*Comm) error{
		"start": func(c *Comm) error { _, err := c.Start(CallOptions{}, allReduce(t, 1)); return err },
		"split": func(c *Comm) error { _, err := c.gatherIn(soon(t), now(c), 1); return err },
	}
	for name, call := range calls {
		for _, cause := range []error{nil, fault.ErrPeerFailed} {
			t.Run(fmt.Sprint(name, " ", cause), func(t *testing.T) {
				w := newWorldOf(t, "tcp", 2, Config{Recovery: RecoverySurvivors})
				c := w.comms[0]
				c.shared.Suspended.Begin(func(error) {})
				done := make(chan error, 1)
				go func() { done <- call(c) }()
				polltest.Until(t, "the call waits", func() bool { return anyBlockedIn("(*Comm).awaitNext(") })
				c.changing.Lock()
				defer c.changing.Unlock()
				if cause != nil {
					now(c).Fail(now(c).Members.Errorf(cause, "test"), false)
				}
				now(c).EndRecovery(true)
				if name == "split" && cause == nil {
					polltest.Until(t, "it waits for the other rank", func() bool { return !queueOf(c).Empty() })
					now(c).Fail(now(c).Members.Errorf(fault.ErrAborted, "test"), false)
					cause = fault.ErrAborted
				}
				select {
				case err := <-done:
					if !errors.Is(err, cause) {
						t.Error(err)
					}
				case <-time.After(patience):
					t.Error("it still waits")
				}
			})
		}
	}
}

// A second member dies while the first one's collective is completed: before or after it has passed
// the result on. The others pass on what one of them has, and else run the collective again; in any
// case all get the same.
func TestSecondDeath(t *testing.T) {
	phases := []string{"decided", "begun", "met", "passed", "confirmed"}
	for _, transport := range transports {
		if testing.Short() && transport != "tcp" {
			continue
		}
		for _, test := range []struct {
			name   string
			has    []int // those that have the result
			victim int
		}{
			{"the only one that has it", []int{1}, 1},
			{"one of two that have it", []int{1, 2}, 1},
			{"one that lacks it", []int{1}, 2},
		} {
			// What follows from who has the result package completion decides, and tests.
			if transport != "tcp" && !slices.Equal(test.has, []int{test.victim}) {
				continue
			}
			for i, phase := range phases {
				t.Run(fmt.Sprint(transport, " ", test.name, " ", phase), func(t *testing.T) {
					secondDeath(t, transport, test.has, test.victim, i)
				})
			}
		}
	}
}

// secondDeath has rank 4 of 5 die, and then the victim, which takes so many steps of the recovery.
func secondDeath(t *testing.T, kind string, has []int, victim, steps int) {
	const dead = 4
	w := newWorldOf(t, kind, 5, Config{Timeout: 20 * time.Second, Recovery: RecoverySurvivors})
	everything(t, w)
	outs, works, letGo := make([][]int32, 5), make([]*Work, 5), make([]func(), 5)
	lacks := func(rank int) bool { return rank != dead && !slices.Contains(has, rank) }
	for rank, c := range w.comms {
		if lacks(rank) {
			letGo[rank] = holdQueue(t, c)
		}
		var op Operation
		op, outs[rank] = sumOf(t, rank, 10, rank%2 == 0)
		var err error
		if works[rank], err = c.Start(CallOptions{}, op); err != nil {
			t.Fatal(err)
		}
		if lacks(rank) { // and takes nothing any more
			sendsItsPart(t, c, works[rank])
		}
	}
	for _, rank := range has {
		if _, err := works[rank].Wait(-1); err != nil {
			t.Fatal(err)
		}
	}
	walk := w.walkAlone(victim)
	w.failFor(0, dead)
	for rank, c := range w.comms[:dead] {
		awaitFailure(c)
		if lacks(rank) {
			letGo[rank]()
		}
	}
	walk(steps)
	ids := slices.DeleteFunc([]int{0, 1, 2, 3}, func(rank int) bool { return rank == victim })
	left := w.of(ids...)
	for _, rank := range ids {
		polltest.Until(t, "a survivor is in the next epoch", func() bool {
			return w.comms[rank].Epoch() > 0
		})
	}
	w.failFor(0, victim)
	all := [][]int32{}
	for _, rank := range ids {
		if _, err := works[rank].Wait(-1); err != nil {
			t.Fatalf("rank %d: %v", rank, err)
		}
		all = append(all, outs[rank])
		// The victim may have passed the result on when it dies.
		full := sumIs(outs[rank], []int{0, 1, 2, 3, 4})
		if err := sumIs(outs[rank], ids); err != nil && full != nil {
			t.Errorf("rank %d: %v", rank, err)
		}
		known := slices.ContainsFunc(has, func(r int) bool { return r != victim })
		if (known || steps > 3) && full != nil || !known && steps < 3 && full == nil {
			t.Errorf("rank %d: %v", rank, full)
		}
		want := 5
		if full != nil {
			want = len(ids)
		}
		if n := works[rank].Contributors(); n != want {
			t.Errorf("rank %d: %d contributors, not %d", rank, n, want)
		}
		if !slices.Equal(all[0], outs[rank]) {
			t.Errorf("rank %d has another result", rank)
		}
	}
	left.each(func(rank int) error { // the victim may have died after the recovery
		op, out := sumOf(t, ids[rank], 20, true)
		return errors.Join(run(left.comms[rank], op), sumIs(out, ids))
	})
	checkMembers(t, left)
}

// A second member dies when a rank is about to run suspended collectives once more, and others have
// begun to. They keep their order, and complete.
func TestDeathBeforeRerun(t *testing.T) {
	for _, transport := range transports {
		w := newWorldOf(t, transport, 4, Config{Timeout: 20 * time.Second,
			Recovery: RecoverySurvivors})
		everything(t, w)
		outs, works := make([][2][]int32, 4), make([][2]*Work, 4)
		for rank, c := range w.comms[:3] {
			for i := range 2 {
				var op Operation
				var err error
				op, outs[rank][i] = sumOf(t, rank, 10+i, rank%2 == 0)
				if works[rank][i], err = c.Start(CallOptions{}, op); err != nil {
					t.Fatal(err)
				}
			}
		}
		walk := w.walkAlone(0)
		w.failFor(0, 3)
		for _, c := range w.comms[:3] {
			awaitFailure(c)
		}
		walk(2) // it meets the others, which have the rest before them
		c := w.comms[0]
		polltest.Until(t, "another rank runs the collectives again", func() bool {
			return now(w.comms[1]).Number() == now(c).Number() && !queueOf(w.comms[1]).Empty()
		})
		w.failFor(1, 2)
		awaitFailure(c)
		c.changing.Lock()
		err := c.complete(soon(t), now(c))
		c.changing.Unlock()
		if err != nil {
			t.Fatal(err)
		}
		go c.recoverAutomatically(soon(t))
		for rank := range 2 {
			for i, k := range works[rank] {
				if _, err := k.Wait(-1); err != nil {
					t.Fatalf("%s: rank %d: %v", transport, rank, err)
				}
				if err := sumIs(outs[rank][i], []int{0, 1}); err != nil {
					t.Errorf("%s: rank %d: %v", transport, rank, err)
				}
			}
		}
		checkMembers(t, w.of(0, 1))
	}
}

// failFor has a rank notice that another one has ended, and all fail.
func (w *world) failFor(peer, rank int) {
	e := now(w.comms[peer])
	w.endFor(peer, rank)
	e.Fail(e.Members.Errorf(ErrPeerFailed, "%s has ended", e.Members.Names(rank)).Blaming(rank), true)
}

// passesOnly has a rank stay when it has passed results on.
type passesOnly struct{ epoch.Service }

var errStays = errors.New("it stays here")

func (passesOnly) Barrier(context.Context) error { return errStays }

// walkAlone has a rank not recover by itself, but walk through a recovery by so many steps, and
// stay there.
func (w *world) walkAlone(rank int) (walk func(steps int)) {
	c := w.comms[rank]
	c.shared.Suspended.Begin(func(error) {})
	return func(steps int) {
		w.t.Helper()
		c.changing.Lock()
		defer c.changing.Unlock()
		ctx := soon(w.t)
		for i, step := range []func() error{
			func() error {
				return c.decideSuccessor(ctx, agreement.Proposal{Operation: "recover", Completes: true})
			},
			c.beginNext,
			func() error { return now(c).Meet(ctx) },
			func() error {
				err := c.shared.Suspended.Complete(ctx, passesOnly{now(c).Service()}, c.Rank(), nil)
				if errors.Is(err, errStays) {
					return nil
				}
				return err
			},
			func() error { return now(c).Service().Barrier(ctx) },
		} {
			if err := step(); err != nil {
				w.t.Fatalf("step %d: %v", i, err)
			}
			if i == steps {
				return
			}
		}
	}
}

// A process that waits to join is let in by a call, not by members that recover by themselves: it
// would know nothing of the collectives that they complete.
func TestCompletesWithoutNewcomers(t *testing.T) {
	config := joinConfigOf("tcp")
	config.Recovery = RecoverySurvivors
	w := newWorldOf(t, "tcp", 3, config)
	everything(t, w)
	left := w.of(1, 2)
	joined := left.joining(config, left.handles())
	polltest.Until(t, "a process waits", left.someWait)
	w.beside.Go(func() { w.endFor(1, 0) })
	left.each(func(rank int) error {
		op, out := sumOf(t, rank+1, 1000, true)
		if err := run(left.comms[rank], op); err != nil {
			return err
		}
		return sumIs(out, []int{1, 2})
	})
	checkMembers(t, left)
	left.each(func(rank int) error { return left.comms[rank].Recover(soon(t)) })
	checkMembers(t, joined())
}

// What a caller asks the members for comes after what they recover from by themselves: on those
// that have heard of the failure, and on those that have not.
func TestAsksAfterRecovery(t *testing.T) {
	for name, ask := range map[string]func(c *Comm) error{
		"agree": func(c *Comm) error {
			agreed, err := c.Agree(soon(t), 7)
			if err == nil && agreed != 7 {
				err = fmt.Errorf("%d were agreed", agreed)
			}
			return err
		},
		"recover": func(c *Comm) error { return c.Recover(soon(t)) },
		"shrink": func(c *Comm) error {
			child, err := c.Shrink(soon(t), ShrinkOptions{})
			if err == nil {
				child.Destroy()
			}
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			config := joinConfigOf("tcp")
			config.Recovery = RecoverySurvivors
			w := newWorldOf(t, "tcp", 4, config)
			everything(t, w)
			left := w.of(0, 1, 2)
			left.each(func(rank int) error {
				if rank == 0 {
					w.endFor(0, 3)
				}
				if err := ask(left.comms[rank]); err != nil {
					return err
				}
				op, out := sumOf(t, rank, 10, true)
				if err := run(left.comms[rank], op); err != nil {
					return err
				}
				return sumIs(out, []int{0, 1, 2})
			})
			checkMembers(t, left)
		})
	}
}

// Where too few members are left they do not recover by themselves: newcomers must be let in.
func TestTooFewToComplete(t *testing.T) {
	config := joinConfigOf("tcp")
	config.Recovery, config.MinSize = RecoverySurvivors, 3
	w := newWorldOf(t, "tcp", 3, config)
	everything(t, w)
	left := w.of(0, 1)
	w.beside.Go(func() { w.endFor(0, 2) })
	left.each(func(rank int) error {
		op, _ := sumOf(t, rank, 10, true)
		if err := run(left.comms[rank], op); !errors.Is(err, fault.ErrPeerFailed) {
			return fmt.Errorf("the allreduce gives %v", err)
		}
		return nil
	})
	joined := left.joining(config, left.handles())
	left.each(func(rank int) error { return left.comms[rank].Recover(soon(t)) })
	checkMembers(t, joined())
}

// Where one has failed for another reason before a member ended, the others complete nothing, and
// all come to Recover.
func TestRecoveryGivesUp(t *testing.T) {
	w := newWorldOf(t, "shm", 3, Config{Timeout: time.Minute, Recovery: RecoverySurvivors})
	now(w.comms[0]).Fail(fault.Errorf(fault.ErrTimeout, "it was late"), false)
	w.end(2)
	w = w.of(0, 1)
	w.each(func(rank int) error {
		c := w.comms[rank]
		if rank == 1 {
			if err := run(c, allReduce(t, 9)); !errors.Is(err, ErrRevoked) {
				return fmt.Errorf("it ended with %w", err)
			}
		}
		return c.Recover(soon(t))
	})
	checkMembers(t, w)
}
