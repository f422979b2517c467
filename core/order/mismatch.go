package order

import (
	"fmt"

	"github.com/goccl/goccl/core/call"
	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/plan"
)

// Differ tells of a peer that does another thing than this rank.
func (o *Order) Differ(mine plan.Message, peer int, seen plan.Message) *fault.Error {
	if reason, ok := o.refused.at(seen.Sequence); ok {
		return o.refusedError(o.rank, reason, peer, seen)
	}
	a := o.members.Names(o.rank) + " called " + call.Describe(mine)
	b := o.members.Names(peer) + " called " + call.Describe(seen)
	if mine.Sequence != seen.Sequence {
		b += fmt.Sprintf(" as its #%d", seen.Sequence)
	} else if call.Describe(mine) == call.Describe(seen) {
		b += otherwise(mine)
	}
	if peer < o.rank {
		a, b = b, a
	}
	return o.mismatch(mine, peer, seen, "collective mismatch at #%d: %s, but %s", mine.Sequence, a, b)
}

// otherwise is in what two calls differ whose words are the same.
func otherwise(m plan.Message) string {
	switch {
	case plan.Collective(m.Collective) == plan.AllToAll: // whose counts are no part of messages
		return " by another program"
	case m.Schedule != 0:
		return " with other counts or by another program"
	}
	return " with other counts"
}

// Traffic is what one direction of a pair carries, as one of the two ranks sees it.
type Traffic struct {
	Bytes uint64 // of one message
	Total uint64 // of the whole operation, where only the pair knows it; else 0
}

// DifferInBytes tells of a peer that calls the same as this rank, but sends other data to it than
// this rank expects.
func (o *Order) DifferInBytes(m plan.Message, peer int, expected, sent Traffic) *fault.Error {
	from, to, bytes, want := peer, o.rank, sent.Bytes, expected.Bytes
	// Tokens of a window tell what their sender expects, and one more.
	asked, asks := sent.Total > 0 && sent.Bytes == 0, expected.Total > 0 && expected.Bytes == 0
	switch {
	case asked && asks:
		from, to, bytes, want = o.rank, peer, expected.Total-1, sent.Total-1
	case asked != asks, sent.Total > 0 && sent.Total == expected.Total:
		// Only one of the two goes through a window, or swaps.
		return o.mismatch(m, peer, m, "collective mismatch at #%d %s: %s have different counts for what "+
			"they send to each other", m.Sequence, call.Describe(m),
			o.members.Names(min(peer, o.rank), max(peer, o.rank)))
	case sent.Total != expected.Total:
		bytes, want = sent.Total, expected.Total
	}
	return o.mismatch(m, peer, m, "collective mismatch at #%d %s: %s sends %d bytes to %s, which "+
		"expects %d bytes from it", m.Sequence, call.Describe(m), o.members.Names(from), bytes,
		o.members.Names(to), want)
}

func (o *Order) mismatch(
	mine plan.Message, peer int, seen plan.Message, format string, args ...any,
) *fault.Error {
	return o.members.Errorf(fault.ErrMismatch, format, args...).During(mine.Name(), mine.Sequence).
		Calling(map[int]string{o.rank: call.Describe(mine), peer: call.Describe(seen)})
}

// refusedError tells that a rank was refused a call where another made a good one.
func (o *Order) refusedError(rank int, reason string, other int, good plan.Message) *fault.Error {
	return o.members.Errorf(fault.ErrMismatch, "collective mismatch at #%d: %s called %s, but the "+
		"call of %s was refused: %s", good.Sequence, o.members.Names(other), call.Describe(good),
		o.members.Names(rank), reason).
		During(good.Name(), good.Sequence).
		Calling(map[int]string{other: call.Describe(good), rank: "a call that was refused: " + reason})
}
