package core

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/goccl/goccl/core/address"
	"github.com/goccl/goccl/core/bootstrap"
	"github.com/goccl/goccl/core/bootstrap/etcd"
	"github.com/goccl/goccl/core/channel"
	"github.com/goccl/goccl/core/checkpoint"
	"github.com/goccl/goccl/core/config"
	"github.com/goccl/goccl/core/endpoint"
	"github.com/goccl/goccl/core/epoch"
	"github.com/goccl/goccl/core/exec"
	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/internal/cpus"
	"github.com/goccl/goccl/core/join"
	"github.com/goccl/goccl/core/logs"
	"github.com/goccl/goccl/core/roster"
	"github.com/goccl/goccl/core/status"
	"github.com/goccl/goccl/core/suspended"
	"github.com/goccl/goccl/core/transport"
)

// Init makes a communicator together with the other ranks. It waits for all of them, for at most
// the timeout.
func (r *Runtime) Init(ctx context.Context, config Config) (*Comm, error) {
	ctx, cancel := r.Until(ctx)
	defer cancel()
	c, err := r.join(ctx, config)
	var e *fault.Error
	if errors.As(err, &e) {
		return nil, config.Concern(e)
	}
	return c, err
}

// join is Init, but its errors do not name the group yet.
func (r *Runtime) join(ctx context.Context, given Config) (*Comm, error) {
	r.tellVariables.Do(r.tellEnvironment)
	config, err := given.Complete(r.environment())
	if err != nil {
		return nil, r.stayOut(ctx, config, err)
	}
	ctx, cancel := context.WithTimeout(ctx, config.Timeout)
	defer cancel()
	if err := exec.TryAddressSpace(); err != nil {
		return nil, r.stayOut(ctx, config, fault.Errorf(fault.ErrSystem, "init: %v", err))
	}
	if config.Size == 1 {
		return r.alone(ctx, config)
	}
	if warning := config.StoreWarning(); warning != "" {
		r.warnOfStore.Do(func() { r.log(logs.Bootstrap).Warn(warning) })
	}
	end, err := r.endpoint(config)
	if err != nil {
		return nil, r.stayOut(ctx, config, err)
	}
	defer end.Leave()
	return r.meet(ctx, config, end)
}

// alone makes a communicator of one rank. It refuses what Init refuses with more ranks.
func (r *Runtime) alone(ctx context.Context, config config.Completed) (*Comm, error) {
	listen := transport.Config{Interface: config.Interface, StoreHost: config.StoreHost,
		Verbs: r.verbs(config)}
	problem, err := transport.Check(listen, config.Transport)
	if err != nil {
		return nil, listenError(err)
	}
	if problem != "" {
		return nil, fault.Errorf(fault.ErrUnsupported, "init: %s", problem)
	}
	c := config.JoinConfig()
	c.Secret = "" // there is nobody to prove it to
	if _, err := bootstrap.Join(ctx, nil, c); err != nil {
		return nil, initError(ctx, err, config)
	}
	var none *endpoint.Endpoint // there are no peers
	return r.openComm(config, none, roster.Identity{}, none.Roster(config.GroupName, config.Rank,
		config.GlobalRanks, roster.Alone(address.Address{PID: os.Getpid()})))
}

// initError returns the error of a failure to meet the other ranks, of its kind.
func initError(ctx context.Context, err error, c config.Completed) error {
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

// Limit is how long Init may take, whatever else is wrong with the configuration.
func (r *Runtime) Limit(config Config) time.Duration {
	completed, _ := config.Complete(r.environment())
	if completed.Timeout <= 0 {
		return DefaultTimeout
	}
	return completed.Timeout
}

// StayOut tells the other ranks, which wait for this one, why it cannot take part. It returns that
// reason. The config must say how to meet the others, and who this rank is; else nobody is told.
// StayOut waits a few seconds at most.
func (r *Runtime) StayOut(ctx context.Context, config Config, why error) error {
	completed, _ := config.Complete(r.environment()) // an error is no news: this rank stays out
	return r.stayOut(ctx, completed, why)
}

func (r *Runtime) stayOut(ctx context.Context, config config.Completed, why error) error {
	if config.Size > 1 && (config.Store != nil || config.Etcd != nil) {
		c := config.JoinConfig()
		c.Settings, c.Problem = nil, why.Error() // settings that cannot be right are not to be compared
		_, _ = assemble(ctx, config, c)
	}
	return why
}

// assemble is bootstrap.Join, wherever the ranks meet.
func assemble(ctx context.Context, config config.Completed, c bootstrap.JoinConfig) (
	*bootstrap.Roster, error,
) {
	if config.Etcd == nil {
		return bootstrap.Join(ctx, config.Store, c)
	}
	store := etcd.Open(ctx, config.Etcd, config.Meeting)
	roster, err := bootstrap.Join(ctx, store, c)
	store.Close(err == nil)
	return roster, err
}

// verbs returns how RDMA devices are to be used.
func (r *Runtime) verbs(config config.Completed) transport.VerbsConfig {
	v := config.Verbs()
	v.Library, v.Memory = r.config.Verbs, &r.arenas.Devices
	return v
}

// meet finds the other ranks through the store and makes the communicator.
func (r *Runtime) meet(ctx context.Context, config config.Completed, end *endpoint.Endpoint) (
	*Comm, error,
) {
	me := r.address(config, end)
	own, shared, err := me.Encode()
	if err != nil {
		return nil, fault.Errorf(fault.ErrInternal, "init: %v", err)
	}
	var comm *Comm
	c := config.JoinConfig()
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
		ranks := end.Roster(config.GroupName, config.Rank, config.GlobalRanks, peers)
		if comm, err = r.newComm(config, end, ranks); err != nil {
			return 0, err
		}
		return epoch.AnswersOf(&comm.present.Load().Roster), nil
	}
	log := logs.For(logs.OfGroup(r.config.Logger, config.GroupName, config.Rank), logs.Bootstrap)
	log.Debug("the meeting of all ranks starts", "size", config.Size, "timeout", config.Timeout)
	met, err := assemble(ctx, config, c)
	logs.Ended(log, "the meeting of all ranks", err)
	if err != nil {
		if comm != nil {
			comm.discard()
		}
		refused := initError(ctx, err, config)
		if errors.Is(err, bootstrap.ErrInvalid) { // nothing of it has come to the others
			return nil, r.stayOut(ctx, config, refused)
		}
		return nil, refused
	}
	comm.present.Load().Agree(met.Unanimous)
	id := roster.Identity{Job: met.Job, Group: met.Group, Secret: met.Secret}
	if err := comm.open(id); err != nil {
		return nil, err
	}
	return comm, nil
}

// address returns what this process publishes of itself, as others read it.
func (r *Runtime) address(config config.Completed, end *endpoint.Endpoint) address.Address {
	me := end.Address()
	me.Forced, me.Net = config.Transport, config.Net
	me.CPUs, me.CPUSet = cpus.Usable(), cpus.Allowed().Hash()
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
	settings config.Completed, end *endpoint.Endpoint, id roster.Identity, ranks roster.Roster,
) (*Comm, error) {
	c, err := r.newComm(settings, end, ranks)
	if err != nil {
		return nil, fault.Errorf(fault.ErrSystem, "the communicator cannot be made: %v", err)
	}
	if err := c.open(id); err != nil {
		return nil, err
	}
	return c, nil
}

// newComm makes a communicator with the memory of its first epoch. No peer knows of it before open.
func (r *Runtime) newComm(
	settings config.Completed, end *endpoint.Endpoint, ranks roster.Roster,
) (*Comm, error) {
	settings.Store = nil // it is not used after the meeting
	c := &Comm{runtime: r, checkpoints: checkpoint.NewStore()}
	life, endLife := context.WithCancelCause(context.Background())
	c.endLife = endLife
	c.timeout.Store(int64(settings.Timeout))
	c.shared = epoch.Config{Settings: settings, Logger: r.config.Logger, Life: life, End: end,
		Arenas: &r.arenas, Suspended: suspended.NewStore(&r.images), Lingering: &r.lingering,
		Memories: channel.NewMemories(&r.arenas), Peers: &status.Peers{},
		Owner: owner{c}}
	c.acceptor = join.NewAcceptor(join.Config{Settings: settings, Life: life,
		Logger: r.config.Logger, Owner: owner{c}})
	if ranks.Peers.SharesMemory() {
		if arena, err := r.arenas.Acquire(); err == nil { // else Alloc tells
			c.shared.Arena = arena
		}
	}
	e, err := epoch.New(&c.shared, ranks, 0)
	if err != nil {
		c.discard()
		return nil, fmt.Errorf("%s: %w", ranks.Members.Names(ranks.Rank), err)
	}
	c.begin(e)
	return c, nil
}

// discard frees a communicator that was not opened.
func (c *Comm) discard() {
	if c.shared.FastPath != nil {
		c.shared.FastPath.Free()
	}
	if e := c.present.Load(); e != nil {
		e.Discard()
	}
	if c.shared.Arena != nil {
		c.runtime.arenas.Release()
	}
}

// open lets peers in, and takes a use of the endpoint. Where it fails it destroys the communicator.
func (c *Comm) open(id roster.Identity) error {
	if c.shared.End != nil {
		c.shared.End.Share()
	}
	c.runtime.mu.Lock()
	c.runtime.comms[c] = true
	c.runtime.mu.Unlock()
	c.runtime.watch.Add(status.Source{Trace: c.Trace(), Peers: c.shared.Peers},
		c.shared.Settings.GroupName)
	if err := c.present.Load().Open(id); err != nil {
		c.Destroy()
		return fault.Errorf(fault.ErrSystem, "the communicator cannot be made: %v", err)
	}
	c.logMade()
	return nil
}

// readAddresses reads what the ranks publish of themselves. Ranks with the same number in hosts
// publish the same of their host.
func readAddresses(members []bootstrap.Member) (
	addresses []address.Address, hosts []int, err error,
) {
	own, shared := make([][]byte, len(members)), make([][]byte, len(members))
	for rank, m := range members {
		own[rank], shared[rank] = m.Own, m.Shared
	}
	return address.Decode(own, shared)
}
