package core

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"unsafe"

	"github.com/goccl/goccl/core/call"
	"github.com/goccl/goccl/core/completion"
	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/plan"
	"github.com/goccl/goccl/core/work"
)

// With Config.Recovery "survivors" or "all" a collective in which a member dies does not fail. Its
// work is held, the members that are left recover by themselves, and then it completes:
//
//   - Where a survivor has its result, all others get that, with the dead one's contribution.
//   - Else it runs once more among the survivors, on the inputs that it was called with.
//
// No rank is through a collective before it has heard from all others, which plans are proved to
// do. So one that a rank has ended has at least begun on all, and the results of the last ones are
// all that can be asked for. Short results are copied when they end. A work with long ones, or with
// a root, from which alone the others hear, ends only when all ranks have theirs: a barrier
// follows, as a part of it. Where the output is the input's memory, the input is copied before.
//
// With "all" a result could be put together of parts that several survivors have, where none has
// the whole. That is not done, so both are the same: see docs/design/recovery.md.

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

func (c *Comm) recovers() bool { return c.config.Recovery != RecoveryStep }

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

	// What the members of that epoch have decided, by operation. All hold on to it where another
	// member dies before they have completed.
	outcomes []completion.Outcome
	cause    *fault.Error // it cannot be completed
}

// image is what memory had in it.
type image struct {
	operation int // of the work, whose input it is
	at        unsafe.Pointer
	data      []byte
}

// confirms tells whether a barrier must follow some operations that survivors complete.
func (c *epoch) confirms(operations []call.Operation) bool {
	return slices.ContainsFunc(operations, func(op call.Operation) bool {
		return op.Collective.Rooted() || op.Total() > uint64(c.resultMost())
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
			h.save(i)
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
		h.of.runtime.images.Give(&h.before[i].data)
	}
}

// save copies the inputs that an operation overwrites.
func (h *held) save(operation int) {
	op := &h.operations[operation]
	in, out := op.Uses(h.of.Rank)
	if !in || !out || op.Collective == plan.Broadcast {
		return
	}
	for i, bytes := range op.InBytes() {
		if slices.Contains(op.Out, op.In[i]) {
			data := h.of.runtime.images.Take(int(bytes))
			copy(data, unsafe.Slice((*byte)(op.In[i]), bytes))
			h.before = append(h.before, image{operation, op.In[i], data})
		}
	}
}

// lost is the input of a collective that a caller in C has begun, if it has the output's memory.
func (c *epoch) lost(op *call.Operation) []image {
	in, out := op.Uses(c.Rank)
	if !in || !out || op.Collective != plan.AllReduce || op.In[0] != op.Out[0] {
		return []image{}
	}
	return []image{{0, op.In[0], c.fast.Before(int(op.InBytes()[0]))}}
}

// leftUndone notes that a collective has not ended here. It is called with the lock held.
func (c *epoch) leftUndone(sequence uint64) {
	if c.firstUndone == 0 || sequence < c.firstUndone {
		c.firstUndone = sequence
	}
}

// keepResult copies the result of a collective that has ended, if others may ask for it.
func (c *epoch) keepResult(p *work.Part) {
	op := p.Operation
	if c.recovers() && completes(op) && !op.Collective.Rooted() {
		c.fast.Keep(p.Message.Sequence, op.Out, op.OutBytes())
	}
}

// owed is a result that members pass on. It stays at those that have it until all do, for one of
// them may die meanwhile.
type owed struct {
	completion.Result
	from int             // the rank that sends it, of the present epoch
	has  bool            // it is here:
	data []byte          // a copy of it, or
	in   *call.Operation // the output of an operation whose work is held; nil: there is none
}

// progress is called with the order locked, when no collective runs.
func (c *epoch) progress() completion.Progress {
	p := completion.Progress{Epoch: c.number, Begun: c.Sequence(), Finished: c.Sequence()}
	if c.firstUndone > 0 {
		p.Finished = c.firstUndone - 1
	}
	for s := p.Finished; s > 0 && s+2 > p.Finished; s-- {
		if o := c.resultOf(s); o != nil {
			p.Has = append(p.Has, o.Result)
		}
	}
	for _, o := range c.owed {
		if o.has {
			p.Has = append(p.Has, o.Result)
		} else {
			p.Lacks = append(p.Lacks, o.Result)
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

// resultOf is what a collective has given that has ended; nil where that is not here. It is called
// with the lock held.
func (c *epoch) resultOf(sequence uint64) *owed {
	o := &owed{Result: completion.Result{Epoch: c.number, Sequence: sequence}, has: true}
	o.in = c.heldPart(sequence)
	if o.in == nil {
		var kept bool
		o.data, kept = c.fast.Kept(sequence)
		o.Bytes = uint64(len(o.data))
		if !kept {
			return nil
		}
		return o
	}
	switch _, out := o.in.Uses(c.Rank); {
	case !out || o.in.Collective == plan.Barrier:
		return nil
	case o.in.Collective != plan.Reduce: // of that the root alone needs the bytes
		o.Bytes = total(o.in.OutBytes())
	}
	return o
}

// owes are the results that are passed on after a decision, as far as they are here.
func (c *epoch) owes(d *decision, mine completion.Progress) (all []*owed) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, f := range d.verdict.Fetch {
		var o *owed
		if f.Epoch == c.number && f.Sequence <= mine.Finished {
			o = c.resultOf(f.Sequence)
		}
		for _, before := range c.owed {
			if before.Result == f.Result {
				o = before
			}
		}
		if o == nil {
			o = &owed{Result: f.Result}
			if f.Epoch == c.number {
				o.in = c.heldPart(f.Sequence)
			}
		}
		o.from, _ = d.value.Rank(f.From)
		all = append(all, o)
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

// fits tells whether the result has the length that it must have here.
func (o *owed) fits() bool {
	return o.Bytes == 0 || o.in == nil || o.Bytes == total(o.in.OutBytes())
}

// bytes is memory that has the result, or is to have it. Spread puts into its place what has come
// to the memory.
func (o *owed) bytes() (data []byte, spread func()) {
	switch {
	case o.Bytes == 0:
		return nil, func() {}
	case o.in != nil && len(o.in.Out) == 1:
		return unsafe.Slice((*byte)(o.in.Out[0]), o.Bytes), func() {}
	case o.in == nil:
		if uint64(len(o.data)) != o.Bytes {
			o.data = make([]byte, o.Bytes)
		}
		return o.data, func() {}
	}
	data = make([]byte, 0, o.Bytes)
	for i, bytes := range o.in.OutBytes() {
		data = append(data, unsafe.Slice((*byte)(o.in.Out[i]), bytes)...)
	}
	return data, func() {
		for i, bytes := range o.in.OutBytes() {
			data = data[copy(unsafe.Slice((*byte)(o.in.Out[i]), bytes), data):]
		}
	}
}

// completing is what a communicator completes.
type completing struct {
	recovering *recovery // not nil while the communicator recovers by itself
	held       []*held   // what does not end before
	owed       []*owed   // what is passed on then
}

// complete completes what is held, in the present epoch, whose members have met.
func (c *Comm) complete(ctx context.Context) error {
	c.mu.Lock()
	results := c.owed
	c.mu.Unlock()
	for _, o := range results {
		if err := c.pass(ctx, o); err != nil {
			return err
		}
	}
	if len(results) > 0 { // only then may any rank let go of them
		if err := (service{c}).Barrier(ctx); err != nil {
			return err
		}
	}
	c.mu.Lock()
	all := c.held
	c.held, c.owed = nil, nil
	c.mu.Unlock()
	slices.SortStableFunc(all, func(a, b *held) int {
		return cmp.Compare(a.Parts()[0].Message.Sequence, b.Parts()[0].Message.Sequence)
	})
	for _, h := range all {
		c.redo(h)
	}
	return nil
}

// pass passes a result on to all ranks.
func (c *Comm) pass(ctx context.Context, o *owed) error {
	if o.from == c.Rank() && !o.has || !o.fits() {
		return fault.Errorf(fault.ErrInternal, "the result of collective %d of epoch %d is not here, or "+
			"has not %d bytes", o.Sequence, o.Epoch, o.Bytes)
	}
	data, spread := o.bytes()
	if err := (service{c}).Broadcast(ctx, o.from, data); err != nil {
		return err
	}
	if !o.has {
		spread()
		o.has = true
	}
	return nil
}

// settleHeld tells what is held of a decision: before the members of the next epoch meet.
func (c *epoch) settleHeld(d *decision) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, h := range c.held {
		if h.of == c {
			h.judge(d.mine, &d.verdict)
		} else {
			h.reconsider(c.owed, &d.verdict)
		}
		h.moveRoots(d)
	}
	c.owed = d.owed
}

// judge finds out what becomes of a work, at the end of its epoch.
func (h *held) judge(mine completion.Progress, v *verdict) {
	h.operations = slices.Clone(h.operations) // roots will move
	h.outcomes = make([]completion.Outcome, len(h.operations))
	for i := range h.operations {
		h.outcomes[i] = v.Outcome(h.collective(i), mine.Finished)
		if h.outcomes[i] == completion.Lost {
			h.fail(fault.ErrRevoked, "the members have changed, and its result is lost")
		}
	}
}

// collective is an operation of a work as completion sees it.
func (h *held) collective(i int) completion.Collective {
	return completion.Collective{Epoch: h.of.number, Sequence: h.Parts()[i].Message.Sequence,
		Empty:     h.operations[i].Collective == plan.Barrier,
		Confirmed: len(h.Parts()) > len(h.operations)}
}

// reconsider finds out what becomes of a work, whose results were passed on in an epoch that has
// failed.
func (h *held) reconsider(results []*owed, v *verdict) {
	for i, o := range h.outcomes {
		c := h.collective(i)
		here := !slices.ContainsFunc(results, func(o *owed) bool {
			return o.Epoch == c.Epoch && o.Sequence == c.Sequence && !o.has
		})
		h.outcomes[i] = v.Reconsider(o, c, here)
	}
}

// moveRoots gives what may run again the roots' ranks in the epoch that a decision makes of the old
// one.
func (h *held) moveRoots(d *decision) {
	for i := range h.operations {
		op, lost := &h.operations[i], false
		if !op.Collective.Rooted() {
			continue
		}
		if op.Root, lost = completion.Root(h.outcomes[i], op.Root, d.value.Rank); lost {
			h.fail(fault.ErrPeerFailed, "its root has ended")
		}
	}
}

func (h *held) fail(kind error, format string, args ...any) {
	if h.cause == nil {
		h.cause = h.of.Members.Errorf(kind, format, args...).During(call.Name(h.operations), 0)
	}
}

// redo ends a work that is held: all of it that has no result runs once more.
func (c *Comm) redo(h *held) {
	var operations []call.Operation
	for i, op := range h.operations {
		if h.outcomes[i] == completion.Reruns {
			operations = append(operations, op)
		}
	}
	if h.cause != nil || len(operations) == 0 {
		h.Resolve(h.cause)
		return
	}
	for _, b := range h.before {
		if h.outcomes[b.operation] == completion.Reruns {
			copy(unsafe.Slice((*byte)(b.at), len(b.data)), b.data)
		}
	}
	inner, err := c.Start(CallOptions{Timeout: h.Timeout(), ahead: true}, operations...)
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
