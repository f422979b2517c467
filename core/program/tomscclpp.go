package program

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"

	"github.com/goccl/goccl/core/plan"
)

// What MSCCL++ takes of a plan. It does not say so when it gets more.
const (
	mostOps      = 64 // of a block of threads
	mostChannels = 16 // of a block, of one type
	mostOfOp     = 8  // channels, sources or destinations of an operation
)

// mscclppNames are the collectives of MSCCL++.
var mscclppNames = map[plan.Collective]string{plan.AllReduce: "allreduce",
	plan.AllGather: "allgather", plan.ReduceScatter: "reducescatter", plan.AllToAll: "alltoall",
	plan.Custom: "test"}

// The JSON of MSCCL++ 0.9. Indexes of operations are those of lists of their block.
type (
	mscclppPlan struct {
		Name       string       `json:"name"`
		Collective string       `json:"collective"`
		Protocol   string       `json:"protocol"`
		InPlace    bool         `json:"inplace"`
		Reuse      bool         `json:"reuse_resources"`
		GPUs       []mscclppGPU `json:"gpus"`
		Threads    int          `json:"num_threads_per_block"`
		Double     bool         `json:"use_double_scratch_buffer"`
		Alignment  int          `json:"buffer_alignment"`
		Min        uint64       `json:"min_message_size"`
		Max        uint64       `json:"max_message_size"`
	}
	mscclppGPU struct {
		ID       int              `json:"id"`
		In       int              `json:"input_chunks"`
		Out      int              `json:"output_chunks"`
		Scratch  int              `json:"scratch_chunks"`
		Blocks   []mscclppBlock   `json:"threadblocks"`
		Channels []mscclppChannel `json:"channels"`
		Remote   []mscclppRemote  `json:"remote_buffers"`
		Counts   []struct{}       `json:"semaphores"`
	}
	mscclppChannel struct {
		Type string `json:"channel_type"`
		To   []int  `json:"connected_to"`
	}
	mscclppRemote struct {
		Rank  int      `json:"rank"`
		Type  string   `json:"type"`
		Types []string `json:"access_channel_types"`
	}
	mscclppBlock struct {
		ID       int             `json:"id"`
		Ops      []mscclppOp     `json:"ops"`
		Channels []mscclppOwn    `json:"channels"`
		Remote   []mscclppOwnRef `json:"remote_buffer_refs"`
	}
	mscclppOwn struct {
		Type string `json:"channel_type"`
		IDs  []int  `json:"channel_ids"`
	}
	mscclppOwnRef struct {
		Type string `json:"access_channel_type"`
		IDs  []int  `json:"remote_buffer_ids"`
	}
	mscclppOp struct {
		Name     string       `json:"name"`
		Channels []int        `json:"channel_ids,omitempty"`
		Type     string       `json:"channel_type,omitempty"`
		From     []mscclppRef `json:"src_buff,omitempty"`
		To       []mscclppRef `json:"dst_buff,omitempty"`
		Reduce   string       `json:"reduce_op,omitempty"`
	}
	mscclppRef struct {
		Buffer *int   `json:"buffer_id,omitempty"` // of another rank
		Type   string `json:"type,omitempty"`
		Index  int    `json:"index"`
		Size   int    `json:"size"`
	}
)

// memoryChannel is the type of channels between ranks that map each other's memory.
const memoryChannel = "memory"

// MSCCLPP is a program as a plan of MSCCL++ 0.9: JSON, with a block of threads for each rank, and
// memory channels between them. The error says what MSCCL++ has no word or no room for.
//
// Each rank does its moves in their order. What it reads or writes after another rank has used it,
// it waits for: that rank signals once it has done the move, unless the rank knows it already. A
// rank's first signal says that it has entered; at its end it waits until nobody uses its memory.
func MSCCLPP(c *Checked) ([]byte, error) {
	fail := func(err error) ([]byte, error) {
		return nil, fmt.Errorf("program %q as a plan of MSCCL++: %w", c.Name, err)
	}
	name, ok := mscclppNames[c.Collective]
	switch {
	case !ok:
		return fail(fmt.Errorf("it has no collective %v; it has allreduce, allgather, reducescatter, "+
			"alltoall and test, which stands for custom", c.Collective))
	case c.PerHost > 0 && c.PerHost < c.Ranks:
		return fail(fmt.Errorf("the program is meant for %d ranks on each host, and memory channels "+
			"join those of one host", c.PerHost))
	}
	w := newSignaller(c)
	if err := w.run(); err != nil {
		return fail(err)
	}
	made := mscclppPlan{Name: c.Name, Collective: name, Protocol: "Simple", InPlace: w.same,
		Threads: 1024, Alignment: 16, Min: uint64(c.MinBytes), Max: math.MaxUint64}
	if c.MaxBytes > 0 {
		made.Max = uint64(c.MaxBytes)
	}
	for rank := range c.Ranks {
		gpu, err := w.gpu(rank)
		if err != nil {
			return fail(fmt.Errorf("rank %d %w", rank, err))
		}
		made.GPUs = append(made.GPUs, gpu)
	}
	text, err := json.Marshal(made)
	return append(text, '\n'), err
}

// signaller finds for whom each move waits.
type signaller struct {
	*checker
	ranks []signals
	wrote []deed   // by place: who wrote it last
	read  [][]deed // by place: who has read it since, each rank once
}

// deed is one of the actions of a rank, counted from 1.
type deed struct{ rank, done int32 }

// signals are what a rank does.
type signals struct {
	actions []action
	knows   []int32 // by rank: how many of its actions are known to be done
}

// action is a part of what a rank does: it waits for some, does something, and signals some.
type action struct {
	waits, signals []int32 // ranks, in order
	ops            []rawOp
	knows          []int32 // what the rank knew when it was done
}

// rawOp is an operation on places.
type rawOp struct {
	name     string
	from, to []Place
}

func newSignaller(c *Checked) *signaller {
	w := &signaller{checker: newChecker(&c.Program, !c.OutOfPlace), ranks: make([]signals, c.Ranks)}
	w.wrote, w.read = make([]deed, len(w.cells)), make([][]deed, len(w.cells))
	for rank := range w.ranks {
		// The first action is to enter: from then on others may use its memory.
		knows := make([]int32, c.Ranks)
		knows[rank] = 1
		w.ranks[rank] = signals{[]action{{knows: slices.Clone(knows)}}, knows}
		for n := range w.cells[:c.each()] {
			w.wrote[rank*c.each()+n] = deed{int32(rank), 1}
		}
	}
	return w
}

// run makes the actions of all ranks.
func (w *signaller) run() error {
	for i := range w.Moves {
		for _, m := range w.parts(&w.Moves[i]) {
			rank, ops := w.operations(&m)
			var from, to []int32
			for _, at := range m.From {
				from = append(from, w.numbers(at)...)
			}
			for _, at := range m.To {
				to = append(to, w.numbers(at)...)
			}
			w.act(rank, from, to, ops)
		}
	}
	for rank := range w.Ranks {
		own := make([]int32, w.each())
		for n := range own {
			own[n] = int32(rank*w.each() + n)
		}
		w.act(rank, nil, own, nil)
	}
	for rank := range w.ranks {
		if n := len(w.ops(rank)); n > mostOps {
			return fmt.Errorf("rank %d has %d operations; a block of threads has room for %d", rank, n,
				mostOps)
		}
	}
	return nil
}

// numbers are those of a place's chunks.
func (w *signaller) numbers(at Place) []int32 {
	all := make([]int32, at.Count)
	for i := range all {
		all[i] = w.number(Place{at.Rank, at.Space, at.Chunk + i, 1})
	}
	return all
}

// parts is what a move is done by: its chunks one by one where it reads, in place, what it writes
// of another chunk. If the rank of its first destination has none of the sources, one comes there
// first.
func (w *signaller) parts(m *Move) (all []Move) {
	parts := []Move{*m}
	if w.crosses(m) {
		parts = make([]Move, m.To[0].Count)
		for i := range parts {
			for _, at := range m.To {
				parts[i].To = append(parts[i].To, Place{at.Rank, at.Space, at.Chunk + i, 1})
			}
			for _, at := range m.From {
				parts[i].From = append(parts[i].From, Place{at.Rank, at.Space, at.Chunk + i, 1})
			}
		}
	}
	for _, m := range parts {
		to := m.To[0]
		if len(m.From) > 1 && !slices.ContainsFunc(m.From, func(at Place) bool {
			return at.Rank == to.Rank
		}) {
			all = append(all, Move{[]Place{to}, m.From[:1], ""})
			m.From = slices.Concat([]Place{to}, m.From[1:])
		}
		all = append(all, m)
	}
	return all
}

// crosses reports whether a move reads a chunk that it writes as another one.
func (w *signaller) crosses(m *Move) bool {
	for _, to := range m.To {
		a := w.numbers(to)
		for _, from := range m.From {
			b := w.numbers(from)
			if a[0] != b[0] && slices.ContainsFunc(a, func(n int32) bool { return slices.Contains(b, n) }) {
				return true
			}
		}
	}
	return false
}

// operations are those of a move, and the rank that does them.
func (w *signaller) operations(m *Move) (rank int, ops []rawOp) {
	source, to := m.From[0], m.To
	rank = source.Rank
	if len(m.From) > 1 {
		source, to, rank = m.To[0], m.To[1:], m.To[0].Rank
		ops = w.reduction(m)
	}
	var near, far []Place
	for _, at := range to {
		switch {
		case w.number(at) == w.number(source):
		case at.Rank == rank:
			near = append(near, at)
		default:
			far = append(far, at)
		}
	}
	for _, at := range near {
		ops = append(ops, rawOp{"copy", []Place{source}, []Place{at}})
	}
	for some := range slices.Chunk(far, mostOfOp) {
		ops = append(ops, rawOp{"put", slices.Repeat([]Place{source}, len(some)), some})
	}
	return rank, ops
}

// reduction reduces into the first destination: what lies at its rank first, then what others have.
func (w *signaller) reduction(m *Move) (ops []rawOp) {
	to := m.To[0]
	var near, far []Place
	for _, at := range m.From {
		switch {
		case at.Rank != to.Rank:
			far = append(far, at)
		case w.number(at) == w.number(to):
			near = slices.Insert(near, 0, at) // before it is overwritten
		default:
			near = append(near, at)
		}
	}
	sum := near[0]
	for i, places := range [][]Place{near[1:], far} {
		for some := range slices.Chunk(places, mostOfOp-1) {
			ops = append(ops, rawOp{[]string{"re", "rre"}[i], slices.Concat([]Place{sum}, some),
				[]Place{to}})
			sum = to
		}
	}
	return ops
}

// act has a rank do operations that read and write some places, once it knows that others have done
// what comes before.
func (w *signaller) act(rank int, from, to []int32, ops []rawOp) {
	r := &w.ranks[rank]
	var needs []deed
	for _, n := range from {
		needs = append(needs, w.wrote[n])
	}
	for _, n := range to {
		needs = append(append(needs, w.wrote[n]), w.read[n]...)
	}
	// The latest first: who has signalled that may have known of the others.
	slices.SortFunc(needs, func(a, b deed) int {
		return slices.Compare([]int32{-a.done, a.rank}, []int32{-b.done, b.rank})
	})
	a := action{ops: ops}
	for _, n := range needs {
		if r.knows[n.rank] >= n.done {
			continue
		}
		before := &w.ranks[n.rank].actions[n.done-1]
		before.signals = append(before.signals, int32(rank))
		a.waits = append(a.waits, n.rank)
		for i, done := range before.knows {
			r.knows[i] = max(r.knows[i], done)
		}
	}
	r.knows[rank]++
	a.knows = slices.Clone(r.knows)
	r.actions = append(r.actions, a)
	now := deed{int32(rank), r.knows[rank]}
	for _, n := range from {
		w.read[n] = slices.DeleteFunc(w.read[n], func(m deed) bool { return m.rank == now.rank })
		w.read[n] = append(w.read[n], now)
	}
	for _, n := range to {
		w.wrote[n], w.read[n] = now, w.read[n][:0]
	}
}

// stepOp is an operation, or signals or waits of some ranks.
type stepOp struct {
	rawOp
	peers []int32
}

// ops are all that a rank does, with the places where its threads meet.
func (w *signaller) ops(rank int) []stepOp {
	var all []stepOp
	meet := func() {
		if n := len(all); n > 0 && all[n-1].name != "nop" {
			all = append(all, stepOp{rawOp: rawOp{name: "nop"}})
		}
	}
	tell := func(name string, peers []int32) {
		if len(peers) == 0 {
			return
		}
		meet()
		for some := range slices.Chunk(peers, mostOfOp) {
			all = append(all, stepOp{rawOp{name: name}, some})
		}
	}
	wrote, read := map[int32]bool{}, map[int32]bool{} // since the threads have met
	for _, a := range w.ranks[rank].actions {
		tell("wait", a.waits)
		for _, op := range a.ops {
			if n := len(all); n > 0 && all[n-1].peers != nil || w.conflicts(&op, wrote, read) {
				meet()
			}
			if n := len(all); n > 0 && all[n-1].name == "nop" {
				clear(wrote)
				clear(read)
			}
			w.mark(op.from, read)
			w.mark(op.to, wrote)
			all = append(all, stepOp{rawOp: op})
		}
		tell("signal", a.signals)
	}
	return all
}

// mark notes the chunks of places.
func (w *signaller) mark(places []Place, chunks map[int32]bool) {
	for _, at := range places {
		for _, n := range w.numbers(at) {
			chunks[n] = true
		}
	}
}

// conflicts reports whether an operation may not run beside others, which read and write chunks.
func (w *signaller) conflicts(op *rawOp, wrote, read map[int32]bool) bool {
	for i, places := range [][]Place{op.from, op.to} {
		for _, at := range places {
			for _, n := range w.numbers(at) {
				if wrote[n] || i == 1 && read[n] {
					return true
				}
			}
		}
	}
	return false
}

// gpu is a rank's part of the plan.
func (w *signaller) gpu(rank int) (mscclppGPU, error) {
	ops := w.ops(rank)
	var peers []int
	for other := range w.ranks {
		if other != rank && (w.talks(rank, other) || w.talks(other, rank)) {
			peers = append(peers, other)
		}
	}
	if len(peers) > mostChannels {
		return mscclppGPU{}, fmt.Errorf("has %d peers; a block of threads has room for %d channels",
			len(peers), mostChannels)
	}
	gpu := mscclppGPU{ID: rank, In: w.In, Out: w.Out, Scratch: w.Scratch, Counts: []struct{}{},
		Channels: []mscclppChannel{}, Remote: []mscclppRemote{}}
	block := mscclppBlock{Channels: []mscclppOwn{}, Remote: []mscclppOwnRef{}}
	ref := func(at Place) mscclppRef {
		letter := "ios"[at.Space : at.Space+1]
		if at.Rank == rank {
			return mscclppRef{Type: letter, Index: at.Chunk, Size: at.Count}
		}
		i := slices.IndexFunc(gpu.Remote, func(b mscclppRemote) bool {
			return b.Rank == at.Rank && b.Type == letter
		})
		if i < 0 {
			i = len(gpu.Remote)
			gpu.Remote = append(gpu.Remote, mscclppRemote{at.Rank, letter, []string{memoryChannel}})
		}
		return mscclppRef{Buffer: &i, Index: at.Chunk, Size: at.Count}
	}
	for _, s := range ops {
		op := mscclppOp{Name: s.name}
		for _, peer := range s.peers {
			op.Channels = append(op.Channels, slices.Index(peers, int(peer)))
			op.Type = memoryChannel
		}
		for _, at := range s.from {
			op.From = append(op.From, ref(at))
		}
		for _, at := range s.to {
			op.To = append(op.To, ref(at))
		}
		switch s.name {
		case "put":
			op.Type = memoryChannel
		case "re":
			op.Reduce = "sum"
		case "rre":
			op.Type, op.Reduce = memoryChannel, "sum"
		}
		block.Ops = append(block.Ops, op)
	}
	if len(peers) > 0 {
		gpu.Channels = []mscclppChannel{{memoryChannel, peers}}
		block.Channels = []mscclppOwn{{memoryChannel, upTo(len(peers))}}
	}
	if len(gpu.Remote) > 0 {
		block.Remote = []mscclppOwnRef{{memoryChannel, upTo(len(gpu.Remote))}}
	}
	if len(block.Ops) > 0 {
		gpu.Blocks = []mscclppBlock{block}
	}
	if gpu.Blocks == nil {
		gpu.Blocks = []mscclppBlock{}
	}
	return gpu, nil
}

// upTo are the numbers from 0 to n-1.
func upTo(n int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	return all
}

// talks reports whether a rank signals another.
func (w *signaller) talks(rank, other int) bool {
	return slices.ContainsFunc(w.ranks[rank].actions, func(a action) bool {
		return slices.Contains(a.signals, int32(other))
	})
}
