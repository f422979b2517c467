package core

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"

	"github.com/goccl/goccl/core/bootstrap"
	"github.com/goccl/goccl/core/endpoint"
	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/join"
	"github.com/goccl/goccl/core/roster"
)

// Join makes this process a member of a communicator that exists. The handles are those of members
// (see [Comm.Handle]): one that lives is enough. Where none are given it takes those of GOCCL_JOIN,
// separated by commas. Where there are none either, it finds a member as [Comm.Publish] has written
// it: at the etcd of GOCCL_STORE, or else in config.Store, of the group config.GroupName. It waits
// until there is one, and where that has ended for the next one.
//
// It waits until the members let it in, by Recover or Grow, for as long as the context lasts or,
// where that has no deadline, for the configuration's timeout. Its rank is one of the last. What
// the configuration says of ranks is not looked at; its settings and its secret must be those of
// the members.
func (r *Runtime) Join(ctx context.Context, config Config, handles []string) (*Comm, error) {
	r.tellVariables.Do(r.tellEnvironment)
	store := config.Store
	config.Rank, config.Size, config.GlobalRanks, config.Store = 0, 1, nil, nil
	until, cancel := r.Until(ctx)
	defer cancel()
	refused := func(err error) error {
		if errors.Is(context.Cause(until), fault.ErrAborted) {
			err = fault.Errorf(fault.ErrAborted, "join: %v", context.Cause(until))
		}
		return config.Concern(fault.From(err, fault.ErrSystem, "join")).During("join", 0)
	}
	c, err := r.openAlone(until, config)
	if err != nil {
		return nil, refused(err)
	}
	limited, cancel := c.limit(until)
	defer cancel()
	if err := c.join(limited, handles, store); err != nil {
		if c.shared.Life.Err() != nil {
			err = fault.Errorf(fault.ErrAborted, "join: %v", errClosed) // Close has ended it
		}
		c.Destroy()
		return nil, refused(err)
	}
	return c, nil
}

func (c *Comm) join(ctx context.Context, handles []string, store bootstrap.Store) error {
	c.changing.Lock()
	w, err := c.acceptor.Apply(ctx, handles, c.runtime.Getenv(EnvJoin), store)
	if err == nil {
		err = c.enter(w)
	}
	c.changing.Unlock()
	if err != nil {
		return err
	}
	err = c.meetOrRecover(ctx)
	if e := c.present.Load(); errors.Is(err, fault.ErrNoQuorum) && e.FoundersAreGone() {
		return e.Members.Errorf(fault.ErrPeerFailed, "join: the members that have let this process in "+
			"ended before it could go on without them").Hinting("Join again by the handle of another " +
			"member, if there is one")
	}
	return err
}

// enter makes this process a member of the epoch of a welcome. It is called with c.changing held.
func (c *Comm) enter(w *join.Welcome) error {
	ranks, err := c.acceptor.Roster(w)
	if err != nil {
		return err
	}
	old := c.present.Load()
	old.Finish(old.Members.Errorf(fault.ErrRevoked, "it has joined a group"))
	return c.install(ranks, w.Number, false)
}

// Joining returns how many processes wait at this rank to be members: Recover and Grow let them in.
func (c *Comm) Joining() int { return c.acceptor.Joining() }

// Handle returns a name of this process's end of the communicator. [Comm.Reconfigure] takes handles
// of those that are to be members of a group. [Runtime.Join] takes those of members. It is a text
// of base64, of at most 1 KiB, and stays the same as long as the communicator lives. Where the job
// has no secret, whoever has the text can join.
func (c *Comm) Handle() (string, error) { return c.acceptor.Handle() }

// Publish lets processes find the communicator that want to join it: see [Runtime.Join]. From now
// on the lowest rank of each epoch writes its handle to a store: to the etcd of GOCCL_STORE, or
// else to the given one. Every rank calls it, also one that has joined, for any may become the
// lowest. It does not wait for the store; where that cannot be written to a warning is logged.
//
// The store is used until the communicator is destroyed, or Publish is called again, by one
// goroutine at a time. If it is an [io.Closer] it is closed then. Where the job has no secret,
// whoever can read the store can join.
func (c *Comm) Publish(store bootstrap.Store) error {
	e := c.present.Load()
	err := e.Alive()
	if err == nil && store == nil && c.shared.Settings.Etcd == nil {
		err = fault.Errorf(fault.ErrInvalidArgument, "publish: no store is given, nor %s", EnvStore)
	}
	if err == nil && e.Rank == 0 {
		_, err = c.acceptor.Handle() // here, because a communicator of one begins another epoch by it
	}
	if err != nil {
		join.CloseStore(store)
		return err
	}
	return c.acceptor.Publish(store)
}

// openEnd gives a communicator of one rank, which was made without an endpoint, one that others can
// reach. It begins another epoch.
func (c *Comm) openEnd() (*endpoint.Endpoint, error) {
	c.changing.Lock()
	defer c.changing.Unlock()
	old := c.present.Load()
	if err := old.Failure(); err != nil {
		return nil, err
	}
	settings, end := c.shared.Settings, c.shared.End
	if end == nil {
		var err error
		if end, err = c.runtime.endpoint(settings); err != nil {
			return nil, err
		}
		c.shared.End = end
	}
	old.Finish(old.Members.Errorf(fault.ErrRevoked, "it lets others in from now on"))
	ranks := end.Roster(old.Members.Name, 0, old.Members.GlobalRanks,
		roster.Alone(c.runtime.address(settings, end)))
	ranks.Identity = newIdentity()
	return end, c.install(ranks, old.Number()+1, false)
}

// newIdentity makes the identity of a group that has one member so far.
func newIdentity() roster.Identity {
	b := make([]byte, 16+32)
	rand.Read(b)
	return roster.Identity{Job: binary.LittleEndian.Uint64(b),
		Group: binary.LittleEndian.Uint64(b[8:]), Secret: b[16:]}
}
