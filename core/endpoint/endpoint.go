// Package endpoint keeps the endpoints of a process. Communicators with the same settings of the
// network share one, and so share their links. It closes when the last of them leaves it.
//
// Locks: Pool.mu guards which endpoints there are. Endpoint.mu keeps what is held and watched of
// peers' processes together. Under it the locks of [transport.Endpoint] are taken, and that of the
// life words that [exec.WatchLife] watches. Neither of the two is taken with the other held.
package endpoint

import (
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/goccl/goccl/core/address"
	"github.com/goccl/goccl/core/exec"
	"github.com/goccl/goccl/core/logs"
	"github.com/goccl/goccl/core/roster"
	"github.com/goccl/goccl/core/transport"
)

// Key is what communicators must have in common to share an endpoint.
type Key struct {
	Interface, StoreHost string
	Grace                time.Duration
	Verbs                transport.VerbsConfig
}

// Pool has the endpoints of a process. Its methods, and those of its endpoints, may be called from
// any goroutine. Before the first Open its fields may be set.
type Pool struct {
	Logger *slog.Logger
	OnFD   func(fd int, open bool) // told of each socket that opens or closes

	mu   sync.Mutex
	open map[Key]*Endpoint // guarded by mu
}

// Endpoint is a [transport.Endpoint] that communicators share.
type Endpoint struct {
	*transport.Endpoint
	pool *Pool
	key  Key
	uses int // guarded by pool.mu

	mu      sync.Mutex // guards what follows
	watched map[address.ProcessID]*exec.Life
	closed  bool
}

// Open returns the endpoint with a key. It listens if there is none yet. Leave gives it back.
func (p *Pool) Open(key Key) (*Endpoint, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if e, ok := p.open[key]; ok {
		e.uses++
		return e, nil
	}
	life, err := exec.OwnLife()
	if err != nil { // peers learn of this process's end by its sockets
		life = 0
		logs.For(p.Logger, logs.Net).Debug("no life word", "error", err)
	}
	t, err := transport.Listen(transport.Config{Mark: address.Mark(exec.OwnMark()), Life: life,
		Interface: key.Interface, StoreHost: key.StoreHost, Grace: key.Grace, Verbs: key.Verbs,
		Sightings: exec.Sightings{}, Logger: p.Logger, OnFD: p.OnFD})
	if err != nil {
		return nil, err
	}
	e := &Endpoint{Endpoint: t, pool: p, key: key, uses: 1,
		watched: map[address.ProcessID]*exec.Life{}}
	if p.open == nil {
		p.open = map[Key]*Endpoint{}
	}
	p.open[key] = e
	return e, nil
}

// Share takes one more use of the endpoint. Leave gives it back.
func (e *Endpoint) Share() {
	e.pool.mu.Lock()
	defer e.pool.mu.Unlock()
	e.uses++
}

// Leave gives back one use of the endpoint. The last one closes it.
func (e *Endpoint) Leave() {
	e.pool.mu.Lock()
	e.uses--
	last := e.uses == 0
	if last {
		delete(e.pool.open, e.key)
	}
	e.pool.mu.Unlock()
	if !last {
		return
	}
	_ = e.Close() // there is nobody to tell
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, life := range e.watched {
		life.Stop()
	}
	clear(e.watched)
	e.closed = true
}

// HoldPeer keeps what the kernel tells of a process of this host until ReleasePeer: see
// [transport.Endpoint.Hold]. Links to the process end as soon as the kernel knows of its end. Where
// its life word cannot be seen, they end when its sockets are closed.
func (e *Endpoint) HoldPeer(a *address.Address) (pidfd int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	pidfd = e.Hold(a)
	e.watch(a)
	return pidfd
}

// ReleasePeer gives back one hold of a process.
func (e *Endpoint) ReleasePeer(process address.ProcessID) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.Release(process) {
		return
	}
	if life, ok := e.watched[process]; ok {
		life.Stop()
		delete(e.watched, process)
	}
}

// watch watches the life word of a process. It is called with mu held.
func (e *Endpoint) watch(a *address.Address) {
	if _, ok := e.watched[a.Process]; ok || e.closed || a.Life == 0 || a.PID == os.Getpid() {
		return
	}
	process := a.Process
	life, err := exec.WatchLife(a.PID, a.Life, exec.Mark(a.Mark), func() { e.Ended(process) })
	if err == nil {
		e.watched[process] = life
	}
}

// CanRead reports whether this process can read the memory of another process of this host. The
// address has the process's number as that process tells it. A link with shared memory is made only
// if the kernel tells the same number.
func (e *Endpoint) CanRead(a *address.Address) bool {
	p := exec.Process{PID: a.PID, FD: e.Hold(a)}
	defer e.Release(a.Process)
	return exec.CanGet(p, exec.Mark(a.Mark)) == nil
}

// Roster makes a roster, and notes the peers whose memory this process can read. The endpoint may
// be nil where there are no peers.
func (e *Endpoint) Roster(
	name string, rank int, globalRanks []int, peers roster.Peers,
) roster.Roster {
	for peer := range peers {
		p := &peers[peer]
		p.Readable = peer != rank && p.SharesMemory() && e.CanRead(&p.Address)
	}
	return roster.New(name, rank, globalRanks, peers)
}
