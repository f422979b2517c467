package plan

import (
	"fmt"
	"math/rand/v2"
	"slices"
)

// executor runs plans byte by byte, out of place, one step of one rank after another. It shares
// nothing with the verifier but what a value is: it is another opinion of what plans do.
type executor struct {
	plans   []*Plan
	params  []Params
	rnd     *rand.Rand
	rings   [][]direction // by receiver and sender
	memory  []memory
	stages  [][][]value
	exposed map[[2]int]*Step   // by owner and user
	offered map[[3]int][]value // by owner, user and message
	heard   []map[int]bool     // by rank: of whom it has heard
	came    [][][]bool         // by rank, input block and byte, whether it is there; nil: no feeds
	fault   string             // what went wrong
	next    []int
}

// memory is a rank's memory.
type memory struct{ in, out, scratch [][]value }

// direction is one direction of a channel, with all that it has ever carried.
type direction struct {
	messages         [][]value
	told             []map[int]bool // what the sender had heard; from the release on, the receiver
	shared           map[int]bool   // messages that lie in their sender's stage
	waited, released int
	known            int // of the releases, how many the sender knows
}

func newExecutor(plans []*Plan, params []Params, rnd *rand.Rand) *executor {
	size := len(plans)
	e := &executor{
		plans: plans, params: params, rnd: rnd,
		rings: make([][]direction, size), memory: make([]memory, size),
		stages: make([][][]value, size), exposed: map[[2]int]*Step{},
		offered: map[[3]int][]value{}, heard: make([]map[int]bool, size), next: make([]int, size),
	}
	for r, q := range params {
		e.rings[r], e.heard[r] = make([]direction, size), map[int]bool{r: true}
		m := &e.memory[r]
		for i, n := range q.InBytes {
			m.in = append(m.in, input(r, i, n))
		}
		for i, n := range q.OutBytes {
			m.out = append(m.out, make([]value, n))
			if q.Collective == Broadcast && r == q.Root {
				m.out[i] = input(r, i, n)
			}
		}
		m.scratch = [][]value{make([]value, plans[r].ScratchBytes)}
	}
	return e
}

func input(rank, block int, bytes int64) []value {
	m := make([]value, bytes)
	for i := range m {
		m[i] = value{rank: int32(rank), block: int32(block), off: int64(i)}
	}
	return m
}

// run runs the plans to their ends, at random: a rank goes on for some steps, then another. It says
// what went wrong.
func (e *executor) run(peaks []Peaks) string {
	most := []int{1, 5, 1 << 20}[e.rnd.IntN(3)]
	for moved := true; moved; {
		moved = false
		for _, r := range e.rnd.Perm(len(e.plans)) {
			e.early(r)
			for range 1 + e.rnd.IntN(most) {
				if e.next[r] == len(e.plans[r].Steps) || !e.do(r, &e.plans[r].Steps[e.next[r]]) {
					break
				}
				e.next[r]++
				moved = true
				e.look(peaks)
				if e.fault != "" {
					return e.fault
				}
			}
		}
	}
	for r, p := range e.plans {
		if e.next[r] < len(p.Steps) {
			return "deadlock"
		}
	}
	return e.checkEnd()
}

// place is memory that a step names; where n is negative, all of it from there on.
func (e *executor) place(r int, ref Ref, n int64) []value {
	if ref.Space == PeerIn || ref.Space == PeerOut {
		for _, of := range e.exposed[[2]int{int(ref.Peer), r}].Src {
			if of.Space == In == (ref.Space == PeerIn) {
				of.Off += ref.Off
				ref, r = of, int(ref.Peer)
				break
			}
		}
	}
	var m []value
	switch ref.Space {
	case In:
		m = e.memory[r].in[ref.Block]
	case Out:
		m = e.memory[r].out[ref.Block]
	case Scratch:
		m = e.memory[r].scratch[0]
	case Inbox:
		m = e.rings[r][ref.Peer].messages[ref.Block]
	case Outbox:
		m = e.rings[ref.Peer][r].messages[ref.Block]
	}
	if n < 0 {
		return m[ref.Off:]
	}
	return m[ref.Off : ref.Off+n]
}

// do does a step, or says that it is blocked.
func (e *executor) do(r int, s *Step) bool {
	switch s.Op {
	case Put, Offer:
		return e.put(r, s)
	case PutToAll:
		return e.share(r, s)
	case Wait:
		d := &e.rings[r][s.Peer]
		if d.waited == len(d.messages) {
			return false
		}
		if int64(len(d.messages[d.waited])) != s.Bytes {
			e.fault = "a message of another length"
		}
		e.hear(r, d.told[d.waited])
		d.waited++
	case Release:
		d := &e.rings[r][s.Peer]
		if !e.params[r].Memory {
			clear(d.messages[d.released])
		}
		d.told[d.released] = e.told(r)
		d.released++
	case Expose:
		e.exposed[[2]int{r, int(s.Peer)}] = s
	case Access:
		return e.exposed[[2]int{int(s.Peer), r}] != nil
	case Reclaim:
		d, n := &e.rings[s.Peer][r], int(s.Src[0].Block)
		if d.released <= n {
			return false
		}
		e.hear(r, d.told[n])
	case Get:
		from := e.offered[[3]int{int(s.Peer), r, int(s.Src[0].Block)}]
		copy(e.place(r, s.Dst, s.Bytes), from[s.Src[0].Off:])
	case Copy:
		copy(e.place(r, s.Dst, s.Bytes), e.place(r, s.Src[0], s.Bytes))
	case Combine:
		e.combine(r, s)
	case Need:
		e.come(r, s.Src[0].Block, s.Src[0].Off, s.Src[0].Off+s.Bytes)
	case Final:
		for k, got := range e.place(r, s.Dst, s.Bytes) {
			if got != expected(&e.params[r], int(s.Dst.Block)).plus(s.Dst.Off+int64(k)) {
				e.fault = fmt.Sprintf("byte %d of output %d is not final", k, s.Dst.Block)
			}
		}
	}
	return true
}

func (e *executor) put(r int, s *Step) bool {
	d := &e.rings[s.Peer][r]
	if d.known = max(d.known, d.released-e.rnd.IntN(2)); e.params[r].Memory {
		d.known = d.released
	}
	if len(d.messages)-d.known == e.params[r].Slots {
		return false
	}
	var data []value
	switch {
	case s.Op == Offer:
		data = make([]value, OfferBytes)
		e.offered[[3]int{r, int(s.Peer), len(d.messages)}] = e.place(r, s.Src[0], -1)
	case s.Bytes > 0:
		data = slices.Clone(e.place(r, s.Src[0], s.Bytes))
	}
	if old := len(d.messages) - e.params[r].Slots; old >= 0 {
		if !d.shared[old] {
			clear(d.messages[old]) // its slot is used again
		}
		e.hear(r, d.told[old])
	}
	d.messages, d.told = append(d.messages, data), append(d.told, e.told(r))
	return true
}

func (e *executor) share(r int, s *Step) bool {
	for peer := range e.plans {
		d := &e.rings[peer][r]
		if peer != r && len(d.messages)-d.released == e.params[r].Slots {
			return false
		}
	}
	data := slices.Clone(e.place(r, s.Src[0], s.Bytes))
	if old := len(e.stages[r]) - e.params[r].Slots; old >= 0 {
		clear(e.stages[r][old])
	}
	e.stages[r] = append(e.stages[r], data)
	for peer := range e.plans {
		d := &e.rings[peer][r]
		if peer == r {
			continue
		}
		if d.shared == nil {
			d.shared = map[int]bool{}
		}
		if old := len(d.messages) - e.params[r].Slots; old >= 0 {
			e.hear(r, d.told[old])
		}
		d.shared[len(d.messages)] = true
		d.messages, d.told = append(d.messages, data), append(d.told, e.told(r))
	}
	return true
}

func (e *executor) combine(r int, s *Step) {
	q := &e.params[r]
	staged, from, to := q.PartialSize > 0, q.ElemSize, q.ElemSize
	if s.Stage == Middle || s.Stage == Last {
		from = q.PartialSize
	}
	if s.Stage == First || s.Stage == Middle {
		to = q.PartialSize
	}
	results := make([]value, s.Bytes/from*to)
	for i := range s.Bytes {
		first := e.place(r, s.Src[0], s.Bytes)[i]
		bounds := []int{int(first.rank)} // between the ranks of one source and the next
		for k, ref := range s.Src {
			got := e.place(r, ref, s.Bytes)[i]
			if got.reduced || int(got.rank) != bounds[k] || got.block != first.block ||
				got.off != first.off {
				e.fault = fmt.Sprintf("a wrong source %d", k)
			}
			if staged && (got.ranks > 0) != (s.Stage == Middle || s.Stage == Last) {
				e.fault = fmt.Sprintf("a source %d of another stage", k)
			}
			bounds = append(bounds, int(got.rank+max(got.ranks, 1)))
		}
		if !canonical(bounds, len(e.plans)) {
			e.fault = "a wrong order"
		}
		result := first
		result.ranks = int32(bounds[len(s.Src)] - bounds[0])
		whole := int(result.ranks) == len(e.plans)
		if staged && whole != (s.Stage == Whole || s.Stage == Last) {
			e.fault = "a result of another stage"
		}
		if whole {
			result = value{reduced: true, block: first.block, off: first.off}
		}
		for k := range to { // of the element
			result.off = first.off/from*to + k
			results[i/from*to+k] = result
		}
	}
	for _, ref := range append([]Ref{s.Dst}, s.Also...) {
		copy(e.place(r, ref, int64(len(results))), results)
	}
}

// canonical tells whether each node of the tree in which sources are combined, with so many ranks
// between two bounds, is one of the canonical tree over all ranks.
func canonical(bounds []int, size int) bool {
	sources := len(bounds) - 1
	lo, hi := bounds[0], bounds[sources]
	block := 1
	for block < hi-lo {
		block *= 2
	}
	if lo%block != 0 || hi != min(lo+block, size) {
		return false
	}
	if sources == 1 {
		return true
	}
	half := 1
	for 2*half < sources {
		half *= 2
	}
	return canonical(bounds[:half+1], size) && canonical(bounds[half:], size)
}

// told is of whom a rank has heard, for others to hear.
func (e *executor) told(r int) map[int]bool {
	told := map[int]bool{}
	for peer := range e.heard[r] {
		told[peer] = true
	}
	return told
}

func (e *executor) hear(r int, told map[int]bool) {
	for peer := range told {
		e.heard[r][peer] = true
	}
}

// look compares what is under way now with what may be.
func (e *executor) look(peaks []Peaks) {
	for r, most := range peaks {
		var now Peaks
		lying := func(d *direction) (all int64) {
			for _, m := range d.messages[d.released:] {
				n := int64(len(m))
				all += n
				if n <= e.params[r].Chunk { // a longer one goes straight to its place
					now.Staging += n
				}
			}
			return all
		}
		for peer := range e.plans {
			sent, received := lying(&e.rings[peer][r]), lying(&e.rings[r][peer])
			now.Sent, now.Received = now.Sent+sent, now.Received+received
			if received > 0 {
				now.Incast++
			}
			if sent+received > 0 {
				now.Pairs++
			}
		}
		if now.Pairs > most.Pairs || now.Incast > most.Incast || now.Sent > most.Sent ||
			now.Received > most.Received || now.Staging > most.Staging {
			e.fault = fmt.Sprintf("rank %d has %+v under way, and %+v at most", r, now, most)
		}
	}
}

func (e *executor) checkEnd() string {
	for r, p := range e.params {
		for peer := range e.plans {
			if d := &e.rings[r][peer]; d.released != len(d.messages) {
				return "a message is left"
			}
			told := !p.Collective.Rooted() || r == p.Root || peer == p.Root
			if told && !e.heard[r][peer] {
				return fmt.Sprintf("rank %d has not heard from rank %d", r, peer)
			}
		}
		if r != p.Root && (p.Collective == Reduce || p.Collective == Gather) {
			continue
		}
		for i, m := range e.memory[r].out {
			for k, got := range m {
				if got != expected(&e.params[r], i).plus(int64(k)) {
					return fmt.Sprintf("rank %d: a wrong byte %d of output %d", r, k, i)
				}
			}
		}
	}
	return ""
}
