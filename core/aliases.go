package core

import (
	"github.com/goccl/goccl/core/call"
	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/work"
)

// The kinds of errors. Every error of this package wraps one of them, for errors.Is.
var (
	ErrInvalidArgument = fault.ErrInvalidArgument
	ErrTimeout         = fault.ErrTimeout
	ErrAborted         = fault.ErrAborted
	ErrPeerFailed      = fault.ErrPeerFailed
	ErrMismatch        = fault.ErrMismatch
	ErrUnsupported     = fault.ErrUnsupported
	ErrSystem          = fault.ErrSystem
	ErrInternal        = fault.ErrInternal
	ErrRevoked         = fault.ErrRevoked
	ErrNoQuorum        = fault.ErrNoQuorum
	ErrExcluded        = fault.ErrExcluded
)

// Error is the error of all functions of this package.
type Error = fault.Error

// Operation is one collective, send or receive.
type Operation = call.Operation

// Work is one or several operations that were started together.
type Work = work.Work

// AnySource as Root of a Recv matches a send of any rank.
const AnySource = call.AnySource
