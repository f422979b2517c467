package plan

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
)

// Verify proves that the plans of all ranks, indexed by rank, do together what params (indexed
// alike) ask for. It needs no data: memory holds, instead of bytes, where they come from.
// With inPlace the blocks that may be the same memory are. Of Send and Recv only the plans of the
// two ranks are given, the others are nil.
//
// It proves that
//   - no rank waits for ever, and all rings are empty at the end;
//   - each message has the length that its receiver waits for, and fits a slot, or its place is posted before it is put;
//   - nothing is read that has not been written, no message is read before its Wait or after its
//     Release, none of the outbox before it is reclaimed or when its slot may be another's, nothing
//     is read or written out of bounds, and no input is written;
//   - a Combine gets the raw inputs of all ranks, each once and in rank order, of one place; or those of a group, or what came of those of all groups;
//   - each output byte ends up as what the collective promises;
//   - of a peer's memory nothing is used but what it exposes or offers, no rank ends before it knows that its peers are done with its memory, and no
//     place that a rank writes is touched by another: so it does not matter when;
//   - each rank has heard from the root, and the root from all; without a root each from each;
//   - in the window of a Schedule is no more than it says, see Peaks, and nothing at a plan's beginning and its end: so plans may follow one another.
//
// One schedule and one number of slots stand for all. A rank runs its steps in order, each step is
// blocked by one direction of one channel only, that direction has this rank as its one writer or
// one reader, and no step can ask whether it would block. So what a step reads depends on the steps
// before it only, never on timing (a Kahn network with bounded buffers). And if any run, with Slots
// slots and releases that become known late (at most one of a direction unknown), got stuck, then
// compare it with the run made here, with Slots-1 slots, which ends (a Share counts as one step a peer, each of which waits for that peer's
// release, and one that waits for nothing): take the first step here that
// the stuck run never did. All that came before it here was done there as well. If it is a Wait,
// its message has been put there too; if it is a Put, at least as many messages were released
// there, and all but one are known. So it is not blocked, and that run was not stuck. (A Reclaim waits
// for just one release; over memory channels, which alone have it, releases are known at once.)
func Verify(plans []*Plan, params []Params, inPlace bool) error {
	_, err := prove(plans, params, inPlace)
	return err
}

func prove(plans []*Plan, params []Params, inPlace bool) (*verifier, error) {
	if len(plans) == 0 || len(plans) != len(params) {
		return nil, fmt.Errorf("%d plans with %d parameters", len(plans), len(params))
	}
	v := verifier{size: len(plans), rings: make([]ring, len(plans)*len(plans))}
	v.ranks = make([]rankState, v.size)
	v.exposures, v.touched = make([]exposure, len(plans)*len(plans)), map[*region]*touched{}
	for r, p := range plans {
		if p == nil {
			v.ranks[r].plan = &Plan{Rank: r, Size: v.size}
			continue
		}
		if p.Rank != r || p.Size != v.size || params[r].Rank != r || params[r].Size != v.size {
			return nil, fmt.Errorf("plan %d is of rank %d of %d, with parameters of rank %d of %d",
				r, p.Rank, p.Size, params[r].Rank, params[r].Size)
		}
		if p.ScratchBytes < 0 || p.ScratchBytes > params[r].Chunk {
			return nil, fmt.Errorf("rank %d: %d bytes of scratch memory; a chunk is %d", r, p.ScratchBytes, params[r].Chunk)
		}
		if params[r].Direct {
			if err := checkPhases(p, &params[r]); err != nil {
				return nil, fmt.Errorf("rank %d: %w", r, err)
			}
		}
		v.ranks[r] = newRankState(p, &params[r], inPlace)
	}
	if err := v.run(); err != nil {
		return nil, err
	}
	for r := range v.ranks {
		if err := v.checkEnd(r); err != nil {
			return nil, fmt.Errorf("rank %d, at the end: %w", r, err)
		}
		if err := v.checkWindow(r); err != nil {
			return nil, fmt.Errorf("rank %d: %w", r, err)
		}
	}
	return &v, nil
}

// checkPhases refuses a direct plan that does anything before it has exposed to all and has access to all (of a star, before its root has access and has
// exposed): until then all may yet have to run the other plan.
func checkPhases(p *Plan, q *Params) error {
	peers, first, then := p.Size-1, Expose, Access
	switch {
	case star(q.Collective) && q.Rank == q.Root:
		first, then = Access, Expose
	case star(q.Collective):
		peers = 1
	}
	for i := range p.Steps {
		op := p.Steps[i].Op
		if (op == first) != (i < peers) || (op == then) != (i >= peers && i < 2*peers) {
			return fmt.Errorf("step %d (%v) is out of order in a direct plan", i, &p.Steps[i])
		}
	}
	return nil
}

type message struct {
	total  int64
	shared bool
	data   region
	knows  []int32 // its sender, when it was put; once released, its receiver then: see rankState
	used   int     // how often its sender had used its receiver's memory
	way    way
	// Of an Offer:
	offered *region
	from    int64 // on in it
}

// way is when a message was under way, in steps of its two ranks.
type way struct {
	early    int32 // how many steps its receiver had done for certain when it was put: it may have been there from then on
	put      int32 // the sender's step
	released int32 // the receiver's
	known    int32 // the sender's, in which it learned of that; never: forever
}

const forever = math.MaxInt32

// exposure is what a rank exposes to another.
type exposure struct {
	exposed, accessed bool
	in, out           *region
	bytes, total      int64
	used              int // how often
	usedKnown         int // of that, what its owner knows
}

// extent is the part of a piece of memory that a rank uses, from the first byte to the last.
type extent struct{ off, end int64 }

func (e *extent) add(off, end int64) {
	if e.off == e.end {
		*e = extent{off, end}
	}
	e.off, e.end = min(e.off, off), max(e.end, end)
}

// touched is what each rank reads and writes of a piece of memory that peers use too.
type touched struct{ read, written []extent }

// ring is one direction of a channel. Messages are counted from 0.
type ring struct {
	put, waited, released int32
	known                 int32     // how many of the released its sender knows to be so
	held                  []message // those not yet released
	left                  []message // the others, as they were released
	reclaimed             []bool    // of those
}

type rankState struct {
	plan    *Plan
	params  *Params // nil of a rank that takes no part
	next    int     // the step to be done
	in, out []*region
	scratch *region
	posted  map[posting]int32 // nil: not asked for yet
	knows   []int32           // of each rank, how many of its steps have been done for certain by now, at least; 0: it may not have begun
}

// newRankState lays out the memory that a rank may use.
func newRankState(p *Plan, q *Params, inPlace bool) rankState {
	s := rankState{plan: p, params: q, knows: make([]int32, p.Size)}
	s.scratch = &region{bytes: p.ScratchBytes}
	root := q.Rank == q.Root
	if c := q.Collective; c != Broadcast && c != Barrier && c != Recv && (c != Scatter || root) {
		for i, n := range q.InBytes {
			s.in = append(s.in, inputRegion(n, p.Rank, i))
		}
	}
	if c := q.Collective; c != Barrier && c != Send && (c != Reduce && c != Gather || root) {
		for _, n := range q.OutBytes {
			s.out = append(s.out, &region{bytes: n})
		}
	}
	if q.Collective == Broadcast && root {
		s.out[0] = inputRegion(q.OutBytes[0], p.Rank, 0)
	}
	if !inPlace {
		return s
	}
	switch c := q.Collective; {
	case c == AllReduce, c == Reduce && root:
		copy(s.out, s.in)
	case c == AllGather, c == Gather && root:
		s.out[q.Rank] = s.in[0]
	case c == ReduceScatter, c == Scatter && root:
		s.out[0] = s.in[q.Rank]
	}
	return s
}

func inputRegion(bytes int64, rank, block int) *region {
	m := &region{bytes: bytes}
	if bytes > 0 {
		m.segs = []segment{{0, bytes, value{rank: int32(rank), block: int32(block)}}}
	}
	return m
}

type verifier struct {
	size  int
	ranks []rankState
	rings []ring
	segs  []segment // what a step reads, reused

	blocker int // the rank for which a step waits that is blocked

	exposures []exposure           // by owner and user
	touched   map[*region]*touched // where plans are direct, or get
}

func (v *verifier) ring(from, to int) *ring { return &v.rings[from*v.size+to] }

// run runs all ranks until each has ended or is blocked.
func (v *verifier) run() error {
	var ready []int // a rank is here once at most: when it was blocked and is so no more
	blockedOn := make([]int, v.size)
	for r := range v.ranks {
		ready = append(ready, r)
		blockedOn[r] = -1
	}
	for len(ready) > 0 {
		r := ready[len(ready)-1]
		ready = ready[:len(ready)-1]
		s := &v.ranks[r]
		for ; s.next < len(s.plan.Steps); s.next++ {
			step := &s.plan.Steps[s.next]
			blocked, err := v.do(r, step)
			if err != nil {
				return fmt.Errorf("rank %d, step %d (%v): %w", r, s.next, step, err)
			}
			if blocked {
				blockedOn[r] = v.blocker
				break
			}
			wake := func(peer int) {
				if blockedOn[peer] == r {
					blockedOn[peer] = -1
					ready = append(ready, peer)
				}
			}
			switch step.Op {
			case Put, Offer, Release, Expose:
				wake(int(step.Peer))
			case Share:
				for peer := range v.size {
					wake(peer)
				}
			}
		}
	}
	var stuck []string
	for r := range v.ranks {
		if s := &v.ranks[r]; s.next < len(s.plan.Steps) {
			stuck = append(stuck, fmt.Sprintf("rank %d in step %d (%v)", r, s.next, &s.plan.Steps[s.next]))
		}
	}
	if stuck != nil {
		return fmt.Errorf("deadlock: %s", strings.Join(stuck, "; "))
	}
	return nil
}

// do does one step, or says that it is blocked.
func (v *verifier) do(r int, step *Step) (blocked bool, err error) {
	s := &v.ranks[r]
	switch step.Op {
	case Put, Wait, Release, Reclaim, Expose, Access, Offer, Get:
		if step.Peer < 0 || int(step.Peer) >= v.size || int(step.Peer) == r {
			return false, errors.New("there is no such peer")
		}
	case Copy, Combine, Share:
	default:
		return false, errors.New("there is no such step")
	}
	if (step.Op == Copy || step.Op == Combine || step.Op == Get || step.Op == Share) && step.Bytes <= 0 {
		return false, errors.New("moves nothing")
	}
	v.blocker = int(step.Peer)
	switch step.Op {
	case Put, Offer:
		return v.put(s, v.ring(r, int(step.Peer)), step)
	case Share:
		return v.share(s, step)
	case Wait:
		return v.wait(s, v.ring(int(step.Peer), r), step)
	case Release:
		g := v.ring(int(step.Peer), r)
		if g.released == g.waited {
			return false, errors.New("releases a message that it has not waited for")
		}
		g.released++
		m := &g.held[0]
		copy(m.knows, s.now())
		m.way.released = int32(s.next)
		g.left, g.reclaimed = append(g.left, *m), append(g.reclaimed, false)
		g.held = g.held[1:]
		return false, nil
	case Expose:
		return false, v.expose(s, v.exposure(r, int(step.Peer)), step)
	case Access:
		return v.access(v.exposure(int(step.Peer), r), step)
	case Reclaim:
		return v.reclaim(s, v.ring(r, int(step.Peer)), step)
	case Copy:
		return false, v.copy(r, step)
	case Get:
		return false, v.get(s, step)
	default:
		return false, v.combine(r, step)
	}
}

func (v *verifier) put(s *rankState, g *ring, step *Step) (blocked bool, err error) {
	if step.Bytes < 0 || step.Bytes > s.params.Chunk && !v.mayBeLong(s, g.put, step) {
		return false, fmt.Errorf("a message has at most %d bytes", s.params.Chunk)
	}
	if v.full(s, g) {
		return true, nil
	}
	m := v.message(s, g, int(step.Peer), step)
	switch {
	case step.Op == Offer:
		if err := v.offer(s, step, &m); err != nil {
			return false, err
		}
	case step.Bytes == 0:
		if len(step.Src) != 0 {
			return false, errors.New("puts nothing but has a source")
		}
	default:
		if len(step.Src) != 1 {
			return false, fmt.Errorf("has %d sources", len(step.Src))
		}
		if m.data.segs, _, err = v.read(s, step.Src[0], step.Bytes, nil); err != nil {
			return false, err
		}
	}
	g.put++
	g.held = append(g.held, m)
	return false, nil
}

// full tells whether a put must wait.
func (v *verifier) full(s *rankState, g *ring) bool { return int(g.put-g.released) >= s.params.Slots-1 }

// message is the next of a ring, but for what it carries.
func (v *verifier) message(s *rankState, g *ring, peer int, step *Step) message {
	if n := int(g.put) - s.params.Slots; n >= 0 { // whose slot the message takes: a put waits for its release
		v.hear(s, &g.left[n])
	}
	return message{total: step.Total, data: region{bytes: step.Bytes}, knows: slices.Clone(s.now()), used: v.exposure(peer, s.plan.Rank).used,
		way: way{early: s.knows[peer], put: int32(s.next), known: forever}}
}

// share needs no proof of its own that nothing in the stage is overwritten while somebody reads it: a Share finds a free slot in each ring, and the Share of
// Params.Slots Shares ago lies at least that many messages back in every one of them, so each peer has released it.
func (v *verifier) share(s *rankState, step *Step) (blocked bool, err error) {
	switch {
	case !s.params.Memory:
		return false, errors.New("needs memory channels")
	case step.Bytes > s.params.Chunk:
		return false, fmt.Errorf("a message has at most %d bytes", s.params.Chunk)
	case len(step.Src) != 1:
		return false, fmt.Errorf("has %d sources", len(step.Src))
	}
	for peer := range v.size {
		if peer != s.plan.Rank && v.full(s, v.ring(s.plan.Rank, peer)) {
			v.blocker = peer
			return true, nil
		}
	}
	if v.segs, _, err = v.read(s, step.Src[0], step.Bytes, v.segs[:0]); err != nil {
		return false, err
	}
	for peer := range v.size {
		if peer == s.plan.Rank {
			continue
		}
		g := v.ring(s.plan.Rank, peer)
		m := v.message(s, g, peer, step)
		m.shared, m.data.segs = true, slices.Clone(v.segs)
		g.put++
		g.held = append(g.held, m)
	}
	return false, nil
}

// mayBeLong tells whether the receiver of message n has posted its place for certain.
func (v *verifier) mayBeLong(s *rankState, n int32, step *Step) bool {
	peer := &v.ranks[step.Peer]
	if s.params.Ports == nil || !s.params.Ports[step.Peer] || step.Bytes > s.params.Long || peer.params == nil ||
		peer.params.Collective != AllToAll && peer.params.Collective != Scatter {
		return false
	}
	if peer.posted == nil {
		peer.posted = peer.postings()
	}
	at, ok := peer.posted[posting{int32(s.plan.Rank), n}]
	return ok && at < s.knows[step.Peer]
}

// posting names a message that is posted.
type posting struct{ peer, n int32 }

// postings is the messages that a run of the plan posts, with the Put by which they are so at the latest. It posts them in the order of their Waits, and
// stops at one that has to wait: until nothing uses the place, a slot is free, and the peer is connected. Inputs and outputs are taken to be apart: an AllToAll is
// never in place, and of a Scatter only the root has inputs.
func (s *rankState) postings() map[posting]int32 {
	posted := map[posting]int32{}
	posts := s.plan.Posts(1, true)
	freed, met := make([]int32, s.plan.Size), make([]bool, s.plan.Size)
	next := 0
	for i := range s.plan.Steps {
		step := &s.plan.Steps[i]
		switch step.Op {
		case Wait:
			met[step.Peer] = true
		case Release:
			freed[step.Peer]++
		case Put:
			met[step.Peer] = true
			for ; next < len(posts); next++ {
				if posts[next].Wait < i {
					continue
				}
				from := s.plan.Steps[posts[next].Wait+1].Src[0] // of the Copy
				p := posting{from.Peer, from.Block}
				if posts[next].From > i || !met[p.peer] || p.n >= freed[p.peer]+int32(s.params.Slots) {
					break
				}
				posted[p] = int32(i)
			}
		}
	}
	return posted
}

func (v *verifier) wait(s *rankState, g *ring, step *Step) (blocked bool, err error) {
	if g.waited == g.put {
		return true, nil
	}
	m := &g.held[g.waited-g.released]
	if m.data.bytes != step.Bytes || m.total != step.Total {
		return false, fmt.Errorf("the message has %d bytes, total %d; total %d is waited for",
			m.data.bytes, m.total, step.Total)
	}
	if m.shared != step.Shared {
		return false, fmt.Errorf("the message is shared: %v; shared %v is waited for", m.shared, step.Shared)
	}
	v.hear(s, m)
	v.exposure(s.plan.Rank, int(step.Peer)).usedKnown = m.used
	g.waited++
	return false, nil
}

func (v *verifier) offer(s *rankState, step *Step, m *message) (err error) {
	if s.params.GetMin == 0 || step.Bytes != OfferBytes || len(step.Src) != 1 || step.Src[0].Space != In && step.Src[0].Space != Out {
		return errors.New("offers what cannot be got")
	}
	m.offered, err = v.locate(s, step.Src[0], 0)
	m.from = step.Src[0].Off
	return err
}

func (v *verifier) get(s *rankState, step *Step) error {
	if len(step.Src) != 1 || step.Src[0].Space != Inbox || step.Src[0].Peer != step.Peer || step.Dst.Space != Out {
		return errors.New("must name one message of its peer, and an output")
	}
	ref := step.Src[0]
	g := v.ring(int(step.Peer), s.plan.Rank)
	if ref.Block < g.released || ref.Block >= g.waited || g.held[ref.Block-g.released].offered == nil {
		return fmt.Errorf("%v offers nothing, or not now", ref)
	}
	m := &g.held[ref.Block-g.released]
	off := m.from + ref.Off
	if ref.Off < 0 || off > m.offered.bytes-step.Bytes {
		return fmt.Errorf("%d bytes from byte %d on of a block of %d", step.Bytes, off, m.offered.bytes)
	}
	dst, err := v.destination(s, step)
	if err != nil {
		return err
	}
	if v.segs, err = m.offered.read(off, step.Bytes, v.segs[:0]); err != nil {
		return err
	}
	dst.write(step.Dst.Off, step.Bytes, v.segs)
	if err := v.touch(s, m.offered, off, step.Bytes, false); err != nil {
		return err
	}
	return v.touch(s, dst, step.Dst.Off, step.Bytes, true)
}

func (v *verifier) reclaim(s *rankState, g *ring, step *Step) (blocked bool, err error) {
	if !s.params.Memory {
		return false, errors.New("needs memory channels")
	}
	if len(step.Src) != 1 || step.Bytes != 0 || step.Src[0] != (Ref{Space: Outbox, Peer: step.Peer, Block: step.Src[0].Block}) {
		return false, errors.New("must name one message to its peer")
	}
	n := step.Src[0].Block
	if n < 0 || n >= g.put {
		return false, errors.New("reclaims a message that was not put")
	}
	if n >= g.released {
		return true, nil
	}
	if g.reclaimed[n] || g.left[n].shared {
		return false, errors.New("reclaims a message twice, or one that is shared")
	}
	g.reclaimed[n] = true
	v.hear(s, &g.left[n])
	return false, nil
}

func (v *verifier) exposure(owner, user int) *exposure {
	return &v.exposures[owner*v.size+user]
}

// refs is how the user names what its peer exposes.
func (e *exposure) refs(peer int32) (refs []Ref) {
	if e.in != nil {
		refs = append(refs, Ref{Space: PeerIn, Peer: peer})
	}
	if e.out != nil {
		refs = append(refs, Ref{Space: PeerOut, Peer: peer})
	}
	return refs
}

func (v *verifier) expose(s *rankState, e *exposure, step *Step) error {
	if !s.params.Direct || e.exposed {
		return errors.New("exposes in a plan that is not direct, or twice")
	}
	for _, ref := range step.Src {
		m, err := v.locate(s, ref, step.Bytes)
		switch {
		case err != nil:
			return err
		case ref.Off != 0:
			return fmt.Errorf("exposes %v", ref)
		case ref.Space == In && e.in == nil && e.out == nil:
			e.in = m
		case ref.Space == Out && e.out == nil:
			e.out = m
		default:
			return fmt.Errorf("exposes %v", ref)
		}
	}
	if len(step.Src) == 0 {
		return errors.New("exposes nothing")
	}
	e.exposed, e.bytes, e.total = true, step.Bytes, step.Total
	return nil
}

func (v *verifier) access(e *exposure, step *Step) (blocked bool, err error) {
	switch {
	case !e.exposed:
		return true, nil
	case e.accessed:
		return false, errors.New("accesses twice")
	case !slices.Equal(step.Src, e.refs(step.Peer)):
		return false, fmt.Errorf("%v is exposed", e.refs(step.Peer))
	case e.bytes != step.Bytes || e.total != step.Total:
		return false, fmt.Errorf("%d bytes are exposed, total %d; total %d is waited for", e.bytes, e.total, step.Total)
	}
	e.accessed = true
	return false, nil
}

// touch refuses what does depend on time: a place that two ranks use, and one of them writes.
func (v *verifier) touch(s *rankState, m *region, off, bytes int64, writes bool) error {
	if !s.params.Direct && (s.params.GetMin == 0 || s.params.Collective.Reduces()) {
		return nil
	}
	t := v.touched[m]
	if t == nil {
		t = &touched{make([]extent, v.size), make([]extent, v.size)}
		v.touched[m] = t
	}
	end := off + bytes
	for r := range v.size {
		w, d := t.written[r], t.read[r]
		if r != s.plan.Rank && (w.off < end && off < w.end || writes && d.off < end && off < d.end) {
			return fmt.Errorf("bytes %d to %d are also used by rank %d", off, end, r)
		}
	}
	if writes {
		t.written[s.plan.Rank].add(off, end)
	} else {
		t.read[s.plan.Rank].add(off, end)
	}
	return nil
}

// now is what the rank knows when its present step has been done.
func (s *rankState) now() []int32 {
	s.knows[s.plan.Rank] = int32(s.next) + 1
	return s.knows
}

// hear learns what the other end of a message knew, and of messages to that and other ranks, that they are released.
func (v *verifier) hear(s *rankState, m *message) {
	for r, steps := range m.knows {
		if steps <= s.knows[r] {
			continue
		}
		s.knows[r] = steps
		for g := v.ring(s.plan.Rank, r); g.known < g.released && g.left[g.known].way.released < steps; g.known++ {
			g.left[g.known].way.known = int32(s.next)
		}
	}
}

func (v *verifier) copy(r int, step *Step) error {
	if len(step.Src) != 1 {
		return fmt.Errorf("has %d sources", len(step.Src))
	}
	s := &v.ranks[r]
	dst, err := v.destination(s, step)
	if err != nil {
		return err
	}
	var src *region
	if v.segs, src, err = v.read(s, step.Src[0], step.Bytes, v.segs[:0]); err != nil {
		return err
	}
	if err := overlap(dst, src, step.Dst.Off, step.Src[0].Off, step.Bytes); err != nil {
		return err
	}
	if dst == src && step.Dst.Off == step.Src[0].Off {
		return nil
	}
	dst.write(step.Dst.Off, step.Bytes, v.segs)
	return v.touch(s, dst, step.Dst.Off, step.Bytes, true)
}

func (v *verifier) combine(r int, step *Step) error {
	s := &v.ranks[r]
	places := append([]Ref{step.Dst}, step.Also...)
	destinations := make([]*region, len(places))
	for i, ref := range places {
		allowed := (ref.Space == Inbox || ref.Space == PeerOut) && s.params.Memory || i == 0 && (ref.Space == Out || ref.Space == Scratch)
		if !allowed || slices.Contains(places[:i], ref) {
			return fmt.Errorf("writes to %v", ref)
		}
		m, err := v.locate(s, ref, step.Bytes)
		if err == nil && ref.Space == Inbox {
			err = v.notShared(s, ref)
		}
		if err != nil {
			return err
		}
		destinations[i] = m
	}
	var first value
	for i, ref := range step.Src {
		var src *region
		var err error
		if v.segs, src, err = v.read(s, ref, step.Bytes, v.segs[:0]); err != nil {
			return err
		}
		for k, dst := range destinations {
			if err := overlap(dst, src, places[k].Off, ref.Off, step.Bytes); err != nil {
				return err
			}
		}
		got := v.segs[0].val
		if i == 0 {
			first = got
		}
		want := first
		want.rank += int32(i) * max(first.ranks, 1)
		// Contents that are one run of one input are one segment.
		if got != want || got.reduced || len(v.segs) > 1 {
			return fmt.Errorf("source %d must be %v; in %d runs, it begins with %v", i, want, len(v.segs), got)
		}
	}
	result, err := combined(first, len(step.Src), v.size, s.params.Group)
	if err != nil {
		return err
	}
	if e := s.params.ElemSize; step.Bytes%e != 0 || result.off%e != 0 || step.Dst.Off%e != 0 {
		return fmt.Errorf("cuts elements of %d bytes", e)
	}
	for i, dst := range destinations {
		dst.write(places[i].Off, step.Bytes, []segment{{0, step.Bytes, result}})
		if err := v.touch(s, dst, places[i].Off, step.Bytes, true); err != nil {
			return err
		}
	}
	return nil
}

// combined is what comes of so many sources, the first of which is given, and each of which goes on with the ranks where the one before it ends.
func combined(first value, n, size, group int) (value, error) {
	each := int(max(first.ranks, 1))
	switch {
	case first.rank == 0 && n*each == size && (each == 1 || each == group):
		return value{reduced: true, block: first.block, off: first.off}, nil
	case group > 0 && each == 1 && n == group && int(first.rank)%group == 0:
		return value{rank: first.rank, ranks: int32(n), block: first.block, off: first.off}, nil
	}
	return value{}, fmt.Errorf("combines %d inputs, of %d ranks in groups of %d, from %v on", n, size, group, first)
}

// overlap refuses a source that is partly overwritten while it is read.
func overlap(dst, src *region, dstOff, srcOff, bytes int64) error {
	if d := dstOff - srcOff; dst == src && d != 0 && -bytes < d && d < bytes {
		return errors.New("source and destination overlap")
	}
	return nil
}

// read appends the contents of a place to segs, and tells the memory that they are in.
func (v *verifier) read(s *rankState, ref Ref, bytes int64, segs []segment) ([]segment, *region, error) {
	m, err := v.locate(s, ref, bytes)
	if err != nil {
		return nil, nil, err
	}
	if segs, err = m.read(ref.Off, bytes, segs); err != nil {
		return nil, nil, err
	}
	return segs, m, v.touch(s, m, ref.Off, bytes, false)
}

func (v *verifier) destination(s *rankState, step *Step) (*region, error) {
	answers := step.Dst.Space == Inbox && step.Op == Copy && s.params.Memory
	if !answers && step.Dst.Space != Out && step.Dst.Space != Scratch && step.Dst.Space != PeerOut {
		return nil, fmt.Errorf("writes to %v", step.Dst.Space)
	}
	m, err := v.locate(s, step.Dst, step.Bytes)
	if err == nil && answers {
		err = v.notShared(s, step.Dst)
	}
	return m, err
}

// notShared refuses to write to a message in the inbox that other ranks read too.
func (v *verifier) notShared(s *rankState, ref Ref) error {
	if g := v.ring(int(ref.Peer), s.plan.Rank); g.held[ref.Block-g.released].shared {
		return fmt.Errorf("writes to %v, which others read", ref)
	}
	return nil
}

// locate finds the memory of a place, and refuses one that the rank does not have.
func (v *verifier) locate(s *rankState, ref Ref, bytes int64) (*region, error) {
	var m *region
	switch {
	case ref.Space == In && ref.Block >= 0 && int(ref.Block) < len(s.in):
		m = s.in[ref.Block]
	case ref.Space == Out && ref.Block >= 0 && int(ref.Block) < len(s.out):
		m = s.out[ref.Block]
	case ref.Space == Scratch && ref.Block == 0:
		m = s.scratch
	case ref.Space == Inbox && ref.Peer >= 0 && int(ref.Peer) < v.size:
		g := v.ring(int(ref.Peer), s.plan.Rank)
		if ref.Block < g.released || ref.Block >= g.waited {
			return nil, fmt.Errorf("%v is read before its wait or after its release", ref)
		}
		m = &g.held[ref.Block-g.released].data
	case ref.Space == Outbox && ref.Peer >= 0 && int(ref.Peer) < v.size:
		g := v.ring(s.plan.Rank, int(ref.Peer))
		if ref.Block < 0 || ref.Block >= g.released || !g.reclaimed[ref.Block] || int(g.put-ref.Block) > s.params.Slots {
			return nil, fmt.Errorf("%v is read before it is reclaimed or when its slot is another's", ref)
		}
		m = &g.left[ref.Block].data
	case (ref.Space == PeerIn || ref.Space == PeerOut) && ref.Peer >= 0 && int(ref.Peer) < v.size && ref.Block == 0:
		e := v.exposure(int(ref.Peer), s.plan.Rank)
		if m = e.in; ref.Space == PeerOut {
			m = e.out
		}
		if !e.accessed || m == nil || ref.Off+bytes > e.bytes {
			return nil, fmt.Errorf("%v and %d bytes on is used before its access, or is not exposed", ref, bytes)
		}
		e.used++
	default:
		return nil, fmt.Errorf("this rank has no %v", ref)
	}
	if ref.Off < 0 || ref.Off > m.bytes-bytes {
		return nil, fmt.Errorf("%v and %d bytes on is out of bounds: there are %d", ref, bytes, m.bytes)
	}
	return m, nil
}

// checkEnd checks what the rank r has at the end.
func (v *verifier) checkEnd(r int) error {
	for peer := range v.size {
		if g := v.ring(peer, r); g.released != g.put {
			return fmt.Errorf("of %d messages of rank %d %d were released", g.put, peer, g.released)
		}
	}
	for peer := range v.size {
		g := v.ring(r, peer)
		for n, m := range g.left {
			if m.offered != nil && !g.reclaimed[n] {
				return fmt.Errorf("what message %d offers rank %d has not been reclaimed", n, peer)
			}
		}
		if e := v.exposure(r, peer); e.exposed != e.accessed || e.used != e.usedKnown {
			return fmt.Errorf("rank %d has not said that it is done with this rank's memory", peer)
		}
	}
	s := &v.ranks[r]
	if s.params == nil {
		return nil
	}
	for i, m := range s.out {
		if m.bytes == 0 {
			continue
		}
		want := segment{0, m.bytes, expected(s.params, i)}
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
	q := s.params
	if q.Collective == Send || q.Collective == Recv {
		return nil
	}
	for peer := range v.size {
		if q.Collective.Rooted() && r != q.Root && peer != q.Root {
			continue
		}
		if s.knows[peer] == 0 && peer != r {
			return fmt.Errorf("it has not heard from rank %d", peer)
		}
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
