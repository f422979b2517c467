// Package checkpoint keeps versions of the models of a group in the memory of its ranks: a global
// model, which is the same on all of them, and a local one for each. It passes them on to ranks
// that join, and to those that take the place of others.
//
// # Model
//
// A version is made in two phases. First each rank stages it: its models, and the copies of the
// local models of others that it keeps, as replicas. Then a barrier follows, after which the
// version is committed. So a rank that is through knows that all have staged it, and the others
// have it, staged, whatever becomes of them. What is staged on all members that are left is loaded,
// for a rank that has ended may have been through.
//
// Each version has one shard for each rank that made it: the local model, its length and digest,
// and whose it is. A shard outlives its rank. Another rank may own it later.
//
// Models have digests from when they are made. By them a rank checks what it holds, before it
// returns it or passes it on, and what it gets. So what has changed in memory, or on its way, is
// not loaded, and a rank that passes on something else is found out.
//
// What is decided stands in decide.go and shards.go, as functions of what all ranks tell. All ranks
// decide the same.
package checkpoint

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"log/slog"
	"slices"
	"sync/atomic"

	"github.com/goccl/goccl/core/fault"
)

const (
	// MaxBytes is how many bytes of models a rank holds at most: its own and those that it keeps for
	// others, in two versions.
	MaxBytes = 1 << 30
	// MaxRanks is how many ranks have made a version at most.
	MaxRanks = 1 << 16
)

// Service is the collectives that a version is made and loaded by. All ranks call them in the same
// order. An error ends what they serve, on all ranks.
type Service interface {
	// Gather returns the numbers of all ranks, by rank. All ranks give as many.
	Gather(ctx context.Context, mine ...int64) ([]int64, error)
	// Broadcast sends the bytes of a rank to all others, which have as many.
	Broadcast(ctx context.Context, root int, data []byte) error
	// Exchange sends in[r] to each rank r, and receives out[r] from it.
	Exchange(ctx context.Context, in, out [][]byte) error
	// Barrier returns when all ranks have called it.
	Barrier(ctx context.Context) error
}

// Members are the ranks that make or load a version together.
type Members struct {
	Service
	Group  *fault.Group // their names
	Rank   int          // this rank's number
	Hosts  []string     // by rank
	Epoch  uint32       // another one where the members have changed
	Logger *slog.Logger
}

// Store is what a rank holds of versions. One call at a time uses it, but for Version.
type Store struct {
	id        uint64        // names the rank, whatever its number
	belongs   bool          // it has been in a version; that before the first is one
	committed *version      // which counts
	staged    *version      // nil, or the next one, which is whole here
	epoch     uint32        // in which committed was made or loaded
	number    atomic.Uint64 // of committed
}

// version is one version of the models. Version 0 has none.
type version struct {
	number  uint64
	digest  int64 // of the global model
	table   int64 // the digest of what shards say of local models
	global  []byte
	local   []byte
	shards  []shard        // by the ranks of the epoch in which it was made
	kept    map[int][]byte // local models of others, by shard
	orphans []Orphan       // since it was loaded
}

// shard is the part of a version that a rank had alone when it was made.
type shard struct {
	Owner  uint64 // Store.id of the rank
	Local  uint64 // bytes of the local model
	Digest int64  // of the local model
}

// NewStore makes the store of a rank, which has been in no version.
func NewStore() *Store {
	var id [8]byte
	rand.Read(id[:]) // of the kernel: processes that are forked have the other generators in common
	return &Store{id: binary.LittleEndian.Uint64(id[:]), committed: &version{}}
}

// Version is the number of the version that was made or loaded last, 0 before the first. Any thread
// may call it.
func (s *Store) Version() uint64 { return s.number.Load() }

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

// Make makes the next version, of models that it copies, of which the local ones have so many
// replicas. What is an error, on all ranks, stands with the core's Comm.CheckPoint. After an error
// of the service Load tells whether the version counts.
func (s *Store) Make(ctx context.Context, m Members, global, local []byte, replicas int) error {
	next := &version{number: s.committed.number + 1, digest: digestOf(global)}
	drafts, err := gatherDrafts(ctx, m, draft{ID: int64(s.id), Version: int64(next.number),
		Staged: s.staged != nil, Behind: next.number > 1 && s.epoch != m.Epoch, Digest: next.digest,
		Global: int64(len(global)), Local: int64(len(local)), LocalDigest: digestOf(local),
		Replicas: int64(replicas)})
	if err != nil {
		return err
	}
	copies := replicasOf(m.Hosts, replicas)
	if err := checkDrafts(m.Group, drafts, copies); err != nil {
		return err
	}
	next.global, next.local, next.kept = slices.Clone(global), slices.Clone(local), map[int][]byte{}
	anyLocal := false
	in, out := make([][]byte, len(drafts)), make([][]byte, len(drafts))
	for rank, d := range drafts {
		next.shards = append(next.shards, shard{Owner: uint64(d.ID), Local: uint64(d.Local),
			Digest: d.LocalDigest})
		anyLocal = anyLocal || d.Local > 0
		if slices.Contains(copies[rank], m.Rank) {
			out[rank] = make([]byte, d.Local)
			next.kept[rank] = out[rank]
		}
	}
	next.table = tableOf(next.shards)
	for _, k := range copies[m.Rank] {
		in[k] = next.local
	}
	// A rank that is through has heard from all others that they have agreed to the version.
	if anyLocal {
		err = m.Exchange(ctx, in, out)
	} else {
		err = m.Barrier(ctx)
	}
	if err != nil {
		return err
	}
	s.staged, s.belongs = next, true
	if err := m.Barrier(ctx); err != nil {
		return err
	}
	s.commit(next, m.Epoch)
	return nil
}

// commit has a version count.
func (s *Store) commit(v *version, epoch uint32) {
	s.committed, s.staged, s.belongs, s.epoch = v, nil, true, epoch
	s.number.Store(v.number)
}

func gatherDrafts(ctx context.Context, s Service, d draft) (all []draft, err error) {
	numbers, err := s.Gather(ctx, d.ID, d.Version, number(d.Staged), number(d.Behind), d.Digest,
		d.Global, d.Local, d.LocalDigest, d.Replicas)
	for of := range slices.Chunk(numbers, 9) {
		all = append(all, draft{of[0], of[1], of[2] != 0, of[3] != 0, of[4], of[5], of[6], of[7], of[8]})
	}
	return all, err
}

// digestOf tells models apart from others.
func digestOf(model []byte) int64 {
	sum := sha256.Sum256(model)
	return int64(binary.LittleEndian.Uint64(sum[:]))
}

// tableOf is a digest of what shards say of local models, whosever they are now.
func tableOf(shards []shard) int64 {
	var said []byte
	for _, s := range shards {
		said = binary.LittleEndian.AppendUint64(said, s.Local)
		said = binary.LittleEndian.AppendUint64(said, uint64(s.Digest))
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
