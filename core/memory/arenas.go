// Package memory owns the memory that a process shares with its peers.
//
// A process has one arena ([exec.Arena]), from which shareable memory is allocated, and maps those
// of its peers on the host: [Arenas] has them, which all communicators share. Where the buffers of
// all ranks lie in arenas, large collectives work on them in place: see package plan, direct plans.
// Devices may read what is allocated, and write into windows: what they know of is registered in
// Arenas.Devices.
//
// A [Mapping] is what an epoch shares: its window, the arenas of its peers, and what it retires.
// Outputs of an operation that has failed are retired: a peer that is only stopped may still write
// there when it goes on. They are allocated again once no process maps the epoch's window any more.
package memory

import (
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/goccl/goccl/core/exec"
	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/rdma"
)

// Arenas are a process's own arena, and those of its peers. The zero value, with a logger, has
// none yet.
type Arenas struct {
	Logger  *slog.Logger // of warnings
	Devices rdma.Memory  // what devices may have access to: what is allocated, and windows

	mu    sync.Mutex  // guards what follows
	own   *exec.Arena // while it has uses
	uses  int         // of own: communicators, and what is allocated, or known to a device
	peers map[exec.ArenaID]*peerArena
	ended []retired // of epochs that have ended here
}

type peerArena struct {
	mem  []byte
	uses int
}

// retired is memory of own that peers may write as long as they map a window.
type retired struct {
	window exec.Mappings
	spans  []span
}

type span struct {
	at    unsafe.Pointer
	bytes int64
}

// keep has retired memory come back when no peer can write it any more.
func (a *Arenas) keep(r retired) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ended = append(a.ended, r)
}

// reclaim has retired memory allocated again that no peer can write. It is called with a.mu held.
func (a *Arenas) reclaim() {
	a.ended = slices.DeleteFunc(a.ended, func(r retired) bool {
		over := r.window.Over()
		if over {
			r.window.Close()
			for _, at := range r.spans {
				a.own.Reclaim(at.at, at.bytes)
			}
		}
		return over
	})
}

// Acquire returns the process's arena, which is made if there is none. Release must follow.
func (a *Arenas) Acquire() (*exec.Arena, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.reclaim()
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

// Release gives back one use of the process's arena. The last one ends it.
func (a *Arenas) Release() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.uses--; a.uses == 0 {
		a.own.Close()
		a.own = nil
		for _, r := range a.ended {
			r.window.Close()
		}
		a.ended = nil
	}
}

// hold is Acquire that returns nil if there is no arena.
func (a *Arenas) hold() *exec.Arena {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.reclaim()
	if a.own != nil {
		a.uses++
	}
	return a.own
}

// Alloc returns shareable memory, aligned to 128 bytes, of undefined contents.
func (a *Arenas) Alloc(bytes int64) (unsafe.Pointer, error) {
	if bytes < 0 {
		return nil, fault.Errorf(fault.ErrInvalidArgument, "mem_alloc: bytes is %d, it must be 0 or more",
			bytes)
	}
	arena, err := a.Acquire()
	if err != nil {
		return nil, fault.Errorf(fault.ErrUnsupported, "mem_alloc: no shareable memory: %v", err)
	}
	p, err := arena.Alloc(bytes)
	if err != nil {
		a.Release()
		return nil, fault.Errorf(fault.ErrSystem, "mem_alloc: %v", err)
	}
	a.Devices.Add(p, bytes, arena.Twin, a.Release)
	return p, nil
}

// Free gives memory of Alloc back.
func (a *Arenas) Free(p unsafe.Pointer) error {
	arena := a.hold()
	if arena == nil {
		return fault.Errorf(fault.ErrInvalidArgument, "mem_free: memory is %p, which was not "+
			"allocated: nothing is", p)
	}
	defer a.Release()
	if err := a.Devices.Remove(p); err != nil {
		a.Logger.Warn(fmt.Sprintf("freeing memory: %v", err))
	}
	if err := arena.Free(p); err != nil {
		return fault.Errorf(fault.ErrInvalidArgument, "mem_free: memory: %v", err)
	}
	return nil
}

// join maps a peer's arena, once for all epochs. It takes the descriptor over.
func (a *Arenas) join(fd int) (id exec.ArenaID, mem []byte, err error) {
	defer unix.Close(fd)
	id, size, err := exec.IdentifyArena(fd)
	if err != nil {
		return id, nil, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	p := a.peers[id]
	if p == nil {
		most := exec.MostOfPeers()
		for _, p := range a.peers {
			most -= int64(len(p.mem))
		}
		if size > most {
			return id, nil,
				fmt.Errorf("%d bytes are too many where the address space is limited (ulimit -v)", size)
		}
		if mem, err = exec.MapArena(fd); err != nil {
			return id, nil, err
		}
		if a.peers == nil {
			a.peers = map[exec.ArenaID]*peerArena{}
		}
		p = &peerArena{mem: mem}
		a.peers[id] = p
	}
	p.uses++
	return id, p.mem, nil
}

// again adds a use to a peer's arena that is mapped.
func (a *Arenas) again(id exec.ArenaID) []byte {
	a.mu.Lock()
	defer a.mu.Unlock()
	p := a.peers[id]
	p.uses++
	return p.mem
}

// leave gives back one use of a peer's arena.
func (a *Arenas) leave(id exec.ArenaID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	p := a.peers[id]
	if p.uses--; p.uses == 0 {
		delete(a.peers, id)
		_ = unix.Munmap(p.mem)
	}
}
