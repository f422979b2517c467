package core

import (
	"context"
	"crypto/rand"
	"encoding/binary"

	"github.com/goccl/goccl/core/bootstrap"
	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/meeting"
	"github.com/goccl/goccl/core/roster"
	"github.com/goccl/goccl/core/transport"
)

// entry is what a communicator has for processes that come.
type entry struct {
	door    *door     // nil until somebody may come
	notice  *notice   // nil: nobody can find it who has no handle
	joiners []*joiner // who wait here to be members
	barred  bool      // the others go on without this rank: nobody waits here in vain
}

// door is where others find a communicator: to be members of a group with it, see Reconfigure, or
// to join it, see Join.
type door struct {
	key      string // of the job
	handle   meeting.Handle
	meetings *meeting.Meetings
	close    func() // no one is let in any more
}

// Handle names this process's end of the communicator: to those that are to be members of a group
// with it, see [Comm.Reconfigure], and to those that are to join it, see [Runtime.Join]. It is a
// text of base64, of at most 1 KiB, and stays the same as long as the communicator lives. Where the
// job has no secret, whoever has the text can join.
func (c *Comm) Handle() (string, error) {
	d, err := c.openDoor()
	if err != nil {
		return "", err
	}
	return d.handle.String(), nil
}

// openDoor lets others find the communicator from now on.
func (c *Comm) openDoor() (*door, error) {
	c.opening.Lock()
	defer c.opening.Unlock()
	if d := c.entrance(); d != nil {
		return d, nil
	}
	if c.end == nil {
		if err := c.openEnd(); err != nil {
			return nil, err
		}
	}
	key := ""
	if c.config.Secret != "" {
		var err error
		if key, err = bootstrap.JobKey(c.config.Secret, ""); err != nil {
			return nil, fault.Errorf(fault.ErrSystem, "handle: %v", err)
		}
	}
	e := c.present.Load()
	handle, err := meeting.New(e.Peers[e.Rank].Address, key)
	if err != nil {
		return nil, fault.From(err, fault.ErrSystem, "handle")
	}
	d := &door{key: key, handle: handle, meetings: meeting.NewMeetings(handle, key, c.end.Call)}
	d.close = c.end.Serve(transport.Service{ID: handle.ID(), Secret: d.meetings.Secret(),
		Answer: func(ctx context.Context, topic uint64, request []byte) []byte {
			if topic == joinTopic {
				return c.answerJoin(ctx, d, request)
			}
			return d.meetings.Answer(ctx, topic, request)
		}})
	c.mu.Lock()
	c.entry.door = d
	destroyed := c.destroyed
	c.mu.Unlock()
	if destroyed {
		d.shut(destroyedHere(e))
	}
	return d, nil
}

// entrance is the communicator's door, nil while it has none.
func (c *Comm) entrance() *door {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.entry.door
}

// openEnd gives a communicator of one rank, which was made without one, an end that others can
// reach.
func (c *Comm) openEnd() error {
	c.changing.Lock()
	defer c.changing.Unlock()
	old := c.present.Load()
	if err := old.failed(); err != nil {
		return err
	}
	end, err := c.runtime.endpoint(c.config)
	if err != nil {
		return err
	}
	old.finish(old.Members.Errorf(fault.ErrRevoked, "it lets others in from now on"))
	c.end = end
	ranks := newRoster(old.Members.Name, 0, old.Members.GlobalRanks,
		roster.Alone(c.runtime.address(c.config, end)), end)
	ranks.Identity = newIdentity()
	return c.install(ranks, old.number+1)
}

// newIdentity is that of a group that has one member so far.
func newIdentity() roster.Identity {
	b := make([]byte, 16+32)
	rand.Read(b)
	return roster.Identity{Job: binary.LittleEndian.Uint64(b),
		Group: binary.LittleEndian.Uint64(b[8:]), Secret: b[16:]}
}

// shut ends what Reconfigure waits for, and lets nobody in any more.
func (d *door) shut(cause *fault.Error) {
	d.meetings.Close(cause)
	d.close()
}
