// Package flight writes what communicators have done as torch's flight recorder does, for
// torchfrtrace and people: one file a rank, a pickle.
//
// [Files] makes the files of what traces hold; it is data in, data out. A [Recorder] writes them.
//
// An analysis compares ranks by group and number. So each epoch is a group of its own, and each
// pair of ranks that exchange messages is one: what a rank sends to another, and what the other
// receives from it, have the same numbers there.
package flight

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/goccl/goccl/core/call"
	"github.com/goccl/goccl/core/internal/pickle"
	"github.com/goccl/goccl/core/plan"
	"github.com/goccl/goccl/core/reduce"
	"github.com/goccl/goccl/core/trace"
)

// version is that of torch's format.
const version = "2.10"

// Source is what one trace holds.
type Source struct {
	Groups      []trace.Group
	Collectives []trace.Record
	Messages    []trace.Record
	Clock       trace.Clock
	Missed      int // records that were being written
}

// Read reads a trace.
func Read(t *trace.Trace) Source {
	s := Source{}
	var missed int
	s.Collectives, s.Missed = t.ReadCollectives()
	s.Messages, missed = t.ReadMessages()
	s.Missed += missed
	s.Groups, s.Clock = t.Groups(), t.Clock()
	return s
}

// Files are the contents of the files, by the rank in the job that each is of.
func Files(library string, sources []Source) map[int][]byte {
	ranks := map[int]*dump{}
	for i := range sources {
		s := &sources[i]
		if len(s.Groups) == 0 {
			continue
		}
		rank := s.Groups[len(s.Groups)-1].JobRank()
		d := ranks[rank]
		if d == nil {
			d = &dump{known: map[string]bool{}}
			ranks[rank] = d
		}
		d.add(s)
	}
	files := map[int][]byte{}
	for rank, d := range ranks {
		files[rank] = pickle.Marshal(d.value(library))
	}
	return files
}

// dump is what the file of a rank is to have.
type dump struct {
	known   map[string]bool
	groups  pickle.Dict // pg_config
	states  pickle.Dict // pg_status
	entries []entry
	dropped uint64 // calls that are kept no more
	missed  int
}

type entry struct {
	created uint64 // ns
	value   pickle.Dict
}

// add adds what a trace holds.
func (d *dump) add(s *Source) {
	d.missed += s.Missed
	for i := range s.Groups {
		g := &s.Groups[i]
		name := nameOf(g)
		if i < len(s.Groups)-1 && !s.has(g.Epoch) {
			continue
		}
		d.group(name, "goccl", g.Ranks)
		last, kept := uint64(0), uint64(0)
		for i := range s.Collectives {
			if r := &s.Collectives[i]; r.Message.Epoch == g.Epoch {
				d.collective(s, g, name, r)
				last, kept = r.Number, kept+1
			}
		}
		d.dropped += last - kept
		status := pickle.Dict{"last_enqueued_collective", last, "epoch", int(g.Epoch)}
		if g.Failed != "" {
			status = append(status, "failed", g.Failed)
		}
		d.states = append(d.states, name, status)
		d.messages(s, g, name)
	}
	if n := len(s.Messages); n > 0 {
		d.dropped += s.Messages[n-1].Number - uint64(n)
	}
}

// has reports whether there are records of an epoch.
func (s *Source) has(epoch uint32) bool {
	of := func(r trace.Record) bool { return r.Message.Epoch == epoch }
	return slices.ContainsFunc(s.Collectives, of) || slices.ContainsFunc(s.Messages, of)
}

// nameOf names the group of an epoch, on all its ranks alike.
func nameOf(g *trace.Group) string {
	name := cmp.Or(g.Name, fmt.Sprintf("%x", g.ID))
	if g.Epoch > 0 {
		name += fmt.Sprintf("@%d", g.Epoch)
	}
	return name
}

func (d *dump) group(name, description string, ranks []int) {
	if d.known[name] {
		return
	}
	d.known[name] = true
	list := strings.ReplaceAll(fmt.Sprint(ranks), " ", ", ")
	d.groups = append(d.groups, name, pickle.Dict{"name", name, "desc", description,
		"ranks", list})
}

// collective adds a collective. One that was refused is none: the others miss it.
func (d *dump) collective(s *Source, g *trace.Group, name string, r *trace.Record) {
	if r.State == trace.Refused {
		return
	}
	title, in, out := shape(r, g.Rank, len(g.Ranks))
	d.entry(s, r, g, pickle.Dict{"process_group", pickle.Tuple{name, "goccl"},
		"collective_seq_id", r.Number, "p2p_seq_id", 0, "is_p2p", false,
		"profiling_name", "goccl:" + title}, in, out)
}

// messages adds the sends and receives of an epoch. Where more have been called than are kept, only
// those that have not ended are told of: the numbers of others would be wrong.
func (d *dump) messages(s *Source, g *trace.Group, name string) {
	all := len(s.Messages) == 0 || s.Messages[0].Number == 1
	next := map[[2]int]int{}
	for i := range s.Messages {
		r := &s.Messages[i]
		if r.Message.Epoch != g.Epoch {
			continue
		}
		peer := int(r.Message.Root)
		if peer < 0 {
			peer = r.Peer // that it has met, if it has
		}
		ended := r.State == trace.Ended
		if peer < 0 || peer == g.Rank || peer >= len(g.Ranks) || ended && !all {
			continue
		}
		from, to := g.Rank, peer
		send := plan.Collective(r.Message.Collective) == plan.Send
		if !send {
			from, to = to, from
		}
		next[[2]int{from, to}]++
		low, high := min(from, to), max(from, to)
		pair := fmt.Sprintf("%s:%d-%d", name, low, high)
		d.group(pair, "goccl messages", []int{g.Ranks[low], g.Ranks[high]})
		number, source, target := 2*next[[2]int{from, to}], 0, 1
		if from > to {
			number, source, target = number+1, 1, 0
		}
		title := fmt.Sprintf("goccl:send %d->%d", source, target)
		if !send {
			title = fmt.Sprintf("goccl:recv %d<-%d", target, source)
		}
		sizes := sizesOf(elements(r))
		in, out := sizes, pickle.List{}
		if !send {
			in, out = out, in
		}
		d.entry(s, r, g, pickle.Dict{"process_group", pickle.Tuple{pair, "goccl messages"},
			"collective_seq_id", number, "p2p_seq_id", number, "is_p2p", true,
			"profiling_name", title, "peer", g.Ranks[peer], "tag", r.Message.Digest}, in, out)
	}
}

// entry adds an entry, with what all have.
func (d *dump) entry(
	s *Source, r *trace.Record, g *trace.Group, v pickle.Dict, in, out pickle.List,
) {
	nanoseconds := func(tick uint64) any {
		if tick == 0 {
			return nil
		}
		return int64(s.Clock.Realtime(tick))
	}
	state := "scheduled"
	switch {
	case r.State == trace.Ended || r.State == trace.SideStepped:
		state = "completed"
	case r.Begun != 0:
		state = "started"
	}
	dtypes := func(sizes pickle.List) pickle.List {
		list := pickle.List{}
		for range sizes {
			list = append(list, dtypeName(r.Message.DType))
		}
		return list
	}
	var transports pickle.List
	for t := range r.Transports.All() {
		transports = append(transports, t.String())
	}
	completed := nanoseconds(r.Ended)
	if state != "completed" {
		completed = nil
	}
	v = append(v, pickle.Dict{"pg_id", int(g.Epoch), "op_id", r.Number,
		"time_created_ns", nanoseconds(r.Created), "time_discovered_started_ns", nanoseconds(r.Begun),
		"time_discovered_completed_ns", completed, "duration_ms", nil,
		"input_sizes", in, "input_dtypes", dtypes(in), "output_sizes", out,
		"output_dtypes", dtypes(out), "state", state, "retired", state == "completed",
		"timeout_ms", 0, "thread_id", fmt.Sprint(r.Thread), "thread_name", "",
		"frames", pickle.List{},
		"collective", plan.Collective(r.Message.Collective).String(),
		"algorithm", r.Algorithm.String(), "bytes", r.Bytes, "transports", transports,
		"goccl_state", r.State.String(), "waits_for", waitsFor(r, g),
		"waited_ms", int64(r.Waited.Milliseconds()), "step", r.Step, "epoch", int(g.Epoch)}...)
	d.entries = append(d.entries, entry{uint64(s.Clock.Realtime(r.Created)), v})
}

// waitsFor is the rank in the job that a call waits for, or has last waited for; None: none.
func waitsFor(r *trace.Record, g *trace.Group) any {
	if r.Peer < 0 || r.Peer >= len(g.Ranks) {
		return nil
	}
	return g.Ranks[r.Peer]
}

// value is the file. Entries are numbered by their calls, with those that are kept no more: so
// ranks of which more is kept do not seem to have done more.
func (d *dump) value(library string) pickle.Dict {
	slices.SortStableFunc(d.entries, func(a, b entry) int { return cmp.Compare(a.created, b.created) })
	list := make(pickle.List, 0, len(d.entries))
	for i, e := range d.entries {
		list = append(list, append(pickle.Dict{"record_id", d.dropped + uint64(i)}, e.value...))
	}
	return pickle.Dict{"version", version, "comm_lib_version", "goccl " + library,
		"pg_config", d.groups, "pg_status", d.states, "entries", list,
		"records_missed", d.missed}
}

// names are those of torch's recorder. What it has no name for is a barrier there.
var names = map[plan.Collective]string{plan.AllReduce: "all_reduce", plan.Reduce: "reduce",
	plan.Broadcast: "broadcast", plan.AllGather: "_all_gather_base",
	plan.ReduceScatter: "_reduce_scatter_base", plan.Gather: "gather", plan.Scatter: "scatter",
	plan.AllToAll: "all_to_all", plan.Split: "split", plan.ExchangeMemory: "new_window"}

// shape is the name of a collective, and the sizes of inputs and outputs as all ranks see them.
func shape(r *trace.Record, rank, ranks int) (title string, in, out pickle.List) {
	c := plan.Collective(r.Message.Collective)
	if call.IsSideStep(&r.Message) { // it tells of another library, and of no elements
		return cmp.Or(names[c], "barrier"), pickle.List{}, pickle.List{}
	}
	all := elements(r)
	whole, even := sizesOf(all), isEven(r, ranks)
	part := whole
	if even {
		part = sizesOf(all / uint64(ranks))
	}
	title = cmp.Or(names[c], "barrier")
	root := int(r.Message.Root) == rank
	switch c {
	case plan.AllGather:
		if !even {
			title = "all_gather_v"
		}
		return title, part, whole
	case plan.ReduceScatter:
		if !even {
			title = "reduce_scatter_v"
		}
		return title, whole, part
	case plan.Gather:
		if out = whole; !root {
			out = pickle.List{}
		}
		return title, part, out
	case plan.Scatter:
		if in = whole; !root {
			in = pickle.List{}
		}
		return title, in, part
	case plan.Barrier, plan.MonitoredBarrier, plan.Split, plan.ExchangeMemory:
		return title, pickle.List{}, pickle.List{}
	}
	return title, whole, whole
}

// elements is how many elements a call has, as far as all ranks know: else those of this rank.
func elements(r *trace.Record) uint64 {
	if d := reduce.DType(r.Message.DType); r.Message.Count == 0 && d.Valid() {
		return r.Bytes / uint64(d.Size())
	}
	return r.Message.Count
}

func sizesOf(n uint64) pickle.List { return pickle.List{pickle.List{n}} }

// isEven reports whether all ranks have equally long blocks, which the message tells.
func isEven(r *trace.Record, ranks int) bool {
	m := &r.Message
	if ranks == 0 || m.Count%uint64(ranks) != 0 {
		return false
	}
	part := []uint64{m.Count / uint64(ranks)}
	return ranks == 1 || m.Digest == call.Digest(slices.Repeat(part, ranks))
}

// dtypeNames are torch's, of its scalar types.
var dtypeNames = map[reduce.DType]string{reduce.Int8: "Char", reduce.Uint8: "Byte",
	reduce.Int16: "Short", reduce.Int32: "Int", reduce.Int64: "Long", reduce.Float16: "Half",
	reduce.BFloat16: "BFloat16", reduce.Float32: "Float", reduce.Float64: "Double",
	reduce.Bool: "Bool", reduce.Complex32: "ComplexHalf", reduce.Complex64: "ComplexFloat",
	reduce.Complex128: "ComplexDouble"}

func dtypeName(n uint8) string {
	d := reduce.DType(n)
	if name, ok := dtypeNames[d]; ok || !d.Valid() {
		return name
	}
	return d.String()
}
