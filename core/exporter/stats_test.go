package exporter

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/goccl/goccl/core/metrics"
	"github.com/goccl/goccl/core/plan"
	"github.com/goccl/goccl/core/trace"
)

// What traces have counted is told by name, and what has one name is put together.
func TestOf(t *testing.T) {
	var r trace.Registry
	if s := Of(&r); s.Rank != -1 || s.Groups != 0 || s.Operations == nil || s.Waits == nil {
		t.Errorf("of nothing: %+v", s)
	}
	traced, err := trace.New()
	if err != nil {
		t.Fatal(err)
	}
	r.Add(traced, "a\nb")
	traced.Enter(trace.Group{Name: "a\nb", Rank: 1, Ranks: []int{4, 2, 6}},
		[]trace.Transport{trace.Shm, trace.Self, trace.TCP})
	sequence := uint64(0)
	call := func(c plan.Collective, by plan.Algorithm, s trace.State) {
		sequence++
		m := &plan.Message{Sequence: sequence, Collective: uint8(c)}
		if s != trace.Ended && s != trace.Failed {
			traced.Queue(m, s)
			return
		}
		traced.Queue(m, trace.Queued)
		traced.End(m, trace.Ending{State: s, Algorithm: by, Bytes: 5})
	}
	call(plan.AllReduce, plan.OneShot, trace.Ended)
	call(plan.AllReduce, plan.Registered, trace.Ended)
	call(plan.AllReduce, plan.Registered+1, trace.Ended)
	call(plan.ExchangeMemory, 0, trace.Ended)
	call(plan.AllReduce, 0, trace.Failed)
	call(plan.AllReduce, 0, trace.Refused)
	traced.SideStepped("gloo")
	traced.Fail("timeout", "")
	s := Of(&r)
	names := map[[2]string]uint64{}
	for _, o := range s.Operations {
		names[[2]string{o.Collective, o.Algorithm}] = o.Operations
		if o.Bytes != 5*o.Operations || o.Took[0] != o.Operations {
			t.Errorf("%+v", o)
		}
	}
	if want := map[[2]string]uint64{{"allreduce", "one_shot"}: 1, {"allreduce", "plan"}: 2,
		{"other", ""}: 1}; !maps.Equal(names, want) {
		t.Errorf("%v", names)
	}
	if s.Rank != 2 || s.Groups != 1 || s.Records != 6 || s.FailedOperations != 1 ||
		s.Refusals != 1 || s.SideSteps["gloo"] != 1 || s.Failures["timeout"] != 1 ||
		!maps.Equal(s.Links, map[string]int{"shm": 1, "tcp": 1}) {
		t.Errorf("%+v", s)
	}
	r.Remove(traced)
	s = Of(&r)
	if s.Groups != 0 || s.Records != 0 || len(s.Operations) != 3 || s.Rank != -1 ||
		s.Failures["timeout"] != 1 {
		t.Errorf("after its end: %+v", s)
	}
}

// Waits are in their order.
func TestWaits(t *testing.T) {
	got := waits(&trace.Counters{WaitedFor: map[trace.Peer]time.Duration{{Group: "a", Rank: 1}: 1e9,
		{Group: "b", Rank: 1}: 1e9, {Group: "b", Rank: 0}: 5e9, {Group: "b", Rank: 2}: 4e9}})
	want := []metrics.Wait{{Group: "b", Rank: 0, Seconds: 5}, {Group: "b", Rank: 2, Seconds: 4},
		{Group: "a", Rank: 1, Seconds: 1}, {Group: "b", Rank: 1, Seconds: 1}}
	if !slices.Equal(got, want) {
		t.Errorf("%v", got)
	}
}
