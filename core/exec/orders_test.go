package exec

import "fmt"

// The explorer finds all that small programs over a few words can do, on processors whose stores
// wait in a buffer: they leave it in order (x86), or pass one another but for releases (ARM).

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
	opSleep // while a word has a value, or else that of a register, until it is woken
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
	place func(r *[registers]int8) int8 // is added to word, unless nil
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
	name := at.word
	if at.place != nil {
		name += uint8(at.place(&t.regs))
	}
	word := &s.memory[name]
	switch at.kind {
	case opLoad:
		v := *word
		for _, w := range t.buffer[:t.n] {
			if at.order == seqCst && w.order == seqCst {
				return s, false // a load-acquire waits for store-releases
			}
			if w.word == name {
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
			t.buffer[t.n] = waiting{name, at.value(&t.regs), at.order}
			t.n++
		}
	case opJump, opHold:
		t.pc--
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
			value := t.regs[at.reg]
			if at.value != nil {
				value = at.value(&t.regs)
			}
			t.asleep = old == value
		case opWake:
			for k := range s.threads {
				s.threads[k].asleep = false
			}
		}
	}
	x.decide(t, p)
	return s, true
}

// decide takes the steps that are about registers only: nobody sees when they are taken.
func (x *explorer) decide(t *thread, p []step) {
	for int(t.pc) < len(p) && (p[t.pc].kind == opJump || p[t.pc].kind == opHold) {
		at := &p[t.pc]
		t.pc++
		switch {
		case at.kind == opHold && !at.when(&t.regs):
			x.wrong = at.text
		case at.kind == opJump && at.when(&t.regs):
			t.pc = int8(len(p))
			for k := range p {
				if p[k].label == at.to && at.to != end {
					t.pc = int8(k)
				}
			}
		}
	}
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
