package core

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/goccl/goccl/core/internal/printable"
	"github.com/goccl/goccl/core/plan"
)

// The kinds of errors. Every error of this package wraps one of them, for errors.Is.
var (
	ErrInvalidArgument = errors.New("invalid argument")
	ErrTimeout         = errors.New("timeout")
	ErrAborted         = errors.New("aborted")
	ErrPeerFailed      = errors.New("peer failed")
	ErrMismatch        = errors.New("collective mismatch")
	ErrUnsupported     = errors.New("unsupported")
	ErrSystem          = errors.New("system error")
	ErrInternal        = errors.New("internal error")
)

// kinds gives each kind the number under which it travels to peers.
var kinds = []error{ErrInternal, ErrInvalidArgument, ErrTimeout, ErrAborted, ErrPeerFailed, ErrMismatch,
	ErrUnsupported, ErrSystem}

// hints say what to check or to do about the failure of a communicator.
var hints = map[error]string{
	ErrInternal: "This is a defect in GoCCL: please report it with this text",
	ErrTimeout: "Look at what the ranks named here are doing (their logs, a stack dump); if they need " +
		"the time, give a larger timeout",
	ErrAborted: "The communicator cannot be used again: make a new one to go on",
	ErrPeerFailed: "Look at the end of that rank's log for the reason. The ranks that are left can make " +
		"a new communicator, or all are restarted (torchrun --max-restarts does that)",
	ErrMismatch: "All ranks must call the same collectives in the same order, with sizes and dtypes that " +
		"fit together",
}

// Error is an error of one kind, and what is known of it that a program can act upon. It is found by
// errors.As; errors.Is tells its kind.
type Error struct {
	Kind error  // ErrPeerFailed, or another of the Err variables
	Text string // the cause; of a failed communicator without the headline and the hint

	Group     string // name of the communicator; "" where there is none
	Operation string // that has failed, such as "allreduce"; "" where none has
	Sequence  uint64 // number of the collective that has failed; 0: none has
	// Ranks are to blame, in ascending order: with ErrPeerFailed those that failed, with ErrTimeout those
	// that did not arrive, with ErrAborted those that aborted or left. They count within the group.
	Ranks []int
	// Calls are, with ErrMismatch, what ranks called at the same place in the order.
	Calls map[int]string

	title       string // of the communicator; "": Text is all
	call        string // the operation, with its arguments
	state       string // what has become of its buffers
	globalRanks []int  // of the group's ranks; nil: they are the same
}

// Error returns a headline, the cause and a hint.
func (e *Error) Error() string {
	if e.title == "" {
		return e.Text
	}
	head := e.title
	switch {
	case e.call == "":
		head += " has failed"
	case !strings.HasPrefix(e.Text, e.call):
		head += ": " + e.call + " failed"
	}
	text := head + ": " + e.Text
	for _, more := range []string{e.state, hints[e.Kind]} {
		if more != "" {
			text = strings.TrimSuffix(text, ".") + ". " + more
		}
	}
	return text
}

// Unwrap returns the kind.
func (e *Error) Unwrap() error { return e.Kind }

// GlobalRank is the number in the job of a rank of the group.
func (e *Error) GlobalRank(rank int) int {
	if e.globalRanks == nil {
		return rank
	}
	return e.globalRanks[rank]
}

func errorf(kind error, format string, args ...any) *Error {
	return &Error{Kind: kind, Text: fmt.Sprintf(format, args...)}
}

// errorf is an error of the communicator, of which the text is the cause.
func (c *Comm) errorf(kind error, format string, args ...any) *Error {
	return &Error{Kind: kind, Text: fmt.Sprintf(format, args...), Group: c.name, title: c.title(),
		globalRanks: c.globalRanks}
}

// plainError is an error of the communicator whose text is all of it.
func (c *Comm) plainError(kind error, format string, args ...any) *Error {
	e := c.errorf(kind, format, args...)
	e.title = ""
	return e
}

// blaming names the ranks that the error is owed to. AnySource is none.
func (e *Error) blaming(ranks ...int) *Error {
	e.Ranks = slices.DeleteFunc(slices.Sorted(slices.Values(ranks)), func(r int) bool { return r == AnySource })
	return e
}

// during names the collective that has failed.
func (e *Error) during(m plan.Message) *Error {
	e.Operation, e.Sequence = plan.Collective(m.Collective).String(), m.Sequence
	return e
}

// calling notes what two ranks called at one place.
func (e *Error) calling(rank int, m plan.Message, peer int, seen plan.Message) *Error {
	e.Calls = map[int]string{rank: describe(m), peer: describe(seen)}
	return e
}

// ending is the error for a collective that a failure has ended; state is what has become of its buffers.
func (e *Error) ending(m plan.Message, state string) *Error {
	ended := *e
	ended.call, ended.state = fmt.Sprintf("#%d %s", m.Sequence, describe(m)), state
	return ended.during(m)
}

// refusing is the error for a call on a communicator that has failed before.
func (e *Error) refusing(operation string) *Error {
	refused := *e
	refused.Operation, refused.Sequence = operation, 0
	return &refused
}

// because adds a sentence to the cause.
func (e *Error) because(sentence string) *Error {
	longer := *e
	longer.Text = strings.TrimSuffix(e.Text, ".") + ". " + sentence
	return &longer
}

// asError gives an error that came from below a kind, unless it has one.
func asError(err error, kind error, format string, args ...any) *Error {
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	return &Error{Kind: kind, Text: fmt.Sprintf(format, args...) + ": " + err.Error()}
}

func kindNumber(kind error) uint8 {
	for i, k := range kinds {
		if errors.Is(kind, k) {
			return uint8(i)
		}
	}
	return 0
}

// told is an error on its way to a peer, which adds what it knows of the communicator itself. The kind
// goes in the frame's header.
type told struct {
	Text      string
	Operation string         `json:",omitempty"`
	Sequence  uint64         `json:",omitempty"`
	Ranks     []int          `json:",omitempty"`
	Calls     map[int]string `json:",omitempty"`
}

// What of an error goes to a peer, so that all of it fits into a frame.
const (
	maxFailText  = 8 << 10 // of the text
	maxCallText  = 1 << 10 // of each call
	maxFailRanks = 4096
	maxFailCalls = 2
)

// encode is the payload of a frame that tells of an error.
func (e *Error) encode() []byte {
	t := told{Text: printable.Text(e.Text, maxFailText), Operation: e.Operation, Sequence: e.Sequence,
		Ranks: e.Ranks[:min(len(e.Ranks), maxFailRanks)]}
	for _, rank := range slices.Sorted(maps.Keys(e.Calls))[:min(len(e.Calls), maxFailCalls)] {
		if t.Calls == nil {
			t.Calls = map[int]string{}
		}
		t.Calls[rank] = printable.Text(e.Calls[rank], maxCallText)
	}
	b, _ := json.Marshal(&t) // strings and numbers never fail
	return b
}

// heard is the error that a peer tells of. A payload that cannot be read has no text.
func (c *Comm) heard(kind error, payload []byte) *Error {
	var t told
	_ = json.Unmarshal(payload, &t) // what can be read of it is checked here
	e := c.errorf(kind, "%s", inWords(t.Text))
	e.Operation, e.Sequence = printable.Text(t.Operation, maxCallText), t.Sequence
	for _, rank := range t.Ranks[:min(len(t.Ranks), maxFailRanks)] {
		if rank >= 0 && rank < c.size {
			e.Ranks = append(e.Ranks, rank)
		}
	}
	slices.Sort(e.Ranks)
	for rank, call := range t.Calls {
		if rank >= 0 && rank < c.size && len(e.Calls) < maxFailCalls {
			if e.Calls == nil {
				e.Calls = map[int]string{}
			}
			e.Calls[rank] = printable.Text(call, maxCallText)
		}
	}
	return e
}
