package exec

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Arena is a process's shareable memory: a sealed memfd, which peers on the same host map, so that
// they read and write what has been allocated in it in place. It takes address space only, until
// its memory is touched.
//
// A peer may still have it mapped, and write to it, when it has been closed.
type Arena struct {
	fd  int
	mem []byte

	mu   sync.Mutex
	heap heap
	twin []byte // made when it is first asked for
}

const (
	// arenaMost bounds an arena: a process maps those of all ranks of its host.
	arenaMost = 256 << 30
	// arenaShare is the part of a limited address space (ulimit -v) that an arena may have.
	arenaShare = 16
	// peersShare is the part that the arenas of all peers may have.
	peersShare = 4
	// allocUnit is what no two blocks share: two cache lines, which are fetched together.
	allocUnit = 128
	// keptFree is how many freed bytes at least stay with the process, so that a block that is
	// allocated again and again costs no page faults.
	keptFree = 64 << 20
)

// arenaSize bounds an arena by the host's memory and by the limits on files and on address space.
func arenaSize(memory, files, addresses uint64) uint64 {
	size := min(memory, files, arenaMost)
	if addresses != unix.RLIM_INFINITY {
		size = min(size, addresses/arenaShare)
	}
	return max(size&^4095, 4096)
}

// limit is what this process may have of a resource at most.
func limit(resource int) uint64 {
	var l unix.Rlimit
	if err := unix.Getrlimit(resource, &l); err != nil {
		return unix.RLIM_INFINITY
	}
	return l.Cur
}

// NewArena makes an arena that may grow to this host's memory, as far as the process's limits
// allow.
func NewArena() (*Arena, error) {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return nil, fmt.Errorf("sysinfo: %w", err)
	}
	memory := uint64(info.Totalram) * uint64(info.Unit)
	size := arenaSize(memory, limit(unix.RLIMIT_FSIZE), limit(unix.RLIMIT_AS))
	fd, err := newMemfd("goccl-arena", "an arena", int(size))
	if err != nil {
		return nil, err
	}
	a := &Arena{fd: fd, heap: heap{free: []extent{{0, int64(size)}}, used: map[int64]int64{}}}
	if a.mem, err = mapArena(fd, int(size)); err != nil {
		a.Close()
		return nil, err
	}
	return a, nil
}

// ArenaID tells the arenas that processes of this host have at one time apart.
type ArenaID struct{ dev, ino uint64 }

// IdentifyArena returns the identity of a peer's arena, and how many bytes it has.
func IdentifyArena(fd int) (id ArenaID, size int64, err error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return ArenaID{}, 0, fmt.Errorf("fstat: %w", err)
	}
	return ArenaID{st.Dev, st.Ino}, st.Size, nil
}

// MostOfPeers is how many bytes of peers' arenas a process maps at most.
func MostOfPeers() int64 {
	if most := limit(unix.RLIMIT_AS); most != unix.RLIM_INFINITY {
		return int64(most / peersShare)
	}
	return math.MaxInt64
}

// MapArena maps a peer's arena.
func MapArena(fd int) ([]byte, error) {
	if err := checkSealed(fd); err != nil {
		return nil, err
	}
	size, err := unix.Seek(fd, 0, unix.SEEK_END)
	if err != nil {
		return nil, fmt.Errorf("lseek: %w", err)
	}
	return mapArena(fd, int(size))
}

func mapArena(fd, size int) ([]byte, error) {
	mem, err := mapMemfd(fd, size)
	if err == nil {
		_ = unix.Madvise(mem, unix.MADV_DONTDUMP) // a core dump would give memory to all of it
		// no effect where the system keeps shared memory to small pages, as most do unless told
		_ = unix.Madvise(mem, unix.MADV_HUGEPAGE)
	}
	return mem, err
}

// Close frees the arena, and all that was allocated in it.
func (a *Arena) Close() {
	for _, mem := range [][]byte{a.mem, a.twin} {
		if mem != nil {
			_ = unix.Munmap(mem) // fails only for what was not mapped
		}
	}
	unix.Close(a.fd)
}

// FD is the descriptor to hand to peers, which stays the arena's.
func (a *Arena) FD() int { return a.fd }

// Twin is where memory of the arena is mapped a second time: devices get to know it there, for what
// they know is taken away from forked children.
func (a *Arena) Twin(p unsafe.Pointer) (unsafe.Pointer, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.twin == nil {
		twin, err := mapArena(a.fd, len(a.mem))
		if err != nil {
			return nil, err
		}
		a.twin = twin
	}
	return unsafe.Pointer(&a.twin[uintptr(p)-uintptr(unsafe.Pointer(unsafe.SliceData(a.mem)))]), nil
}

// Memory is all of the arena.
func (a *Arena) Memory() []byte { return a.mem }

// Contains tells whether memory is the arena's.
func (a *Arena) Contains(p unsafe.Pointer) bool {
	return uintptr(p)-uintptr(unsafe.Pointer(unsafe.SliceData(a.mem))) < uintptr(len(a.mem))
}

// Allocated reports whether bytes from p on lie in one block that is allocated.
func (a *Arena) Allocated(p unsafe.Pointer, bytes int64) bool {
	if !a.Contains(p) {
		return false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	at := a.offset(p)
	for off, size := range a.heap.used {
		if off <= at && at-off < size && bytes <= size-(at-off) {
			return true
		}
	}
	return false
}

// Alloc returns bytes of the arena, aligned to 128. Their contents are undefined.
func (a *Arena) Alloc(bytes int64) (unsafe.Pointer, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if bytes < 0 || bytes > int64(len(a.mem)) {
		return nil, fmt.Errorf("%d bytes asked for, allowed are 0 to %d", bytes, len(a.mem))
	}
	off, ok := a.heap.alloc(bytes)
	if !ok {
		return nil, fmt.Errorf("no %d bytes in one piece are left: %d of %d are in use", bytes,
			a.heap.inUse, len(a.mem))
	}
	return unsafe.Pointer(&a.mem[off]), nil
}

// Free gives back what Alloc returned.
func (a *Arena) Free(p unsafe.Pointer) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	e, free, ok := a.heap.release(a.offset(p))
	switch {
	case !ok:
		return fmt.Errorf("%#x is not the beginning of memory that is allocated", uintptr(p))
	case !free && !overlaps(a.heap.lent, e):
		a.punch(e)
	case !free:
	case a.heap.kept > max(keptFree, a.heap.inUse):
		for _, e := range a.heap.free {
			a.punch(e)
		}
		a.heap.kept = 0
	}
	return nil
}

// punch gives the memory of the pages that lie wholly in an extent back to the system. A later
// access finds zeros.
func (a *Arena) punch(e extent) {
	if from, to := (e.off+4095)&^4095, (e.off+e.bytes)&^4095; from < to {
		_ = unix.Fallocate(a.fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, from, to-from)
	}
}

// Retire has nothing allocated where bytes of the arena from p on lie, until Reclaim: a peer may
// still write there.
func (a *Arena) Retire(p unsafe.Pointer, bytes int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.heap.retired = append(a.heap.retired, extent{a.offset(p), bytes})
}

// Reclaim undoes a Retire of the same bytes.
func (a *Arena) Reclaim(p unsafe.Pointer, bytes int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.reclaim(&a.heap.retired, extent{a.offset(p), bytes})
}

// Lend has nothing allocated where bytes of the arena from p on lie, and keeps what they hold,
// until Return: a peer may still read there.
func (a *Arena) Lend(p unsafe.Pointer, bytes int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.heap.lent = append(a.heap.lent, extent{a.offset(p), bytes})
}

// Return undoes a Lend of the same bytes.
func (a *Arena) Return(p unsafe.Pointer, bytes int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.reclaim(&a.heap.lent, extent{a.offset(p), bytes})
}

// reclaim is called with mu held.
func (a *Arena) reclaim(from *[]extent, e extent) {
	for _, block := range a.heap.reclaim(from, e) {
		a.punch(block)
	}
}

func (a *Arena) offset(p unsafe.Pointer) int64 {
	return int64(uintptr(p) - uintptr(unsafe.Pointer(unsafe.SliceData(a.mem))))
}

// heap says what of an arena is free: the best fit is taken.
type heap struct {
	free    []extent        // sorted, and never adjacent
	used    map[int64]int64 // bytes, by offset
	retired []extent
	lent    []extent
	held    []extent // released while a part of each was retired or lent
	inUse   int64
	kept    int64 // about so many free bytes have memory
}

type extent struct{ off, bytes int64 }

func (h *heap) alloc(bytes int64) (off int64, ok bool) {
	bytes = (max(bytes, 1) + allocUnit - 1) &^ (allocUnit - 1)
	best := -1
	for i, e := range h.free {
		if e.bytes >= bytes && (best < 0 || e.bytes < h.free[best].bytes) {
			best = i
		}
	}
	if best < 0 {
		return 0, false
	}
	e := &h.free[best]
	off = e.off
	if e.off, e.bytes = e.off+bytes, e.bytes-bytes; e.bytes == 0 {
		h.free = slices.Delete(h.free, best, best+1)
	}
	h.used[off] = bytes
	h.inUse += bytes
	h.kept = max(h.kept-bytes, 0)
	return off, true
}

// release returns the block that begins at off, and whether it is free again: not if a part of it
// was retired or lent.
func (h *heap) release(off int64) (block extent, free, ok bool) {
	bytes, ok := h.used[off]
	if !ok {
		return extent{}, false, false
	}
	delete(h.used, off)
	h.inUse -= bytes
	block = extent{off, bytes}
	if h.isHeld(block) {
		h.held = append(h.held, block)
		return block, false, true
	}
	h.kept += bytes
	h.put(block)
	return block, true, true
}

// isHeld tells whether a part of a block is retired or lent.
func (h *heap) isHeld(block extent) bool {
	return overlaps(h.retired, block) || overlaps(h.lent, block)
}

// overlaps tells whether one of some extents overlaps a block.
func overlaps(some []extent, block extent) bool {
	return slices.ContainsFunc(some, func(e extent) bool {
		return e.off < block.off+block.bytes && block.off < e.off+e.bytes
	})
}

// reclaim takes an extent out of those that are retired, or of those that are lent. It returns the
// blocks that are free with it, which were released before.
func (h *heap) reclaim(from *[]extent, e extent) (blocks []extent) {
	i := slices.Index(*from, e)
	if i < 0 {
		return nil
	}
	*from = slices.Delete(*from, i, i+1)
	h.held = slices.DeleteFunc(h.held, func(block extent) bool {
		if h.isHeld(block) {
			return false
		}
		h.put(block)
		blocks = append(blocks, block)
		return true
	})
	return blocks
}

// put adds a block to those that are free.
func (h *heap) put(block extent) {
	off, bytes := block.off, block.bytes
	i, _ := slices.BinarySearchFunc(h.free, off,
		func(e extent, off int64) int { return cmp.Compare(e.off, off) })
	joined := block
	if i < len(h.free) && h.free[i].off == off+bytes {
		joined.bytes += h.free[i].bytes
		h.free = slices.Delete(h.free, i, i+1)
	}
	if i > 0 && h.free[i-1].off+h.free[i-1].bytes == off {
		h.free[i-1].bytes += joined.bytes
	} else {
		h.free = slices.Insert(h.free, i, joined)
	}
}
