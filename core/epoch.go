package core

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
	"github.com/goccl/goccl/core/bootstrap"
	"github.com/goccl/goccl/core/call"
	"github.com/goccl/goccl/core/collective"
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
	"github.com/goccl/goccl/core/transport"
	"github.com/goccl/goccl/core/tune"
	"github.com/goccl/goccl/core/work"
)

// The lanes of a communicator's windows: tune.Lanes of them.
const (
	collectiveLane = iota
	pointToPointLane
)

// epoch is a communicator while its membership stays as it is: what dies with a change of it.
//
// An epoch is made by newEpoch and opened, fails at most once, and ends by finish and free.
// Everything of it is addressed with its number, so that nothing of one epoch reaches another.
// It has more fields than others: each is one of the parts, which have walls of their own.
type epoch struct {
	ofComm
	roster.Roster
	number uint32       // 0, 1, ...
	logger *slog.Logger // of the group and rank
	trace  tracers

	// How data moves. What follows is made once, and has locks of its own.
	shape     tune.Shape
	waiting   exec.Waiting
	poller    *transport.Poller // nil where there are no links
	group     *transport.Group  // under Comm.mu until attached
	attached  chan struct{}     // closed once group is set
	window    *exec.Window
	memory    *memory.Mapping     // with the window
	processes []address.ProcessID // of this host that are held, until the epoch is freed
	holder    *endpoint.Endpoint  // of them

	// Progress.
	works  work.Group // its Context ends when the epoch fails
	cancel context.CancelFunc
	queue  *work.Queue // of collectives; works are pushed under Comm.mu
	runner runner
	p2p    *p2p.Engine
	dialer dialer
	tasks  tasks

	// What ranks agree on.
	membership membership.Machine // under Comm.mu
	decisions  []*decision        // by number; under Comm.mu
	// firstUndone is the first collective that a failure has left undone here; under Comm.mu.
	firstUndone uint64
	settled     bool           // see membership.Settle; under Comm.mu
	hasMet      bool           // a collective has completed: see absent; under Comm.mu
	allMet      bool           // so it has on all ranks: see meetAgain; under Comm.mu
	before      *epoch         // whose members decided on this one, until that has met; under Comm.mu
	next        *epoch         // that was decided, once all have begun it; under Comm.mu
	order       order.Order    // calls, and what peers announced of theirs; under Comm.mu
	tellers     sync.WaitGroup // goroutines that tell of refused calls
	starting    sync.WaitGroup // works that are queued, and cannot end yet
	splits      uint64         // how many have been called; under Comm.mu
	inquiry     inquiry
	monitored   *monitoredBarrier

	failure atomic.Pointer[fault.Error] // the first cause; set under Comm.mu
	stopped chan struct{}               // closed when the failure has been carried out
	over    bool                        // the next epoch has begun; under Comm.mu
}

// ofComm is the communicator of an epoch. It lies one level deeper than the roster, so that Rank,
// Size and Members of an epoch are the roster's.
type ofComm struct{ *Comm }

// tasks are the goroutines of an epoch.
type tasks struct {
	sync.WaitGroup
	mu    sync.Mutex
	ended bool // no task begins any more
}

// tuneOptions are what the settings, and what links carry, say of how data moves.
func tuneOptions(config *Config) tune.Options {
	return tune.Options{Thresholds: config.Thresholds, Schedule: config.AllToAllSchedule,
		Algorithms: config.Algorithms, Links: config.Links,
		LongMost: transport.MaxData - exec.MessageHeader}
}

// newEpoch makes an epoch with its memory. Nobody knows of it before open.
func (c *Comm) newEpoch(ranks roster.Roster, number uint32) (*epoch, error) {
	e := &epoch{ofComm: ofComm{c}, Roster: ranks, number: number, attached: make(chan struct{}),
		inquiry: inquiry{changed: make(chan struct{}, 1)}, stopped: make(chan struct{}),
		logger: logs.OfGroup(c.runtime.config.Logger, ranks.Members.Name, ranks.Rank)}
	e.trace = newTracers(e.logger)
	e.settled = e.Founders == nil
	e.monitored = newMonitoredBarrier(e)
	config := c.config
	at := e.Peers.Places(config.Transport)
	options := tuneOptions(&config.Config)
	options.SingleCopy, options.Reads = e.SingleCopy, e.Reads
	options.Ports = e.Peers.Ports()
	var err error
	e.shape, err = tune.New(tune.Survey(at), e.Rank, options)
	if err != nil {
		return nil, err
	}
	if err := e.shape.CheckAlgorithms(); err != nil {
		return nil, fmt.Errorf("%s: %w", EnvAlgorithms, err)
	}
	oversubscribed := tune.Oversubscribed(at)[e.Peers[e.Rank].Host]
	e.waiting = waiting(oversubscribed)
	e.works = work.Group{Yields: e.waiting.PortPolls, Spawn: e.spawn}
	e.works.Context, e.cancel = context.WithCancel(context.Background())
	e.queue = work.NewQueue(&e.works, &e.runner)
	e.works.Queue = e.queue
	if c.end != nil {
		e.poller = c.end.Poller()
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
	e.memory = c.runtime.arenas.NewMapping(e.window, c.arena)
	e.holdProcesses()
	if err := e.makeRunner(); err != nil {
		e.letGo()
		e.closeMemory()
		return nil, err
	}
	if err := e.makeSends(options.Ports); err != nil {
		e.discard()
		return nil, err
	}
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
func (c *epoch) makeRunner() error {
	run, err := exec.NewRun(c.window.Lane(collectiveLane))
	if err != nil {
		return err
	}
	if c.fast != nil {
		c.lockOrder() // it stays shut: the epoch before has failed
		c.fast.Use(run, c.Rank)
		c.mu.Unlock()
	} else if c.fast, err = exec.NewFastPath(run, c.Rank, order.MaxRefusals); err != nil {
		run.Free()
		return err
	}
	if c.recovers() {
		if err := c.fast.KeepResults(c.resultMost()); err != nil {
			run.Free()
			return err
		}
	}
	config := collective.Config{Rank: c.Rank, Shape: &c.shape, Window: c.window, Arena: c.arena,
		FastPath: c.fast, Recovers: c.recovers()}
	if c.poller != nil {
		config.Wire = newLinkReader(c)
	}
	c.runner = runner{c: c, engine: collective.New(config, run)}
	return nil
}

// makeSends makes what carries sends and receives.
func (c *epoch) makeSends(ports []bool) (err error) {
	config := p2p.Config{Rank: c.Rank, Members: &c.Members, Group: c.Identity.Group, Epoch: c.number,
		Ports: ports, Shape: &c.shape, Waiting: c.waiting, Works: &c.works, Window: c.window,
		Lane: c.window.Lane(pointToPointLane), FastPath: c.fast, Traced: c.trace.pointToPoint != nil}
	if c.poller != nil {
		config.Reader = c.poller
	}
	c.p2p, err = p2p.New(config, sender{c})
	return err
}

// sender is an epoch as its sends and receives see it.
type sender struct{ *epoch }

// Failed implements p2p.Face.
func (c sender) Failed() *fault.Error { return c.failed() }

// Fail implements p2p.Face.
func (c sender) Fail(cause *fault.Error) { c.fail(cause, true) }

// PeerError implements p2p.Face.
func (c sender) PeerError(peer int, err error) *fault.Error { return c.peerError(peer, err) }

// RunError implements p2p.Face.
func (c sender) RunError(run *exec.Run, m plan.Message, s exec.Status) *fault.Error {
	return c.runError(run, m, s)
}

// Departure implements p2p.Face.
func (c sender) Departure(peer int) (d membership.Departure, gone bool) { return c.departure(peer) }

// Timeout implements p2p.Face.
func (c sender) Timeout() time.Duration { return c.defaultTimeout() }

// Dial implements p2p.Face.
func (c sender) Dial(peer int) { c.connect(peer) }

// discard frees an epoch that was not opened.
func (c *epoch) discard() {
	c.runner.engine.Free()
	c.letGo()
	c.closeMemory()
}

// closeMemory ends what the epoch shares.
func (c *epoch) closeMemory() {
	if err := c.memory.Close(); err != nil {
		c.log(logs.Mem).Warn(fmt.Sprintf("closing the window: %v", err))
	}
}

// retire has the memory of an operation that has failed not allocated again before the epoch has
// ended on all ranks.
func (c *epoch) retire(op *call.Operation) { c.memory.Retire(op.Out, op.OutBytes()) }

// holdProcesses holds the processes of the peers on this host, until letGo. Of one that has ended
// meanwhile nothing can be read.
func (c *epoch) holdProcesses() {
	c.holder = c.end
	for peer := range c.Peers {
		at := &c.Peers[peer]
		if peer == c.Rank || at.Host != c.Peers[c.Rank].Host {
			continue
		}
		fd := c.holder.HoldPeer(&at.Address)
		c.processes = append(c.processes, at.Process)
		if at.Readable && (fd >= 0 || at.PID == os.Getpid()) {
			c.window.UseProcess(peer, exec.Process{PID: at.PID, FD: fd})
		}
	}
}

// letGo gives back what holdProcesses holds.
func (c *epoch) letGo() {
	for _, process := range c.processes {
		c.holder.ReleasePeer(process)
	}
	c.processes = nil
}

// open lets peers in. Where it fails the epoch must be finished.
func (c *epoch) open() error {
	c.mu.Lock()
	c.membership = membership.New(c.Rank)
	c.order = order.New(history{c.fast, c}, &c.Members, c.Rank, c.Identity.Group, c.number)
	c.mu.Unlock()
	var stopped unsafe.Pointer // a word of the window
	if c.Peers.Has(address.Verbs) {
		c.memory.Register()
		stopped = c.window.Stopped(collectiveLane)
	}
	var share []int
	if fd := c.window.FD(); fd >= 0 {
		share = append(share, fd)
		if c.arena != nil {
			share = append(share, c.arena.FD())
		}
	}
	if c.trace.collectives != nil && c.shape.AllMemory { // else none runs in C
		c.spawn(c.traceRan)
	}
	if c.Size() == 1 {
		return nil
	}
	group, err := c.end.Attach(transport.GroupConfig{Job: c.Identity.Job, Group: c.Identity.Group,
		Epoch: c.number, Secret: c.Identity.Secret, Name: c.Members.Name, Rank: c.Rank,
		Peers: c.Peers.Addresses(), Kinds: c.Peers.Kinds(), Handler: handler{c}, Share: share,
		Stopped: stopped})
	c.mu.Lock()
	c.group = group
	c.p2p.UseLinks(group)
	failure := c.failed()
	c.mu.Unlock()
	close(c.attached)
	if group != nil && failure != nil { // a peer was quick
		group.Fail(failFrame(failure))
		group.Halt()
	}
	return err
}

// agree settles what all ranks have answered yes to: before the epoch is opened.
func (e *epoch) agree(unanimous bootstrap.Answers) {
	e.Roster.Agree(roster.Answers(unanimous))
	e.shape.Agree(e.SingleCopy, e.Reads)
	e.p2p.Agreed()
}

// message says what an operation is, in what all ranks know of it.
func (c *epoch) message(op *call.Operation) plan.Message {
	m := op.Message()
	m.Schedule = uint8(c.shape.ScheduleOf(op))
	return m
}

// openFastPath lets callers in C in if nothing is under way that must come first. It is called with
// the lock held.
func (c *epoch) openFastPath() {
	if c.failed() == nil && c.recovering == nil && c.membership.Whole() && c.queue.Empty() &&
		!c.order.Ahead() && c.shape.AllMemory {
		c.fast.Open()
	}
}

// unlockOrder undoes lockOrder.
func (c *epoch) unlockOrder() {
	c.openFastPath()
	c.mu.Unlock()
}

// spawn runs f in a goroutine that finish waits for; after that, on the caller's. A panic in it
// fails the communicator.
func (c *epoch) spawn(f func()) {
	guarded := func() {
		defer func() {
			if r := recover(); r != nil {
				c.fail(c.Members.Errorf(fault.ErrInternal, "panic: %v", r), true)
			}
		}()
		f()
	}
	c.tasks.mu.Lock()
	over := c.tasks.ended
	if !over {
		c.tasks.Add(1)
	}
	c.tasks.mu.Unlock()
	if over {
		guarded()
		return
	}
	go func() {
		defer c.tasks.Done()
		guarded()
	}()
}
