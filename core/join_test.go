package core

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/goccl/goccl/core/address"
	"github.com/goccl/goccl/core/agreement"
	"github.com/goccl/goccl/core/internal/logtest"
	"github.com/goccl/goccl/core/internal/polltest"
	"github.com/goccl/goccl/core/join"
	"github.com/goccl/goccl/core/meeting"
	"github.com/goccl/goccl/core/plan"
	"github.com/goccl/goccl/core/reduce"
)

// joining has processes join, each with some handles, and returns what waits for them. Then those
// of w and they are a world.
func (w *world) joining(config Config, handles ...[]string) (joined func() *world) {
	type result struct {
		comm *Comm
		err  error
	}
	all := w.of(without(-1, len(w.comms))...)
	results := make(chan result, len(handles))
	for _, known := range handles {
		r := NewRuntime(RuntimeConfig{Logger: logtest.Warnings(w.t)})
		w.t.Cleanup(r.Close)
		all.runtimes = append(all.runtimes, r)
		go func() {
			c, err := r.Join(soon(w.t), config, known)
			results <- result{c, err}
		}()
	}
	return func() *world {
		w.t.Helper()
		all.comms = append(all.comms, make([]*Comm, len(handles))...)
		for range handles {
			r := <-results
			if r.err != nil {
				w.t.Fatalf("a process cannot join: %v", r.err)
			}
			all.comms[r.comm.Rank()] = r.comm
		}
		return all
	}
}

func joinConfigOf(transport string) Config {
	return Config{Timeout: time.Minute, Transport: transport, Thresholds: getAll,
		LivenessGrace: 2 * time.Second}
}

// someWait reports whether a process waits at some rank.
func (w *world) someWait() bool {
	for _, c := range w.comms {
		if c.Joining() > 0 {
			return true
		}
	}
	return false
}

// Processes join a communicator of one, and one of two; those that have joined let others in, and
// go on when the first members have ended.
func TestJoin(t *testing.T) {
	for _, transport := range []string{"shm", "tcp"} {
		for size := 1; size <= 2; size++ {
			t.Run(fmt.Sprint(transport, size), func(t *testing.T) {
				config := joinConfigOf(transport)
				w := newWorldOf(t, transport, size, config)
				joined := w.joining(config, w.handles(), w.handles())
				w.each(func(rank int) error { return w.comms[rank].Grow(soon(t), 2) })
				w = joined()
				checkMembers(t, w)

				joined = w.joining(config, w.handles()[size:])
				polltest.Until(t, "a process waits", w.someWait)
				w.each(func(rank int) error { return w.comms[rank].Recover(soon(t)) })
				w = joined()
				checkMembers(t, w)

				w.end(0)
				w = w.of(without(0, size+3)...)
				w.each(func(rank int) error { return w.comms[rank].Recover(soon(t)) })
				checkMembers(t, w)
			})
		}
	}
}

// One that has joined goes on where all the others end.
func TestJoinedGoesOnAlone(t *testing.T) {
	config := joinConfigOf("tcp")
	w := newWorldOf(t, "tcp", 2, config)
	joined := w.joining(config, w.handles())
	w.each(func(rank int) error { return w.comms[rank].Grow(soon(t), 1) })
	w = joined()
	w.end(0)
	w.end(1)
	if err := w.comms[2].Recover(soon(t)); err != nil {
		t.Fatal(err)
	}
	checkMembers(t, w.of(2))
}

// A process that cannot join is told why, and the members go on.
func TestJoinRefused(t *testing.T) {
	config := joinConfigOf("tcp")
	config.Secret = strings.Repeat("s", 40)
	w := newWorldOf(t, "tcp", 2, config)
	everything(t, w)
	handles := w.handles()
	gone := newWorldOf(t, "tcp", 2, config)
	left := gone.handles()
	gone.close()
	with := func(change func(*Config)) Config {
		c := config
		change(&c)
		return c
	}
	for _, c := range []struct {
		what    string
		config  Config
		handles []string
		kind    error
		text    string
	}{
		{"no handles", config, nil, ErrInvalidArgument, "no handles"},
		{"bad handle", config, []string{handles[0], "x"}, ErrInvalidArgument, `handle 2 of 2, "x"`},
		{"gone", config, left, ErrPeerFailed, "no member of those"},
		{"other secret", with(func(c *Config) { c.Secret = strings.Repeat("t", 40) }), handles,
			ErrMismatch, "different secrets"},
		{"no secret", with(func(c *Config) { c.Secret = "" }), handles, ErrMismatch,
			"different secrets"},
		{"other settings", with(func(c *Config) { c.Transport = "shm" }), handles, ErrMismatch,
			`the transport (GOCCL_TRANSPORT) is "shm" on the process, but "tcp"`},
		{"not let in", with(func(c *Config) { c.Timeout = time.Second }), handles, ErrTimeout,
			"have not let this process in"},
	} {
		r := NewRuntime(RuntimeConfig{Logger: logtest.Warnings(t)})
		_, err := r.Join(context.Background(), c.config, c.handles)
		if !errors.Is(err, c.kind) || !strings.Contains(fmt.Sprint(err), c.text) {
			t.Errorf("%s: %v", c.what, err)
		}
		r.Close()
	}
	polltest.Until(t, "nobody waits", func() bool { return !w.someWait() })
	w.each(func(rank int) error { return w.comms[rank].Recover(soon(t)) })
	checkMembers(t, w)
}

// The member that a process has asked ends before it is let in: the process asks the next one.
func TestJoinAnother(t *testing.T) {
	config := joinConfigOf("tcp")
	w := newWorldOf(t, "tcp", 3, config)
	everything(t, w)
	left := w.of(1, 2)
	joined := left.joining(config, w.handles())
	polltest.Until(t, "a process waits", w.someWait)
	w.end(0)
	w.runtimes[0].Close()
	left.each(func(rank int) error { return left.comms[rank].Grow(soon(t), 1) })
	checkMembers(t, joined())
}

// asks is a process that asks a member to let it in, and what becomes of it is the test's.
func asks(t *testing.T, config Config, member string, change func(*address.Address)) (
	reply func() *join.Welcome) {
	t.Helper()
	r := NewRuntime(RuntimeConfig{Logger: logtest.Warnings(t)})
	t.Cleanup(r.Close)
	config.Size = 1
	c, err := r.openAlone(context.Background(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Destroy)
	address := now(c).Peers[0].Address
	change(&address)
	own, err := meeting.New(address, "")
	if err != nil {
		t.Fatal(err)
	}
	return calls(t, c, own, member)
}

// calls has a process ask a member to let in the one of a handle.
func calls(t *testing.T, c *Comm, own meeting.Handle, member string) (reply func() *join.Welcome) {
	t.Helper()
	to, err := meeting.Parse(member)
	if err != nil {
		t.Fatal(err)
	}
	end := now(c).Endpoint()
	request, _ := json.Marshal(map[string]any{"Handle": own.String(),
		"Settings": c.shared.Settings.Same})
	replies := make(chan *join.Welcome, 1)
	go func() {
		var w join.Welcome
		reply, err := end.Call(soon(t), &to.Address, to.ID(), 1,
			meeting.NewMeetings(own, "", end.Call).Secret(), request)
		if err == nil {
			err = json.Unmarshal(reply, &w)
		}
		if err != nil {
			w.Problem = err.Error()
		}
		replies <- &w
	}()
	return func() *join.Welcome {
		t.Helper()
		select {
		case w := <-replies:
			return w
		case <-time.After(patience):
			t.Fatal("the process has no answer")
			return nil
		}
	}
}

func elsewhere(a *address.Address) { a.Host = "another host" }

// A process that members cannot be joined to is refused when it asks, as is one that says that it
// is the member. The members go on.
func TestJoinUnfit(t *testing.T) {
	config := joinConfigOf("")
	w := newWorldOf(t, "mem", 2, config)
	member := w.handles()[0]
	loopback := asks(t, config, member, func(a *address.Address) {
		elsewhere(a)
		a.TCP = []string{"127.0.0.1:9"}
	})
	if text := loopback().Problem; !strings.Contains(text, "cannot be joined to the member that is "+
		"host") || !strings.Contains(text, "cannot be reached from") {
		t.Errorf("told %q", text)
	}
	own, err := meeting.Parse(member)
	if err != nil {
		t.Fatal(err)
	}
	itself := calls(t, w.comms[1], own, member)
	if text := itself().Problem; !strings.Contains(text, "is that of the member") {
		t.Errorf("told %q", text)
	}
	w.each(func(rank int) error { return w.comms[rank].Recover(soon(t)) })
	checkMembers(t, w)
}

// Processes that are let in, and do not come, are done without in half of the time, though they are
// more than the members.
func TestJoinStalls(t *testing.T) {
	config := joinConfigOf("tcp")
	w := newWorldOf(t, "tcp", 2, config)
	var replies []func() *join.Welcome
	for range 3 {
		replies = append(replies, asks(t, config, w.handles()[1], func(*address.Address) {}))
	}
	polltest.Until(t, "they wait", func() bool { return w.comms[1].Joining() == len(replies) })
	w.each(func(rank int) error {
		ctx, cancel := context.WithTimeout(context.Background(), 8*time.Second)
		defer cancel()
		return w.comms[rank].Recover(ctx)
	})
	checkMembers(t, w)
	for _, reply := range replies {
		if welcome := reply(); len(welcome.Own) != 5 {
			t.Errorf("a process was told of %d members: %q", len(welcome.Own), welcome.Problem)
		}
	}
}

// Whatever newcomers do in the first meeting, the members go on in little more than half of the
// time.
func TestJoinHarmsNobody(t *testing.T) {
	const limit = 6 * time.Second
	for _, c := range []struct {
		what  string
		harms func(t *testing.T, w *world, config Config) (meanwhile func())
		left  int // how many members go on
	}{
		{"a member ends", func(_ *testing.T, w *world, _ Config) func() {
			return func() {
				w.endFor(0, 1)
				w.comms[1].Destroy()
			}
		}, 1},
		{"the next one comes", func(t *testing.T, w *world, config Config) func() {
			member := w.handles()[1]
			return func() { asks(t, config, member, func(*address.Address) {}) }
		}, 2},
		{"one gives up", func(t *testing.T, w *world, config Config) func() {
			r := NewRuntime(RuntimeConfig{Logger: logtest.Warnings(t)})
			t.Cleanup(r.Close)
			ctx, cancel := context.WithCancel(context.Background())
			ended, member := make(chan error, 1), w.handles()[1:]
			go func() {
				_, err := r.Join(ctx, config, member)
				ended <- err
			}()
			polltest.Until(t, "both wait", func() bool { return w.comms[1].Joining() == 2 })
			return func() {
				polltest.Until(t, "it has come, too", func() bool {
					r.mu.Lock()
					defer r.mu.Unlock()
					for c := range r.comms {
						lockOf(c).Lock()
						group := groupOf(c)
						lockOf(c).Unlock()
						return c.Size() > 2 && group != nil && group.Connected(0) && group.Connected(1)
					}
					return false
				})
				cancel()
				if err := <-ended; err == nil {
					t.Error("it has joined")
				}
			}
		}, 2},
	} {
		t.Run(c.what, func(t *testing.T) {
			t.Parallel()
			config := joinConfigOf("tcp")
			w := newWorldOf(t, "tcp", 2, config)
			asks(t, config, w.handles()[1], func(*address.Address) {}) // and stalls
			polltest.Until(t, "one waits", w.someWait)
			meanwhile := c.harms(t, w, config)
			ended := make(chan []error, 1)
			begun := time.Now()
			go func() {
				defer close(ended)
				ended <- w.try(func(rank int) error {
					ctx, cancel := context.WithTimeout(context.Background(), limit)
					defer cancel()
					return w.comms[rank].Recover(ctx)
				})
			}()
			polltest.Until(t, "they meet", func() bool { return w.comms[0].Epoch()*w.comms[1].Epoch() == 1 })
			meanwhile()
			errs, over := <-ended
			if !over {
				t.FailNow() // of what try has told
			}
			if took := time.Since(begun); took > limit-limit/6 { // half of it, on a busy machine
				t.Errorf("it took %v", took)
			}
			for rank, err := range errs[:c.left] {
				if err != nil {
					t.Errorf("rank %d: %v", rank, err)
				}
			}
			checkMembers(t, w.of(without(-1, c.left)...))
		})
	}
}

// gather gathers a number of each rank, as an epoch does first as a part of a split: see
// [epoch.Epoch.Meet]. Survivors do not complete it.
func gather(c *Comm, partOf plan.Collective) error {
	mine, all := []int64{0}, make([]int64, c.Size())
	op := Operation{Collective: plan.AllGather, DType: reduce.Int64, PartOf: partOf,
		In: []unsafe.Pointer{unsafe.Pointer(&mine[0])}, InCounts: []uint64{1}}
	for rank := range all {
		op.Out = append(op.Out, unsafe.Pointer(&all[rank]))
		op.OutCounts = append(op.OutCounts, 1)
	}
	return run(c, op)
}

// meets reports whether the first collective of an epoch has completed on a rank.
func meets(c *Comm) bool {
	mu := private[sync.Mutex](c, "agreement.mu")
	mu.Lock()
	defer mu.Unlock()
	return *private[bool](c, "agreement.met")
}

// letIn has the only member of a world let a process in, and begin the next epoch. It does not meet
// the process there.
func letIn(t *testing.T) (w *world, r *Runtime, ended <-chan error) {
	config := joinConfigOf("tcp")
	w = newWorldOf(t, "tcp", 1, config)
	r = NewRuntime(RuntimeConfig{Logger: logtest.Warnings(t)})
	t.Cleanup(r.Close)
	over, member := make(chan error, 1), w.handles()
	go func() {
		_, err := r.Join(soon(t), config, member)
		over <- err
	}()
	polltest.Until(t, "it waits", w.someWait)
	c := w.comms[0]
	c.changing.Lock()
	t.Cleanup(c.changing.Unlock)
	if err := c.decideSuccessor(soon(t), agreement.Proposal{Operation: "recover"}); err != nil {
		t.Fatal(err)
	}
	if err := c.beginNext(); err != nil {
		t.Fatal(err)
	}
	return w, r, over
}

// A newcomer that has met all does not go on without the members before it knows that they have met
// it, too: one that has not may do without it.
func TestJoinMeetsTwice(t *testing.T) {
	w, r, ended := letIn(t)
	c := w.comms[0]
	if err := gather(c, plan.Split); err != nil {
		t.Fatal(err)
	}
	settled := false
	polltest.Until(t, "it has met the member", func() (met bool) {
		r.mu.Lock()
		defer r.mu.Unlock()
		for n := range r.comms {
			met, settled = meets(n), isStable(n)
		}
		return met
	})
	if settled {
		t.Error("it may go on without the member")
	}
	if err := now(c).Service().Barrier(soon(t)); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
}

// A process whose members end as soon as they have let it in is told so at once.
func TestJoinOfTheDead(t *testing.T) {
	w, r, ended := letIn(t)
	c := w.comms[0]
	polltest.Until(t, "it has been let in", func() (in bool) {
		r.mu.Lock()
		defer r.mu.Unlock()
		for n := range r.comms {
			in = now(n).Number() == now(c).Number()
			w.comms = []*Comm{c, n}
		}
		return in
	})
	w.endFor(1, 0)
	if err := <-ended; !errors.Is(err, ErrPeerFailed) {
		t.Error(err)
	}
}

// Renew makes members of newcomers like all others: nobody does without them.
func TestJoinedAndRenewed(t *testing.T) {
	config := joinConfigOf("tcp")
	w := newWorldOf(t, "tcp", 1, config)
	joined := w.joining(config, w.handles(), w.handles())
	w.each(func(rank int) error { return w.comms[rank].Grow(soon(t), 2) })
	w = joined()
	for _, call := range []struct {
		f    func(context.Context) error
		kind error
	}{{w.comms[0].Renew, ErrTimeout}, {w.comms[0].Recover, ErrNoQuorum}} {
		ctx, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
		if err := call.f(ctx); !errors.Is(err, call.kind) {
			t.Error(err)
		}
		cancel()
	}
	w = w.of(1, 2)
	w.each(func(rank int) error { return w.comms[rank].Recover(soon(t)) })
	checkMembers(t, w)
}
