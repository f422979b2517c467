package core

import (
	"strings"
	"testing"
	"time"

	"github.com/goccl/goccl/core/judge"
	"github.com/goccl/goccl/core/plan"
	"github.com/goccl/goccl/core/status"
	"github.com/goccl/goccl/core/trace"
)

// judged is what is told of a world, whose ranks are in one process here: a process each in life.
func judged(t *testing.T, w *world) status.Judged {
	t.Helper()
	var told []status.Process
	for _, c := range w.comms {
		told = append(told, status.Of([]*trace.Trace{c.Trace()}))
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
			missing := make(chan struct{})
			done := make(chan struct{})
			go func() {
				defer close(done)
				w.each(func(rank int) error {
					if rank == 2 {
						<-missing
					}
					return run(w.comms[rank], allReduce(t, 8))
				})
			}()
			until(t, "rank 2 is behind", func() bool {
				v := judged(t, w).Verdict
				return v.Kind == judge.Behind && len(v.Ranks) == 1 && v.Ranks[0] == 2
			})
			close(missing)
			<-done
		})
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
		found, err := status.Host()
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
