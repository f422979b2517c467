package mscclpp

import (
	"errors"
	"fmt"
	"slices"

	"github.com/goccl/goccl/core/program"
	"github.com/goccl/goccl/core/program/blocks"
)

// translator makes the ops of blocks.
type translator struct {
	*file
	*blocks.Plan
	counters map[counterKey]int
	reduce   string // what the plan's sums are
	gpus     []rank
}

// counterKey is a channel in one direction, or a semaphore, of which to and kind are not given.
type counterKey struct {
	kind        string
	from, to, n int
}

// rank is what a rank's lists of channels say.
type rank struct {
	*gpu
	ends   map[string][]channelEnd // by kind
	groups []group                 // of switches
	old    map[string][]int        // of the older schema: by kind and buffers, indexes in ends
}

// channelEnd is one end of a channel: the nth with a peer.
type channelEnd struct{ peer, n int }

// group is ranks that share a buffer of a switch.
type group struct {
	space program.Space
	ranks []int
}

// side is a source, or a destination, of an op.
type side struct {
	refs  []blocks.Ref // of a group: several
	where where
}

type where string

const (
	local  where = "of the rank itself"
	remote where = "of another rank"
	multi  where = "of a switch"
)

var spaces = map[string]program.Space{"i": program.Input, "o": program.Output, "s": program.Scratch}

// translate makes the blocks of a plan.
func (f *file) translate(p *blocks.Plan) error {
	t := &translator{file: f, Plan: p, counters: map[counterKey]int{}}
	for i := range f.gpus {
		if err := t.addRank(&f.gpus[i]); err != nil {
			return fmt.Errorf("rank %d: %w", i, err)
		}
	}
	for i := range t.gpus {
		seen := map[int]bool{}
		for k := range t.gpus[i].blocks {
			b := &t.gpus[i].blocks[k]
			if seen[b.id] {
				return fmt.Errorf("rank %d has two blocks %d", i, b.id)
			}
			seen[b.id] = true
			ops, err := t.ops(i, b, b.ops)
			if err != nil {
				return err
			}
			p.Blocks = append(p.Blocks, blocks.Block{Rank: i, ID: b.id, Ops: ops})
		}
	}
	return nil
}

// addRank reads a rank's list of channels.
func (t *translator) addRank(g *gpu) error {
	r := rank{gpu: g, ends: map[string][]channelEnd{}, old: map[string][]int{}}
	counts := map[string]map[int]int{"memory": {}, "port": {}}
	for _, c := range g.channels {
		key := c.kind + " " + c.src + c.dst
		switch c.kind {
		case "memory", "port":
			for _, peer := range c.peers {
				if peer == g.id || peer >= t.Ranks {
					return fmt.Errorf("a channel is connected to rank %d; it must be another one, of 0 to %d",
						peer, t.Ranks-1)
				}
				r.old[key] = append(r.old[key], len(r.ends[c.kind]))
				r.ends[c.kind] = append(r.ends[c.kind], channelEnd{peer, counts[c.kind][peer]})
				counts[c.kind][peer]++
			}
		case "switch":
			if c.buffer == "" {
				return errors.New("a switch channel has no buffer_type")
			}
			for _, ranks := range c.groups {
				all := slices.Clone(ranks)
				slices.Sort(all)
				if len(all) == 0 || all[len(all)-1] >= t.Ranks || len(slices.Compact(all)) < len(ranks) {
					return fmt.Errorf("a switch channel has ranks %v; they must be different ones, of 0 to %d",
						ranks, t.Ranks-1)
				}
				// The rank itself comes first: it does what there is to do.
				slices.SortStableFunc(ranks, func(a, b int) int {
					switch {
					case a == g.id && b != g.id:
						return -1
					case b == g.id && a != g.id:
						return 1
					}
					return 0
				})
				key = "switch " + c.buffer + c.buffer
				r.old[key] = append(r.old[key], len(r.groups))
				r.groups = append(r.groups, group{spaces[c.buffer], ranks})
			}
		default:
			return fmt.Errorf("channel_type is %q", c.kind)
		}
	}
	t.gpus = append(t.gpus, r)
	return nil
}

// counter is the number of a channel in one direction, or of a semaphore.
func (t *translator) counter(k counterKey) int {
	n, ok := t.counters[k]
	if !ok {
		n = len(t.Counters)
		t.counters[k] = n
		c := blocks.Counter{}
		if k.kind == "" {
			c.Name = fmt.Sprintf("semaphore %d of rank %d", k.n, k.from)
			c.Initial = t.gpus[k.from].semaphores[k.n]
		} else {
			c.Name = fmt.Sprintf("%s channel %d from rank %d to rank %d", k.kind, k.n, k.from, k.to)
		}
		t.Counters = append(t.Counters, c)
	}
	return n
}

// ops translates those of a block, or of a pipeline in it.
func (t *translator) ops(rank int, b *block, from []op) ([]blocks.Op, error) {
	var all []blocks.Op
	for i := range from {
		o, err := t.op(rank, b, &from[i])
		if err != nil {
			return nil, fmt.Errorf("rank %d, block %d, op %d (%s): %w", rank, b.id, from[i].number,
				from[i].name, err)
		}
		all = append(all, o)
	}
	return all, nil
}

func (t *translator) op(rank int, b *block, o *op) (blocks.Op, error) {
	to := blocks.Op{Name: o.name, Number: o.number, Part: o.part, Parts: o.parts}
	today := len(o.src)+len(o.dst)+len(o.channels)+len(o.semaphores) > 0 || o.piped || o.parts > 0
	if t.old && today || !t.old && o.old != nil {
		return to, errors.New("has fields of another schema than the plan, which is told by inputChunks")
	}
	if o.reduce != "" {
		if t.reduce != "" && o.reduce != t.reduce {
			return to, fmt.Errorf("reduce_op is %q, and that of an op before is %q; all must be the same",
				o.reduce, t.reduce)
		}
		t.reduce = o.reduce
	}
	if o.piped || o.name == "pipeline" {
		if !o.piped || o.name != "pipeline" || o.unit == 0 {
			return to, errors.New("a pipeline must have an iter_context, with a unit_size of 1 or more, " +
				"and nothing else may")
		}
		body, err := t.ops(rank, b, o.body)
		to.Body, to.Unit, to.Chunks = body, o.unit, o.chunks
		return to, err
	}
	if len(o.body) > 0 {
		return to, errors.New("has ops; only a pipeline may")
	}
	name := o.name
	var src, dst []side
	var ends []channelEnd
	var err error
	if t.old {
		name, src, dst, ends, err = t.oldSides(rank, b, o)
	} else {
		src, dst, ends, err = t.sides(rank, b, o)
	}
	if err != nil {
		return to, err
	}
	return to, t.fill(&to, name, rank, o, src, dst, ends)
}

// sides are the sources and destinations of an op, and its channels.
func (t *translator) sides(rank int, b *block, o *op,
) (src, dst []side, ends []channelEnd, err error) {
	for _, r := range o.src {
		s, err := t.side(rank, b, o, r)
		if err != nil {
			return nil, nil, nil, err
		}
		src = append(src, s)
	}
	for _, r := range o.dst {
		s, err := t.side(rank, b, o, r)
		if err != nil {
			return nil, nil, nil, err
		}
		dst = append(dst, s)
	}
	if o.kind != "memory" && o.kind != "port" {
		return src, dst, nil, nil
	}
	for _, id := range o.channels {
		n, err := pick(b.channels, o.kind, id, "channel")
		if err == nil && n >= len(t.gpus[rank].ends[o.kind]) {
			err = fmt.Errorf("there is no %s channel %d; rank %d has %d", o.kind, n, rank,
				len(t.gpus[rank].ends[o.kind]))
		}
		if err != nil {
			return nil, nil, nil, err
		}
		ends = append(ends, t.gpus[rank].ends[o.kind][n])
	}
	return src, dst, ends, nil
}

// pick is the number of what a block has as its id-th of a kind.
func pick(lists []list, kind string, id int, what string) (int, error) {
	n := id
	for _, l := range lists {
		if l.kind != kind {
			continue
		}
		if n < len(l.ids) {
			return l.ids[n], nil
		}
		n -= len(l.ids)
	}
	return 0, fmt.Errorf("there is no %s %d of kind %q; the block has %d", what, id, kind, id-n)
}

// side is what a place stands for.
func (t *translator) side(rank int, b *block, o *op, r ref) (side, error) {
	at := blocks.Ref{Place: program.Place{Rank: rank, Chunk: r.index, Count: r.count}}
	switch {
	case r.remote > 0:
		n, err := pick(b.buffers, o.kind, r.remote-1, "buffer")
		if err == nil && n >= len(t.gpus[rank].buffers) {
			err = fmt.Errorf("there is no remote buffer %d; rank %d has %d", n, rank,
				len(t.gpus[rank].buffers))
		}
		if err != nil {
			return side{}, err
		}
		to := t.gpus[rank].buffers[n]
		at.Rank, at.Space = to.rank, spaces[to.kind]
		return side{[]blocks.Ref{at}, remote}, nil
	case r.multi > 0:
		n, err := pick(b.channels, "switch", r.multi-1, "channel")
		if err != nil {
			return side{}, err
		}
		return t.group(rank, n, at)
	}
	at.Space = spaces[r.kind]
	return side{[]blocks.Ref{at}, local}, nil
}

// group is a place of each rank of a group.
func (t *translator) group(rank, n int, at blocks.Ref) (side, error) {
	if n >= len(t.gpus[rank].groups) {
		return side{}, fmt.Errorf("there is no switch channel %d; rank %d has %d", n, rank,
			len(t.gpus[rank].groups))
	}
	s := side{where: multi}
	g := t.gpus[rank].groups[n]
	for _, r := range g.ranks {
		at.Rank, at.Space = r, g.space
		s.refs = append(s.refs, at)
	}
	return s, nil
}

// form is what sources and destinations an op must have.
type form struct {
	src, dst         []where // the first ones
	moreSrc, moreDst where   // any number more; "": none
	packets          bool
	memory           bool // it must be over memory channels
	port             bool // over ports
}

var (
	one  = []where{local}
	two  = []where{local, local}
	many = []where{multi}
)

var forms = map[string]form{
	"put":   {moreSrc: local, moreDst: remote},
	"pws":   {moreSrc: local, moreDst: remote, port: true},
	"pwsf":  {moreSrc: local, moreDst: remote, port: true},
	"get":   {moreSrc: remote, moreDst: local, memory: true},
	"copy":  {src: one, dst: one},
	"re":    {src: one, moreSrc: local, dst: one},
	"res":   {src: one, moreSrc: local, dst: one, moreDst: remote, memory: true},
	"rre":   {src: one, moreSrc: remote, dst: one, memory: true},
	"rres":  {src: one, moreSrc: remote, dst: one, moreDst: remote, memory: true},
	"cpkt":  {src: one, dst: one, packets: true},
	"upkt":  {src: one, dst: one, packets: true},
	"ppkt":  {moreSrc: local, moreDst: remote, packets: true},
	"rppkt": {src: one, moreDst: remote, packets: true},
	"repkt": {src: one, moreSrc: local, dst: one, packets: true},
	"respkt": {src: one, moreSrc: local, dst: one, moreDst: remote, packets: true,
		memory: true},
	"recpkt": {src: one, moreSrc: local, dst: two, packets: true},
	"recspkt": {src: one, moreSrc: local, dst: two, moreDst: remote, packets: true,
		memory: true},
	"glres":     {src: many, dst: many},
	"gstore":    {src: one, dst: many},
	"gstorepkt": {src: one, dst: many, packets: true},
}

// fits refuses sides that an op cannot have.
func (form *form) fits(src, dst []side) error {
	for _, s := range []struct {
		what  string
		got   []side
		first []where
		more  where
	}{{"source", src, form.src, form.moreSrc}, {"destination", dst, form.dst, form.moreDst}} {
		for i, got := range s.got {
			want := s.more
			if i < len(s.first) {
				want = s.first[i]
			}
			if want == "" {
				return fmt.Errorf("has %d %ss; it may have %d", len(s.got), s.what, len(s.first))
			}
			if got.where != want {
				return fmt.Errorf("%s %d is %s; it must be %s", s.what, i, got.where, want)
			}
		}
		if len(s.got) < max(len(s.first), 1) {
			return fmt.Errorf("has %d %ss; it must have %d or more", len(s.got), s.what,
				max(len(s.first), 1))
		}
	}
	return nil
}

// fill fills in what an op does.
func (t *translator) fill(to *blocks.Op, name string, rank int, o *op, src, dst []side,
	ends []channelEnd,
) error {
	if known, err := t.fillOrder(to, name, rank, o, ends); known || err != nil {
		return err
	}
	form, ok := forms[name]
	if !ok {
		return errors.New("there is no such op")
	}
	port := o.kind == "port"
	switch {
	case form.packets && t.protocol != "LL":
		return fmt.Errorf("packets need the protocol LL; it is %q", t.protocol)
	case form.port && !port:
		return fmt.Errorf("goes over ports only; the channel_type is %q", o.kind)
	case form.memory && port:
		return errors.New("goes over memory channels only; the channel_type is \"port\"")
	}
	if err := form.fits(src, dst); err != nil {
		return err
	}
	if port {
		if err := t.fillPorts(to, name, rank, dst, ends); err != nil {
			return err
		}
	}
	switch name {
	case "put", "pws", "pwsf", "get", "ppkt":
		if len(src) != len(dst) {
			return fmt.Errorf("has %d sources and %d destinations; it must have as many", len(src), len(dst))
		}
		for i := range src {
			to.Transfers = append(to.Transfers, blocks.Transfer{To: dst[i].refs, From: src[i].refs})
		}
	default:
		transfer := blocks.Transfer{}
		for _, s := range src {
			transfer.From = append(transfer.From, s.refs...)
		}
		for _, s := range dst {
			transfer.To = append(transfer.To, s.refs...)
		}
		to.Transfers = []blocks.Transfer{transfer}
	}
	for i := range to.Transfers {
		markPackets(&to.Transfers[i], name, port)
	}
	return nil
}

// fillOrder fills in what an op does that moves no data, and reports whether it is one.
func (t *translator) fillOrder(to *blocks.Op, name string, rank int, o *op, ends []channelEnd,
) (bool, error) {
	switch name {
	case "nop", "flush":
	case "barrier":
		if o.blocks < 1 {
			return true, fmt.Errorf("num_threadblocks is %d; it must be 1 or more", o.blocks)
		}
		to.Barrier, to.Blocks = o.barrier, o.blocks
	case "sem_acquire", "sem_release":
		for _, id := range o.semaphores {
			if id >= len(t.gpus[rank].semaphores) {
				return true, fmt.Errorf("there is no semaphore %d; rank %d has %d", id, rank,
					len(t.gpus[rank].semaphores))
			}
			n := t.counter(counterKey{from: rank, n: id})
			if name == "sem_acquire" {
				to.Takes = append(to.Takes, n)
			} else {
				to.Posts = append(to.Posts, n)
			}
		}
	case "signal", "rlxsignal", "wait", "rlxwait":
		to.Relaxed = name[0] == 'r'
		for _, e := range ends {
			if name == "signal" || name == "rlxsignal" {
				to.Posts = append(to.Posts, t.counter(counterKey{o.kind, rank, e.peer, e.n}))
			} else {
				to.Takes = append(to.Takes, t.counter(counterKey{o.kind, e.peer, rank, e.n}))
			}
		}
	default:
		return false, nil
	}
	return true, nil
}

// fillPorts adds the signals of an op over ports, whose channels must lead to where it puts.
func (t *translator) fillPorts(to *blocks.Op, name string, rank int, dst []side, ends []channelEnd,
) error {
	remotes := 0
	for _, d := range dst {
		if d.where == remote {
			remotes++
		}
	}
	if remotes != len(ends) {
		return fmt.Errorf("has %d channels for %d destinations; it must have as many", len(ends), remotes)
	}
	for i, e := range ends {
		if d := dst[len(dst)-remotes+i].refs[0]; d.Rank != e.peer {
			return fmt.Errorf("destination %d is of rank %d, and its channel leads to rank %d", i, d.Rank,
				e.peer)
		}
		if name == "pws" || name == "pwsf" {
			to.Posts = append(to.Posts, t.counter(counterKey{"port", rank, e.peer, e.n}))
		}
	}
	return nil
}

// markPackets marks which places of an op are packets.
func markPackets(t *blocks.Transfer, name string, port bool) {
	mark := func(refs []blocks.Ref) {
		for i := range refs {
			refs[i].Packet = true
		}
	}
	switch name {
	case "cpkt":
		mark(t.To)
	case "upkt":
		mark(t.From)
	case "ppkt":
		mark(t.To)
		if port { // which copies packets as they are
			mark(t.From)
			t.From[0].Ready = true
		}
	case "rppkt", "gstorepkt":
		mark(t.To)
		mark(t.From)
	case "repkt", "respkt", "recpkt", "recspkt":
		mark(t.From[1:])
		mark(t.To[1:])
	}
}
