package goccl

import (
	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/trace"
)

// Tracer reads the parts of calls, which are written while there is one: see [StartTrace].
type Tracer = trace.Session

// Span is a part of a call, or a whole one, as a [Tracer] reads it.
type Span = trace.Span

// StartTrace begins to trace what all communicators of the process do, until the Tracer is closed.
// Tracers do not disturb each other; there are 16 at most. A thread that does parts of calls then
// keeps its last 65,536 of them, in 2 MiB. Without a tracer they cost nothing.
//
// GOCCL_TRACE has the same written to a file for Perfetto.
func StartTrace() (*Tracer, error) {
	t, err := trace.Open()
	if err != nil {
		return nil, fault.From(err, fault.ErrSystem, "trace")
	}
	return t, nil
}
