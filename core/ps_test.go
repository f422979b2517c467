package core

import (
	"fmt"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/goccl/goccl/core/internal/logtest"
	"github.com/goccl/goccl/core/internal/polltest"
	"github.com/goccl/goccl/core/judge"
	"github.com/goccl/goccl/core/plan"
	"github.com/goccl/goccl/core/status"
	"github.com/goccl/goccl/core/transport"
)

// judged is what is told of a world, whose ranks are in one process here: a process each in life.
// It asks those of some ranks; where none are given, all.
func judged(t *testing.T, w *world, ranks ...int) status.Judged {
	t.Helper()
	var told []status.Process
	for rank, c := range w.comms {
		if ranks == nil || slices.Contains(ranks, rank) {
			told = append(told, status.Of([]status.Source{{Trace: c.Trace(),
				Peers: c.shared.Peers}}, status.Linked))
		}
	}
	all := status.Groups(told, func(int) string { return "" })
	if len(all) != 1 {
		t.Fatalf("%d groups", len(all))
	}
	return all[0]
}

// What ranks do is told while they are in it, and who holds them up.
func TestStatus(t *testing.T) {
	for _, tr := range transports {
		t.Run(tr, func(t *testing.T) {
			w := newWorld(t, tr, 3, time.Minute)
			if v := judged(t, w).Verdict; v.Kind != judge.Well || !strings.HasSuffix(v.Text, "at #0") {
				t.Errorf("at first %+v", v)
			}
			w.each(func(rank int) error { return run(w.comms[rank], allReduce(t, 8)) })
			j := judged(t, w)
			if v := j.Verdict; v.Kind != judge.Well || v.Text != "all is well: all at #1" {
				t.Errorf("after one %+v", v)
			}
			for _, m := range j.Members {
				if m.Call.State != "ended" || m.Call.What != "allreduce(int32, 8 elements, SUM)" {
					t.Errorf("%+v", m)
				}
			}
			if err := w.comms[1].SideStep(plan.Reduce, "gloo"); err != nil {
				t.Fatal(err)
			}
			if m := judged(t, w).Members[1]; m.Call.State != "side-stepped" || m.Call.Sequence != 2 {
				t.Errorf("%+v", m)
			}
			w.comms[0].SideStep(plan.Reduce, "gloo")
			w.comms[2].SideStep(plan.Reduce, "gloo")
			comes := comesLate(t, w, 2)
			polltest.Until(t, "rank 2 is behind", func() bool {
				v := judged(t, w).Verdict
				return v.Kind == judge.Behind && len(v.Ranks) == 1 && v.Ranks[0] == 2
			})
			comes()
		})
	}
}

// comesLate has all ranks but one be in an allreduce, until that one comes.
func comesLate(t *testing.T, w *world, late int) (comes func()) {
	t.Helper()
	missing, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		w.each(func(rank int) error {
			if rank == late {
				<-missing
			}
			return run(w.comms[rank], allReduce(t, 8))
		})
	}()
	return func() {
		close(missing)
		<-done
	}
}

// apart has ranks join that are on a host each: only those of the last two share one.
func apart(t *testing.T, size int) *world {
	t.Helper()
	var runtimes []*Runtime
	for rank := range size {
		r := RuntimeConfig{Logger: logtest.Warnings(t)}
		if rank < size-2 {
			r.host = fmt.Sprint("host ", rank)
		}
		runtimes = append(runtimes, NewRuntime(r))
	}
	return worldOfRuntimes(t, runtimes, "tcp", size, Config{Timeout: time.Minute})
}

// Ranks on other hosts are asked over the links that are there, while they stand in a collective,
// and tell the same as their own processes do.
func TestStatusOfOtherHosts(t *testing.T) {
	w := apart(t, 4)
	states := func(ranks ...int) (all []string) {
		for _, m := range judged(t, w, ranks...).Members {
			all = append(all, m.State)
		}
		return all
	}
	if all := states(0); !slices.Equal(all, []string{"answers", "unreachable", "unreachable",
		"unreachable"}) {
		t.Errorf("before there are links: %v", all)
	}
	source := status.Source{Trace: w.comms[0].shared.FastPath.Trace(), Peers: w.comms[0].shared.Peers}
	polltest.Until(t, "all answer once they are connected", func() bool { // in time, on a busy host
		others := status.Of([]status.Source{source}, status.All).Groups[0].Others
		return len(others) == 3 && !slices.ContainsFunc(others, func(o status.Other) bool {
			return !o.Answers || o.Call.Sequence != 0
		})
	})
	everything(t, w)
	allAnswer := func(ranks ...int) {
		t.Helper()
		polltest.Until(t, "all answer", func() bool {
			return slices.Equal(states(ranks...), []string{"answers", "answers", "answers", "answers"})
		})
	}
	allAnswer(0)
	allAnswer(2, 3)

	comes := comesLate(t, w, 2)
	polltest.Until(t, "rank 2 is behind", func() bool {
		v := judged(t, w, 1).Verdict
		return v.Kind == judge.Behind && slices.Equal(v.Ranks, []int{2})
	})
	polltest.Until(t, "rank 0 is told the same as the ranks tell", func() bool {
		j, own := judged(t, w, 0), judged(t, w)
		for rank, m := range j.Members {
			o := own.Members[rank]
			m.Call.ForUS, m.Call.Peer = o.Call.ForUS, o.Call.Peer
			if !reflect.DeepEqual(m, o) {
				return false
			}
		}
		return true
	})
	locked := private[sync.Mutex](w.comms[2], "mu") // it answers where a lock is held
	locked.Lock()
	allAnswer(0)
	locked.Unlock()
	comes()
}

// Sends and receives that wait are told, and those of which the other side has not been called.
func TestStatusOfSends(t *testing.T) {
	w := apart(t, 3)
	everything(t, w)
	buf := buffer(t, 1000)
	receive, err := w.comms[1].Start(CallOptions{}, recvOp(buf, 0, 7))
	if err != nil {
		t.Fatal(err)
	}
	polltest.Until(t, "a receive is alone", func() bool {
		v := judged(t, w, 1, 2).Verdict
		return v.Kind == judge.Alone && slices.Equal(v.Ranks, []int{1}) && strings.HasSuffix(v.Text,
			" in recv from rank 0, tag 7, 4000 bytes: rank 0 has called no send for it")
	})
	if err := run(w.comms[0], sendOp(buffer(t, 1000), 1, 7)); err != nil {
		t.Fatal(err)
	}
	if _, err := receive.Wait(-1); err != nil {
		t.Fatal(err)
	}
	polltest.Until(t, "all is well", func() bool {
		j := judged(t, w, 1, 2)
		return j.Verdict.Kind == judge.Well && j.Members[1].UnderWay == 0
	})
}

// What a peer says that asks without end, or answers what it was not asked, changes nothing. What
// no correct peer says fails the group.
func TestStatusOfFaultyPeers(t *testing.T) {
	w := apart(t, 3)
	everything(t, w)
	h := handlerOf(w.comms[0])
	before := runtime.NumGoroutine()
	for range 50_000 {
		h.Control(1, transport.Header{Type: frameLook}, nil)
		h.Control(1, transport.Header{Type: frameReport}, []byte("{"))
	}
	if n := runtime.NumGoroutine(); n > before+100 {
		t.Errorf("%d goroutines more wait", n-before)
	}
	polltest.Until(t, "all answer", func() bool {
		return !slices.ContainsFunc(judged(t, w, 0).Members, func(m status.Member) bool {
			return m.State != "answers"
		})
	})
	everything(t, w)
	for _, c := range []struct {
		frame   uint8
		payload string
		text    string
	}{
		{frameLook, "x", "a question of 1 bytes"},
		{frameReport, strings.Repeat(" ", 4097), "a report of 4097 bytes"},
	} {
		w := apart(t, 3)
		handlerOf(w.comms[0]).Control(1, transport.Header{Type: c.frame}, []byte(c.payload))
		if err := w.comms[0].Err(); err == nil || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%d bytes: %v", len(c.payload), err)
		}
	}
}

// A process is seen from its first communicator to its last.
func TestProcessIsSeen(t *testing.T) {
	r := NewRuntime(RuntimeConfig{})
	defer r.Close()
	c, err := r.Init(t.Context(), Config{Size: 1, GroupName: "seen"})
	if err != nil {
		t.Fatal(err)
	}
	seen := func() bool {
		found, err := status.Host(false)
		if err != nil {
			t.Fatal(err)
		}
		for _, g := range found.Groups {
			if g.Name == "seen" && len(g.Members) == 1 && g.Members[0].State == "answers" {
				return true
			}
		}
		return false
	}
	if !seen() {
		t.Error("it is not seen")
	}
	c.Destroy()
	if seen() {
		t.Error("it is seen after its end")
	}
}
