package suspended

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"
	"unsafe"

	"github.com/goccl/goccl/core/call"
	"github.com/goccl/goccl/core/completion"
	"github.com/goccl/goccl/core/exec"
	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/memory"
	"github.com/goccl/goccl/core/plan"
	"github.com/goccl/goccl/core/reduce"
	"github.com/goccl/goccl/core/work"
)

// rank is a rank's works in a group of four, of which one dies.
type rank struct {
	t *testing.T
	*Store
	of    Epoch
	works work.Group
}

func newRank(t *testing.T) *rank {
	members := fault.NewGroup("test", nil, []int{1, 2, 3, 4})
	r := &rank{t: t, Store: NewStore(new(memory.Images)), of: Epoch{Rank: 0, Members: &members}}
	r.works = work.Group{Spawn: func(f func()) { go f() }}
	r.works.Context = t.Context()
	return r
}

// start starts a work of some operations, whose collectives count from a number, and has them fail.
func (r *rank) start(first uint64, confirmed bool, operations ...call.Operation) *Work {
	r.t.Helper()
	n := len(operations)
	if confirmed {
		n++
	}
	w := r.works.New(n, false)
	for i := range operations {
		w.Add(work.Part{Operation: &operations[i], Message: plan.Message{Sequence: first + uint64(i)}})
	}
	if confirmed {
		w.Add(work.Part{Operation: &call.Operation{Collective: plan.Barrier},
			Message: plan.Message{Sequence: first + uint64(n) - 1}})
	}
	r.Guard(w, r.of, operations)
	w.SetTimeout(time.Minute)
	w.Started()
	died := r.of.Members.Errorf(fault.ErrPeerFailed, "rank 3 has ended")
	before := len(r.Store.works)
	for range n {
		w.End(died)
	}
	if len(r.Store.works) != before+1 {
		r.t.Fatal("the work is not suspended")
	}
	return r.Store.works[before]
}

// op is a collective of one block of eight bytes, out of place unless in is out.
func op(c plan.Collective, root int, in, out *uint64) call.Operation {
	return call.Operation{Collective: c, DType: reduce.Uint64, Root: root,
		In: []unsafe.Pointer{unsafe.Pointer(in)}, InCounts: []uint64{1},
		Out: []unsafe.Pointer{unsafe.Pointer(out)}, OutCounts: []uint64{1}}
}

// judge has the members decide, and goes on to the next epoch, with those that are left.
func (r *rank) judge(number uint32, finished uint64, j completion.Judgement, left ...int) {
	e := Ended{Epoch: Epoch{Number: number, Rank: r.of.Rank, Members: r.of.Members},
		Begun: 9, Finished: finished, Kept: func(uint64) ([]byte, bool) { return nil, false }}
	rank := func(old int) (int, bool) { i := slices.Index(left, old); return i, i >= 0 }
	r.Settle(e, &j, rank, r.Transfers(e, &j, rank))
}

func fetched(sequence uint64) completion.Fetch {
	return completion.Fetch{Result: completion.Result{Sequence: sequence, Bytes: 8}, From: 1}
}

// What a decision says of works is kept where another member dies before they have completed:
// numbers of collectives mean nothing in the epoch between.
func TestSuspendedTwice(t *testing.T) {
	r := newRank(t)
	r.Begin(func(error) {})
	hold := func(sequence uint64, c plan.Collective, root int, confirmed bool) *Work {
		return r.start(sequence, confirmed, op(c, root, new(uint64), new(uint64)))
	}
	lost := hold(2, plan.AllReduce, 0, false)
	confirmed := hold(3, plan.AllReduce, 0, true)
	kept, gone, here := hold(4, plan.Broadcast, 3, true), hold(5, plan.Broadcast, 3, true),
		hold(6, plan.Broadcast, 2, true)
	rootless := hold(7, plan.Broadcast, 2, true)
	undone := hold(8, plan.Broadcast, 3, true)
	late := hold(9, plan.Broadcast, 2, true)
	r.judge(0, 1, completion.Judgement{Begun: 9, Ended: 1, Finished: 7,
		Fetch: []completion.Fetch{fetched(4), fetched(5), fetched(6), fetched(7)}}, 1, 2, 3)
	for _, x := range r.transfers {
		x.has = x.Sequence == 6
	}
	r.judge(1, 1, completion.Judgement{Finished: 20, Fetch: []completion.Fetch{fetched(4)}}, 0, 2)
	for name, test := range map[string]struct {
		*Work
		outcome completion.Outcome
		root    int
		cause   error
	}{
		"lost":         {lost, completion.Lost, 0, fault.ErrRevoked},
		"confirmed":    {confirmed, completion.Reruns, 0, nil},
		"fetched":      {kept, completion.Awaits, 1, nil},
		"gone":         {gone, completion.Reruns, 1, nil},
		"here":         {here, completion.HasResult, 1, nil},
		"without root": {rootless, completion.Reruns, completion.NoRoot, fault.ErrPeerFailed},
		"not ended":    {undone, completion.Reruns, 1, nil},
		"root is lost": {late, completion.Reruns, completion.NoRoot, fault.ErrPeerFailed},
	} {
		op := &test.operations[0]
		cause := error(nil)
		if test.Work.cause != nil {
			cause = test.Work.cause
		}
		if test.outcomes[0] != test.outcome || op.Root != test.root || !errors.Is(cause, test.cause) {
			t.Errorf("%s: outcome %d, root %d, %v", name, test.outcomes[0], op.Root, cause)
		}
	}
}

// Of several operations in place that are one work each input is copied.
func TestInputsOfAllAreSaved(t *testing.T) {
	r := newRank(t)
	r.Begin(func(error) {})
	first, second, apart := uint64(1), uint64(2), uint64(3)
	h := r.start(1, false, op(plan.AllReduce, 0, &first, &first),
		op(plan.AllReduce, 0, &second, &second), op(plan.AllReduce, 0, &apart, new(uint64)))
	whole := r.start(4, false, op(plan.Broadcast, 0, &first, &first))
	if len(whole.before) > 0 {
		t.Error("of a broadcast, which overwrites nothing that it needs, the input is copied")
	}
	if len(h.before) != 2 || h.before[0].at != unsafe.Pointer(&first) ||
		h.before[1].at != unsafe.Pointer(&second) {
		t.Errorf("copied are %v", h.before)
	}
}

// Works are suspended by the death of a member alone, and while the members recover.
func TestHold(t *testing.T) {
	r := newRank(t)
	died := r.of.Members.Errorf(fault.ErrPeerFailed, "rank 3 has ended")
	h := &Work{store: r.Store}
	if h.Suspend(died) {
		t.Error("a work is suspended before a recovery has begun")
	}
	if !r.Begin(func(error) {}) || r.Begin(func(error) {}) {
		t.Error("a recovery begins twice, or never")
	}
	if h.Suspend(r.of.Members.Errorf(fault.ErrTimeout, "it is late")) {
		t.Error("a work is suspended by a timeout")
	}
	if !h.Suspend(died) {
		t.Error("a work is not suspended")
	}
	over := r.Recovery()
	if left := r.End(); len(left) != 1 || left[0] != h {
		t.Errorf("%d works are left", len(left))
	}
	select {
	case <-over:
	default:
		t.Error("the recovery is not over")
	}
	if h.Suspend(died) || r.Recovery() != nil {
		t.Error("a work is suspended after the recovery")
	}
}

// services are collectives in which the other ranks send a value; each ends with an error from the
// one of a number on.
type services struct {
	done []string
	fail int
}

var errDied = errors.New("another member has died")

func (s *services) call(name string) error {
	if len(s.done) == s.fail {
		return errDied
	}
	s.done = append(s.done, name)
	return nil
}

func (s *services) Broadcast(_ context.Context, root int, data []byte) error {
	if root != 0 && len(data) > 0 {
		copy(data, "received")
	}
	return s.call(fmt.Sprintf("broadcast of %d, %d bytes", root, len(data)))
}

func (s *services) Barrier(context.Context) error { return s.call("barrier") }

// A rank that lacks a result gets it, one whose result nobody has runs again on its own input, and
// one that cannot run ends with an error. Where a collective of that fails nothing has ended, and
// what has come by then counts.
func TestComplete(t *testing.T) {
	for fail := range 4 {
		r := newRank(t)
		r.Begin(func(error) {})
		var awaited, result uint64
		inPlace, rootless := uint64(7), uint64(5)
		awaits := r.start(1, false, op(plan.AllReduce, 0, new(uint64), &awaited))
		reruns := r.start(2, false, op(plan.AllReduce, 0, &inPlace, &inPlace))
		ends := r.start(3, false, op(plan.Broadcast, 3, &rootless, &rootless))
		inPlace = 99 // the collective has written over it
		// The result of the first one is at rank 1, and rank 3 has died.
		r.judge(0, 0, completion.Judgement{Begun: 3, Finished: 1,
			Fetch: []completion.Fetch{{Result: completion.Result{Sequence: 1, Bytes: 8}, From: 1}}}, 0, 1, 2)
		s := &services{fail: fail}
		var ran []call.Operation
		start := func(_ time.Duration, operations []call.Operation) (*work.Work, error) {
			ran = append(ran, operations...)
			result = inPlace * 2
			w := r.works.New(1, false)
			w.Add(work.Part{Operation: &operations[0]})
			w.SetContributors(3)
			w.SetTimeout(time.Minute)
			w.Started()
			w.End(nil)
			return w, nil
		}
		err := r.Complete(t.Context(), s, 0, start)
		want := []string{"broadcast of 1, 8 bytes", "barrier"}
		if !slices.Equal(s.done, want[:min(fail, 2)]) {
			t.Errorf("%d: made are %q", fail, s.done)
		}
		if fail < 2 {
			if !errors.Is(err, errDied) || len(ran) > 0 || awaits.Work.Ended() || reruns.Work.Ended() {
				t.Errorf("%d: %v, and %d ran", fail, err, len(ran))
			}
			p := r.Progress(Ended{Epoch: Epoch{Number: 1, Members: r.of.Members}})
			has := []completion.Result{{Sequence: 1, Bytes: 8}}
			if fail == 0 && !reflect.DeepEqual(p.Lacks, has) || fail == 1 && !reflect.DeepEqual(p.Has, has) {
				t.Errorf("%d: progress is %+v", fail, p)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if done, err := awaits.Wait(-1); !done || err != nil || awaited != *(*uint64)(
			unsafe.Pointer(unsafe.StringData("received"))) {
			t.Errorf("the awaited result: %v, %v, %x", done, err, awaited)
		}
		if done, err := reruns.Wait(-1); !done || err != nil || result != 14 ||
			reruns.Contributors() != 3 || len(ran) != 1 {
			t.Errorf("the one that runs again: %v, %v, %d, %d ran", done, err, result, len(ran))
		}
		if done, err := ends.Wait(-1); !done || !errors.Is(err, fault.ErrPeerFailed) {
			t.Errorf("the one without root: %v, %v", done, err)
		}
	}
}

// told is a feed that counts what it is told of an output.
type told struct{ bytes uint64 }

func (*told) Need(int, uint64, uint64) (bool, error) { return true, nil }
func (f *told) Final(_ int, from, upto uint64)       { f.bytes += upto - from }

// A feed is told of a result that another member has passed on, where the rank has an output.
func TestFeedsAreTold(t *testing.T) {
	r := newRank(t)
	r.Begin(func(error) {})
	var feeds [3]told
	ops := []call.Operation{op(plan.AllReduce, 0, new(uint64), new(uint64)),
		op(plan.AllReduce, 0, new(uint64), new(uint64)), op(plan.Reduce, 1, new(uint64), new(uint64))}
	ops[2].Out = nil // this rank is not its root
	var works []*Work
	for i := range ops {
		feed, release := exec.NewFeed(&feeds[i], nil)
		defer release()
		ops[i].Feed = new(call.Feed(feed))
		works = append(works, r.start(uint64(i+1), false, ops[i]))
	}
	r.judge(0, 0, completion.Judgement{Begun: 3, Ended: 0, Finished: 1, Fetch: []completion.Fetch{
		fetched(1)}}, 0, 1, 2)
	works[1].outcomes[0], works[2].outcomes[0] = completion.HasResult, completion.HasResult
	if err := r.Complete(t.Context(), &services{fail: 9}, 0, nil); err != nil {
		t.Fatal(err)
	}
	if feeds != [3]told{{8}, {8}, {0}} {
		t.Errorf("told are %v bytes", feeds)
	}
}

// Members tell of the last two results that they have: of those in the output of a suspended work,
// and of copies.
func TestProgress(t *testing.T) {
	var x uint64
	kept := func(sequence uint64) ([]byte, bool) { return make([]byte, 4), sequence == 4 }
	for name, test := range map[string]struct {
		op   call.Operation
		want []completion.Result
	}{
		"allreduce":       {op(plan.AllReduce, 0, &x, &x), []completion.Result{{Sequence: 5, Bytes: 8}}},
		"reduce, root":    {op(plan.Reduce, 0, &x, &x), []completion.Result{{Sequence: 5}}},
		"reduce, no root": {op(plan.Reduce, 1, &x, &x), nil},
		"broadcast, root": {op(plan.Broadcast, 0, &x, &x),
			[]completion.Result{{Sequence: 5, Bytes: 8}}},
		"broadcast, others": {op(plan.Broadcast, 1, &x, &x),
			[]completion.Result{{Sequence: 5, Bytes: 8}}},
		"barrier": {call.Operation{Collective: plan.Barrier}, nil},
	} {
		r := newRank(t)
		r.Begin(func(error) {})
		r.of.Number = 1
		r.start(5, false, op(plan.AllReduce, 0, new(uint64), new(uint64))) // of another epoch
		r.of.Number = 0
		r.start(5, false, test.op)
		e := Ended{Epoch: r.of, Begun: 9, Finished: 5, Kept: kept}
		want := append(slices.Clone(test.want), completion.Result{Sequence: 4, Bytes: 4})
		p := r.Progress(e)
		if !reflect.DeepEqual(p.Has, want) || p.Begun != 9 || p.Finished != 5 || p.Lacks != nil {
			t.Errorf("%s: %+v, has is to be %+v", name, p, want)
		}
	}
}

// A result that was passed on in an epoch that has failed, and one of that epoch, are two.
func TestTransfersOfTwoEpochs(t *testing.T) {
	r := newRank(t)
	r.Begin(func(error) {})
	r.start(1, false, op(plan.AllReduce, 0, new(uint64), new(uint64)))
	r.judge(0, 0, completion.Judgement{Begun: 9, Finished: 1,
		Fetch: []completion.Fetch{fetched(1)}}, 0, 1)
	e := Ended{Epoch: Epoch{Number: 1, Members: r.of.Members}, Finished: 9,
		Kept: func(uint64) ([]byte, bool) { return make([]byte, 8), true }}
	rank := func(old int) (int, bool) { return old, true }
	later := completion.Fetch{Result: completion.Result{Epoch: 1, Sequence: 1, Bytes: 8}}
	all := r.Transfers(e, &completion.Judgement{Fetch: []completion.Fetch{fetched(1), later}}, rank)
	if len(all) != 2 || all[0] != r.transfers[0] || all[0].has || all[1] == all[0] || !all[1].has {
		t.Errorf("passed on are %+v and %+v", *all[0], *all[1])
	}
}

// A result that has not the length which it must have here is not written there.
func TestTransferOfAnotherLength(t *testing.T) {
	r := newRank(t)
	r.Begin(func(error) {})
	r.start(1, false, op(plan.AllReduce, 0, new(uint64), new(uint64)))
	long := fetched(1)
	long.Bytes = 16
	r.judge(0, 0, completion.Judgement{Begun: 9, Finished: 1, Fetch: []completion.Fetch{long}}, 0, 1)
	s := &services{fail: 9}
	if err := r.Complete(t.Context(), s, 0, nil); !errors.Is(err, fault.ErrInternal) ||
		len(s.done) > 0 {
		t.Errorf("%v, made are %q", err, s.done)
	}
}

// Works run again in the order in which they were called.
func TestOrderOfReruns(t *testing.T) {
	r := newRank(t)
	r.Begin(func(error) {})
	second, first := uint64(2), uint64(1)
	r.start(2, false, op(plan.AllReduce, 0, &second, new(uint64)))
	r.start(1, false, op(plan.AllReduce, 0, &first, new(uint64)))
	r.judge(0, 0, completion.Judgement{Begun: 9}, 0, 1)
	var ran []uint64
	start := func(_ time.Duration, operations []call.Operation) (*work.Work, error) {
		ran = append(ran, *(*uint64)(operations[0].In[0]))
		return nil, errDied
	}
	if err := r.Complete(t.Context(), &services{}, 0, start); err != nil || !slices.Equal(ran,
		[]uint64{1, 2}) {
		t.Errorf("%v, ran are %d", err, ran)
	}
}
