package p2p

import (
	"math/rand/v2"
	"testing"

	"github.com/goccl/goccl/core/call"
)

func TestMatcherKeepsOrder(t *testing.T) {
	// Against a model: the first arrival, in order, that matches each receive.
	rng := rand.New(rand.NewPCG(1, 1))
	for range 200 {
		var m matcher
		var waiting []*arrival
		var posted []*receive
		for step := range 100 {
			if rng.IntN(2) == 0 {
				a := &arrival{source: rng.IntN(3), tag: rng.IntN(2), id: uint64(step)}
				got := m.arrive(a)
				var want *receive
				for i, r := range posted {
					if r.matches(a) {
						want = r
						posted = append(posted[:i:i], posted[i+1:]...)
						break
					}
				}
				if got != want {
					t.Fatal("another receive")
				}
				if want == nil {
					waiting = append(waiting, a)
				}
				continue
			}
			r := &receive{source: rng.IntN(4) - 1, bulk: bulk{op: &call.Operation{Tag: rng.IntN(2)}}}
			got := m.post(r)
			var want *arrival
			for i, a := range waiting {
				if r.matches(a) {
					want = a
					waiting = append(waiting[:i:i], waiting[i+1:]...)
					break
				}
			}
			if got != want {
				t.Fatal("another arrival")
			}
			if want == nil {
				posted = append(posted, r)
			}
		}
	}
}
