package sim

import (
	"cmp"
	"fmt"
	"slices"
	"testing"

	"github.com/goccl/goccl/core/plan"
	"github.com/goccl/goccl/core/tune"
)

// cell is a collective of a group: what was chosen for it, and what is best.
type cell struct {
	tune.Question
	chosen, best string
	took, least  float64 // microseconds
}

func (c *cell) over() float64 { return c.took / c.least }

// TestChosenIsNearBest simulates all algorithms of collectives on a grid of groups and sizes: what
// is chosen, by costs that are estimated in a microsecond, is near the best.
func TestChosenIsNearBest(t *testing.T) {
	var cells []cell
	for _, group := range [][2]int{{4, 1}, {8, 1}, {16, 1}, {32, 1}, {64, 1}, {8, 2}, {16, 4}, {32, 8},
		{64, 16}, {8, 8}, {16, 16}, {32, 32}, {64, 64}} {
		for c := plan.AllReduce; c <= plan.AllToAll; c++ {
			for _, bytes := range []uint64{4, 1 << 10, 16 << 10, 256 << 10, 4 << 20} {
				q := tune.Question{Collective: c.String(), Ranks: group[0], PerHost: group[1], CPUs: group[1],
					Bytes: bytes}
				if e, err := tune.Explain(q, tune.Options{}); err != nil {
					t.Fatal(err)
				} else if len(e.Others) > 0 { // else sizes decide, which are measured
					cells = append(cells, tried(t, q, c))
				}
			}
		}
	}
	slices.SortStableFunc(cells, func(a, b cell) int { return cmp.Compare(b.over(), a.over()) })
	near := 0
	for i := range cells {
		c := &cells[i]
		if c.over() <= 1.15 {
			near++
		}
		t.Logf("%-14s %2d ranks, %2d a host, %7d bytes: %5.2f: %s %.1f us, %s %.1f", c.Collective,
			c.Ranks, c.PerHost, c.Bytes, c.over(), c.chosen, c.took, c.best, c.least)
	}
	t.Logf("%d of %d are within 15 %% of the best", near, len(cells))
	if len(cells) < 300 || 100*near < 95*len(cells) {
		t.Errorf("of %d %d are within 15 %% of the best, want 95 of 100; -v shows all", len(cells), near)
	}
}

// tried simulates a collective by what is chosen, and by all algorithms.
func tried(t *testing.T, q tune.Question, c plan.Collective) cell {
	t.Helper()
	run := func(algorithms string) (string, float64) {
		o := tune.Options{Algorithms: algorithms}
		g, err := tune.NewGroup("simulate", q, o)
		if err != nil {
			return "", 0 // it cannot be done so
		}
		_, r := group(t, q, "star:25g", algorithms)
		return g.Algorithm().String(), r.Last
	}
	found := cell{Question: q}
	found.chosen, found.took = run("")
	found.best, found.least = found.chosen, found.took
	for _, a := range plan.Algorithms(c) {
		if a == plan.Direct || a.String() == found.chosen {
			continue
		}
		if name, took := run(fmt.Sprintf("%v:%v", c, a)); name != "" && took < found.least {
			found.best, found.least = name, took
		}
	}
	return found
}
