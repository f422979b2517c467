package perfetto

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// fields decodes one message: numbers as uint64, texts and messages as []byte. The tests in Python
// decode traces with Perfetto's own messages.
func fields(t *testing.T, b []byte) map[int][]any {
	t.Helper()
	all := map[int][]any{}
	for len(b) > 0 {
		key, n := binary.Uvarint(b)
		if n <= 0 {
			t.Fatalf("no field in %x", b)
		}
		b = b[n:]
		v, n := binary.Uvarint(b)
		if n <= 0 {
			t.Fatalf("no value in %x", b)
		}
		b = b[n:]
		field := int(key >> 3)
		switch key & 7 {
		case 0:
			all[field] = append(all[field], v)
		case 2:
			if v > uint64(len(b)) {
				t.Fatalf("%d bytes of %d", len(b), v)
			}
			all[field] = append(all[field], b[:v])
			b = b[v:]
		default:
			t.Fatalf("wire type %d", key&7)
		}
	}
	return all
}

// told is what a trace says, a line a packet.
func told(t *testing.T, trace []byte) (lines []string) {
	names := map[uint64]string{}
	for _, p := range fields(t, trace)[tracePacket] {
		packet := fields(t, p.([]byte))
		if flags := packet[packetFlags]; len(flags) > 0 && flags[0] == uint64(flagCleared) {
			clear(names)
			lines = append(lines, "anew")
			continue
		}
		for _, i := range packet[packetInterned] {
			for _, n := range fields(t, i.([]byte))[internedNames] {
				name := fields(t, n.([]byte))
				names[name[internedTextNumber][0].(uint64)] = string(name[internedText][0].([]byte))
			}
		}
		for _, tr := range packet[packetTrack] {
			lines = append(lines, fmt.Sprintf("track %s", fields(t, tr.([]byte))[trackName][0]))
		}
		for _, e := range packet[packetEvent] {
			event := fields(t, e.([]byte))
			line := fmt.Sprintf("%d: ", packet[packetTime][0])
			if event[eventType][0] == uint64(typeEnd) {
				line += "end"
			} else {
				line += names[event[eventName][0].(uint64)]
			}
			lines = append(lines, line)
		}
	}
	return lines
}

func TestSlices(t *testing.T) {
	w := NewWriter(7)
	w.Begin(1)
	w.Track(Track{ID: 1, Name: "row"})
	// In the order of their ends, as they come.
	w.Slices([]Slice{
		{Begin: 12, End: 15, Track: 1, Name: "wait"},
		{Begin: 15, End: 15, Track: 1, Name: "copy"},
		{Begin: 10, End: 20, Track: 1, Name: "call"},
		{Begin: 20, End: 25, Track: 1, Name: "call", Args: []Arg{{"bytes", 4, ""}, {"group", 0, "g"}}},
		{Begin: 5, End: 30, Track: 2, Name: "call"},
	})
	want := []string{"anew", "track row", "10: call", "12: wait", "15: end", "15: copy", "15: end",
		"20: end", "20: call", "25: end", "5: call", "30: end"}
	if got := told(t, w.Take()); !slices.Equal(got, want) {
		t.Errorf("%q\nwant %q", got, want)
	}
	w.Slices([]Slice{{Begin: 40, End: 41, Track: 1, Name: "call"}})
	more := w.Take()
	if strings.Contains(string(more), "call") {
		t.Error("a name is told twice")
	}
}

// A trace with ever new names begins anew at times, and is not lost.
func TestNamesAreBounded(t *testing.T) {
	w := NewWriter(7)
	var trace []byte
	const n = 3*internedMost/2 + 10
	for i := range uint64(n) {
		w.Slices([]Slice{{Begin: i, End: i + 1, Track: 1, Name: fmt.Sprint(i)}})
		trace = append(trace, w.Take()...)
	}
	lines := told(t, trace)
	if i := slices.Index(lines, fmt.Sprintf("%d: %[1]d", n-1)); i < 0 {
		t.Error("the last slice has another name")
	}
	anew := 0
	for _, line := range lines {
		if line == "anew" {
			anew++
		}
	}
	if anew != 2 || len(w.names) > internedMost {
		t.Errorf("it began %d times, %d names are kept", anew, len(w.names))
	}
}
