package core

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/membership"
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
					go w.endFor(0, 2)
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
			holdQueue(w.comms[0])
			outs, works := make([][]int32, 3), make([]*Work, 3)
			for rank, c := range w.comms {
				var op Operation
				op, outs[rank] = sumOf(t, rank, 10, true)
				var err error
				if works[rank], err = c.Start(CallOptions{}, op); err != nil {
					t.Fatal(err)
				}
				if rank == 0 { // it sends its part, and takes nothing any more
					runHeldQueue(c, works[0], 20*time.Millisecond)
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
			letQueueGo(w.comms[0])
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

// Where another member dies before what is held has completed, the first decision on it stands: the
// numbers of its collectives mean nothing in the epoch between.
func TestHeldTwice(t *testing.T) {
	e := now(newWorldOf(t, "tcp", 4, Config{}).comms[0])
	c := &Comm{}
	first, second := &epoch{Comm: c, roster: e.roster}, &epoch{Comm: c, roster: e.roster}
	decide := func(e *epoch, size int, survivors []int, v verdict) {
		e.settleHeld(&decision{mine: progress{Finished: 1}, verdict: v,
			value: &membership.Value{Survivors: membership.NewSet(size, survivors...)}})
	}
	hold := func(sequence uint64, root int) *held {
		op := Operation{Collective: plan.Broadcast, Root: root}
		h := &held{Work: e.works.New(1, false), of: first, operations: []Operation{op}}
		h.Add(work.Part{Operation: &op, Message: plan.Message{Sequence: sequence}})
		c.held = append(c.held, h)
		return h
	}
	lost, fetched, again, rootless := hold(2, 3), hold(3, 3), hold(4, 3), hold(5, 2)
	decide(first, 4, []int{1, 2, 3}, verdict{Finished: 3, Fetch: []fetch{{result{3, 8}, 1}}})
	decide(second, 3, []int{0, 2}, verdict{Finished: 9})
	if !errors.Is(lost.cause, fault.ErrRevoked) || !errors.Is(fetched.cause, fault.ErrRevoked) ||
		!errors.Is(rootless.cause, fault.ErrPeerFailed) {
		t.Errorf("the causes are %v, %v and %v", lost.cause, fetched.cause, rootless.cause)
	}
	if again.cause != nil || len(again.again) != 1 || again.again[0].Root != 1 {
		t.Errorf("what runs again is %v, %v", again.again, again.cause)
	}
}

// Of several operations in place that are one work each input is copied.
func TestInputsOfAllAreSaved(t *testing.T) {
	e := now(newWorldOf(t, "tcp", 2, Config{Recovery: RecoverySurvivors}).comms[0])
	first, _ := sumOf(t, 0, 10, true)
	second, _ := sumOf(t, 1, 10, true)
	h := e.holdOnFailure(e.works.New(2, false), []Operation{first, second}, nil)
	if len(h.before) != 2 || h.before[1].at != second.In[0] {
		t.Errorf("copied are %v", h.before)
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
	until(t, "a process waits", left.someWait)
	go w.endFor(1, 0)
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
	go w.endFor(0, 2)
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
