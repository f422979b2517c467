package core

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/goccl/goccl/core/address"
	"github.com/goccl/goccl/core/epoch"
	"github.com/goccl/goccl/core/exec"
	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/meeting"
	"github.com/goccl/goccl/core/roster"
)

// Open makes a communicator that has no members yet: it joins nobody, and its collectives are
// refused until [Comm.Reconfigure] has made it a member of a group. No store is needed. What the
// configuration says of ranks is not looked at.
func (r *Runtime) Open(ctx context.Context, config Config) (*Comm, error) {
	r.tellVariables.Do(r.tellEnvironment)
	config.Rank, config.Size, config.GlobalRanks, config.Store = 0, 1, nil, nil
	c, err := r.openAlone(ctx, config)
	if err != nil {
		return nil, config.Concern(fault.From(err, fault.ErrSystem, "init"))
	}
	e := c.present.Load()
	e.Nobody = true
	e.Fail(fault.Errorf(fault.ErrInvalidArgument, "communicator %q has no members yet: exchange "+
		"handles, and reconfigure it first (Comm.Reconfigure, goccl_comm_reconfigure, "+
		"torch.distributed._reconfigure)", config.GroupName).In(&e.Members), false)
	return c, nil
}

// openAlone makes a communicator of one rank that others can find.
func (r *Runtime) openAlone(ctx context.Context, given Config) (*Comm, error) {
	config, err := given.Complete(r.environment())
	if err != nil {
		return nil, err
	}
	if cause := context.Cause(ctx); errors.Is(cause, fault.ErrAborted) {
		return nil, fault.From(cause, fault.ErrAborted, "init")
	}
	if err := cmp.Or(ctx.Err(), exec.TryAddressSpace()); err != nil {
		return nil, err
	}
	end, err := r.endpoint(config)
	if err != nil {
		return nil, err
	}
	c, err := r.openComm(config, end, newIdentity(), end.Roster(config.GroupName, 0, nil,
		roster.Alone(r.address(config, end))))
	end.Leave()
	if err != nil {
		return nil, err
	}
	if _, err := c.acceptor.Handle(); err != nil {
		c.Destroy()
		return nil, err
	}
	return c, nil
}

// Reconfigure makes the processes of the handles the communicator's members, in place: also where
// it has failed, or had other members. All of them must call it with the same handles and the same
// uuid, which none of them has used before. With ordered a handle's place is the rank of its
// process. Else the ranks are in the order of the handles' texts, and the places do not matter.
//
// It waits for all of them until the context's deadline or, where it has none, for the
// communicator's timeout. Where it fails before all have agreed the present members stay, and it
// may be called again with another uuid. The error is ErrInvalidArgument where the handles or the
// uuid cannot be right, and ErrPeerFailed where a process has ended. It is ErrMismatch where ranks
// were given different handles or hold different secrets, and ErrTimeout where one does not come.
// All ranks get it, as far as they take part.
//
// What is under way in the old membership ends with ErrRevoked, or with ErrAborted where a peer was
// quicker. In the new one the collectives count from 1.
func (c *Comm) Reconfigure(ctx context.Context, uuid string, handles []string, ordered bool) error {
	meetings, err := c.acceptor.Meetings()
	if err != nil {
		return err
	}
	ctx, cancel := c.limit(ctx)
	defer cancel()
	c.changing.Lock()
	defer c.changing.Unlock()
	old := c.present.Load()
	m, err := meetings.Begin(uuid)
	if err != nil {
		return err
	}
	list, err := meetings.NewList(c.shared.Settings.GroupName, handles, ordered)
	if err != nil {
		return m.Fail(err)
	}
	ranks, err := c.rosterOf(list)
	if err != nil {
		return m.Fail(fault.From(err, fault.ErrUnsupported, meeting.Operation))
	}
	agreed, err := m.Meet(ctx, list, meeting.Part{Epoch: old.Number(),
		Answers: epoch.AnswersOf(&ranks), Settings: c.shared.Settings.Same})
	if err != nil {
		return err
	}
	ranks.Agree(roster.Answers(agreed.Answers))
	ranks.Identity.Job, ranks.Identity.Group, ranks.Identity.Secret = m.Identity(list)
	old.Finish(old.Members.Errorf(fault.ErrRevoked, "it was reconfigured: its members are others now"))
	c.decided = nil
	if err := c.install(ranks, agreed.Epoch, false); err != nil {
		return err
	}
	c.logMade()
	return nil
}

// rosterOf returns the roster of the members that a list of handles names.
func (c *Comm) rosterOf(list *meeting.List) (roster.Roster, error) {
	addresses := make([]address.Address, len(list.Handles))
	for rank := range list.Handles {
		addresses[rank] = list.Handles[rank].Address
	}
	peers, err := roster.Join(addresses, list.Hosts, list.Rank, c.shared.Settings.Transport)
	if err != nil {
		return roster.Roster{}, fmt.Errorf("%s: %w", meeting.Operation, err)
	}
	return c.present.Load().Endpoint().Roster(c.shared.Settings.GroupName, list.Rank, nil, peers), nil
}
