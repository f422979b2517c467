package agreement

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/goccl/goccl/core/completion"
	"github.com/goccl/goccl/core/internal/printable"
	"github.com/goccl/goccl/core/membership"
	"github.com/goccl/goccl/core/transport"
)

// Proposal is what a rank proposes when its epoch's members decide. It travels as JSON, because
// decisions are rare, and a later version may add fields.
type Proposal struct {
	Operation string // that is called: "recover", "grow", "shrink" or "agree"
	Flags     uint64 `json:",omitempty"` // of agree
	Newcomers int    `json:",omitempty"` // of grow: how many are waited for
	// Completes is set in an automatic recovery. Nobody joins then, because the members complete
	// collectives in the next epoch that a newcomer knows nothing of.
	Completes bool `json:",omitempty"`
	// Ended is set where collectives have ended with a failure, so that nobody can complete them.
	Ended bool `json:",omitempty"`
	// Unmet is set where the first meeting with newcomers is not over. Further newcomers wait,
	// because each of them could be late, too. They are let in where too few members are left.
	Unmet    bool `json:",omitempty"`
	Progress completion.Progress
}

// Record is the decision record: what a decision says beside who goes on.
type Record struct {
	Flags uint64 `json:",omitempty"` // that all have set
	// Calls names the operations of two ranks that have called different ones: the first rank's, and
	// that of the first rank that differs. It is nil where all have called the same.
	Calls map[int]string `json:",omitempty"`
	// Recovers is set where some ranks recover automatically, and others have called something. The
	// recovery comes first.
	Recovers bool `json:",omitempty"`
	// GivesUp is set beside Recovers where collectives have ended with a failure on other ranks. Then
	// automatic recovery ends, and users call Recover.
	GivesUp bool `json:",omitempty"`
	completion.Judgement
}

func (m Proposal) encode() []byte {
	b, _ := json.Marshal(m) // strings and numbers never fail
	return b
}

// judge makes the record of what the members propose, by rank. Closed reports whether processes
// that want to join have to wait.
func judge(states map[int][]byte, minSize int) (decided []byte, closed bool) {
	v := Record{Flags: math.MaxUint64}
	first, ranks := Proposal{}, slices.Sorted(maps.Keys(states))
	come := map[int]completion.Progress{}
	for i, rank := range ranks {
		var m Proposal
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
func readRecord(value *membership.Value, ranks int) (v Record, err error) {
	if err = json.Unmarshal(value.Record, &v); err != nil {
		return v, fmt.Errorf("%w: the record: %w", transport.ErrProtocol, err)
	}
	for rank := range v.Calls {
		if rank < 0 || rank >= ranks {
			return v, fmt.Errorf("%w: the record tells of rank %d", transport.ErrProtocol, rank)
		}
	}
	for _, f := range v.Fetch {
		if _, survives := value.Rank(f.From); !survives || f.Bytes > completion.MaxBytes {
			return v, fmt.Errorf("%w: the record has rank %d pass %d bytes on", transport.ErrProtocol,
				f.From, f.Bytes)
		}
	}
	return v, nil
}

// shortName is a foreign name as a text shows it.
func shortName(s string) string { return printable.Text(s, 32) }
