package goccl

import (
	"context"
	"time"

	"github.com/goccl/goccl/core"
)

// Comm is a communicator: a rank's part in a group. It is made by [Init], [Join], [Open],
// [Comm.Split] or [Comm.Shrink], and its methods may be called from any goroutine.
type Comm struct{ core *core.Comm }

// Rank returns this rank's number. A change of members may change it.
func (c *Comm) Rank() int { return c.core.Rank() }

// Size returns the number of ranks. A change of members may change it.
func (c *Comm) Size() int { return c.core.Size() }

// Transport returns what joins this rank to a peer: "mem" within a process, "shm", "tcp" or
// "verbs"; "self" for itself, and "" for a rank that does not exist.
func (c *Comm) Transport(peer int) string { return c.core.Transport(peer) }

// SetTimeout changes the timeout of calls whose context has no deadline. It must be positive.
func (c *Comm) SetTimeout(d time.Duration) error {
	return public(context.Background(), "set_timeout", c.core.SetTimeout(d))
}

// Err returns the first cause of the communicator's failure, nil while it works. It also returns an
// error where a peer's process has ended without [Comm.Close], though nothing has needed the peer
// yet.
func (c *Comm) Err() error { return public(context.Background(), "", c.core.Err()) }

// Close ends the communicator in good order. Works that have not ended end with [ErrAborted], and
// peers are told that this rank has left: to them it has not failed. It returns nil, and may be
// called again. Ranks that are done with a collective need not wait for others before they close.
func (c *Comm) Close() error {
	c.core.Destroy()
	return nil
}

// Abort fails the communicator at once on all ranks, with [ErrAborted] and the reason.
func (c *Comm) Abort(reason string) { c.core.Abort(reason) }

// Revoke fails the communicator at once on all ranks, with [ErrRevoked] and the reason, so that
// those that wait in it come to [Comm.Recover] or [Comm.Shrink], too.
func (c *Comm) Revoke(reason string) { c.core.Revoke(reason) }

// Split parts the communicator: ranks of equal color (0 or more) meet in a new one, ordered by key
// and then by rank. All ranks call it. One with a negative color takes part, and gets a nil Comm
// and no error.
func (c *Comm) Split(ctx context.Context, color, key int) (*Comm, error) {
	child, err := c.core.Split(ctx, color, key)
	return wrap(ctx, "split", child, err)
}

// Member is a member of a communicator, as its process has told of itself.
type Member struct {
	Process uint64 // tells processes apart; the same as long as the process is a member
	Host    string // its name
	PID     int
}

// Members returns the present members, by rank.
func (c *Comm) Members() []Member {
	var all []Member
	for _, m := range c.core.Members() {
		all = append(all, Member(m))
	}
	return all
}

// Epoch returns the number of the present epoch. It grows with each change of members, and with
// [Comm.Renew].
func (c *Comm) Epoch() uint32 { return c.core.Epoch() }

// Recover goes on with the members that are left, and with the processes that wait to [Join]: the
// next epoch of the communicator begins, and what has failed works again. Ranks close up in their
// order, newcomers follow, and Rank and Size tell the new numbers.
//
// All members that live must call it: where nothing has failed, each as often as the others. They
// decide together who is left. A member that has ended is left out without a wait; one that does
// not call it, after half of the time: that to the context's deadline or, where it has none, the
// communicator's timeout. Where a part of the members cannot be reached the majority goes on: see
// [Config.Quorum].
//
// The error is [ErrExcluded] where the others go on without this rank, and [ErrNoQuorum] where too
// few are left here. Then this communicator has no next epoch. After another error Recover may be
// called again.
func (c *Comm) Recover(ctx context.Context) error {
	return public(ctx, "recover", c.core.Recover(ctx))
}

// Grow is [Comm.Recover] that first waits until a number of processes have come to join, for half
// of its time. It goes on with those that have come by then. All ranks give the same number.
func (c *Comm) Grow(ctx context.Context, newcomers int) error {
	return public(ctx, "grow", c.core.Grow(ctx, newcomers))
}

// NumWaiting returns how many processes wait at this rank to join: [Comm.Recover] and [Comm.Grow]
// let them in.
func (c *Comm) NumWaiting() int { return c.core.Joining() }

// Renew begins the next epoch with the same ranks: what has failed works again. All ranks must call
// it, each as often as the others. It fails at once where a rank is known to have ended.
func (c *Comm) Renew(ctx context.Context) error { return public(ctx, "renew", c.core.Renew(ctx)) }

// ShrinkOptions says what a communicator is shrunk to.
type ShrinkOptions struct {
	Exclude []int // ranks to leave out, though they may live; the same on all ranks
	Abort   bool  // revoke the old communicator first
}

// Shrink makes a communicator of the members that are left, without those that are excluded, whose
// ranks close up in their order. All members that live and are not excluded must call it, with the
// same list, whether the communicator has failed or not. It stays as it is. See [Comm.Recover] for
// who is left out, and for the errors.
func (c *Comm) Shrink(ctx context.Context, o ShrinkOptions) (*Comm, error) {
	child, err := c.core.Shrink(ctx, core.ShrinkOptions(o))
	return wrap(ctx, "shrink", child, err)
}

// Agree returns the flags that all members that are left have set, the same on all of them. It
// works after a failure, too. All that live must call it. See [Comm.Recover] for who is left out,
// and for the errors.
func (c *Comm) Agree(ctx context.Context, flags uint64) (uint64, error) {
	agreed, err := c.core.Agree(ctx, flags)
	return agreed, public(ctx, "agree", err)
}

// Handle returns a name of this process's end of the communicator, for [Join] and
// [Comm.Reconfigure] of other processes. It is a text of at most 1 KiB, and stays the same. Where
// the job has no secret, whoever has the text can join.
func (c *Comm) Handle() (string, error) {
	handle, err := c.core.Handle()
	return handle, public(context.Background(), "handle", err)
}

// Publish lets processes find the communicator that want to [Join] it: the lowest rank of each
// epoch writes its handle to the etcd of GOCCL_STORE, or else to the store. All ranks call it, also
// those that have joined. It waits for nothing.
//
// The store is used until the communicator is closed or Publish is called again, by one goroutine
// at a time; if it is an io.Closer it is closed then. Where the job has no secret, whoever can read
// the store can join.
func (c *Comm) Publish(store Store) error {
	return public(context.Background(), "publish", c.core.Publish(store))
}

// Reconfigure makes the processes of the handles the communicator's members, in place, also where
// it has failed or had others. All of them must call it with the same handles and the same uuid,
// which none of them has used before. With ordered a handle's place is the rank of its process;
// else ranks are in the order of the handles' texts.
//
// Where it fails before all have agreed the present members stay, and it may be called again with
// another uuid. Operations that have not ended get [ErrRevoked] or [ErrAborted].
func (c *Comm) Reconfigure(ctx context.Context, uuid string, handles []string,
	ordered bool) error {
	return public(ctx, "reconfigure", c.core.Reconfigure(ctx, uuid, handles, ordered))
}

// Checkpoint keeps a version of the models in the memory of the ranks. The global model is the same
// on all ranks. Each rank also has a local one, of which as many other ranks as replicas keep
// copies, on other hosts first. All ranks must call it, with the same number of replicas.
//
// Once it has returned on any rank the version is not lost as long as a member lives. The models
// are copied. All that a rank holds, in two versions, is at most 1 GiB.
//
// The error is [ErrMismatch] on all ranks where global models or replicas differ, and where the
// members have changed: then [Comm.LoadCheckpoint] must come first.
func (c *Comm) Checkpoint(ctx context.Context, global, local []byte, replicas int) error {
	return public(ctx, "checkpoint", c.core.CheckPoint(ctx, global, local, replicas))
}

// A Checkpoint is a version of the models as a rank gets it.
type Checkpoint struct {
	// Version counts from 1; 0: there is none, and nothing else is set.
	Version uint64
	// Global is the model that is the same on all ranks.
	Global []byte
	// Local is this rank's own model, or that of a rank that has ended, whose place it takes; nil
	// where it has joined and there is none for it.
	Local []byte
	// Orphans are local models of ranks that have ended, whose place nobody takes. Each is here on
	// one rank only, and a lost one on all.
	Orphans []Orphan
}

// Orphan is a local model of a rank that has ended.
type Orphan struct {
	Rank  int    // which it was when the version was made
	Size  uint64 // in bytes
	Model []byte // nil: all copies are lost
}

// LoadCheckpoint returns the newest version that all members have which have been in one. All ranks
// must call it after the members have changed, and after a [Comm.Checkpoint] that has failed. A
// rank that has joined gets the models from others. What is returned is the caller's.
//
// A model that has changed in memory is found out and got from another rank; the error is
// [ErrMismatch], on all ranks, where no rank has it unchanged.
func (c *Comm) LoadCheckpoint(ctx context.Context) (*Checkpoint, error) {
	from, err := c.core.LoadCheckPoint(ctx)
	if err != nil {
		return nil, public(ctx, "load_checkpoint", err)
	}
	to := &Checkpoint{Version: from.Version, Global: from.Global, Local: from.Local}
	for _, o := range from.Orphans {
		to.Orphans = append(to.Orphans, Orphan(o))
	}
	return to, nil
}

// CheckpointVersion returns the version that [Comm.Checkpoint] or [Comm.LoadCheckpoint] has
// returned with last, 0 before the first.
func (c *Comm) CheckpointVersion() uint64 { return c.core.VersionNumber() }
