package exec

import (
	"slices"
	"testing"

	"github.com/goccl/goccl/core/plan"
)

// The peers of a plan are those that its steps exchange messages with, in their order: first those
// that it puts to.
func TestPeersOfARun(t *testing.T) {
	const size = 6
	l := layout
	l.Ranks = size
	w, err := NewWindow(l, 2, true, brief)
	if err != nil {
		t.Fatal(err)
	}
	atEnd(t, w.Close)
	step := func(op plan.Op, peer int) plan.Step { return plan.Step{Op: op, Peer: int32(peer)} }
	copied := plan.Step{Op: plan.Copy, Bytes: 1, Dst: plan.Ref{Space: plan.Out},
		Src: []plan.Ref{{Space: plan.In}}}
	for _, c := range []struct {
		steps []plan.Step
		want  []int
	}{
		{[]plan.Step{copied}, nil},
		{[]plan.Step{copied, step(plan.Put, 4), step(plan.Wait, 1), step(plan.Release, 1),
			step(plan.Put, 1)}, []int{4, 1}},
		{[]plan.Step{step(plan.Access, 3), step(plan.Expose, 5), step(plan.Put, 3)}, []int{5, 3}},
		{[]plan.Step{step(plan.Wait, 0), step(plan.PutToAll, 0)}, []int{3, 4, 5, 0, 1}},
	} {
		compiled, err := Compile(&plan.Plan{Rank: 2, Size: size, Steps: c.steps}, false, false)
		if err != nil {
			t.Fatal(err)
		}
		atEnd(t, compiled.Free)
		r, err := NewRun(w.Lane(0))
		if err != nil {
			t.Fatal(err)
		}
		atEnd(t, r.Free)
		if err := r.Begin(compiled, 0); err != nil {
			t.Fatal(err)
		}
		if got := r.Peers(); !slices.Equal(got, c.want) {
			t.Errorf("%v: %v, want %v", c.steps, got, c.want)
		}
	}
}
