package collective

import (
	"testing"

	"github.com/goccl/goccl/core/call"
	"github.com/goccl/goccl/core/exec"
	"github.com/goccl/goccl/core/plan"
	"github.com/goccl/goccl/core/reduce"
	"github.com/goccl/goccl/core/tune"
)

// What is large is written past the caches where that is faster, or where the user says so. It is
// not measured for what is small.
func TestOutputsAreStreamedWhereFaster(t *testing.T) {
	measured := 0
	fastStreams := exec.FastStreams
	t.Cleanup(func() { exec.FastStreams = fastStreams })
	for _, c := range []struct {
		thresholds string
		bytes      uint64
		fast       bool
		want       plan.Streams
		measured   int
	}{
		{"", 64 << 20, true, plan.StreamAll, 1},
		{"", 64 << 20, false, plan.StreamNone, 1},
		{"stream_min=8388608", 64 << 20, false, plan.StreamAll, 1},
		{"stream_min=1024", 4096, false, plan.StreamAll, 0},
		{"", streamsMeasuredFrom - 4, false, plan.StreamNone, 0},
	} {
		s, err := tune.New(tune.Topology{Size: 2, Memory: true, Sharing: 2}, 0,
			tune.Options{Thresholds: c.thresholds})
		if err != nil {
			t.Fatal(err)
		}
		measured = 0
		exec.FastStreams = func() bool { measured++; return c.fast }
		counts := []uint64{c.bytes / 8, c.bytes / 8}
		op := call.Operation{Collective: plan.AllGather, DType: reduce.Float32, InCounts: counts[:1],
			OutCounts: counts}
		e := Engine{}
		e.Shape = &s
		if got := e.streams(&op); got != c.want || measured != c.measured {
			t.Errorf("%+v: %d, measured %d times", c, got, measured)
		}
	}
}
