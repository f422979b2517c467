package main

// #include <stdlib.h>
// #include "api.h"
import "C"

import (
	"sync"
	"unsafe"

	"github.com/goccl/goccl/core/trace"
)

// tracerHandle is what a goccl_tracer names.
type tracerHandle struct {
	issued
	*trace.Session
	mu    sync.Mutex
	texts map[string]*C.char // guarded by mu; nil: the tracer has been stopped
}

func onTracer(name string, h C.goccl_tracer, f func(*tracerHandle) error) C.goccl_result {
	return export(name, func() error {
		t, err := restore[*tracerHandle](uint64(h), "tracer")
		if err != nil {
			return err
		}
		return f(t)
	})
}

//export apiTraceStart
func apiTraceStart(to *C.goccl_tracer) C.goccl_result {
	return export("trace_start", func() error {
		if err := put(to, "trace_start: tracer", 0); err != nil {
			return err
		}
		s, err := trace.Open()
		if err != nil {
			return errorf(C.GOCCL_SYSTEM, "trace_start: %v", err)
		}
		*to = C.goccl_tracer(save(&tracerHandle{Session: s, texts: map[string]*C.char{}}))
		return nil
	})
}

//export apiTraceRead
func apiTraceRead(h C.goccl_tracer, to *C.goccl_span, size C.size_t, count *C.size_t,
	missed *C.uint64_t) C.goccl_result {
	return onTracer("trace_read", h, func(t *tracerHandle) error {
		if err := needs(count, "trace_read: count"); err != nil {
			return err
		}
		if to == nil || size == 0 {
			return invalid("trace_read: size", size, "allowed is 1 or more, with spans that is not NULL")
		}
		if _, err := strideOf("trace_read: spans[0].struct_size", to, leastSpan); err != nil {
			return err // before spans are taken from the tracer
		}
		t.mu.Lock()
		defer t.mu.Unlock()
		if t.texts == nil {
			return badHandle(uint64(h), "tracer")
		}
		spans, lost := t.Read(int(min(size, 1<<20)))
		if missed != nil {
			*missed = C.uint64_t(lost)
		}
		return putStructs("trace_read", "spans", spans, to, leastSpan, size, count, t.span)
	})
}

// span makes one of C's. The caller holds mu.
func (t *tracerHandle) span(s *trace.Span) C.goccl_span {
	collective := ""
	if s.Sequence > 0 {
		collective = s.Collective.String()
	}
	to := C.goccl_span{name: t.text(s.Kind.String()), title: t.text(s.Title()),
		collective: t.text(collective),
		group:      t.text(s.Group), begin_ns: C.uint64_t(s.Begin), end_ns: C.uint64_t(s.End),
		bytes: C.uint64_t(s.Bytes), sequence: C.uint32_t(s.Sequence), peer: C.int32_t(s.Peer),
		rank: C.int32_t(s.Rank), thread: C.uint32_t(s.Thread), row: C.uint32_t(s.Row)}
	fillText(to.thread_name[:], s.ThreadName)
	return to
}

// text is a text for C. The caller holds mu.
func (t *tracerHandle) text(s string) *C.char {
	c, ok := t.texts[s]
	if !ok {
		c = C.CString(s)
		t.texts[s] = c
	}
	return c
}

//export apiTraceStop
func apiTraceStop(h C.goccl_tracer) C.goccl_result {
	return onTracer("trace_stop", h, func(t *tracerHandle) error {
		if !drop(uint64(h)) {
			return badHandle(uint64(h), "tracer")
		}
		t.Close()
		t.mu.Lock()
		defer t.mu.Unlock()
		for _, c := range t.texts {
			C.free(unsafe.Pointer(c))
		}
		t.texts = nil
		return nil
	})
}

//export apiTraceNow
func apiTraceNow(now *C.uint64_t) C.goccl_result {
	return export("trace_now", func() error {
		return put(now, "trace_now: now", C.uint64_t(trace.Begin()))
	})
}

//export apiTraceCopy
func apiTraceCopy(out C.int, begin, bytes C.uint64_t) C.goccl_result {
	return export("trace_copy", func() error {
		kind := trace.SpanCopyIn
		if out != 0 {
			kind = trace.SpanCopyOut
		}
		trace.Add(kind, uint64(begin), uint64(bytes))
		return nil
	})
}
