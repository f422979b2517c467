package exec

import (
	"fmt"
	"strings"
	"testing"
)

// What follows explores all that small programs over the words of a channel can do, on processors
// whose stores wait in a buffer: they leave it in order (x86), or pass one another but for releases
// (ARM). The programs are those of channel.c and channel.go, cut down to what orders memory.

// Words of the memory of these programs.
const (
	wData = iota // what is put
	wSignals
	wTaken
	wSent
	wLock
	wInside // copying or taking
	wHandle
	wAlive
	wSleepers
	wValue
	wDrop
	wDropped
	words
)

const (
	registers = 4
	mostWait  = 6 // stores in a buffer
	threads   = 4
)

type kind uint8

const (
	opLoad kind = iota
	opStore
	opAdd // the old value goes to the register
	opSwap
	opCAS   // by value where the word is what register 0 says; the step's register tells
	opFence // all stores have left
	opSleep // while a word has the value of a register, until it is woken
	opWake
	opJump // where the condition holds
	opHold // the condition must hold
)

type order uint8

const (
	relaxed order = iota
	release
	seqCst
)

type step struct {
	kind  kind
	word  uint8
	reg   uint8
	value func(r *[registers]int8) int8
	order order
	when  func(r *[registers]int8) bool
	to    string // a label
	label string // of this step
	text  string
}

type values = [registers]int8

func is(v int8) func(*values) int8 { return func(*values) int8 { return v } }

func load(reg, word uint8, o order) step {
	return step{kind: opLoad, reg: reg, word: word, order: o}
}
func store(word uint8, v int8, o order) step {
	return step{kind: opStore, word: word, value: is(v), order: o}
}
func storeOf(word uint8, o order, f func(*values) int8) step {
	return step{kind: opStore, word: word, value: f, order: o}
}
func add(word uint8, v int8) step { return step{kind: opAdd, word: word, reg: 3, value: is(v)} }
func swap(reg, word uint8, v int8) step {
	return step{kind: opSwap, reg: reg, word: word, value: is(v)}
}
func jump(to string, f func(*values) bool) step { return step{kind: opJump, to: to, when: f} }
func hold(text string, f func(*values) bool) step {
	return step{kind: opHold, text: text, when: f}
}
func at(label string, s step) step {
	s.label = label
	return s
}

// end is where programs jump to that are over.
const end = "end"

type waiting struct {
	word  uint8
	value int8
	order order
}

// thread is what a thread is about to do. It is a value: states are compared.
type thread struct {
	pc     int8
	asleep bool
	n      int8 // stores that wait
	regs   values
	buffer [mostWait]waiting
}

type machineState struct {
	memory  [words]int8
	threads [threads]thread
}

// explorer tries all that programs can do.
type explorer struct {
	programs [][]step
	weak     bool // stores pass one another
	final    func(memory *[words]int8) string
	seen     map[machineState]bool
	wrong    string
}

// explore returns what is wrong in some execution; "": nothing is.
func explore(p scenario, weak bool) (wrong string, states int) {
	x := &explorer{programs: p.programs, weak: weak, final: p.final, seen: map[machineState]bool{}}
	x.visit(machineState{memory: p.memory})
	return x.wrong, len(x.seen)
}

func (x *explorer) visit(s machineState) {
	if x.wrong != "" || x.seen[s] {
		return
	}
	x.seen[s] = true
	moved := false
	for i := range x.programs {
		t := &s.threads[i]
		for k := range int(t.n) {
			if x.leaves(t, k) {
				moved = true
				next := s
				u := &next.threads[i]
				next.memory[u.buffer[k].word] = u.buffer[k].value
				copy(u.buffer[k:], u.buffer[k+1:])
				u.n--
				u.buffer[u.n] = waiting{}
				x.visit(next)
			}
		}
		if next, ok := x.steps(s, i); ok {
			moved = true
			x.visit(next)
		}
	}
	if moved || x.wrong != "" {
		return
	}
	for i, p := range x.programs {
		if t := s.threads[i]; t.asleep || int(t.pc) < len(p) {
			x.wrong = fmt.Sprintf("thread %d is stuck, asleep: %v", i, t.asleep)
			return
		}
	}
	x.wrong = x.final(&s.memory)
}

// leaves reports whether a store may leave the buffer.
func (x *explorer) leaves(t *thread, k int) bool {
	if !x.weak {
		return k == 0
	}
	w := t.buffer[k]
	for _, before := range t.buffer[:k] {
		if before.word == w.word || w.order != relaxed {
			return false
		}
	}
	return true
}

// steps takes the next step of a thread, if it can be taken.
func (x *explorer) steps(s machineState, i int) (machineState, bool) {
	t := &s.threads[i]
	p := x.programs[i]
	if int(t.pc) >= len(p) || t.asleep {
		return s, false
	}
	at := &p[t.pc]
	t.pc++
	word := &s.memory[at.word]
	switch at.kind {
	case opLoad:
		v := *word
		for _, w := range t.buffer[:t.n] {
			if at.order == seqCst && w.order == seqCst {
				return s, false // a load-acquire waits for store-releases
			}
			if w.word == at.word {
				v = w.value
			}
		}
		t.regs[at.reg] = v
	case opStore:
		switch {
		case at.order == seqCst && !x.weak: // x86: a locked operation
			if t.n > 0 {
				return s, false
			}
			*word = at.value(&t.regs)
		case t.n == mostWait:
			return s, false
		default:
			t.buffer[t.n] = waiting{at.word, at.value(&t.regs), at.order}
			t.n++
		}
	case opJump:
		if at.when(&t.regs) {
			t.pc = int8(len(p))
			for k := range p {
				if p[k].label == at.to && at.to != end {
					t.pc = int8(k)
				}
			}
		}
	case opHold:
		if !at.when(&t.regs) {
			x.wrong = at.text
		}
	default:
		if t.n > 0 { // the others wait until all stores have left
			return s, false
		}
		old := *word
		switch at.kind {
		case opAdd:
			*word += at.value(&t.regs)
			t.regs[at.reg] = old
		case opSwap:
			*word = at.value(&t.regs)
			t.regs[at.reg] = old
		case opCAS:
			t.regs[at.reg] = 0
			if old == t.regs[0] {
				*word = at.value(&t.regs)
				t.regs[at.reg] = 1
			}
		case opSleep:
			t.asleep = old == t.regs[at.reg]
		case opWake:
			for k := range s.threads {
				s.threads[k].asleep = false
			}
		}
	}
	return s, true
}

type scenario struct {
	programs [][]step
	memory   [words]int8
	final    func(memory *[words]int8) string
}

func fine(*[words]int8) string { return "" }

// replaced is a program in which steps are others.
func replaced(p []step, from int, steps ...step) []step {
	out := append([]step{}, p...)
	copy(out[from:], steps)
	return out
}

// zero and not say what a register holds.
func zero(reg int) func(*values) bool { return func(r *values) bool { return r[reg] == 0 } }
func not(reg int, v int8) func(*values) bool {
	return func(r *values) bool { return r[reg] != v }
}
func always(*values) bool { return true }

// putter is a put and a signal, without the lock.
var putter = []step{store(wData, 1, relaxed), store(wSignals, 1, release)}

// taker is goccl_channel_take of a signal.
var taker = []step{
	at("again", load(0, wTaken, seqCst)),
	load(1, wSignals, seqCst),
	jump(end, func(r *values) bool { return r[1]-r[0] < 1 }),
	{kind: opCAS, word: wTaken, reg: 2, value: func(r *values) int8 { return r[0] + 1 }},
	jump("again", zero(2)),
	load(2, wData, relaxed),
	hold("a signal was taken, and its data is not there", not(2, 0)),
}

// counter is a taker that notes what it has taken.
func counter(p []step) []step { return append(p[:len(p)-2:len(p)-2], add(wSent, 1)) }

// sender is send_signals with the lock.
var sender = []step{
	at("lock", swap(0, wLock, 1)),
	jump("lock", not(0, 0)),
	load(1, wSent, relaxed),
	storeOf(wSent, relaxed, func(r *values) int8 { return r[1] + 1 }),
	storeOf(wSignals, release, func(r *values) int8 { return r[1] + 1 }),
	store(wLock, 0, release),
}

// watcher looks at a count twice.
var watcher = []step{
	load(0, wSignals, seqCst),
	load(1, wSignals, seqCst),
	hold("a count goes down", func(r *values) bool { return r[0] <= r[1] }),
}

// caller is a copy: it comes, looks at a handle, stores, and leaves.
var caller = []step{
	add(wInside, 1),
	load(0, wHandle, seqCst),
	jump("leave", zero(0)),
	store(wData, 7, relaxed),
	at("leave", add(wInside, -1)),
}

// locker is the same with the end's lock.
var locker = []step{
	at("lock", swap(1, wInside, 1)),
	jump("lock", not(1, 0)),
	load(0, wHandle, seqCst),
	jump("leave", zero(0)),
	store(wData, 7, relaxed),
	at("leave", store(wInside, 0, release)),
}

// closer is Go that makes a handle invalid, finds nobody inside and gives the memory to others.
var closer = []step{
	store(wHandle, 0, seqCst),
	at("look", load(0, wInside, seqCst)),
	jump("look", not(0, 0)),
	store(wData, 9, seqCst),
}

// owner deregisters memory, has the peer told, and gives the memory to others.
var owner = []step{
	store(wAlive, 0, seqCst),
	store(wDrop, 1, seqCst),
	at("look", load(0, wDropped, seqCst)),
	jump("look", zero(0)),
	store(wData, 9, seqCst),
}

// dropper is the peer's Go.
var dropper = []step{
	at("await", load(0, wDrop, seqCst)),
	jump("await", zero(0)),
	at("look", load(0, wInside, seqCst)),
	jump("look", not(0, 0)),
	store(wDropped, 1, seqCst),
}

// importer is a copy to memory that its owner may deregister.
var importer = []step{
	add(wInside, 1),
	load(0, wAlive, seqCst),
	jump("leave", zero(0)),
	store(wData, 7, relaxed),
	at("leave", add(wInside, -1)),
}

// phased is importer, which counts itself by the phase: wHandle; of phase 1 in wTaken.
var phased = []step{
	load(0, wHandle, relaxed),
	jump("one", not(0, 0)),
	add(wInside, 1),
	load(0, wAlive, seqCst),
	jump("leave", zero(0)),
	store(wData, 7, relaxed),
	at("leave", add(wInside, -1)),
	jump(end, always),
	at("one", add(wTaken, 1)),
	load(0, wAlive, seqCst),
	jump("leave one", zero(0)),
	store(wData, 7, relaxed),
	at("leave one", add(wTaken, -1)),
}

// settler is the peer's Go, which settles twice: for something else, and for the owner.
var settler = []step{
	at("first", load(0, wTaken, seqCst)),
	jump("first", not(0, 0)),
	store(wHandle, 1, seqCst),
	at("second", load(0, wInside, seqCst)),
	jump("second", not(0, 0)),
	at("await", load(0, wDrop, seqCst)),
	jump("await", zero(0)),
	at("third", load(0, wInside, seqCst)),
	jump("third", not(0, 0)),
	store(wHandle, 0, seqCst),
	at("fourth", load(0, wTaken, seqCst)),
	jump("fourth", not(0, 0)),
	store(wDropped, 1, seqCst),
}

// sleeper is goccl_channel_await, where nobody naps.
var sleeper = []step{
	add(wSleepers, 1),
	at("again", load(0, wValue, seqCst)),
	load(1, wSignals, seqCst),
	jump(end, not(1, 0)),
	{kind: opSleep, word: wValue, reg: 0},
	jump("again", always),
}

// ringer is a signal, and goccl_ring.
var ringer = []step{
	store(wSignals, 1, release),
	{kind: opFence},
	load(0, wSleepers, relaxed),
	jump(end, zero(0)),
	add(wValue, 1),
	{kind: opWake},
}

func kept(memory *[words]int8) string {
	if memory[wData] != 9 {
		return "memory of others was written to"
	}
	return ""
}

// bothSent is what two senders leave.
func bothSent(memory *[words]int8) string {
	if memory[wSignals] != 2 {
		return fmt.Sprintf("of 2 signals %d have come", memory[wSignals])
	}
	return ""
}

// once is what two takers of signals leave, which count in wSent what they have taken.
func once(memory *[words]int8) string {
	if memory[wSent] != memory[wTaken] || memory[wTaken] > memory[wSignals] {
		return fmt.Sprintf("%d were taken of %d, and %d are counted as taken", memory[wSent],
			memory[wSignals], memory[wTaken])
	}
	return ""
}

func memoryOf(pairs ...int8) (m [words]int8) {
	for i := 0; i < len(pairs); i += 2 {
		m[pairs[i]] = pairs[i+1]
	}
	return m
}

func TestChannelOrders(t *testing.T) {
	noCAS := append(append([]step{}, taker[:3]...), storeOf(wTaken, seqCst, taker[3].value),
		add(wSent, 1))
	drop := memoryOf(wAlive, 1)
	isOpen := memoryOf(wHandle, 1)
	without := func(p []step, i int) []step { return append(p[:i:i], p[i+1:]...) }
	for _, test := range []struct {
		name string
		p    scenario
		// found: by whom a fault must be found: "" nobody, "all", or "weak" where stores pass.
		found string
	}{
		{"data before its signal", scenario{[][]step{putter, taker}, memoryOf(), fine}, ""},
		{"signal before data", scenario{[][]step{{putter[1], putter[0]}, taker}, memoryOf(), fine},
			"all"},
		{"signal without release", scenario{[][]step{
			replaced(putter, 1, store(wSignals, 1, relaxed)), taker}, memoryOf(), fine}, "weak"},

		{"two senders", scenario{[][]step{sender, sender, watcher}, memoryOf(), bothSent}, ""},
		{"without a lock", scenario{[][]step{sender[2:5], sender[2:5], watcher}, memoryOf(), bothSent},
			"all"},
		{"signals behind the lock", scenario{[][]step{
			replaced(sender, 4, sender[5], sender[4]), replaced(sender, 4, sender[5], sender[4]), watcher},
			memoryOf(), bothSent}, "all"},
		{"unlock without release", scenario{[][]step{replaced(sender, 5, store(wLock, 0, relaxed)),
			replaced(sender, 5, store(wLock, 0, relaxed)), watcher}, memoryOf(), bothSent}, "weak"},

		{"two takers of one", scenario{[][]step{counter(taker), counter(taker)},
			memoryOf(wSignals, 1), once}, ""},
		{"two takers, signals come", scenario{[][]step{counter(taker), counter(taker), sender[:0],
			{store(wSignals, 1, release), store(wSignals, 2, release)}}, memoryOf(), once}, ""},
		{"taken by load and store", scenario{[][]step{noCAS, noCAS}, memoryOf(wSignals, 1), once}, "all"},

		{"closed under a copy", scenario{[][]step{caller, caller, closer}, isOpen, kept}, ""},
		{"closed under a lock", scenario{[][]step{locker, locker, closer}, isOpen, kept}, ""},
		{"handle before come", scenario{[][]step{replaced(caller, 0, caller[1], caller[0]), closer},
			isOpen, kept}, "all"},
		{"come without an atomic operation", scenario{[][]step{replaced(caller, 0,
			store(wInside, 1, release), load(0, wHandle, relaxed)), closer}, isOpen, kept}, "all"},
		{"look before the store", scenario{[][]step{caller, {closer[1], closer[2], closer[0], closer[3]}},
			isOpen, kept}, "all"},
		{"store that waits", scenario{[][]step{caller, replaced(closer, 0, store(wHandle, 0, release),
			at("look", load(0, wInside, relaxed)))}, isOpen, kept}, "all"},
		{"unlock that does not wait", scenario{[][]step{replaced(locker, 5,
			at("leave", store(wInside, 0, relaxed))), closer}, isOpen, kept}, "weak"},

		{"deregistered under a copy", scenario{[][]step{importer, importer, owner, dropper}, drop, kept},
			""},
		{"word before come", scenario{[][]step{replaced(importer, 0, importer[1], importer[0]), owner,
			dropper}, drop, kept}, "all"},
		{"DROP before the word", scenario{[][]step{importer, replaced(owner, 0, owner[1], owner[0]),
			dropper}, drop, kept}, "all"},
		{"answer without a look", scenario{[][]step{importer, owner,
			{dropper[0], dropper[1], dropper[4]}}, drop, kept}, "all"},

		{"settled twice under copies", scenario{[][]step{phased, phased, owner, settler}, drop,
			kept}, ""},
		{"settled without the other phase", scenario{[][]step{phased, owner,
			append(settler[:7:7], settler[9:]...)}, drop, kept}, "all"},
		{"settled by a change of phase only", scenario{[][]step{phased, owner,
			append(settler[:10:10], settler[12])}, drop, kept}, "all"},

		{"sleeper and ringer", scenario{[][]step{sleeper, ringer}, memoryOf(), fine}, ""},
		{"two sleepers", scenario{[][]step{sleeper, sleeper, ringer}, memoryOf(), fine}, ""},
		{"no fence in ring", scenario{[][]step{sleeper, without(ringer, 1)}, memoryOf(), fine}, "all"},
		{"a look before it is counted", scenario{[][]step{{sleeper[1], sleeper[2], sleeper[3], sleeper[0],
			sleeper[4]}, ringer}, memoryOf(), fine}, "all"},
		{"value behind the look", scenario{[][]step{replaced(sleeper, 1, at("again", sleeper[2]),
			sleeper[3], at("", sleeper[1])), ringer}, memoryOf(), fine}, "all"},
		{"ring without a change of value", scenario{[][]step{sleeper, without(ringer, 4)}, memoryOf(),
			fine}, "all"},
	} {
		t.Run(strings.ReplaceAll(test.name, " ", "_"), func(t *testing.T) {
			for _, weak := range []bool{false, true} {
				wrong, states := explore(test.p, weak)
				want := test.found == "all" || test.found == "weak" && weak
				if (wrong != "") != want {
					t.Errorf("stores pass: %v: found %q in %d states, want a fault: %v", weak, wrong, states,
						want)
				}
			}
		})
	}
}
