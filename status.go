package goccl

import "github.com/goccl/goccl/core/status"

type (
	// ProcessStatus is what the communicators of a process do.
	ProcessStatus = status.Process
	// GroupStatus is what one communicator does. Its Others are empty: `goccl ps` asks them.
	GroupStatus = status.Group
	// CallStatus is the collective that a rank is in, or has called last.
	CallStatus = status.Call
	// MessageStatus is a send or receive that has not ended.
	MessageStatus = status.Message
)

// Status tells what the communicators of this process do: what `goccl ps` shows of it. It may be
// called at any time, by any goroutine, asks no other process and waits for no collective.
func Status() ProcessStatus { return process.Status() }
