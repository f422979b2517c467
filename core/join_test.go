package core

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/goccl/goccl/core/internal/logtest"
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
		{"not let in", with(func(c *Config) { c.Timeout = 300 * time.Millisecond }), handles, ErrTimeout,
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
