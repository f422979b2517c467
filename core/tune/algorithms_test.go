package tune

import (
	"strings"
	"testing"

	"github.com/goccl/goccl/core/call"
	"github.com/goccl/goccl/core/plan"
	"github.com/goccl/goccl/core/reduce"
)

func TestParseAlgorithms(t *testing.T) {
	const names = "one_shot, two_shot, recursive_multiplying, hierarchical, binomial_tree, direct"
	for _, c := range []struct{ text, want, problem string }{
		{"", "", ""},
		{"allreduce:two_shot", "allreduce:two_shot", ""},
		{"allreduce:direct,two_shot", "allreduce:two_shot,direct", ""},
		{"allreduce:^one_shot",
			"allreduce:two_shot,recursive_multiplying,hierarchical,binomial_tree,direct", ""},
		{"allreduce:hierarchical(8,4,4),one_shot", "allreduce:one_shot,hierarchical(8,4,4)", ""},
		{"allreduce:recursive_multiplying(2,2),hierarchical;allgather:hierarchical(4,3)",
			"allreduce:recursive_multiplying(2,2),hierarchical;allgather:hierarchical(4,3)", ""},
		{"allreduce:hierarchical(8,4", "", `in which "hierarchical(8,4" must be a name, or one of ` +
			`recursive_multiplying or hierarchical with radices, as in hierarchical(8,4)`},
		{"allreduce:hierarchical()", "", `"hierarchical()" must be a name`},
		{"allreduce:hierarchical(8,-4)", "", `"hierarchical(8,-4)" must be a name`},
		{"allreduce:hierarchical(8,1)", "", `"hierarchical(8,1)" must be a name`},
		{"allreduce:two_shot(8,4)", "", `"two_shot(8,4)" must be a name`},
		{"allreduce:^hierarchical(8,4)", "", `"hierarchical(8,4)" must be a name`},
		{"allreduce:hierarchical(8,4),hierarchical", "", "in which hierarchical comes twice"},
		{"broadcast:flat;allreduce:one_shot", "allreduce:one_shot;broadcast:flat", ""},
		{"broadcast:flat,multicast,allreduce:one_shot",
			"allreduce:one_shot;broadcast:flat,multicast", ""},
		{"barrier:dissemination", "barrier:dissemination", ""},
		{"two_shot", "", `"two_shot", which must begin with a collective and a colon`},
		{"allreduce:two_shot;direct", "", `"direct", which must begin`},
		{"allreduce:", "",
			`"allreduce:", in which "" is no algorithm of allreduce; allowed are ` + names},
		{"allreduce:ring", "", `"ring" is no algorithm of allreduce; allowed are ` + names},
		{"allreduce:TWO_SHOT", "", `"TWO_SHOT" is no algorithm`},
		{"allreduce: two_shot", "", `" two_shot" is no algorithm`},
		{"allreduce:two_shot,^direct", "", `"^direct" is no algorithm`},
		{"send:flat", "", `"send" is no collective; allowed are allreduce, reduce, broadcast, ` +
			`allgather, reduce_scatter, gather, scatter, alltoall, barrier`},
		{"allreduce:two_shot;allreduce:direct", "", "in which allreduce comes twice"},
		{"gather:^flat,binomial_tree,direct", "",
			"which leaves gather no algorithm; it has flat, binomial_tree, direct"},
		{";", "", `"", which must begin`},
	} {
		a, err := ParseAlgorithms(c.text)
		if c.problem != "" {
			if err == nil || !strings.Contains(err.Error(), c.problem) {
				t.Errorf("%q: %v, want %q", c.text, err, c.problem)
			}
			continue
		}
		if err != nil || a.String() != c.want {
			t.Errorf("%q is %q, %v; want %q", c.text, a, err, c.want)
		}
	}
}

// FuzzAlgorithms gives texts as users do. One that is refused says why; another one is read as it
// is written.
func FuzzAlgorithms(f *testing.F) {
	f.Add("allreduce:two_shot;broadcast:^multicast,flat")
	f.Add("allreduce:direct,gather:flat")
	f.Add("allreduce:hierarchical(8,4,4),two_shot")
	f.Add(":;,^()")
	f.Fuzz(func(t *testing.T, text string) {
		a, err := ParseAlgorithms(text)
		if err != nil {
			if err.Error() == "" {
				t.Fatalf("%q is refused, without a word", text)
			}
			return
		}
		if again, err := ParseAlgorithms(a.String()); err != nil || again.String() != a.String() {
			t.Fatalf("%q is %q, which is %q, %v", text, a, again, err)
		}
	})
}

// An algorithm that is forced is chosen for all sizes, if it can run, and its plans are proved.
// What it cannot do goes by another one.
func TestForcedAlgorithmsArePlanned(t *testing.T) {
	for _, at := range []Topology{
		{Size: 4, Memory: true}, {Size: 2, Memory: true}, {Size: 4, Ports: true},
		{Size: 11, Ports: true, MultiHost: true},
		{Size: 4, Ports: true, Memory: true, MultiHost: true, Group: 2},
	} {
		for c := plan.AllReduce; c <= plan.Barrier; c++ {
			for _, a := range plan.Algorithms(c) {
				forced := Algorithms{c: {{Algorithm: a}}}
				shapes := shapesOf(t, at)
				shapes[0].Algorithms = forced
				if shapes[0].CheckAlgorithms() != nil {
					continue
				}
				for _, n := range []uint64{0, 1, 20, 5_000, 700_000} {
					op := operation(c, at.Size, n)
					if got := shapes[0].Choose(&op); got != a && a != plan.Direct {
						t.Errorf("%+v, %v of %d elements: %v, forced is %v", at, c, n, got, a)
					}
					direct := verifyForced(t, at, forced, op)
					long := n >= 5_000 || c.Rooted() && c != plan.Reduce && c != plan.Broadcast
					if long && direct != (a == plan.Direct) {
						t.Errorf("%+v, %v of %d elements: direct %v, forced is %v", at, c, n, direct, a)
					}
				}
			}
		}
	}
}

// verifyForced proves the plans of an operation, and tells whether a direct one is tried.
func verifyForced(t *testing.T, at Topology, forced Algorithms, op call.Operation) (direct bool) {
	t.Helper()
	plans, params := make([][]*plan.Plan, 2), make([][]plan.Params, 2)
	for _, s := range shapesOf(t, at) {
		s.Algorithms = forced
		op := op
		if op.Collective == plan.AllGather || op.Collective == plan.Gather {
			op.InCounts = op.OutCounts[s.Rank:][:1]
		}
		segments := s.Segments(&op, nil)
		with := []plan.Params{segments[0].Params}
		if p, ok := s.Direct(&op, segments); ok {
			direct, with = true, append(with, p)
		}
		for i, p := range with {
			built, err := plan.Build(p)
			if err != nil {
				t.Fatalf("%+v, %v: %v", at, forced, err)
			}
			plans[i], params[i] = append(plans[i], built), append(params[i], p)
		}
	}
	for i := range plans {
		if len(plans[i]) == 0 {
			continue
		}
		if err := plan.Verify(plans[i], params[i], false); err != nil {
			t.Fatalf("%+v, %v: %v", at, forced, err)
		}
	}
	return direct
}

// Averages of integers below 64 bits have no partial sums: they are reduced at once whatever is
// forced. All else may go in levels and along trees, in stages where it takes them.
func TestPartialSumsAreOfThoseThatNest(t *testing.T) {
	for _, forced := range []string{"", "allreduce:hierarchical;reduce:binomial_tree",
		"allreduce:recursive_multiplying;reduce_scatter:hierarchical"} {
		for _, at := range []Topology{{Size: 64, Memory: true}, {Size: 64, Ports: true, MultiHost: true,
			Memory: true, Group: 8}} {
			s := shapesOf(t, at)[0]
			var err error
			if s.Algorithms, err = ParseAlgorithms(forced); err != nil {
				t.Fatal(err)
			}
			for _, c := range []plan.Collective{plan.AllReduce, plan.Reduce, plan.ReduceScatter} {
				for _, n := range []uint64{1, 1000, 1 << 20} {
					for _, of := range []struct {
						dtype   reduce.DType
						op      reduce.Op
						may     bool
						partial int64
					}{{reduce.Float32, reduce.Sum, true, 0}, {reduce.Float32, reduce.Avg, true, 4},
						{reduce.BFloat16, reduce.Avg, true, 4}, {reduce.Int32, reduce.Avg, false, 0}} {
						op := operation(c, at.Size, n)
						op.DType, op.Op = of.dtype, of.op
						p := s.Params(&op)
						got := p.Algorithm.InLevels() || p.Algorithm == plan.BinomialTree
						if got && !of.may || !got && of.may && n == 1 || got && p.PartialSize != of.partial ||
							!got && p.PartialSize != 0 {
							t.Errorf("%q: %v of %d elements by %v, %+v, partial sums of %d bytes", forced, c, n,
								p.Algorithm, of, p.PartialSize)
						}
					}
				}
			}
		}
	}
}

// A schedule is kept also where it asks for another algorithm than the one that is forced.
func TestSchedulesComeFirst(t *testing.T) {
	s := shapesOf(t, Topology{Size: 4, Memory: true})[0]
	s.Algorithms = Algorithms{plan.AllToAll: {{Algorithm: plan.Linear}}}
	op := operation(plan.AllToAll, 4, 1)
	op.Schedule = plan.Sequential
	if got := s.Choose(&op); got != plan.Pairwise {
		t.Errorf("sequential goes by %v", got)
	}
	s.Schedule = plan.Sequential
	const want = "alltoall by linear needs a schedule without a window; allowed here are pairwise"
	if err := s.CheckAlgorithms(); err == nil || !strings.Contains(err.Error(), want) {
		t.Error(err)
	}
}
