package sim

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/goccl/goccl/core/tune"
)

// written are questions whose traces and GOAL are read again: all kinds of steps and waits.
var written = []tune.Question{
	{Collective: "allreduce", Ranks: 16, PerHost: 4, CPUs: 4, Bytes: 1 << 20},
	{Collective: "allreduce", Ranks: 16, PerHost: 8, CPUs: 3, Bytes: 4 << 10},
	{Collective: "alltoall", Ranks: 12, PerHost: 12, CPUs: 2, Bytes: 1 << 20},
	{Collective: "alltoall", Ranks: 8, PerHost: 8, CPUs: 8, Bytes: 64 << 20},
	{Collective: "allgather", Ranks: 9, PerHost: 2, CPUs: 1, Bytes: 9 << 20},
	{Collective: "broadcast", Ranks: 6, PerHost: 6, CPUs: 6, Bytes: 4 << 20},
	{Collective: "broadcast", Ranks: 33, PerHost: 4, CPUs: 4, Bytes: 4 << 20, RDMA: true},
	{Collective: "reduce", Ranks: 7, PerHost: 7, CPUs: 7, Bytes: 1 << 20, Ports: true},
	{Collective: "barrier", Ranks: 64, PerHost: 8, CPUs: 2},
	{Collective: "scatter", Ranks: 1, PerHost: 1, CPUs: 1, Bytes: 64},
}

// traceEvent is what a test needs of an event of a trace.
type traceEvent struct {
	Phase    string      `json:"ph"`
	Name     string      `json:"name"`
	Category string      `json:"cat"`
	Process  int         `json:"pid"`
	Track    int         `json:"tid"`
	From     json.Number `json:"ts"`
	Takes    json.Number `json:"dur"`
	ID       string      `json:"id"`
	Args     map[string]any
}

// picos are the picoseconds of a number of microseconds, which has all of them.
func picos(t *testing.T, n json.Number) int64 {
	t.Helper()
	whole, part, _ := strings.Cut(n.String(), ".")
	ps, err := strconv.ParseInt(whole+part, 10, 64)
	if err != nil || len(part) != 6 {
		t.Fatalf("a time is %q", n)
	}
	return ps
}

func readTrace(t *testing.T, text []byte) []traceEvent {
	t.Helper()
	var trace struct{ TraceEvents []traceEvent }
	if err := json.Unmarshal(text, &trace); err != nil {
		t.Fatal(err)
	}
	return trace.TraceEvents
}

// The spans of a rank follow one another without a gap from 0 until it ends; each message is an
// arrow, from a step that puts to one that takes, and not against the time.
func TestTrace(t *testing.T) {
	for _, q := range written {
		var out bytes.Buffer
		s, r := groupWith(t, q, "fat-tree:25g,leaf=2,taper=2", "", func(c *Config) { c.Trace = &out })
		ends := make([]int64, q.Ranks)
		type step struct {
			track int
			at    int64
		}
		spans, puts, takes := map[step]string{}, map[string]step{}, map[string]step{}
		for _, e := range readTrace(t, out.Bytes()) {
			if e.Phase == "M" {
				continue
			}
			rank, at := e.Track-1, picos(t, e.From)
			if e.Process != int(s.ranks[rank].host)+1 {
				t.Fatalf("%+v: an event of rank %d is of process %d", q, rank, e.Process)
			}
			here, to := step{e.Track, at}, map[string]map[string]step{"s": puts, "f": takes}[e.Phase]
			switch {
			case e.Phase == "X":
				if at != ends[rank] {
					t.Fatalf("%+v: a span of rank %d begins at %d, the one before ends at %d", q, rank, at,
						ends[rank])
				}
				if ends[rank] += picos(t, e.Takes); !strings.HasPrefix(e.Name, "wait") {
					spans[here] = e.Name
				}
			case to == nil || to[e.ID] != step{}:
				t.Fatalf("%+v: event %+v", q, e)
			default:
				to[e.ID] = here
			}
		}
		messages := int64(0)
		for _, c := range r.Counts {
			messages += c.Messages
		}
		if len(puts) != int(messages) || len(takes) != int(messages) || r.Traced != q.Ranks {
			t.Errorf("%+v: %d arrows begin, %d end, of %d messages; %d ranks", q, len(puts), len(takes),
				messages, r.Traced)
		}
		for id, from := range puts {
			to := takes[id]
			if name := spans[from]; spans[to] != "take" || to.at < from.at ||
				name != "put" && name != "put to all" && name != "offer" {
				t.Fatalf("%+v: message %s is from %q at %+v to %q at %+v", q, id, name, from, spans[to], to)
			}
		}
		for rank, end := range ends {
			if end != s.ranks[rank].now {
				t.Errorf("%+v: the track of rank %d ends at %d, the rank at %d", q, rank, end,
					s.ranks[rank].now)
			}
		}
	}
}

// A trace of many events has but the first rank of each host, and is the same each time.
func TestTraceIsBounded(t *testing.T) {
	q := tune.Question{Collective: "alltoall", Ranks: 192, PerHost: 24, CPUs: 24, Bytes: 64 << 10}
	var first []byte
	for range 2 {
		var out bytes.Buffer
		_, r := groupWith(t, q, "star:25g", "", func(c *Config) { c.Trace = &out })
		events := readTrace(t, out.Bytes())
		if r.Traced != 8 || len(events) > mostTraced {
			t.Errorf("%d events, of %d ranks", len(events), r.Traced)
		}
		for _, e := range events {
			if e.Phase != "M" && (e.Track-1)%24 != 0 {
				t.Fatalf("%+v, not of the first rank of a host", e)
			}
		}
		if first != nil && !bytes.Equal(first, out.Bytes()) {
			t.Error("another trace of the same")
		}
		first = out.Bytes()
	}
	// A rank that alone has too many is cut off.
	q = tune.Question{Collective: "alltoall", Ranks: 2, PerHost: 2, CPUs: 2, Bytes: 1 << 34}
	var out bytes.Buffer
	_, r := groupWith(t, q, "", "alltoall:linear", func(c *Config) { c.Trace = &out })
	if n := len(readTrace(t, out.Bytes())); r.Traced != 1 || n < mostTraced || n > mostTraced+4 {
		t.Errorf("%d events, of %d ranks", n, r.Traced)
	}
}

// goalOp is an operation of a rank, as GOAL has it.
type goalOp struct {
	kind      byte // s, r or c
	peer, tag int
	bytes     int64
	requires  []int
	done      bool
}

// readGOAL reads as much of GOAL as is written, and refuses all else.
func readGOAL(t *testing.T, text string) [][]goalOp {
	t.Helper()
	lines := bufio.NewScanner(strings.NewReader(text))
	var ranks [][]goalOp
	size, open := 0, false
	for lines.Scan() {
		line := lines.Text()
		var label, other, peer, tag int
		var bytes int64
		scan := func(format string, to ...any) bool {
			n, err := fmt.Sscanf(line, format, to...)
			return err == nil && n == len(to) && fmt.Sprintf(format, deref(to)...) == line
		}
		add := func(op goalOp) {
			last := len(ranks) - 1
			if ranks[last] = append(ranks[last], op); label != len(ranks[last]) {
				t.Fatalf("label %q is not the next", line)
			}
		}
		switch {
		case line == "":
		case size == 0 && scan("num_ranks %d", &size):
		case !open && scan("rank %d {", &other) && other == len(ranks):
			ranks, open = append(ranks, nil), true
		case open && line == "}":
			open = false
		case open && scan("l%d: send %db to %d tag %d", &label, &bytes, &peer, &tag):
			add(goalOp{kind: 's', peer: peer, tag: tag, bytes: bytes})
		case open && scan("l%d: recv %db from %d tag %d", &label, &bytes, &peer, &tag):
			add(goalOp{kind: 'r', peer: peer, tag: tag, bytes: bytes})
		case open && scan("l%d: calc %d", &label, &bytes):
			add(goalOp{kind: 'c', bytes: bytes})
		case open && scan("l%d requires l%d", &label, &other) && other < label:
			mine := ranks[len(ranks)-1]
			mine[label-1].requires = append(mine[label-1].requires, other-1)
		default:
			t.Fatalf("a line is %q", line)
		}
	}
	if open || len(ranks) != size {
		t.Fatalf("%d ranks of %d", len(ranks), size)
	}
	return ranks
}

func deref(all []any) (values []any) {
	for _, p := range all {
		switch p := p.(type) {
		case *int:
			values = append(values, *p)
		case *int64:
			values = append(values, *p)
		}
	}
	return values
}

// What GOAL says ends even where each send waits for its receive, and its messages are those of the
// simulation.
func TestGOAL(t *testing.T) {
	for _, q := range written {
		var out bytes.Buffer
		s, r := groupWith(t, q, "star:25g", "", func(c *Config) { c.Goal = &out })
		ranks := readGOAL(t, out.String())
		type pair struct{ from, to, tag int }
		sends, receives := map[pair]int64{}, map[pair]*goalOp{}
		messages, bytes := int64(0), int64(0)
		for rank, ops := range ranks {
			for i := range ops {
				op := &ops[i]
				key, twice := pair{rank, op.peer, op.tag}, false
				switch op.kind {
				case 's':
					_, twice = sends[key]
					sends[key] = op.bytes
					messages, bytes = messages+1, bytes+op.bytes
				case 'r':
					key.from, key.to = op.peer, rank
					twice = receives[key] != nil
					receives[key] = op
				}
				if twice {
					t.Fatalf("%+v: message %+v twice", q, key)
				}
			}
		}
		want := int64(0)
		for _, c := range r.Counts {
			want += c.Messages
			bytes -= c.Bytes
		}
		for rank := range s.ranks { // a message of 0 bytes has one there
			for i := range s.ranks[rank].steps {
				p := &s.ranks[rank].steps[i]
				s.sends(int32(rank), p, func(int32) { bytes -= max(1-p.bytes, 0) })
			}
		}
		if len(ranks) != q.Ranks || messages != want || bytes != 0 || len(sends) != len(receives) {
			t.Errorf("%+v: %d ranks, %d sends, %d receives, want %d; %d bytes too many", q, len(ranks),
				messages, len(receives), want, bytes)
		}
		for changed := true; changed; {
			changed = false
			for rank, ops := range ranks {
				for i := range ops {
					op := &ops[i]
					ready := !op.done
					for _, r := range op.requires {
						ready = ready && ops[r].done
					}
					if ready && op.kind != 'r' {
						to := receives[pair{rank, op.peer, op.tag}]
						if op.kind == 's' && (to == nil || to.bytes != op.bytes || to.requires != nil) {
							t.Fatalf("%+v: a send %+v of rank %d meets %+v", q, op, rank, to)
						}
						if op.done, changed = true, true; to != nil && op.kind == 's' {
							to.done = true
						}
					}
				}
			}
		}
		for rank, ops := range ranks {
			for i := range ops {
				if !ops[i].done {
					t.Fatalf("%+v: operation %d of rank %d never ends: %+v", q, i+1, rank, ops[i])
				}
			}
		}
	}
}

// failing is where nothing can be written.
type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, fmt.Errorf("no space") }

func TestWritingFails(t *testing.T) {
	for _, set := range []func(*Config){
		func(c *Config) { c.Trace = failing{} }, func(c *Config) { c.Goal = failing{} },
	} {
		c := config(t, written[0], "star:1g", "")
		set(c)
		if _, err := Run(c); err == nil || err.Error() != "no space" {
			t.Errorf("%v", err)
		}
	}
}
