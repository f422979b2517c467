package core

import (
	"math"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/goccl/goccl/core/address"
	"github.com/goccl/goccl/core/internal/logtest"
	"github.com/goccl/goccl/core/membership"
	"github.com/goccl/goccl/core/transport"
)

// says has a member, which breaks the protocol, say something in a decision of the present epoch.
func (w *world) says(from, to int, m membership.Message) {
	w.t.Helper()
	m.Ended, m.Excluded = membership.NewSet(len(w.comms)), membership.NewSet(len(w.comms))
	if err := now(w.comms[to]).Decisions().Receive(from, m.Encode()); err != nil {
		w.t.Fatal(err)
	}
}

// A member that tells of decisions that cannot be, and of ballots that nobody comes to, has the
// others keep nothing of it. They recover once it has gone.
func TestFaultyMember(t *testing.T) {
	w := newWorld(t, "tcp", 3, time.Minute)
	everything(t, w)
	for rank, most := range []uint32{1000, 3} { // the others are not told the same
		for number := range most {
			w.says(2, rank, membership.Message{Kind: membership.Notice, Epoch: number})
		}
		if n := decisionsOf(now(w.comms[rank])); n > 1 {
			t.Fatalf("rank %d keeps %d decisions", rank, n)
		}
		w.says(2, rank, membership.Message{Kind: membership.Prepare,
			Ballot: membership.Ballot{Attempt: math.MaxUint64, Rank: 2}})
	}
	before := now(w.comms[0])
	w.end(2)
	left := w.of(0, 1)
	left.each(func(rank int) error { return left.comms[rank].Recover(soon(t)) })
	checkMembers(t, left)
	n := decisionsOf(before)
	m := membership.Message{Kind: membership.Notice, Epoch: uint32(n), Ended: membership.NewSet(3),
		Excluded: membership.NewSet(3)}
	if err := before.Decisions().Receive(1, m.Encode()); err != nil {
		t.Fatal(err)
	}
	if more := decisionsOf(before); more > n {
		t.Errorf("an epoch that is over has %d decisions more", more-n)
	}
}

// A member that asks, and does not read the answers, keeps no goroutines of others waiting.
func TestUnreadAnswers(t *testing.T) {
	w := newWorld(t, "tcp", 2, time.Minute)
	everything(t, w)
	w.each(func(rank int) error { _, err := w.comms[rank].Agree(soon(t), 1); return err })
	handled := private[sync.Mutex](w.comms[1], "inquiry.mu") // the first answer is not
	handled.Lock()
	defer handled.Unlock()
	before := runtime.NumGoroutine()
	for range 50_000 {
		handlerOf(w.comms[0]).Control(1, transport.Header{Type: frameAsk}, nil)
		w.says(1, 0, membership.Message{Kind: membership.Call})
		if n := runtime.NumGoroutine(); n > before+100 {
			t.Fatalf("%d goroutines more wait", n-before)
		}
	}
}

// A process joins whose host has as long a name as there may be.
func TestJoinFromALongHost(t *testing.T) {
	config := joinConfigOf("tcp")
	runtime := RuntimeConfig{Logger: logtest.Warnings(t),
		host: strings.Repeat("h", address.MaxHostName)}
	w := newWorldWith(t, runtime, "tcp", 2, config)
	r := NewRuntime(runtime)
	t.Cleanup(r.Close)
	var joined *Comm
	done := make(chan error, 1)
	go func() {
		var err error
		joined, err = r.Join(soon(t), config, w.handles())
		done <- err
	}()
	w.each(func(rank int) error { return w.comms[rank].Grow(soon(t), 1) })
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	w.runtimes, w.comms = append(w.runtimes, r), append(w.comms, joined)
	checkMembers(t, w)
}
