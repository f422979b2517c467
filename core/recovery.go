package core

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"runtime"
	"slices"
	"unsafe"

	"github.com/goccl/goccl/core/call"
	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/plan"
	"github.com/goccl/goccl/core/reduce"
	"github.com/goccl/goccl/core/work"
)

// With Config.Recovery "survivors" a collective in which a member dies does not fail. Its work is
// held, the members that are left recover by themselves, and then it completes:
//
//   - Where a survivor has its result, all others get that, with the dead one's contribution.
//   - Else it runs once more among the survivors, on the inputs that it was called with.
//
// No rank is through a collective before it has heard from all others, which plans are proved to
// do. So one that a rank has ended has at least begun on all, and the results of the last ones are
// all that can be asked for. Short results are copied when they end. A work with long ones, or with
// a reduction to one rank, ends only when all ranks have them: a barrier follows, as a part of it.
// Where the output is the input's memory, the input is copied before.

// completesMost is the most bytes of a collective that completes. A longer one fails, on all ranks.
const completesMost = 128 << 20

// completes tells whether survivors complete a collective.
func completes(op *call.Operation) bool {
	switch op.Collective {
	case plan.AllReduce, plan.Reduce, plan.Broadcast:
		return op.Total() <= completesMost
	case plan.Barrier:
		return true
	}
	return false
}

func (c *Comm) recovers() bool { return c.config.Recovery == RecoverySurvivors }

// resultMost is how many bytes a result has at most that is kept: where a message takes longer than
// a copy, more are.
func (c *epoch) resultMost() int {
	if c.shape.AllMemory {
		return 64 << 10
	}
	return 512 << 10
}

// held is a work that does not end as long as the members recover.
type held struct {
	*work.Work
	of         *epoch // that it was started in: its parts have numbers of it
	operations []call.Operation
	before     []image

	// What the members of that epoch have decided. All hold on to it where another member dies before
	// they have completed: some may have.
	again  []call.Operation // to be run in the present epoch
	awaits bool             // results are passed on
	cause  *fault.Error     // it cannot be completed
}

// image is what memory had in it.
type image struct {
	at   unsafe.Pointer
	data []byte
}

// confirms tells whether a barrier must follow some operations that survivors complete.
func (c *epoch) confirms(operations []call.Operation) bool {
	return slices.ContainsFunc(operations, func(op call.Operation) bool {
		return op.Collective == plan.Reduce || op.Total() > uint64(c.resultMost())
	})
}

// holds tells whether works that end with a cause are held. It is called with the lock held.
func (c *epoch) holds(cause *fault.Error) bool {
	return c.recovering != nil && errors.Is(cause, fault.ErrPeerFailed)
}

// holdOnFailure has a work held where a member dies. Before has the inputs that are already lost.
func (c *epoch) holdOnFailure(w *Work, operations []call.Operation, before []image) *held {
	h := &held{Work: w, of: c, operations: operations, before: before}
	for i := range operations {
		if before == nil {
			h.save(&operations[i])
		}
	}
	w.UseHolder(h)
	return h
}

// Hold implements work.Holder.
func (h *held) Hold(err *fault.Error) bool {
	h.of.mu.Lock()
	defer h.of.mu.Unlock()
	if !h.of.holds(err) {
		return false
	}
	h.of.held = append(h.of.held, h)
	return true
}

// Ended implements work.Holder: it gives the copies of inputs back.
func (h *held) Ended() {
	for i := range h.before {
		h.of.runtime.images.Put(&h.before[i].data)
	}
}

// save copies the inputs that the operation overwrites.
func (h *held) save(op *call.Operation) {
	in, out := op.Uses(h.of.rank)
	if !in || !out || op.Collective == plan.Broadcast {
		return
	}
	for i, bytes := range op.InBytes() {
		if slices.Contains(op.Out, op.In[i]) {
			data := h.of.runtime.image(int(bytes))
			copy(data, unsafe.Slice((*byte)(op.In[i]), bytes))
			h.before = append(h.before, image{op.In[i], data})
		}
	}
}

// lost is the input of a collective that a caller in C has begun, if it has the output's memory.
func (c *epoch) lost(op *call.Operation) []image {
	in, out := op.Uses(c.rank)
	if !in || !out || op.Collective != plan.AllReduce || op.In[0] != op.Out[0] {
		return []image{}
	}
	return []image{{op.In[0], c.fast.Before(int(op.InBytes()[0]))}}
}

// leftUndone notes that a collective has not ended here. It is called with the lock held.
func (c *epoch) leftUndone(sequence uint64) {
	if c.firstUndone == 0 || sequence < c.firstUndone {
		c.firstUndone = sequence
	}
}

// image is memory for a copy: what has been used costs less than fresh memory.
func (r *Runtime) image(bytes int) []byte {
	if b, ok := r.images.Get().(*[]byte); ok && cap(*b) >= bytes {
		return (*b)[:bytes]
	}
	return make([]byte, bytes)
}

// keepResult copies the result of a collective that has ended, if others may ask for it.
func (c *epoch) keepResult(p *work.Part) {
	op := p.Operation
	if _, out := op.Uses(c.rank); c.recovers() && completes(op) && out {
		c.fast.Keep(p.Message.Sequence, op.Out, op.OutBytes())
	}
}

// progress is how far a rank has come in an epoch: what it tells the others when it recovers.
type progress struct {
	Finished uint64   // the last collective that has ended here, or whose result is here
	Has      []result `json:",omitempty"` // of the last ones
}

type result struct {
	Sequence uint64
	Bytes    uint64
}

// progress is called when no collective runs any more.
func (c *epoch) progress() (p progress) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p.Finished = c.Sequence()
	if c.firstUndone > 0 {
		p.Finished = c.firstUndone - 1
	}
	for s := p.Finished; s > 0 && s+2 > p.Finished; s-- {
		if op := c.heldPart(s); op != nil {
			p.Has = append(p.Has, result{s, total(op.OutBytes())})
		} else if data, ok := c.fast.Kept(s); ok {
			p.Has = append(p.Has, result{s, uint64(len(data))})
		}
	}
	return p
}

// total is the sum of the lengths of blocks.
func total(bytes []int64) (sum uint64) {
	for _, n := range bytes {
		sum += uint64(n)
	}
	return sum
}

// resultOf is what a collective has given that has ended, where it is still here. It is called with
// the lock held.
func (c *epoch) resultOf(sequence uint64) (data []byte, ok bool) {
	if op := c.heldPart(sequence); op != nil {
		for i, bytes := range op.OutBytes() {
			data = append(data, unsafe.Slice((*byte)(op.Out[i]), bytes)...)
		}
		return data, true
	}
	return c.fast.Kept(sequence)
}

// results are those that this rank passes on.
func (c *epoch) results(d *decision) map[uint64][]byte {
	all := map[uint64][]byte{}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, f := range d.verdict.Fetch {
		if f.From == c.rank {
			all[f.Sequence], _ = c.resultOf(f.Sequence)
		}
	}
	return all
}

// heldPart is the operation of a number, if its work is held.
func (c *epoch) heldPart(sequence uint64) *call.Operation {
	for _, h := range c.held {
		for _, p := range h.Parts() {
			if h.of == c && p.Message.Sequence == sequence {
				return p.Operation
			}
		}
	}
	return nil
}

// fetch is a result that some survivors have and others lack.
type fetch struct {
	result
	From int // the rank that has it, of the old epoch
}

// fetches are the results that are to be passed on, of what ranks have come to; and the last
// collective that has ended anywhere.
func fetches(of map[int]progress) (finished uint64, all []fetch) {
	least := uint64(1<<63 - 1)
	for _, p := range of {
		finished, least = max(finished, p.Finished), min(least, p.Finished)
	}
	for _, rank := range slices.Sorted(maps.Keys(of)) {
		for _, r := range of[rank].Has {
			known := slices.ContainsFunc(all, func(f fetch) bool { return f.Sequence == r.Sequence })
			if !known && r.Sequence > least && r.Sequence <= finished {
				all = append(all, fetch{r, rank})
			}
		}
	}
	slices.SortFunc(all, func(a, b fetch) int { return cmp.Compare(a.Sequence, b.Sequence) })
	return finished, all
}

// recovery is one that a communicator has begun by itself. It ends in the communicator's timeout,
// counted anew where another member dies meanwhile, or when it is given up.
type recovery struct {
	done   chan struct{} // closed at its end
	giveUp context.CancelFunc
}

// awaitRecovery begins a recovery: works that a death ends are held from now on. It is called with
// the lock held, once the epoch has failed.
func (c *epoch) awaitRecovery(cause *fault.Error) {
	if c.recovers() && errors.Is(cause, fault.ErrPeerFailed) && !c.destroyed &&
		c.recovering == nil && c.enoughAfter(cause) {
		ctx, giveUp := context.WithCancel(c.life)
		c.recovering = &recovery{make(chan struct{}), giveUp}
		go c.Comm.recoverAlone(ctx)
	}
}

// enoughAfter tells whether the members that are left need no newcomers. It is called with the lock
// held.
func (c *epoch) enoughAfter(cause *fault.Error) bool {
	gone := slices.Concat(c.membership.Departed(), cause.Ranks)
	slices.Sort(gone)
	return c.size-len(slices.Compact(gone)) >= c.config.MinSize
}

// recoverAlone recovers a communicator that was not told to, and ends what is held.
func (c *Comm) recoverAlone(ctx context.Context) {
	for again := true; again; {
		var err error
		c.changing.Lock()
		if c.present.Load().failed() != nil { // a caller of Recover may have come first
			err = c.goOn(ctx, motion{Operation: "recover", Completes: true})
		}
		c.changing.Unlock()
		c.mu.Lock()
		e := c.present.Load()
		failure := e.failed()
		again = err == nil && failure != nil && errors.Is(failure, fault.ErrPeerFailed)
		var left []*held
		if !again {
			left, c.held = c.held, nil
			close(c.recovering.done)
			c.recovering.giveUp()
			c.recovering = nil
			if failure == nil {
				e.openFastPath()
			}
		}
		c.mu.Unlock()
		for _, h := range left {
			cause := fault.From(err, fault.ErrRevoked, "it was not recovered")
			if err == nil {
				cause = e.members.Errorf(fault.ErrRevoked, "the members have changed")
			}
			h.Resolve(cause)
		}
	}
}

// complete completes what is held, in the present epoch, whose members have met.
func (c *Comm) complete(ctx context.Context, old *epoch, d *decision) error {
	for _, f := range d.verdict.Fetch {
		root, _ := d.value.Rank(f.From)
		data, has := d.results[f.Sequence]
		if !has || len(data) != int(f.Bytes) {
			data = make([]byte, f.Bytes)
		}
		if err := c.broadcast(ctx, root, data); err != nil {
			return err
		}
		c.mu.Lock()
		op := old.heldPart(f.Sequence)
		c.mu.Unlock()
		if f.Sequence > d.mine.Finished && op != nil {
			for i, bytes := range op.OutBytes() {
				data = data[copy(unsafe.Slice((*byte)(op.Out[i]), bytes), data):]
			}
		}
	}
	c.mu.Lock()
	all := c.held
	c.held = nil
	c.mu.Unlock()
	slices.SortStableFunc(all, func(a, b *held) int {
		return cmp.Compare(a.Parts()[0].Message.Sequence, b.Parts()[0].Message.Sequence)
	})
	for _, h := range all {
		c.redo(h)
	}
	return nil
}

// broadcast sends some bytes to all ranks.
func (c *Comm) broadcast(ctx context.Context, root int, data []byte) error {
	if len(data) == 0 {
		return nil
	}
	var pin runtime.Pinner
	defer pin.Unpin()
	at := unsafe.SliceData(data)
	pin.Pin(at)
	block, counts := []unsafe.Pointer{unsafe.Pointer(at)}, []uint64{uint64(len(data))}
	return c.run(ctx, ofRecovery, call.Operation{Collective: plan.Broadcast, DType: reduce.Uint8,
		Root: root, In: block, Out: block, InCounts: counts, OutCounts: counts})
}

// settleHeld tells what is held of a decision: before the members of the next epoch meet.
func (c *epoch) settleHeld(d *decision) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, h := range c.held {
		switch {
		case h.of == c:
			h.judge(d.mine, d.verdict)
		case h.awaits:
			h.fail(fault.ErrRevoked, "the members have changed twice, and its result is lost")
		}
		h.moveRoots(c, d)
	}
}

// judge finds out what of a work has no result.
func (h *held) judge(mine progress, v verdict) {
	for i, p := range h.Parts()[:len(h.operations)] {
		s, op := p.Message.Sequence, h.operations[i]
		fetched := slices.ContainsFunc(v.Fetch, func(f fetch) bool { return f.Sequence == s })
		switch {
		case s <= mine.Finished:
		case fetched:
			h.awaits = true
		case s <= v.Finished && op.Collective == plan.Barrier:
		case s <= v.Finished:
			h.fail(fault.ErrRevoked, "the members have changed, and its result is lost")
		default:
			h.again = append(h.again, op)
		}
	}
}

// moveRoots gives what runs again the roots' ranks in the epoch that a decision makes of the old
// one.
func (h *held) moveRoots(old *epoch, d *decision) {
	for i := range h.again {
		op := &h.again[i]
		if op.Collective != plan.Reduce && op.Collective != plan.Broadcast {
			continue
		}
		root, survives := d.value.Rank(op.Root)
		if !survives {
			h.fail(fault.ErrPeerFailed, "its root, %s, has ended", old.members.Names(op.Root))
			return
		}
		op.Root = root
	}
}

func (h *held) fail(kind error, format string, args ...any) {
	if h.cause == nil {
		h.cause = h.of.members.Errorf(kind, format, args...).During(call.Name(h.operations), 0)
	}
}

// redo ends a work that is held: all of it that has no result runs once more.
func (c *Comm) redo(h *held) {
	if h.cause != nil || len(h.again) == 0 {
		h.Resolve(h.cause)
		return
	}
	for _, b := range h.before {
		copy(unsafe.Slice((*byte)(b.at), len(b.data)), b.data)
	}
	inner, err := c.Start(CallOptions{Timeout: h.Timeout(), ahead: true}, h.again...)
	if err != nil {
		h.Resolve(fault.From(err, fault.ErrSystem, "it was not completed"))
		return
	}
	inner.OnDone(func(err error) {
		h.SetContributors(inner.Contributors())
		if err == nil {
			h.Resolve(nil)
			return
		}
		h.Resolve(fault.From(err, fault.ErrSystem, "it was not completed"))
	})
}
