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
// work is suspended, the members that are left recover by themselves, and then it completes:
//
//   - Where a survivor has its result, all others get that, with the dead one's contribution.
//   - Else it runs once more among the survivors, on the inputs that it was called with.
//
// Plans are proved to have each rank hear from all others before it ends a collective. So a
// collective that has ended on one rank has begun on all, and others ask only for the last results.
// Short results are copied when they end. A work ends only after a barrier, which is its last part,
// where it has long results, or a root from which the others hear. Where the output is the input's
// memory, the input is copied first. Package completion decides what becomes of each collective.
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

// suspended is a work that does not end before the members have recovered.
type suspended struct {
	*work.Work
	of         *epoch // that it was started in: its parts have numbers of it
	operations []call.Operation
	before     []image

	// What the members of that epoch have decided, by operation. It stays where another member dies
	// before they have completed.
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

// suspends reports whether works that end with a cause are suspended. It is called with the lock
// held.
func (c *epoch) suspends(cause *fault.Error) bool {
	return c.recovering != nil && errors.Is(cause, fault.ErrPeerFailed)
}

// suspendOnFailure has a work suspended where a member dies. Before has the inputs that are already
// lost.
func (c *epoch) suspendOnFailure(w *Work, operations []call.Operation, before []image) *suspended {
	h := &suspended{Work: w, of: c, operations: operations, before: before}
	for i := range operations {
		if before == nil {
			h.save(i)
		}
	}
	w.UseHolder(h)
	return h
}

// Hold implements work.Holder.
func (h *suspended) Hold(err *fault.Error) bool {
	h.of.mu.Lock()
	defer h.of.mu.Unlock()
	if !h.of.suspends(err) {
		return false
	}
	h.of.suspended = append(h.of.suspended, h)
	return true
}

// Ended implements work.Holder: it gives the copies of inputs back.
func (h *suspended) Ended() {
	for i := range h.before {
		h.of.runtime.images.Give(&h.before[i].data)
	}
}

// save copies the inputs that an operation overwrites.
func (h *suspended) save(operation int) {
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

// transfer is a result that members pass on. It stays at those that have it until all do, for one
// of them may die meanwhile.
type transfer struct {
	completion.Result
	from int             // the rank that sends it, of the present epoch
	has  bool            // it is here:
	data []byte          // a copy of it, or
	in   *call.Operation // the output of an operation whose work is suspended; nil: there is none
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
	for _, o := range c.transfers {
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
func (c *epoch) resultOf(sequence uint64) *transfer {
	o := &transfer{Result: completion.Result{Epoch: c.number, Sequence: sequence}, has: true}
	o.in = c.suspendedPart(sequence)
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
func (c *epoch) transfersOf(d *decision, mine completion.Progress) (all []*transfer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, f := range d.record.Fetch {
		var o *transfer
		if f.Epoch == c.number && f.Sequence <= mine.Finished {
			o = c.resultOf(f.Sequence)
		}
		for _, before := range c.transfers {
			if before.Result == f.Result {
				o = before
			}
		}
		if o == nil {
			o = &transfer{Result: f.Result}
			if f.Epoch == c.number {
				o.in = c.suspendedPart(f.Sequence)
			}
		}
		o.from, _ = d.value.Rank(f.From)
		all = append(all, o)
	}
	return all
}

// suspendedPart is the operation of a number, if its work is suspended.
func (c *epoch) suspendedPart(sequence uint64) *call.Operation {
	for _, h := range c.suspended {
		for _, p := range h.Parts() {
			if h.of == c && p.Message.Sequence == sequence {
				return p.Operation
			}
		}
	}
	return nil
}

// fits tells whether the result has the length that it must have here.
func (o *transfer) fits() bool {
	return o.Bytes == 0 || o.in == nil || o.Bytes == total(o.in.OutBytes())
}

// bytes is memory that has the result, or is to have it. Spread puts into its place what has come
// to the memory.
func (o *transfer) bytes() (data []byte, spread func()) {
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
	recovering *recovery    // not nil while the communicator recovers by itself
	suspended  []*suspended // what does not end before
	transfers  []*transfer  // what is passed on then
}

// complete completes what is suspended, in the present epoch, whose members have met.
func (c *Comm) complete(ctx context.Context) error {
	c.mu.Lock()
	results := c.transfers
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
	all := c.suspended
	c.suspended, c.transfers = nil, nil
	c.mu.Unlock()
	slices.SortStableFunc(all, func(a, b *suspended) int {
		return cmp.Compare(a.Parts()[0].Message.Sequence, b.Parts()[0].Message.Sequence)
	})
	for _, h := range all {
		c.redo(h)
	}
	return nil
}

// pass passes a result on to all ranks.
func (c *Comm) pass(ctx context.Context, o *transfer) error {
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

// settleSuspended tells what is suspended of a decision: before the members of the next epoch meet.
func (c *epoch) settleSuspended(d *decision) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, h := range c.suspended {
		if h.of == c {
			h.judge(d.mine, &d.record)
		} else {
			h.reconsider(c.transfers, &d.record)
		}
		h.moveRoots(d)
	}
	c.transfers = d.transfers
}

// judge finds out what becomes of a work, at the end of its epoch.
func (h *suspended) judge(mine completion.Progress, v *record) {
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
func (h *suspended) collective(i int) completion.Collective {
	return completion.Collective{Epoch: h.of.number, Sequence: h.Parts()[i].Message.Sequence,
		Empty:     h.operations[i].Collective == plan.Barrier,
		Confirmed: len(h.Parts()) > len(h.operations)}
}

// reconsider finds out what becomes of a work, whose results were passed on in an epoch that has
// failed.
func (h *suspended) reconsider(results []*transfer, v *record) {
	for i, o := range h.outcomes {
		c := h.collective(i)
		here := !slices.ContainsFunc(results, func(o *transfer) bool {
			return o.Epoch == c.Epoch && o.Sequence == c.Sequence && !o.has
		})
		h.outcomes[i] = v.Reconsider(o, c, here)
	}
}

// moveRoots gives what may run again the roots' ranks in the epoch that a decision makes of the old
// one.
func (h *suspended) moveRoots(d *decision) {
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

func (h *suspended) fail(kind error, format string, args ...any) {
	if h.cause == nil {
		h.cause = h.of.Members.Errorf(kind, format, args...).During(call.Name(h.operations), 0)
	}
}

// redo ends a work that is suspended: all of it that has no result runs once more.
func (c *Comm) redo(h *suspended) {
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
	inner, err := c.Start(CallOptions{Timeout: h.Timeout(), internal: true}, operations...)
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
