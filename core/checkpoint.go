package core

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"sync/atomic"
	"unsafe"

	"github.com/goccl/goccl/core/call"
	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/plan"
	"github.com/goccl/goccl/core/reduce"
)

// A checkpoint is made in two phases. First each rank stages the version: its models, and the local
// models that it keeps for others. Then a barrier follows, after which it counts. So a rank that is
// through knows that all have staged it, and the others have it, staged, whatever becomes of them.
// What is staged on all that are left is loaded: a rank that has ended may have been through.
//
// Models have digests from when they are made. By them a rank checks what it holds, before it
// returns it or passes it on, and what it gets. So what has changed in memory, or on its way, is
// not loaded, and a rank that passes on something else is found out.

// checkpointMost is how many bytes of models a rank holds at most: its own and those that it keeps
// for others, in two versions.
const checkpointMost = 1 << 30

// models are what a rank holds of checkpoints.
type models struct {
	id        uint64        // names the rank, whatever its number
	belongs   bool          // it has been in a version; that before the first is one
	committed *checkpoint   // which counts
	staged    *checkpoint   // nil, or the next one, which is whole here
	epoch     uint32        // in which committed was made or loaded
	version   atomic.Uint64 // of committed; under no lock
}

// checkpoint is a version of the models. Version 0 has none.
type checkpoint struct {
	version uint64
	digest  int64 // of the global model
	table   int64 // the digest of what places say of local models
	global  []byte
	local   []byte
	places  []place        // by the ranks of the epoch in which it was made
	kept    map[int][]byte // local models of others, by place
	orphans []Orphan       // since it was loaded
}

// place is what was a rank when a version was made. It may be another's now.
type place struct {
	Owner  uint64 // models.id of the rank
	Local  uint64 // bytes of the local model
	Digest int64  // of the local model
}

func newModels() models {
	var id [8]byte
	rand.Read(id[:]) // of the kernel: processes that are forked have the other generators in common
	return models{id: binary.LittleEndian.Uint64(id[:]), committed: &checkpoint{}}
}

// Loaded is a version of the models, as a rank gets it. Version 0 has none.
type Loaded struct {
	Version       uint64
	Global, Local []byte
	Orphans       []Orphan
}

// Orphan is a local model of a rank that has ended.
type Orphan struct {
	Rank  int    // which it was when the version was made
	Size  uint64 // bytes
	Model []byte // nil: it is lost
}

// CheckPoint makes the next version of the models, in memory: the global one, which is the same on
// all ranks, and a local one for each rank, of which `replicas` other ranks keep copies: those of
// other hosts first, and no two of a host while others have none. Where there are fewer others all
// keep one. So a local model is lost only where its rank and all that keep it end before the next
// version. All ranks must call it, with the same number of replicas. Once it has returned on any
// rank the version is not lost as long as a member lives. After an error LoadCheckPoint tells
// whether it counts. Models are copied.
//
// ErrMismatch tells, on all ranks, that global models, replicas or versions differ, or that the
// members have changed and LoadCheckPoint comes first: what only the ended had would be dropped
// unseen. ErrInvalidArgument tells that replicas are negative, that the models of some rank are too
// large, 1 GiB for its own and all copies that it keeps for others, in two versions, or that a call
// has failed after it was whole on some rank: LoadCheckPoint comes first. Nothing has changed then.
func (c *Comm) CheckPoint(ctx context.Context, global, local []byte, replicas int) error {
	ctx, cancel := c.limit(ctx)
	defer cancel()
	e := c.holdEpoch()
	defer c.changing.Unlock()
	if err := c.checkPoint(ctx, e, global, local, replicas); err != nil {
		return fault.From(err, fault.ErrSystem, "checkpoint").In(&e.Members).During("checkpoint", 0)
	}
	return nil
}

// VersionNumber is the version that CheckPoint or LoadCheckPoint has returned with last, 0 before
// the first.
func (c *Comm) VersionNumber() uint64 { return c.models.version.Load() }

// holdEpoch locks c.changing when the members have recovered by themselves, if they do.
func (c *Comm) holdEpoch() *epoch {
	for {
		c.changing.Lock()
		c.mu.Lock()
		recovering := c.recovering
		c.mu.Unlock()
		if recovering == nil {
			return c.present.Load()
		}
		c.changing.Unlock()
		<-recovering.done
	}
}

func (c *Comm) checkPoint(ctx context.Context, e *epoch, global, local []byte,
	replicas int) error {
	m := &c.models
	next := &checkpoint{version: m.committed.version + 1, digest: digestOf(global)}
	plans, err := c.gatherPlans(ctx, checkpointPlan{ID: int64(m.id), Version: int64(next.version),
		Staged: m.staged != nil, Behind: next.version > 1 && m.epoch != e.number, Digest: next.digest,
		Global: int64(len(global)), Local: int64(len(local)), LocalDigest: digestOf(local),
		Replicas: int64(replicas)})
	if err != nil {
		return err
	}
	keepers := keepersOf(e.Peers.Hosts(), replicas)
	if err := e.checkPlans(plans, keepers); err != nil {
		return err
	}
	next.global, next.local, next.kept = slices.Clone(global), slices.Clone(local), map[int][]byte{}
	anyLocal := false
	in, out := make([][]byte, e.Size()), make([][]byte, e.Size())
	for rank, p := range plans {
		next.places = append(next.places, place{Owner: uint64(p.ID), Local: uint64(p.Local),
			Digest: p.LocalDigest})
		anyLocal = anyLocal || p.Local > 0
		if slices.Contains(keepers[rank], e.Rank) {
			out[rank] = make([]byte, p.Local)
			next.kept[rank] = out[rank]
		}
	}
	next.table = tableOf(next.places)
	for _, k := range keepers[e.Rank] {
		in[k] = next.local
	}
	// A rank that is through has heard from all others that they have agreed to the version.
	if anyLocal {
		err = c.exchange(ctx, in, out)
	} else {
		err = c.run(ctx, ofRecovery, call.Operation{Collective: plan.Barrier})
	}
	if err != nil {
		return err
	}
	m.staged, m.belongs = next, true
	if err := c.run(ctx, ofRecovery, call.Operation{Collective: plan.Barrier}); err != nil {
		return err
	}
	m.commit(next, e.number)
	return nil
}

// commit has a version count.
func (m *models) commit(p *checkpoint, epoch uint32) {
	m.committed, m.staged, m.belongs, m.epoch = p, nil, true, epoch
	m.version.Store(p.version)
}

// checkpointPlan is what a rank tells before a version is made.
type checkpointPlan struct {
	ID, Version   int64
	Staged        bool // it has a version whole already that may count
	Behind        bool // it has not loaded since the members have changed
	Digest        int64
	Global, Local int64 // bytes
	LocalDigest   int64
	Replicas      int64
}

func (c *Comm) gatherPlans(ctx context.Context, p checkpointPlan) (all []checkpointPlan,
	err error) {
	numbers, err := c.gather(ctx, ofRecovery, false, p.ID, p.Version, number(p.Staged),
		number(p.Behind), p.Digest, p.Global, p.Local, p.LocalDigest, p.Replicas)
	for of := range slices.Chunk(numbers, 9) {
		all = append(all, checkpointPlan{of[0], of[1], of[2] != 0, of[3] != 0, of[4], of[5], of[6],
			of[7], of[8]})
	}
	return all, err
}

// digestOf tells models apart from others.
func digestOf(model []byte) int64 {
	sum := sha256.Sum256(model)
	return int64(binary.LittleEndian.Uint64(sum[:]))
}

// tableOf is a digest of what places say of local models, whosever they are now.
func tableOf(places []place) int64 {
	var said []byte
	for _, p := range places {
		said = binary.LittleEndian.AppendUint64(said, p.Local)
		said = binary.LittleEndian.AppendUint64(said, uint64(p.Digest))
	}
	return digestOf(said)
}

// number is 1 for what is true.
func number(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

// checkPlans checks what ranks are about to make: alike on all of them.
func (c *epoch) checkPlans(plans []checkpointPlan, keepers [][]int) error {
	held := make([]int64, c.Size())
	for rank, p := range plans {
		first, names := &plans[0], c.Members.Names
		switch {
		case p.Staged:
			return fault.Errorf(fault.ErrInvalidArgument, "the checkpoint before has failed, and %s "+
				"has all of it: call LoadCheckPoint, which tells whether it counts", names(rank)).
				Blaming(rank)
		case p.Version != first.Version:
			return fault.Errorf(fault.ErrMismatch, "the next version is %d on %s, but %d on %s: "+
				"all call LoadCheckPoint after the members have changed", p.Version, names(rank),
				first.Version, names(0)).Blaming(rank)
		case p.Behind:
			return fault.Errorf(fault.ErrMismatch, "the members have changed since %s has got version "+
				"%d: all call LoadCheckPoint first", names(rank), p.Version-1).Blaming(rank)
		case p.Global != first.Global || p.Digest != first.Digest:
			return fault.Errorf(fault.ErrMismatch, "the global models differ: of %d bytes, digest "+
				"%016x, on %s, and of %d bytes, digest %016x, on %s", p.Global, uint64(p.Digest),
				names(rank), first.Global, uint64(first.Digest), names(0)).Blaming(rank)
		case p.Replicas < 0:
			return fault.Errorf(fault.ErrInvalidArgument, "replicas are %d on %s, allowed are 0 and "+
				"more", p.Replicas, names(rank)).Blaming(rank)
		case p.Replicas != first.Replicas:
			return fault.Errorf(fault.ErrMismatch, "replicas are %d on %s, and %d on %s: they are to "+
				"be the same", p.Replicas, names(rank), first.Replicas, names(0)).Blaming(rank)
		}
		if p.Global < 0 || p.Local < 0 || p.Global > checkpointMost || p.Local > checkpointMost {
			return c.tooLarge(rank, max(p.Global, p.Local))
		}
		held[rank] += p.Global + p.Local
		for _, k := range keepers[rank] {
			held[k] += p.Local
		}
	}
	for rank, n := range held {
		if 2*n > checkpointMost {
			return c.tooLarge(rank, 2*n)
		}
	}
	return nil
}

func (c *epoch) tooLarge(rank int, bytes int64) error {
	return fault.Errorf(fault.ErrInvalidArgument, "the models take %d bytes on %s, in two "+
		"versions and with the copies that it keeps for others; allowed are %d", bytes,
		c.Members.Names(rank), checkpointMost).Blaming(rank)
}

// exchange sends bytes to ranks, and receives from ranks.
func (c *Comm) exchange(ctx context.Context, in, out [][]byte) error {
	var pin pinner
	defer pin.Unpin()
	op := call.Operation{Collective: plan.AllToAll, DType: reduce.Uint8}
	op.In, op.InCounts = pin.blocks(in)
	op.Out, op.OutCounts = pin.blocks(out)
	return c.run(ctx, ofRecovery, op)
}

// blocks pins memory of bytes.
func (p *pinner) blocks(all [][]byte) (at []unsafe.Pointer, counts []uint64) {
	for _, b := range all {
		var block unsafe.Pointer
		if len(b) > 0 {
			first := unsafe.SliceData(b)
			p.Pin(first)
			block = unsafe.Pointer(first)
		}
		at, counts = append(at, block), append(counts, uint64(len(b)))
	}
	return at, counts
}
