package core

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/goccl/goccl/core/checkpoint"
	"github.com/goccl/goccl/core/endpoint"
	"github.com/goccl/goccl/core/epoch"
	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/join"
	"github.com/goccl/goccl/core/logs"
	"github.com/goccl/goccl/core/plan"
)

// Comm is a communicator: a rank's part in a group. Its methods may be called from any goroutine
// and thread. Collectives are ordered by their calls to Start. It holds what survives a change of
// members; an [epoch.Epoch] has the rest.
//
// A change of members holds changing from its first step to its last. No other lock is a Comm's
// own.
type Comm struct {
	runtime   *Runtime
	shared    epoch.Config // what its epochs share; guarded by changing
	timeout   atomic.Int64 // a time.Duration, of operations that give none
	endLife   context.CancelCauseFunc
	destroyed atomic.Bool
	acceptor  *join.Acceptor // where others find the communicator

	present     atomic.Pointer[epoch.Epoch]
	changing    sync.Mutex        // held while an epoch ends, and the next one begins
	decided     *successor        // until the next epoch is made; guarded by changing
	checkpoints *checkpoint.Store // guarded by changing
}

// owner is a communicator as its epochs and its acceptor see it.
type owner struct{ c *Comm }

var (
	_ epoch.Owner = owner{}
	_ join.Owner  = owner{}
)

// Timeout implements epoch.Owner.
func (o owner) Timeout() time.Duration { return o.c.Timeout() }

// Recover implements epoch.Owner. It is called with Epoch.mu held.
func (o owner) Recover() {
	ctx, giveUp := context.WithCancelCause(o.c.shared.Life)
	if o.c.shared.Suspended.Begin(giveUp) {
		go o.c.recoverAutomatically(ctx)
	} else {
		giveUp(nil)
	}
}

// Changed implements epoch.Owner.
func (o owner) Changed() { o.c.acceptor.Changed() }

// Leads implements join.Owner.
func (o owner) Leads() bool { return o.c.present.Load().Leads() }

// Listen implements join.Owner.
func (o owner) Listen() (*endpoint.Endpoint, error) {
	if end := o.c.present.Load().Endpoint(); end != nil {
		return end, nil
	}
	return o.c.openEnd()
}

// Rank returns this rank's number.
func (c *Comm) Rank() int { return c.present.Load().Rank }

// Size returns the number of ranks.
func (c *Comm) Size() int { return c.present.Load().Size() }

// Transport returns what joins this rank to a peer: "mem", "shm", "tcp" or "verbs"; "self" for
// itself, and "" for a rank that does not exist.
func (c *Comm) Transport(peer int) string { return c.present.Load().Kind(peer) }

// Sequence returns the number of the last collective that was started or refused, 0 before the
// first.
func (c *Comm) Sequence() uint64 { return c.present.Load().Sequence() }

// Timeout is that of operations that are started without one of their own.
func (c *Comm) Timeout() time.Duration { return time.Duration(c.timeout.Load()) }

// SetTimeout changes the timeout of operations started from now on.
func (c *Comm) SetTimeout(d time.Duration) error {
	if d <= 0 {
		return fault.Errorf(fault.ErrInvalidArgument, "timeout is %v, it must be positive", d)
	}
	c.timeout.Store(int64(d))
	return nil
}

// Err returns the first cause of the communicator's failure, nil while it works. It also returns an
// error where a peer's process has ended without a goodbye, though nothing has needed the peer yet.
func (c *Comm) Err() error {
	if err := c.present.Load().Err(); err != nil {
		return err
	}
	return nil
}

// FailedRanks returns the ranks that the error of Err blames: see Error.Ranks.
func (c *Comm) FailedRanks() []int { return c.present.Load().FailedRanks() }

// CallOptions says how an operation is to be made.
type CallOptions struct {
	Timeout time.Duration // <= 0: the communicator's
	// WaitSoon tells that the caller will call Wait at once: no worker is woken, and Start itself
	// already waits a little, so that a short operation has ended when it returns.
	WaitSoon bool
}

func (o CallOptions) options() epoch.Options {
	return epoch.Options{Timeout: o.Timeout, WaitSoon: o.WaitSoon}
}

// Start starts one operation, or several as one work. Without CallOptions.WaitSoon it does not wait
// for peers, unless the members recover: see Config.Recovery. The operations are refused, and
// nothing is started, if an argument is bad or the communicator has failed. Peers are told of
// collectives with bad arguments: they fail, and this rank with them, unless theirs are refused
// too.
func (c *Comm) Start(o CallOptions, operations ...Operation) (*Work, error) {
	for {
		e := c.present.Load()
		w, err := e.Start(o.options(), operations)
		if !errors.Is(err, epoch.ErrOver) {
			return w, err
		}
		c.awaitNext(e)
	}
}

// awaitNext waits for what follows an epoch that takes no operations any more, because the members
// recover or have recovered. It does not wait for calls that hold c.changing afterwards: on other
// ranks they may come after the collective that is to be started here.
func (c *Comm) awaitNext(e *epoch.Epoch) {
	if recovery := c.shared.Suspended.Recovery(); recovery != nil {
		<-recovery
	} else if c.present.Load() == e { // the next one is about to begin
		c.holdEpoch()
		c.changing.Unlock()
	}
}

// Refuse tells the peers that the caller was refused a collective, or a batch with one, before it
// came to Start. Start does the same for what it refuses itself. Refuse waits for nobody.
func (c *Comm) Refuse(reason string) { c.present.Load().Refuse(reason) }

// SideStep takes a place in the order for a collective that another library does: see epoch's.
func (c *Comm) SideStep(collective plan.Collective, to string) error {
	return c.present.Load().SideStep(collective, to)
}

// RefuseStart is Refuse for operations that were to be started together. It returns why they are
// not started. It tells nobody where all are sends and receives.
func (c *Comm) RefuseStart(why error, operations ...Operation) error {
	return c.present.Load().RefuseStart(why, operations)
}

// CarryOn takes over a collective that the caller has begun by the fast path, and goes on as Start
// does.
func (c *Comm) CarryOn(o CallOptions, operation Operation) (*Work, error) {
	return c.present.Load().CarryOn(o.options(), operation)
}

// FastPath returns what callers in C run collectives by. They name it by the handle.
func (c *Comm) FastPath(handle uint64) unsafe.Pointer { return c.present.Load().FastPath(handle) }

// Abort fails the communicator at once on all ranks. This rank gives up an automatic recovery that
// is under way.
func (c *Comm) Abort(reason string) {
	if reason == "" {
		reason = "no reason given"
	}
	e := c.present.Load()
	cause := e.Members.Errorf(fault.ErrAborted, "%s aborted it: %s", e.Members.Names(e.Rank), reason).
		Blaming(e.Rank)
	c.acceptor.Interrupt(cause)
	e.Fail(cause, true)
	c.shared.Suspended.GiveUp(cause)
}

// Destroy ends the communicator in good order. Works that have not ended end with ErrAborted. Peers
// are told that this rank has left. All that it had is given back; memory that an adapter still
// reads for a peer follows once that is over. Destroy waits only for peers that have not been told
// yet of a call that this rank was refused, or of a failure: half a second for each of the two at
// most. For the last communicator of a process it may wait for an adapter that has to send its last
// words again.
func (c *Comm) Destroy() {
	if c.destroyed.Swap(true) {
		return
	}
	cause := c.present.Load().Destroyed()
	c.endLife(cause)
	c.acceptor.Close(cause)
	c.changing.Lock()
	defer c.changing.Unlock()
	e := c.present.Load()
	e.LeaveWord()
	e.Finish(e.Destroyed())
	c.shared.Memories.DeregisterAll()
	e.FreeFastPath()
	e.Free()
	if c.shared.Arena != nil {
		c.runtime.arenas.Release()
	}
	e.Log(logs.Init).Info("the group is destroyed", "collectives", c.Sequence())
	c.runtime.forget(c)
}

// holdEpoch waits until no automatic recovery is under way, locks c.changing, and returns the
// present epoch.
func (c *Comm) holdEpoch() *epoch.Epoch {
	for {
		if recovery := c.shared.Suspended.Recovery(); recovery != nil {
			<-recovery
		}
		c.changing.Lock()
		if c.shared.Suspended.Recovery() == nil {
			return c.present.Load()
		}
		c.changing.Unlock()
	}
}
