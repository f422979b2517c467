package blocks

import (
	"errors"
	"fmt"
	"slices"

	"github.com/goccl/goccl/core/program"
)

// runner runs a plan three times in a row, one op of a block after another, blocks by turns.
//
// Each block has two clocks of all blocks: of what it has seen of their memory, and of what it
// knows that they have done. A relaxed signal tells the second only. Who reads a packet hears what
// its writer had seen by then.
type runner struct {
	*Plan
	cut
	blocks   []block
	order    []int // of the plan's blocks: by rank
	ranks    []rankState
	counters []counter
	memory
	moves   []program.Move // of the first run
	touches int
	work    *int // done so far, for all cuts
}

// step is an op as it is done, or a part of one.
type step struct {
	*Op
	moves []move
	op    *Op // as errors call it
}

// move is a transfer of places.
type move struct{ to, from []span }

// span is places in succession.
type span struct {
	rank, first, count int32
	ref                *Ref
}

// clock is how many steps of each block, and how many runs of each rank.
type clock []int32

func (c clock) join(other clock) {
	for i, n := range other {
		if n > c[i] {
			c[i] = n
		}
	}
}

// clocks are what a block tells others. What it had seen when its run began it tells even where it
// orders no memory, as the end of a run does.
type clocks struct{ seen, known, base clock }

type block struct {
	*Block
	index    int
	steps    []step
	next     int
	run      int
	clocks   clocks
	arrived  int      // the generation of the barrier in which it waits, counted from 1; 0: in none
	watched  bool     // ops of other blocks wait for some of its
	finished []clocks // by op, if it is watched
}

type rankState struct {
	blocks   []*block
	run      int
	barriers map[int]*barrier
}

type barrier struct {
	generation int
	waiting    []*block
}

// counter is one in all runs.
type counter struct {
	posts  [runs]map[int][]clocks // by block
	posted [runs]int
	taken  [runs]int
	totals map[int]int // by block: in a run
	total  int         // of all blocks
	taker  int
}

func newRunner(p *Plan, c cut, work *int) (*runner, error) {
	r := &runner{Plan: p, cut: c, work: work, blocks: make([]block, len(p.Blocks)),
		ranks: make([]rankState, p.Ranks), counters: make([]counter, len(p.Counters))}
	if err := r.lay(); err != nil {
		return nil, err
	}
	r.order = make([]int, len(p.Blocks))
	for i := range r.order {
		r.order[i] = i
	}
	slices.SortStableFunc(r.order, func(a, b int) int { return p.Blocks[a].Rank - p.Blocks[b].Rank })
	for i := range r.ranks {
		r.ranks[i].barriers = map[int]*barrier{}
	}
	for i := range r.counters {
		r.counters[i].totals, r.counters[i].taker = map[int]int{}, -1
	}
	steps := 0
	for i := range p.Blocks {
		b := &r.blocks[i]
		b.Block, b.index = &p.Blocks[i], i
		if b.Rank < 0 || b.Rank >= p.Ranks {
			return nil, fmt.Errorf("block %d is of rank %d; there are ranks 0 to %d", b.ID, b.Rank,
				p.Ranks-1)
		}
		if err := r.expand(b); err != nil {
			return nil, err
		}
		steps += len(b.steps)
		r.ranks[b.Rank].blocks = append(r.ranks[b.Rank].blocks, b)
	}
	if all := steps * (len(p.Blocks) + p.Ranks); all > mostClocks {
		return nil, fmt.Errorf("%d steps of %d blocks on %d ranks are too many to be checked", steps,
			len(p.Blocks), p.Ranks)
	}
	n := len(p.Blocks) + p.Ranks
	for i := range r.blocks {
		r.blocks[i].clocks = clocks{make(clock, n), make(clock, n), nil}
	}
	*work += len(r.all) + r.touches*accessWork*runs
	r.expectReads()
	return r, r.checkCounts()
}

// expand makes the steps of a block.
func (r *runner) expand(b *block) error {
	for i := range b.Ops {
		op := &b.Ops[i]
		if len(op.Body) == 0 {
			if err := r.addStep(b, op, op, 0, -1); err != nil {
				return err
			}
			continue
		}
		if op.Unit/r.unit > mostRounds*mostParts {
			return fmt.Errorf("%s: units of %d bytes have no common size with those of other pipelines",
				b.where(op), op.Unit)
		}
		for round := range r.count(op) {
			for k := range op.Body {
				if err := r.addStep(b, &op.Body[k], op, round*r.round(op), r.round(op)); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// addStep adds one step: of so many places of each of an op's, from one on; -1: all.
func (r *runner) addStep(b *block, op, named *Op, from, count int) error {
	s := step{Op: op, op: named}
	for k := range op.Transfers {
		t := &op.Transfers[k]
		m := move{}
		for i := range t.To {
			m.to = append(m.to, r.span(op, &t.To[i], from, count))
		}
		for i := range t.From {
			m.from = append(m.from, r.span(op, &t.From[i], from, count))
		}
		if m.to[0].count > 0 {
			s.moves = append(s.moves, m)
			r.touches += int(m.to[0].count) * (len(m.to) + len(m.from))
		}
	}
	r.touches += stepTouches
	if r.touches > mostTouches {
		return fmt.Errorf("%s: up to here ops name more than %d places, which are too many to be checked",
			b.where(named), mostTouches)
	}
	for _, n := range op.Posts {
		r.counters[n].totals[b.index]++
		r.counters[n].total++
	}
	for _, n := range op.Takes {
		c := &r.counters[n]
		if c.taker >= 0 && c.taker != b.index {
			other := &r.blocks[c.taker]
			return fmt.Errorf("%s: waits for %s, as block %d of rank %d does, too: one block only may",
				b.where(named), r.Counters[n].Name, other.ID, other.Rank)
		}
		c.taker = b.index
		c.taken[0]++ // counted here, and set back
	}
	b.steps = append(b.steps, s)
	return nil
}

// span is the part of a place that a step is about.
func (r *runner) span(op *Op, ref *Ref, from, count int) span {
	first, n := 0, ref.Count*r.cells
	if op.Parts > 1 {
		each, rest := n/op.Parts, n%op.Parts
		first = op.Part*each + min(op.Part, rest)
		if n = each; op.Part < rest {
			n++
		}
	}
	if count >= 0 {
		first += min(from, n)
		n = min(count, n-min(from, n))
	}
	return span{int32(ref.Rank), int32(r.number(ref) + first), int32(n), ref}
}

// checkCounts refuses counters that are not the same after a run, and barriers to which other
// blocks come than they are for.
func (r *runner) checkCounts() error {
	type named struct {
		b  *block
		op *Op
	}
	users := map[int]named{}
	barriers := map[[2]int]map[int]bool{}
	for i := range r.blocks {
		b := &r.blocks[i]
		for k := range b.steps {
			s := &b.steps[k]
			for _, counters := range [][]int{s.Posts, s.Takes} {
				for _, n := range counters {
					if _, ok := users[n]; !ok {
						users[n] = named{b, s.op}
					}
				}
			}
			if s.Blocks > 0 {
				at := [2]int{b.Rank, s.Barrier}
				if barriers[at] == nil {
					barriers[at] = map[int]bool{}
				}
				barriers[at][i] = true
			}
			for _, p := range s.After {
				if p.Block < 0 || p.Block >= len(r.blocks) || r.blocks[p.Block].Rank != b.Rank ||
					p.Op < 0 || p.Op >= len(r.Plan.Blocks[p.Block].Ops) {
					return fmt.Errorf("%s: waits for an op that is not there", b.where(s.op))
				}
				r.blocks[p.Block].watched = true
			}
		}
	}
	for n := range r.counters {
		c := &r.counters[n]
		if takes := c.taken[0]; c.total != takes {
			at := users[n]
			return fmt.Errorf("%s: %s is signalled %d times in a run, and waited for %d times; both must "+
				"be as many", at.b.where(at.op), r.Counters[n].Name, c.total, takes)
		}
		c.taken[0] = 0
	}
	for i := range r.blocks {
		for k := range r.blocks[i].steps {
			s, b := &r.blocks[i].steps[k], &r.blocks[i]
			if got := len(barriers[[2]int{b.Rank, s.Barrier}]); s.Blocks > 0 && got != s.Blocks {
				return fmt.Errorf("%s: barrier %d is for %d blocks, but %d come to it", b.where(s.op),
					s.Barrier, s.Blocks, got)
			}
		}
	}
	return nil
}

// run runs all.
func (r *runner) run() error {
	for rank := range r.ranks {
		r.begin(rank, 0)
	}
	for moved := true; moved; {
		moved = false
		for _, i := range r.order {
			b := &r.blocks[i]
			if b.run == runs || b.next == len(b.steps) {
				continue
			}
			done, err := r.do(b)
			if err == nil && *r.work > mostWork {
				err = errors.New("up to here there is too much to be checked")
			}
			if err != nil {
				return fmt.Errorf("%s: %w", b.where(b.steps[b.next].op), err)
			}
			if done {
				b.next++
				moved = true
			}
		}
		for rank := range r.ranks {
			ended, err := r.end(rank)
			if err != nil {
				return err
			}
			moved = moved || ended
		}
	}
	for _, i := range r.order {
		if b := &r.blocks[i]; b.run < runs && b.next < len(b.steps) {
			s := &b.steps[b.next]
			return fmt.Errorf("%s: waits for ever in run %d of the plan%s", b.where(s.op), b.run+1,
				r.reason(b, s))
		}
	}
	return nil
}

// reason tells for what a step waits.
func (r *runner) reason(b *block, s *step) string {
	for _, p := range s.After {
		if q := &r.blocks[p.Block]; len(q.finished) <= p.Op {
			return ": for " + q.where(&q.Ops[p.Op])
		}
	}
	for _, n := range s.Takes {
		if !r.mayTake(b, n) {
			return ": for " + r.Counters[n].Name
		}
	}
	if s.Blocks > 0 {
		return fmt.Sprintf(": for the other blocks of barrier %d", s.Barrier)
	}
	for i := range s.moves {
		for _, from := range s.moves[i].from {
			if from.ref.Packet && !from.ref.Ready && !r.hasCome(b, from) {
				return fmt.Sprintf(": for %v", *from.ref)
			}
		}
	}
	return ""
}

// begin begins a run of a rank.
func (r *runner) begin(rank, run int) {
	state := &r.ranks[rank]
	state.run = run
	for _, b := range state.blocks {
		b.run, b.next, b.finished = run, 0, b.finished[:0]
		b.clocks.known[len(r.blocks)+rank] = int32(run) + 1
		b.clocks.base = slices.Clone(b.clocks.seen)
	}
}

// end ends a run of a rank, and begins its next one, if all its blocks are done.
func (r *runner) end(rank int) (bool, error) {
	state := &r.ranks[rank]
	if state.run == runs {
		return false, nil
	}
	for _, b := range state.blocks {
		if b.next < len(b.steps) {
			return false, nil
		}
	}
	n := len(r.blocks) + r.Plan.Ranks
	all := clocks{make(clock, n), make(clock, n), nil}
	for _, b := range state.blocks {
		all.seen.join(b.clocks.seen)
		all.known.join(b.clocks.known)
	}
	if err := r.giveBack(rank, all.known); err != nil {
		return false, err
	}
	for _, b := range state.blocks {
		copy(b.clocks.seen, all.seen)
		copy(b.clocks.known, all.known)
	}
	r.begin(rank, state.run+1)
	return true, nil
}

// told is what a block tells where it posts.
func (b *block) told(relaxed bool) clocks {
	told := clocks{b.clocks.base, slices.Clone(b.clocks.known), b.clocks.base}
	if !relaxed {
		told.seen = slices.Clone(b.clocks.seen)
	}
	return told
}

// hear has a block take in what it is told.
func (r *runner) hear(b *block, t clocks, relaxed bool) {
	*r.work += len(t.known)
	b.clocks.known.join(t.known)
	b.clocks.seen.join(t.base)
	if !relaxed {
		b.clocks.seen.join(t.seen)
	}
}

// do does the next step of a block, if it need not wait.
func (r *runner) do(b *block) (bool, error) {
	s := &b.steps[b.next]
	for _, p := range s.After {
		if len(r.blocks[p.Block].finished) <= p.Op {
			return false, nil
		}
	}
	for _, n := range s.Takes {
		if !r.mayTake(b, n) {
			return false, nil
		}
	}
	if s.Blocks > 0 && !r.meet(b, s) {
		return false, nil
	}
	for i := range s.moves {
		for _, from := range s.moves[i].from {
			if from.ref.Packet && !from.ref.Ready && !r.hasCome(b, from) {
				return false, nil
			}
		}
	}
	for _, p := range s.After {
		r.hear(b, r.blocks[p.Block].finished[p.Op], false)
	}
	for _, n := range s.Takes {
		r.take(b, n, s.Relaxed)
	}
	b.clocks.seen[b.index]++
	b.clocks.known[b.index]++
	told := r.hearPackets(b, s)
	for i := range s.moves {
		if err := r.move(b, s, &s.moves[i], told); err != nil {
			return false, err
		}
	}
	posted := clocks{}
	if len(s.Posts) > 0 {
		posted = b.told(s.Relaxed)
	}
	for _, n := range s.Posts {
		c := &r.counters[n]
		if c.posts[b.run] == nil {
			c.posts[b.run] = map[int][]clocks{}
		}
		c.posts[b.run][b.index] = append(c.posts[b.run][b.index], posted)
		c.posted[b.run]++
	}
	if b.watched {
		b.finished = append(b.finished, b.told(false))
	}
	return true, nil
}

// hearPackets has a block hear of those who have written the packets that a step reads, and returns
// what it tells by those that it writes, if any.
func (r *runner) hearPackets(b *block, s *step) *clocks {
	writes := false
	for i := range s.moves {
		for _, from := range s.moves[i].from {
			var last *clocks
			for k := range from.count {
				if !from.ref.Packet || from.ref.Ready {
					break
				}
				if c := r.at(from, k, b.run); c.told != last {
					r.hear(b, *c.told, false)
					last = c.told
				}
			}
		}
		for _, to := range s.moves[i].to {
			writes = writes || to.ref.Packet
		}
	}
	if !writes {
		return nil
	}
	told := b.told(false)
	return &told
}

// mayTake reports whether a block may take from a counter.
func (r *runner) mayTake(b *block, n int) bool {
	c, need := &r.counters[n], 0
	for _, k := range b.steps[b.next].Takes {
		if k == n {
			need++ // an op may take more than one
		}
	}
	return r.Counters[n].Initial+c.posted[b.run]-c.taken[b.run] >= need
}

// take takes from a counter. The block hears of those posts that have been before, in whatever
// order the others have come.
func (r *runner) take(b *block, n int, relaxed bool) {
	c := &r.counters[n]
	c.taken[b.run]++
	for poster, count := range c.totals {
		sure := c.taken[b.run] - r.Counters[n].Initial - (c.total - count)
		if posts := c.posts[b.run][poster]; sure > 0 && sure <= len(posts) {
			r.hear(b, posts[sure-1], relaxed)
		}
	}
}

// meet has a block wait in a barrier, and reports whether all have come.
func (r *runner) meet(b *block, s *step) bool {
	barriers := r.ranks[b.Rank].barriers
	at := barriers[s.Barrier]
	if at == nil {
		at = &barrier{}
		barriers[s.Barrier] = at
	}
	if b.arrived > 0 {
		if at.generation < b.arrived {
			return false
		}
		b.arrived = 0
		return true
	}
	at.waiting = append(at.waiting, b)
	if len(at.waiting) < s.Blocks {
		b.arrived = at.generation + 1
		return false
	}
	all := b.told(false)
	for _, other := range at.waiting {
		all.seen.join(other.clocks.seen)
		all.known.join(other.clocks.known)
	}
	for _, other := range at.waiting {
		r.hear(other, all, false)
	}
	at.waiting, at.generation = at.waiting[:0], at.generation+1
	return true
}
