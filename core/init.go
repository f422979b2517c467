package core

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/goccl/goccl/core/address"
	"github.com/goccl/goccl/core/bootstrap"
	"github.com/goccl/goccl/core/bootstrap/etcd"
	"github.com/goccl/goccl/core/exec"
	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/internal/cpus"
	"github.com/goccl/goccl/core/internal/printable"
	"github.com/goccl/goccl/core/logs"
	"github.com/goccl/goccl/core/plan"
	"github.com/goccl/goccl/core/roster"
	"github.com/goccl/goccl/core/transport"
	"github.com/goccl/goccl/core/tune"
	"github.com/goccl/goccl/rdma"
)

const (
	// DefaultTimeout is that of c10d.
	DefaultTimeout = 30 * time.Minute
	// DefaultLivenessGrace is how long a host may acknowledge nothing before it is given up.
	DefaultLivenessGrace = 10 * time.Second
)

// The environment that Init reads where a Config field is empty.
const (
	EnvTransport  = "GOCCL_TRANSPORT"
	EnvNet        = "GOCCL_NET"
	EnvThresholds = "GOCCL_THRESHOLDS"
	EnvSchedule   = "GOCCL_ALLTOALL_SCHEDULE"
	EnvAlgorithms = "GOCCL_ALGO"
	EnvLinks      = "GOCCL_LINKS"
	EnvQuorum     = "GOCCL_QUORUM"
	EnvRecovery   = "GOCCL_RECOVERY"
	EnvInterface  = "GOCCL_SOCKET_IFNAME"
	EnvSecret     = "GOCCL_SECRET"
	EnvStore      = "GOCCL_STORE"
	EnvJoin       = "GOCCL_JOIN"
	EnvRestarts   = "TORCHELASTIC_RESTART_COUNT"

	envAgentStore = "TORCHELASTIC_USE_AGENT_STORE"
	envMasterPort = "MASTER_PORT"
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
	RecoveryAll       = "all"
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
	Interface   string // network interface to listen on
	StoreHost   string // the route to it names the default interface
	Secret      string // the job's
	StoreSecret string // that which the store came with: of the first members, where Secret is empty
	Incarnation string // part of every key in the store, and of the secret; see also readAttempt
	Thresholds  string // see tune.Thresholds.Set; the same on all ranks
	// AllToAllSchedule is that of operations that name none: "sequential", "window=2" and the like,
	// "parallel"; default: by size. The same on all ranks.
	AllToAllSchedule string
	Algorithms       string // see tune.ParseAlgorithms; the same on all ranks
	Links            string // see tune.Links.Set; the same on all ranks
	// MinSize is the least number of members with which Recover and Shrink go on; default 1. The same
	// on all ranks.
	MinSize int
	// Recovery says what becomes of a collective in which a member dies: "step" (default): it fails;
	// or "survivors": allreduce, reduce, broadcast and barrier complete, with the contributions of
	// those that are left; or "all": with those of all where that can be, else as with "survivors".
	// Where a survivor has the whole result both give that one. The same on all ranks.
	Recovery string
	// Quorum says who goes on where members cannot reach each other: "majority" (default), or "any",
	// with which several groups may go on apart. The same on all ranks.
	Quorum string

	attempt  string             // see bootstrap.JoinConfig
	etcd     *etcd.Address      // at which ranks meet, not at Store; nil: at Store
	settings map[string]Setting // in effect, by the names of their variables
}

// Init makes a communicator together with the other ranks. It waits for all of them, for at most
// the timeout.
func (r *Runtime) Init(ctx context.Context, config Config) (*Comm, error) {
	ctx, cancel := r.Until(ctx)
	defer cancel()
	c, err := r.join(ctx, config)
	var e *fault.Error
	if errors.As(err, &e) {
		return nil, config.concern(e)
	}
	return c, err
}

// InitError is the error of a rank that cannot come to Init, for which the ranks are to blame.
func (config *Config) InitError(kind, cause error, ranks ...int) *fault.Error {
	return config.concern(fault.Errorf(kind, "init: %v", cause).Blaming(ranks...))
}

// concern says of which group an error of Init is.
func (config *Config) concern(e *fault.Error) *fault.Error {
	members := fault.NewGroup(config.GroupName, config.GlobalRanks, nil)
	return e.In(&members).During("init", 0)
}

// join is Init, whose errors do not tell yet of what they are.
func (r *Runtime) join(ctx context.Context, config Config) (*Comm, error) {
	r.tellVariables.Do(r.tellEnvironment)
	if err := r.complete(&config); err != nil {
		return nil, r.StayOut(ctx, config, err)
	}
	ctx, cancel := context.WithTimeout(ctx, config.Timeout)
	defer cancel()
	if err := exec.TryAddressSpace(); err != nil {
		return nil, r.StayOut(ctx, config, fault.Errorf(fault.ErrSystem, "init: %v", err))
	}
	verbs, err := r.verbs(config)
	if err != nil {
		return nil, r.StayOut(ctx, config, err)
	}
	if config.Size == 1 {
		return r.alone(ctx, config, verbs)
	}
	if host := config.storeHost(); config.Rank == 0 && host != "" &&
		cmp.Or(config.Secret, config.StoreSecret) == "" &&
		!loopback(host) {
		r.warnOfStore.Do(func() {
			r.log(logs.Bootstrap).Warn(fmt.Sprintf("the secret of group %q lies in the store on host %s, "+
				"so whoever can reach "+
				"the store can join, and read and change all data: set %s, or keep others off that host's port",
				config.GroupName, host, EnvSecret))
		})
	}
	end, err := r.endpoint(endpointKey{config.Interface, config.StoreHost, config.LivenessGrace,
		verbs})
	if err != nil {
		return nil, r.StayOut(ctx, config, err)
	}
	comm, err := r.meet(ctx, config, end)
	if err != nil {
		r.leave(end)
		return nil, err
	}
	return comm, nil
}

// loopback tells whether other hosts cannot reach a host by its name.
func loopback(host string) bool {
	a, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && a.IsLoopback()
}

// alone makes a communicator of one rank. It refuses what Init refuses with more ranks.
func (r *Runtime) alone(ctx context.Context, config Config, verbs transport.VerbsConfig) (*Comm,
	error) {
	listen := transport.Config{Interface: config.Interface, StoreHost: config.StoreHost, Verbs: verbs}
	problem, err := transport.Check(listen, config.Transport)
	if err != nil {
		return nil, listenError(err)
	}
	if problem != "" {
		return nil, fault.Errorf(fault.ErrUnsupported, "init: %s", problem)
	}
	c := joinConfig(config)
	c.Secret = "" // there is nobody to prove it to
	if _, err := bootstrap.Join(ctx, nil, c); err != nil {
		return nil, initError(ctx, err, config)
	}
	return r.openComm(config, nil, roster.Identity{}, roster.Alone(address.Address{PID: os.Getpid()}))
}

// joinConfig is how a rank meets the others, but for what it publishes.
func joinConfig(c Config) bootstrap.JoinConfig {
	return bootstrap.JoinConfig{Rank: c.Rank, Size: c.Size, GroupName: c.GroupName,
		Incarnation: c.Incarnation, Attempt: c.attempt, Secret: cmp.Or(c.Secret, c.StoreSecret),
		Settings: append(c.common(),
			bootstrap.Setting{Name: "the list of the group's ranks", Value: rankList(c)})}
}

// common are the settings that must be the same on all ranks.
func (c *Config) common() []bootstrap.Setting {
	return []bootstrap.Setting{{Name: "the version of GoCCL", Value: Version},
		{Name: "the transport (" + EnvTransport + ")", Value: c.Transport},
		{Name: "the network (" + EnvNet + ")", Value: c.Net}, {Name: EnvThresholds, Value: c.Thresholds},
		{Name: "the all-to-all schedule (" + EnvSchedule + ")", Value: c.AllToAllSchedule},
		{Name: "the choice of algorithms (" + EnvAlgorithms + ")", Value: c.Algorithms},
		{Name: "what links cost (" + EnvLinks + ")", Value: c.Links},
		{Name: "the least size", Value: strconv.Itoa(c.MinSize)},
		{Name: "the quorum (" + EnvQuorum + ")", Value: c.Quorum},
		{Name: "the recovery (" + EnvRecovery + ")", Value: c.Recovery}}
}

// rankList is a text of the numbers in the job of a group's ranks. It is the same on all ranks that
// were given the same numbers, and on no others.
func rankList(c Config) string {
	if fault.NewGroup("", c.GlobalRanks, nil).GlobalRanks == nil {
		return fmt.Sprintf("0-%d", c.Size-1)
	}
	list := printable.Ranges(c.GlobalRanks)
	if len(list) > maxRankList {
		list = fmt.Sprintf("%s... (SHA-256 %x)", list[:maxRankList], sha256.Sum256([]byte(list)))
	}
	return list
}

// initError gives a failure to meet the other ranks its kind.
func initError(ctx context.Context, err error, c Config) error {
	kind := fault.ErrSystem
	switch {
	case errors.Is(err, bootstrap.ErrMismatch):
		kind = fault.ErrMismatch
	case errors.Is(err, bootstrap.ErrUnfit):
		kind = fault.ErrUnsupported
	case errors.Is(err, bootstrap.ErrInvalid):
		kind = fault.ErrInvalidArgument
	case errors.Is(context.Cause(ctx), fault.ErrAborted):
		kind = fault.ErrAborted
	case errors.Is(err, bootstrap.ErrAbsent), ctx.Err() != nil:
		kind = fault.ErrTimeout
	}
	e := fault.From(err, kind, "init of group %q on rank %d", c.GroupName, c.Rank)
	var absent *bootstrap.AbsentError
	if errors.As(err, &absent) && kind != fault.ErrAborted {
		e.Ranks = absent.Ranks
	}
	return e
}

// StayOut tells the other ranks, which wait for this one, why it cannot take part. It returns that
// reason. The config must say how to meet the others, and who this rank is; else nobody is told.
// StayOut waits a few seconds at most.
func (r *Runtime) StayOut(ctx context.Context, config Config, why error) error {
	_ = r.complete(&config) // an error is no news: this rank stays out
	if config.Size > 1 && (config.Store != nil || config.etcd != nil) {
		c := joinConfig(config)
		c.Settings, c.Problem = nil, why.Error() // settings that cannot be right are not to be compared
		_, _ = assemble(ctx, config, c)
	}
	return why
}

// readVariables takes from the environment what the config leaves open.
func (r *Runtime) readVariables(c *Config) {
	c.settings = map[string]Setting{}
	fill := func(field *string, env string) {
		source := SourceOption
		if *field == "" {
			*field, source = r.config.Getenv(env), SourceEnvironment
		}
		if *field == "" {
			source = SourceDefault
		}
		c.settings[env] = Setting{*field, source}
	}
	fill(&c.Transport, EnvTransport)
	fill(&c.Net, EnvNet)
	fill(&c.Interface, EnvInterface)
	fill(&c.Secret, EnvSecret)
	r.readAttempt(c)
	fill(&c.Thresholds, EnvThresholds)
	fill(&c.AllToAllSchedule, EnvSchedule)
	fill(&c.Algorithms, EnvAlgorithms)
	fill(&c.Links, EnvLinks)
	fill(&c.Quorum, EnvQuorum)
	c.Quorum = cmp.Or(c.Quorum, QuorumMajority)
	fill(&c.Recovery, EnvRecovery)
	c.Recovery = cmp.Or(c.Recovery, RecoveryStep)
	for _, env := range []string{rdma.EnvHCA, rdma.EnvGIDIndex} {
		fill(new(string), env)
	}
}

// readAttempt takes what tells an attempt of torchrun's from an earlier one. Where torchrun's
// agents do not share their store with the workers, rank 0 serves a new one in each attempt, whose
// port all are told. Else there are only the restarts, which each agent counts by itself: an agent
// that has come later, or has missed a failure, has another number.
func (r *Runtime) readAttempt(c *Config) {
	switch {
	case c.Incarnation != "":
	case r.config.Getenv(envAgentStore) == "False":
		c.Incarnation = r.config.Getenv(envMasterPort)
	default:
		c.attempt = r.config.Getenv(EnvRestarts)
	}
}

// complete fills in what the config leaves open, and refuses what cannot be.
func (r *Runtime) complete(c *Config) error {
	bad := func(format string, args ...any) error {
		return fault.Errorf(fault.ErrInvalidArgument, "init: "+format, args...)
	}
	r.readVariables(c)
	if err := r.findEtcd(c); err != nil {
		return err
	}
	if err := new(tune.Thresholds).Set(c.Thresholds); err != nil {
		return bad("thresholds (from %s) have %v", EnvThresholds, err)
	}
	if err := new(tune.Links).Set(c.Links); err != nil {
		return bad("%s is %v", EnvLinks, err)
	}
	schedule, err := plan.ParseSchedule(c.AllToAllSchedule)
	if err != nil {
		return bad("all-to-all schedule (from the option or %s) is %v", EnvSchedule, err)
	}
	c.AllToAllSchedule = schedule.String() // in the one form that can be compared
	algorithms, err := tune.ParseAlgorithms(c.Algorithms)
	if err != nil {
		return bad("%s is %v", EnvAlgorithms, err)
	}
	c.Algorithms = algorithms.String() // likewise
	if c.Timeout == 0 {
		c.Timeout = DefaultTimeout
	}
	if c.LivenessGrace == 0 {
		c.LivenessGrace = DefaultLivenessGrace
	}
	switch {
	case c.Size < 1 || c.Size > maxRanks:
		return bad("size is %d, allowed are 1 to %d", c.Size, maxRanks)
	case c.Rank < 0 || c.Rank >= c.Size:
		return bad("rank is %d, allowed are 0 to %d", c.Rank, c.Size-1)
	case c.Timeout < 0:
		return bad("timeout is %v, it must be positive", c.Timeout)
	case c.LivenessGrace < 0:
		return bad("liveness grace is %v, it must be positive", c.LivenessGrace)
	case c.MinSize < 0 || c.MinSize > maxRanks:
		return bad("least size is %d, allowed are 0 to %d", c.MinSize, maxRanks)
	case !slices.Contains([]string{RecoveryStep, RecoverySurvivors, RecoveryAll}, c.Recovery):
		return bad("recovery is %q (from the option or %s), allowed are %q, %q, %q and nothing",
			c.Recovery, EnvRecovery, RecoveryStep, RecoverySurvivors, RecoveryAll)
	case c.Quorum != QuorumMajority && c.Quorum != QuorumAny:
		return bad("quorum is %q (from the option or %s), allowed are %q, %q and nothing", c.Quorum,
			EnvQuorum, QuorumMajority, QuorumAny)
	case c.Transport != "" && c.Transport != address.Shm && !address.IsPort(c.Transport):
		return bad("transport is %q (from the option or %s), allowed are \"shm\", \"tcp\", \"verbs\" "+
			"and nothing", c.Transport, EnvTransport)
	case c.Net != "" && !address.IsPort(c.Net):
		return bad("network is %q (from %s), allowed are \"tcp\", \"verbs\" and nothing", c.Net, EnvNet)
	case c.GlobalRanks != nil && len(c.GlobalRanks) != c.Size:
		return bad("global ranks are %d, there must be one for each of %d ranks", len(c.GlobalRanks),
			c.Size)
	case c.Size > 1 && c.Store == nil && c.etcd == nil:
		return bad("no store is given, nor %s, but size is %d", EnvStore, c.Size)
	}
	return nil
}

// verbs says how RDMA devices are to be used.
func (r *Runtime) verbs(c Config) (transport.VerbsConfig, error) {
	v := transport.VerbsConfig{Library: r.config.Verbs, Memory: &r.arenas.Devices,
		HCA: r.config.Getenv(rdma.EnvHCA), GIDIndex: -1}
	switch {
	case c.Transport != "" && c.Transport != address.Verbs:
		v.Off = fmt.Sprintf("transport %q is forced", c.Transport)
	case c.Net == address.TCP:
		v.Off = fmt.Sprintf("%s is %q", EnvNet, c.Net)
	}
	if index := r.config.Getenv(rdma.EnvGIDIndex); index != "" {
		n, err := strconv.Atoi(index)
		if err != nil || n < 0 || n > 255 {
			return v, fault.Errorf(fault.ErrInvalidArgument, "init: %s is %q, allowed are 0 to 255",
				rdma.EnvGIDIndex, index)
		}
		v.GIDIndex = n
	}
	return v, nil
}

const (
	maxRanks    = 65536
	maxRankList = 256 // bytes of a text that lists ranks
)

// meet finds the other ranks through the store and makes the communicator.
func (r *Runtime) meet(ctx context.Context, config Config, end *sharedEndpoint) (*Comm, error) {
	me := r.address(config, end)
	own, shared, err := me.Encode()
	if err != nil {
		return nil, fault.Errorf(fault.ErrInternal, "init: %v", err)
	}
	var comm *Comm
	c := joinConfig(config)
	c.Member, c.Listen = bootstrap.Member{Own: own, Shared: shared}, end.TCPAddrs()
	// The communicator is made here, and not after the meeting, so that all ranks are told where
	// that fails.
	c.Check = func(members []bootstrap.Member) (bootstrap.Answers, error) {
		if comm != nil { // it was for a roster with records of an earlier run
			comm.discard()
			comm = nil
		}
		addresses, hosts, err := readAddresses(members)
		if err != nil {
			return 0, err
		}
		peers, err := roster.Join(addresses, hosts, config.Rank, config.Transport)
		if err != nil {
			return 0, err
		}
		if comm, err = r.newComm(config, end, peers); err != nil {
			return 0, err
		}
		return answersOf(&comm.present.Load().Roster), nil
	}
	log := logs.For(logs.OfGroup(r.config.Logger, config.GroupName, config.Rank), logs.Bootstrap)
	log.Debug("the meeting of all ranks starts", "size", config.Size, "timeout", config.Timeout)
	met, err := assemble(ctx, config, c)
	traceEnd(log, "the meeting of all ranks", err)
	if err != nil {
		if comm != nil {
			comm.discard()
		}
		refused := initError(ctx, err, config)
		if errors.Is(err, bootstrap.ErrInvalid) { // nothing of it has come to the others
			return nil, r.StayOut(ctx, config, refused)
		}
		return nil, refused
	}
	comm.present.Load().agree(met.Unanimous)
	id := roster.Identity{Job: met.Job, Group: met.Group, Secret: met.Secret}
	if err := comm.open(id); err != nil {
		return nil, err
	}
	return comm, nil
}

// address is what this process publishes of itself, as others read it.
func (r *Runtime) address(config Config, end *sharedEndpoint) address.Address {
	me := end.Address()
	me.Forced, me.Net, me.CPUs = config.Transport, config.Net, cpus.Usable()
	if domain := cpus.Domain(cpus.Sysfs, cpus.Allowed()); domain != nil {
		me.Domain = domain[0] + 1
	}
	me.Host = cmp.Or(r.config.host, me.Host)
	if r.config.unread {
		me.Mark = address.Mark{}
	}
	return me.AsRead()
}

// openComm makes a communicator whose ranks know each other already.
func (r *Runtime) openComm(
	config Config, end *sharedEndpoint, id roster.Identity, peers roster.Peers,
) (*Comm, error) {
	c, err := r.newComm(config, end, peers)
	if err != nil {
		return nil, fault.Errorf(fault.ErrSystem, "the communicator cannot be made: %v", err)
	}
	if err := c.open(id); err != nil {
		return nil, err
	}
	return c, nil
}

// newComm makes a communicator with the memory of its first epoch. Nobody knows of it before open.
func (r *Runtime) newComm(
	config Config, end *sharedEndpoint, peers roster.Peers,
) (*Comm, error) {
	config.Store = nil // it is not used after the meeting
	c := &Comm{runtime: r, end: end, config: config, timeout: config.Timeout, models: newModels()}
	c.life, c.endLife = context.WithCancelCause(context.Background())
	ranks := newRoster(config.GroupName, config.Rank, config.GlobalRanks, peers, end)
	if peers.SharesMemory() {
		if arena, err := r.arenas.Acquire(); err == nil { // else Alloc tells
			c.arena = arena
		}
	}
	e, err := c.newEpoch(ranks, 0)
	if err != nil {
		c.discard()
		return nil, fmt.Errorf("%s: %w", ranks.Members.Names(ranks.Rank), err)
	}
	c.present.Store(e)
	return c, nil
}

// discard frees a communicator that was not opened.
func (c *Comm) discard() {
	if c.fast != nil {
		c.fast.Free()
	}
	if e := c.present.Load(); e != nil {
		e.discard()
	}
	if c.arena != nil {
		c.runtime.arenas.Release()
	}
}

// open lets peers in. Where it fails the communicator is gone.
func (c *Comm) open(id roster.Identity) error {
	c.runtime.mu.Lock()
	c.runtime.comms[c] = true
	c.runtime.mu.Unlock()
	e := c.present.Load()
	e.Identity = id
	if err := e.open(); err != nil {
		c.end = nil // the caller's
		c.Destroy()
		return fault.Errorf(fault.ErrSystem, "the communicator cannot be made: %v", err)
	}
	e.logMade()
	return nil
}
