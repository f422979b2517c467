package plan

import (
	"errors"
	"fmt"
	"slices"
)

// verifyByRank proves what Verify does of the plans that Build makes for parameters, which it asks
// for by rank. It needs the plan of one rank at a time, where the meaning of each message follows
// from its receiver's plan: so it is for levels of thousands of ranks (Params.Radices). Where that
// is not so, it is Verify.
//
// The proof is by induction, over steps instead of levels. As long as nothing is known of other
// ranks, a rank takes each message to be what it makes of it: what it copies to an output is what
// belongs there in the end, and what it combines with a partial sum of its own is that of the block
// of ranks that comes before or after. Under this assumption its plan is run as by Verify, which
// tells what each of its own messages holds. When all ranks have been looked at, each message must
// hold what its receiver takes it to hold. Then no rank is the first to be wrong: a message that is
// wrong has been put by a rank that has got another one before.
//
// There must be an order of steps for that, in which no rank waits for ever. A rank's phase is how
// often it has put something after it has waited for something. If each message is put in no later
// phase than it is waited for, and each slot freed in an earlier phase than it is used again, then
// nobody waits for ever: of all steps at which ranks are stuck, take one of the earliest phase, of
// these a put if there is any. Were it a wait, then its message would be put in this phase or an
// earlier one: so its sender is stuck before. Were it a put, then its slot would be freed in an
// earlier phase: so its receiver is stuck before. Neither is so. Where ranks leave out phases, as
// some slices are empty, all plans are run together, but without data.
//
// And each rank has heard from those whose input is in its outputs.
func verifyByRank(size int, params func(rank int) Params, inPlace bool) error {
	build := func(rank int) (*Plan, Params, error) {
		q := params(rank)
		plan, err := Build(q)
		return plan, q, err
	}
	if proveByRank(size, build, inPlace) == nil {
		return nil
	}
	plans, all := make([]*Plan, size), make([]Params, size)
	for r := range plans {
		var err error
		if plans[r], all[r], err = build(r); err != nil {
			return err
		}
	}
	return Verify(plans, all, inPlace)
}

// promise is what a message holds, as its sender knows or its receiver takes it.
type promise struct {
	bytes, total int64
	val          value
	phase        int32 // in which it is put or waited for
	freed        int32 // the receiver's, in which it is released
}

// proofByRank is a verifier that runs one rank at a time.
type proofByRank struct {
	*verifier
	inPlace bool
	// unordered tells that phases are not in order.
	unordered bool
	// promises are those of which the other end has not been looked at, by sender and receiver.
	promises map[[2]int32][]promise

	// Of the rank that is looked at:
	uses  map[posting]int32 // the step that uses a message
	phase int32
	waits bool // it has waited in this phase
	sent  map[int32][]promise
	taken map[int32][]promise
}

// proveByRank proves plans, or tells why it cannot.
func proveByRank(size int, of func(rank int) (*Plan, Params, error), inPlace bool) error {
	v := &verifier{
		machine: &machine[link]{ranks: make([]progress, size)},
		states:  make([]rankState, size),
		knows:   make(knowledge, size),
	}
	for r := range v.ranks {
		v.ranks[r].blocked = nobody
	}
	p := &proofByRank{verifier: v, inPlace: inPlace, promises: map[[2]int32][]promise{}}
	for r := range size {
		plan, q, err := of(r)
		if err == nil {
			err = checkPlan(plan, &q, r, size)
		}
		if err == nil {
			err = p.prove(r, plan, &q)
		}
		if err != nil {
			return fmt.Errorf("rank %d: %w", r, err)
		}
	}
	for pair := range p.promises {
		return fmt.Errorf("only one of the ranks %d and %d has messages between them", pair[0], pair[1])
	}
	if p.unordered {
		return runTogether(size, of)
	}
	return nil
}

// runTogether proves that no rank waits for ever.
func runTogether(size int, of func(rank int) (*Plan, Params, error)) error {
	plans, slots := make([]*Plan, size), 0
	for r := range plans {
		plan, q, err := of(r)
		if err != nil {
			return err
		}
		plans[r], slots = plan, q.Slots
	}
	m := newMachine[struct{}](plans, func(int) int { return slots - 1 })
	return m.run(func(int, *Step) error { return nil })
}

// prove runs a rank's plan, and compares its messages with those of ranks before.
func (p *proofByRank) prove(r int, plan *Plan, q *Params) error {
	if q.Algorithm == Direct || q.GetMin > 0 || q.window() > 0 || !hearsByData(q) {
		return errors.New("the data does not tell all")
	}
	if err := p.begin(r, plan, q); err != nil {
		return err
	}
	for i := range plan.Steps {
		if err := p.step(r, &plan.Steps[i]); err != nil {
			return fmt.Errorf("step %d (%v): %w", i, &plan.Steps[i], err)
		}
	}
	if err := p.checkOutputs(r); err != nil {
		return err
	}
	for _, peer := range p.ranks[r].peers {
		if err := p.checkRings(r, peer); err != nil {
			return err
		}
		if err := p.match(r, int(peer), p.sent[peer], q.Slots-1); err != nil {
			return err
		}
		if err := p.match(int(peer), r, p.taken[peer], q.Slots-1); err != nil {
			return err
		}
	}
	p.states[r], p.ranks[r] = rankState{}, progress{blocked: nobody}
	return nil
}

// hearsByData tells whether each rank's outputs hold something of each other rank.
func hearsByData(q *Params) bool {
	switch q.Collective {
	case AllReduce, ReduceScatter:
		return slices.Max(q.OutBytes) > 0
	case AllGather:
		return slices.Min(q.OutBytes) > 0
	}
	return false
}

// begin readies the machine for a rank, with rings for its peers only.
func (p *proofByRank) begin(r int, plan *Plan, q *Params) error {
	var peers []int32
	p.uses = map[posting]int32{}
	for i := range plan.Steps {
		switch s := &plan.Steps[i]; s.Op {
		case Put, Wait, Release:
			peers = append(peers, s.Peer)
		case Copy, Combine:
			for _, ref := range s.Src {
				if ref.Space == Inbox {
					p.uses[posting{ref.Peer, ref.Block}] = int32(i)
				}
			}
		default:
			return fmt.Errorf("step %d (%v) is of no message that is only copied or combined", i, s)
		}
	}
	slices.Sort(peers)
	peers = slices.Compact(peers)
	pairs := make([]int32, len(peers))
	for i := range pairs {
		pairs[i] = int32(i)
	}
	p.rings = make([]ring[link], 2*len(peers))
	for i := range p.rings {
		p.rings[i].of.slots = make([]message, q.Slots)
	}
	p.ranks[r] = progress{plan: plan, blocked: nobody, most: int32(q.Slots - 1), peers: peers,
		pairs: pairs}
	p.states[r] = newRankState(q, plan, p.inPlace)
	p.phase, p.waits = 0, false
	p.sent, p.taken = map[int32][]promise{}, map[int32][]promise{}
	return nil
}

// step does a step, and before it what its peer has to do.
func (p *proofByRank) step(r int, s *Step) error {
	switch s.Op {
	case Put:
		if p.waits {
			p.phase, p.waits = p.phase+1, false
		}
		g := p.out(r, s.Peer)
		g.released = g.put
	case Wait:
		p.waits = true
		if err := p.expect(r, s); err != nil {
			return err
		}
	}
	if _, err := p.waitsFor(r, s); err != nil {
		return err
	}
	if err := p.do(r, s); err != nil {
		return err
	}
	switch s.Op {
	case Put:
		g := p.out(r, s.Peer)
		m := promise{bytes: s.Bytes, total: s.Total, phase: p.phase}
		if segs := g.of.at(g.put).data.segs; len(segs) > 1 {
			return errors.New("puts what comes from several places")
		} else if len(segs) == 1 {
			m.val = segs[0].val
		}
		p.sent[s.Peer] = append(p.sent[s.Peer], m)
	case Release:
		p.taken[s.Peer][p.in(r, s.Peer).released].freed = p.phase
	}
	p.advance(r, s)
	return nil
}

// expect lays down the message that is waited for.
func (p *proofByRank) expect(r int, s *Step) error {
	g := p.in(r, s.Peer)
	m := g.of.at(g.put)
	m.data.bytes, m.total, m.offer = s.Bytes, s.Total, nil
	m.data.set(nil)
	expected := promise{bytes: s.Bytes, total: s.Total, phase: p.phase}
	if s.Bytes > 0 {
		var err error
		if expected.val, err = p.meaning(r, s.Peer, g.put); err != nil {
			return err
		}
		m.data.set([]segment{{0, s.Bytes, expected.val}})
	}
	p.taken[s.Peer] = append(p.taken[s.Peer], expected)
	g.put++
	return nil
}

// meaning is what a message must hold, from what the rank makes of it.
func (p *proofByRank) meaning(r int, peer, n int32) (value, error) {
	i, used := p.uses[posting{peer, n}]
	if !used {
		return value{}, errors.New("it makes nothing of the message")
	}
	s, q := &p.ranks[r].plan.Steps[i], p.states[r].params
	at := slices.IndexFunc(s.Src, func(ref Ref) bool {
		return ref.Space == Inbox && ref.Peer == peer && ref.Block == n
	})
	if s.Bytes <= 0 || s.Src[at].Off != 0 {
		return value{}, errors.New("it uses a part of the message")
	}
	if s.Op == Copy {
		if s.Dst.Space != Out || int(s.Dst.Block) >= len(q.OutBytes) || s.Dst.Block < 0 {
			return value{}, fmt.Errorf("it copies the message to %v", s.Dst)
		}
		return expected(q, int(s.Dst.Block)).plus(s.Dst.Off), nil
	}
	own := slices.IndexFunc(s.Src, func(ref Ref) bool { return ref.Space != Inbox })
	if own < 0 {
		return value{}, errors.New("it combines the message with nothing of its own")
	}
	segs, _, err := p.read(&p.states[r], s.Src[own], s.Bytes, nil)
	if err != nil {
		return value{}, err
	}
	val, each := segs[0].val, segs[0].val.over()
	if own > 0 && val.end() == len(p.states) { // its block may be the only short one
		for _, l := range q.levels() {
			if first := int(val.rank); first%l.stride == 0 && first/l.stride%l.radix == own {
				each = max(each, l.stride)
			}
		}
	}
	val.rank += int32((at - own) * each)
	val.ranks = int32(min(each, len(p.states)-int(val.rank)))
	if val.ranks == 1 && (s.Stage == Whole || s.Stage == First) {
		val.ranks = 0
	}
	return val, nil
}

// match compares the messages of a direction as one end knows them with what the other end does, if
// that has been looked at. The sender's slots hold so many messages.
func (p *proofByRank) match(from, to int, known []promise, slots int) error {
	pair := [2]int32{int32(from), int32(to)}
	other, ok := p.promises[pair]
	if !ok {
		if len(known) > 0 {
			p.promises[pair] = known
		}
		return nil
	}
	delete(p.promises, pair)
	sent, taken := known, other
	if to > from { // the receiver comes later
		sent, taken = other, known
	}
	if len(sent) != len(taken) {
		return fmt.Errorf("rank %d puts %d messages to rank %d, which waits for %d", from, len(sent), to,
			len(taken))
	}
	for n, m := range sent {
		w := taken[n]
		switch {
		case m.bytes != w.bytes || m.total != w.total || m.val != w.val:
			return fmt.Errorf("message %d of rank %d to %d is of %d bytes, total %d, %v; rank %d takes "+
				"it for %d, total %d, %v", n, from, to, m.bytes, m.total, m.val, to, w.bytes, w.total, w.val)
		case m.phase > w.phase || n >= slots && taken[n-slots].freed >= m.phase:
			p.unordered = true
		}
	}
	return nil
}
