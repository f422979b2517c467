package plan

import (
	"fmt"
	"strconv"
	"strings"
)

// Schedule says with how many peers a rank of an AllToAll exchanges at once. All ranks must have
// the same.
//
// With a window of k peers no rank has, at any moment, messages under way to or from more than k
// peers, and no more than one with each in each direction: of staging memory it needs k times two
// chunks, whatever the sizes and however many ranks there are.
type Schedule uint8

const (
	BySize     Schedule = 0   // as Parallel, but large blocks by tokens: see Thresholds.WindowMin
	Sequential Schedule = 1   // one peer at a time
	LastWindow Schedule = 254 // Schedule(k) is a window of k peers
	Parallel   Schedule = 255 // all peers at once
)

// Window is the number of peers, 0 if it is not limited as a whole.
func (s Schedule) Window() int {
	if s == Parallel {
		return 0
	}
	return int(s)
}

const windowPrefix = "window="

// ParseSchedule reads "sequential", "window=2", "parallel", or "" for BySize. The error says what
// was given and what is allowed.
func ParseSchedule(text string) (Schedule, error) {
	for _, s := range []Schedule{BySize, Sequential, Parallel} {
		if text == s.String() {
			return s, nil
		}
	}
	if k, ok := strings.CutPrefix(text, windowPrefix); ok {
		if n, err := strconv.ParseUint(k, 10, 8); err == nil && 1 <= n && n <= uint64(LastWindow) {
			return Schedule(n), nil
		}
	}
	return BySize, fmt.Errorf("%q, allowed are \"sequential\", \"%s1\" to \"%[2]s%d\", \"parallel\", "+
		"and \"\" for by size", text, windowPrefix, LastWindow)
}

func (s Schedule) String() string {
	switch s {
	case BySize:
		return ""
	case Sequential:
		return "sequential"
	case Parallel:
		return "parallel"
	}
	return fmt.Sprint(windowPrefix, uint8(s))
}

// allToAll exchanges with all peers at once, but with those that are for a window after that. Both
// ranks of a pair know what it moves, so they choose alike; no others do.
func (b *builder) allToAll() {
	out, in := blocks(In, b.InBytes), blocks(Out, b.OutBytes)
	k, least := b.Schedule.Window(), int64(0)
	// Over memory a direct plan may be tried first, and then each rank must at once hear from all.
	if b.Schedule == BySize && b.WindowMin > 0 {
		k, least = b.Window, b.WindowMin
		if k == 0 { // one window of all
			k = b.Size
		}
	}
	later := make([]bool, b.Size)
	outNow, inNow := make([]part, b.Size), make([]part, b.Size)
	for r := range b.Size {
		if later[r] = k > 0 && r != b.Rank && max(out[r].bytes, in[r].bytes) >= least; !later[r] {
			outNow[r], inNow[r] = out[r], in[r]
		}
	}
	b.exchange(outNow, inNow)
	rounds := b.Size - 1 + b.Size%2
	var peers []int
	for round := range rounds {
		if peer := partner(b.Rank, b.Size, round); later[peer] {
			peers = append(peers, peer)
		}
		if k > 0 && ((round+1)%k == 0 || round+1 == rounds) {
			b.window(peers, out, in)
			peers = peers[:0]
		}
	}
}

// partner is whom a rank exchanges with in a round, of Size-1 rounds or, if Size is odd, of Size,
// in each of which one rank rests: it is its own partner. This is the tournament in which all are
// seated around a table and move on by one chair: any two meet in one round.
func partner(rank, size, round int) int {
	// In a round the numbers of two partners have the same sum, modulo the chairs.
	chairs := size - 1 + size%2
	opposite := func(rank int) int { return (round - rank + chairs) % chairs }
	// One more than there are chairs: it meets the one that would rest.
	last := size%2 == 0 && rank == chairs
	switch {
	case last:
		return round * (chairs + 1) / 2 % chairs
	case opposite(rank) == rank && size%2 == 0:
		return chairs
	}
	return opposite(rank)
}

// window exchanges with a few peers, or sends to them or receives from them, in messages that take
// turns.
//
// A rank puts a chunk only when it has a token for it from its peer, a message of zero bytes, which
// the peer puts when it has come to this window, and again whenever it has taken a chunk. The token
// after the last chunk says that the pair is done. So when the window ends all that this rank has
// put has been taken, though Put does not wait for that; and nothing is put to a rank that has not
// come so far. Only a token may still lie there unread.
//
// The total of a token is what its sender expects in all, and one more, so that nothing else is
// taken for it: its receiver knows that the next chunk fits the place that is posted for it. So it
// may be a long one, which saves turns. With a schedule that was asked for it is not: that bounds
// what is under way.
//
// It cannot deadlock: windows, in them rounds of chunks, in these first tokens and puts and then
// takes, and in these rounds of partners are one order that all ranks keep, and each wait is for
// what comes before it.
func (b *builder) window(peers []int, out, in []part) {
	chunks := func(peer int, p part) int {
		most := b.Chunk
		if b.Schedule == BySize && b.Ports != nil && b.Ports[peer] {
			most = max(most, b.Long)
		}
		return int((p.bytes + most - 1) / most)
	}
	token := func(peer int) { b.put(peer, Ref{}, 0, in[peer].bytes+1) }
	for _, peer := range peers {
		if in[peer].used() {
			token(peer)
		}
	}
	for i, more := 0, true; more; i++ {
		more = false
		for _, peer := range peers {
			p := out[peer]
			n := chunks(peer, p)
			if i <= n && p.used() {
				b.take(peer, Ref{}, 0, p.bytes+1)
			}
			if i < n {
				off, bytes := cut(p.bytes, n, i)
				b.put(peer, p.place.at(off), bytes, b.total(p))
				more = true
			}
		}
		for _, peer := range peers {
			p := in[peer]
			if n := chunks(peer, p); i < n {
				off, bytes := cut(p.bytes, n, i)
				b.take(peer, p.place.at(off), bytes, b.total(p))
				token(peer)
				more = true
			}
		}
	}
}
