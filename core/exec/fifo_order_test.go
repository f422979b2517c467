package exec

import (
	"fmt"
	"strings"
	"testing"
)

// Words of a FIFO of two places. What fills a place is one word.
const (
	fHead = iota
	fCached
	fTail
	fAsleep
	fDone
	fData // and the next one
	_
	fSequence // and the next one
)

const fifoSize = 2

// pushWay is how a producer pushes: as goccl_fifo_try_push, or wrongly.
type pushWay struct {
	sequenceFirst bool // before the fields
	relaxed       bool // sequence is stored without release
	unbounded     bool // it does not wait for tail
	lookFirst     bool // whether the proxy sleeps, before it takes a place
	silent        bool // it does not ring
}

// producerOf pushes so often. Register 0 has the position, which is what fills the place, but for
// 10.
func producerOf(times int, way pushWay) (p []step) {
	inPlace := func(s step) step {
		s.place = func(r *values) int8 { return r[0] % fifoSize }
		return s
	}
	room := func(r *values) bool { return r[0]-r[1] < fifoSize }
	for i := range times {
		again, taking, rung := fmt.Sprint("again ", i), fmt.Sprint("take ", i), fmt.Sprint("rung ", i)
		asleep := load(3, fAsleep, seqCst)
		if way.lookFirst {
			p = append(p, at(again, asleep))
			again = ""
		}
		p = append(p, at(again, load(0, fHead, relaxed)))
		if again = fmt.Sprint("again ", i); !way.unbounded {
			p = append(p, load(1, fCached, relaxed),
				jump(taking, room),
				load(1, fTail, relaxed),
				jump(again, func(r *values) bool { return !room(r) }),
				storeOf(fCached, release, func(r *values) int8 { return r[1] }))
		}
		next := func(r *values) int8 { return r[0] + 1 }
		p = append(p, at(taking, step{kind: opCAS, word: fHead, reg: 2, value: next}),
			jump(again, zero(2)))
		if !way.lookFirst {
			p = append(p, asleep)
		}
		order := release
		if way.relaxed {
			order = relaxed
		}
		data := inPlace(storeOf(fData, relaxed, func(r *values) int8 { return r[0] + 10 }))
		sequence := inPlace(storeOf(fSequence, order, next))
		if way.sequenceFirst {
			data, sequence = sequence, data
		}
		p = append(p, data, sequence)
		if !way.silent {
			p = append(p, jump(rung, zero(3)), swap(3, fAsleep, 0), jump(rung, zero(3)),
				step{kind: opWake})
		}
		p = append(p, at(rung, jump("", func(*values) bool { return false })))
	}
	return p
}

// takeWay is how the proxy takes triggers: as FIFO.Take and Sleep, or wrongly.
type takeWay struct {
	tailFirst bool // tail moves before the trigger is copied
	parity    bool // a place says in which of two laps it was filled, in place of the position
	sleeps    bool
	hasty     bool // it looks whether something is coming before it says that it sleeps
}

// consumerOf takes what lies at positions.
func consumerOf(from, to int8, way takeWay) (p []step) {
	for position := from; position < to; position++ {
		look, taking, awake := fmt.Sprint("look ", position), fmt.Sprint("take ", position),
			fmt.Sprint("awake ", position)
		word := uint8(position % fifoSize)
		there := func(r *values) bool { return r[0] == position+1 }
		if way.parity {
			lap := position / fifoSize
			there = func(r *values) bool { return r[0] > 0 && (r[0]-1)/fifoSize%2 == lap%2 }
		}
		p = append(p, at(look, load(0, fSequence+word, seqCst)), jump(taking, there))
		if way.sleeps {
			looks := []step{store(fAsleep, 1, seqCst), load(1, fHead, seqCst)}
			if way.hasty {
				looks[0], looks[1] = looks[1], looks[0]
			}
			p = append(append(p, looks...),
				jump(awake, not(1, position)),
				step{kind: opSleep, word: fAsleep, value: is(1)},
				at(awake, store(fAsleep, 0, seqCst)))
		}
		tail := store(fTail, position+1, seqCst)
		copies := load(1, fData+word, relaxed)
		p = append(p, jump(look, always))
		if way.tailFirst {
			p = append(p, at(taking, tail), copies)
		} else {
			p = append(p, at(taking, copies), tail)
		}
		p = append(p, hold(fmt.Sprintf("trigger %d is another one", position),
			func(r *values) bool { return r[1] == position+10 }))
	}
	return p
}

func TestFIFOOrders(t *testing.T) {
	fifo := func(pushes []int, push pushWay, take takeWay) scenario {
		all := int8(0)
		var programs [][]step
		for _, n := range pushes {
			programs = append(programs, producerOf(n, push))
			all += int8(n)
		}
		return scenario{append(programs, consumerOf(0, all, take)), memoryOf(), fine}
	}
	two, three := []int{2, 2}, []int{2, 1, 1} // two laps
	// A producer that was two laps late stores what it had, before the place is filled again.
	late := func(take takeWay) scenario {
		return scenario{[][]step{
			{store(fData, 10, relaxed), store(fSequence, 1, release), store(fDone, 1, release)},
			{at("await", load(0, fDone, seqCst)), jump("await", zero(0)), store(fData, 14, relaxed),
				store(fSequence, 5, release)},
			consumerOf(4, 5, take),
		}, memoryOf(fHead, 5, fTail, 4), fine}
	}
	for _, test := range []struct {
		name  string
		p     scenario
		found string // as in TestChannelOrders
	}{
		{"two producers", fifo(two, pushWay{}, takeWay{}), ""},
		{"three producers", fifo(three, pushWay{}, takeWay{}), ""},
		{"a consumer that sleeps", fifo(two, pushWay{}, takeWay{sleeps: true}), ""},
		{"a producer that is late", late(takeWay{}), ""},

		{"sequence before fields", fifo(two, pushWay{sequenceFirst: true}, takeWay{}), "all"},
		{"sequence without release", fifo(two, pushWay{relaxed: true}, takeWay{}), "weak"},
		{"tail before the copy", fifo(two, pushWay{}, takeWay{tailFirst: true}), "all"},
		{"no wait for tail", fifo(two, pushWay{unbounded: true}, takeWay{}), "all"},
		{"parity in place of the position", late(takeWay{parity: true}), "all"},
		{"asleep before head", fifo([]int{1, 1}, pushWay{lookFirst: true}, takeWay{sleeps: true}),
			"all"},
		{"no bell", fifo([]int{1, 1}, pushWay{silent: true}, takeWay{sleeps: true}), "all"},
		{"a look before it sleeps", fifo([]int{1, 1}, pushWay{}, takeWay{sleeps: true, hasty: true}),
			"all"},
	} {
		t.Run(strings.ReplaceAll(test.name, " ", "_"), func(t *testing.T) {
			for _, weak := range []bool{false, true} {
				wrong, states := explore(test.p, weak)
				want := test.found == "all" || test.found == "weak" && weak
				if (wrong != "") != want {
					t.Errorf("stores pass: %v: found %q in %d states, want a fault: %v", weak, wrong, states,
						want)
				}
				t.Logf("stores pass: %v: %d states, %s", weak, states, wrong)
			}
		})
	}
}
