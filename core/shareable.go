package core

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/goccl/goccl/core/exec"
	"github.com/goccl/goccl/core/plan"
	"github.com/goccl/goccl/core/transport"
)

// Shareable memory lies in the process's arena, which the ranks of the host map. Where the buffers of all ranks do,
// large collectives work on them in place: see package plan, direct plans.

// arenas are a process's own arena, and those of its peers, which its communicators share.
type arenas struct {
	mu    sync.Mutex
	own   *exec.Arena // while there are communicators, or something is allocated
	uses  int         // of own
	used  bool        // something has been allocated
	peers map[transport.ProcessID]*peerArena
}

type peerArena struct {
	mem  []byte
	uses int
}

// use returns the process's arena, and makes it if there is none. Unuse must follow.
func (a *arenas) use() (*exec.Arena, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.own == nil {
		own, err := exec.NewArena()
		if err != nil {
			return nil, err
		}
		a.own = own
	}
	a.uses++
	return a.own, nil
}

func (a *arenas) unuse() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.uses--; a.uses == 0 {
		a.own.Close()
		a.own, a.used = nil, false
	}
}

// arena is the process's arena, nil if there is none.
func (a *arenas) arena() *exec.Arena {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.own
}

// Alloc returns shareable memory, aligned to 128 bytes, of undefined contents. Collectives on it work as on any other,
// and faster, where all ranks of a communicator share a host and all their buffers of a call are shareable.
// A forked child shares it with its parent: what one writes the other sees.
func (r *Runtime) Alloc(bytes int64) (unsafe.Pointer, error) {
	if bytes < 0 {
		return nil, errorf(ErrInvalidArgument, "mem_alloc: bytes is %d, it must be 0 or more", bytes)
	}
	arena, err := r.arenas.use()
	if err != nil {
		return nil, errorf(ErrUnsupported, "mem_alloc: no shareable memory: %v", err)
	}
	p, err := arena.Alloc(bytes)
	if err != nil {
		r.arenas.unuse()
		return nil, errorf(ErrSystem, "mem_alloc: %v", err)
	}
	if r.arenas.begin() {
		r.mu.Lock()
		comms := slices.Collect(maps.Keys(r.comms))
		r.mu.Unlock()
		for _, c := range comms {
			c.relearn()
		}
	}
	return p, nil
}

// begin notes that something has been allocated. It tells whether that is the first.
func (a *arenas) begin() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	first := !a.used
	a.used = true
	return first
}

// relearn has the shortcut forget what it has learned without direct plans.
func (c *Comm) relearn() {
	c.lockOrder()
	defer c.unlockOrder()
	if !c.destroyed {
		c.shortcut.ForgetAll()
	}
}

// Free gives memory of Alloc back. No work may be using it; it may outlive every communicator.
func (r *Runtime) Free(p unsafe.Pointer) error {
	arena := r.arenas.arena()
	if arena == nil {
		return errorf(ErrInvalidArgument, "mem_free: memory is %p, which was not allocated: nothing is", p)
	}
	if err := arena.Free(p); err != nil {
		return errorf(ErrInvalidArgument, "mem_free: memory: %v", err)
	}
	r.arenas.unuse()
	return nil
}

func (a *arenas) inUse() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.used
}

// join maps the arena of a peer's process, once for all communicators. It takes the descriptor over.
func (a *arenas) join(process transport.ProcessID, fd int) ([]byte, error) {
	defer unix.Close(fd)
	a.mu.Lock()
	defer a.mu.Unlock()
	p := a.peers[process]
	if p == nil {
		mem, err := exec.MapArena(fd)
		if err != nil {
			return nil, fmt.Errorf("mapping a peer's shareable memory: %w", err)
		}
		if a.peers == nil {
			a.peers = map[transport.ProcessID]*peerArena{}
		}
		p = &peerArena{mem: mem}
		a.peers[process] = p
	}
	p.uses++
	return p.mem, nil
}

func (a *arenas) part(process transport.ProcessID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	p := a.peers[process]
	if p.uses--; p.uses == 0 {
		delete(a.peers, process)
		_ = unix.Munmap(p.mem)
	}
}

// joinArena maps a peer's arena for this communicator. Without it there are no direct plans, and that is all.
func (c *Comm) joinArena(peer, fd int) {
	process := c.addresses[peer].Process
	mem, err := c.runtime.arenas.join(process, fd)
	if err != nil {
		c.runtime.config.Logf("%s: %s: %v", c.title(), c.rankName(peer), err)
		return
	}
	c.mu.Lock()
	c.mapped = append(c.mapped, process)
	c.mu.Unlock()
	c.window.ConnectArena(peer, mem)
}

// partArenas gives the arenas back, once nothing runs any more.
func (c *Comm) partArenas() {
	for _, process := range c.mapped {
		c.runtime.arenas.part(process)
	}
	if c.arena != nil {
		c.runtime.arenas.unuse()
	}
}

// direct returns the direct plan of an operation, nil where it is not worth a try.
func (c *Comm) direct(op *Operation) *exec.Compiled {
	if !c.shape.memory || c.arena == nil || !c.runtime.arenas.inUse() {
		return nil
	}
	p := c.shape.params(op, c.rank, c.size)
	p.Direct = true
	if !p.HasDirect() || mostBytes(&p) < c.shape.thresholds.directMin {
		return nil
	}
	compiled, err := c.runner.plans.get(p, false)
	if err != nil {
		return nil // the other plan's error is told
	}
	return compiled
}

// mostBytes is the length of the longest block.
func mostBytes(p *plan.Params) int64 {
	most := int64(0)
	for _, blocks := range [][]int64{p.InBytes, p.OutBytes} {
		for _, n := range blocks {
			most = max(most, n)
		}
	}
	return most
}

// retire has the memory of an operation that has failed never allocated again: a peer that is only stopped may write there
// when it goes on.
func (c *Comm) retire(op *Operation) {
	if c.arena == nil {
		return
	}
	for i, p := range op.Out {
		if i < len(op.OutCounts) {
			c.arena.Retire(p, int64(op.OutCounts[i])*int64(op.DType.Size()))
		}
	}
}
