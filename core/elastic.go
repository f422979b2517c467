package core

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/goccl/goccl/core/address"
	"github.com/goccl/goccl/core/agreement"
	"github.com/goccl/goccl/core/call"
	"github.com/goccl/goccl/core/epoch"
	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/join"
	"github.com/goccl/goccl/core/membership"
	"github.com/goccl/goccl/core/roster"
	"github.com/goccl/goccl/core/suspended"
	"github.com/goccl/goccl/core/trace"
	"github.com/goccl/goccl/core/work"
)

// Revoke fails the communicator at once on all ranks, so that those that wait in it come to Recover
// or Shrink, too.
func (c *Comm) Revoke(reason string) {
	if reason == "" {
		reason = "no reason given"
	}
	e := c.present.Load()
	e.Fail(e.Members.Errorf(fault.ErrRevoked, "%s revoked it: %s", e.Members.Names(e.Rank),
		reason).Blaming(e.Rank), true)
}

// Epoch returns the number of the present epoch. It grows with each change of members, and with
// Renew.
func (c *Comm) Epoch() uint32 { return c.present.Load().Number() }

// Member is a member of a communicator, as its process has told of itself.
type Member struct {
	Process uint64 // tells processes apart; the same in each epoch
	Host    string // its name
	PID     int
}

// Members returns the present members, by rank.
func (c *Comm) Members() []Member {
	e := c.present.Load()
	all := make([]Member, e.Size())
	for rank := range all {
		a := &e.Peers[rank]
		all[rank] = Member{binary.LittleEndian.Uint64(a.Process[:]), a.Name, a.PID}
	}
	return all
}

// Recover begins the communicator's next epoch with the members that are left, whatever has
// happened to the others: what has failed works again, with fewer ranks, which close up in their
// order. All members that live must call it. Where nothing has failed, each must call it as often
// as the others. Else those that wait in a collective hear of the failure, and must call it, too.
// Members decide together who is left. Where a part of them cannot be reached, the majority goes
// on, unless Config.Quorum says otherwise.
//
// A member that does not call it is left out after half of the time that the context has (default:
// the communicator's timeout). It is left out at once where a call has timed out to which it did
// not come, and it does not answer now a member that shares no memory with it. A member that is
// stopped and shares memory with another one is killed.
//
// A member that is left out gets ErrExcluded, those that are too few ErrNoQuorum: then there is no
// next epoch for this rank. After another error Recover may be called again.
func (c *Comm) Recover(ctx context.Context) error {
	return c.follow(ctx, agreement.Proposal{Operation: "recover"}, false)
}

// Grow is Recover that waits until a number of processes have come to join, for half of the
// context's time. It goes on with those that have come by then. All ranks give the same number.
func (c *Comm) Grow(ctx context.Context, newcomers int) error {
	if newcomers < 1 || newcomers > membership.MaxJoiners {
		return fault.Errorf(fault.ErrInvalidArgument, "grow: newcomers are %d, allowed are 1 to %d",
			newcomers, membership.MaxJoiners)
	}
	return c.follow(ctx, agreement.Proposal{Operation: "grow", Newcomers: newcomers}, false)
}

// follow begins the next epoch for a caller. An automatic recovery comes first, on all members.
// Asked is set where the caller has asked for the present epoch: then an epoch that works is
// enough, whoever made it.
func (c *Comm) follow(ctx context.Context, m agreement.Proposal, asked bool) error {
	return c.afterRecovery(func(e *epoch.Epoch) (err error) {
		if !asked || e.Failure() != nil {
			err = c.goOn(ctx, m)
		}
		asked = asked || c.present.Load() != e
		return err
	})
}

// goOn begins the next epoch, and once more where it fails because another member has ended. It is
// called with c.changing held.
func (c *Comm) goOn(ctx context.Context, m agreement.Proposal) error {
	ctx, cancel := c.limit(ctx)
	defer cancel()
	for {
		err := c.recover(ctx, m)
		// Where members recover by themselves it was a caller's Revoke: all come to Recover.
		again := errors.Is(err, fault.ErrPeerFailed) || c.present.Load().NewcomersFail(err) ||
			!m.Completes && errors.Is(err, fault.ErrRevoked) ||
			m.Completes && errors.Is(err, agreement.ErrRecovers)
		if !again || ctx.Err() != nil {
			return err
		}
		// The next epoch has failed already, and its members come to Recover.
		m = agreement.Proposal{Operation: "recover", Completes: m.Completes}
	}
}

// limit gives a context the communicator's timeout, unless it has a deadline, and ends it when the
// communicator is destroyed.
func (c *Comm) limit(ctx context.Context) (context.Context, context.CancelFunc) {
	deadline, ok := ctx.Deadline()
	if !ok {
		deadline = time.Now().Add(c.Timeout())
	}
	ctx, end := context.WithCancelCause(ctx)
	life := c.shared.Life
	stop := context.AfterFunc(life, func() { end(context.Cause(life)) })
	ctx, cancel := context.WithDeadline(ctx, deadline)
	return ctx, func() {
		stop()
		cancel()
		end(nil)
	}
}

// recover has the members decide on the next epoch, begins it, meets the others there, and
// completes suspended works. It is called with c.changing held.
func (c *Comm) recover(ctx context.Context, m agreement.Proposal) error {
	defer c.Trace().Add(trace.SpanRecover, trace.Begin(), nil, -1, 0)
	if c.decided == nil {
		if err := c.decideSuccessor(ctx, m); err != nil {
			return err
		}
	}
	if err := c.beginNext(); err != nil {
		return err
	}
	e := c.present.Load()
	if err := e.Meet(ctx); err != nil {
		return err
	}
	return c.complete(ctx, e)
}

// complete completes the suspended works in an epoch whose members have met. It is called with
// c.changing held.
func (c *Comm) complete(ctx context.Context, e *epoch.Epoch) error {
	return c.shared.Suspended.Complete(ctx, e.Service(), e.Rank,
		func(timeout time.Duration, operations []call.Operation) (*work.Work, error) {
			return e.Start(epoch.Options{Timeout: timeout, Reruns: true}, operations)
		})
}

// successor is a decision on the next epoch.
type successor struct {
	*agreement.Decision
	ended     suspended.Ended       // how far this rank has come in the present one
	transfers []*suspended.Transfer // what is passed on in the next one
}

// decideSuccessor has the members decide on the next epoch. It is called with c.changing held.
func (c *Comm) decideSuccessor(ctx context.Context, m agreement.Proposal) error {
	e := c.present.Load()
	if err := e.Alive(); err != nil {
		return err
	}
	d, ended, err := e.DecideSuccessor(ctx, m)
	if err != nil {
		c.acceptor.Reject(err)
		return err
	}
	// The results are taken now, for the next epoch clears what the fast path keeps of them.
	c.decided = &successor{Decision: d, ended: ended,
		transfers: c.shared.Suspended.Transfers(ended, &d.Record.Judgement, d.Value.Rank)}
	return nil
}

// beginNext begins the epoch that the members have decided on. It is called with c.changing held.
func (c *Comm) beginNext() error {
	e, d := c.present.Load(), c.decided
	ranks, err := c.successorRoster(e, d.Value)
	if err != nil {
		return err
	}
	e.Finish(e.Members.Errorf(fault.ErrRevoked, "epoch %d has ended: its members go on in the next "+
		"one", e.Number()))
	if err := c.install(ranks, e.Number()+1, true); err != nil {
		return err
	}
	c.shared.Suspended.Settle(d.ended, &d.Record.Judgement, d.Value.Rank, d.transfers)
	return nil
}

// successorRoster returns the roster of the epoch that a decision makes.
func (c *Comm) successorRoster(e *epoch.Epoch, v *membership.Value) (next roster.Roster,
	err error) {
	ranks := v.Survivors.Ranks()
	globalRanks, peers := e.Part(ranks)
	if e.Members.GlobalRanks == nil { // they are the job: its ranks close up
		globalRanks = nil
	}
	rank, transport := slices.Index(ranks, e.Rank), c.shared.Settings.Transport
	admitted := *v
	var addresses []address.Address
	admitted.Joiners, addresses = join.Admit(peers.Addresses(), v.Joiners, transport)
	if len(admitted.Joiners) > 0 {
		globalRanks = nil
		_, _, hosts, err := address.EncodeAll(addresses)
		if err == nil {
			peers, err = roster.Join(addresses, hosts, rank, transport)
		}
		if err != nil {
			return next, fault.From(err, fault.ErrInternal, "recover")
		}
	}
	next = e.Endpoint().Roster(e.Members.Name, rank, globalRanks, peers)
	next.Founders, next.Joined, next.Contested = admitted.NextFounders(), admitted.Joiners, v.Open
	next.Identity, err = e.Identity.OfValue(v).Of(addresses)
	return next, err
}

// recoverAutomatically recovers the communicator without a caller, and ends the works that are
// still suspended. It has a goroutine of its own, because it takes c.changing.
func (c *Comm) recoverAutomatically(ctx context.Context) {
	for over := false; !over; {
		var err error
		var left []*suspended.Work
		c.changing.Lock()
		if c.present.Load().Failure() != nil { // Renew or Reconfigure may have come first
			err = c.goOn(ctx, agreement.Proposal{Operation: "recover", Completes: true})
		}
		e := c.present.Load()
		left, over = e.EndRecovery(err != nil)
		c.changing.Unlock()
		for _, h := range left {
			cause := fault.From(err, fault.ErrRevoked, "it was not recovered")
			if err == nil {
				cause = e.Members.Errorf(fault.ErrRevoked, "the members have changed")
			}
			h.Resolve(cause)
		}
	}
}

// ShrinkOptions says what a communicator is shrunk to.
type ShrinkOptions struct {
	Exclude []int // ranks that are to be left out, though they may live; the same on all ranks
	Abort   bool  // the old communicator is revoked first
}

// Shrink makes a communicator of the members that are left, without those that are excluded. Its
// ranks close up in their order. All members that live and are not excluded must call it, with the
// same list, whether the communicator has failed or not; excluded ones must not. The old
// communicator stays as it is, but excluded ranks take no part in what its members decide later.
// See Recover for who is left out, and for the errors.
func (c *Comm) Shrink(ctx context.Context, o ShrinkOptions) (child *Comm, err error) {
	ctx, cancel := c.limit(ctx)
	defer cancel()
	called := c.present.Load()
	for _, rank := range o.Exclude {
		if rank < 0 || rank >= called.Size() || rank == called.Rank {
			return nil, fault.Errorf(fault.ErrInvalidArgument, "exclude has rank %d: allowed are 0 to %d, "+
				"but not %d, the caller's", rank, called.Size()-1, called.Rank)
		}
	}
	err = c.afterRecovery(func(e *epoch.Epoch) error {
		if e != called && len(o.Exclude) > 0 {
			return e.Members.Errorf(fault.ErrRevoked, "the members have changed: exclude has ranks of "+
				"epoch %d, and this is epoch %d", called.Number(), e.Number())
		}
		if o.Abort {
			c.Revoke("it is shrunk")
		}
		d, err := e.Decide(ctx, agreement.Proposal{Operation: "shrink"}, o.Exclude)
		if err != nil {
			return err
		}
		if child, err = c.shrunk(e, d.Value); err != nil {
			return err
		}
		e.Decisions().SetSuccessor(child.present.Load().Decisions())
		if err = child.meetOrRecover(ctx); err != nil {
			child.Destroy()
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return child, nil
}

// afterRecovery calls a function with the present epoch, once no automatic recovery is under way.
// It calls it again where the members turn out to recover first.
func (c *Comm) afterRecovery(now func(e *epoch.Epoch) error) error {
	for {
		e := c.holdEpoch()
		err := e.Alive()
		if err == nil {
			err = now(e)
		}
		c.changing.Unlock()
		if !errors.Is(err, agreement.ErrRecovers) {
			return err
		}
	}
}

// meetOrRecover runs the first meeting of a communicator that this rank has not had before. Where a
// member dies meanwhile some ranks may have met. They have the communicator, and recover it.
func (c *Comm) meetOrRecover(ctx context.Context) error {
	err := c.present.Load().Meet(ctx)
	if errors.Is(err, fault.ErrPeerFailed) || errors.Is(err, fault.ErrRevoked) ||
		c.present.Load().NewcomersFail(err) {
		return c.follow(ctx, agreement.Proposal{Operation: "recover"}, true)
	}
	return err
}

// shrunk makes the communicator that a decision of Shrink makes.
func (c *Comm) shrunk(e *epoch.Epoch, v *membership.Value) (*Comm, error) {
	members := v.Survivors.Ranks()
	globalRanks, peers := e.Part(members)
	id, err := e.Identity.OfValue(v).Of(peers.Addresses())
	if err != nil {
		return nil, err
	}
	settings := c.shared.Settings
	settings.Rank, settings.Size = slices.Index(members, e.Rank), len(members)
	settings.Timeout, settings.GlobalRanks = c.Timeout(), globalRanks
	settings.GroupName = fmt.Sprintf("%s/shrunk %x", e.Members.Name, v.Nonce[:4])
	ranks := e.Endpoint().Roster(settings.GroupName, settings.Rank, globalRanks, peers)
	ranks.Founders, ranks.Contested = v.NextFounders(), v.Open
	return c.runtime.openComm(settings, e.Endpoint(), id, ranks)
}

// Agree returns the flags that all members that are left have set. It works after a failure, too:
// members that have ended, and those that do not call it, take no part. All that live must call it.
// See Recover for who is left out, and for the errors.
func (c *Comm) Agree(ctx context.Context, flags uint64) (agreed uint64, err error) {
	ctx, cancel := c.limit(ctx)
	defer cancel()
	err = c.afterRecovery(func(e *epoch.Epoch) error {
		d, err := e.Decide(ctx, agreement.Proposal{Operation: "agree", Flags: flags}, nil)
		if err == nil {
			agreed = d.Record.Flags
		}
		return err
	})
	return agreed, err
}
