package core

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/goccl/goccl/core/completion"
	"github.com/goccl/goccl/core/exec"
	"github.com/goccl/goccl/core/internal/printable"
	"github.com/goccl/goccl/core/membership"
)

// proposal is what a rank proposes when its epoch's members decide. It travels as JSON, because
// decisions are rare, and a later version may add fields.
type proposal struct {
	Operation string // that is called: "recover", "grow", "shrink" or "agree"
	Flags     uint64 `json:",omitempty"` // of agree
	Newcomers int    `json:",omitempty"` // of grow: how many are waited for
	// Completes is set where the members recover by themselves, and complete collectives in the next
	// epoch, of which those that join would know nothing.
	Completes bool `json:",omitempty"`
	// Ended is set where collectives have ended with a failure: they cannot be completed.
	Ended bool `json:",omitempty"`
	// Unmet is set where the first meeting with newcomers is not over. The next ones wait, unless too
	// few members would be left: they could be late, too, one after the other.
	Unmet    bool `json:",omitempty"`
	Progress completion.Progress
}

// record is the decision record: what a decision says beside who goes on.
type record struct {
	Flags uint64 `json:",omitempty"` // that all have set
	// Calls are, where ranks have called different operations, those of the first rank and of the
	// first that differs from it.
	Calls map[int]string `json:",omitempty"`
	// Recovers is set where some recover by themselves, and others have called something: that comes
	// after it.
	Recovers bool `json:",omitempty"`
	// GivesUp is set with it where collectives have ended with a failure on others. Then all is left
	// to callers of Recover.
	GivesUp bool `json:",omitempty"`
	completion.Judgement
}

func (m proposal) encode() []byte {
	b, _ := json.Marshal(m) // strings and numbers never fail
	return b
}

// judge makes the record of what the members propose, by rank. Closed reports whether processes
// that want to join have to wait.
func judge(states map[int][]byte, minSize int) (decided []byte, closed bool) {
	v := record{Flags: math.MaxUint64}
	first, ranks := proposal{}, slices.Sorted(maps.Keys(states))
	come := map[int]completion.Progress{}
	for i, rank := range ranks {
		var m proposal
		_ = json.Unmarshal(states[rank], &m) // a proposal that cannot be read differs from all others
		if i == 0 {
			first = m
		}
		if (m.Operation != first.Operation || m.Newcomers != first.Newcomers) && v.Calls == nil {
			v.Calls = map[int]string{ranks[0]: shortName(first.Operation), rank: shortName(m.Operation)}
		}
		v.Recovers = v.Recovers || m.Completes != first.Completes
		v.GivesUp = v.GivesUp || m.Ended
		v.Flags &= m.Flags
		come[rank] = m.Progress
		closed = closed || m.Completes || m.Unmet && len(states) >= minSize
	}
	if v.Recovers {
		v.Calls = nil
	}
	v.GivesUp = v.GivesUp && v.Recovers
	v.Judgement = completion.Judge(come)
	decided, _ = json.Marshal(v) // as in encode
	return decided, closed
}

// readRecord reads that of a value which ranks have decided on. A member has made it: what cannot
// be is refused.
func readRecord(value *membership.Value, ranks int) (v record, err error) {
	if err = json.Unmarshal(value.Verdict, &v); err != nil {
		return v, fmt.Errorf("%w: the record: %w", exec.ErrProtocol, err)
	}
	for rank := range v.Calls {
		if rank < 0 || rank >= ranks {
			return v, fmt.Errorf("%w: the record tells of rank %d", exec.ErrProtocol, rank)
		}
	}
	for _, f := range v.Fetch {
		if _, survives := value.Rank(f.From); !survives || f.Bytes > completesMost {
			return v, fmt.Errorf("%w: the record has rank %d pass %d bytes on", exec.ErrProtocol, f.From,
				f.Bytes)
		}
	}
	return v, nil
}

// shortName is a foreign name as a text shows it.
func shortName(s string) string { return printable.Text(s, 32) }
