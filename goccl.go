// Package goccl joins processes into groups that reduce, gather and exchange slices: collective
// communication for CPUs, over shared memory within a host, and over RDMA or TCP between hosts.
//
// [Init] makes a communicator, a [Comm], together with the other ranks. Then all ranks call the
// same collectives in the same order:
//
//	comm, err := goccl.Init(ctx, goccl.Config{Rank: rank, Size: size, ID: id})
//	if err != nil {
//		return err
//	}
//	defer comm.Close()
//	err = goccl.AllReduce(ctx, comm, gradients, gradients, goccl.Sum)
//
// Functions such as [AllReduce] take slices of any [Element] and block until the slices are ready.
// [AllReduceOp] and the like describe the same operations for [Comm.Start], which returns a [Work]
// at once, and for [Comm.Run] and Comm.Start with several operations as one batch. Sends and
// receives are matched by peer and tag, and have no place in the order of collectives.
//
// # Contexts
//
// A deadline of a context is the timeout of the call. Without one the communicator's holds, so
// every call ends. A context that is cancelled in a collective ends it for all ranks: see
// [Comm.Run].
//
// # Errors
//
// Every error is an [Error], of one of the kinds that the Err variables name. After a collective
// has failed the communicator is broken on all ranks, and each later call returns the first cause,
// until the members call [Comm.Recover], or go on by [Comm.Shrink]. Of a slice that a failed
// operation was to write nothing can be said; one that it only read is as it was.
//
// # Goroutines and memory
//
// All functions and methods may be called from any goroutine. Collectives of one communicator are
// ordered by the calls that start them: goroutines that share it must agree on that order, or each
// have a communicator, by [Comm.Split]. A call that blocks holds a thread.
//
// Slices stay where they are, and alive, from the start of an operation to its end. in and out of
// an operation may be the same slice where its documentation says so, and must not overlap
// otherwise. Slices of [Alloc] are not needed, but faster.
//
// A process is one member of a communicator, but ranks may also be goroutines of one process, each
// with a Comm of its own, as in tests.
//
// # Other packages
//
// This package is all of the module that is meant for other modules: until version 1 what it
// exports may change with a minor version, and the changelog says so. Those under core and rdma can
// be imported, and are not meant for that: each commit may change or remove them. Types of core
// that have a name here, such as [Feed], [Metrics] and [WireDType], are part of this package by
// that name.
//
// # Building
//
// The package contains C code: cgo must be enabled, and a C compiler be there. It runs on Linux, on
// amd64 and arm64.
package goccl

import (
	"cmp"
	"context"
	"os"
	"time"

	"github.com/goccl/goccl/core"
	"github.com/goccl/goccl/core/logs"
)

// Version is the version of the package. Ranks of a communicator must have the same.
const Version = core.Version

// Config says which communicator to make. Zero fields mean the default. Where a comment names a
// variable of the environment, that is read if the field is empty.
type Config struct {
	// Rank is this process's number, from 0 to Size-1.
	Rank int
	// Size is the number of ranks, from 1 to 65,536.
	Size int
	// ID is how ranks meet: rank 0's process has made it by [NewUniqueID], and has handed it to the
	// others by any means.
	ID UniqueID
	// Store is how ranks meet instead, by a key-value store that all of them share. Neither is needed
	// where Size is 1, nor where GOCCL_STORE names an etcd. There an ID tells groups of one name
	// apart.
	Store Store
	// Group is the communicator's name, in texts and in the store's keys. Communicators that meet by
	// one store at the same time have different names.
	Group string
	// GlobalRanks is the number in the job of each rank, for texts; nil: they are the same.
	GlobalRanks []int
	// Timeout is that of Init, and of each call whose context has no deadline. Default: 30 minutes.
	Timeout time.Duration
	// LivenessGrace is how long a host may acknowledge nothing before its ranks count as failed.
	// Default: 10 s.
	LivenessGrace time.Duration
	// Transport is "shm", "tcp" or "verbs"; default: the best for each pair of ranks. Also
	// GOCCL_TRANSPORT. The same on all ranks.
	Transport string
	// Interface is the network interface to listen on; default: that of the route to the others. Also
	// GOCCL_SOCKET_IFNAME.
	Interface string
	// Secret is what members prove to each other, best 32 random bytes or more. Default: one that
	// comes with ID, or a random one in the store, which all who read the store have, too. Also
	// GOCCL_SECRET. The same on all ranks.
	Secret string
	// Incarnation tells apart attempts of one job that use the same store. The same on all ranks.
	Incarnation string
	// AllToAllSchedule is with how many peers a rank exchanges at once in [AllToAll]: "parallel",
	// "window=k" or "sequential"; default: by size. Also GOCCL_ALLTOALL_SCHEDULE. The same on all
	// ranks.
	AllToAllSchedule string
	// Plans names files with programs, and folders with such files, separated by colons. They are
	// registered in each group, and after each change of its members, if they fit: see
	// [Comm.RegisterProgram]. Also GOCCL_PLANS. The same programs on all ranks.
	Plans string
	// WireDType is as which dtype float32 travels in [AllReduce], [Reduce] and [ReduceScatter]:
	// "bfloat16", "float16", or as it is (default): see [Operation.WithWireDType]. Also
	// GOCCL_WIRE_DTYPE. The same on all ranks.
	WireDType string
	// MinSize is the least number of members with which Recover and Shrink go on. Default: 1. The
	// same on all ranks.
	MinSize int
	// Recovery is what becomes of a collective in which a member dies. With "step", the default, it
	// fails. With "survivors" the members that are left recover by themselves, and allreduce, reduce,
	// broadcast and barrier complete among them: see [Work.Contributors]. Ranks close up. Also
	// GOCCL_RECOVERY. The same on all ranks.
	Recovery string
	// Quorum is who goes on where members cannot reach each other: the "majority", which is the
	// default, or "any" part of them. Also GOCCL_QUORUM. The same on all ranks.
	Quorum string
}

// The process's log and its end of all communicators: the one global state of the package, beside
// the meeting points.
var (
	journal = logs.Journal{Getenv: core.Getenv(os.Getenv), Version: Version}
	process = core.NewRuntime(core.RuntimeConfig{Logger: logs.New(&journal)})
)

func (c *Config) core() core.Config {
	return core.Config{Rank: c.Rank, Size: c.Size, Store: c.Store, GroupName: c.Group,
		GlobalRanks: c.GlobalRanks, Timeout: c.Timeout, LivenessGrace: c.LivenessGrace,
		Transport: c.Transport, Interface: c.Interface, Secret: c.Secret, Incarnation: c.Incarnation,
		AllToAllSchedule: c.AllToAllSchedule, Plans: c.Plans, WireDType: c.WireDType,
		MinSize: c.MinSize, Recovery: c.Recovery, Quorum: c.Quorum}
}

// Init makes a communicator together with the other ranks. All of them call it, and it returns when
// all have come.
//
// It waits for the configuration's timeout at most, and no longer than until the context ends. The
// error is then [ErrTimeout] and names those that have not come. Where a rank is refused, such as
// for a bad field, the others are told why, and get [ErrMismatch].
func Init(ctx context.Context, config Config) (*Comm, error) {
	to := config.core()
	meeting, cancel := context.WithTimeout(ctx, cmp.Or(max(to.Timeout, 0), core.DefaultTimeout))
	defer cancel()
	done, err := meet(meeting, &to, config.ID)
	if err != nil {
		return nil, public(ctx, "init", err)
	}
	defer done()
	c, err := process.Init(ctx, to)
	return wrap(ctx, "init", c, err)
}

// Join makes this process a member of a communicator that exists, as one of its last ranks. The
// handles are those of members: see [Comm.Handle]. One that lives is enough. Where none are given
// it takes those of GOCCL_JOIN, and else finds members as [Comm.Publish] has written them to the
// configuration's store, or to the etcd of GOCCL_STORE, under the name of the group.
//
// It returns when the members have let it in, by [Comm.Recover] or [Comm.Grow]. It waits until the
// context's deadline or, where it has none, for the configuration's timeout. Rank and Size are not
// looked at; all else that members must have in common must be theirs.
func Join(ctx context.Context, config Config, handles ...string) (*Comm, error) {
	c, err := process.Join(ctx, config.core(), handles)
	return wrap(ctx, "join", c, err)
}

// Open makes a communicator without members: its collectives are refused until [Comm.Reconfigure]
// has made it a member of a group. Rank, Size and Store are not looked at.
func Open(ctx context.Context, config Config) (*Comm, error) {
	c, err := process.Open(ctx, config.core())
	return wrap(ctx, "open", c, err)
}

func wrap(ctx context.Context, operation string, c *core.Comm, err error) (*Comm, error) {
	if err != nil {
		return nil, public(ctx, operation, err)
	}
	if c == nil {
		return nil, nil
	}
	return &Comm{core: c}, nil
}

// Shutdown closes all communicators of the process, and ends each Init and Join that waits, with
// [ErrAborted]. A program that has closed its communicators need not call it.
func Shutdown() { process.Close() }

// Dump writes what the communicators of this process have done, in the format of torch's flight
// recorder: one file a rank, whose name is the prefix and the rank in the job. torchfrtrace
// compares the files of all ranks. GOCCL_DUMP has the same written when a communicator fails.
//
// Dump may be called at any time, by any goroutine, and waits for no collective. A file that is
// there is replaced as a whole. The error tells which file cannot be written and why, that a dump
// is being written already, or that there is no communicator.
func Dump(prefix string) error { return process.Dump(prefix) }

// Metrics is what the communicators of this process have done, as numbers.
type Metrics = core.Stats

// Stats returns what the communicators of this process have done, those that are gone included. The
// same is told to Prometheus in the file that GOCCL_METRICS_FILE names, and at the port of
// GOCCL_METRICS_PORT, while there are communicators.
//
// Stats may be called at any time, by any goroutine, and waits for no collective.
func Stats() Metrics { return process.Stats() }
