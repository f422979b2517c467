package tune

import (
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/plan"
)

// The explanation is of what is run: as many messages as peers in levels, few for many ranks, and
// the algorithm that is forced.
func TestExplain(t *testing.T) {
	q := Question{Collective: "allreduce", Ranks: 4096, PerHost: 64, CPUs: 64, Bytes: 4}
	e, err := Explain(q, Options{LongMost: longMost})
	if err != nil {
		t.Fatal(err)
	}
	product, peers := 1, 0
	for _, l := range e.Levels {
		if l.Stride != product || l.Far != (l.Stride*l.Radix > 64) || l.Micros <= 0 {
			t.Errorf("a level %+v above %d ranks", l, product)
		}
		product, peers = product*l.Radix, peers+l.Radix-1
	}
	if product != q.Ranks || e.Peers != peers || e.Messages != peers || peers > 40 ||
		e.Sent != int64(4*peers) || len(e.Others) != 3 {
		t.Errorf("%+v", e)
	}
	for _, other := range e.Others {
		inLevels := other.Algorithm == plan.Hierarchical.String()
		if other.Micros <= e.Micros || (other.Radices != nil) != inLevels {
			t.Errorf("%s takes %g us, not taken: %+v", e.Algorithm, e.Micros, other)
		}
	}
	q = Question{Collective: "allgather", Ranks: 4, PerHost: 4, CPUs: 4, Ports: true, Bytes: 1 << 30}
	e, err = Explain(q, Options{LongMost: longMost, Algorithms: "allgather:linear"})
	if err != nil || e.Algorithm != "linear" || e.Levels != nil || e.Plans != 16 ||
		e.Sent != 3<<28 {
		t.Errorf("%+v, %v", e, err)
	}
	// Of the last plan's four bytes only one rank has a slice.
	q = Question{Collective: "allreduce", Ranks: 8, PerHost: 1, CPUs: 1, Bytes: 64<<20 + 4}
	e, err = Explain(q, Options{LongMost: longMost, Algorithms: "allreduce:two_shot"})
	if err != nil || e.Plans != 2 || e.Peers != 7 {
		t.Errorf("%+v, %v", e, err)
	}
	for forced, levels := range map[string]int{ // a few ranks, which go in levels only if told to
		"allreduce:hierarchical(2,4)": 2, "allreduce:two_shot": 0, "allreduce:binomial_tree": 0} {
		q = Question{Collective: "allreduce", Ranks: 8, PerHost: 8, CPUs: 8, Bytes: 1 << 20}
		e, err = Explain(q, Options{LongMost: longMost, Algorithms: forced})
		if err != nil || len(e.Levels) != levels || e.Others != nil {
			t.Errorf("%s: %+v, %v", forced, e, err)
		}
	}
	// The estimate is of the radices that are named, and is the sum of what their levels take.
	q = Question{Collective: "allreduce", Ranks: 64, PerHost: 64, CPUs: 64, Bytes: 64}
	e, err = Explain(q, Options{Algorithms: "allreduce:two_shot,recursive_multiplying(2,32)"})
	if err != nil || len(e.Levels) != 2 || len(e.Others) != 1 ||
		math.Abs(e.Micros-e.Levels[0].Micros-e.Levels[1].Micros) > 0.002 {
		t.Errorf("%+v, %v", e, err)
	}
	// What is moved goes host by host, however ranks are numbered; a sum does not.
	for c, ordered := range map[string]bool{"broadcast": true, "allgather": true, "allreduce": false} {
		q = Question{Collective: c, Ranks: 64, PerHost: 16, PerDomain: 4, CPUs: 16, ByTurns: true,
			Bytes: 1 << 20}
		e, err = Explain(q, Options{LongMost: longMost, Algorithms: c + ":hierarchical(2,2,4,4)"})
		if err != nil || e.Ordered != ordered || len(e.Levels) != 4 {
			t.Errorf("%+v, %v", e, err)
			continue
		}
		for i, l := range e.Levels {
			if l.Domain != (ordered && i < 2) || l.Far != (!ordered || i > 2) {
				t.Errorf("%s: level %d is %+v", c, i, l)
			}
		}
	}
	for want, q := range map[string]Question{
		"collective is \"sum\"":                   {Collective: "sum", Ranks: 1, PerHost: 1},
		"ranks is 70000, allowed are 1 to 65536":  {Collective: "reduce", Ranks: 70000},
		"ranks_per_host is 0, allowed are 1 to 2": {Collective: "reduce", Ranks: 2},
		"ranks_per_domain is 3, allowed are 0 to 2, tho": {Collective: "reduce", Ranks: 2, PerHost: 2,
			PerDomain: 3},
		"bytes is 1099511627777, allowed are 0 to 1099": {Collective: "reduce", Ranks: 2, PerHost: 2,
			CPUs: 1, Bytes: 1<<40 + 1},
	} {
		_, err := Explain(q, Options{})
		var told *fault.Error
		if !errors.As(err, &told) || told.Kind != fault.ErrInvalidArgument ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", q, err, want)
		}
	}
}
