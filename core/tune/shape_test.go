package tune

import (
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/goccl/goccl/core/call"
	"github.com/goccl/goccl/core/plan"
	"github.com/goccl/goccl/core/reduce"
)

const longMost = 1 << 30

// shapesOf are the shapes of all ranks of a topology in which ports join all pairs, or all but
// those of a group.
func shapesOf(t *testing.T, at Topology) []Shape { return shapesWith(t, at, CheapReads) }

// shapesWith are shapes of ranks that read each other's memory fast or not.
func shapesWith(t *testing.T, at Topology, reads Reads) []Shape {
	t.Helper()
	group, places := max(at.Group, at.OrderGroup), plan.Places(at.Order)
	if at.Order == nil {
		places = dealt(at.Size, 1)
	}
	switch at.Sharing = 1; {
	case at.Memory && at.Ports && group > 0:
		at.Sharing = group
	case at.Memory:
		at.Sharing = at.Size
	}
	shapes := make([]Shape, at.Size)
	for rank := range shapes {
		o := Options{LongMost: longMost, Ports: make([]bool, at.Size), SingleCopy: !at.Ports,
			Reads: reads}
		for peer := range o.Ports {
			near := at.Memory && group > 0 && places[peer]/group == places[rank]/group
			o.Ports[peer] = at.Ports && peer != rank && !near
		}
		var err error
		if shapes[rank], err = New(at, rank, o); err != nil {
			t.Fatal(err)
		}
	}
	return shapes
}

// operation has blocks of n elements.
func operation(c plan.Collective, size int, n uint64) call.Operation {
	all := slices.Repeat([]uint64{n}, size)
	op := call.Operation{Collective: c, DType: reduce.Float32, InCounts: all[:1], OutCounts: all[:1]}
	switch c {
	case plan.AllGather, plan.Gather:
		op.OutCounts = all
	case plan.ReduceScatter, plan.Scatter:
		op.InCounts = all
	case plan.AllToAll:
		op.InCounts, op.OutCounts = all, all
	case plan.Barrier:
		op.InCounts, op.OutCounts = nil, nil
	}
	return op
}

// The plans of the shapes that are used, with the segments that they are cut into, are proved.
func TestShapesArePlanned(t *testing.T) {
	if testing.Short() {
		t.Skip("has no goroutines, for a sanitizer to watch, and long proofs")
	}
	for _, size := range []int{2, 3, 4, 8} {
		for _, at := range []Topology{{Memory: true}, {Ports: true, Memory: true}, {Ports: true},
			{Memory: true, Oversubscribed: true}, {Ports: true, Oversubscribed: true}} {
			at.Size = size
			for _, n := range []uint64{0, 1, 70_000, 1 << 20, 40 << 20} {
				for c := plan.AllReduce; c < plan.Barrier; c++ {
					verify(t, at, plan.BySize, c, n)
				}
				for _, schedule := range []plan.Schedule{plan.Sequential, 3} {
					verify(t, at, schedule, plan.AllToAll, n)
				}
				dealtOut := at
				if dealtOut.MultiHost = true; at.Ports && size == 8 {
					dealtOut.Order, dealtOut.OrderGroup = dealt(size, 2), 4
					for _, c := range []plan.Collective{plan.Broadcast, plan.AllGather, plan.AllReduce} {
						verify(t, dealtOut, plan.BySize, c, n)
					}
				}
				grouped := at
				grouped.MultiHost = true
				for g := 2; at.Ports && g < size && size%g == 0; g *= 2 {
					grouped.Group = g
					for c := plan.AllReduce; c < plan.Barrier; c++ {
						if c.Has(plan.Hierarchical) {
							verify(t, grouped, plan.BySize, c, n)
						}
					}
				}
			}
		}
	}
}

func verify(t *testing.T, at Topology, schedule plan.Schedule, c plan.Collective, n uint64) {
	t.Helper()
	var segments [][]Segment
	for _, s := range shapesOf(t, at) {
		s.Schedule = schedule
		op := operation(c, at.Size, n)
		segments = append(segments, s.Segments(&op, nil))
	}
	for i := range segments[0] {
		plans, params := make([]*plan.Plan, at.Size), make([]plan.Params, at.Size)
		for rank := range plans {
			params[rank] = segments[rank][i].Params
			p, err := plan.Build(params[rank])
			if err != nil {
				t.Fatal(err)
			}
			plans[rank] = p
		}
		if err := plan.Verify(plans, params, false); err != nil {
			t.Fatalf("%v, %+v, %d elements, segment %d: %v", c, at, n, i, err)
		}
	}
}

var update = flag.Bool("update", false, "write testdata/choices.txt anew")

// TestChoices compares what is chosen for each topology, number of ranks, collective and size with
// a table. A change of it is to be looked at: -update writes the table anew.
func TestChoices(t *testing.T) {
	head := `# What a rank does of a collective, by bytes of a block of float32. A cell tells how many
# messages the busier of ranks 0 (the root) and 1 puts, and how long the longest is. Then:
#   *n  the operation is cut into n plans, of which the first is told
#   m   what goes to all is written once      s  results go back in the slots that inputs came in
#   1   blocks are copied once, by receivers  l  messages are longer than a slot
#   d   a direct plan is tried before         o, a  own copies, all copies go past the caches
# The line below names the algorithms, each from the first of these sizes that goes by it.
`
	sizes := []uint64{4, 16 << 10, 256 << 10, 4 << 20, 128 << 20}
	var b strings.Builder
	b.WriteString(head)
	for _, place := range []struct {
		name string
		at   Topology
	}{
		{"shared memory", Topology{Memory: true}},
		{"shared memory, small pages", Topology{Memory: true}},
		{"shared memory, oversubscribed", Topology{Memory: true, Oversubscribed: true}},
		{"ports within a host", Topology{Ports: true}},
		{"ports within a host, oversubscribed", Topology{Ports: true, Oversubscribed: true}},
		{"two hosts", Topology{Ports: true, Memory: true, MultiHost: true}},
		{"a host a rank", Topology{Ports: true, MultiHost: true}},
		{"shared memory, two domains", Topology{Memory: true}},
		{"two hosts, by turns", Topology{Ports: true, Memory: true, MultiHost: true}},
	} {
		for _, ranks := range []int{2, 4, 8, 16} {
			at := place.at
			at.Size = ranks
			if place.name == "two hosts" {
				if at.Group = ranks / 2; at.Group == 1 {
					continue
				}
			}
			if place.name == "shared memory, two domains" {
				if at.Domain = ranks / 2; ranks < 16 {
					continue
				}
			}
			if place.name == "two hosts, by turns" {
				if at.OrderGroup = ranks / 2; ranks < 8 {
					continue
				}
				at.Order = dealt(ranks, 2)
			}
			reads := CheapReads
			if strings.Contains(place.name, "small pages") {
				reads = SlowReads
			}
			shapes := shapesWith(t, at, reads)
			s := &shapes[0]
			fmt.Fprintf(&b, "\n%s, %d ranks: slots %dx%s, ahead %d, eager packets up to %s\n", place.name,
				ranks, s.Slots, units(uint64(s.Chunk)), s.Ahead, units(uint64(s.EagerMax)))
			fmt.Fprintf(&b, "%-15s", "")
			for _, bytes := range sizes {
				fmt.Fprintf(&b, "%-15s", units(bytes))
			}
			b.WriteString("\n")
			for c := plan.AllReduce; c < plan.Barrier; c++ {
				fmt.Fprintf(&b, "%-15v", c)
				for _, bytes := range sizes {
					fmt.Fprintf(&b, "%-15s", choice(t, shapes, operation(c, ranks, bytes/4)))
				}
				b.WriteString("\n")
				name := ""
				for _, bytes := range sizes {
					op := operation(c, ranks, bytes/4)
					switch now := s.Choose(&op).String(); {
					case name == "":
						name = now
						b.WriteString("  by " + now)
					case name != now:
						name = now
						fmt.Fprintf(&b, ", from %s by %s", units(bytes), now)
					}
				}
				b.WriteString("\n")
			}
		}
	}
	got := strings.ReplaceAll(b.String(), " \n", "\n")
	for strings.Contains(got, " \n") {
		got = strings.ReplaceAll(got, " \n", "\n")
	}
	file := filepath.Join("testdata", "choices.txt")
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	gotLines, wantLines := strings.Split(got, "\n"), strings.Split(string(want), "\n")
	topic := ""
	for i := range min(len(gotLines), len(wantLines)) {
		if strings.Contains(wantLines[i], " ranks: ") {
			topic = wantLines[i]
		}
		if gotLines[i] != wantLines[i] {
			t.Errorf("line %d (%s):\n%s\nthe table says\n%s", i+1, topic, gotLines[i], wantLines[i])
		}
	}
	if len(gotLines) != len(wantLines) {
		t.Errorf("%d lines, the table has %d", len(gotLines), len(wantLines))
	}
}

// choice tells in short what is chosen for an operation: see TestChoices.
func choice(t *testing.T, shapes []Shape, op call.Operation) string {
	t.Helper()
	text, most := "", -1
	for rank := range 2 {
		s := &shapes[rank]
		segments := s.Segments(&op, nil)
		p, err := plan.Build(segments[0].Params)
		if err != nil {
			t.Fatal(err)
		}
		puts, longest := 0, int64(0)
		flags := map[byte]bool{}
		for _, step := range p.Steps {
			switch step.Op {
			case plan.Put, plan.PutToAll:
				puts++
				longest = max(longest, step.Bytes)
				flags['m'] = flags['m'] || step.Op == plan.PutToAll
				flags['l'] = flags['l'] || step.Bytes > s.Chunk
			case plan.Offer:
				puts++
				flags['1'] = true
			case plan.Reclaim:
				flags['s'] = true
			}
		}
		if puts <= most {
			continue
		}
		most = puts
		_, direct := s.Direct(&op, segments)
		streams := s.Streams(&op)
		flags['d'] = direct
		flags['o'], flags['a'] = streams == plan.StreamOwn, streams == plan.StreamAll
		text = fmt.Sprintf("%dx%s ", puts, units(uint64(longest)))
		for _, f := range []byte("ms1ldoa") {
			if flags[f] {
				text += string(f)
			}
		}
		if n := len(segments); n > 1 {
			text += fmt.Sprintf("*%d", n)
		}
	}
	return strings.TrimSpace(text)
}

// units writes a number of bytes as people do.
func units(n uint64) string {
	for _, unit := range []string{"", "K", "M"} {
		if n < 1<<10 || n%(1<<10) != 0 {
			return fmt.Sprint(n, unit)
		}
		n >>= 10
	}
	return fmt.Sprint(n, "G")
}

const streamed = 16 << 20

func TestStreams(t *testing.T) {
	large := []uint64{streamed}
	buffer := func() []unsafe.Pointer { return []unsafe.Pointer{unsafe.Pointer(new(int32))} }
	one, other := buffer(), buffer()
	for _, c := range []struct {
		name                 string
		collective           plan.Collective
		in, out              []unsafe.Pointer
		counts               []uint64
		free, oversubscribed plan.Streams
	}{
		{"allgather", plan.AllGather, nil, nil, []uint64{streamed / 2, streamed / 2},
			plan.StreamAll, plan.StreamAll},
		{"small", plan.AllGather, nil, nil, []uint64{streamed / 2, streamed/2 - 1},
			plan.StreamNone, plan.StreamNone},
		{"broadcast", plan.Broadcast, nil, nil, large, plan.StreamOwn, plan.StreamAll},
		{"scatter", plan.Scatter, nil, nil, large, plan.StreamOwn, plan.StreamAll},
		{"in place", plan.AllReduce, one, one, large, plan.StreamNone, plan.StreamNone},
		{"out of place", plan.AllReduce, one, other, large, plan.StreamAll, plan.StreamAll},
	} {
		op := call.Operation{Collective: c.collective, DType: reduce.Int8, In: c.in, Out: c.out,
			OutCounts: c.counts}
		for _, oversubscribed := range []bool{false, true} {
			want := c.free
			if oversubscribed {
				want = c.oversubscribed
			}
			at := Topology{Size: 4, Memory: true, Oversubscribed: oversubscribed}
			if got := shapesOf(t, at)[0].Streams(&op); got != want {
				t.Errorf("%s, oversubscribed %v: %d, want %d", c.name, oversubscribed, got, want)
			}
		}
	}
}

// What the user says of streams comes before what is measured.
func TestStreamsThatAreAskedFor(t *testing.T) {
	for text, want := range map[string]bool{"": false, "flat_max=1": false, "stream_min=0": true,
		"flat_max=1,stream_min=16777216": true} {
		s, err := New(Topology{Size: 2, Memory: true, Sharing: 2}, 0, Options{Thresholds: text})
		if err != nil || s.StreamMinSet != want {
			t.Errorf("%q: %v, want %v, %v", text, s.StreamMinSet, want, err)
		}
		if s.Thresholds.StreamMin != 16<<20 && text != "stream_min=0" {
			t.Errorf("%q: streams from %d bytes on", text, s.Thresholds.StreamMin)
		}
	}
}

// What nobody has asked for is copied once only where that is faster. A send through a window takes
// as long as one copy where both ranks have a CPU.
func TestSingleCopyNeedsFastReads(t *testing.T) {
	for cost, want := range map[float64]struct{ sends, sharing, all bool }{
		0.5: {true, true, true}, 1.2: {true, true, true}, 1.3: {false, true, true},
		1.9: {false, true, true}, 2: {}, math.Inf(1): {},
	} {
		for _, ports := range []bool{false, true} {
			for _, crowded := range []bool{false, true} {
				at := Topology{Size: 2, Memory: true, Ports: ports, Oversubscribed: crowded}
				made, agreed := shapesWith(t, at, ReadsAt(cost))[0], shapesOf(t, at)[0]
				agreed.Agree(agreed.SingleCopy, ReadsAt(cost))
				for _, s := range []Thresholds{made.Thresholds, agreed.Thresholds} {
					sends := want.sends || crowded && want.sharing
					if s.SendGetMin > 0 != sends || s.GetMin > 0 != (want.all && !ports) {
						t.Errorf("reads of cost %v, ports %v, oversubscribed %v: from %d on, sends from %d",
							cost, ports, crowded, s.GetMin, s.SendGetMin)
					}
				}
			}
		}
	}
}

// Only between hosts is there a network to be crowded.
func TestWindows(t *testing.T) {
	for _, c := range []struct {
		at   Topology
		want plan.Thresholds
	}{
		{Topology{Ports: true}, plan.Thresholds{}},
		{Topology{Ports: true, Oversubscribed: true}, plan.Thresholds{WindowMin: manyChunks * 128 << 10}},
		{Topology{Ports: true, MultiHost: true}, plan.Thresholds{WindowMin: 1 << 20, Window: 8}},
		{Topology{Ports: true, MultiHost: true, Oversubscribed: true},
			plan.Thresholds{WindowMin: 1 << 20, Window: 8}},
	} {
		at, want := c.at, c.want
		at.Size = 11
		got := shapesOf(t, at)[0].Thresholds
		if got.WindowMin != want.WindowMin || want.WindowMin > 0 && got.Window != want.Window {
			t.Errorf("%+v: a window of %d from %d bytes", at, got.Window, got.WindowMin)
		}
	}
}

func TestOptionsAreRefused(t *testing.T) {
	for _, o := range []Options{{Thresholds: "flat=1"}, {Schedule: "in turn"}} {
		_, err := New(Topology{Size: 2, Memory: true, Sharing: 2}, 0, o)
		if err == nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("%+v: %v, want an error of one line", o, err)
		}
	}
}

func TestAllToAllPeaks(t *testing.T) {
	peaks := func(ranks int, ports bool, schedule string, bytes uint64) (plan.Peaks, error) {
		return AllToAllPeaks(ranks, 8, ports, schedule, bytes)
	}
	for _, ports := range []bool{false, true} {
		one, err := peaks(8, ports, "sequential", 8<<20)
		if err != nil {
			t.Fatal(err)
		}
		chunk := shapesOf(t, Topology{Size: 8, Ports: ports, Memory: !ports})[0].Chunk
		want := plan.Peaks{Pairs: 1, Incast: 1, Sent: chunk, Received: chunk, Staging: 2 * chunk}
		if one != want {
			t.Errorf("ports %v: %+v, want %+v", ports, one, want)
		}
		if more, err := peaks(8, ports, "sequential", 1<<40); err != nil || more != one {
			t.Errorf("ports %v: %+v, %v", ports, more, err)
		}
	}
	// On an oversubscribed host large blocks go straight to their places.
	for _, cpus := range []int{15, 16} {
		p, err := AllToAllPeaks(16, cpus, true, "", 1<<30)
		if err != nil || p.Incast != 15 || (p.Staging == 0) != (cpus < 16) {
			t.Errorf("by size, on one host of %d CPUs: %+v, %v", cpus, p, err)
		}
	}
	for _, c := range []struct {
		ranks          int
		schedule, want string
	}{
		{0, "", "ranks is 0"},
		{65, "", "ranks is 65"},
		{2, "window", `schedule is "window", allowed are`},
	} {
		if _, err := peaks(c.ranks, false, c.schedule, 1); err == nil ||
			!strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}
