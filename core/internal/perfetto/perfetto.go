// Package perfetto writes traces in the protobuf format of Perfetto, which ui.perfetto.dev and
// trace_processor read.
//
// A trace is a row of packets, so a file is a trace up to its last whole packet, and traces that
// are put together by cat are one. A [Writer] makes the packets of one process. Times are in
// nanoseconds since 1970.
//
// The numbers of fields are those of protos/perfetto/trace in Perfetto's sources.
package perfetto

import (
	"cmp"
	"encoding/binary"
	"math"
	"slices"
)

// Track is a row on which slices lie beside or within each other.
type Track struct {
	ID     uint64 // unlike all others, also those of other processes
	Parent uint64 // 0: none
	Name   string
}

// Slice is something that took a time.
type Slice struct {
	Begin, End uint64
	Track      uint64
	Name       string
	Args       []Arg
}

// Arg is what is told of a slice: a text, or a number where that is "".
type Arg struct {
	Name   string
	Number int64
	Text   string
}

// Writer makes packets. It may be used by one goroutine at a time.
type Writer struct {
	sequence uint64
	begun    bool
	names    interned // of slices
	args     interned // of args
	last     uint64   // time
	b        []byte
}

// NewWriter returns a writer whose packets are told from those of others by a number.
func NewWriter(sequence uint32) *Writer {
	return &Writer{sequence: uint64(max(sequence, 1)), names: interned{}, args: interned{}}
}

// interned has numbers for texts, which packets name by them.
type interned map[string]uint64

// internedMost is how many texts have numbers. A trace that has more tells them all once more.
const internedMost = 1 << 14

// of returns the number of a text, and whether that is new.
func (i interned) of(s string) (number uint64, fresh bool) {
	number, known := i[s]
	if !known {
		number = uint64(len(i) + 1)
		i[s] = number
	}
	return number, !known
}

// Fields of messages.
const (
	tracePacket = 1

	packetClocks       = 6
	packetTime         = 8
	packetSequence     = 10
	packetEvent        = 11
	packetInterned     = 12
	packetFlags        = 13
	packetTrack        = 60
	flagCleared        = 1
	flagNeedsInterned  = 2
	clocksClock        = 1
	clocksPrimary      = 2
	clockID            = 1
	clockTime          = 2
	clockRealtime      = 1
	clockBoottime      = 6 // in which times of packets are understood
	trackID            = 1
	trackName          = 2
	trackParent        = 5
	eventArg           = 4
	eventType          = 9
	eventName          = 10
	eventTrack         = 11
	typeBegin          = 1
	typeEnd            = 2
	argName            = 1
	argInt             = 4
	argText            = 6
	internedNames      = 2
	internedArgs       = 3
	internedTextNumber = 1
	internedText       = 2
)

func number(b []byte, field int, v uint64) []byte {
	return binary.AppendUvarint(binary.AppendUvarint(b, uint64(field)<<3), v)
}

func text(b []byte, field int, v string) []byte {
	b = binary.AppendUvarint(binary.AppendUvarint(b, uint64(field)<<3|2), uint64(len(v)))
	return append(b, v...)
}

func message(b []byte, field int, fill func([]byte) []byte) []byte {
	return text(b, field, string(fill(nil)))
}

// packet adds one. The first tells that nothing was told before, and that times are those of
// CLOCK_REALTIME.
func (w *Writer) packet(flags uint64, fill func([]byte) []byte) {
	if !w.begun {
		w.begun = true
		w.add(flagCleared, func(b []byte) []byte {
			b = number(b, packetTime, w.last)
			return message(b, packetClocks, func(b []byte) []byte {
				for _, clock := range []uint64{clockRealtime, clockBoottime} {
					b = message(b, clocksClock, func(b []byte) []byte {
						return number(number(b, clockID, clock), clockTime, w.last)
					})
				}
				return number(b, clocksPrimary, clockBoottime)
			})
		})
	}
	w.add(flags, fill)
}

func (w *Writer) add(flags uint64, fill func([]byte) []byte) {
	w.b = message(w.b, tracePacket, func(b []byte) []byte {
		b = number(b, packetSequence, w.sequence)
		if flags != 0 {
			b = number(b, packetFlags, flags)
		}
		return fill(b)
	})
}

// Begin tells when the trace begins. It comes first.
func (w *Writer) Begin(time uint64) { w.last = time }

// Track adds a track. It comes before its slices.
func (w *Writer) Track(t Track) {
	w.packet(0, func(b []byte) []byte {
		return message(b, packetTrack, func(b []byte) []byte {
			b = text(number(b, trackID, t.ID), trackName, t.Name)
			if t.Parent != 0 {
				b = number(b, trackParent, t.Parent)
			}
			return b
		})
	})
}

// Slices adds some. Those of one track lie beside or within each other.
func (w *Writer) Slices(all []Slice) {
	slices.SortStableFunc(all, func(a, b Slice) int {
		return cmp.Or(cmp.Compare(a.Track, b.Track), cmp.Compare(a.Begin, b.Begin),
			cmp.Compare(b.End, a.End))
	})
	var open []*Slice // those of a track around the present time
	end := func(time uint64) {
		for len(open) > 0 && open[len(open)-1].End <= time {
			s := open[len(open)-1]
			open = open[:len(open)-1]
			w.event(typeEnd, s.End, s)
		}
	}
	for i := range all {
		s := &all[i]
		if i > 0 && all[i-1].Track != s.Track {
			end(math.MaxUint64)
		}
		end(s.Begin)
		w.event(typeBegin, s.Begin, s)
		open = append(open, s)
	}
	end(math.MaxUint64)
}

// event adds the beginning or the end of a slice.
func (w *Writer) event(kind, time uint64, s *Slice) {
	if len(w.names) >= internedMost {
		w.begun, w.names, w.args = false, interned{}, interned{}
	}
	w.last = time
	w.packet(flagNeedsInterned, func(b []byte) []byte {
		b = number(b, packetTime, time)
		var fresh []byte
		event := message(nil, packetEvent, func(b []byte) []byte {
			b = number(number(b, eventType, kind), eventTrack, s.Track)
			if kind == typeEnd {
				return b
			}
			b = number(b, eventName, w.intern(&fresh, w.names, internedNames, s.Name))
			for _, a := range s.Args {
				b = message(b, eventArg, func(b []byte) []byte {
					b = number(b, argName, w.intern(&fresh, w.args, internedArgs, a.Name))
					if a.Text != "" {
						return text(b, argText, a.Text)
					}
					return number(b, argInt, uint64(a.Number))
				})
			}
			return b
		})
		if fresh != nil {
			b = text(b, packetInterned, string(fresh))
		}
		return append(b, event...)
	})
}

// intern returns the number of a text. What is to be told of a new one it adds to fresh.
func (w *Writer) intern(fresh *[]byte, known interned, field int, s string) uint64 {
	n, isNew := known.of(s)
	if isNew {
		*fresh = message(*fresh, field, func(b []byte) []byte {
			return text(number(b, internedTextNumber, n), internedText, s)
		})
	}
	return n
}

// Take returns the packets that were made since it was called last.
func (w *Writer) Take() []byte {
	b := w.b
	w.b = nil
	return b
}
