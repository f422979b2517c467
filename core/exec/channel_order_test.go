package exec

import (
	"fmt"
	"strings"
	"testing"
)

// What follows explores all that small programs over the words of a channel can do: those of
// channel.c and channel.go, cut down to what orders memory.

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
