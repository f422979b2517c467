package core

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/goccl/goccl/core/address"
	"github.com/goccl/goccl/core/bootstrap"
	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/membership"
	"github.com/goccl/goccl/core/roster"
)

// Revoke fails the communicator at once on all ranks, so that those that wait in it come to Recover
// or Shrink, too.
func (c *Comm) Revoke(reason string) {
	if reason == "" {
		reason = "no reason given"
	}
	e := c.present.Load()
	e.fail(e.Members.Errorf(fault.ErrRevoked, "%s revoked it: %s", e.Members.Names(e.Rank),
		reason).Blaming(e.Rank), true)
}

// Epoch is the number of the present epoch. It grows with each change of membership, and with
// Renew.
func (c *Comm) Epoch() uint32 { return c.present.Load().number }

// Member is a member of a communicator, as its process has told of itself.
type Member struct {
	Process uint64 // tells processes apart; the same in each epoch
	Host    string // its name
	PID     int
}

// Members are the present members, by rank.
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
// order. All members that live must call it: where nothing has failed, each as often as the others;
// else those that wait in a collective hear of the failure, and must call it, too. Members decide
// together who is left. Where a part of them cannot be reached, the majority goes on, unless
// Config.Quorum says otherwise. One that does not call it is left out after half of the time that
// the context has (default: the communicator's timeout); at once where a call has timed out to
// which it did not come, and it does not answer a member now that shares no memory with it. One
// that is stopped and shares memory with another member is killed.
//
// A member that is left out gets ErrExcluded, those that are too few ErrNoQuorum: then there is no
// next epoch for this rank. After another error Recover may be called again.
func (c *Comm) Recover(ctx context.Context) error {
	return c.follow(ctx, proposal{Operation: "recover"}, false)
}

// Grow is Recover that waits until a number of processes have come to join, for half of the
// context's time. It goes on with those that have come by then. All ranks give the same number.
func (c *Comm) Grow(ctx context.Context, newcomers int) error {
	if newcomers < 1 || newcomers > membership.MaxJoiners {
		return fault.Errorf(fault.ErrInvalidArgument, "grow: newcomers are %d, allowed are 1 to %d",
			newcomers, membership.MaxJoiners)
	}
	return c.follow(ctx, proposal{Operation: "grow", Newcomers: newcomers}, false)
}

// errRecovers tells that the members recover by themselves first.
var errRecovers = errors.New("the members recover by themselves")

// follow begins the next epoch for a caller. An automatic recovery comes first, on all members.
// Asked tells that the present epoch is one that the caller asked for: then an epoch that works is
// enough, whoever made it.
func (c *Comm) follow(ctx context.Context, m proposal, asked bool) error {
	return c.afterRecovery(func(e *epoch) (err error) {
		if !asked || e.failed() != nil {
			err = c.goOn(ctx, m)
		}
		asked = asked || c.present.Load() != e
		return err
	})
}

// goOn begins the next epoch. Its caller holds c.changing.
func (c *Comm) goOn(ctx context.Context, m proposal) error {
	ctx, cancel := c.limit(ctx)
	defer cancel()
	for {
		err := c.recover(ctx, m)
		// Where members recover by themselves it was a caller's Revoke: all come to Recover.
		again := errors.Is(err, fault.ErrPeerFailed) || c.newcomersFail(err) ||
			!m.Completes && errors.Is(err, fault.ErrRevoked) || m.Completes && errors.Is(err, errRecovers)
		if !again || ctx.Err() != nil {
			return err
		}
		// The next epoch has failed already: its members come to Recover.
		m = proposal{Operation: "recover", Completes: m.Completes}
	}
}

// limit gives a context the communicator's timeout, unless it has a deadline, and ends it when the
// communicator is destroyed.
func (c *Comm) limit(ctx context.Context) (context.Context, context.CancelFunc) {
	deadline, ok := ctx.Deadline()
	if !ok {
		deadline = time.Now().Add(c.defaultTimeout())
	}
	ctx, end := context.WithCancelCause(ctx)
	stop := context.AfterFunc(c.life, func() { end(context.Cause(c.life)) })
	ctx, cancel := context.WithDeadline(ctx, deadline)
	return ctx, func() {
		stop()
		cancel()
		end(nil)
	}
}

func (c *Comm) recover(ctx context.Context, m proposal) error {
	if c.decided == nil {
		if err := c.decideSuccessor(ctx, m); err != nil {
			return err
		}
	}
	if err := c.beginNext(); err != nil {
		return err
	}
	if err := c.meetAgain(ctx); err != nil {
		return err
	}
	return c.complete(ctx)
}

// decideSuccessor has the members decide on the next epoch.
func (c *Comm) decideSuccessor(ctx context.Context, m proposal) error {
	e := c.present.Load()
	if err := c.alive(e); err != nil {
		return err
	}
	if e.failed() == nil {
		// Collectives that have ended on other ranks end on this one, too.
		half, cancel := context.WithTimeout(ctx, remaining(ctx)/2)
		err := (service{c}).Barrier(half)
		cancel()
		if err != nil && e.failed() == nil {
			return err
		}
	}
	if e.failed() != nil {
		// No operation of the epoch may read or write buffers any more when others hear from this rank.
		e.endWorks(nil)
		e.starting.Wait() // works that a preempted call has queued are held, too
	}
	c.lockOrder()
	recovers := c.recovering != nil
	m.Unmet = e.unmet()
	m.Progress = e.progress()
	e.unlockOrder()
	if recovers && !m.Completes {
		return errRecovers
	}
	d, err := e.reachDecision(ctx, m, e.absent(ctx))
	if err != nil {
		c.bar(err)
		return err
	}
	d.transfers = e.transfersOf(d, m.Progress) // the next epoch forgets what is here
	d.mine = m.Progress
	c.decided = d
	return nil
}

// beginNext begins the epoch that the members have decided on.
func (c *Comm) beginNext() error {
	e, d := c.present.Load(), c.decided
	ranks, err := e.successor(d.value)
	if err != nil {
		return err
	}
	e.finish(e.Members.Errorf(fault.ErrRevoked, "epoch %d has ended: its members go on in the next "+
		"one", e.number))
	err = c.install(ranks, e.number+1)
	next := c.present.Load()
	if next != e {
		c.decided = nil
	}
	if err != nil {
		return err
	}
	e.leadsTo(next)
	next.welcomes()
	e.settleSuspended(d)
	return nil
}

// alive tells why nothing can follow an epoch: its communicator is destroyed, or has no members.
func (c *Comm) alive(e *epoch) error {
	c.mu.Lock()
	over := c.destroyed || e.Nobody
	c.mu.Unlock()
	if !over {
		return nil
	}
	if err := e.failed(); err != nil {
		return err
	}
	return destroyedHere(e) // Destroy is about to say so
}

func remaining(ctx context.Context) time.Duration {
	deadline, _ := ctx.Deadline()
	return time.Until(deadline)
}

// successor is the roster of the epoch that a decision makes.
func (c *epoch) successor(v *membership.Value) (next roster.Roster, err error) {
	ranks := v.Survivors.Ranks()
	globalRanks, peers := c.Part(ranks)
	if c.Members.GlobalRanks == nil { // they are the job: its ranks close up
		globalRanks = nil
	}
	rank := slices.Index(ranks, c.Rank)
	admitted := *v
	var addresses []address.Address
	admitted.Joiners, addresses = admit(peers.Addresses(), v.Joiners, c.config.Transport)
	if len(admitted.Joiners) > 0 {
		globalRanks = nil
		_, _, hosts, err := address.EncodeAll(addresses)
		if err == nil {
			peers, err = roster.Join(addresses, hosts, rank, c.config.Transport)
		}
		if err != nil {
			return next, fault.From(err, fault.ErrInternal, "recover")
		}
	}
	next = newRoster(c.Members.Name, rank, globalRanks, peers, c.end)
	next.Founders, next.Joined, next.Contested = admitted.NextFounders(), admitted.Joiners, v.Open
	next.Identity, err = c.Identity.OfValue(v).Of(addresses)
	return next, err
}

// meetAgain is the first collective of an epoch that was installed with other ranks: it waits for
// all, and settles what all must answer alike. For newcomers it waits for half of the context's
// time, so that the members can do without them in the other half.
func (c *Comm) meetAgain(ctx context.Context) error {
	e := c.present.Load()
	if len(e.Joined) > 0 {
		half := remaining(ctx) / 2
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, max(half/2, half-findOut))
		defer cancel()
	}
	all, err := c.gather(ctx, ofRecovery, true, int64(answersOf(&e.Roster)))
	if err != nil {
		return err
	}
	unanimous := bootstrap.Answers(all[0])
	for _, answers := range all {
		unanimous &= bootstrap.Answers(answers)
	}
	e.agree(unanimous)
	c.mu.Lock()
	e.hasMet = true
	c.mu.Unlock()
	if len(e.Joined) > 0 {
		// Newcomers go on without the others only where none of these can do without them.
		if err := (service{c}).Barrier(ctx); err != nil {
			return err
		}
	}
	e.met()
	return nil
}

// findOut is how long it takes at most to find out who has not come.
const findOut = 4 * askTime

// newcomersFail tells whether an error is that of a first meeting with newcomers whose time was
// over, or which somebody has left or given up: then the members do without those that have not
// come.
func (c *Comm) newcomersFail(err error) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return (errors.Is(err, fault.ErrTimeout) || errors.Is(err, fault.ErrAborted)) &&
		c.present.Load().unmet()
}

// unmet tells whether the epoch has newcomers, and its first meeting is not over. It is called with
// the lock held.
func (c *epoch) unmet() bool { return len(c.Joined) > 0 && !c.allMet }

// strangers are the newcomers that this rank, which is none, has not met: it may do without them.
func (c *epoch) strangers() (ranks []int) {
	c.mu.Lock()
	met := c.hasMet
	c.mu.Unlock()
	for rank := c.Size() - len(c.Joined); rank < c.Size() && !met && !c.IsNewcomer(c.Rank); rank++ {
		ranks = append(ranks, rank)
	}
	return ranks
}

// absent are the newcomers that the members do without after a first meeting has failed: those that
// are lost, and those that do not answer and are blamed. Where its time was over they are those
// that have not come or, where nobody is missing, all of them: one says that it has come, and has
// not.
func (c *epoch) absent(ctx context.Context) (ranks []int) {
	failure, strangers := c.failed(), c.strangers()
	if failure == nil || len(strangers) == 0 {
		return nil
	}
	late := errors.Is(failure, fault.ErrTimeout)
	var asked []int
	for rank := range c.Size() {
		_, lost := c.departure(rank)
		switch blamed := slices.Contains(failure.Ranks, rank) && c.IsNewcomer(rank); {
		case rank == c.Rank:
		case lost && c.IsNewcomer(rank):
			ranks = append(ranks, rank)
		case !lost && (late || blamed):
			asked = append(asked, rank)
		}
	}
	if len(asked) == 0 {
		return ranks
	}
	missing, behind := c.askThese(ctx, asked, 1)
	for _, r := range behind {
		if late {
			missing = append(missing, r.rank)
		}
	}
	if late && len(missing)+len(ranks) == 0 {
		return strangers
	}
	for _, rank := range strangers {
		if slices.Contains(missing, rank) {
			ranks = append(ranks, rank)
		}
	}
	return ranks
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
	err = c.afterRecovery(func(e *epoch) error {
		if e != called && len(o.Exclude) > 0 {
			return e.Members.Errorf(fault.ErrRevoked, "the members have changed: exclude has ranks of "+
				"epoch %d, and this is epoch %d", called.number, e.number)
		}
		if o.Abort {
			c.Revoke("it is shrunk")
		}
		d, err := e.reachDecision(ctx, proposal{Operation: "shrink"}, o.Exclude)
		if err != nil {
			return err
		}
		if child, err = e.shrunk(d.value); err != nil {
			return err
		}
		e.leadsTo(child.present.Load())
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
func (c *Comm) afterRecovery(now func(e *epoch) error) error {
	for {
		e := c.holdEpoch()
		err := c.alive(e)
		if err == nil {
			err = now(e)
		}
		c.changing.Unlock()
		if !errors.Is(err, errRecovers) {
			return err
		}
	}
}

// meetOrRecover is the first meeting of a communicator that this rank has not had before. Where a
// member dies meanwhile some ranks may have met: they have the communicator, and recover it.
func (c *Comm) meetOrRecover(ctx context.Context) error {
	err := c.meetAgain(ctx)
	if errors.Is(err, fault.ErrPeerFailed) || errors.Is(err, fault.ErrRevoked) ||
		c.newcomersFail(err) {
		return c.follow(ctx, proposal{Operation: "recover"}, true)
	}
	return err
}

// shrunk makes the communicator of a decision.
func (c *epoch) shrunk(v *membership.Value) (*Comm, error) {
	members := v.Survivors.Ranks()
	config := c.config
	config.Rank, config.Size = slices.Index(members, c.Rank), len(members)
	config.Timeout = c.defaultTimeout()
	config.GroupName = fmt.Sprintf("%s/shrunk %x", c.Members.Name, v.Nonce[:4])
	globalRanks, peers := c.Part(members)
	config.GlobalRanks = globalRanks
	if c.end != nil {
		c.end.Share()
	}
	child, err := c.runtime.newComm(config, c.end, peers)
	if err == nil {
		child.present.Load().Founders = v.NextFounders()
		child.present.Load().settled, child.present.Load().Contested = false, v.Open
		var id roster.Identity
		if id, err = c.Identity.OfValue(v).Of(peers.Addresses()); err == nil {
			err = child.open(id)
		}
	}
	if err != nil && c.end != nil {
		c.end.Leave()
	}
	return child, err
}

// Agree returns those of the flags that all members have set which are left. It works after a
// failure, too: members that have ended, and those that do not call it, take no part. All that live
// must call it. See Recover for who is left out, and for the errors.
func (c *Comm) Agree(ctx context.Context, flags uint64) (agreed uint64, err error) {
	ctx, cancel := c.limit(ctx)
	defer cancel()
	err = c.afterRecovery(func(e *epoch) error {
		d, err := e.reachDecision(ctx, proposal{Operation: "agree", Flags: flags}, nil)
		if err == nil {
			agreed = d.record.Flags
		}
		return err
	})
	return agreed, err
}
