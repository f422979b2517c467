package core

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
	"unsafe"

	"github.com/goccl/goccl/core/call"
	"github.com/goccl/goccl/core/exec"
	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/order"
	"github.com/goccl/goccl/core/plan"
	"github.com/goccl/goccl/core/reduce"
	"github.com/goccl/goccl/core/reduce/kernel"
	"github.com/goccl/goccl/core/transport"
	"github.com/goccl/goccl/core/tune"
	"github.com/goccl/goccl/core/work"
)

// runner is the state of the queue's head, kept while nobody runs it. It belongs to the holder of
// the communicator's token.
type runner struct {
	run         *exec.Run
	binding     exec.Binding // of run
	plans       planCache
	laid        layout
	part        int            // of the head work
	begun       bool           // the part is bound
	segments    []tune.Segment // still to run, of the part
	current     *exec.Compiled
	waitingFrom time.Duration // since when the part has not got on; 0: it has
	told        bool          // peers have been told of that
	interrupted bool          // the last run was left because of a signal
	voting      bool          // the present plan finds out whether all ranks can read each other's memory
	voted       bool
	gets        bool     // they can
	path        string   // by which the present part goes, for the log
	credited    []uint64 // by peer on a port channel: messages whose release it has been told of
}

// layout is how an operation is made of plans. It is kept for the next one, which is often alike.
type layout struct {
	collective plan.Collective
	root       int
	dtype      reduce.DType
	schedule   plan.Schedule
	in, out    []uint64
	segments   []tune.Segment
	path       string         // by which the segments go, for the log
	apart      bool           // inputs and outputs share no memory
	group      int            // of the plans: see tune.Shape.GroupOf
	compiled   *exec.Compiled // of the only segment, once it is known
	direct     *exec.Compiled // nil: there is none, if that has been looked for
	looked     bool
}

func (l *layout) fits(o *call.Operation, apart bool, group int) bool {
	return l.segments != nil && l.apart == apart && l.group == group && l.collective == o.Collective && l.root == o.Root && l.dtype == o.DType && l.schedule == o.Schedule &&
		slices.Equal(l.in, o.InCounts) && slices.Equal(l.out, o.OutCounts)
}

// announceAfter is how long a rank waits before it tells its peers what it waits in, so that
// different collectives are found out even where neither rank sends.
const announceAfter = 200 * time.Millisecond

// engine is the communicator as its queue sees it.
type engine struct{ *Comm }

// Rest implements work.Engine.
func (c engine) Rest() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.openShortcut()
}

// Run implements work.Engine.
func (c engine) Run(w *Work, until time.Duration) (interrupted bool) {
	c.runQueue(w, until)
	return c.runner.interrupted
}

// runQueue runs works from the queue's head until the given one has ended (nil: until the queue is
// empty), or until a time. The caller holds the queue's token.
func (c *Comm) runQueue(w *Work, until time.Duration) {
	r := &c.runner
	r.interrupted = false
	r.run.Waited(w != nil && until != exec.Spin)
	for {
		if w != nil && !c.queue.Has(w) {
			return
		}
		head := c.queue.Head()
		if head == nil {
			return
		}
		finished, err := c.advance(head, until)
		if !finished {
			return
		}
		if err != nil {
			// Nothing after a failed part can run: the communicator has failed.
			r.run.Withdraw()
			part := &head.Parts()[r.part]
			err = c.undone(part, r.begun || part.Begun != nil, err)
			c.traceEnd(part, err)
			c.retire(part.Operation)
			c.queue.Pop()
			left := len(head.Parts()) - r.part
			r.reset()
			for range left {
				head.End(err)
			}
			continue
		}
		c.traceEnd(&head.Parts()[r.part], nil)
		last := r.part == len(head.Parts())-1
		if last {
			c.queue.Pop() // before the work ends: its waiter may destroy the communicator
			r.reset()
		} else {
			r.part++
			r.begun = false
		}
		head.End(nil)
	}
}

func (r *runner) reset() {
	r.part, r.begun, r.voting, r.segments, r.current = 0, false, false, nil, nil
}

// advance carries the head's present part on. It tells whether the part has finished, and how.
func (c *Comm) advance(w *Work, until time.Duration) (finished bool, failure *fault.Error) {
	r := &c.runner
	p := &w.Parts()[r.part]
	if err := c.failed(); err != nil {
		return true, err
	}
	if p.Operation.Collective == plan.MonitoredBarrier {
		finished, failure = c.monitoredBarrier(w, p, until)
		if finished {
			c.endBarrier(p.Message.Sequence)
		}
		return finished, failure
	}
	for {
		if !r.begun {
			if err := c.begin(p); err != nil {
				c.fail(err, true)
				return true, c.failed()
			}
		}
		if r.current == nil {
			if r.voting {
				r.begun = false
				c.counted()
				continue
			}
			if len(r.segments) == 0 {
				c.learn(p)
				return true, nil
			}
			s := &r.segments[0]
			r.segments = r.segments[1:]
			compiled, err := r.compile(s)
			if err != nil {
				c.fail(fault.From(err, fault.ErrInternal, "%s", call.Describe(p.Message)), true)
				return true, c.failed()
			}
			r.current = compiled
			if err := r.run.Begin(compiled, s.Offset, exec.AnyPeer, exec.AnyPeer); err != nil {
				c.fail(fault.From(err, fault.ErrSystem, "%s", call.Describe(p.Message)), true)
				return true, c.failed()
			}
		}
		done, failure := c.carryOn(w, min(until, w.Deadline(), exec.Now()+work.Slice))
		switch {
		case failure != nil:
			return true, failure
		case done:
			r.plans.put(r.current)
			r.current = nil
			r.waitingFrom, r.told = 0, false
			continue
		}
		// Blocked.
		now := exec.Now()
		if r.waitingFrom == 0 {
			r.waitingFrom = now
		}
		if now >= w.Deadline() {
			c.fail(c.timeoutError(w, p.Message), true)
			return true, c.failed()
		}
		if !r.told && now-r.waitingFrom >= announceAfter {
			r.told = true
			c.announce(p.Message)
		}
		if now >= until || r.interrupted {
			return false, nil
		}
	}
}

// compile returns the plan of a segment of the layout, and keeps it there if it is the only one.
func (r *runner) compile(s *tune.Segment) (*exec.Compiled, error) {
	if r.laid.compiled != nil {
		return r.laid.compiled, nil
	}
	compiled, err := r.plans.get(s.Params, r.laid.apart)
	if err == nil && len(r.laid.segments) == 1 && r.plans.keeps(compiled) {
		r.laid.compiled = compiled
	}
	return compiled, err
}

// carryOn runs a work's plan, and does for it what its loop in C cannot, until it is done, blocked (neither
// done nor failed) or failed.
func (c *Comm) carryOn(w *Work, until time.Duration) (done bool, failure *fault.Error) {
	run, l := c.runner.run, c.window.Lane(collectiveLane)
	credited := c.runner.credited
	links := c.linkReader(run)
	defer links.leave()
	for {
		status := run.Continue(until)
		peer := run.Peer()
		switch status {
		case exec.Receive:
			interrupted := links.wait(until)
			if interrupted || exec.Now() >= until {
				c.runner.interrupted = interrupted
				return false, nil
			}
		case exec.Done:
			if c.runner.current.Direct { // which needs no other
				c.runner.path = "direct"
				c.runner.segments = nil
			}
			return true, nil
		case exec.Indirect:
			c.layOut(w.Parts()[c.runner.part].Operation)
			c.runner.segments = c.runner.laid.segments
			return true, nil
		case exec.Blocked:
			if exec.Now() < until {
				c.runner.interrupted = true
			}
			return false, nil
		case exec.Rest:
			links.leave()
		case exec.Connect:
			links.leave()
			t := time.NewTimer(until - exec.Now())
			select {
			case <-c.connect(peer):
				t.Stop()
			case <-t.C:
				return false, nil
			}
		case exec.NeedPut:
			h := transport.Header{Type: transport.Data, Flags: collectiveLane, Arg: [2]uint64{l.Sent(peer), l.Freed(peer)}}
			l.MarkSent(peer)
			ctx := work.WithDeadline(w.Context(), until)
			err := links.put(ctx, peer, h)
			ctx.End()
			if err != nil {
				l.MarkUnsent(peer)
				if errors.Is(err, context.DeadlineExceeded) && c.works.Context.Err() == nil {
					return false, nil
				}
				c.fail(c.peerError(peer, err), true)
				return false, c.failed()
			}
			credited[peer] = h.Arg[1]
			run.Advance()
		case exec.Released:
			// Credits go back in twos, or with a message of our own: the plans are proved for
			// senders that see one slot fewer than there are.
			if freed := l.Freed(peer); freed-credited[peer] >= 2 {
				credited[peer] = freed
				h := transport.Header{Type: frameCredit, Flags: collectiveLane, Arg: [2]uint64{freed}}
				// An error means that the peer is gone, or that the time is up. Whoever needs the peer, or
				// the time, will see it; this step does not.
				_ = links.send(w.Context(), peer, h)
			}
		default:
			links.leave()
			c.fail(c.runError(run, w.Parts()[c.runner.part].Message, status), true)
			return false, c.failed()
		}
	}
}

// runError is why a run cannot go on, whose message is m.
func (c *Comm) runError(run *exec.Run, m plan.Message, status exec.Status) *fault.Error {
	peer := run.Peer()
	switch status {
	case exec.Stopped:
		if err := c.failed(); err != nil {
			return err
		}
		return c.members.Errorf(fault.ErrInternal, "it was stopped without a cause")
	case exec.Gone:
		d, _ := c.departure(peer)
		return d.missedBy(m)
	case exec.Violation:
		return c.members.Errorf(fault.ErrInternal, "from %s: %v: it exposes memory that it does not "+
			"have, or has sent less than it says", c.members.Names(peer), exec.ErrProtocol)
	case exec.Unreadable:
		return c.members.Errorf(fault.ErrSystem, "#%d %s: reading the memory of %s: %v; "+
			"GOCCL_THRESHOLDS=get_min=0, on all ranks, has everything copied through "+
			"shared memory", m.Sequence, call.Describe(m), c.members.Names(peer), run.GetError()).
			During(m.Name(), m.Sequence)
	case exec.Mismatch:
		var sent order.Traffic
		var seen plan.Message
		seen, sent.Bytes, sent.Total = run.Seen()
		return c.mismatchError(m, run, peer, seen, sent)
	}
	return c.members.Errorf(fault.ErrInternal, "the executor answered %d", status)
}

// shortcutMax is the most bytes in a block for which it matters what a way through Go costs.
const shortcutMax = 1 << 20

// learn lets a collective that has ended be called by the shortcut from now on.
func (c *Comm) learn(p *work.Part) {
	op := p.Operation
	// Calls by the shortcut name no schedule.
	if p.Begun != nil || op.OfSplit || op.Schedule != 0 || !c.shape.AllMemory ||
		c.size > exec.ShortcutBlocks || op.Op == reduce.PreMulSum ||
		op.Collective == plan.AllReduce && len(op.InCounts) != 1 || op.Largest() > shortcutMax {
		return
	}
	k := exec.Known{Binding: c.runner.binding, Element: op.DType.Size(), Collective: uint8(op.Collective), DType: uint8(op.DType), Op: uint8(op.Op), Root: op.Root,
		InCounts: op.InCounts, OutCounts: op.OutCounts}
	k.UsesIn, k.UsesOut = op.Uses(c.rank)
	c.layOut(op)
	direct := c.direct(op)
	if compiled, err := c.runner.compile(&c.runner.laid.segments[0]); err == nil {
		c.shortcut.Learn(&k, compiled, direct)
	}
}

// begin binds a part and lays out its segments.
func (c *Comm) begin(p *work.Part) *fault.Error {
	r := &c.runner
	if p.Begun != nil {
		r.begun, r.segments, r.current = true, nil, p.Begun
		r.waitingFrom, r.told = 0, false
		return nil
	}
	c.mu.Lock()
	missing := c.missing(p.Message)
	c.mu.Unlock()
	if missing != nil {
		return missing
	}
	op := p.Operation
	if c.mustVote(op) {
		return c.vote(p)
	}
	b := exec.Binding{In: op.In, Out: op.Out, Factor: op.Factor, Message: p.Message,
		Streams: c.shape.Streams(op)}
	if op.Collective == plan.Broadcast {
		b.In = op.Out
	}
	if op.Collective.Reduces() {
		k, err := kernel.Of(op.DType, op.Op)
		if err != nil {
			return fault.From(err, fault.ErrInternal, "%s", call.Describe(p.Message))
		}
		b.Kernel = k
	}
	if err := r.run.Bind(b); err != nil {
		return fault.From(err, fault.ErrSystem, "%s", call.Describe(p.Message))
	}
	r.binding = b
	c.layOut(op)
	r.begun, r.segments, r.current = true, r.laid.segments, nil
	r.path = r.laid.path
	if c.shareable(op) {
		r.current = c.direct(op)
	}
	if r.current != nil {
		if err := r.run.Begin(r.current, 0, exec.AnyPeer, exec.AnyPeer); err != nil {
			return fault.From(err, fault.ErrSystem, "%s", call.Describe(p.Message))
		}
	}
	r.waitingFrom, r.told = 0, false
	return nil
}

// layOut makes the layout that of an operation.
func (c *Comm) layOut(op *call.Operation) {
	r := &c.runner
	apart, group := !c.shape.AllMemory && op.Disjoint(), c.shape.GroupOf(op)
	if !r.laid.fits(op, apart, group) {
		s := c.shape
		s.SingleCopy = r.gets
		r.laid = layout{apart: apart, group: group, collective: op.Collective, root: op.Root,
			dtype: op.DType, schedule: op.Schedule, in: slices.Clone(op.InCounts),
			out: slices.Clone(op.OutCounts), segments: s.Segments(op), path: "messages"}
		if s.UsesSingleCopy(op) {
			r.laid.path = "single copy"
		}
	}
}

// planCache keeps compiled plans, so that a collective that is called again builds nothing. It
// is used by one goroutine at a time.
type planCache struct {
	plans map[string]*exec.Compiled
	order []string                // the one that was got last is the last
	built map[*exec.Compiled]bool // not kept: freed by put

	freeing func(*exec.Compiled) // told of a plan that was kept
}

const (
	cachedPlans    = 128
	cachedMaxBlock = 64 // plans of more blocks are built anew: their keys would be long
)

func planKey(p *plan.Params, apart bool) string {
	if len(p.InBytes)+len(p.OutBytes) > cachedMaxBlock {
		return ""
	}
	buf := make([]byte, 0, 64+8*(len(p.InBytes)+len(p.OutBytes)))
	buf = fmt.Appendf(buf, "%d,%d,%d,%t,%t,%d,%d", p.Collective, p.Root, p.ElemSize, apart, p.Direct, p.Schedule, p.Group)
	for _, b := range [][]int64{p.InBytes, p.OutBytes} {
		buf = append(buf, ';')
		for _, n := range b {
			buf = append(buf, (*[8]byte)(unsafe.Pointer(&n))[:]...)
		}
	}
	return string(buf)
}

// get returns a plan, for inputs and outputs that are apart or may not be.
func (c *planCache) get(p plan.Params, apart bool) (*exec.Compiled, error) {
	key := planKey(&p, apart)
	if key != "" {
		if e, ok := c.plans[key]; ok {
			if at := slices.Index(c.order, key); at < len(c.order)-1 {
				c.order = append(slices.Delete(c.order, at, at+1), key)
			}
			return e, nil
		}
	}
	built, err := plan.Build(p)
	if err != nil {
		return nil, err
	}
	compiled, err := exec.Compile(built, !p.Memory, apart)
	if err != nil {
		return nil, fault.Errorf(fault.ErrSystem, "%v", err)
	}
	if key == "" {
		if c.built == nil {
			c.built = map[*exec.Compiled]bool{}
		}
		c.built[compiled] = true
		return compiled, nil
	}
	if c.plans == nil {
		c.plans = map[string]*exec.Compiled{}
	}
	if len(c.order) >= cachedPlans {
		oldest := c.order[0]
		c.order = c.order[1:]
		c.freeing(c.plans[oldest])
		c.plans[oldest].Free()
		delete(c.plans, oldest)
	}
	c.plans[key] = compiled
	c.order = append(c.order, key)
	return compiled, nil
}

// keeps tells whether a plan stays after put: until others have been got.
func (c *planCache) keeps(p *exec.Compiled) bool { return !c.built[p] }

// put tells that a plan is no longer run.
func (c *planCache) put(p *exec.Compiled) {
	if c.built[p] {
		delete(c.built, p)
		p.Free()
	}
}

func (r *runner) free() {
	for _, e := range r.plans.plans {
		e.Free()
	}
	for p := range r.plans.built {
		p.Free()
	}
	if r.run != nil {
		r.run.Free()
	}
}
