package core

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goccl/goccl/core/address"
	"github.com/goccl/goccl/core/internal/logtest"
	"github.com/goccl/goccl/core/meeting"
	"github.com/goccl/goccl/core/membership"
	"github.com/goccl/goccl/core/plan"
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

// someWait tells whether a process waits at some rank.
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
				until(t, "a process waits", w.someWait)
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
	until(t, "nobody waits", func() bool { return !w.someWait() })
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
	until(t, "a process waits", w.someWait)
	w.end(0)
	w.runtimes[0].Close()
	left.each(func(rank int) error { return left.comms[rank].Grow(soon(t), 1) })
	checkMembers(t, joined())
}

// asks is a process that asks a member to let it in, and what becomes of it is the test's.
func asks(t *testing.T, config Config, member string, change func(*address.Address)) (
	reply func() *welcome) {
	t.Helper()
	r := NewRuntime(RuntimeConfig{Logger: logtest.Warnings(t)})
	t.Cleanup(r.Close)
	config.Size = 1
	c, err := r.openAlone(context.Background(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Destroy)
	own := *c.entrance()
	address := now(c).Peers[0].Address
	change(&address)
	if own.handle, err = meeting.New(address, own.key); err != nil {
		t.Fatal(err)
	}
	to, err := meeting.Parse(member)
	if err != nil {
		t.Fatal(err)
	}
	replies := make(chan *welcome, 1)
	go func() {
		w, err := (&application{c, &own, 0}).ask(soon(t), &to, "")
		if err != nil {
			w = &welcome{Problem: err.Error()}
		}
		replies <- w
	}()
	return func() *welcome {
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
	itself, _ := json.Marshal(joinRequest{Handle: member, Settings: w.comms[0].config.Same})
	_, refusal := w.comms[0].readRequest(w.comms[0].entrance(), itself)
	if !errors.Is(refusal, ErrInvalidArgument) ||
		!strings.Contains(refusal.Text, "is that of the member") {
		t.Error(refusal)
	}
	w.each(func(rank int) error { return w.comms[rank].Recover(soon(t)) })
	checkMembers(t, w)
}

// What members decide on lets in only those that can be joined to all, and to each other, whatever
// a member that asks for it has let through.
func TestAdmit(t *testing.T) {
	at := func(id byte, host, tcp, forced string) address.Address {
		return address.Address{Process: address.ProcessID{id}, Host: host, TCP: []string{tcp},
			Forced: forced, Unix: "@x"}
	}
	joiner := func(a address.Address) membership.Joiner {
		h, err := meeting.New(a, "")
		if err != nil {
			t.Fatal(err)
		}
		return membership.Joiner{Host: a.Host, Handle: []byte(h.String())}
	}
	members := []address.Address{at(1, "a", "10.0.0.1:1", ""), at(2, "b", "10.0.0.2:1", "")}
	good := joiner(at(3, "a", "10.0.0.1:2", ""))
	far := joiner(at(4, "c", "10.0.0.3:1", ""))
	for _, c := range []struct {
		what    string
		joiners []membership.Joiner
		in      int // how many of them, the first ones
	}{
		{"all", []membership.Joiner{good, far}, 2},
		{"no handle", []membership.Joiner{good, {Host: "a", Handle: []byte("x")}}, 1},
		{"loopback of another host", []membership.Joiner{good, joiner(at(5, "c", "127.0.0.1:1", ""))}, 1},
		{"no address", []membership.Joiner{far, joiner(address.Address{Host: "d"})}, 1},
		{"memory of another host", []membership.Joiner{joiner(at(6, "a", "10.0.0.1:3", "shm"))}, 0},
		{"verbs of nobody", []membership.Joiner{joiner(at(7, "c", "10.0.0.3:2", "verbs"))}, 0},
		{"nonsense", []membership.Joiner{joiner(at(8, "c", "10.0.0.3:2", "pigeons"))}, 0},
		{"not joined to each other", []membership.Joiner{joiner(at(9, "a", "127.0.0.1:1", "")),
			joiner(at(10, "b", "127.0.0.1:1", ""))}, 0},
	} {
		in, all := admit(slices.Clone(members), c.joiners, "")
		if !reflect.DeepEqual(in, slices.Clone(c.joiners[:c.in])) && len(in)+c.in > 0 ||
			len(all) != len(members)+c.in {
			t.Errorf("%s: %d are in, of %d members", c.what, len(in), len(all))
		}
	}
	alone := members[:1]
	in, _ := admit(slices.Clone(alone), []membership.Joiner{joiner(at(3, "a", "127.0.0.1:1", "")),
		joiner(at(4, "c", "10.0.0.3:1", ""))}, "")
	if len(in) != 1 || string(in[0].Handle) == string(far.Handle) {
		t.Errorf("of two that cannot be joined to each other %d are in", len(in))
	}
}

// Processes that are let in, and do not come, are done without in half of the time, though they are
// more than the members.
func TestJoinStalls(t *testing.T) {
	config := joinConfigOf("tcp")
	w := newWorldOf(t, "tcp", 2, config)
	var replies []func() *welcome
	for range 3 {
		replies = append(replies, asks(t, config, w.handles()[1], func(*address.Address) {}))
	}
	until(t, "they wait", func() bool { return w.comms[1].Joining() == len(replies) })
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
			until(t, "both wait", func() bool { return w.comms[1].Joining() == 2 })
			return func() {
				until(t, "it has come, too", func() bool {
					r.mu.Lock()
					defer r.mu.Unlock()
					for c := range r.comms {
						c.mu.Lock()
						group := now(c).group
						c.mu.Unlock()
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
			until(t, "one waits", w.someWait)
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
			until(t, "they meet", func() bool { return w.comms[0].Epoch()*w.comms[1].Epoch() == 1 })
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

// A newcomer that has met all does not go on without the members before it knows that they have met
// it, too: one that has not may do without it.
func TestJoinMeetsTwice(t *testing.T) {
	config := joinConfigOf("tcp")
	w := newWorldOf(t, "tcp", 1, config)
	r := NewRuntime(RuntimeConfig{Logger: logtest.Warnings(t)})
	t.Cleanup(r.Close)
	ended, member := make(chan error, 1), w.handles()
	go func() {
		_, err := r.Join(soon(t), config, member)
		ended <- err
	}()
	until(t, "it waits", w.someWait)
	c := w.comms[0]
	c.changing.Lock()
	defer c.changing.Unlock()
	if err := c.decideSuccessor(soon(t), proposal{Operation: "recover"}); err != nil {
		t.Fatal(err)
	}
	if err := c.beginNext(); err != nil {
		t.Fatal(err)
	}
	if _, err := c.gather(soon(t), ofRecovery, true, 0); err != nil {
		t.Fatal(err)
	}
	settled := false
	until(t, "it has met the member", func() (met bool) {
		r.mu.Lock()
		defer r.mu.Unlock()
		for n := range r.comms {
			n.mu.Lock()
			met, settled = now(n).hasMet, now(n).settled
			n.mu.Unlock()
		}
		return met
	})
	if settled {
		t.Error("it may go on without the member")
	}
	if err := c.run(soon(t), ofRecovery, Operation{Collective: plan.Barrier}); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Fatal(err)
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

// waitsAt is a process that waits at a member, and cannot be reached any more.
func waitsAt(t *testing.T, c *Comm, host string) *joiner {
	t.Helper()
	h, err := meeting.New(address.Address{Host: host, TCP: []string{"127.0.0.1:9"}}, "")
	if err != nil {
		t.Fatal(err)
	}
	j := &joiner{Joiner: membership.Joiner{Host: host, Handle: []byte(h.String())},
		address: &h.Address, come: make(chan answer, 1)}
	if !c.receive(j) {
		t.Fatal("it cannot wait")
	}
	return j
}

// A process that has lost its connection asks again, before or after the member knows of the loss.
func TestJoinAsksAgain(t *testing.T) {
	for _, first := range []string{"asks", "leaves"} {
		t.Run(first, func(t *testing.T) {
			t.Parallel()
			w := newWorldOf(t, "tcp", 1, joinConfigOf("tcp"))
			w.handles()
			c := w.comms[0]
			c.mu.Lock()
			now(c).nextDecision() // one that others have begun
			c.mu.Unlock()
			lost := waitsAt(t, c, now(c).Peers[0].Host)
			again := *lost
			again.come = make(chan answer, 1)
			if first == "leaves" {
				c.leaves(lost)
			}
			c.receive(&again)
			if first == "asks" {
				c.leaves(lost)
			}
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			if err := c.Recover(ctx); err != nil {
				t.Fatal(err)
			}
			select {
			case a := <-again.come:
				if a.epoch == nil || a.epoch.Size() != 2 {
					t.Errorf("it is told %+v", a)
				}
			default:
				t.Error("it still waits")
			}
		})
	}
}

// Who is sent away is told once.
func TestJoinSentAway(t *testing.T) {
	w := newWorldOf(t, "tcp", 1, joinConfigOf("tcp"))
	w.handles()
	j := waitsAt(t, w.comms[0], now(w.comms[0]).Peers[0].Host)
	j.address.Host = "another host" // welcomes would refuse it
	w.comms[0].bar(ErrExcluded)
	now(w.comms[0]).welcomes()
	if a := <-j.come; a.epoch != nil || a.refusal != nil {
		t.Errorf("it is told %+v", a)
	}
}
