package core

import (
	"errors"
	"fmt"
	"strings"
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

// Error is an error of one kind, with a text of its own.
type Error struct {
	Kind error
	Text string
}

func (e *Error) Error() string { return e.Text }

// Unwrap returns the kind.
func (e *Error) Unwrap() error { return e.Kind }

func errorf(kind error, format string, args ...any) *Error {
	return &Error{Kind: kind, Text: fmt.Sprintf(format, args...)}
}

// ending is the error for one of the works that a failure has ended. What it names already is not named again.
func (e *Error) ending(what string) *Error {
	if strings.Contains(e.Text, what) {
		return e
	}
	return e.with("It ended " + what)
}

// with adds a sentence.
func (e *Error) with(sentence string) *Error {
	return &Error{e.Kind, strings.TrimSuffix(e.Text, ".") + ". " + sentence}
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
