package plan

import (
	"errors"
	"fmt"
	"slices"
)

// Verify proves that the plans of all ranks, indexed by rank, do together what params (indexed
// alike) ask for. It needs no data: memory holds, instead of bytes, where they come from.
// With inPlace the blocks that may be the same memory are. Of Send and Recv only the plans of the
// two ranks are given, the others are nil.
//
// It proves that
//   - no rank waits for ever, and all rings are empty at the end;
//   - each message has the length that its receiver waits for, and fits a slot, or its place is
//     posted before it is put;
//   - nothing is read that has not been written, no message is read before its Wait or after its
//     Release, none of the outbox before it is reclaimed or when its slot may be another's, nothing
//     is read or written out of bounds, and no input is written;
//   - a Combine gets the raw inputs of all ranks, each once and in rank order, of one place; or
//     those of a block of ranks, or what came of those of blocks: always a subtree of the canonical
//     order; where there is no order (Params.AnyOrder), each rank's at most once;
//   - each output byte ends up as what the collective promises, of which Custom promises nothing;
//   - of a peer's memory nothing is used but what it exposes or offers, no rank ends before it
//     knows that its peers are done with its memory, and no place that a rank writes is touched by
//     another: so it does not matter when;
//   - each rank has heard from the root, and the root from all; without a root each from each;
//   - in the window of a Schedule is no more than it says, see Peaks, and nothing at a plan's
//     beginning and its end: so plans may follow one another.
//
// One schedule and one number of slots stand for all. A rank runs its steps in order, each step is
// blocked by one direction of one channel only, that direction has this rank as its one writer or
// one reader, and no step can ask whether it would block. So what a step reads depends on the steps
// before it only, never on timing (a Kahn network with bounded buffers). And if any run, with Slots
// slots and releases that become known late (at most one of a direction unknown), got stuck, then
// compare it with the run made here, with Slots-1 slots, which ends (a PutToAll counts as one step
// a peer, each of which waits for that peer's release, and one that waits for nothing): take the
// first step here that the stuck run never did. All that came before it here was done there as
// well. If it is a Wait, its message has been put there too; if it is a Put, at least as many
// messages were released there, and all but one are known. So it is not blocked, and that run was
// not stuck. (A Reclaim waits for just one release; over memory channels, which alone have it,
// releases are known at once.)
func Verify(plans []*Plan, params []Params, inPlace bool) error {
	_, err := prove(plans, params, inPlace, false)
	return err
}

// verifier gives the messages and the memory of a machine what the proof is about.
type verifier struct {
	*machine[link]
	states  []rankState
	knows   knowledge
	ways    bool              // rings keep the ways of their messages
	touched map[*region]*uses // where plans are direct, or get
	segs    []segment         // what a step reads, reused
	sets    sets              // where sums may be in any order
	marks   int               // how many destinations of Combines have been marked
}

// rankState is what the verifier keeps of a rank.
type rankState struct {
	rank    int
	params  *Params // nil of a rank that takes no part
	in, out []*region
	scratch *region
	posted  map[posting]int32 // nil: not asked for yet
}

// link is what the verifier keeps of a ring.
type link struct {
	slots    []message // message n lies in slot n modulo Params.Slots
	fates    []fate    // by message; of those that it does not reach: none
	owed     []int32   // the messages that offer a place and have not been reclaimed
	exposure *exposure // of the sender's memory to the receiver
	heard    int32     // how much of what the sender knows the receiver has learned

	ways  []way // of all messages, where peaks are asked for
	done  int32 // so many steps of the receiver are done, as the sender knows from the receiver itself
	known int32 // of so many messages the sender knows so that they have been released
}

// message is one that has been put. It stays in its slot until another takes that.
type message struct {
	data  region
	total int64
	told  int32 // what the sender knew when it was put; once it is released, the receiver then
	used  int32 // how often its sender had used its receiver's memory
	offer *offer
}

// prove is Verify; it finds the ways of all messages, too, where they are asked for or needed.
func prove(plans []*Plan, params []Params, inPlace, ways bool) (*verifier, error) {
	if len(plans) == 0 || len(plans) != len(params) {
		return nil, fmt.Errorf("%d plans with %d parameters", len(plans), len(params))
	}
	size := len(plans)
	v := &verifier{
		states: make([]rankState, size), knows: newKnowledge(size), ways: ways,
		touched: map[*region]*uses{},
	}
	given := slices.Clone(plans)
	for r, p := range plans {
		if p == nil {
			v.states[r].rank, given[r] = r, &Plan{Rank: r, Size: size}
			continue
		}
		if err := checkPlan(p, &params[r], r, size); err != nil {
			return nil, err
		}
		v.states[r] = newRankState(&params[r], p, inPlace)
		v.ways = v.ways || params[r].Long > 0 || params[r].window() > 0
	}
	v.machine = newMachine[link](given, func(rank int) int { return params[rank].Slots - 1 })
	v.makeSlots()
	if err := v.run(v.do); err != nil {
		return nil, err
	}
	for r := range v.states {
		if err := v.checkEnd(r); err != nil {
			return nil, fmt.Errorf("rank %d, at the end: %w", r, err)
		}
	}
	for r := range v.states {
		if err := v.checkWindow(r); err != nil {
			return nil, fmt.Errorf("rank %d: %w", r, err)
		}
	}
	return v, nil
}

// checkPlan refuses a plan that is not that of rank r of so many.
func checkPlan(p *Plan, q *Params, r, size int) error {
	if p.Rank != r || p.Size != size || q.Rank != r || q.Size != size {
		return fmt.Errorf("plan %d is of rank %d of %d, with parameters of rank %d of %d",
			r, p.Rank, p.Size, q.Rank, q.Size)
	}
	if most := q.mostScratch(); p.ScratchBytes < 0 || p.ScratchBytes > most {
		return fmt.Errorf("rank %d: %d bytes of scratch memory; it may have %d",
			r, p.ScratchBytes, most)
	}
	if q.Algorithm == Direct {
		if p.Fed {
			return fmt.Errorf("rank %d: a direct plan has no feed", r)
		}
		if err := checkPhases(p, q); err != nil {
			return fmt.Errorf("rank %d: %w", r, err)
		}
	}
	return nil
}

// newRankState lays out the memory that a rank may use.
func newRankState(q *Params, p *Plan, inPlace bool) rankState {
	s := rankState{rank: q.Rank, params: q, scratch: &region{bytes: p.ScratchBytes}}
	space, in := q.source()
	out := q.target()
	if space == Out {
		out, in = in, nil
	}
	s.in, s.out = newBlocks(in), newBlocks(out)
	given := s.in
	if space == Out {
		given = s.out
	}
	for i, m := range given {
		switch {
		case !p.Fed:
			m.fill(q.Rank, i)
		case m.bytes > 0:
			m.late = []extent{{0, m.bytes}}
		}
	}
	for i := range s.in {
		for k := range s.out {
			if inPlace && q.shares(i, k) {
				s.out[k] = s.in[i]
			}
		}
	}
	for i, n := range q.target() {
		if s.out[i].fed = p.Fed; p.Fed && n > 0 {
			s.out[i].open = []extent{{0, n}}
		}
	}
	return s
}

// do proves a step that is about to be done.
func (v *verifier) do(r int, step *Step) error {
	s := &v.states[r]
	switch step.Op {
	case Copy, Combine, Get, PutToAll:
		if step.Bytes <= 0 {
			return errors.New("moves nothing")
		}
	}
	switch step.Op {
	case Put:
		return v.put(s, step)
	case Offer:
		return v.offer(s, step)
	case PutToAll:
		return v.putToAll(s, step)
	case Wait:
		return v.wait(s, step)
	case Release:
		v.release(s, v.in(r, step.Peer))
		return nil
	case Reclaim:
		return v.reclaim(s, step)
	case Expose:
		return v.expose(s, step)
	case Access:
		return v.access(s, step)
	case Get:
		return v.get(s, step)
	case Copy:
		return v.copy(s, step)
	case Need:
		return v.need(s, step)
	case Final:
		return v.final(s, step)
	default:
		return v.combine(s, step)
	}
}

func (v *verifier) put(s *rankState, step *Step) (err error) {
	n := v.out(s.rank, step.Peer).put
	if step.Bytes < 0 || step.Bytes > s.params.Chunk && !v.mayBeLong(s, n, step) {
		return fmt.Errorf("a message has at most %d bytes", s.params.Chunk)
	}
	v.segs = v.segs[:0]
	switch {
	case step.Bytes == 0 && len(step.Src) != 0:
		return errors.New("puts nothing but has a source")
	case step.Bytes > 0:
		if v.segs, _, err = v.readSource(s, step, v.segs); err != nil {
			return err
		}
	}
	v.send(s, step.Peer, step, v.segs)
	return nil
}

// putToAll needs no proof of its own that nothing in the stage is overwritten while somebody reads
// it: a PutToAll finds a free slot in each ring, and the PutToAll of Params.Slots PutToAll steps
// ago lies at least that many messages back in every one of them, so each peer has released it.
func (v *verifier) putToAll(s *rankState, step *Step) (err error) {
	switch {
	case !s.params.Memory:
		return errors.New("needs memory channels")
	case step.Bytes > s.params.Chunk:
		return fmt.Errorf("a message has at most %d bytes", s.params.Chunk)
	}
	if v.segs, _, err = v.readSource(s, step, v.segs[:0]); err != nil {
		return err
	}
	for _, peer := range v.ranks[s.rank].peers {
		v.send(s, peer, step, v.segs)
		g := v.out(s.rank, peer)
		g.of.meet(g.put, shared)
	}
	return nil
}

// send lays a message into the slot of the next one to a peer.
func (v *verifier) send(s *rankState, peer int32, step *Step, contents []segment) *message {
	g := v.out(s.rank, peer)
	l := &g.of
	if int(g.put) >= s.params.Slots { // a put waits for the release of the message whose slot it takes
		v.hearRelease(s, peer, g.put-int32(s.params.Slots))
	}
	m := l.at(g.put)
	m.data.bytes = step.Bytes
	m.data.set(contents)
	m.total, m.told, m.used, m.offer = step.Total, v.knows.tell(s.rank), 0, nil
	if e := v.in(s.rank, peer).of.exposure; e != nil {
		m.used = e.used
	}
	if v.ways {
		l.ways = append(l.ways, way{
			bytes: step.Bytes, early: l.done, put: v.now(s), released: forever, known: forever,
		})
	}
	return m
}

func (v *verifier) wait(s *rankState, step *Step) error {
	g := v.in(s.rank, step.Peer)
	m := g.of.at(g.waited)
	if m.data.bytes != step.Bytes || m.total != step.Total {
		return fmt.Errorf("the message has %d bytes, total %d; total %d is waited for",
			m.data.bytes, m.total, step.Total)
	}
	if is := g.of.fate(g.waited) == shared; is != step.Multicast {
		return fmt.Errorf("the message is multicast: %v; multicast %v is waited for", is, step.Multicast)
	}
	steps := int32(0)
	if v.ways {
		steps = g.of.ways[g.waited].put + 1
	}
	v.hear(s, step.Peer, m.told, steps)
	if e := v.out(s.rank, step.Peer).of.exposure; e != nil {
		e.usedKnown = m.used
	}
	return nil
}

func (v *verifier) release(s *rankState, g *ring[link]) {
	g.of.at(g.released).told = v.knows.tell(s.rank)
	if v.ways {
		g.of.ways[g.released].released = v.now(s)
	}
}

func (v *verifier) reclaim(s *rankState, step *Step) error {
	if !s.params.Memory {
		return errors.New("needs memory channels")
	}
	if step.Bytes != 0 {
		return errors.New("must name one message to its peer")
	}
	g, n := v.out(s.rank, step.Peer), step.Src[0].Block
	l := &g.of
	if l.fate(n) != none {
		return errors.New("reclaims a message twice, or one that is multicast")
	}
	l.meet(n, reclaimed)
	l.owed = slices.DeleteFunc(l.owed, func(owed int32) bool { return owed == n })
	if int(g.put-n) <= s.params.Slots { // else the put that took its slot has heard of the release
		v.hearRelease(s, step.Peer, n)
	}
	return nil
}

// makeSlots gives each ring as many slots as its messages take, and room for their ways.
func (v *verifier) makeSlots() {
	messages, most := 0, 0
	for r := range v.ranks {
		for _, n := range v.ranks[r].puts {
			messages += int(n)
			most += int(min(n, v.slots(r)))
		}
	}
	slots, ways := make([]message, most), []way(nil)
	if v.ways {
		ways = make([]way, messages)
	}
	for r := range v.ranks {
		for i, n := range v.ranks[r].puts {
			l := &v.outTo(r, i).of
			k := min(n, v.slots(r))
			l.slots, slots = slots[:k:k], slots[k:]
			if v.ways {
				l.ways, ways = ways[:0:n], ways[n:]
			}
		}
	}
}

// slots is how many messages of a rank a ring holds.
func (v *verifier) slots(r int) int32 { return v.ranks[r].most + 1 }

// at is message n, where it still lies in its slot.
func (l *link) at(n int32) *message { return &l.slots[int(n)%len(l.slots)] }

// fate is why a message cannot be reclaimed any more.
type fate uint8

const (
	none fate = iota
	reclaimed
	shared // with other ranks
)

func (l *link) fate(n int32) fate {
	if n < 0 || int(n) >= len(l.fates) {
		return none
	}
	return l.fates[n]
}

// meet gives message n its fate.
func (l *link) meet(n int32, f fate) {
	for int(n) >= len(l.fates) {
		l.fates = append(l.fates, none)
	}
	l.fates[n] = f
}

// now is the step that a rank does.
func (v *verifier) now(s *rankState) int32 { return int32(v.ranks[s.rank].next) }

// hearRelease has a rank learn that its message n has been released, and what the peer knew then.
func (v *verifier) hearRelease(s *rankState, peer, n int32) {
	l, steps := &v.out(s.rank, peer).of, int32(0)
	if v.ways {
		steps = l.ways[n].released + 1
	}
	v.hear(s, peer, l.at(n).told, steps)
}

// hear has a rank learn what a peer knew when it had done so many steps, and that it has done them,
// so that the messages which it has released by then are.
//
// What a rank hears of a third one's steps does not count, though it would be as true. No builder
// needs it, and with it each message would have to carry a number for each rank.
func (v *verifier) hear(s *rankState, peer int32, told, steps int32) {
	from := &v.in(s.rank, peer).of
	if told > from.heard {
		v.knows.hear(s.rank, peer, from.heard, told)
		from.heard = told
	}
	if !v.ways {
		return
	}
	g := v.out(s.rank, peer)
	l := &g.of
	l.done = max(l.done, steps)
	for l.known < g.released && l.ways[l.known].released < l.done {
		l.ways[l.known].known = v.now(s)
		l.known++
	}
}

// checkEnd checks what the rank r has at the end.
func (v *verifier) checkEnd(r int) error {
	for _, peer := range v.ranks[r].peers {
		if err := v.checkRings(r, peer); err != nil {
			return err
		}
	}
	q := v.states[r].params
	if q == nil {
		return nil
	}
	if err := errors.Join(v.checkOutputs(r), v.checkFed(&v.states[r])); err != nil {
		return err
	}
	if q.Collective == Send || q.Collective == Recv {
		return nil
	}
	for peer := range v.ranks {
		if q.Collective.Rooted() && r != q.Root && peer != q.Root {
			continue
		}
		if !v.knows[r].has.has(peer) {
			return fmt.Errorf("it has not heard from rank %d", peer)
		}
	}
	return nil
}

// checkOutputs refuses outputs of a rank that are not what the collective promises.
func (v *verifier) checkOutputs(r int) error {
	q := v.states[r].params
	if q.Collective == Custom {
		return nil
	}
	for i, m := range v.states[r].out {
		if m.bytes == 0 {
			continue
		}
		want := segment{0, m.bytes, expected(q, i)}
		got, err := m.read(0, m.bytes, nil)
		if err != nil {
			return fmt.Errorf("output block %d: %w", i, err)
		}
		for _, g := range got {
			if g != want.part(g.off, g.end()) || len(got) > 1 {
				return fmt.Errorf("output block %d, byte %d is %v; it must be %v",
					i, g.off, g.val, want.part(g.off, g.end()).val)
			}
		}
	}
	return nil
}

// checkRings refuses what a rank leaves behind between itself and a peer.
func (v *verifier) checkRings(r int, peer int32) error {
	if g := v.in(r, peer); g.released != g.put {
		return fmt.Errorf("of %d messages of rank %d %d were released", g.put, peer, g.released)
	}
	l := &v.out(r, peer).of
	if len(l.owed) > 0 {
		return fmt.Errorf("what message %d offers rank %d has not been reclaimed", l.owed[0], peer)
	}
	if e := l.exposure; e != nil && (!e.accessed || e.used != e.usedKnown) {
		return fmt.Errorf("rank %d has not said that it is done with this rank's memory", peer)
	}
	return nil
}

// expected is what output block i of a rank must be.
func expected(p *Params, i int) value {
	switch p.Collective {
	case AllReduce, Reduce:
		return value{reduced: true, block: int32(i)}
	case ReduceScatter:
		return value{reduced: true, block: int32(p.Rank)}
	case Broadcast, Recv:
		return value{rank: int32(p.Root)}
	case Scatter:
		return value{rank: int32(p.Root), block: int32(p.Rank)}
	case AllToAll:
		return value{rank: int32(i), block: int32(p.Rank)}
	default: // AllGather, Gather
		return value{rank: int32(i)}
	}
}
