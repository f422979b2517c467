package goccl

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/goccl/goccl/core"
	"github.com/goccl/goccl/core/bootstrap"
	"github.com/goccl/goccl/core/fault"
)

// The kinds of errors, for errors.Is. What a program does about each:
//
//   - ErrInvalidArgument, ErrUnsupported: it is to be mended, and nothing has begun.
//   - ErrPeerFailed, ErrTimeout, ErrAborted, ErrRevoked: it goes on without those that are gone, by
//     [Comm.Recover] or [Comm.Shrink], or ends.
//   - ErrNoQuorum, ErrExcluded: it ends, as others may go on without it. It may [Join] again.
//   - ErrMismatch: ranks have called different things, or were started differently.
//   - ErrSystem: the operating system or the store has refused something.
//   - ErrInvalidHandle: memory of a peer has been deregistered.
//   - ErrInternal: a defect of this library.
var (
	ErrInvalidArgument = core.ErrInvalidArgument
	ErrTimeout         = core.ErrTimeout
	ErrAborted         = core.ErrAborted
	ErrPeerFailed      = core.ErrPeerFailed
	ErrMismatch        = core.ErrMismatch
	ErrUnsupported     = core.ErrUnsupported
	ErrSystem          = core.ErrSystem
	ErrInternal        = core.ErrInternal
	ErrRevoked         = core.ErrRevoked
	ErrNoQuorum        = core.ErrNoQuorum
	ErrExcluded        = core.ErrExcluded
	ErrInvalidHandle   = core.ErrInvalidHandle
)

// Error is every error of this package, for errors.As. errors.Is finds its Kind and, where a
// context has ended the call, that context's error, such as [context.Canceled].
type Error struct {
	// Kind is one of the Err variables.
	Kind error
	// Group is the communicator's name, "" where the error concerns none.
	Group string
	// Operation is what has failed, such as "allreduce" or "init"; "" where no operation has.
	Operation string
	// Sequence is the number of the collective that has failed, in the order of its communicator's;
	// 0 where none has.
	Sequence uint64
	// Ranks are to blame, in ascending order, as the communicator numbers them. With ErrPeerFailed
	// they have failed, with ErrTimeout they did not arrive, with ErrAborted they aborted or left.
	Ranks []int
	// GlobalRanks are the same ranks as the job numbers them: see [Config.GlobalRanks].
	GlobalRanks []int
	// Calls is, with ErrMismatch, what ranks called at the same place in the order.
	Calls map[int]string

	text    string
	context error
}

// Error says what has happened, why, and what to do.
func (e *Error) Error() string { return e.text }

// Unwrap returns the kind, and the error of the context that has ended the call.
func (e *Error) Unwrap() []error {
	if e.context == nil {
		return []error{e.Kind}
	}
	return []error{e.Kind, e.context}
}

// public makes an error of the core one of this package. The context is that of the call.
func public(ctx context.Context, operation string, err error) error {
	if err == nil {
		return nil
	}
	e := &Error{Kind: ErrSystem, Operation: operation, text: err.Error()}
	var from *fault.Error
	switch {
	case errors.As(err, &from):
		e.Kind, e.Group, e.Sequence, e.Calls = from.Kind, from.Group, from.Sequence, from.Calls
		if from.Operation != "" {
			e.Operation = from.Operation
		}
		e.Ranks = slices.Clone(from.Ranks)
		for _, rank := range from.Ranks {
			e.GlobalRanks = append(e.GlobalRanks, from.GlobalRank(rank))
		}
	case errors.Is(err, bootstrap.ErrInvalid):
		e.Kind = ErrInvalidArgument
	case errors.Is(err, context.DeadlineExceeded):
		e.Kind = ErrTimeout
	case errors.Is(err, context.Canceled):
		e.Kind = ErrAborted
	}
	switch cause := ctx.Err(); {
	case e.Kind != ErrTimeout && e.Kind != ErrAborted:
	case cause != nil:
		e.context = cause
		if cause == context.Canceled {
			e.Kind = ErrAborted
		}
	case e.Kind == ErrTimeout: // the call's clock may be a little before the context's
		if deadline, ok := ctx.Deadline(); ok && !time.Now().Before(deadline) {
			e.context = context.DeadlineExceeded
		}
	}
	return e
}
