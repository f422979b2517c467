package core

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/goccl/goccl/core/address"
	"github.com/goccl/goccl/core/bootstrap"
	"github.com/goccl/goccl/core/call"
	"github.com/goccl/goccl/core/collective"
	"github.com/goccl/goccl/core/exec"
	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/logs"
	"github.com/goccl/goccl/core/membership"
	"github.com/goccl/goccl/core/memory"
	"github.com/goccl/goccl/core/order"
	"github.com/goccl/goccl/core/p2p"
	"github.com/goccl/goccl/core/plan"
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
	*Comm
	roster
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
	holder    *sharedEndpoint     // of them

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

// roster is who takes part, by rank.
type roster struct {
	members    fault.Group // the group's name, and those of the ranks
	rank, size int
	identity   identity            // set before open
	nobody     bool                // it has been opened, and has no members yet: see Runtime.Open
	founders   membership.Set      // see membership.Config; nil: all
	joined     []membership.Joiner // who were none before; they have the last ranks
	contested  bool                // see membership.Value.Open
	addresses  []address.Address
	kinds      []string
	readable   []bool // whose memory this rank reads
	// singleCopy tells that each rank reads the memory of all; before they have agreed on it, that
	// this one does. FastReads tells that none has found that slow: see exec.FastReads.
	singleCopy, fastReads bool
}

// tasks are the goroutines of an epoch.
type tasks struct {
	sync.WaitGroup
	mu    sync.Mutex
	ended bool // no task begins any more
}

// newEpoch makes an epoch with its memory. Nobody knows of it before open.
func (c *Comm) newEpoch(members roster, number uint32) (*epoch, error) {
	e := &epoch{Comm: c, roster: members, number: number, attached: make(chan struct{}),
		inquiry: inquiry{changed: make(chan struct{}, 1)}, stopped: make(chan struct{}),
		logger: logs.OfGroup(c.runtime.config.Logger, members.members.Name, members.rank)}
	e.trace = newTracers(e.logger)
	e.settled = e.founders == nil
	e.monitored = newMonitoredBarrier(e)
	config := c.config
	at := places(e.addresses, config.Transport)
	options := config.options()
	options.SingleCopy, options.FastReads = e.singleCopy, e.fastReads
	for peer := range e.addresses {
		options.Ports = append(options.Ports, e.port(peer))
	}
	var err error
	e.shape, err = tune.New(tune.Survey(at), e.rank, options)
	if err != nil {
		return nil, err
	}
	if err := e.shape.CheckAlgorithms(); err != nil {
		return nil, fmt.Errorf("%s: %w", EnvAlgorithms, err)
	}
	oversubscribed := tune.Oversubscribed(at)[e.addresses[e.rank].Host]
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
	layout := exec.Layout{Ranks: e.size, Lanes: tune.Lanes, Slots: e.shape.Slots, Chunk: e.shape.Chunk,
		LaterChunk: e.shape.SendChunk, Near: e.shape.Near(), NearChunk: e.shape.NearChunk,
		Sharing: e.sharing(),
		Mailbox: exec.MailboxFor(e.shape.EagerMax), Bounce: exec.BounceFor(e.shape.EagerMax),
		Pipe: e.shape.PipeSlot}
	if e.window, err = exec.NewWindow(layout, e.rank, e.sharesMemory(), e.waiting); err != nil {
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

// makeRunner makes what runs collectives, in Go and in C.
func (c *epoch) makeRunner() error {
	run, err := exec.NewRun(c.window.Lane(collectiveLane))
	if err != nil {
		return err
	}
	if c.fast != nil {
		c.lockOrder() // it stays shut: the epoch before has failed
		c.fast.Use(run, c.rank)
		c.mu.Unlock()
	} else if c.fast, err = exec.NewFastPath(run, c.rank, order.MaxRefusals); err != nil {
		run.Free()
		return err
	}
	if c.recovers() {
		if err := c.fast.KeepResults(c.resultMost()); err != nil {
			run.Free()
			return err
		}
	}
	config := collective.Config{Rank: c.rank, Shape: &c.shape, Window: c.window, Arena: c.arena,
		FastPath: c.fast, Recovers: c.recovers()}
	if c.poller != nil {
		config.Wire = newLinkReader(c)
	}
	c.runner = runner{c: c, engine: collective.New(config, run)}
	return nil
}

// makeSends makes what carries sends and receives.
func (c *epoch) makeSends(ports []bool) (err error) {
	config := p2p.Config{Rank: c.rank, Members: &c.members, Group: c.identity.group, Epoch: c.number,
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
	for peer := range c.addresses {
		at := &c.addresses[peer]
		if peer == c.rank || at.Host != c.addresses[c.rank].Host {
			continue
		}
		fd := c.holder.hold(at)
		c.processes = append(c.processes, at.Process)
		if c.readable[peer] && (fd >= 0 || at.PID == os.Getpid()) {
			c.window.UseProcess(peer, exec.Process{PID: at.PID, FD: fd})
		}
	}
}

// letGo gives back what holdProcesses holds.
func (c *epoch) letGo() {
	for _, process := range c.processes {
		c.holder.release(process)
	}
	c.processes = nil
}

// open lets peers in. Where it fails the epoch must be finished.
func (c *epoch) open() error {
	c.mu.Lock()
	c.membership = membership.New(c.rank)
	c.order = order.New(history{c.fast, c}, &c.members, c.rank, c.identity.group, c.number)
	c.mu.Unlock()
	var stopped unsafe.Pointer // a word of the window
	if slices.Contains(c.kinds, address.Verbs) {
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
	if c.size == 1 {
		return nil
	}
	group, err := c.end.Attach(transport.GroupConfig{Job: c.identity.job, Group: c.identity.group,
		Epoch: c.number, Secret: c.identity.secret, Name: c.members.Name, Rank: c.rank,
		Peers: c.addresses, Kinds: c.kinds, Handler: handler{c}, Share: share, Stopped: stopped})
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

// newRoster makes a roster, whose identity is not known yet.
func newRoster(
	name string, rank int, globalRanks []int, addresses []address.Address, kinds []string,
	end *sharedEndpoint,
) roster {
	pids := make([]int, len(addresses))
	for peer, a := range addresses {
		pids[peer] = a.PID
	}
	r := roster{members: fault.NewGroup(name, globalRanks, pids), rank: rank, size: len(addresses),
		addresses: addresses, kinds: kinds}
	r.findReadable(end)
	return r
}

// isNewcomer tells whether a rank was no member of the epoch before.
func (r *roster) isNewcomer(rank int) bool { return rank >= r.size-len(r.joined) }

// part are the members of some of the ranks, in their order.
func (r *roster) part(ranks []int) (globalRanks []int, addresses []address.Address,
	kinds []string) {
	for _, rank := range ranks {
		global := rank
		if r.members.GlobalRanks != nil {
			global = r.members.GlobalRanks[rank]
		}
		globalRanks = append(globalRanks, global)
		addresses = append(addresses, r.addresses[rank])
		kinds = append(kinds, r.kinds[rank])
	}
	return globalRanks, addresses, kinds
}

// findReadable finds the peers whose memory this rank can read.
func (r *roster) findReadable(end *sharedEndpoint) {
	r.readable = make([]bool, r.size)
	r.singleCopy, r.fastReads = true, true
	for peer := range r.addresses {
		if peer != r.rank {
			r.readable[peer] = r.reads(peer, end)
			r.singleCopy = r.singleCopy && r.readable[peer]
		}
	}
}

// reads tells whether the kernel lets this rank read the memory of a peer, which shares memory with
// it. The number is the peer's word: a link over which memory goes will stand only if the kernel
// says the same.
func (r *roster) reads(peer int, end *sharedEndpoint) bool {
	at, kind := &r.addresses[peer], r.kinds[peer]
	if kind != address.Shm && kind != address.Mem {
		return false
	}
	p := exec.Process{PID: at.PID, FD: end.Hold(at)}
	defer end.Release(at.Process)
	return exec.CanGet(p, exec.Mark(at.Mark)) == nil
}

// What a rank tells the others of how it reads their memory.
const (
	readsAll bootstrap.Answers = 1 << iota
	readsFast
)

// answers are what this rank tells. Of ranks that read each other's memory the last one alone
// measures how fast that is, for all are of one host.
func (r *roster) answers() (a bootstrap.Answers) {
	if r.singleCopy {
		a |= readsAll
	}
	measures := slices.Contains(r.readable[:r.rank], true) &&
		!slices.Contains(r.readable[r.rank+1:], true)
	if !measures || exec.FastReads() {
		a |= readsFast
	}
	return a
}

// agree settles what all ranks have answered yes to: before the epoch is opened.
func (e *epoch) agree(unanimous bootstrap.Answers) {
	e.roster.agree(unanimous)
	e.shape.Agree(e.singleCopy, e.fastReads)
}

// agree settles what all ranks have answered yes to: before the epoch is made.
func (r *roster) agree(unanimous bootstrap.Answers) {
	r.singleCopy, r.fastReads = unanimous&readsAll != 0, unanimous&readsFast != 0
}

// sharesMemory tells whether some peer does with this rank.
func (r *roster) sharesMemory() bool {
	return slices.ContainsFunc(r.kinds, func(k string) bool { return k == "shm" || k == "mem" })
}

// sharing are the ranks that share memory with this one, and itself; nil: all.
func (c *epoch) sharing() (ranks []int) {
	for peer := range c.kinds {
		if !c.port(peer) {
			ranks = append(ranks, peer)
		}
	}
	if len(ranks) == c.size {
		return nil
	}
	return ranks
}

// port tells whether the channels to a peer are port channels.
func (c *epoch) port(peer int) bool { return address.IsPort(c.kinds[peer]) }

// message says what an operation is, in what all ranks know of it.
func (c *epoch) message(op *call.Operation) plan.Message {
	m := op.Message()
	m.Schedule = uint8(c.shape.ScheduleOf(op))
	return m
}

// openFastPath lets callers in C in if nothing is under way that must come first, and if calls are
// not logged, which C does not do. It is called with the lock held.
func (c *epoch) openFastPath() {
	if c.failed() == nil && c.recovering == nil && c.membership.Whole() && c.queue.Empty() &&
		!c.order.Ahead() && c.shape.AllMemory && c.trace.collectives == nil {
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
				c.fail(c.members.Errorf(fault.ErrInternal, "panic: %v", r), true)
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
