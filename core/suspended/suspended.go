// Package suspended keeps works that do not end where a member dies, because the members that are
// left complete them.
//
// # Model
//
// With Config.Recovery "survivors" or "all" a collective in which a member dies does not fail. Its
// work is suspended, the members that are left recover by themselves, and then it completes:
//
//   - Where a survivor has its result, all others get that, with the dead one's contribution.
//   - Else it runs once more among the survivors, on the inputs that it was called with.
//
// Package completion decides what becomes of each collective. This package carries it out: it keeps
// the works, passes results on, and starts again what has none.
//
// Plans are proved to have each rank hear from all others before it ends a collective. So a
// collective that has ended on one rank has begun on all, and others ask only for the last results.
// A short result is copied when its collective ends. A work with long results, or with a root from
// which the others hear, ends only after a barrier, which is its last part. An input that the
// output overwrites is copied first.
//
// "survivors" and "all" are the same. With "all" a result could be put together of parts that
// several survivors have, where none has the whole. That is not done: see docs/design/recovery.md.
//
// Store.mu is a leaf: no other lock is taken with it held. Works end without it.
package suspended

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"
	"unsafe"

	"github.com/goccl/goccl/core/call"
	"github.com/goccl/goccl/core/completion"
	"github.com/goccl/goccl/core/exec"
	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/memory"
	"github.com/goccl/goccl/core/plan"
	"github.com/goccl/goccl/core/work"
)

// Completes reports whether survivors complete a collective.
func Completes(op *call.Operation) bool {
	if op.Program != nil { // which is for as many ranks as there were
		return false
	}
	switch op.Collective {
	case plan.AllReduce, plan.Reduce, plan.Broadcast:
		return op.Total() <= completion.MaxBytes
	case plan.Barrier:
		return true
	}
	return false
}

// Epoch is an epoch as its works know it.
type Epoch struct {
	Number  uint32
	Rank    int // this rank's
	Members *fault.Group
}

// Store has the suspended works of a communicator, and its recovery. It outlives epochs. Its
// methods may be called from any goroutine.
type Store struct {
	images *memory.Images

	mu        sync.Mutex // a leaf; guards what follows
	recovery  *recovery  // nil: works that a death ends fail
	works     []*Work
	transfers []*Transfer
}

// recovery is an automatic recovery, which no caller asked for. It ends within the communicator's
// timeout, or when it is given up. Another death restarts the timeout.
type recovery struct {
	done   chan struct{} // closed at its end
	giveUp context.CancelCauseFunc
}

// NewStore makes a store, which takes memory for copies from the images.
func NewStore(images *memory.Images) *Store { return &Store{images: images} }

// Begin begins a recovery: works that a death would end are suspended from now on. The store calls
// giveUp where the recovery is given up, or over. Begin reports whether none was under way.
func (s *Store) Begin(giveUp context.CancelCauseFunc) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.recovery != nil {
		return false
	}
	s.recovery = &recovery{make(chan struct{}), giveUp}
	return true
}

// Recovery returns a channel that is closed when the recovery is over; nil where none is under way.
func (s *Store) Recovery() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.recovery == nil {
		return nil
	}
	return s.recovery.done
}

// GiveUp gives up the recovery that is under way, if there is one.
func (s *Store) GiveUp(cause error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.recovery != nil {
		s.recovery.giveUp(cause)
	}
}

// End ends the recovery, and returns the works that are still suspended. The caller resolves these.
func (s *Store) End() (left []*Work) {
	s.mu.Lock()
	defer s.mu.Unlock()
	left, s.works, s.transfers = s.works, nil, nil
	close(s.recovery.done)
	s.recovery.giveUp(nil)
	s.recovery = nil
	return left
}

// Work is a work that does not end before the members have recovered.
type Work struct {
	*work.Work
	store      *Store
	of         Epoch // that it was started in: its parts have numbers of it
	operations []call.Operation
	before     []image
	kept       []*exec.Kept // likewise, by operation, of inputs that come by a feed; nil: none

	// By operation, what the members of that epoch have decided. It stays where another member dies
	// before the works are completed.
	outcomes []completion.Outcome
	cause    *fault.Error // why it cannot be completed; nil: it can
}

// image is a copy of an input.
type image struct {
	operation int // of the work, whose input it is
	at        unsafe.Pointer
	data      []byte
}

// Guard has a work suspended where a member dies. It copies the inputs that the work overwrites.
func (s *Store) Guard(w *work.Work, of Epoch, operations []call.Operation) error {
	h := &Work{Work: w, store: s, of: of, operations: operations}
	for i := range operations {
		if err := h.save(i); err != nil {
			h.Ended()
			return err
		}
	}
	w.UseSuspender(h)
	return nil
}

// GuardBegun is Guard for a work of one operation that has begun. Before returns a number of bytes
// of the operation's input, which it may have overwritten.
func (s *Store) GuardBegun(w *work.Work, of Epoch, op call.Operation,
	before func(int) []byte) *Work {
	h := &Work{Work: w, store: s, of: of, operations: []call.Operation{op}}
	in, out := op.Uses(of.Rank)
	if in && out && op.Collective == plan.AllReduce && op.In[0] == op.Out[0] {
		h.before = []image{{0, op.In[0], before(int(op.InBytes()[0]))}}
	}
	w.UseSuspender(h)
	return h
}

// Suspend implements work.Suspender.
func (h *Work) Suspend(cause *fault.Error) bool {
	h.store.mu.Lock()
	defer h.store.mu.Unlock()
	if h.store.recovery == nil || !errors.Is(cause, fault.ErrPeerFailed) {
		return false
	}
	h.store.works = append(h.store.works, h)
	return true
}

// Ended implements work.Suspender: it gives the copies of inputs back.
func (h *Work) Ended() {
	for _, k := range h.kept {
		if k != nil {
			k.Free()
		}
	}
	for i := range h.before {
		h.store.images.Give(&h.before[i].data)
	}
}

// save copies the inputs that an operation of the work overwrites. Those of a feed are yet to come:
// they are copied as they do.
func (h *Work) save(operation int) error {
	op := &h.operations[operation]
	in, out := op.Uses(h.of.Rank)
	if !in || !out || op.Collective == plan.Broadcast {
		return nil
	}
	bytes := op.InBytes()
	for i, n := range bytes {
		switch {
		case !slices.Contains(op.Out, op.In[i]):
			bytes[i] = 0
		case op.Feed == nil:
			data := h.store.images.Take(int(n))
			copy(data, unsafe.Slice((*byte)(op.In[i]), n))
			h.before = append(h.before, image{operation, op.In[i], data})
		}
	}
	if op.Feed != nil {
		return h.keep(operation, bytes)
	}
	return nil
}

// keep has inputs of so many bytes be copied as they come. The caller's feed stays as it is.
func (h *Work) keep(operation int, bytes []int64) error {
	k, err := exec.NewKept(bytes)
	if err != nil {
		return err
	}
	if h.kept == nil {
		h.kept = make([]*exec.Kept, len(h.operations))
	}
	op := &h.operations[operation]
	feed := *op.Feed
	feed.Kept = k.C()
	op.Feed, h.kept[operation] = &feed, k
	return nil
}

// Transfer is a result that members pass on. Those that have it keep it until all have it, because
// one of them may die meanwhile.
type Transfer struct {
	completion.Result
	from int             // the rank that sends it, of the present epoch
	has  bool            // it is here:
	data []byte          // a copy of it, or
	in   *call.Operation // the output of an operation whose work is suspended; nil: there is none
}

// Ended is how far a rank has come in an epoch.
type Ended struct {
	Epoch
	Begun    uint64 // the last collective that has been called
	Finished uint64 // the last one that has ended
	// Kept returns the copy of a collective's result, if there is one.
	Kept func(sequence uint64) (data []byte, ok bool)
}

// Progress returns what the others must know of an epoch that has failed. It is called while no
// collective runs.
func (s *Store) Progress(e Ended) completion.Progress {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := completion.Progress{Epoch: e.Number, Begun: e.Begun, Finished: e.Finished}
	for n := p.Finished; n > 0 && n+2 > p.Finished; n-- {
		if t := s.resultOf(e, n); t != nil {
			p.Has = append(p.Has, t.Result)
		}
	}
	for _, t := range s.transfers {
		if t.has {
			p.Has = append(p.Has, t.Result)
		} else {
			p.Lacks = append(p.Lacks, t.Result)
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

// resultOf returns the result of a collective that has ended; nil where it is not here. It is
// called with mu held.
func (s *Store) resultOf(e Ended, sequence uint64) *Transfer {
	t := &Transfer{Result: completion.Result{Epoch: e.Number, Sequence: sequence}, has: true}
	t.in = s.operation(e.Number, sequence)
	if t.in == nil {
		var kept bool
		t.data, kept = e.Kept(sequence)
		t.Bytes = uint64(len(t.data))
		if !kept {
			return nil
		}
		return t
	}
	switch _, out := t.in.Uses(e.Rank); {
	case !out || t.in.Collective == plan.Barrier:
		return nil
	case t.in.Collective != plan.Reduce: // of that the root alone needs the bytes
		t.Bytes = total(t.in.OutBytes())
	}
	return t
}

// operation returns the operation of a sequence number, if its work is suspended; else nil. It is
// called with mu held.
func (s *Store) operation(epoch uint32, sequence uint64) *call.Operation {
	for _, h := range s.works {
		for _, p := range h.Parts() {
			if h.of.Number == epoch && p.Message.Sequence == sequence {
				return p.Operation
			}
		}
	}
	return nil
}

// Transfers returns the results that are passed on after a judgement, as far as they are here. Rank
// gives the members their numbers in the next epoch.
func (s *Store) Transfers(e Ended, j *completion.Judgement, rank func(int) (int, bool)) (
	all []*Transfer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range j.Fetch {
		var t *Transfer
		if f.Epoch == e.Number && f.Sequence <= e.Finished {
			t = s.resultOf(e, f.Sequence)
		}
		for _, before := range s.transfers {
			if before.Result == f.Result {
				t = before
			}
		}
		if t == nil {
			t = &Transfer{Result: f.Result}
			if f.Epoch == e.Number {
				t.in = s.operation(e.Number, f.Sequence)
			}
		}
		t.from, _ = rank(f.From)
		all = append(all, t)
	}
	return all
}

// Settle notes what becomes of all works by the judgement of an epoch, before the members of the
// next one meet. Transfers are the results that these pass on.
func (s *Store) Settle(e Ended, j *completion.Judgement, rank func(int) (int, bool),
	transfers []*Transfer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, h := range s.works {
		if h.of.Number == e.Number {
			h.judge(e.Finished, j)
		} else {
			h.reconsider(s.transfers, j)
		}
		h.moveRoots(rank)
	}
	s.transfers = transfers
}

// judge notes what becomes of the work, at the end of its epoch. It is called with Store.mu held.
func (h *Work) judge(finished uint64, j *completion.Judgement) {
	h.operations = slices.Clone(h.operations) // roots will move
	h.outcomes = make([]completion.Outcome, len(h.operations))
	for i := range h.operations {
		h.outcomes[i] = j.Outcome(h.collective(i), finished)
		if h.outcomes[i] == completion.Lost {
			h.fail(fault.ErrRevoked, "the members have changed, and its result is lost")
		}
	}
}

// collective returns an operation of the work as package completion sees it.
func (h *Work) collective(i int) completion.Collective {
	return completion.Collective{Epoch: h.of.Number, Sequence: h.Parts()[i].Message.Sequence,
		Empty:     h.operations[i].Collective == plan.Barrier,
		Confirmed: len(h.Parts()) > len(h.operations)}
}

// reconsider notes what becomes of the work, whose results were passed on in an epoch that has
// failed. It is called with Store.mu held.
func (h *Work) reconsider(results []*Transfer, j *completion.Judgement) {
	for i, o := range h.outcomes {
		c := h.collective(i)
		here := !slices.ContainsFunc(results, func(t *Transfer) bool {
			return t.Epoch == c.Epoch && t.Sequence == c.Sequence && !t.has
		})
		h.outcomes[i] = j.Reconsider(o, c, here)
	}
}

// moveRoots gives operations that may run again the ranks of their roots in the next epoch. It is
// called with Store.mu held.
func (h *Work) moveRoots(rank func(int) (int, bool)) {
	for i := range h.operations {
		op, lost := &h.operations[i], false
		if !op.Collective.Rooted() {
			continue
		}
		if op.Root, lost = completion.Root(h.outcomes[i], op.Root, rank); lost {
			h.fail(fault.ErrPeerFailed, "its root has ended")
		}
	}
}

// fail notes why the work cannot be completed. It is called with Store.mu held.
func (h *Work) fail(kind error, format string, args ...any) {
	if h.cause == nil {
		h.cause = h.of.Members.Errorf(kind, format, args...).During(call.Name(h.operations), 0)
	}
}

// Service has the collectives by which results are passed on, in the present epoch.
type Service interface {
	Broadcast(ctx context.Context, root int, data []byte) error
	Barrier(ctx context.Context) error
}

// Start starts operations in the present epoch. It does not wait for the end of the recovery.
type Start func(timeout time.Duration, operations []call.Operation) (*work.Work, error)

// Complete completes the suspended works in the present epoch, whose members have met.
func (s *Store) Complete(ctx context.Context, service Service, rank int, start Start) error {
	s.mu.Lock()
	results := s.transfers
	s.mu.Unlock()
	for _, t := range results {
		if err := t.pass(ctx, service, rank); err != nil {
			return err
		}
	}
	if len(results) > 0 { // only then may any rank let go of them
		if err := service.Barrier(ctx); err != nil {
			return err
		}
	}
	s.mu.Lock()
	all := s.works
	s.works, s.transfers = nil, nil
	s.mu.Unlock()
	slices.SortStableFunc(all, func(a, b *Work) int {
		return cmp.Compare(a.Parts()[0].Message.Sequence, b.Parts()[0].Message.Sequence)
	})
	for _, h := range all {
		h.rerun(start)
	}
	return nil
}

// pass passes a result on to all ranks.
func (t *Transfer) pass(ctx context.Context, service Service, rank int) error {
	if t.from == rank && !t.has || !t.fits() {
		return fault.Errorf(fault.ErrInternal, "the result of collective %d of epoch %d is not here, or "+
			"has not %d bytes", t.Sequence, t.Epoch, t.Bytes)
	}
	data, spread := t.bytes()
	if err := service.Broadcast(ctx, t.from, data); err != nil {
		return err
	}
	if !t.has {
		spread()
		t.has = true
	}
	return nil
}

// fits reports whether the result has the length that it must have here.
func (t *Transfer) fits() bool {
	return t.Bytes == 0 || t.in == nil || t.Bytes == total(t.in.OutBytes())
}

// bytes returns memory that has the result, or is to have it. Spread copies what has come to the
// memory to the outputs, where these are others.
func (t *Transfer) bytes() (data []byte, spread func()) {
	switch {
	case t.Bytes == 0:
		return nil, func() {}
	case t.in != nil && len(t.in.Out) == 1:
		return unsafe.Slice((*byte)(t.in.Out[0]), t.Bytes), func() {}
	case t.in == nil:
		if uint64(len(t.data)) != t.Bytes {
			t.data = make([]byte, t.Bytes)
		}
		return t.data, func() {}
	}
	data = make([]byte, 0, t.Bytes)
	for i, bytes := range t.in.OutBytes() {
		data = append(data, unsafe.Slice((*byte)(t.in.Out[i]), bytes)...)
	}
	return data, func() {
		for i, bytes := range t.in.OutBytes() {
			data = data[copy(unsafe.Slice((*byte)(t.in.Out[i]), bytes), data):]
		}
	}
}

// deliver tells feeds of results that have been passed on.
func (h *Work) deliver() {
	for i := range h.operations {
		op := &h.operations[i]
		if op.Feed == nil || h.outcomes[i] == completion.Reruns {
			continue
		}
		feed, bytes := exec.Feed(*op.Feed), op.OutBytes()
		for k := range op.Out { // a rank that is not the root may have none
			feed.Deliver(k, uint64(bytes[k]))
		}
	}
}

// rerun runs once more what has no result of the work, and ends the work with that.
func (h *Work) rerun(start Start) {
	var operations []call.Operation
	for i, op := range h.operations {
		if h.outcomes[i] == completion.Reruns {
			operations = append(operations, op)
		}
	}
	if h.cause != nil {
		h.Resolve(h.cause)
		return
	}
	h.deliver()
	if len(operations) == 0 {
		h.Resolve(nil)
		return
	}
	for i, k := range h.kept {
		if k != nil && h.outcomes[i] == completion.Reruns {
			k.Restore(h.operations[i].In)
		}
	}
	for _, b := range h.before {
		if h.outcomes[b.operation] == completion.Reruns {
			copy(unsafe.Slice((*byte)(b.at), len(b.data)), b.data)
		}
	}
	inner, err := start(h.Timeout(), operations)
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
