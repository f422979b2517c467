// Package agreement has the members of an epoch decide together what follows it.
//
// # Model
//
// An [Engine] is one rank's part in all decisions of its epoch. They are numbered from 0, and the
// next one begins when the caller, or a peer, begins it. What a rank learns of its epoch, such as
// the end of a peer, goes to all decisions by [Engine.Inform]. The engine keeps it, and replays it
// into decisions that are made later. Each decision is a [membership.Agreement], which is pure. The
// engine gives it messages, time and what the epoch knows. It carries out the actions by its
// [Face].
//
// The caller begins a decision by [Engine.Begin] with a [Proposal], and waits for it by
// [Engine.Await]. A member that comes later may ask for the decision. So an engine outlives its
// epoch while a decision is [Engine.Unconfirmed]. [Engine.SetSuccessor] links the engines of
// successive epochs: once the members of an epoch have met, all have gone on with the decisions
// before, and nobody asks for these any more.
//
// Engine.mu is a leaf: no other lock is taken with it held.
package agreement

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	mathrand "math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/goccl/goccl/core/address"
	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/meeting"
	"github.com/goccl/goccl/core/membership"
	"github.com/goccl/goccl/core/roster"
	"github.com/goccl/goccl/core/transport"
)

// Face is what an engine asks of its epoch. Its methods are called without the engine's lock.
type Face interface {
	// Send sends a message to a member. It waits for nobody, and the message may be lost.
	Send(to int, message []byte)
	// Out ends this rank's part in the epoch: the others go on without it, or nobody does.
	Out(cause *fault.Error)
	// Silent returns those of some peers that do not answer now.
	Silent(ctx context.Context, peers []int) []int
	// Fence kills a peer that is stopped and shares memory with this rank: see
	// [transport.Endpoint.Fence].
	Fence(peer int) (ended, lives bool)
	// Listen has messages received until stop is called.
	Listen() (stop func())
	// Confirmed tells that nobody can ask for a decision any more. It may be called several times.
	Confirmed()
}

// Config is what an engine begins with.
type Config struct {
	Roster  *roster.Roster // of the epoch
	MinSize int            // the fewest members that go on
	Any     bool           // see membership.Config
}

// Engine is a rank's part in the decisions of its epoch. Its methods may be called from any
// goroutine.
type Engine struct {
	config Config
	face   Face

	mu        sync.Mutex // a leaf; guards what follows
	decisions []*Decision
	lost      map[int]membership.Evidence // peers that have ended, and how sure that is
	joiners   []membership.Joiner         // who ask to be members, in the order in which they came
	stable    bool                        // see membership.Stable
	met       bool                        // a collective has completed here
	allMet    bool                        // so it has on all ranks
	over      bool                        // the next epoch has begun: no decision begins any more
	// predecessor is of the epoch whose members decided on this one; nil once this one has met.
	predecessor *Engine
	successor   *Engine // of the epoch that was decided
}

// Decision is a rank's part in one decision.
type Decision struct {
	Value  *membership.Value // nil where there is none
	Record Record            // of Value

	agreement *membership.Agreement // guarded by Engine.mu
	begun     bool                  // this rank has moved; guarded by Engine.mu
	ended     chan struct{}         // closed once Value or cause is set
	cause     *fault.Error
}

const (
	tickTime = 50 * time.Millisecond
	patience = 10 // ticks
)

// Messages take every joiner whose address and handle can be read: these are not negative.
const (
	_ = uint(membership.MaxHost - address.MaxHostName)
	_ = uint(membership.MaxHandle - meeting.MaxHandle)
)

// ErrRecovers tells that some members recover automatically, which comes before what was proposed.
var ErrRecovers = errors.New("the members recover by themselves")

// New makes the engine of an epoch.
func New(config Config, face Face) *Engine {
	return &Engine{config: config, face: face, lost: map[int]membership.Evidence{},
		stable: config.Roster.Founders == nil}
}

// find returns the decision of a number that a peer tells of. It returns nil where there can be
// none: peers are at most one decision ahead that this rank has not begun, and none ahead once the
// epoch is over. It is called with mu held.
func (e *Engine) find(number uint32) *Decision {
	n := uint32(len(e.decisions))
	switch {
	case number < n:
		return e.decisions[number]
	case number == n && !e.over && (n == 0 || e.decisions[n-1].begun):
		return e.add()
	}
	return nil
}

// add makes this rank's part in the next decision. It is called with mu held.
func (e *Engine) add() *Decision {
	r, number := e.config.Roster, len(e.decisions)
	known := membership.Known{Stable: e.stable && !e.unmet(), Joiners: e.joiners}
	for _, peer := range slices.Sorted(maps.Keys(e.lost)) {
		known.Lost = append(known.Lost, membership.Lost{Peer: peer, Evidence: e.lost[peer]})
	}
	if number > 0 {
		known.Before = e.decisions[number-1].agreement
	}
	minSize := e.config.MinSize
	d := &Decision{ended: make(chan struct{}), agreement: membership.Replay(membership.Config{
		Rank: r.Rank, Size: r.Size(), Epoch: uint32(number), Founders: r.Founders,
		Uncontested: r.Founders != nil && !r.Contested && !r.IsNewcomer(r.Rank),
		MinSize:     max(minSize, 1), Any: e.config.Any, Patience: patience, Waits: true,
		Judge: func(states map[int][]byte) ([]byte, bool) { return judge(states, minSize) }}, known)}
	e.decisions = append(e.decisions, d)
	return d
}

// Inform gives news to all decisions. That a peer has ended goes to later decisions, too. The
// caller calls the returned function without locks: it carries out the actions.
func (e *Engine) Inform(n membership.News) (act func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch n := n.(type) {
	case membership.Lost:
		e.lost[n.Peer] = n.Evidence
	case membership.Left:
		e.lost[n.Peer] = membership.Proof
	}
	return e.inform(n)
}

// inform gives news to all decisions so far. It is called with mu held. The caller calls the
// returned function after that.
func (e *Engine) inform(n membership.News) (act func()) {
	var acts []func()
	for _, d := range e.decisions {
		acts = append(acts, e.step(d, n))
	}
	return func() {
		for _, act := range acts {
			act()
		}
	}
}

// step gives news to one decision, in the manner of inform. It is called with mu held.
func (e *Engine) step(d *Decision, n membership.News) (act func()) {
	actions := d.agreement.Step(n)
	for _, a := range actions {
		switch a := a.(type) {
		case membership.Decided:
			d.Value = a.Value
			close(d.ended)
		case membership.Out:
			d.cause = e.outError(a.Cause)
			close(d.ended)
		}
	}
	return func() {
		for _, a := range actions {
			switch a := a.(type) {
			case membership.Send:
				e.face.Send(a.To, a.Message.Encode())
			case membership.Out:
				e.face.Out(d.cause)
			}
		}
	}
}

// outError is why this rank has no part in what follows.
func (e *Engine) outError(cause error) *fault.Error {
	if given := (*fault.Error)(nil); errors.As(cause, &given) {
		return given
	}
	r := e.config.Roster
	if errors.Is(cause, membership.ErrExcluded) {
		return r.Members.Errorf(fault.ErrExcluded, "the others go on without %s, which they took for "+
			"dead, or which did not answer them in time", r.Members.Names(r.Rank)).Blaming(r.Rank)
	}
	least := ""
	if e.config.MinSize > 1 {
		least = fmt.Sprintf(", and at least %d members must be left", e.config.MinSize)
	}
	return r.Members.Errorf(fault.ErrNoQuorum, "%s reaches too few of %d ranks to go on: a majority "+
		"must answer, or all those that are not proved to have ended%s", r.Members.Names(r.Rank),
		r.Size(), least)
}

// Receive takes a peer's message. The error is not nil where no correct peer sends the message.
func (e *Engine) Receive(from int, payload []byte) error {
	m, err := membership.Decode(payload, e.config.Roster.Size())
	if err != nil {
		return fmt.Errorf("%w: %w", transport.ErrProtocol, err)
	}
	act := func() {}
	e.mu.Lock()
	if d := e.find(m.Epoch); d != nil {
		act = e.step(d, membership.Received{From: from, Message: m})
	}
	e.mu.Unlock()
	act()
	if m.Stable {
		e.becomeStable()
	}
	return nil
}

// Offer tells that a process asks to be a member. The caller calls the returned function without
// locks, as that of Inform.
func (e *Engine) Offer(j membership.Joiner) (act func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !slices.ContainsFunc(e.joiners, func(k membership.Joiner) bool {
		return slices.Equal(k.Handle, j.Handle)
	}) {
		e.joiners = append(e.joiners, j)
	}
	return e.inform(membership.Joining{Joiner: j})
}

// Withdraw tells, in the manner of Offer, that a process with a handle does not ask any more.
func (e *Engine) Withdraw(handle []byte) (act func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.joiners = slices.DeleteFunc(slices.Clone(e.joiners), func(j membership.Joiner) bool {
		return slices.Equal(j.Handle, handle)
	})
	return e.inform(membership.Unjoined{Handle: handle})
}

// Begin begins the decision on a proposal, or goes on with one that has not ended. Members that a
// failure blames for a timeout take no part if they do not answer now. The excluded take no part.
func (e *Engine) Begin(ctx context.Context, m Proposal, blamed, exclude []int) *Decision {
	var nonce [membership.NonceSize]byte
	rand.Read(nonce[:])
	news := e.fence(ctx, blamed, false)
	for _, peer := range exclude {
		news = append(news, membership.Excluded{Peer: peer})
	}
	news = append(news, membership.Begin{Nonce: nonce, State: m.encode(), Newcomers: m.Newcomers})
	e.mu.Lock()
	var d *Decision
	if n := len(e.decisions); n > 0 && (!e.decisions[n-1].begun || e.decisions[n-1].cause != nil) {
		d = e.decisions[n-1]
	} else {
		d = e.add()
	}
	d.begun = true
	var acts []func()
	for _, n := range news {
		acts = append(acts, e.step(d, n))
	}
	e.mu.Unlock()
	for _, act := range acts {
		act()
	}
	return d
}

// Await waits until a decision that has begun on a proposal has ended, for as long as the context
// lasts. It waits for silent members for half of that time. It returns an error where this rank has
// no part in what follows, or where nothing follows. [ErrRecovers] is one of these errors.
func (e *Engine) Await(ctx context.Context, d *Decision, m Proposal) error {
	e.await(ctx, d)
	if d.cause != nil {
		return d.cause.During(m.Operation, 0)
	}
	// Another member may have found silent who shares memory with this rank, and is stopped.
	e.mu.Lock()
	out := d.agreement.LeftOut()
	e.mu.Unlock()
	for _, peer := range out {
		e.face.Fence(peer)
	}
	members := &e.config.Roster.Members
	var err error
	if d.Record, err = readRecord(d.Value, e.config.Roster.Size()); err != nil {
		return fault.From(err, fault.ErrInternal, "decision").In(members)
	}
	switch {
	case d.Record.GivesUp && m.Completes:
		return members.Errorf(fault.ErrRevoked, "others have failed for another reason than a peer's "+
			"end, so that nothing can be completed")
	case d.Record.Recovers:
		return ErrRecovers
	case d.Record.Calls != nil:
		return members.Errorf(fault.ErrMismatch, "the ranks have called different things").
			Calling(d.Record.Calls).During(m.Operation, 0)
	}
	return nil
}

// await steps a decision by time until it has ended.
func (e *Engine) await(ctx context.Context, d *Decision) {
	defer e.face.Listen()()
	step := func(n membership.News) {
		e.mu.Lock()
		act := e.step(d, n)
		e.mu.Unlock()
		act()
	}
	var half <-chan time.Time
	if deadline, ok := ctx.Deadline(); ok {
		t := time.NewTimer(time.Until(deadline) / 2)
		defer t.Stop()
		half = t.C
	}
	for {
		// Members that tick in step could stop each other for long.
		tick := time.NewTimer(tickTime + mathrand.N(tickTime/4))
		select {
		case <-d.ended:
			tick.Stop()
			return
		case <-tick.C:
			step(membership.Tick{})
		case <-half:
			e.mu.Lock()
			silent := d.agreement.Silent()
			e.mu.Unlock()
			for _, n := range e.fence(ctx, silent, true) {
				step(n)
			}
			// Newcomers that have not been met hold the members up no longer, whatever they answer.
			for _, rank := range e.Strangers() {
				step(membership.Excluded{Peer: rank})
			}
			step(membership.Waited{})
		case <-ctx.Done():
			expired := membership.Expired{}
			if cause := (*fault.Error)(nil); errors.As(context.Cause(ctx), &cause) {
				expired.Cause = cause
			}
			step(expired)
		}
		tick.Stop()
	}
}

// fence returns news of those of some peers that do not answer now. It kills a stopped peer that
// shares memory with this rank. One that is not stopped may be late, and counts as silent only once
// it has been waited for.
func (e *Engine) fence(ctx context.Context, peers []int, waited bool) (news []membership.News) {
	if len(peers) == 0 {
		return nil
	}
	for _, peer := range e.face.Silent(ctx, peers) {
		ended, lives := e.face.Fence(peer)
		switch {
		case ended:
			news = append(news, membership.Lost{Peer: peer, Evidence: membership.Proof})
		case waited || !lives:
			news = append(news, membership.Lost{Peer: peer})
		}
	}
	return news
}

// Cause is why this rank has no part in what follows; nil where it may have one.
func (e *Engine) Cause() *fault.Error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if n := len(e.decisions); n > 0 {
		return e.decisions[n-1].cause
	}
	return nil
}

// Waits reports whether this rank waits for a decision.
func (e *Engine) Waits() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	n := len(e.decisions)
	if n == 0 {
		return false
	}
	d := e.decisions[n-1]
	return d.begun && d.Value == nil && d.cause == nil
}

// Unconfirmed reports whether a member may still ask for a decision of the epoch: it is not known
// to have gone on with it.
func (e *Engine) Unconfirmed() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.unconfirmed()
}

// unconfirmed is called with mu held.
func (e *Engine) unconfirmed() bool {
	return slices.ContainsFunc(e.decisions, func(d *Decision) bool {
		return d.Value != nil && !d.agreement.Confirmed()
	})
}

// End tells that the next epoch has begun. No decision begins any more.
func (e *Engine) End() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.over = true
}
