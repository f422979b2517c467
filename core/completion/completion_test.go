package completion

import (
	"fmt"
	"reflect"
	"slices"
	"testing"
)

// What becomes of collectives is decided from what the ranks have come to.
func TestJudge(t *testing.T) {
	const epoch = 3
	of := func(begun, finished uint64, has ...uint64) Progress {
		p := Progress{Epoch: epoch, Begun: begun, Finished: finished}
		for _, s := range has {
			p.Has = append(p.Has, Result{epoch, s, 8})
		}
		return p
	}
	old := func(p Progress, has, lacks []uint64) Progress {
		for _, s := range has {
			p.Has = append(p.Has, Result{epoch - 1, s, 8})
		}
		for _, s := range lacks {
			p.Lacks = append(p.Lacks, Result{epoch - 1, s, 8})
		}
		return p
	}
	get := func(epoch uint32, s uint64, from int) Fetch { return Fetch{Result{epoch, s, 8}, from} }
	for name, test := range map[string]struct {
		of   map[int]Progress
		want Judgement
	}{
		"all are as far": {map[int]Progress{0: of(5, 5, 4, 5), 2: of(6, 5, 4, 5)},
			Judgement{Begun: 5, Ended: 5, Finished: 5}},
		"one has ended it": {map[int]Progress{0: of(5, 4, 3, 4), 1: of(5, 5, 4, 5), 2: of(5, 5, 4, 5)},
			Judgement{Begun: 5, Ended: 4, Finished: 5, Fetch: []Fetch{get(epoch, 5, 1)}}},
		"one is two behind": {map[int]Progress{0: of(6, 6, 5, 6), 1: of(6, 4, 3, 4)},
			Judgement{Begun: 6, Ended: 4, Finished: 6,
				Fetch: []Fetch{get(epoch, 5, 0), get(epoch, 6, 0)}}},
		"one has not called it": {map[int]Progress{0: of(6, 6, 5, 6), 1: of(5, 4, 3, 4)},
			Judgement{Begun: 5, Ended: 4, Finished: 6, Fetch: []Fetch{get(epoch, 5, 0)}}},
		"none that lives has it": {map[int]Progress{0: of(5, 5, 4), 1: of(5, 4, 3, 4)},
			Judgement{Begun: 5, Ended: 4, Finished: 5}},
		"passed on to some": {map[int]Progress{0: old(of(2, 2), nil, []uint64{7}),
			1: old(of(2, 2), []uint64{7}, nil), 2: old(of(2, 2), []uint64{7}, nil)},
			Judgement{Begun: 2, Ended: 2, Finished: 2, Fetch: []Fetch{get(epoch-1, 7, 1)}}},
		"passed on to all": {map[int]Progress{0: old(of(2, 2), []uint64{7}, nil), 1: of(2, 2),
			2: old(of(2, 2), []uint64{7}, nil)}, Judgement{Begun: 2, Ended: 2, Finished: 2}},
		"of two epochs": {map[int]Progress{0: old(of(6, 5, 4, 5), []uint64{8}, nil),
			1: old(of(6, 4, 3, 4), nil, []uint64{8})}, Judgement{Begun: 6, Ended: 4, Finished: 5,
			Fetch: []Fetch{get(epoch-1, 8, 0), get(epoch, 5, 0)}}},
		"an old one has the next number": {map[int]Progress{0: old(of(6, 5), []uint64{6}, nil),
			1: of(6, 5)}, Judgement{Begun: 6, Ended: 5, Finished: 5}},
		"passed on to none": {map[int]Progress{0: old(of(2, 2), []uint64{7}, []uint64{8}),
			1: old(of(2, 2), []uint64{7}, []uint64{8})}, Judgement{Begun: 2, Ended: 2, Finished: 2}},
	} {
		if got := Judge(test.of); !reflect.DeepEqual(got, test.want) {
			t.Errorf("%s: %+v; want %+v", name, got, test.want)
		}
	}
}

// kind is how ranks do a collective.
type kind uint8

const (
	short     kind = iota // each rank's work ends by itself, and keeps the result
	confirmed             // works end after a barrier, which has the next number
	reduced               // likewise, and rank 0 alone has a result
	barrier
	kinds
)

func (k kind) confirms() bool { return k == confirmed || k == reduced }

// history is what some ranks of a group have called, and how far each has come with that.
type history struct {
	calls []kind
	ranks []state
}

// state is that of a rank: how many collectives it has called and ended, those of confirmed ones
// among them. It has begun the next one, if that is called.
type state struct{ called, ended int }

// numbers are the kinds of the collectives by their numbers, from 1 on, those that confirm among
// them.
func (h *history) numbers() (all []kind) {
	for _, k := range h.calls {
		all = append(all, k)
		if k.confirms() {
			all = append(all, barrier)
		}
	}
	return all
}

// histories are all that can be of so many ranks and calls: no rank ends a collective that another
// one has not begun.
func histories(ranks, calls int) (all []history) {
	var kindsOf func(n int) [][]kind
	kindsOf = func(n int) [][]kind {
		if n == 0 {
			return [][]kind{nil}
		}
		var all [][]kind
		for _, before := range kindsOf(n - 1) {
			for k := range kinds {
				all = append(all, append(slices.Clone(before), k))
			}
		}
		return all
	}
	for _, k := range kindsOf(calls) {
		// A rank may have called any whole works, and have ended some of what it has called.
		var states []state
		called := 0
		for i := -1; i < len(k); i++ {
			if i >= 0 {
				called++
				if k[i].confirms() {
					called++
				}
			}
			for ended := range called + 1 {
				states = append(states, state{called, ended})
			}
		}
		var build func(ranks []state)
		build = func(of []state) {
			if len(of) < ranks {
				for _, s := range states {
					build(append(slices.Clone(of), s))
				}
				return
			}
			for _, s := range of {
				for _, other := range of {
					if s.ended > other.called || s.ended > other.ended+1 {
						return
					}
				}
			}
			all = append(all, history{k, of})
		}
		build(nil)
	}
	return all
}

// has reports whether a rank has the result of a collective that it has ended: it keeps those of
// the last two short ones, and has that of a work that has not ended.
func (h *history) has(rank, number int) bool {
	numbers := h.numbers()
	s := h.ranks[rank]
	switch numbers[number-1] {
	case short:
		return number <= s.ended && number+2 > s.ended
	case reduced:
		return number == s.ended && rank == 0
	case confirmed:
		return number == s.ended // the barrier that follows has not ended
	}
	return false
}

func (h *history) progress(rank int) Progress {
	s := h.ranks[rank]
	p := Progress{Epoch: 1, Begun: uint64(s.called), Finished: uint64(s.ended)}
	for number := s.ended; number > 0; number-- {
		if h.has(rank, number) {
			p.Has = append(p.Has, Result{1, uint64(number), 8})
		}
	}
	return p
}

// worksEnded reports whether the work of a collective has ended on a rank.
func (h *history) workEnded(rank, number int) bool {
	numbers := h.numbers()
	if numbers[number-1].confirms() {
		number++
	}
	return h.ranks[rank].ended >= number
}

func (h *history) collective(number int) Collective {
	numbers := h.numbers()
	return Collective{Epoch: 1, Sequence: uint64(number), Empty: numbers[number-1] == barrier,
		Confirmed: numbers[number-1].confirms()}
}

// Whatever three ranks have called and ended, whichever of them dies: the others agree on each
// collective. Either all have its result, or all run it again, and then no work with it has ended
// on any of them. What one has that lives is not lost.
func TestOutcomes(t *testing.T) {
	cases := 0
	for calls := 1; calls <= 2; calls++ {
		for _, h := range histories(3, calls) {
			for dead := range 3 {
				left := slices.DeleteFunc([]int{0, 1, 2}, func(r int) bool { return r == dead })
				checkOutcomes(t, &h, left)
				cases++
			}
		}
	}
	if cases < 1000 {
		t.Errorf("there are %d cases", cases)
	}
}

func checkOutcomes(t *testing.T, h *history, left []int) {
	t.Helper()
	of := map[int]Progress{}
	for _, rank := range left {
		of[rank] = h.progress(rank)
	}
	j := Judge(of)
	for _, f := range j.Fetch {
		if !h.has(f.From, int(f.Sequence)) {
			t.Fatalf("%+v: rank %d has not what it is to pass on: %+v", h, f.From, f)
		}
	}
	numbers := h.numbers()
	for number, kind := range numbers {
		number++
		if number > 1 && kind == barrier && numbers[number-2].confirms() {
			continue // it is no operation of a caller
		}
		got := map[int]Outcome{}
		known, ended := false, false
		for _, rank := range left {
			known = known || h.has(rank, number)
			ended = ended || h.workEnded(rank, number)
			if h.ranks[rank].called >= number && !h.workEnded(rank, number) {
				got[rank] = j.Outcome(h.collective(number), of[rank].Finished)
			}
		}
		for rank, o := range got {
			// Of a reduce only the root needs the bytes.
			unneeded := kind == barrier || kind == reduced && rank != 0 && h.ranks[rank].ended >= number
			here := unneeded || h.has(rank, number)
			what := fmt.Sprintf("%+v, %v are left, rank %d, collective %d: outcome %d", *h, left, rank,
				number, o)
			if o == HasResult && !here {
				t.Fatal(what, ", and it has no result")
			}
			if o == Awaits && (here || !j.passes(h.collective(number))) {
				t.Fatal(what, ", and nobody passes it on")
			}
			if o == Reruns && ended {
				t.Fatal(what, ", and a work with it has ended")
			}
			if o == Lost && kind != short {
				t.Fatal(what, ", which needs nobody's result")
			}
			if o == Lost && known {
				t.Fatal(what, ", and a rank has the result")
			}
			for other, p := range got {
				if (o == Reruns) != (p == Reruns) {
					t.Fatal(what, ", of rank ", other, " ", p)
				}
			}
		}
	}
}

// While results are passed on another of three ranks dies, before or after each: what is left has
// them, or gets them from one that has them, or all run them again.
func TestReconsider(t *testing.T) {
	results := []Result{{1, 4, 8}, {1, 5, 8}}
	// Which of the three ranks have which result when one dies, a bit for each.
	for state := range uint(1 << 6) {
		has := func(rank, i int) bool { return state>>(2*rank+i)&1 != 0 }
		for dead := range 3 {
			of := map[int]Progress{}
			for rank := range 3 {
				if rank == dead {
					continue
				}
				p := Progress{Epoch: 2, Begun: 3, Finished: 2} // of collectives of the epoch between
				for i, r := range results {
					if has(rank, i) {
						p.Has = append(p.Has, r)
					} else {
						p.Lacks = append(p.Lacks, r)
					}
				}
				of[rank] = p
			}
			j := Judge(of)
			for i, r := range results {
				c := Collective{Epoch: r.Epoch, Sequence: r.Sequence}
				known := false
				for rank := range of {
					known = known || has(rank, i)
				}
				for rank := range of {
					next := Reruns
					switch {
					case has(rank, i):
						next = HasResult
					case known:
						next = Awaits
					}
					for before, want := range map[Outcome]Outcome{HasResult: HasResult, Awaits: next,
						Reruns: Reruns, Lost: Lost} {
						if got := j.Reconsider(before, c, has(rank, i)); got != want {
							t.Errorf("%06b without %d: outcome %d becomes %d, want %d", state, dead, before, got,
								want)
						}
					}
				}
			}
		}
	}
}

// The number of a collective of another epoch means nothing.
func TestOtherEpoch(t *testing.T) {
	j := Judgement{Begun: 3, Ended: 1, Finished: 3, Fetch: []Fetch{{Result{1, 2, 8}, 0}}}
	if got := j.Outcome(Collective{Epoch: 1, Sequence: 2}, 1); got != Awaits {
		t.Errorf("of the epoch: outcome %d", got)
	}
	if got := j.Outcome(Collective{Epoch: 2, Sequence: 2}, 1); got != Lost {
		t.Errorf("of another one: outcome %d", got)
	}
}

func TestRoots(t *testing.T) {
	rank := func(old int) (int, bool) { return old - 1, old != 0 } // the first has died
	for _, c := range []struct {
		outcome    Outcome
		root, want int
		lost       bool
	}{
		{HasResult, 0, 0, false}, {HasResult, 2, 2, false},
		{Awaits, 2, 1, false}, {Awaits, 0, NoRoot, false}, {Awaits, NoRoot, NoRoot, false},
		{Reruns, 2, 1, false}, {Reruns, 0, NoRoot, true}, {Reruns, NoRoot, NoRoot, true},
		{Lost, 0, NoRoot, false},
	} {
		if got, lost := Root(c.outcome, c.root, rank); got != c.want || lost != c.lost {
			t.Errorf("%+v: %d, %v", c, got, lost)
		}
	}
}
