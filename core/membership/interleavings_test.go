package membership

import (
	"slices"
	"strings"
	"testing"
)

// beginnings are what has happened before all orders are tried, and how many events these have.
var beginnings = []struct {
	members, depth int
	commands       string
}{
	{3, 7, "begin 0, begin 1, begin 2"},
	// 0 and 1 have decided, and died.
	{4, 6, "begin 0, begin 1, begin 2, begin 3, deliver 0 1, deliver 0 2, deliver 0 3, " +
		"deliver 1 0 1, deliver 2 0 1, deliver 3 0 1, deliver 0 1, deliver 1 0 1, " +
		"lose 0 2, lose 0 2, crash 0, crash 1, prove 2 0, prove 2 1, lose 3 0, lose 2 0, lose 2 1"},
	// 0 has accepted its value, 2 another one, and 1 has decided it.
	{3, 6, "begin 0, begin 1, begin 2, deliver 0 1, lose 0 2, deliver 1 0 1, tick 0, lose 0 1, " +
		"lose 0 2, suspect 1 0, suspect 2 0, deliver 1 2, deliver 2 1 1, deliver 1 2, " +
		"deliver 2 1 1, lose 1 2, crash 1, lose 1 0, lose 1 0, lose 1 0, lose 1 0"},
}

// TestInterleavedAgreement has ranks agree in every order in which a few messages can come, with or
// without a crash of one of them at any place, whose proof comes to one or the other first. Then
// they come to an end, once with the oldest message first, and once with the latest.
func TestInterleavedAgreement(t *testing.T) {
	for _, b := range beginnings {
		var history []command
		for line := range strings.SplitSeq(b.commands, ", ") {
			history = append(history, parse(strings.Fields(line)))
		}
		if testing.Short() {
			b.depth -= 2
		}
		interleave(t, setting{members: b.members, minSize: 1}, history, b.depth)
	}
}

func interleave(t *testing.T, s setting, beginning []command, depth int) {
	t.Helper()
	n := 0
	var visit func(history []command)
	visit = func(history []command) {
		w := s.world()
		for _, c := range history {
			w.perform(c)
		}
		if len(history) < len(beginning)+depth {
			for _, c := range choices(w) {
				visit(append(slices.Clone(history), c))
			}
		}
		for late := range 2 {
			n++
			ends := append(slices.Clone(history), command{"finish", []int{0, late}})
			if broken := replay(s, ends); broken != "" {
				t.Fatalf("%s\n%s", broken, script(s, minimise(s, ends)))
			}
		}
	}
	visit(beginning)
	t.Log(n, "histories")
}

// choices are what can come next: any message, a crash while none has crashed, and its proof.
func choices(w *world) (all []command) {
	seen := map[[2]int]int{}
	for _, e := range w.flight {
		way := [2]int{e.from, e.to}
		if !w.processes[e.to].ended() {
			all = append(all, command{"deliver", []int{e.from, e.to, seen[way]}})
		}
		seen[way]++
	}
	dead := slices.IndexFunc(w.processes, (*process).ended)
	for _, p := range w.processes {
		switch s := p.seat(); {
		case dead < 0:
			all = append(all, command{"crash", []int{p.id}})
		case s != nil && slices.Contains(s.members, dead):
			if !s.agreement.ended.Has(slices.Index(s.members, dead)) {
				all = append(all, command{"prove", []int{p.id, dead}})
			}
		}
	}
	return all
}
