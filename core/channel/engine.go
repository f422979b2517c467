package channel

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/goccl/goccl/core/exec"
	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/internal/serial"
	"github.com/goccl/goccl/core/memory"
	"github.com/goccl/goccl/core/transport"
)

const (
	// MostChannels is how many channels a communicator has at most; those that were closed before
	// they have met their peer count, too.
	MostChannels = 1 << 16
	// mostGets is how many gets of a peer wait at most to be answered.
	mostGets = 1024
	// mostAnswers is how many answers to a peer wait at most: as many as it may ask for by turns.
	mostAnswers = MostChannels + MostMemories
)

// Face is what an engine asks of its epoch. The methods may be called from any goroutine that does
// not hold Engine.mu.
type Face interface {
	// Fail fails the communicator, and has all ranks told.
	Fail(cause *fault.Error)
	// PeerError is the failure to reach a peer, or that of the communicator.
	PeerError(peer int, err error) *fault.Error
	// Timeout is that of calls which give none.
	Timeout() time.Duration
	// HoldArena returns a peer's arena, which is mapped until release is called; ok reports whether
	// it is mapped.
	HoldArena(peer int) (arena []byte, release func(), ok bool)
	// Retire keeps memory of this process's arena from being allocated again as long as any process
	// maps the epoch's window.
	Retire(p unsafe.Pointer, bytes int64)
}

// Links carry frames to peers. [transport.Group] says what the methods do.
type Links interface {
	Connect(ctx context.Context, peer int) error
	Send(ctx context.Context, peer int, h transport.Header, payload ...[]byte) error
	TrySend(peer int, h transport.Header, payload ...[]byte) bool
	Advertises(peer int, payload []byte) bool
	Advertise(ctx context.Context, reading bool, peer int, h transport.Header,
		payload ...[]byte) (advertised bool, err error)
	Pump(peer int)
}

// Reader reads links. [transport.Poller] says what the methods do.
type Reader interface {
	Take() bool
	Leave()
	Wait(most time.Duration)
	Kick()
	StartProgress()
	StopProgress()
	Attend(n int)
}

// Config says what an engine works with.
type Config struct {
	Rank     int
	Members  *fault.Group
	Ports    []bool // by rank: whether a link joins it to this one, and no memory
	Local    []bool // by rank: whether it is of this process, so that nobody reads its frames
	Waiting  exec.Waiting
	Memories *Memories
	Context  context.Context // ends with the epoch
	Spawn    func(func())    // runs a function in the background
	Reader   Reader          // nil where there are no links
}

// Engine is the channels of an epoch. Its methods may be called from any goroutine.
type Engine struct {
	Config
	face  Face
	links Links // set before the first frame is handled

	images   memory.Images  // of memory that is got
	releases sync.WaitGroup // of ends, that use the arena

	mu       sync.Mutex // guards what follows
	lastID   uint64     // of ends
	lastGet  uint64
	ends     map[uint64]*Channel // by id; those, too, that the peer may still store to
	handles  map[uint64]*Channel // by handle, that their users have not closed
	proxies  map[*Proxy]bool     // that their users have not closed
	pairings map[pairing]*queue
	theirs   map[end]*Channel // those that have met, until the peer has closed its end
	gets     map[uint64]*get
	peers    []peer
	arena    *exec.Arena // of semaphores; nil: there were none yet
	failure  *fault.Error
	gone     map[int]*fault.Error
	unmet    int  // ends of this rank that have not met, closed ones too
	over     bool // all is given back
}

// pairing is what ends meet by.
type pairing struct{ peer, tag int }

// end is an end of a peer.
type end struct {
	peer int
	id   uint64
}

// queue is the ends of a pairing that have not met: those of one side, in the order in which they
// were opened.
type queue struct {
	own    []*Channel
	theirs []opened
	open   *Channel // that the user has not closed, met or not; nil: none
}

// opened is what a peer tells of its end.
type opened struct {
	id        uint64
	owner     uint64 // of the memory that its channel puts for
	semaphore uint64 // its place in the peer's arena
	port      bool   // the channel is to be a port channel
	closed    bool
}

// peer is what goes on with one peer, under Engine.mu.
type peer struct {
	out        serial.Queue // control frames
	served     serial.Queue // gets of the peer
	serving    int
	asking     int            // gets from the peer
	waiting    int            // ends of the peer that have not met
	tags       map[uint64]int // of those that it has not closed
	lastOpened uint64
	lent       []loan       // that it has not returned
	returned   change       // of lent
	reached    atomic.Bool  // it may store to memory of this rank; not under Engine.mu
	answers    atomic.Int32 // that are on their way to it; not under Engine.mu

	// Of the thread that reads the link:
	coming coming
	cut    bool // a piece of it was not read, and so nothing behind it counts
}

// New makes an engine. UseLinks comes before its first frame, and Free ends it.
func New(c Config, f Face) *Engine {
	e := &Engine{Config: c, face: f, ends: map[uint64]*Channel{}, pairings: map[pairing]*queue{},
		theirs: map[end]*Channel{}, gets: map[uint64]*get{}, gone: map[int]*fault.Error{},
		handles: map[uint64]*Channel{}, proxies: map[*Proxy]bool{}, peers: make([]peer, len(c.Ports))}
	for i := range e.peers {
		e.peers[i].out.Spawn, e.peers[i].served.Spawn = c.Spawn, c.Spawn
	}
	return e
}

// UseLinks says what carries frames. The engine is the one of its communicator from then on.
func (e *Engine) UseLinks(l Links) {
	e.links = l
	e.Memories.use(e)
}

// settle calls f once no caller is in a copy that began before. Others may begin meanwhile.
func (e *Engine) settle(f func()) {
	e.mu.Lock()
	var busy []*Channel
	for _, c := range e.ends {
		if c.end.Copies() {
			busy = append(busy, c)
		}
	}
	e.mu.Unlock()
	if len(busy) == 0 {
		f()
		return
	}
	e.Spawn(func() {
		for _, c := range busy {
			c.end.Settle()
		}
		f()
	})
}

// resolve finds out where memory of a peer is mapped.
func (e *Engine) resolve(m *Memory, rank int) *fault.Error {
	if m.region.Base() != nil {
		return nil
	}
	arena, release, ok := e.face.HoldArena(rank)
	if !ok {
		return fault.Errorf(fault.ErrUnsupported, "memory of %s is not mapped here",
			e.Members.Names(rank))
	}
	return m.mapIn(arena, release)
}

// Map returns where memory is mapped. Of a peer that is not connected yet it waits for the
// connection.
func (e *Engine) Map(m *Memory, rank int) (unsafe.Pointer, error) {
	if err := m.usable(); err != nil {
		return nil, err
	}
	if base := m.lend(); base != nil {
		return base, nil
	}
	if rank == e.Rank || e.Ports[rank] {
		return nil, fault.Errorf(fault.ErrUnsupported, "memory_map: memory of %s is not mapped here: it "+
			"is on another host, or shares no memory", e.Members.Names(rank)).In(e.Members)
	}
	ctx, cancel := context.WithTimeout(e.Context, e.face.Timeout())
	defer cancel()
	if err := e.links.Connect(ctx, rank); err != nil {
		return nil, e.lost(rank, err).During("memory_map", 0)
	}
	if err := e.resolve(m, rank); err != nil {
		return nil, fault.Errorf(err.Kind, "memory_map: %s", err.Text).In(e.Members)
	}
	if base := m.lend(); base != nil {
		return base, nil
	}
	return nil, m.stale("memory_map")
}

// tell sends a control frame, in order, without waiting. It may be called with mu held.
func (e *Engine) tell(rank int, h transport.Header, payload []byte) {
	e.peers[rank].out.Do(func() { e.sendControl(rank, h, payload) })
}

// sendControl sends a control frame. It runs in the peer's queue.
func (e *Engine) sendControl(rank int, h transport.Header, payload []byte) {
	err := e.links.Send(e.Context, rank, h, payload)
	if err == nil || e.Context.Err() != nil || errors.Is(err, transport.ErrPeerLeft) ||
		errors.Is(err, transport.ErrPeerDown) {
		return // the epoch is told of these
	}
	e.face.Fail(e.face.PeerError(rank, err))
}

// answer returns what tells a peer what it has asked for. Where it takes no answers in, Control
// takes no more of it.
func (e *Engine) answer(rank int, h transport.Header) func() {
	p := &e.peers[rank]
	p.answers.Add(1)
	return func() {
		p.out.Do(func() {
			e.sendControl(rank, h, nil)
			p.answers.Add(-1)
		})
	}
}

// kick has the thread that reads the links look at what it waits for.
func (e *Engine) kick() {
	if e.Reader != nil {
		e.Reader.Kick()
	}
}

// String tells what the engine keeps, for tests.
func (e *Engine) String() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	waiting, lent := 0, 0
	for i := range e.peers {
		waiting += e.peers[i].waiting
		lent += len(e.peers[i].lent)
	}
	return fmt.Sprintf("%d ends, %d pairings, %d met, %d waiting, %d gets, %d lent", len(e.ends),
		len(e.pairings), len(e.theirs), waiting, len(e.gets), lent)
}
