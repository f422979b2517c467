package core

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/goccl/goccl/core/call"
	"github.com/goccl/goccl/core/exec"
	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/logs"
	"github.com/goccl/goccl/core/transport"
	"github.com/goccl/goccl/rdma"
)

// Shareable memory lies in the process's arena, which the ranks of the host map. Where the buffers
// of all ranks do, large collectives work on them in place: see package plan, direct plans. Over
// verbs it is advertised: see transport.Group.Advertise.

// arenas are a process's own arena, and those of its peers, which its communicators share.
type arenas struct {
	known rdma.Memory // to devices: what is allocated, and windows

	mu    sync.Mutex
	own   *exec.Arena // while there are communicators, or something is allocated, or known to a device
	uses  int         // of own
	peers map[exec.ArenaID]*peerArena
	ended []retired // of epochs that have ended here: memory of own
}

type peerArena struct {
	mem  []byte
	uses int
}

// retired is memory of operations that have failed, which a peer that is only stopped may still
// write when it goes on: until it has left the epoch, or ended, and maps the window no more.
type retired struct {
	window exec.Mappings
	spans  []span
}

// span is memory of a buffer.
type span struct {
	at    unsafe.Pointer
	bytes int64
}

// keep has retired memory come back when no peer can write it any more.
func (a *arenas) keep(r retired) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ended = append(a.ended, r)
}

// reclaim has retired memory allocated again that no peer can write. It needs a.mu.
func (a *arenas) reclaim() {
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

// acquire is hold that makes an arena if there is none.
func (a *arenas) acquire() (*exec.Arena, error) {
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

func (a *arenas) release() {
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

// hold returns the process's arena, nil if there is none. Release must follow.
func (a *arenas) hold() *exec.Arena {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.reclaim()
	if a.own != nil {
		a.uses++
	}
	return a.own
}

// Alloc returns shareable memory, aligned to 128 bytes, of undefined contents. Collectives on it
// work as on any other, and faster: where all ranks of a communicator share a host and all their
// buffers of a call are shareable; and over verbs, where a rank reads what is shareable of
// another's without a copy. A forked child shares it with its parent: what one writes the other
// sees.
func (r *Runtime) Alloc(bytes int64) (unsafe.Pointer, error) {
	if bytes < 0 {
		return nil, fault.Errorf(fault.ErrInvalidArgument, "mem_alloc: bytes is %d, it must be 0 or more",
			bytes)
	}
	arena, err := r.arenas.acquire()
	if err != nil {
		return nil, fault.Errorf(fault.ErrUnsupported, "mem_alloc: no shareable memory: %v", err)
	}
	p, err := arena.Alloc(bytes)
	if err != nil {
		r.arenas.release()
		return nil, fault.Errorf(fault.ErrSystem, "mem_alloc: %v", err)
	}
	r.arenas.known.Add(p, bytes, arena.Twin, r.arenas.release)
	return p, nil
}

// Free gives memory of Alloc back. No work may be using it; it may outlive every communicator.
func (r *Runtime) Free(p unsafe.Pointer) error {
	arena := r.arenas.hold()
	if arena == nil {
		return fault.Errorf(fault.ErrInvalidArgument, "mem_free: memory is %p, which was not "+
			"allocated: nothing is", p)
	}
	defer r.arenas.release()
	if err := r.arenas.known.Remove(p); err != nil {
		r.log(logs.Mem).Warn(fmt.Sprintf("freeing memory: %v", err))
	}
	if err := arena.Free(p); err != nil {
		return fault.Errorf(fault.ErrInvalidArgument, "mem_free: memory: %v", err)
	}
	return nil
}

// join maps a peer's arena, once for all communicators. It takes the descriptor over.
func (a *arenas) join(fd int) (id exec.ArenaID, mem []byte, err error) {
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

func (a *arenas) leave(id exec.ArenaID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	p := a.peers[id]
	if p.uses--; p.uses == 0 {
		delete(a.peers, id)
		_ = unix.Munmap(p.mem)
	}
}

// joinArena maps a peer's arena for this communicator. Without it there are no direct plans, and
// that is all.
func (c *epoch) joinArena(peer, fd int) {
	id, mem, err := c.runtime.arenas.join(fd)
	if err != nil {
		c.log(logs.Mem).Warn(fmt.Sprintf("mapping the shareable memory of %s: %v", c.members.Names(peer),
			err))
		return
	}
	c.mu.Lock()
	c.mapped = append(c.mapped, id)
	c.mu.Unlock()
	c.window.ConnectArena(peer, mem)
}

// know has devices write what peers advertise into the window, and peers read the word that tells
// whether this rank has stopped.
func (c *epoch) know() {
	if !slices.Contains(c.kinds, transport.Verbs) {
		return
	}
	word, inboxes := c.window.Memory()
	c.known = [][]byte{word, inboxes}
	var left atomic.Int32
	left.Store(int32(len(c.known)))
	for _, b := range c.known {
		p := unsafe.Pointer(unsafe.SliceData(b))
		c.runtime.arenas.known.Add(p, int64(len(b)), nil, func() {
			if left.Add(-1) == 0 {
				c.window.Close()
			}
		})
	}
}

// stoppedWord is transport.GroupConfig's.
func (c *epoch) stoppedWord() unsafe.Pointer {
	if c.known == nil {
		return nil
	}
	return c.window.Stopped(collectiveLane)
}

// closeWindow closes the window, once no device has access to it any more: a peer may still be
// about to read whether this rank has stopped.
func (c *epoch) closeWindow() {
	if c.known == nil {
		c.window.Close()
		return
	}
	for _, b := range c.known {
		if err := c.runtime.arenas.known.Remove(unsafe.Pointer(unsafe.SliceData(b))); err != nil {
			c.log(logs.Mem).Warn(fmt.Sprintf("closing the window: %v", err))
		}
	}
}

// retire has the memory of an operation that has failed not allocated again before the epoch has
// ended on all ranks: see retired.
func (c *epoch) retire(op *call.Operation) {
	if c.arena == nil {
		return
	}
	c.retired.Lock()
	defer c.retired.Unlock()
	for i, p := range op.Out {
		if i < len(op.OutCounts) && c.arena.Contains(p) {
			at := span{p, int64(op.OutCounts[i]) * int64(op.DType.Size())}
			c.arena.Retire(at.at, at.bytes)
			c.retired.spans = append(c.retired.spans, at)
		}
	}
}

// leaveRetired leaves what the epoch has retired to the process. Without a descriptor it stays
// retired as long as there is the arena.
func (c *epoch) leaveRetired() {
	if len(c.retired.spans) == 0 {
		return
	}
	if window, err := exec.MappingsOf(c.window.FD()); err == nil {
		c.runtime.arenas.keep(retired{window, c.retired.spans})
	}
}
