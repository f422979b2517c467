package core

import (
	"context"

	"github.com/goccl/goccl/core/bootstrap"
	"github.com/goccl/goccl/core/checkpoint"
	"github.com/goccl/goccl/core/epoch"
	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/logs"
)

// Any group that can be made can have made a version.
const _ = uint(checkpoint.MaxRanks - bootstrap.MaxSize)

// CheckPoint makes the next version of the models, in memory. The global model is the same on all
// ranks. Each rank also has a local model, of which `replicas` other ranks keep copies. Ranks of
// other hosts come first, and no two of a host while other hosts have none. Where there are fewer
// others, all keep a copy. So a local model is lost only where its rank and all that keep it end
// before the next version. All ranks must call it, with the same number of replicas. Once it has
// returned on any rank the version is not lost as long as a member lives. After an error
// LoadCheckPoint tells whether it counts. Models are copied.
//
// The error is ErrMismatch, on all ranks, where global models, replicas or versions differ. It is
// that, too, where the members have changed since the last version, and LoadCheckPoint must come
// first: else what only the ended had would be dropped unseen. It is ErrInvalidArgument where
// replicas are negative, or where the models of some rank are too large: 1 GiB is allowed for its
// own and all copies that it keeps for others, in two versions. It is that, too, where a call has
// failed after its version was whole on some rank: then LoadCheckPoint must come first. Nothing has
// changed after these errors.
func (c *Comm) CheckPoint(ctx context.Context, global, local []byte, replicas int) error {
	ctx, cancel := c.limit(ctx)
	defer cancel()
	e := c.holdEpoch()
	defer c.changing.Unlock()
	if err := c.checkpoints.Make(ctx, checkpointMembers(e), global, local, replicas); err != nil {
		return fault.From(err, fault.ErrSystem, "checkpoint").In(&e.Members).During("checkpoint", 0)
	}
	return nil
}

// LoadCheckPoint returns the newest version that all members have which have been in one, and this
// rank's models of it; 0 and nothing where there is none. All ranks must call it, after the members
// have changed and after a CheckPoint that has failed. A rank that has joined gets the global model
// from another one.
//
// Each rank gets its own local model. Those of ranks that have ended go to the ranks that have
// joined, both in their order, as far as there are both: from all that have a copy at once.
// A rank that has joined has none where all that had it have ended.
//
// Where fewer have joined, one of those that keep a copy gets the model as an orphan, beside its
// own. So all members together have each local model once, but for the lost ones. All ranks get the
// lost ones as orphans, without bytes. The next CheckPoint drops orphans.
//
// A model that has changed since the version was made is not loaded. A rank in whose memory it has
// changed counts as if it had none, and gets it from others. The error is ErrMismatch, on all
// ranks, in three cases: some were given different models of the version; none has the global one
// unchanged; what some have passed on has come to a rank otherwise than it was made. The models
// that are returned are the caller's. A communicator that Split or Shrink makes begins without
// versions.
func (c *Comm) LoadCheckPoint(ctx context.Context) (*Loaded, error) {
	ctx, cancel := c.limit(ctx)
	defer cancel()
	e := c.holdEpoch()
	defer c.changing.Unlock()
	loaded, err := c.checkpoints.Load(ctx, checkpointMembers(e))
	if err != nil {
		return nil, fault.From(err, fault.ErrSystem, "load_checkpoint").In(&e.Members).
			During("load_checkpoint", 0)
	}
	return loaded, nil
}

// VersionNumber returns the version that CheckPoint or LoadCheckPoint has returned with last, 0
// before the first.
func (c *Comm) VersionNumber() uint64 { return c.checkpoints.Version() }

// checkpointMembers returns the members of an epoch as package checkpoint needs them.
func checkpointMembers(e *epoch.Epoch) checkpoint.Members {
	return checkpoint.Members{Service: e.Service(), Group: &e.Members, Rank: e.Rank,
		Hosts: e.Peers.Hosts(), Epoch: e.Number(), Logger: e.Log(logs.Init)}
}
