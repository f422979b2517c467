package channel

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/goccl/goccl/core/exec"
	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/memory"
	"github.com/goccl/goccl/core/transport"
)

const (
	// MostMemories is how much memory a communicator has registered and imported at most, by number.
	// What is deregistered counts until all peers have answered.
	MostMemories = 4096

	// aliveBytes is what the word that tells whether memory is registered takes of an arena: lines
	// that nothing else writes.
	aliveBytes = 128
)

// Memories is what a communicator has registered and imported. It outlives epochs.
type Memories struct {
	Owner  uint64 // tells whose memory it is: random, and not 0
	Arenas *memory.Arenas

	mu      sync.Mutex // guards what follows
	lastID  uint32
	own     map[uint32]*Memory // registered here, or waiting for the answers of peers
	all     map[uint64]*Memory // that are not deregistered, by handle
	secrets map[uint64][]byte  // of the groups that this rank has been in
	engine  *Engine            // of the present epoch; nil: there is none
}

// NewMemories makes the memories of a communicator.
func NewMemories(arenas *memory.Arenas) *Memories {
	var b [8]byte
	_, _ = rand.Read(b[:]) // it never fails
	return &Memories{Owner: binary.LittleEndian.Uint64(b[:]) | 1, Arenas: arenas,
		own: map[uint32]*Memory{}, all: map[uint64]*Memory{}, secrets: map[uint64][]byte{}}
}

// Memory is a part of shareable memory: registered here, or imported from a peer.
type Memory struct {
	of     *Memories
	id     uint32 // of the one who has registered it
	owner  uint64
	bytes  uint64
	access int
	region *exec.Region
	closed atomic.Bool // it is deregistered

	// Of what is imported:
	offset, place uint64 // in the owner's arena: of the memory, and of its word
	rank          int    // the owner's, in the epoch of the import
	epoch         uint32 // that one
	mapping       mapping

	// Of what is registered here:
	at    unsafe.Pointer
	arena *exec.Arena
	alive *uint64 // holds markOf the memory while it is registered
	uses
}

// uses are what keeps memory from being given back; guarded by Memories.mu.
type uses struct {
	busy    int   // frames that are read into it, and gets that are served
	waiting asked // that have not answered DROP
	ended   bool  // DROP was sent to all
	freed   bool  // all was given back
}

// asked is peers of an epoch that an engine has asked.
type asked struct {
	by    *Engine
	peers map[int]bool
}

// mapping is what is known of where a peer's memory is mapped. Its lock guards all of it.
type mapping struct {
	sync.Mutex
	release  func() // gives the owner's arena back
	lent     bool   // its user was told where it is
	kept     bool   // its communicator has ended, and its user may still use it
	returned bool   // its user has deregistered the memory
}

// Handle is the number by which callers in C name the memory.
func (m *Memory) Handle() uint64 { return m.region.Handle }

// Bytes is its size.
func (m *Memory) Bytes() uint64 { return m.bytes }

// memory returns what was registered here.
func (m *Memory) memory() []byte { return unsafe.Slice((*byte)(m.at), m.bytes) }

// Mapped is where it is mapped here; nil: it is not, or not yet.
func (m *Memory) Mapped() unsafe.Pointer { return m.region.Base() }

// Own reports whether it was registered here.
func (m *Memory) Own() bool { return m.at != nil }

// Rank is the rank whose memory it is, and the epoch in which it had that number.
func (m *Memory) Rank() (rank int, epoch uint32) { return m.rank, m.epoch }

// use tells of the engine of the present epoch.
func (s *Memories) use(e *Engine) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.retire(s.engine)
	s.engine = e
}

// retire keeps what is registered from being allocated again while peers may still be in a copy of
// an epoch, nil: none, of which they are not asked any more. It is called with mu held.
func (s *Memories) retire(e *Engine) {
	if e == nil || !e.reachable() {
		return
	}
	for _, m := range s.own {
		if m.bytes > 0 {
			e.face.Retire(m.at, int64(m.bytes))
		}
	}
}

// reachable reports whether a rank may store to memory of this one.
func (e *Engine) reachable() bool {
	for rank := range e.peers {
		if !e.Ports[rank] && e.peers[rank].reached.Load() {
			return true
		}
	}
	return false
}

// leave tells that an engine's epoch is over, and its links. What was registered in it is allocated
// again when no peer maps the epoch's window any more.
func (s *Memories) leave(e *Engine) {
	s.mu.Lock()
	if s.engine == e {
		s.retire(e)
		s.engine = nil
	}
	var ended []*Memory
	for _, m := range s.own {
		if m.waiting.by == e {
			m.waiting = asked{}
			ended = append(ended, m)
		}
	}
	s.mu.Unlock()
	for _, m := range ended {
		s.free(m)
	}
}

// Enter tells of a group that this rank is in, and of its secret.
func (s *Memories) Enter(group uint64, secret []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.secrets[group] = append([]byte{}, secret...)
}

func (s *Memories) secretOf(group uint64) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.secrets[group]
}

// markOf is what a word in the owner's arena holds while memory is registered. The place may be
// allocated again, and peers that have imported the memory still look there: nothing else that is
// written there is the mark, as owners are random.
func markOf(owner uint64, id uint32) uint64 { return owner + uint64(id)*0x9e3779b97f4a7c15 }

func badMemory(format string, args ...any) *fault.Error {
	return fault.Errorf(fault.ErrInvalidArgument, format, args...)
}

// room returns an error where there is none for another memory.
func (s *Memories) room(call string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := len(s.all)
	for _, m := range s.own {
		if s.all[m.Handle()] == nil {
			n++
		}
	}
	if n >= MostMemories {
		return badMemory("%s: %d are registered and imported, or deregistered while peers may still "+
			"write there, which is the most", call, n)
	}
	return nil
}

// Register lets peers read or write bytes of shareable memory, which Alloc has returned, or a part
// of it. It is not allocated again before it is deregistered, and no peer can reach it.
func (s *Memories) Register(p unsafe.Pointer, bytes uint64, access int) (m *Memory, err error) {
	const call = "memory_register"
	switch {
	case access <= 0 || access&^(exec.RemoteRead|exec.RemoteWrite) != 0:
		return nil, badMemory("%s: access is %d, allowed are 1 (remote read), 2 (remote write) and both",
			call, access)
	case bytes > math.MaxInt64:
		return nil, badMemory("%s: bytes is %d, it must fit memory", call, bytes)
	case p == nil:
		return nil, badMemory("%s: address is NULL", call)
	}
	if err := s.room(call); err != nil {
		return nil, err
	}
	arena, err := s.Arenas.Acquire()
	if err != nil {
		return nil, fault.Errorf(fault.ErrUnsupported, "%s: no shareable memory: %v", call, err)
	}
	defer func() {
		if err != nil {
			s.Arenas.Release()
		}
	}()
	if !arena.Allocated(p, int64(bytes)) {
		return nil, badMemory("%s: address is %p, and the %d bytes there are not one block of shareable "+
			"memory, or a part of one: allocate it by goccl_mem_alloc() (Python: goccl.empty(), or "+
			"goccl.use_shareable_memory())", call, p, bytes)
	}
	word, err := arena.Alloc(aliveBytes)
	if err != nil {
		return nil, fault.Errorf(fault.ErrSystem, "%s: %v", call, err)
	}
	s.mu.Lock()
	s.lastID++
	m = &Memory{of: s, id: s.lastID, owner: s.Owner, bytes: bytes, access: access, at: p,
		arena: arena, alive: (*uint64)(word)}
	s.mu.Unlock()
	mark := markOf(m.owner, m.id)
	if m.region, err = exec.NewRegion(m.owner, mark, bytes, access); err != nil {
		_ = arena.Free(word) // it has just been allocated
		return nil, fault.Errorf(fault.ErrSystem, "%s: %v", call, err)
	}
	atomic.StoreUint64(m.alive, mark)
	if bytes > 0 {
		arena.Retire(p, int64(bytes))
	}
	m.region.Map(p, m.alive)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.own[m.id], s.all[m.Handle()] = m, m
	return m, nil
}

// Export returns the handle by which peers import the memory, as a rank of a group in an epoch.
func (m *Memory) Export(rank int, epoch uint32, group uint64) (b [HandleSize]byte, err error) {
	switch {
	case !m.Own():
		return b, badMemory("memory_export: memory was imported; its owner exports it")
	case m.closed.Load():
		return b, m.stale("memory_export")
	}
	base := uintptr(unsafe.Pointer(unsafe.SliceData(m.arena.Memory())))
	h := handle{access: uint8(m.access), rank: uint32(rank), epoch: epoch, id: m.id, owner: m.owner,
		group: group, offset: uint64(uintptr(m.at) - base), bytes: m.bytes,
		alive: uint64(uintptr(unsafe.Pointer(m.alive)) - base)}
	return h.encode(m.of.secretOf(group)), nil
}

// Import makes what a rank has exported known here. Its memory is mapped when it is first used.
func (s *Memories) Import(rank int, epoch uint32, b []byte) (*Memory, error) {
	const call = "memory_import"
	h, err := decodeHandle(b, s.secretOf)
	if err != nil {
		return nil, badMemory("%s: %v", call, err)
	}
	if h.epoch == epoch && int(h.rank) != rank {
		return nil, badMemory("%s: rank is %d, and the handle was exported by rank %d", call, rank,
			h.rank)
	}
	if err := s.room(call); err != nil {
		return nil, err
	}
	m := &Memory{of: s, id: h.id, owner: h.owner, bytes: h.bytes, access: int(h.access),
		offset: h.offset, place: h.alive, rank: rank, epoch: epoch}
	mark := markOf(m.owner, m.id)
	if m.region, err = exec.NewRegion(m.owner, mark, m.bytes, m.access); err != nil {
		return nil, fault.Errorf(fault.ErrSystem, "%s: %v", call, err)
	}
	if m.owner == s.Owner {
		arena, err := s.Arenas.Acquire()
		if err == nil {
			if fail := m.mapIn(arena.Memory(), s.Arenas.Release); fail != nil {
				err = fail
			}
		}
		if err != nil {
			m.region.Close()
			m.region.Free()
			return nil, fault.From(err, fault.ErrSystem, "%s", call)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all[m.Handle()] = m
	return m, nil
}

// mapIn tells where the memory lies, in its owner's arena, which it holds until it is deregistered.
func (m *Memory) mapIn(arena []byte, release func()) *fault.Error {
	m.mapping.Lock()
	defer m.mapping.Unlock()
	size := uint64(len(arena))
	switch {
	case m.region.Base() != nil:
		release()
	case m.closed.Load():
		release()
		return m.stale("")
	case m.bytes > size || m.offset > size-m.bytes || size < 8 || m.place > size-8:
		release()
		return badMemory("memory %d of its owner is said to be %d bytes at %d of an arena of %d bytes",
			m.id, m.bytes, m.offset, size)
	default:
		m.mapping.release = release
		base := unsafe.Pointer(unsafe.SliceData(arena))
		m.region.Map(unsafe.Add(base, m.offset), (*uint64)(unsafe.Add(base, m.place)))
	}
	return nil
}

// usable returns an error for memory that is deregistered, here or by its owner.
func (m *Memory) usable() error {
	if m.closed.Load() || m.region.Base() != nil && !m.region.Alive() {
		return m.stale("")
	}
	return nil
}

// stale is the error for memory that is deregistered.
func (m *Memory) stale(call string) *fault.Error {
	if call != "" {
		call += ": "
	}
	return fault.Errorf(fault.ErrInvalidHandle, "%smemory has been deregistered, by its owner or here",
		call)
}

// check returns why a call may reach no such bytes of the memory, over whatever channel.
func (m *Memory) check(c *Channel, call string, right int, offset, bytes uint64) error {
	switch {
	case m.usable() != nil:
		return c.errorf(fault.ErrInvalidHandle, call, "the memory has been deregistered, by its owner "+
			"or here")
	case m.access&right == 0:
		name := "GOCCL_REMOTE_WRITE"
		if right == exec.RemoteRead {
			name = "GOCCL_REMOTE_READ"
		}
		return c.errorf(fault.ErrInvalidArgument, call, "the memory was registered without %s", name)
	case bytes > m.bytes || offset > m.bytes-bytes:
		return c.errorf(fault.ErrInvalidArgument, call, "offset is %d and bytes is %d, and the memory "+
			"has %d bytes", offset, bytes, m.bytes)
	}
	return nil
}

// checkOwner returns why a channel that has met its peer does not reach the memory.
func (m *Memory) checkOwner(c *Channel, call string) error {
	c.e.mu.Lock()
	target := c.target
	c.e.mu.Unlock()
	switch {
	case m.owner == target:
		return nil
	case m.owner == m.of.Owner:
		return c.errorf(fault.ErrInvalidArgument, call, "the memory is this rank's own, and not the "+
			"peer's")
	}
	return c.errorf(fault.ErrInvalidArgument, call, "the memory is not the peer's: it was imported "+
		"from rank %d, or by another communicator", m.rank)
}

// Deregister ends what Register or Import has begun. It waits for nobody: callers that are in a
// copy end it, and until then, and until peers have ended theirs, nothing else is allocated there.
func (m *Memory) Deregister() {
	m.deregister(false)
	m.mapping.Lock()
	m.mapping.returned = true
	kept := m.mapping.kept
	m.mapping.kept = false
	m.mapping.Unlock()
	if kept {
		m.unmap()
	}
}

// deregister is Deregister. With keep what its user was told to be mapped stays so.
func (m *Memory) deregister(keep bool) {
	if m.closed.Swap(true) {
		return
	}
	s := m.of
	m.region.Close()
	s.mu.Lock()
	delete(s.all, m.Handle())
	e := s.engine
	s.mu.Unlock()
	if !m.Own() {
		m.mapping.Lock()
		m.mapping.kept = keep && m.mapping.lent && !m.mapping.returned
		kept := m.mapping.kept
		m.mapping.Unlock()
		if !kept {
			settle(e, m.unmap)
		}
		return
	}
	atomic.StoreUint64(m.alive, 0)
	s.mu.Lock()
	m.busy++ // until it has settled here
	if e != nil && s.engine == e {
		m.waiting = asked{e, e.dropped(m.id)}
	}
	m.ended = true
	s.mu.Unlock()
	settle(e, func() {
		s.mu.Lock()
		m.busy--
		s.mu.Unlock()
		s.free(m)
	})
}

// settle calls f once no caller is in a copy.
func settle(e *Engine, f func()) {
	if e == nil {
		f()
		return
	}
	e.settle(f)
}

// unmap gives back what is imported.
func (m *Memory) unmap() {
	m.mapping.Lock()
	defer m.mapping.Unlock()
	m.region.Free()
	if m.mapping.release != nil {
		m.mapping.release()
	}
}

// free gives back what was registered here, once nobody can reach it.
func (s *Memories) free(m *Memory) {
	s.mu.Lock()
	ready := m.ended && m.busy == 0 && len(m.waiting.peers) == 0 && !m.freed
	if ready {
		m.freed = true
		delete(s.own, m.id)
	}
	s.mu.Unlock()
	if !ready {
		return
	}
	m.region.Free()
	if m.bytes > 0 {
		m.arena.Reclaim(m.at, int64(m.bytes))
	}
	_ = m.arena.Free(unsafe.Pointer(m.alive)) // it fails only for what was not allocated
	s.Arenas.Release()
}

// DeregisterAll ends all that is registered and imported, of a communicator whose last epoch has
// finished. What [Engine.Map] has told to be mapped stays so until it is deregistered.
func (s *Memories) DeregisterAll() {
	s.mu.Lock()
	all := slices.Collect(maps.Values(s.all))
	s.mu.Unlock()
	for _, m := range all {
		m.deregister(true)
	}
}

// Kept reports whether memory is mapped for its user, whose communicator has ended.
func (m *Memory) Kept() bool {
	m.mapping.Lock()
	defer m.mapping.Unlock()
	return m.mapping.kept
}

// lend returns where memory is mapped, if it is, and keeps it there until its user deregisters it.
func (m *Memory) lend() unsafe.Pointer {
	m.mapping.Lock()
	defer m.mapping.Unlock()
	if m.closed.Load() {
		return nil
	}
	base := m.region.Base()
	m.mapping.lent = m.mapping.lent || base != nil
	return base
}

// named returns the memory of a handle, registered here or imported; nil: there is none.
func (s *Memories) named(handle uint64) *Memory {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.all[handle]
}

// holdNamed is named for memory of this rank, which is not allocated again before let is called.
func (s *Memories) holdNamed(handle uint64) *Memory {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.all[handle]
	if m == nil || !m.Own() {
		return nil
	}
	m.busy++
	return m
}

// holdOn holds memory once more, which is held.
func (s *Memories) holdOn(m *Memory) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m.busy++
}

// hold lets a peer's frame reach memory: nil where it is no more. An error tells that no correct
// peer sends such a frame.
func (s *Memories) hold(id uint64, right int, offset, bytes uint64) (*Memory, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if id == 0 || id > uint64(s.lastID) {
		return nil, fmt.Errorf("%w: memory %d, which was never registered", exec.ErrProtocol, id)
	}
	m := s.own[uint32(id)]
	if m == nil || m.closed.Load() {
		return nil, nil
	}
	if m.access&right == 0 || bytes > m.bytes || offset > m.bytes-bytes {
		return nil, fmt.Errorf("%w: %d bytes at %d of memory %d, which has %d bytes, and access %d",
			exec.ErrProtocol, bytes, offset, id, m.bytes, m.access)
	}
	m.busy++
	return m, nil
}

// let undoes hold, holdNamed or holdOn.
func (s *Memories) let(m *Memory) {
	s.mu.Lock()
	m.busy--
	s.mu.Unlock()
	s.free(m)
}

// answered tells that no caller of a peer is in a copy to memory any more.
func (s *Memories) answered(e *Engine, id uint64, rank int) error {
	s.mu.Lock()
	m := s.own[uint32(id)]
	if id > math.MaxUint32 || m == nil || m.waiting.by != e || !m.waiting.peers[rank] {
		s.mu.Unlock()
		return fmt.Errorf("%w: it has dropped memory %d, for which nobody has asked it",
			exec.ErrProtocol, id)
	}
	delete(m.waiting.peers, rank)
	s.mu.Unlock()
	s.free(m)
	return nil
}

// dropped tells peers that memory is no more, and returns those of which an answer must come. It is
// called with Memories.mu held.
func (e *Engine) dropped(id uint32) map[int]bool {
	waiting := map[int]bool{}
	for rank := range e.peers {
		if rank == e.Rank || e.Ports[rank] || !e.peers[rank].reached.Load() {
			continue
		}
		waiting[rank] = true
		e.tell(rank, transport.Header{Type: frameDrop, Seq: uint64(id)}, nil)
	}
	return waiting
}
