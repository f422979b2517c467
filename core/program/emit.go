package program

import (
	"slices"

	"github.com/goccl/goccl/core/plan"
)

// emitter makes the steps of one rank. It goes through all entries of the rank in the order that
// all ranks share, and knows from it which messages have been put by then. It waits for a message
// when it is needed, and releases it when it is read; but no more than Slots-1 messages of a peer
// are under way at once in that order. If one more is put, the oldest is moved out of the inbox
// before.
//
// So the order, with these steps in it, is a complete run of all ranks in which no ring holds more
// than Slots-1 messages. By the argument at [plan.Verify] no other run gets stuck.
type emitter struct {
	*Planner
	*sizes
	q    *plan.Params
	rank int

	steps  []plan.Step
	waits  []int32 // by peer
	inbox  map[int32]*ring
	states []map[int32]*state // of the versions of each window under way
	unread []map[int32]int32  // of each window: reads of chunks of inputs that are to come
	kept   []bool             // of each window: what is unread of the inputs lies in saved
	lies   []int32            // by output chunk: the input that is the same memory in place; -1: none

	at     moment
	used   []bool  // fixed slots of scratch memory
	place  []int64 // where each of them lies; nil in the first pass
	slots  int64   // how many of them are used
	spare  []bool  // slots for a while: which are taken
	spares int64   // how many there are
}

// moment is a place in the order that all ranks share.
type moment struct {
	turn         int
	depth, entry int32
}

func (m moment) before(n moment) bool {
	if m.turn != n.turn {
		return m.turn < n.turn
	}
	if m.depth != n.depth {
		return m.depth < n.depth
	}
	return m.entry < n.entry
}

// ring is what has been put by a peer, and not been released.
type ring struct {
	messages []*state
	waited   int // how many of them
}

// state is that of a version in a window.
type state struct {
	*version
	number int32
	window int
	peer   int32 // whose message it is in
	n      int32 // the number of the message, once it is waited for
	bytes  int64
	where  where
	reads  int32 // still to come
	held   bool  // by the present step
	// dropped tells that it is overwritten before it comes home, by what nobody reads it after.
	dropped bool
	spare   int // its first slot
}

// where is where a version lies.
type where uint8

const (
	underWay where = iota // in a message that is not waited for
	inInbox
	inSpare
	atHome
)

func newEmitter(c *Planner, q *plan.Params, s *sizes) *emitter {
	e := &emitter{Planner: c, sizes: s, q: q, rank: q.Rank,
		used: make([]bool, c.Scratch+c.Out+c.In), lies: slices.Repeat([]int32{-1}, c.Out)}
	for in := range e.has(e.rank, Input) {
		if out := e.inPlace(e.rank, in); out >= 0 {
			e.lies[out] = int32(in)
		}
	}
	return e
}

// run makes all steps.
func (e *emitter) run() {
	e.steps, e.waits = nil, make([]int32, e.Ranks)
	e.inbox, e.spare = map[int32]*ring{}, nil
	e.states = make([]map[int32]*state, e.live)
	e.unread = make([]map[int32]int32, e.live)
	e.kept = make([]bool, e.live)
	e.greet()
	entries := e.lists.ranks[e.rank]
	first := make([]int, e.lists.deepest+2) // of each depth: its first entry
	for d := range first {
		first[d], _ = slices.BinarySearchFunc(entries, int32(d), func(a entry, d int32) int {
			return int(a.depth - d)
		})
	}
	deepest := int(e.lists.deepest)
	for turn := range len(e.windows) + (deepest+1)*e.lag {
		if turn < len(e.windows) {
			e.begin(turn)
		}
		for d := range deepest + 1 {
			w := turn - d*e.lag
			if w < 0 || w >= len(e.windows) {
				continue
			}
			for i := first[d]; i < first[d+1]; i++ {
				e.at = moment{turn, int32(d), entries[i].entry}
				e.do(&entries[i], w)
			}
		}
		if w := turn - (deepest+1)*e.lag; w >= 0 {
			e.finish(w)
		}
	}
	e.heed()
}

// begin readies a window.
func (e *emitter) begin(w int) {
	at := w % e.live
	e.states[at], e.unread[at], e.kept[at] = map[int32]*state{}, map[int32]int32{}, false
	for i := range e.lists.ranks[e.rank] {
		for _, s := range e.lists.ranks[e.rank][i].from {
			e.count(s, w, 1)
		}
	}
	for _, s := range e.lists.finals[e.rank] {
		e.count(s, w, 1)
	}
}

// count counts reads of inputs that are to come.
func (e *emitter) count(s source, w int, n int32) {
	if v := &e.lists.all[s.versions[0]]; v.area == inputs && e.hasInPlace() {
		for i := range s.count {
			e.unread[w%e.live][v.index+s.off+i] += n
		}
	}
}

// do does an entry in a window.
func (e *emitter) do(x *entry, w int) {
	_, bytes := e.span(x.block, x.chunk, x.count, e.windows[w])
	if bytes == 0 && w > 0 {
		return // nobody need be told
	}
	switch x.kind {
	case put:
		e.put(x, w)
	case arrival:
		e.arrive(x, w)
	case copies:
		e.displace(&e.lists.all[x.to], w, x.from)
		from := e.read(x.from[0], w)
		e.forget(x.from[0], w)
		to := e.write(x.to, w)
		if from != to {
			e.emit(plan.Step{Op: plan.Copy, Bytes: e.length(x.to, bytes), Dst: to, Src: []plan.Ref{from}})
		}
		e.done(x.from[0], w)
	case reduces:
		e.reduce(x, w, bytes)
	}
}

// length is that of a version whose elements have some bytes.
func (e *emitter) length(v int32, bytes int64) int64 {
	if e.lists.all[v].partial {
		return bytes * e.scale
	}
	return bytes
}

// emit adds a step that moves something, or a message.
func (e *emitter) emit(s plan.Step) {
	if s.Bytes > 0 || s.Op != plan.Copy && s.Op != plan.Combine {
		e.steps = append(e.steps, s)
	}
}

func (e *emitter) put(x *entry, w int) {
	from := e.read(x.from[0], w)
	e.forget(x.from[0], w)
	_, bytes := e.span(x.block, x.chunk, x.count, e.windows[w])
	s := plan.Step{Op: plan.Put, Peer: x.peer, Bytes: e.length(x.from[0].versions[0], bytes)}
	if bytes > 0 {
		s.Src = []plan.Ref{from}
	}
	e.emit(s)
	e.done(x.from[0], w)
}

// arrive notes that a message has been put.
func (e *emitter) arrive(x *entry, w int) {
	r := e.inbox[x.peer]
	if r == nil {
		r = &ring{}
		e.inbox[x.peer] = r
	}
	for len(r.messages) >= e.q.Slots-1 {
		e.vacate(r.messages[0])
		e.release(r)
	}
	_, bytes := e.span(x.block, x.chunk, x.count, e.windows[w])
	v := &e.lists.all[x.to]
	s := &state{version: v, number: x.to, window: w, peer: x.peer, bytes: e.length(x.to, bytes),
		reads: v.reads}
	e.states[w%e.live][x.to] = s
	r.messages = append(r.messages, s)
}

// await waits for a message, and for those that come before it.
func (e *emitter) await(s *state) {
	r := e.inbox[s.peer]
	for s.where == underWay {
		m := r.messages[r.waited]
		r.waited++
		m.n, m.where = e.waits[s.peer], inInbox
		e.waits[s.peer]++
		e.emit(plan.Step{Op: plan.Wait, Peer: m.peer, Bytes: m.bytes})
		if m.area == outputs && e.ready(m) {
			e.bringHome(m)
		}
		e.release(r)
	}
}

// release releases the messages of a ring that nobody reads any more.
func (e *emitter) release(r *ring) {
	for r.waited > 0 && (r.messages[0].where != inInbox || r.messages[0].isDead()) {
		e.emit(plan.Step{Op: plan.Release, Peer: r.messages[0].peer})
		r.messages = r.messages[1:]
		r.waited--
	}
}

// isDead reports whether nobody reads a version any more.
func (s *state) isDead() bool {
	return s.reads == 0 && !s.held && (s.dropped || s.area != outputs)
}

// ready reports whether nothing that lies at a version's home is read any more.
func (e *emitter) ready(s *state) bool {
	turn := s.window + int(s.unready)*e.lag
	return s.unready < 0 || moment{turn, s.unready, s.entry}.before(e.at) ||
		moment{turn, s.unready, s.entry} == e.at
}

// vacate moves a message out of the inbox.
func (e *emitter) vacate(s *state) {
	e.await(s)
	if s.where != inInbox || s.isDead() {
		return
	}
	if s.area != nowhere && e.ready(s) {
		e.bringHome(s)
		return
	}
	s.spare = e.take(int(s.count))
	to := e.spareRef(s.spare)
	e.emit(plan.Step{Op: plan.Copy, Bytes: s.bytes, Dst: to, Src: []plan.Ref{e.ref(s, 0)}})
	s.where = inSpare
}

// bringHome copies a version to its home.
func (e *emitter) bringHome(s *state) {
	e.await(s)
	if s.where == atHome || s.dropped {
		return
	}
	e.displace(s.version, s.window, nil)
	if s.where == atHome || s.dropped {
		return // a message before those has come, and it overwrites this one
	}
	from := e.ref(s, 0)
	to := e.open(s.version, s.window)
	e.emit(plan.Step{Op: plan.Copy, Bytes: s.bytes, Dst: to, Src: []plan.Ref{from}})
	if s.where == inSpare {
		e.give(s.spare, int(s.count))
	}
	s.where = atHome
}

// displace has older versions come home that lie there in part, and that are not there yet, before
// one is written by what reads some sources. Those need not that nothing else reads, if they are no
// outputs or are overwritten whole.
func (e *emitter) displace(v *version, w int, own []source) { e.displaceIn(v.area, v, w, own) }

// displaceIn does so with those that have their home in an area.
func (e *emitter) displaceIn(a area, v *version, w int, own []source) {
	for _, n := range v.replaces {
		old := e.states[w%e.live][n]
		switch {
		case old == nil || old.area != a: // nil: an input, or one of no bytes in this window
			e.displaceIn(a, &e.lists.all[n], w, own)
			continue
		case old.where == atHome, old.dropped:
			continue // what it replaced was displaced then
		}
		reads := old.reads
		for _, s := range own {
			if slices.Contains(s.versions, n) {
				reads--
			}
		}
		covered := old.first >= v.first && old.first+old.count <= v.first+v.count
		if reads > 0 || a == outputs && !covered {
			e.bringHome(old)
			continue
		}
		if old.pinned && old.reads > 0 {
			continue // it is read at home, which is before
		}
		if old.dropped = true; old.where == inSpare && old.isDead() {
			e.give(old.spare, int(old.count))
			old.where = atHome
		}
		e.displaceIn(a, old.version, w, own)
	}
}

// open readies a version's home for being written, and returns it.
func (e *emitter) open(v *version, w int) plan.Ref {
	if v.area == outputs {
		e.save(v, w)
	}
	e.use(v.area, v.index, v.count)
	return e.home(v, v.index, w)
}

// save copies inputs that are still to be read out of the way of an output that may be the same
// memory.
func (e *emitter) save(v *version, w int) {
	at := w % e.live
	if e.kept[at] || len(e.unread[at]) == 0 || !e.hasInPlace() {
		return
	}
	if !slices.ContainsFunc(e.lies[v.index:v.index+v.count], func(in int32) bool {
		return in >= 0 && e.unread[at][in] > 0
	}) {
		return
	}
	for in := range int32(e.has(e.rank, Input)) {
		if e.unread[at][in] == 0 {
			continue
		}
		what := e.contribution(e.rank, int(in))
		input := version{block: what.block, chunk: what.chunk, area: inputs, index: in, count: 1}
		_, bytes := e.span(what.block, what.chunk, 1, e.windows[w])
		from := e.home(&input, in, w)
		input.area = saved
		e.use(saved, in, 1)
		e.emit(plan.Step{Op: plan.Copy, Bytes: bytes, Dst: e.home(&input, in, w),
			Src: []plan.Ref{from}})
	}
	e.kept[at] = true
}

// write returns where an entry writes a version.
func (e *emitter) write(n int32, w int) plan.Ref {
	v := &e.lists.all[n]
	to := e.open(v, w)
	e.states[w%e.live][n] = &state{version: v, number: n, window: w, where: atHome, reads: v.reads}
	return to
}

// read returns where a source can be read.
func (e *emitter) read(s source, w int) plan.Ref {
	e.settle(s, w)
	return e.find(s, w)
}

// settle has a source be where it can be read, and stay there until done.
func (e *emitter) settle(s source, w int) {
	states := e.states[w%e.live]
	for _, n := range s.versions {
		m := states[n]
		if m == nil {
			continue // an input
		}
		m.held = true
		e.await(m)
		if m.pinned || m.area == outputs {
			e.bringHome(m)
			if r := e.inbox[m.peer]; r != nil {
				e.release(r)
			}
		}
	}
}

// find returns where a source lies that is settled. Settling another one may move an input.
func (e *emitter) find(s source, w int) plan.Ref {
	first := &e.lists.all[s.versions[0]]
	if m := e.states[w%e.live][s.versions[0]]; m != nil && m.where != atHome {
		return e.ref(m, s.off)
	}
	if first.area == inputs && e.kept[w%e.live] {
		v := *first
		v.area = saved
		return e.home(&v, v.index+s.off, w)
	}
	return e.home(first, first.index+s.off, w)
}

// forget notes that a source has one read less to come. It stays where it is until done.
func (e *emitter) forget(s source, w int) {
	e.count(s, w, -1)
	for _, n := range s.versions {
		if m := e.states[w%e.live][n]; m != nil {
			m.reads--
		}
	}
}

// done notes that a source has been read.
func (e *emitter) done(s source, w int) {
	for _, n := range s.versions {
		m := e.states[w%e.live][n]
		if m == nil {
			continue
		}
		if m.held = false; !m.isDead() {
			continue
		}
		switch m.where {
		case inSpare:
			e.give(m.spare, int(m.count))
			m.where = atHome
		case inInbox:
			e.release(e.inbox[m.peer])
		}
	}
}

// finish ends a window: what has come is brought where it belongs.
func (e *emitter) finish(w int) {
	for _, peer := range e.senders() {
		r := e.inbox[peer]
		for _, m := range slices.Clone(r.messages) {
			if m.window > w {
				continue // of a window that goes on
			}
			if e.await(m); m.where == inInbox && m.area == outputs {
				e.bringHome(m)
			}
			e.release(r)
		}
	}
	for _, n := range e.spilled(w) {
		e.bringHome(e.states[w%e.live][n])
	}
	for _, s := range e.lists.finals[e.rank] {
		from := e.read(s, w)
		e.forget(s, w)
		_, bytes := e.span(s.block, s.chunk, s.count, e.windows[w])
		v := e.lists.all[s.versions[0]]
		v.index = int32(e.inPlace(e.rank, int(v.index+s.off)))
		v.area = outputs
		e.emit(plan.Step{Op: plan.Copy, Bytes: bytes, Dst: e.home(&v, v.index, w),
			Src: []plan.Ref{from}})
	}
}

// senders are the peers with messages that are not released, in the order of their first ones.
func (e *emitter) senders() []int32 {
	var peers []int32
	for d := 1; d < e.Ranks; d++ {
		peer := int32((e.rank - d + e.Ranks) % e.Ranks)
		if r := e.inbox[peer]; r != nil && len(r.messages) > 0 {
			peers = append(peers, peer)
		}
	}
	return peers
}

// spilled are the outputs of a window that lie in scratch memory for a while, in order.
func (e *emitter) spilled(w int) []int32 {
	var all []int32
	for n, s := range e.states[w%e.live] {
		if s.where == inSpare && s.area == outputs {
			all = append(all, n)
		}
	}
	slices.Sort(all)
	return all
}
