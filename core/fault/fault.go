// Package fault has the kinds of errors, and the error that users see.
//
// An [Error] has one kind, which tells a program what to do, and fields that say what is known: the
// operation, the ranks to blame, what ranks called. Its text has three parts: a headline with the
// group and the operation, the cause, and a hint. An error that is not about a failed group has
// only a cause.
//
// A [Group] makes the errors of a communicator. It knows the names of the ranks. An error goes to
// peers as [Error.Encode] writes it; [Group.Decode] reads it there, and adds the peer's own names.
//
// Errors do not change once they are made: the methods that add something return a copy.
package fault

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/goccl/goccl/core/internal/printable"
)

// The kinds of errors.
var (
	ErrInvalidArgument = errors.New("invalid argument")
	ErrTimeout         = errors.New("timeout")
	ErrAborted         = errors.New("aborted")
	ErrPeerFailed      = errors.New("peer failed")
	ErrMismatch        = errors.New("collective mismatch")
	ErrUnsupported     = errors.New("unsupported")
	ErrSystem          = errors.New("system error")
	ErrInternal        = errors.New("internal error")
	// ErrRevoked: a rank has revoked the communicator, or its members go on in another one.
	ErrRevoked = errors.New("revoked")
	// ErrNoQuorum: too few members can be reached, and the others may go on without this rank.
	ErrNoQuorum = errors.New("no quorum")
	// ErrExcluded: the other members go on without this rank.
	ErrExcluded = errors.New("excluded")
	// ErrInvalidHandle: what it named is no more, or never was.
	ErrInvalidHandle = errors.New("invalid handle")
)

// kinds gives each kind the number under which it travels to peers.
var kinds = []error{ErrInternal, ErrInvalidArgument, ErrTimeout, ErrAborted, ErrPeerFailed,
	ErrMismatch, ErrUnsupported, ErrSystem, ErrRevoked, ErrNoQuorum, ErrExcluded, ErrInvalidHandle}

// Number is the number under which a kind travels to peers.
func Number(kind error) uint8 {
	return uint8(max(slices.Index(kinds, kind), 0))
}

// KindOf is the kind that a peer's number names; ErrInternal where it names none.
func KindOf(number uint8) error {
	if int(number) < len(kinds) {
		return kinds[number]
	}
	return ErrInternal
}

// hints say what to check or to do about the failure of a communicator.
var hints = map[error]string{
	ErrInternal: "This is a defect in GoCCL: please report it with this text",
	ErrTimeout: "Look at what the ranks named here are doing (their logs, a stack dump); if they " +
		"need the time, give a larger timeout",
	ErrAborted: "The communicator cannot be used again: make a new one to go on",
	ErrPeerFailed: "Look at the end of that rank's log for the reason. The ranks that are left can " +
		"make a new communicator, or all are restarted (torchrun --max-restarts does that)",
	ErrRevoked: "Go on with the others: recover the communicator, or shrink it",
	ErrNoQuorum: "End this process: the others may go on without it. It can join again as a new " +
		"member",
	ErrExcluded: "End this process, or join again as a new member",
	ErrMismatch: "All ranks must call the same collectives in the same order, with sizes and " +
		"dtypes that fit together",
}

// Error is an error of one kind, and what is known of it that a program can act upon. It is found
// by errors.As; errors.Is tells its kind.
type Error struct {
	Kind error  // ErrPeerFailed, or another of the Err variables
	Text string // the cause; of a failed communicator without the headline and the hint

	Group     string // name of the communicator; "" where there is none
	Operation string // that has failed, such as "allreduce"; "" where none has
	Sequence  uint64 // number of the collective that has failed; 0: none has
	// Ranks are to blame, in ascending order: with ErrPeerFailed those that failed, with ErrTimeout
	// those that did not arrive, with ErrAborted those that aborted or left. They count within the
	// group.
	Ranks []int
	// Calls are, with ErrMismatch, what ranks called at the same place in the order.
	Calls map[int]string

	title       string // of the communicator; "": Text is all
	call        string // the operation, with its arguments
	state       string // what has become of its buffers
	hint        string // what to do; "": that of the kind
	globalRanks []int  // of the group's ranks; nil: they are the same
}

// Errorf makes an error that is not about a failed communicator: the text is all.
func Errorf(kind error, format string, args ...any) *Error {
	return &Error{Kind: kind, Text: printable.Text(fmt.Sprintf(format, args...), MaxText)}
}

// From gives an error that came from below a kind, and says what has failed, unless it has a kind.
func From(err error, kind error, format string, args ...any) *Error {
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	return Errorf(kind, "%s: %v", fmt.Sprintf(format, args...), err)
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
	for _, more := range []string{e.state, cmp.Or(e.hint, hints[e.Kind])} {
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

// Blaming returns a copy that names the ranks to blame. Negative numbers name none.
func (e *Error) Blaming(ranks ...int) *Error {
	c := *e
	c.Ranks = slices.DeleteFunc(slices.Sorted(slices.Values(ranks)), func(r int) bool { return r < 0 })
	return &c
}

// During returns a copy that names the operation that has failed, and the number of a collective.
func (e *Error) During(operation string, sequence uint64) *Error {
	c := *e
	c.Operation, c.Sequence = operation, sequence
	return &c
}

// Calling returns a copy that says what ranks called at one place in the order.
func (e *Error) Calling(calls map[int]string) *Error {
	c := *e
	c.Calls = calls
	return &c
}

// Ending returns a copy for an operation that the failure has ended: which call it was, and what
// has become of its buffers.
func (e *Error) Ending(call, state string) *Error {
	c := *e
	c.call, c.state = call, state
	return &c
}

// Because returns a copy whose cause has one more sentence.
func (e *Error) Because(sentence string) *Error {
	c := *e
	c.Text = strings.TrimSuffix(e.Text, ".") + ". " + sentence
	return &c
}

// Hinting returns a copy with a hint of its own; "": that of the kind.
func (e *Error) Hinting(hint string) *Error {
	c := *e
	c.hint = hint
	return &c
}

// In returns a copy that belongs to a group, and whose text stays all.
func (e *Error) In(g *Group) *Error {
	c := *e
	c.Group, c.globalRanks = g.Name, g.GlobalRanks
	return &c
}
