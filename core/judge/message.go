package judge

import (
	"fmt"
	"slices"
)

// String is as in "recv from rank 0, tag 3, 4096 bytes".
func (m Message) String() string {
	what := fmt.Sprintf("recv from rank %d", m.Peer)
	switch {
	case m.Send:
		what = fmt.Sprintf("send to rank %d", m.Peer)
	case m.Peer < 0:
		what = "recv from any rank"
	}
	return fmt.Sprintf("%s, tag %d, %d bytes", what, m.Tag, m.Bytes)
}

// alone finds the send or receive that is under way longest of those which the other side has not
// called.
func alone(ranks []Rank) (Verdict, bool) {
	var of *Rank
	var longest Message
	for i := range ranks {
		for _, m := range ranks[i].Messages {
			if m.For >= short && m.For > longest.For && unmatched(ranks, ranks[i].Rank, m) {
				of, longest = &ranks[i], m
			}
		}
	}
	if of == nil {
		return Verdict{}, false
	}
	missing := fmt.Sprintf("rank %d has called no send for it", longest.Peer)
	switch {
	case longest.Send:
		missing = fmt.Sprintf("rank %d has called no receive for it", longest.Peer)
	case longest.Peer < 0:
		missing = "no rank has called a send for it"
	}
	return verdict(Alone, []Rank{*of}, "rank %d waits, for %v by now, in %v: %s", of.Rank,
		rounded(longest.For), longest, missing)
}

// unmatched reports whether all that could be the other side of a rank's message tell that they are
// not.
func unmatched(ranks []Rank, rank int, m Message) bool {
	for i := range ranks {
		r := &ranks[i]
		if m.Peer >= 0 && r.Rank != m.Peer {
			continue
		}
		if r.State != Answers || r.UnderWay > len(r.Messages) ||
			slices.ContainsFunc(r.Messages, func(o Message) bool {
				return o.Send != m.Send && o.Tag == m.Tag && (o.Peer == rank || o.Peer < 0)
			}) {
			return false
		}
	}
	return true
}
