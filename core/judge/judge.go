// Package judge says of a group of ranks who holds the others up, from what each rank tells of
// itself.
//
// The package is pure: `goccl ps` asks the ranks and prints the [Verdict].
package judge

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/goccl/goccl/core/internal/printable"
)

// State is what is known of a rank's process.
type State int

// The states.
const (
	Answers     State = iota // it has told of its calls
	Stopped                  // it is there, and runs nothing: a signal or a debugger holds it
	Silent                   // it is there, and does not answer
	Gone                     // it has ended
	Unreachable              // nobody could ask it
)

// Call is the collective that a rank is in, or has called last.
type Call struct {
	Sequence uint64        // 0: it has called none
	What     string        // in words, as in "allreduce(float32, 8 elements, SUM)"
	Ended    bool          // the rank is in no collective
	For      time.Duration // how long it is in the collective, or in none
	Peer     int           // for whom it waits; -1: for nobody, or not for long
	Input    bool          // it waits for its own input, that of a device
}

// Message is a send or receive that a rank has under way.
type Message struct {
	Send  bool
	Peer  int // -1: a receive from any rank
	Tag   int
	Bytes uint64
	For   time.Duration
}

// Rank is one rank of the group.
type Rank struct {
	Rank     int
	State    State
	Failed   string // why the group has failed there; "": it has not
	Call     Call
	Messages []Message // the oldest, maybe not all
	UnderWay int       // how many there are
}

// Kind is what is odd.
type Kind string

// The kinds of verdicts.
const (
	Well     Kind = "well"
	Failed   Kind = "failed"
	Ended    Kind = "ended"    // a process is gone, or none
	Held     Kind = "stopped"  // a process runs nothing, or does not answer
	Mismatch Kind = "mismatch" // ranks have called different collectives
	Device   Kind = "device"   // an input has not come from its device
	Behind   Kind = "behind"   // a rank has not called what others wait in
	Slow     Kind = "slow"     // others wait for a rank that is in the same collective
	Alone    Kind = "alone"    // a send that nobody receives, or a receive that nobody sends for
	Unknown  Kind = "unknown"  // no rank could be asked
)

// Verdict is what holds a group up, and whom to look at.
type Verdict struct {
	Kind  Kind   `json:"kind"`
	Ranks []int  `json:"ranks"` // whom it is about, in order
	Text  string `json:"text"`
}

// short is a wait of which nothing is said.
const short = time.Second

// Group judges the ranks of one group, of which each is given once. The first thing that can be
// the cause of all others is told.
func Group(ranks []Rank) Verdict {
	for _, judge := range []func([]Rank) (Verdict, bool){
		ended, stopped, failed, mismatch, behind, device, slow, alone,
	} {
		if v, ok := judge(ranks); ok {
			return v
		}
	}
	answered := filter(ranks, func(r *Rank) bool { return r.State == Answers })
	if len(answered) == 0 {
		return Verdict{Unknown, numbers(ranks), names(ranks) + " could not be asked"}
	}
	return Verdict{Kind: Well, Text: "all is well: " + progress(answered, ranks)}
}

// filter returns the ranks of which a condition holds.
func filter(ranks []Rank, holds func(*Rank) bool) (some []Rank) {
	for i := range ranks {
		if holds(&ranks[i]) {
			some = append(some, ranks[i])
		}
	}
	return some
}

func numbers(ranks []Rank) (all []int) {
	for i := range ranks {
		all = append(all, ranks[i].Rank)
	}
	slices.Sort(all)
	return all
}

// names is "rank 3" or "ranks 0-2,5".
func names(ranks []Rank) string {
	if len(ranks) == 1 {
		return fmt.Sprintf("rank %d", ranks[0].Rank)
	}
	return "ranks " + printable.Ranges(numbers(ranks))
}

func verb(ranks []Rank, one, many string) string {
	if len(ranks) == 1 {
		return one
	}
	return many
}

func verdict(k Kind, about []Rank, format string, args ...any) (Verdict, bool) {
	return Verdict{k, numbers(about), fmt.Sprintf(format, args...)}, true
}

// waiting are the ranks that are in a collective for long.
func waiting(ranks []Rank) []Rank {
	return filter(ranks, func(r *Rank) bool {
		return r.State == Answers && r.Call.Sequence > 0 && !r.Call.Ended && r.Call.For >= short
	})
}

// whoWaits ends a sentence about others by those who wait.
func whoWaits(ranks, but []Rank) string {
	held := filter(waiting(ranks), func(r *Rank) bool {
		return !slices.ContainsFunc(but, func(o Rank) bool { return o.Rank == r.Rank })
	})
	if len(held) == 0 {
		return ""
	}
	longest := slices.MaxFunc(held, func(a, b Rank) int { return cmp.Compare(a.Call.For, b.Call.For) })
	return fmt.Sprintf("; %s %s, for %v by now, in #%d %s", names(held),
		verb(held, "waits", "wait"), rounded(longest.Call.For), longest.Call.Sequence,
		longest.Call.What)
}

func rounded(d time.Duration) time.Duration {
	if d < time.Second {
		return d.Round(time.Millisecond)
	}
	return d.Round(100 * time.Millisecond)
}

func ended(ranks []Rank) (Verdict, bool) {
	gone := filter(ranks, func(r *Rank) bool { return r.State == Gone })
	if len(gone) == 0 {
		return Verdict{}, false
	}
	return verdict(Ended, gone, "%s %s ended%s", names(gone), verb(gone, "has", "have"),
		whoWaits(ranks, gone))
}

func stopped(ranks []Rank) (Verdict, bool) {
	held := filter(ranks, func(r *Rank) bool { return r.State == Stopped })
	if len(held) > 0 {
		return verdict(Held, held, "%s %s stopped, by a signal or a debugger%s", names(held),
			verb(held, "is", "are"), whoWaits(ranks, held))
	}
	silent := filter(ranks, func(r *Rank) bool { return r.State == Silent })
	if len(silent) > 0 {
		return verdict(Held, silent, "%s %s not answer%s", names(silent), verb(silent, "does", "do"),
			whoWaits(ranks, silent))
	}
	return Verdict{}, false
}

func failed(ranks []Rank) (Verdict, bool) {
	failed := filter(ranks, func(r *Rank) bool { return r.State == Answers && r.Failed != "" })
	if len(failed) == 0 {
		return Verdict{}, false
	}
	return verdict(Failed, failed, "the group has failed on %s: %s", names(failed), failed[0].Failed)
}

// mismatch finds ranks that have called different collectives at one place.
func mismatch(ranks []Rank) (Verdict, bool) {
	called := filter(ranks, func(r *Rank) bool { return r.State == Answers && r.Call.Sequence > 0 })
	for _, sequence := range sequences(called) {
		byCall := map[string][]Rank{}
		for _, r := range called {
			if r.Call.Sequence == sequence {
				byCall[r.Call.What] = append(byCall[r.Call.What], r)
			}
		}
		if len(byCall) < 2 {
			continue
		}
		calls := make([]string, 0, len(byCall))
		for what := range byCall {
			calls = append(calls, what)
		}
		slices.SortFunc(calls, func(a, b string) int { // what fewest ranks have called comes last
			return cmp.Or(cmp.Compare(len(byCall[b]), len(byCall[a])),
				cmp.Compare(byCall[a][0].Rank, byCall[b][0].Rank))
		})
		parts := make([]string, len(calls))
		for i, what := range calls {
			parts[i] = fmt.Sprintf("%s %s called %s", names(byCall[what]),
				verb(byCall[what], "has", "have"), what)
		}
		odd := byCall[calls[len(calls)-1]]
		return verdict(Mismatch, odd, "mismatch at #%d: %s", sequence, strings.Join(parts, ", but "))
	}
	return Verdict{}, false
}

func sequences(ranks []Rank) (all []uint64) {
	for i := range ranks {
		all = append(all, ranks[i].Call.Sequence)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// behind finds the ranks that have called fewest, where others wait in a later collective.
func behind(ranks []Rank) (Verdict, bool) {
	answered := filter(ranks, func(r *Rank) bool { return r.State == Answers })
	held := waiting(ranks)
	if len(held) == 0 {
		return Verdict{}, false
	}
	least := slices.MinFunc(answered, func(a, b Rank) int {
		return cmp.Compare(a.Call.Sequence, b.Call.Sequence)
	}).Call.Sequence
	last := filter(answered, func(r *Rank) bool { return r.Call.Sequence == least })
	// In an earlier collective it waits itself, and what it waits for says more.
	idle := filter(last, func(r *Rank) bool { return r.Call.Ended || r.Call.Sequence == 0 })
	if len(idle) == 0 ||
		!slices.ContainsFunc(held, func(r Rank) bool { return r.Call.Sequence > least }) {
		return Verdict{}, false
	}
	has := "has called no collective yet"
	if least > 0 {
		has = fmt.Sprintf("%s last called #%d %s", verb(idle, "has", "have"), least, idle[0].Call.What)
	} else if len(idle) > 1 {
		has = "have called no collective yet"
	}
	return verdict(Behind, idle, "%s %s%s", names(idle), has, whoWaits(ranks, idle))
}

func device(ranks []Rank) (Verdict, bool) {
	late := filter(waiting(ranks), func(r *Rank) bool { return r.Call.Input })
	if len(late) == 0 {
		return Verdict{}, false
	}
	return verdict(Device, late, "the input of %s has not come from its device for %v, in #%d %s%s",
		names(late), rounded(late[0].Call.For), late[0].Call.Sequence, late[0].Call.What,
		whoWaits(ranks, late))
}

// slow finds whom most wait for.
func slow(ranks []Rank) (Verdict, bool) {
	held := waiting(ranks)
	waits := map[int]int{}
	for _, r := range held {
		if r.Call.Peer >= 0 {
			waits[r.Call.Peer]++
		}
	}
	if len(waits) == 0 {
		return Verdict{}, false
	}
	peers := make([]int, 0, len(waits))
	for peer := range waits {
		peers = append(peers, peer)
	}
	slices.SortFunc(peers, func(a, b int) int {
		return cmp.Or(cmp.Compare(waits[b], waits[a]), cmp.Compare(a, b))
	})
	about := []Rank{{Rank: peers[0]}}
	text := ""
	if i := slices.IndexFunc(ranks, func(r Rank) bool { return r.Rank == peers[0] }); i >= 0 {
		switch r := &ranks[i]; {
		case r.State == Unreachable:
			text = ", which could not be asked"
		case r.State == Answers && !r.Call.Ended && r.Call.Peer >= 0:
			text = fmt.Sprintf(", which itself waits for rank %d", r.Call.Peer)
		}
	}
	return verdict(Slow, about, "most wait for rank %d%s%s", peers[0], text, whoWaits(ranks, about))
}

// progress is where ranks are of which nothing is odd.
func progress(answered, ranks []Rank) string {
	all := sequences(answered)
	text := fmt.Sprintf("all at #%d", all[0])
	if n := len(all); n > 1 {
		text = fmt.Sprintf("from #%d to #%d", all[0], all[n-1])
	}
	if missing := filter(ranks, func(r *Rank) bool { return r.State != Answers }); len(missing) > 0 {
		text += fmt.Sprintf("; %s could not be asked", names(missing))
	}
	return text
}
