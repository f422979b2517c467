package plan

import (
	"fmt"
	"slices"
)

// align is the unit in which messages are cut: a cache line, and a whole number of elements.
const align = 64

// PipelineDepth is into how many messages data of at least Thresholds.PipelineMin is cut that would
// else be one.
const PipelineDepth = 4

// Build makes the plan of rank p.Rank. It is a pure function: ranks that give matching parameters
// get plans that fit together. The error says which parameter is wrong.
func Build(p Params) (*Plan, error) {
	if err := p.Check(); err != nil {
		return nil, err
	}
	m, err := p.method()
	if err != nil {
		return nil, fmt.Errorf("plan: %w", err)
	}
	if p.Order == nil {
		return p.build(m.build), nil
	}
	q := p.atPlaces()
	return p.atRanks(q.build(m.build)), nil
}

// build makes the plan by a builder of an algorithm, without asking whether that is right.
func (p *Params) build(steps func(*builder)) *Plan {
	b := builder{
		Params: *p,
		plan:   &Plan{Algorithm: p.Algorithm, Rank: p.Rank, Size: p.Size},
		waits:  make([]int32, p.Size),
		puts:   make([]int32, p.Size),
		src:    make([]Ref, 0, p.Size),
		levels: p.levels(),
	}
	b.Chunk = p.Chunk / p.scale() &^ (align - 1) // so that partial sums of a message fit one
	for i := 1; i < b.Size; i++ {
		b.peers = append(b.peers, b.from(i))
	}
	// The first pass only counts, so that the second allocates once and exactly.
	b.counting = true
	steps(&b)
	b.counting = false
	clear(b.waits)
	clear(b.puts)
	b.plan.Steps = make([]Step, 0, b.steps)
	b.refs = make([]Ref, 0, b.refCount)
	steps(&b)
	return b.plan
}

// Check refuses parameters that no plan could be right for.
func (p *Params) Check() error {
	fail := func(format string, args ...any) error {
		return fmt.Errorf("plan: %v: %s", p.Collective, fmt.Sprintf(format, args...))
	}
	switch {
	case p.Collective != Custom &&
		(int(p.Collective) >= len(methods) || methods[p.Collective] == nil):
		return fail("has no plan")
	case p.Size < 1:
		return fail("size is %d; it must be at least 1", p.Size)
	case p.Rank < 0 || p.Rank >= p.Size:
		return fail("rank is %d; it must be in 0..%d", p.Rank, p.Size-1)
	case p.Chunk < align || p.Chunk%align != 0:
		return fail("chunk is %d; it must be a positive multiple of %d", p.Chunk, align)
	case p.Slots < 2:
		return fail("slots is %d; it must be at least 2", p.Slots)
	}
	if p.Algorithm == Direct && !p.HasDirect() {
		return fail("has no direct plan for %d blocks as short as these", len(p.InBytes))
	}
	if p.Collective == AllToAll && p.WindowMin > 0 && p.Memory {
		return fail("where all ranks share memory only a schedule makes windows")
	}
	if p.GetMin > 0 && !p.Memory {
		return fail("nothing can be got over port channels")
	}
	if p.hasRoot() && (p.Root < 0 || p.Root >= p.Size) {
		return fail("root is %d; it must be in 0..%d", p.Root, p.Size-1)
	}
	if p.hasRoot() && !p.Collective.Rooted() && p.Root == p.Rank {
		return fail("the peer is the rank itself")
	}
	if err := p.checkOrder(fail); err != nil {
		return err
	}
	if p.Collective == Barrier {
		return nil
	}
	if p.ElemSize < 1 || align%p.ElemSize != 0 {
		return fail("element size is %d; it must divide %d", p.ElemSize, align)
	}
	if s := p.PartialSize; s < 0 || s%p.ElemSize != 0 || s > 0 && align%s != 0 ||
		p.Chunk < align*p.scale() {
		return fail("partial sums are of %d bytes; it must be a multiple of the element size, %d, "+
			"that divides %d, and a chunk, %d, must hold those of %d bytes", s, p.ElemSize, align, p.Chunk,
			align)
	}
	return p.checkBlocks(fail)
}

// hasRoot tells whether Root is that of the collective, or its peer.
func (p *Params) hasRoot() bool {
	return p.Collective.Rooted() || p.Collective == Send || p.Collective == Recv
}

// checkBlocks checks how many blocks there are, and how long they are.
func (p *Params) checkBlocks(fail func(format string, args ...any) error) error {
	for _, blocks := range [2][]int64{p.InBytes, p.OutBytes} {
		for i, n := range blocks {
			if n < 0 || n%p.ElemSize != 0 {
				return fail("block %d has %d bytes, which is no number of %d-byte elements", i, n, p.ElemSize)
			}
		}
	}
	in, out := 1, 1 // how many blocks there must be
	switch p.Collective {
	case AllReduce:
		in = max(1, len(p.InBytes))
		out = in
	case AllGather, Gather:
		out = p.Size
	case ReduceScatter, Scatter:
		in = p.Size
	case AllToAll:
		in, out = p.Size, p.Size
	case Broadcast, Recv:
		in = len(p.InBytes)
	case Send:
		out = len(p.OutBytes)
	}
	if len(p.InBytes) != in || len(p.OutBytes) != out {
		return fail("there are %d input and %d output blocks; there must be %d and %d",
			len(p.InBytes), len(p.OutBytes), in, out)
	}
	// What stays on the rank has one length, given twice.
	var own [][2]int64
	switch p.Collective {
	case AllReduce:
		for i := range p.InBytes {
			own = append(own, [2]int64{p.InBytes[i], p.OutBytes[i]})
		}
	case Reduce:
		own = append(own, [2]int64{p.InBytes[0], p.OutBytes[0]})
	case AllGather, Gather:
		own = append(own, [2]int64{p.InBytes[0], p.OutBytes[p.Rank]})
	case ReduceScatter, Scatter:
		own = append(own, [2]int64{p.InBytes[p.Rank], p.OutBytes[0]})
	case AllToAll:
		own = append(own, [2]int64{p.InBytes[p.Rank], p.OutBytes[p.Rank]})
	}
	for _, o := range own {
		if o[0] != o[1] {
			return fail("this rank's own block has %d bytes as input and %d as output", o[0], o[1])
		}
	}
	return nil
}

// builder collects the steps of one rank.
type builder struct {
	Params
	plan  *Plan
	waits []int32 // by peer: how many Waits so far
	puts  []int32 // by peer: how many Puts so far
	src   []Ref   // combine's sources, reused
	also  []Ref   // and its further destinations

	peers  []int // as from counts them
	levels []level
	kept   kept

	counting        bool
	steps, refCount int
	refs            []Ref // what all Src are cut from
}

func (b *builder) emit(s Step, src ...Ref) {
	if b.counting {
		b.steps++
		b.refCount += len(src) + len(s.Also)
		return
	}
	s.Src, s.Also = b.keep(src), b.keep(s.Also)
	b.plan.Steps = append(b.plan.Steps, s)
}

// keep copies references into the memory that was counted for them.
func (b *builder) keep(refs []Ref) []Ref {
	if len(refs) == 0 {
		return nil
	}
	at := len(b.refs)
	b.refs = append(b.refs, refs...)
	return b.refs[at:len(b.refs):len(b.refs)]
}

// put returns the place where the message can be reclaimed.
func (b *builder) put(peer int, src Ref, bytes, total int64) Ref {
	s := Step{Op: Put, Peer: int32(peer), Bytes: bytes, Total: total}
	if bytes == 0 {
		b.emit(s)
	} else {
		b.emit(s, src)
	}
	n := b.puts[peer]
	b.puts[peer]++
	return Ref{Space: Outbox, Peer: int32(peer), Block: n}
}

// putToAll puts the same to every peer.
func (b *builder) putToAll(src Ref, bytes int64) {
	b.emit(Step{Op: PutToAll, Bytes: bytes}, src)
	for peer := range b.puts {
		if peer != b.Rank {
			b.puts[peer]++
		}
	}
}

// multicasts tells whether a block that goes to all is written once for all.
func (b *builder) multicasts(bytes int64) bool {
	return b.Algorithm == Multicast && bytes > 0 && bytes >= b.MulticastMin
}

// offer returns the place where the message can be reclaimed.
func (b *builder) offer(peer int, src Ref, total int64) Ref {
	b.emit(Step{Op: Offer, Peer: int32(peer), Bytes: OfferBytes, Total: total}, src)
	n := b.puts[peer]
	b.puts[peer]++
	return Ref{Space: Outbox, Peer: int32(peer), Block: n}
}

// reclaim takes what the peer has left in a message's slot.
func (b *builder) reclaim(dst, message Ref, bytes int64) {
	b.emit(Step{Op: Reclaim, Peer: message.Peer}, message)
	b.copy(dst, message, bytes)
}

// wait returns the place of the message.
func (b *builder) wait(peer int, bytes, total int64) Ref {
	return b.waitFor(Step{Op: Wait, Peer: int32(peer), Bytes: bytes, Total: total})
}

func (b *builder) waitFor(s Step) Ref {
	b.emit(s)
	n := b.waits[s.Peer]
	b.waits[s.Peer]++
	return Ref{Space: Inbox, Peer: s.Peer, Block: n}
}

func (b *builder) release(peer int) { b.emit(Step{Op: Release, Peer: int32(peer)}) }

func (b *builder) copy(dst, src Ref, bytes int64) {
	if bytes > 0 {
		b.emit(Step{Op: Copy, Bytes: bytes, Dst: dst}, src)
	}
}

// take waits for a message, copies it to dst and releases it.
func (b *builder) take(peer int, dst Ref, bytes, total int64) {
	b.takeBy(Step{Op: Wait, Peer: int32(peer), Bytes: bytes, Total: total}, dst)
}

func (b *builder) takeBy(wait Step, dst Ref) {
	src := b.waitFor(wait)
	b.copy(dst, src, wait.Bytes)
	b.release(int(wait.Peer))
}

// combine waits for one message of every peer, combines them with this rank's own contribution, and
// releases them. The result goes to dst and into the messages of the peers that back names; where
// dst is nothing, only there.
func (b *builder) combine(dst, own Ref, bytes int64, back func(peer int) bool) {
	b.src = b.src[:b.Size]
	b.src[b.Rank] = own
	b.also = b.also[:0]
	for _, peer := range b.peers {
		message := b.wait(peer, bytes, 0)
		b.src[peer] = message
		if back != nil && back(peer) {
			b.also = append(b.also, message)
		}
	}
	if dst.Space == None {
		dst, b.also = b.also[0], b.also[1:]
	}
	if bytes > 0 {
		b.emit(Step{Op: Combine, Bytes: bytes, Dst: dst, Also: b.also}, b.src...)
	}
	for _, peer := range b.peers {
		b.release(peer)
	}
}

// to and from number the peers, i in 1..Size-1, so that in each round of puts every rank writes
// to another one and none is written to by all at once.
func (b *builder) to(i int) int   { return (b.Rank + i) % b.Size }
func (b *builder) from(i int) int { return (b.Rank - i + b.Size) % b.Size }

// fromRoot lets the root hear from all others, from whom nothing else comes to it.
//
// On an oversubscribed host it stays until they have what they want: else it would take a CPU from
// them,
// and soon be waiting for them.
func (b *builder) fromRoot(exchange func()) {
	others, root := b.others(), []int{b.Root}
	// The root must hear at once from a rank that runs this plan in place of a direct one.
	first := !b.Oversubscribed || b.InPlaceOfDirect
	if first {
		b.greet(others, root)
	}
	exchange()
	if first {
		b.heed(others, root)
	}
	if b.Oversubscribed {
		b.greet(others, root)
		b.heed(others, root)
	}
}

// toRoot lets those hear from the root to whom nothing else comes from it.
func (b *builder) toRoot(others []int, exchange func()) {
	root := []int{b.Root}
	b.greet(root, others)
	exchange()
	b.heed(root, others)
}

// greet puts an empty message from each of some ranks to each of others: first of all, so that
// nobody has to wait, once he has what he wants, for what the others still do. It is taken by heed,
// last of all.
func (b *builder) greet(from, to []int) {
	if slices.Contains(from, b.Rank) {
		for _, peer := range to {
			b.put(peer, Ref{}, 0, 0)
		}
	}
}

func (b *builder) heed(from, to []int) {
	if slices.Contains(to, b.Rank) {
		for _, peer := range from {
			b.take(peer, Ref{}, 0, 0)
		}
	}
}

// others is all ranks but the root, as it puts to them.
func (b *builder) others() []int {
	ranks := make([]int, b.Size-1)
	for i := range ranks {
		ranks[i] = (b.Root + i + 1) % b.Size
	}
	return ranks
}

// lag is by how many rounds the waits run behind the puts where each round puts one message to a
// peer and waits for one: the peer then holds at most lag+1 messages, and Slots-1 is what plans
// may count on.
func (b *builder) lag() int { return min(max(b.Ahead, 1), b.Slots-2) }

// count is the number of messages that carry n bytes: at least one, so that also zero bytes are
// told.
func (b *builder) count(n int64) int {
	if b.Size == 1 {
		return 1 // nothing is sent, nothing overlaps
	}
	c := max(1, (n+b.Chunk-1)/b.Chunk)
	if c == 1 && b.PipelineMin > 0 && n >= b.PipelineMin {
		c = min(PipelineDepth, (n+align-1)/align) // none of them empty
	}
	return int(c)
}

// cut is part i of n bytes in as even parts as whole multiples of align allow.
func cut(n int64, parts, i int) (off, bytes int64) {
	units := (n + align - 1) / align
	off = units * int64(i) / int64(parts) * align
	end := min(n, units*int64(i+1)/int64(parts)*align)
	return off, end - off
}

func (r Ref) at(off int64) Ref {
	r.Off += off
	return r
}

func block(s Space, i int) Ref { return Ref{Space: s, Block: int32(i)} }
