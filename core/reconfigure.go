package core

import (
	"cmp"
	"context"
	"fmt"

	"github.com/goccl/goccl/core/bootstrap"
	"github.com/goccl/goccl/core/exec"
	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/meeting"
	"github.com/goccl/goccl/core/transport"
)

// door is where others find a communicator that can be reconfigured.
type door struct {
	handle   meeting.Handle
	meetings *meeting.Meetings
	close    func() // no one is let in any more
}

// Open makes a communicator that has no members yet: it joins nobody, and its collectives are
// refused until [Comm.Reconfigure] has made it a member of a group. No store is needed. What the
// configuration says of ranks is not looked at.
func (r *Runtime) Open(ctx context.Context, config Config) (*Comm, error) {
	r.tellVariables.Do(r.tellEnvironment)
	config.Rank, config.Size, config.GlobalRanks, config.Store = 0, 1, nil, nil
	c, err := r.openAlone(ctx, config)
	if err != nil {
		return nil, config.concern(fault.From(err, fault.ErrSystem, "init"))
	}
	e := c.present.Load()
	e.fail(fault.Errorf(fault.ErrInvalidArgument, "communicator %q has no members yet: exchange "+
		"handles, and reconfigure it first (Comm.Reconfigure, goccl_comm_reconfigure, "+
		"torch.distributed._reconfigure)", config.GroupName).In(&e.members), false)
	return c, nil
}

// openAlone makes a communicator of one rank that others can find.
func (r *Runtime) openAlone(ctx context.Context, config Config) (*Comm, error) {
	if err := r.complete(&config); err != nil {
		return nil, err
	}
	if err := cmp.Or(ctx.Err(), exec.TryAddressSpace()); err != nil {
		return nil, err
	}
	verbs, err := r.verbs(config)
	if err != nil {
		return nil, err
	}
	end, err := r.endpoint(endpointKey{config.Interface, config.StoreHost, config.LivenessGrace,
		verbs})
	if err != nil {
		return nil, err
	}
	c, err := r.openDoor(config, end)
	if err != nil {
		r.leave(end)
		return nil, err
	}
	return c, nil
}

func (r *Runtime) openDoor(config Config, end *sharedEndpoint) (*Comm, error) {
	handle, err := meeting.New(r.address(config, end))
	if err != nil {
		return nil, err
	}
	key := ""
	if config.Secret != "" {
		if key, err = bootstrap.JobKey(config.Secret, ""); err != nil {
			return nil, err
		}
	}
	c, err := r.openComm(config, end, identity{}, []transport.Address{handle.Address},
		[]string{"self"})
	if err != nil {
		return nil, err
	}
	d := &door{handle: handle, meetings: meeting.NewMeetings(handle, key, end.Call)}
	d.close = end.Serve(transport.Service{ID: handle.ID(), Secret: d.meetings.Secret(),
		Answer: d.meetings.Answer})
	c.door = d
	return c, nil
}

// Handle names this process's end of the communicator to those that are to be members of a group
// with it: see [Comm.Reconfigure]. It is a text of base64, of at most 1 KiB, and stays the same as
// long as the communicator lives.
func (c *Comm) Handle() (string, error) {
	if c.door == nil {
		return "", notOpened("handle")
	}
	return c.door.handle.String(), nil
}

func notOpened(operation string) error {
	return fault.Errorf(fault.ErrUnsupported, "%s: the communicator has joined its group by init: "+
		"make one that can be reconfigured by Runtime.Open (goccl_config.reconfigurable, "+
		"init_process_group(enable_reconfigure=True))", operation).During(operation, 0)
}

// Reconfigure makes the processes of the handles the communicator's members, in place: also where
// it has failed, or had other members. All of them must call it with the same handles and the same
// uuid, which none of them has used before. Ordered tells that a handle's place is the rank of its
// process; else the ranks are in the order of the handles' texts, and the places do not matter.
//
// It waits for all of them until the context's deadline or, where it has none, for the
// communicator's timeout. Where it fails before all have agreed the present members stay, and it
// may be called again with another uuid: with ErrInvalidArgument where the handles or the uuid
// cannot be right, with ErrPeerFailed where a process has ended, with ErrMismatch where ranks were
// given different handles or hold different secrets, with ErrTimeout where one does not come. All
// ranks are told, as far as they take part.
//
// What is under way in the old membership ends with ErrRevoked. In the new one the collectives
// count from 1.
func (c *Comm) Reconfigure(ctx context.Context, uuid string, handles []string, ordered bool) error {
	if c.door == nil {
		return notOpened(meeting.Operation)
	}
	ctx, cancel := c.limit(ctx)
	defer cancel()
	c.changing.Lock()
	defer c.changing.Unlock()
	old := c.present.Load()
	m, err := c.door.meetings.Begin(uuid)
	if err != nil {
		return err
	}
	list, err := meeting.NewList(c.door.handle, c.config.GroupName, handles, ordered)
	if err != nil {
		return m.Fail(err)
	}
	ranks, err := c.rosterOf(list)
	if err != nil {
		return m.Fail(fault.From(err, fault.ErrUnsupported, meeting.Operation))
	}
	agreed, err := m.Meet(ctx, list, meeting.Part{Epoch: old.number, Answers: ranks.answers(),
		Settings: c.config.common()})
	if err != nil {
		return err
	}
	ranks.agree(agreed.Answers)
	ranks.identity.job, ranks.identity.group, ranks.identity.secret = m.Identity(list)
	old.finish(old.members.Errorf(fault.ErrRevoked, "it was reconfigured: its members are others now"))
	c.undone = nil
	if err := c.install(ranks, agreed.Epoch); err != nil {
		return err
	}
	c.present.Load().logMade()
	return nil
}

// rosterOf are the members that a list of handles names.
func (c *Comm) rosterOf(list *meeting.List) (roster, error) {
	addresses := make([]transport.Address, len(list.Handles))
	for rank := range list.Handles {
		addresses[rank] = list.Handles[rank].Address
	}
	kinds, err := decide(addresses, list.Hosts, list.Rank, c.config.Transport)
	if err != nil {
		return roster{}, fmt.Errorf("%s: %w", meeting.Operation, err)
	}
	return newRoster(c.config.GroupName, list.Rank, nil, addresses, kinds, c.end), nil
}

// unjoined tells whether a communicator has been opened, and has no members yet.
func (c *Comm) unjoined(e *epoch) bool { return c.door != nil && e.identity.secret == nil }

// shutDoor ends what Reconfigure waits for.
func (c *Comm) shutDoor(cause *fault.Error) {
	c.door.meetings.Close(cause)
	c.door.close()
}
