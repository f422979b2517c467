package core

import (
	"slices"
	"testing"
	"time"

	"github.com/goccl/goccl/core/plan"
	"github.com/goccl/goccl/core/trace"
)

// Each collective, send and receive shows its parts while there is a session, by whichever way it
// goes: in Go or in C. They lie within the call, and are done by the threads that say so.
func TestSpans(t *testing.T) {
	for _, tr := range transports {
		for name, count := range map[string]int{"short": 2, "long": 100_000} {
			t.Run(tr+"/"+name, func(t *testing.T) {
				w := newWorld(t, tr, 2, time.Minute)
				once := func() {
					w.each(func(rank int) error { return run(w.comms[rank], allReduce(t, count)) })
				}
				once()
				s, err := trace.Open()
				if err != nil {
					t.Fatal(err)
				}
				defer s.Close()
				once()
				once()
				s.Close()
				spans, missed := s.Read(1 << 20)
				if missed != 0 {
					t.Errorf("%d spans are missed", missed)
				}
				checkSpans(t, spans, 4*count)
			})
		}
	}
}

// checkSpans compares the spans of the second and the third allreduce of two ranks with what is
// there at least.
func checkSpans(t *testing.T, spans []trace.Span, bytes int) {
	t.Helper()
	type key struct {
		rank     int
		sequence uint32
	}
	calls, parts := map[key]trace.Span{}, map[key][]string{}
	for _, span := range spans {
		k := key{span.Rank, span.Sequence}
		if span.Collective != plan.AllReduce || span.End < span.Begin || span.Thread == 0 {
			t.Errorf("%+v", span)
		}
		if span.Kind == trace.SpanCall {
			calls[k] = span
		} else {
			parts[k] = append(parts[k], span.Kind.String())
		}
	}
	for rank := range 2 {
		for _, sequence := range []uint32{2, 3} {
			k := key{rank, sequence}
			call := calls[k]
			if call.Kind != trace.SpanCall || int(call.Bytes) != bytes || call.Peer != -1 {
				t.Errorf("%+v: %+v", k, call)
			}
			has := func(some ...string) bool {
				return slices.ContainsFunc(some, func(s string) bool { return slices.Contains(parts[k], s) })
			}
			if !has("put", "put by link", "get") || !has("wait", "get") || !has("combine") {
				t.Errorf("%+v has %q", k, parts[k])
			}
			for _, span := range spans {
				if (key{span.Rank, span.Sequence}) == k && span.Kind.String() != "queued" &&
					(span.Begin < call.Begin || span.End > call.End) {
					t.Errorf("%+v lies outside of %+v", span, call)
				}
			}
		}
	}
}

// A recovery has a span.
func TestSpanOfRecovery(t *testing.T) {
	w := newWorld(t, "shm", 2, time.Minute)
	s, err := trace.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	w.comms[0].Revoke("test")
	w.each(func(rank int) error { return w.comms[rank].Recover(t.Context()) })
	spans, _ := s.Read(1 << 20)
	n := 0
	for i := range spans {
		if spans[i].Kind == trace.SpanRecover && spans[i].End > spans[i].Begin {
			n++
		}
	}
	if n != 2 {
		t.Errorf("%d recoveries in %+v", n, spans)
	}
}
