// Package epoch runs a group of ranks while its members stay the same.
//
// # Model
//
// An [Epoch] owns all that dies with a change of members: the window that the ranks share, the
// group's links, the queue of collectives, the engines of collectives and of sends, the order of
// calls, and what is known of peers. Its [Config] survives it: the next epoch takes that over. Of
// the communicator it knows only an [Owner], which it asks to recover.
//
// An epoch fails once, by the first cause. Packages below decide: [membership] whether a peer's end
// fails it, [order] whether calls differ, [agreement] who is in the next one. The epoch carries
// this out: it stops the engines, tells the peers, and ends works. Package [suspended] keeps the
// works that survivors complete.
//
// # Locks
//
// Epoch.mu guards the order of calls and what is known of members. With it held only locks of
// packages below are taken. lockOrder takes it with nobody in the fast path: then the order of the
// collectives stands still. Owner.Recover is called with Epoch.mu held, Owner.Changed without.
package epoch

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/goccl/goccl/core/address"
	"github.com/goccl/goccl/core/agreement"
	"github.com/goccl/goccl/core/bootstrap"
	"github.com/goccl/goccl/core/call"
	"github.com/goccl/goccl/core/channel"
	"github.com/goccl/goccl/core/collective"
	"github.com/goccl/goccl/core/config"
	"github.com/goccl/goccl/core/endpoint"
	"github.com/goccl/goccl/core/exec"
	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/logs"
	"github.com/goccl/goccl/core/membership"
	"github.com/goccl/goccl/core/memory"
	"github.com/goccl/goccl/core/order"
	"github.com/goccl/goccl/core/p2p"
	"github.com/goccl/goccl/core/plan"
	"github.com/goccl/goccl/core/roster"
	"github.com/goccl/goccl/core/status"
	"github.com/goccl/goccl/core/suspended"
	"github.com/goccl/goccl/core/transport"
	"github.com/goccl/goccl/core/tune"
	"github.com/goccl/goccl/core/work"
)

// The lanes of a communicator's windows: tune.Lanes of them.
const (
	collectiveLane = iota
	pointToPointLane
)

// Config is what survives a change of members: each epoch takes it over from the one before.
type Config struct {
	Settings  config.Completed
	Logger    *slog.Logger
	Life      context.Context    // ends when the communicator is destroyed
	End       *endpoint.Endpoint // nil where there are no peers
	Arenas    *memory.Arenas
	Arena     *exec.Arena    // this process's, where some peer shares memory
	FastPath  *exec.FastPath // collectives in C; it also holds their order. New makes the first
	Suspended *suspended.Store
	Lingering *Lingering
	Memories  *channel.Memories // what users have registered
	Peers     *status.Peers     // asks them what they do
	Owner     Owner
}

// Owner is what an epoch asks of what survives it.
type Owner interface {
	// Timeout is that of operations which give none.
	Timeout() time.Duration
	// Recover begins an automatic recovery, after the death of a member. It is called with Epoch.mu
	// held, and returns at once.
	Recover()
	// Failed tells that the epoch has failed, and its communicator is not being destroyed: once,
	// before its works end. It is called without Epoch.mu, and returns at once.
	Failed()
	// Changed tells that others may wait for something else of this rank: the epoch has failed, or a
	// peer has gone. It is called without Epoch.mu, maybe with locks of links held, and takes none.
	Changed()
}

// Epoch is a communicator while its members stay the same.
//
// New makes an epoch, and Open lets peers in. It fails at most once, and ends by Finish and Free.
// Every frame of it has its number, so that nothing of one epoch reaches another. Its methods may
// be called from any goroutine, unless they say otherwise.
// It has more fields than others: most are parts that have packages of their own.
type Epoch struct {
	roster.Roster
	config *Config
	number uint32       // 0, 1, ...
	logger *slog.Logger // of the group and rank
	trace  tracers

	// How data moves. What follows is made once, and has locks of its own.
	shape     tune.Shape // its programs are guarded by mu
	wire      call.Wire  // as which elements travel where their operation does not say
	waiting   exec.Waiting
	poller    *transport.Poller // nil where there are no links
	group     *transport.Group  // guarded by mu until attached
	attached  chan struct{}     // closed once group is set
	window    *exec.Window
	memory    *memory.Mapping     // with the window
	processes []address.ProcessID // of this host: see holdProcesses
	end       *endpoint.Endpoint  // config's, when the epoch was made
	fast      *exec.FastPath      // likewise

	// Progress.
	works  work.Group // its Context ends when the epoch fails
	cancel context.CancelFunc
	queue  *work.Queue // of collectives; works are pushed with mu held
	runner runner
	p2p    *p2p.Engine
	// channels is made last, and has all that it needs from Open on.
	channels *channel.Engine
	dialer   dialer
	tasks    tasks

	mu sync.Mutex // guards what says so; see the package comment

	// What ranks agree on.
	agreement  *agreement.Engine
	membership membership.Machine // guarded by mu
	// firstUndone is the first collective that a failure has left undone here; guarded by mu.
	firstUndone uint64
	order       order.Order    // calls, and what peers announced of theirs; guarded by mu
	tellers     sync.WaitGroup // goroutines that tell of refused calls
	starting    sync.WaitGroup // works that are queued, and cannot end yet
	splits      atomic.Uint64  // how many splits have been called
	// registering is closed when the registration that is under way has ended; nil: none is. What
	// comes after it in the order waits for it. Guarded by mu.
	registering chan struct{}
	programs    programs
	inquiry     inquiry
	monitored   *monitoredBarrier

	failure atomic.Pointer[fault.Error] // the first cause; set with mu held
	ending  atomic.Bool                 // it ends in good order, unless it has failed before
	stopped chan struct{}               // closed when the failure has been carried out
	over    bool                        // the next epoch has begun; guarded by mu
}

// tasks are the goroutines of an epoch.
type tasks struct {
	sync.WaitGroup
	mu    sync.Mutex
	ended bool // no task begins any more
}

// TuneOptions returns what the settings, and the most that links carry, say of how data moves.
func TuneOptions(config *config.Config) tune.Options {
	return tune.Options{Thresholds: config.Thresholds, Schedule: config.AllToAllSchedule,
		Algorithms: config.Algorithms, Links: config.Links,
		LongMost: transport.MaxData - exec.MessageHeader}
}

// New makes an epoch with its memory. No peer knows of it before Open. The config is the owner's,
// who does not change it while an epoch of it is open.
func New(c *Config, ranks roster.Roster, number uint32) (*Epoch, error) {
	settings := &c.Settings
	e := &Epoch{config: c, Roster: ranks, number: number, attached: make(chan struct{}),
		end: c.End, inquiry: inquiry{changed: make(chan struct{}, 1)},
		stopped: make(chan struct{}),
		logger:  logs.OfGroup(c.Logger, ranks.Members.Name, ranks.Rank)}
	e.trace = newTracers(e.logger)
	e.agreement = agreement.New(agreement.Config{Roster: &e.Roster, MinSize: settings.MinSize,
		Any: settings.Quorum == config.QuorumAny}, voter{e})
	e.monitored = newMonitoredBarrier(e)
	at := e.Peers.Places(settings.Transport)
	options := TuneOptions(&settings.Config)
	options.SingleCopy, options.Reads = e.SingleCopy, e.Reads
	options.Ports = e.Peers.Ports()
	var err error
	e.shape, err = tune.New(tune.Survey(at), e.Rank, options)
	if err != nil {
		return nil, err
	}
	if e.wire, err = call.ParseWire(settings.WireDType); err != nil {
		return nil, fmt.Errorf("%s: %w", config.EnvWireDType, err)
	}
	if err := e.shape.CheckAlgorithms(); err != nil {
		return nil, fmt.Errorf("%s: %w", config.EnvAlgorithms, err)
	}
	if err := e.registerSettings(); err != nil {
		return nil, fmt.Errorf("%s: %w", config.EnvPlans, err)
	}
	oversubscribed := tune.Oversubscribed(at)[e.Peers[e.Rank].Host]
	e.waiting = waiting(oversubscribed)
	e.works = work.Group{Yields: e.waiting.PortPolls, Spawn: e.spawn}
	e.works.Context, e.cancel = context.WithCancel(context.Background())
	e.queue = work.NewQueue(&e.works, &e.runner)
	e.works.Queue = e.queue
	if e.end != nil {
		e.poller = e.end.Poller()
		if oversubscribed {
			e.poller.SetOversubscribed()
		}
	}
	layout := exec.Layout{Ranks: e.Size(), Lanes: tune.Lanes, Slots: e.shape.Slots,
		Chunk: e.shape.Chunk, LaterChunk: e.shape.SendChunk, Near: e.shape.Near(),
		NearChunk: e.shape.NearChunk, Sharing: e.Sharing(),
		Mailbox: exec.MailboxFor(e.shape.EagerMax), Bounce: exec.BounceFor(e.shape.EagerMax),
		Pipe: e.shape.Pipe}
	if e.window, err = exec.NewWindow(layout, e.Rank, e.Peers.SharesMemory(), e.waiting); err != nil {
		return nil, err
	}
	e.memory = c.Arenas.NewMapping(e.window, c.Arena)
	e.holdProcesses()
	if err := e.makeRunner(); err != nil {
		e.letGo()
		e.closeMemory()
		return nil, err
	}
	if err := e.makeSends(options.Ports); err != nil {
		e.Discard()
		return nil, err
	}
	e.makeChannels(options.Ports)
	return e, nil
}

// waiting chooses how waits poll: hardly at all on an oversubscribed host.
func waiting(oversubscribed bool) exec.Waiting {
	if oversubscribed {
		return exec.Waiting{Yields: 100, PortPolls: 3}
	}
	return exec.Waiting{Spin: 3 * time.Millisecond, Yields: 20, PortPolls: 300}
}

// makeRunner makes what runs collectives, in Go and in C.
func (e *Epoch) makeRunner() error {
	run, err := exec.NewRun(e.window.Lane(collectiveLane))
	if err != nil {
		return err
	}
	if e.fast = e.config.FastPath; e.fast != nil {
		e.lockOrder() // it stays shut: the epoch before has failed
		e.fast.Use(run, e.Rank)
		e.mu.Unlock()
	} else if e.fast, err = exec.NewFastPath(run, e.Rank); err != nil {
		run.Free()
		return err
	}
	if e.config.FastPath == nil {
		e.config.FastPath = e.fast
	}
	if e.Recovers() {
		if err := e.fast.KeepResults(e.resultMost()); err != nil {
			run.Free()
			return err
		}
	}
	config := collective.Config{Rank: e.Rank, Shape: &e.shape, Window: e.window,
		Arena: e.config.Arena, FastPath: e.fast, Recovers: e.Recovers()}
	if e.poller != nil {
		config.Wire = newLinkReader(e)
	}
	e.runner = runner{e: e, engine: collective.New(config, run)}
	return nil
}

// makeSends makes what carries sends and receives.
func (e *Epoch) makeSends(ports []bool) (err error) {
	config := p2p.Config{Rank: e.Rank, Members: &e.Members, Group: e.Identity.Group, Epoch: e.number,
		Ports: ports, Shape: &e.shape, Waiting: e.waiting, Works: &e.works, Window: e.window,
		Lane: e.window.Lane(pointToPointLane), FastPath: e.fast, Traced: e.trace.pointToPoint != nil}
	if e.poller != nil {
		config.Reader = e.poller
	}
	e.p2p, err = p2p.New(config, sender{e})
	return err
}

// sender is an epoch as its sends and receives see it.
type sender struct{ *Epoch }

// Failed implements p2p.Face.
func (e sender) Failed() *fault.Error { return e.Failure() }

// Fail implements p2p.Face.
func (e sender) Fail(cause *fault.Error) { e.Epoch.Fail(cause, true) }

// PeerError implements p2p.Face.
func (e sender) PeerError(peer int, err error) *fault.Error { return e.peerError(peer, err) }

// RunError implements p2p.Face.
func (e sender) RunError(run *exec.Run, m plan.Message, s exec.Status) *fault.Error {
	return e.runError(run, m, s)
}

// Departure implements p2p.Face.
func (e sender) Departure(peer int) (d membership.Departure, gone bool) { return e.departure(peer) }

// Timeout implements p2p.Face.
func (e sender) Timeout() time.Duration { return e.config.Owner.Timeout() }

// Dial implements p2p.Face.
func (e sender) Dial(peer int) { e.connect(peer) }

// Discard frees an epoch that was not opened.
func (e *Epoch) Discard() {
	e.runner.engine.Free()
	e.letGo()
	e.closeMemory()
}

// closeMemory ends what the epoch shares.
func (e *Epoch) closeMemory() {
	if err := e.memory.Close(); err != nil {
		e.Log(logs.Mem).Warn(fmt.Sprintf("closing the window: %v", err))
	}
}

// retire keeps the output memory of an operation that has failed from being allocated again before
// the epoch has ended on all ranks.
func (e *Epoch) retire(op *call.Operation) { e.memory.Retire(op.Out, op.OutBytes()) }

// holdProcesses keeps what the kernel tells of the peers' processes on this host, until letGo. The
// memory of one that has ended meanwhile cannot be read.
func (e *Epoch) holdProcesses() {
	for peer := range e.Peers {
		at := &e.Peers[peer]
		if peer == e.Rank || at.Host != e.Peers[e.Rank].Host {
			continue
		}
		fd := e.end.HoldPeer(&at.Address)
		e.processes = append(e.processes, at.Process)
		if at.Readable && (fd >= 0 || at.PID == os.Getpid()) {
			e.window.UseProcess(peer, exec.Process{PID: at.PID, FD: fd})
		}
	}
}

// letGo undoes holdProcesses.
func (e *Epoch) letGo() {
	for _, process := range e.processes {
		e.end.ReleasePeer(process)
	}
	e.processes = nil
}

// Open lets peers in. The caller finishes the epoch where Open fails.
func (e *Epoch) Open(id roster.Identity) error {
	e.Identity = id
	e.config.Memories.Enter(id.Group, id.Secret)
	e.fast.Trace().Enter(e.tracedGroup())
	e.mu.Lock()
	e.membership = membership.New(e.Rank)
	e.order = order.New(history{e.fast, e}, &e.Members, e.Rank, e.Identity.Group, e.number)
	e.mu.Unlock()
	var stopped unsafe.Pointer // a word of the window
	if e.Peers.Has(address.Verbs) {
		e.memory.Register()
		stopped = e.window.Stopped(collectiveLane)
	}
	var share []int
	if fd := e.window.FD(); fd >= 0 {
		share = append(share, fd)
		if e.config.Arena != nil {
			share = append(share, e.config.Arena.FD())
		}
	}
	if e.trace.collectives != nil && e.shape.AllMemory { // else none runs in C
		e.spawn(e.traceRan)
	}
	if e.Size() == 1 {
		e.channels.UseLinks(nil)
		return nil
	}
	group, err := e.end.Attach(transport.GroupConfig{Job: e.Identity.Job, Group: e.Identity.Group,
		Epoch: e.number, Secret: e.Identity.Secret, Name: e.Members.Name, Rank: e.Rank,
		Peers: e.Peers.Addresses(), Kinds: e.Peers.Kinds(), Handler: e.Handler(), Share: share,
		Stopped: stopped})
	e.mu.Lock()
	e.group = group
	e.p2p.UseLinks(group)
	e.channels.UseLinks(group)
	failure := e.Failure()
	e.mu.Unlock()
	close(e.attached)
	if group != nil {
		e.config.Peers.Use(e.number, peers{e}, e.Size())
	}
	if group != nil && failure != nil { // a peer was quick
		group.Fail(failFrame(failure))
		group.Halt()
	}
	return err
}

// Agree takes what all ranks have answered yes to, before all collectives but the first.
func (e *Epoch) Agree(unanimous bootstrap.Answers) {
	e.mu.Lock() // Thresholds may be called
	e.Roster.Agree(roster.Answers(unanimous))
	e.shape.Agree(e.SingleCopy, e.Reads)
	e.mu.Unlock()
	e.p2p.Agreed()
}

// message describes an operation by what all ranks know of it.
func (e *Epoch) message(op *call.Operation) plan.Message {
	m := op.Message()
	m.Schedule = uint8(e.shape.ScheduleOf(op))
	return m
}

// openFastPath lets callers in C in if nothing is under way that must come first. It is called with
// mu held.
func (e *Epoch) openFastPath() {
	if e.Failure() == nil && e.membership.Whole() && e.queue.Empty() && !e.order.Ahead() &&
		e.shape.AllMemory && e.registering == nil &&
		(!e.Recovers() || e.config.Suspended.Recovery() == nil) {
		e.fast.Open()
	}
}

// unlockOrder undoes lockOrder.
func (e *Epoch) unlockOrder() {
	e.openFastPath()
	e.mu.Unlock()
}

// spawn runs f in a goroutine that Finish waits for. After Finish it runs f on the caller's. A
// panic in f fails the epoch.
func (e *Epoch) spawn(f func()) {
	guarded := func() {
		defer func() {
			if r := recover(); r != nil {
				e.Fail(e.Members.Errorf(fault.ErrInternal, "panic: %v", r), true)
			}
		}()
		f()
	}
	e.tasks.mu.Lock()
	over := e.tasks.ended
	if !over {
		e.tasks.Add(1)
	}
	e.tasks.mu.Unlock()
	if over {
		guarded()
		return
	}
	go func() {
		defer e.tasks.Done()
		guarded()
	}()
}
