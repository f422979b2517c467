package order

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/goccl/goccl/core/call"
	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/internal/scripts"
	"github.com/goccl/goccl/core/plan"
	"github.com/goccl/goccl/core/reduce"
)

// list is a log that keeps as many collectives as a rank's does.
type list struct {
	all    []plan.Message
	queued []plan.Message
}

func (l *list) Last() uint64 { return uint64(len(l.all)) }

func (l *list) At(number uint64) plan.Message {
	if last := l.Last(); number == 0 || number > last || last-number >= MaxRefusals {
		return plan.Message{}
	}
	return l.all[number-1]
}

func (l *list) Append(m *plan.Message) {
	m.Sequence = l.Last() + 1
	l.all = append(l.all, *m)
}

func (l *list) Queued(first, last uint64) (plan.Message, bool) {
	for _, m := range l.queued {
		if first <= m.Sequence && m.Sequence <= last {
			return m, true
		}
	}
	return plan.Message{}, false
}

// ranks are those of a group, with the announcements that are on their way.
type ranks struct {
	orders []Order
	logs   []*list
	wires  map[[2]int][][]byte // by sender and receiver
	tells  map[[2]int]bool     // peers that Refuse has named, and Tell not yet served
	told   *fault.Error        // the first mismatch
}

func newRanks(n int) *ranks {
	r := &ranks{wires: map[[2]int][][]byte{}, tells: map[[2]int]bool{}}
	pids := make([]int, n)
	for rank := range pids {
		pids[rank] = 100 + rank
	}
	members := fault.NewGroup("test", nil, pids)
	for rank := range n {
		r.logs = append(r.logs, &list{})
		r.orders = append(r.orders, New(r.logs[rank], &members, rank, 7, 0))
	}
	return r
}

func (r *ranks) found(err *fault.Error) {
	if r.told == nil {
		r.told = err
	}
}

func (r *ranks) call(rank int, m plan.Message) { r.found(r.orders[rank].Start(&m)) }

func (r *ranks) refuse(rank int, why string) {
	peers, err := r.orders[rank].Refuse(why)
	r.found(err)
	for _, peer := range peers {
		r.tells[[2]int{rank, peer}] = true
	}
}

// tell has a rank tell a peer of what it was refused, once, if it is to.
func (r *ranks) tell(rank, peer int) bool {
	wire := [2]int{rank, peer}
	if !r.tells[wire] {
		return false
	}
	b, _, ok := r.orders[rank].Tell(peer)
	if ok {
		r.wires[wire] = append(r.wires[wire], b)
	} else {
		delete(r.tells, wire)
	}
	return true
}

// wait has a rank announce that it waits in its last call.
func (r *ranks) wait(rank int) {
	m := r.logs[rank].At(r.logs[rank].Last())
	for peer := range r.orders {
		if peer != rank {
			r.wires[[2]int{rank, peer}] = append(r.wires[[2]int{rank, peer}], Encode(m))
		}
	}
}

// deliver brings a rank the next announcement of another, if there is one.
func (r *ranks) deliver(from, to int) bool {
	wire := [2]int{from, to}
	if len(r.wires[wire]) == 0 {
		return false
	}
	b := r.wires[wire][0]
	r.wires[wire] = r.wires[wire][1:]
	a, err := DecodeAnnouncement(b)
	if err != nil {
		panic(err)
	}
	r.found(r.orders[to].Hear(from, a))
	return true
}

// message is what "allreduce f32 8", "broadcast f32 8 1" (of root 1) and "barrier" call.
func message(words []string) plan.Message {
	op := call.Operation{DType: reduce.Float32}
	for op.Collective = range plan.Send {
		if op.Collective.String() == words[0] {
			break
		}
	}
	if len(words) > 2 {
		n, _ := strconv.ParseUint(words[2], 10, 64)
		op.InCounts, op.OutCounts = []uint64{n}, []uint64{n}
	}
	if len(words) > 3 {
		op.Root, _ = strconv.Atoi(words[3])
	}
	return op.Message()
}

// TestScripts runs the scripts of testdata. The commands are
//
//	ranks N             begins anew, with N ranks
//	call RANK WHAT      such as call 0 allreduce f32 8
//	queue RANK WHAT     the same, of a call that does not end
//	refuse RANK WHY     a call is refused
//	wait RANK           the rank announces what it waits in
//	deliver FROM TO     all that is on its way
//	repeat N COMMAND
//	state               what each rank keeps
func TestScripts(t *testing.T) {
	scripts.Run(t, func() func([]string) []string {
		var r *ranks
		return func(words []string) []string { return perform(&r, words) }
	})
}

func perform(r **ranks, words []string) (answer []string) {
	number := func(i int) int {
		n, err := strconv.Atoi(words[i])
		if err != nil {
			panic(err)
		}
		return n
	}
	switch words[0] {
	case "ranks":
		*r = newRanks(number(1))
	case "call":
		(*r).call(number(1), message(words[2:]))
	case "queue":
		(*r).call(number(1), message(words[2:]))
		l := (*r).logs[number(1)]
		l.queued = append(l.queued, l.At(l.Last()))
	case "refuse":
		(*r).refuse(number(1), strings.Join(words[2:], " "))
	case "wait":
		(*r).wait(number(1))
	case "deliver":
		for (*r).tell(number(1), number(2)) {
		}
		for (*r).deliver(number(1), number(2)) {
		}
	case "repeat":
		for range number(1) {
			answer = append(answer, perform(r, words[2:])...)
		}
	case "state":
		for rank := range (*r).orders {
			answer = append(answer, fmt.Sprintf("%d: %v", rank, &(*r).orders[rank]))
		}
	default:
		panic("no such command: " + words[0])
	}
	if err := (*r).told; err != nil {
		answer = append(answer, err.Text, fmt.Sprintf("calls %v", err.Calls))
		(*r).told = nil
	}
	return answer
}

// TestInterleavings lets ranks do what they do, be told of refusals, and hear, in every order.
// Ranks that call the same are never said to differ. Where two differ at a place, some rank finds
// it out, once every rank has announced that it waits, and all has arrived.
func TestInterleavings(t *testing.T) {
	for _, script := range []struct {
		name   string
		ranks  []string // what each does, in order
		differ bool
	}{
		{"the same", []string{"call barrier, wait", "call barrier, wait", "call barrier, wait"}, false},
		{"one differs", []string{"call barrier, wait", "call allreduce f32 8, wait",
			"call barrier, wait"}, true},
		{"counts differ", []string{"call allreduce f32 8, wait", "call allreduce f32 8, wait",
			"call allreduce f32 9, wait"}, true},
		{"all are refused", []string{"refuse a", "refuse b", "refuse c"}, false},
		{"one is refused", []string{"refuse a", "call barrier, wait", "call barrier, wait"}, true},
		{"two are refused", []string{"refuse a", "refuse b", "call barrier, wait"}, true},
		{"all are refused first", []string{"refuse a, call barrier, wait",
			"refuse b, call barrier, wait", "refuse c, call barrier, wait"}, false},
		{"one is refused later", []string{"call barrier, refuse a", "call barrier, call barrier, wait",
			"call barrier, call barrier, wait"}, true},
		{"one is refused once more", []string{"refuse a, refuse a", "refuse b, call barrier, wait",
			"refuse c, call barrier, wait"}, true},
		{"one is refused another", []string{"refuse a, call barrier, wait", "call barrier, refuse b",
			"call barrier, call barrier, wait"}, true},
		{"one has left one out", []string{"call barrier, call allreduce f32 8, wait",
			"call allreduce f32 8, wait", "call barrier, call allreduce f32 8, wait"}, true},
		{"two are refused twice", []string{"refuse a, refuse b, call barrier, wait",
			"refuse c, refuse c, call barrier, wait"}, false},
		{"one of two is refused once more", []string{"refuse a, refuse a, refuse a, call barrier, wait",
			"refuse c, refuse d, call barrier, call barrier, wait"}, true},
	} {
		t.Run(script.name, func(t *testing.T) {
			interleave(t, script.ranks, script.differ)
		})
	}
}

// interleave runs what the ranks do in every order, and looks at the ends.
func interleave(t *testing.T, scripts []string, differ bool) {
	n := len(scripts)
	var steps [][]string
	for _, s := range scripts {
		steps = append(steps, strings.Split(s, ", "))
	}
	// A move is a rank's next step (from is to), the next arrival on a wire, or what a rank tells.
	type move struct {
		from, to int
		tells    bool
	}
	var moves []move
	for from := range n {
		for to := range n {
			moves = append(moves, move{from, to, false})
			if from != to {
				moves = append(moves, move{from, to, true})
			}
		}
	}
	replay := func(path []move) (r *ranks, done []int) {
		r, done = newRanks(n), make([]int, n)
		for _, m := range path {
			if m.from != m.to {
				if m.tells {
					r.tell(m.from, m.to)
				} else {
					r.deliver(m.from, m.to)
				}
				continue
			}
			words := strings.Fields(steps[m.from][done[m.from]])
			done[m.from]++
			switch words[0] {
			case "call":
				r.call(m.from, message(words[1:]))
			case "refuse":
				r.refuse(m.from, words[1])
				for peer := range n {
					for n > 2 && r.tell(m.from, peer) { // at once: else there are too many orders
					}
				}
			case "wait":
				r.wait(m.from)
			}
		}
		return r, done
	}
	seen, ends := map[string]bool{}, 0
	paths := [][]move{{}}
	for len(paths) > 0 {
		path := paths[len(paths)-1]
		paths = paths[:len(paths)-1]
		r, done := replay(path)
		if r.told != nil {
			if ends++; !differ {
				t.Fatalf("%v: %v", path, r.told)
			}
			continue // the rank tells all of its failure
		}
		var state strings.Builder
		fmt.Fprint(&state, done, r.wires, r.tells)
		for rank := range r.orders {
			fmt.Fprint(&state, &r.orders[rank])
		}
		if seen[state.String()] {
			continue
		}
		seen[state.String()] = true
		last := true
		for _, m := range moves {
			wire := [2]int{m.from, m.to}
			if m.from == m.to && done[m.from] == len(steps[m.from]) ||
				m.from != m.to && !m.tells && len(r.wires[wire]) == 0 || m.tells && !r.tells[wire] {
				continue
			}
			last = false
			paths = append(paths, append(slices.Clone(path), m))
		}
		if last {
			if ends++; differ {
				t.Fatalf("nobody finds out that the ranks differ: %v", path)
			}
			for rank := range r.orders {
				if r.orders[rank].Ahead() {
					t.Fatalf("%v: rank %d keeps what it has come to: %v", path, rank, &r.orders[rank])
				}
			}
		}
	}
	if ends == 0 {
		t.Fatal("no order comes to an end")
	}
	t.Logf("%d states, %d ends", len(seen), ends)
}

// What a peer announces is bounded and checked.
func TestAnnouncementsAreChecked(t *testing.T) {
	r := newRanks(2)
	o := &r.orders[0]
	says := func(f refusal) []byte { return o.encode(f) }
	long := strings.Repeat("x", fault.MaxText+1)
	for name, payload := range map[string][]byte{
		"nothing":          {},
		"short":            says(refusal{5, 5, ""})[:40],
		"none refused":     says(refusal{6, 5, ""}),
		"from before all":  says(refusal{^uint64(0), 5, ""}),
		"too long":         says(refusal{5, 5, long}),
		"a wait with text": append(Encode(plan.Message{Sequence: 9}), "text"...),
	} {
		if a, err := DecodeAnnouncement(payload); err == nil {
			t.Errorf("%s: %+v", name, a)
		}
	}
	hear := func(f refusal) {
		t.Helper()
		a, err := DecodeAnnouncement(says(f))
		if err != nil {
			t.Fatal(err)
		}
		if err := o.Hear(1, a); err != nil {
			t.Fatal(err)
		}
	}
	for i := range uint64(10 * MaxRefusals) {
		s := 3 + 2*(i*7919%(5*MaxRefusals)) // neither in order nor once each
		hear(refusal{s, s, fmt.Sprint("reason ", s)})
	}
	kept := o.announced[1].refused
	inOrder := func(a, b refusal) int { return int(a.first) - int(b.first) }
	if len(kept) > MaxRefusals || !slices.IsSortedFunc(kept, inOrder) {
		t.Errorf("it keeps %v", kept)
	}
	delete(o.announced, 1)
	hear(refusal{1, ^uint64(0), "a\x00b\nc\xffd\x1b[31m" + long[:100]})
	m := message([]string{"barrier"})
	err := o.Start(&m)
	if err == nil || !strings.Contains(err.Error(), `refused: a\x00b\nc\xffd\x1b[31mxxx`) {
		t.Errorf("%q", err)
	}
}

// Own refusals are kept as far back as the log goes.
func TestManyRefusals(t *testing.T) {
	r := newRanks(2)
	for i := range 3 * MaxRefusals {
		r.refuse(0, fmt.Sprint("reason ", i))
	}
	if n := len(r.orders[0].refused); n > MaxRefusals {
		t.Errorf("%d are kept", n)
	}
}

// Each pair of counts is told in the words that fit it.
func TestDifferInBytes(t *testing.T) {
	for _, c := range []struct {
		expected, sent Traffic
		says           string
	}{
		{Traffic{8, 0}, Traffic{4, 0},
			"rank 1 (pid 101) sends 4 bytes to rank 0 (pid 100), which expects 8 "},
		{Traffic{8, 16}, Traffic{8, 12},
			"rank 1 (pid 101) sends 12 bytes to rank 0 (pid 100), which expects 16 "},
		{Traffic{0, 17}, Traffic{0, 13},
			"rank 0 (pid 100) sends 16 bytes to rank 1 (pid 101), which expects 12 "},
		{Traffic{0, 17}, Traffic{8, 16}, "ranks 0 (pid 100), 1 (pid 101) have different counts"},
		{Traffic{8, 16}, Traffic{4, 16}, "ranks 0 (pid 100), 1 (pid 101) have different counts"},
	} {
		m := message([]string{"alltoall"})
		m.Sequence = 3
		err := newRanks(2).orders[0].DifferInBytes(m, 1, c.expected, c.sent)
		if !strings.Contains(err.Text, "mismatch at #3 alltoall") ||
			!strings.Contains(err.Text, c.says) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(Encode(plan.Message{Sequence: 3, Count: 5, Root: -1}))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := Decode(b)
		if err != nil {
			return
		}
		_ = call.Describe(m) // must not panic, whatever the peer says
		if !bytes.Equal(Encode(m)[:44], b[:44]) {
			t.Fatal("not the same again")
		}
	})
}

// FuzzHear has a rank take whatever a peer announces, before and after calls of its own.
func FuzzHear(f *testing.F) {
	r := newRanks(2)
	f.Add(r.orders[0].encode(refusal{1, 2, "why"}))
	f.Add(Encode(plan.Message{Sequence: 2, Root: -1}))
	f.Fuzz(func(t *testing.T, b []byte) {
		a, err := DecodeAnnouncement(b)
		if err != nil {
			return
		}
		r := newRanks(2)
		o := &r.orders[0]
		_ = o.Hear(1, a)
		for range 3 {
			m := message([]string{"barrier"})
			_ = o.Start(&m)
			_ = o.Hear(1, a)
			_, _ = o.Refuse("no")
		}
		for m := range o.Waiting() {
			if m.Sequence == 0 {
				t.Fatal("a peer waits in no collective")
			}
		}
	})
}
