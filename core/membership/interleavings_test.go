package membership

import (
	"slices"
	"testing"
)

// TestInterleavedAgreement has three ranks agree in every order in which a few messages can come,
// with or without a crash of one of them at any place, whose proof comes to one or the other first,
// and then to an end. That is tried with the latest message first, too.
func TestInterleavedAgreement(t *testing.T) {
	depth := 7
	if testing.Short() {
		depth = 5
	}
	s := setting{members: 3, minSize: 1}
	begins := []command{{"begin", []int{0}}, {"begin", []int{1}}, {"begin", []int{2}}}
	n := 0
	var visit func(history []command)
	visit = func(history []command) {
		w := s.world()
		for _, c := range history {
			w.perform(c)
		}
		if len(history) < len(begins)+depth {
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
	visit(begins)
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
