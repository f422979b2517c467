package fault

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/goccl/goccl/core/internal/printable"
)

// Group is what errors say of a communicator and of its ranks.
type Group struct {
	Name        string
	GlobalRanks []int // by rank: its number in the job; nil: they are the same
	PIDs        []int // by rank
}

// NewGroup makes a group. The global ranks may be nil, or the same as the ranks.
func NewGroup(name string, globalRanks, pids []int) Group {
	g := Group{Name: name, PIDs: pids}
	for rank, global := range globalRanks {
		if rank != global {
			g.GlobalRanks = slices.Clone(globalRanks)
			break
		}
	}
	return g
}

// Errorf makes an error of the communicator. The text is the cause.
func (g *Group) Errorf(kind error, format string, args ...any) *Error {
	e := Errorf(kind, format, args...).In(g)
	e.title = "the communicator"
	if g.Name != "" {
		e.title = fmt.Sprintf("communicator %q", g.Name)
	}
	return e
}

// Names names ranks so that a person finds their processes: "rank 1 (pid 12)", or "rank 1 (global
// rank 3, pid 12)" where ranks of the group have other numbers in the job.
func (g *Group) Names(ranks ...int) string {
	names := make([]string, len(ranks))
	for i, r := range ranks {
		global := ""
		if g.GlobalRanks != nil {
			global = fmt.Sprintf("global rank %d, ", g.GlobalRanks[r])
		}
		names[i] = fmt.Sprintf("%d (%spid %d)", r, global, g.PIDs[r])
	}
	noun := "rank "
	if len(ranks) > 1 {
		noun = "ranks "
	}
	return noun + strings.Join(names, ", ")
}

// What of an error goes to a peer, so that all of it fits into a frame.
const (
	MaxText  = 8 << 10 // bytes of the text
	maxCall  = 1 << 10 // bytes of each call
	maxRanks = 4096
	maxCalls = 2
)

// encoded is an error on its way to a peer. The kind goes in the frame's header.
type encoded struct {
	Text      string
	Operation string         `json:",omitempty"`
	Sequence  uint64         `json:",omitempty"`
	Ranks     []int          `json:",omitempty"`
	Calls     map[int]string `json:",omitempty"`
}

// Encode is the payload of a frame that tells a peer of an error.
func (e *Error) Encode() []byte {
	t := encoded{Text: printable.Text(e.Text, MaxText), Operation: e.Operation, Sequence: e.Sequence,
		Ranks: e.Ranks[:min(len(e.Ranks), maxRanks)]}
	for _, rank := range slices.Sorted(maps.Keys(e.Calls))[:min(len(e.Calls), maxCalls)] {
		if t.Calls == nil {
			t.Calls = map[int]string{}
		}
		t.Calls[rank] = printable.Text(e.Calls[rank], maxCall)
	}
	b, _ := json.Marshal(&t) // strings and numbers never fail
	return b
}

// Decode is the error that a peer tells of. A payload that cannot be read has no text.
func (g *Group) Decode(kind error, payload []byte) *Error {
	var t encoded
	_ = json.Unmarshal(payload, &t) // what can be read of it is checked here
	e := g.Errorf(kind, "%s", cmp.Or(printable.Text(t.Text, MaxText), "it gave no reason"))
	e.Operation, e.Sequence = printable.Text(t.Operation, maxCall), t.Sequence
	for _, rank := range t.Ranks[:min(len(t.Ranks), maxRanks)] {
		if rank >= 0 && rank < len(g.PIDs) {
			e.Ranks = append(e.Ranks, rank)
		}
	}
	slices.Sort(e.Ranks)
	for rank, call := range t.Calls {
		if rank >= 0 && rank < len(g.PIDs) && len(e.Calls) < maxCalls {
			if e.Calls == nil {
				e.Calls = map[int]string{}
			}
			e.Calls[rank] = printable.Text(call, maxCall)
		}
	}
	return e
}
