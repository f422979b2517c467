// Package config has what a user can set: by a field of [Config], by a variable of the environment,
// or by either. The table options has a row for each. [Config.Complete] reads and checks them, and
// knows what must be the same on all ranks.
//
// A variable may also stand in a file of settings: see [Environment]. Other files the package reads
// only where an option names them. It reads the environment by functions that it is given, and logs
// nothing.
package config

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/goccl/goccl/core/bootstrap"
	"github.com/goccl/goccl/core/bootstrap/etcd"
	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/program"
)

// Version is the library's.
const Version = "0.1.0"

const (
	// DefaultTimeout is that of c10d.
	DefaultTimeout = 30 * time.Minute
	// DefaultLivenessGrace is how long a host may acknowledge nothing before it is given up.
	DefaultLivenessGrace = 10 * time.Second
)

// Who goes on where members cannot reach each other: see Config.Quorum.
const (
	QuorumMajority = "majority"
	QuorumAny      = "any"
)

// What becomes of a collective in which a member dies: see Config.Recovery.
const (
	RecoveryStep      = "step"
	RecoverySurvivors = "survivors"
	RecoveryAll       = "all" // another name of RecoverySurvivors
)

// Config says which communicator to make. Zero fields mean the default. It has more fields than
// others: each is a choice of its own.
type Config struct {
	Rank, Size int
	// Store is how ranks meet. It is not needed where Size is 1, and not used where GOCCL_STORE names
	// an etcd.
	Store     bootstrap.Store
	GroupName string
	// Meeting tells groups of one name apart that meet at the etcd of GOCCL_STORE, as the prefix of a
	// store does; "" where they need not be. The same on all ranks.
	Meeting string
	// the number in the job of each of the group's ranks, for texts; nil: they are the same
	GlobalRanks   []int
	Timeout       time.Duration // of Init and of every operation
	LivenessGrace time.Duration
	Transport     string // "shm", "tcp" or "verbs"; default: the best for each pair
	// "tcp" or "verbs", where no memory is shared; default: the best for each pair
	Net         string
	HCA         string // RDMA devices: see rdma.Want
	GIDIndex    string // of an RDMA port, "0" to "255"
	Interface   string // network interfaces to listen on, as in NCCL_SOCKET_IFNAME
	StoreHost   string // the route to it names the default interface
	Secret      string // the job's
	StoreSecret string // that which the store came with: of the first members, where Secret is empty
	Incarnation string // part of every key in the store, and of the secret; see also readAttempt
	Thresholds  string // see tune.Thresholds.Set; the same on all ranks
	// AllToAllSchedule is that of operations that name none: "sequential", "window=2" and the like,
	// "parallel"; default: by size. The same on all ranks.
	AllToAllSchedule string
	Algorithms       string // see tune.ParseAlgorithms; the same on all ranks
	// WireDType is that as which float32 travels in allreduce, reduce and reduce_scatter: "bfloat16",
	// "float16", or as it is (default). The same on all ranks.
	WireDType string
	// SideStep is which collectives another library of the caller's does: see call.CheckSideSteps and
	// Comm.SideStep. The same on all ranks.
	SideStep string
	Links    string // see tune.Links.Set; the same on all ranks
	// Plans are files with programs, and folders with such files, separated by colons. They are
	// registered in each group, and after each change of its members, if they fit. The same programs
	// on all ranks.
	Plans string
	// MinSize is the least number of members with which Recover and Shrink go on; default 1. The same
	// on all ranks.
	MinSize int
	// Recovery says what becomes of a collective in which a member dies: "step" (default): it fails;
	// or "survivors", which is also called "all": allreduce, reduce, broadcast and barrier complete,
	// with the contributions of those that are left, or of all where a survivor has the result. The
	// same on all ranks.
	Recovery string
	// Quorum says who goes on where members cannot reach each other: "majority" (default), or "any",
	// with which several groups may go on apart. The same on all ranks.
	Quorum string
}

// Completed is a configuration that leaves nothing open. Its texts are in the one form that ranks
// can compare.
type Completed struct {
	Config
	Attempt  string              // see bootstrap.JoinConfig
	Etcd     *etcd.Address       // at which ranks meet, not at Store; nil: at Store
	Same     []bootstrap.Setting // what must be the same on all ranks
	Settings map[string]Setting  // as they were given, by the names of their variables
	Problems []string            // all that is refused
	Programs []*program.Checked  // of Plans
}

// The sources of a [Setting], beside the paths of files.
const (
	SourceDefault     = "default"
	SourceEnvironment = "environment"
	SourceOption      = "option"
)

// Setting is the value of a setting, as it was given, and where that comes from.
type Setting struct {
	Value  string `json:"value"`  // "" where nothing was given, "(hidden)" for a secret
	Source string `json:"source"` // one of the words above, or the path of a file of settings
}

// Complete fills in what the configuration leaves open, from the environment and with defaults, and
// refuses what cannot be. With an error, too, it says how to meet the other ranks, as far as that
// is known.
func (c Config) Complete(e *Environment) (Completed, error) {
	all := Completed{Config: c, Settings: map[string]Setting{},
		Same: []bootstrap.Setting{{Name: "the version of GoCCL", Value: Version}}}
	all.Problems = slices.Clone(e.problems)
	all.readAttempt(e.getenv)
	all.refuse(all.findEtcd(e))
	all.refuse(checkWatched(e))
	for i := range options {
		all.refuse(options[i].complete(&all, e))
	}
	if len(all.Problems) == 0 {
		all.refuse(all.checkRanks())
	}
	if len(all.Problems) > 0 {
		return all, fault.Errorf(fault.ErrInvalidArgument, "init: %s", strings.Join(all.Problems, "; "))
	}
	return all, nil
}

func (c *Completed) refuse(err error) {
	if err != nil {
		c.Problems = append(c.Problems, err.Error())
	}
}

// readAttempt takes what tells an attempt of torchrun's from an earlier one. Where torchrun's
// agents do not share their store with the workers, rank 0 serves a new one in each attempt, whose
// port all are told. Else there are only the restarts, which each agent counts by itself: an agent
// that has come later, or has missed a failure, has another number.
func (c *Completed) readAttempt(getenv func(string) string) {
	switch {
	case c.Incarnation != "":
	case getenv(envAgentStore) == "False":
		c.Incarnation = getenv(envMasterPort)
	default:
		c.Attempt = getenv(EnvRestarts)
	}
}

// findEtcd reads at which etcd the ranks meet, if at one.
func (c *Completed) findEtcd(e *Environment) (err error) {
	if url := e.Get(EnvStore); url != "" {
		if c.Etcd, err = etcd.Parse(url, e.getenv); err != nil {
			return e.blame(fmt.Errorf("%s is %w", EnvStore, err), EnvStore)
		}
	}
	return nil
}

// checkRanks refuses ranks that cannot be.
func (c *Completed) checkRanks() error {
	switch {
	case c.Size < 1 || c.Size > bootstrap.MaxSize:
		return fmt.Errorf("size is %d, allowed are 1 to %d", c.Size, bootstrap.MaxSize)
	case c.Rank < 0 || c.Rank >= c.Size:
		return fmt.Errorf("rank is %d, allowed are 0 to %d", c.Rank, c.Size-1)
	case c.GlobalRanks != nil && len(c.GlobalRanks) != c.Size:
		return fmt.Errorf("global ranks are %d, there must be one for each of %d ranks",
			len(c.GlobalRanks), c.Size)
	case c.Size > 1 && c.Store == nil && c.Etcd == nil:
		return fmt.Errorf("no store is given, nor %s, but size is %d", EnvStore, c.Size)
	}
	return nil
}

// InitError is the error of a rank that cannot come to Init, for which the ranks are to blame.
func (c *Config) InitError(kind, cause error, ranks ...int) *fault.Error {
	return c.Concern(fault.Errorf(kind, "init: %v", cause).Blaming(ranks...))
}

// Concern says of which group an error of Init is.
func (c *Config) Concern(e *fault.Error) *fault.Error {
	members := fault.NewGroup(c.GroupName, c.GlobalRanks, nil)
	return e.In(&members).During("init", 0)
}
