package memory

import (
	"errors"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/goccl/goccl/core/exec"
)

// Mapping is the memory that an epoch shares with its peers.
type Mapping struct {
	arenas *Arenas
	window *exec.Window
	own    *exec.Arena // nil where no peer shares memory
	known  [][]byte    // of the window, to devices; nil where they have no access. Set by Register

	mu      sync.Mutex           // guards what follows
	peers   map[int]exec.ArenaID // whose arenas are mapped, by rank
	retired []span               // of own
}

// NewMapping makes an epoch's mapping, which takes its window over. The process's own arena may be
// nil; its caller holds it for longer.
func (a *Arenas) NewMapping(window *exec.Window, own *exec.Arena) *Mapping {
	if own != nil {
		window.UseArena(own.Memory())
	}
	return &Mapping{arenas: a, window: window, own: own}
}

// Register has devices write what peers advertise into the window, and peers read the word that
// tells whether this rank has stopped. It is called at most once, before any peer is let in.
func (m *Mapping) Register() {
	word, inboxes := m.window.Memory()
	m.known = [][]byte{word, inboxes}
	var left atomic.Int32
	left.Store(int32(len(m.known)))
	for _, b := range m.known {
		p := unsafe.Pointer(unsafe.SliceData(b))
		m.arenas.Devices.Add(p, int64(len(b)), nil, func() {
			if left.Add(-1) == 0 {
				m.window.Close()
			}
		})
	}
}

// Join maps a peer's arena, before its window is connected. Without it there are no direct plans,
// and that is all. It takes the descriptor over.
func (m *Mapping) Join(peer, fd int) error {
	id, mem, err := m.arenas.join(fd)
	if err != nil {
		return err
	}
	m.mu.Lock()
	if m.peers == nil {
		m.peers = map[int]exec.ArenaID{}
	}
	m.peers[peer] = id
	m.mu.Unlock()
	m.window.ConnectArena(peer, mem)
	return nil
}

// Hold returns the arena of a peer, which stays mapped until release is called, after the epoch,
// too. ok reports whether it is mapped.
func (m *Mapping) Hold(peer int) (arena []byte, release func(), ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	id, ok := m.peers[peer]
	if !ok {
		return nil, nil, false
	}
	return m.arenas.again(id), func() { m.arenas.leave(id) }, true
}

// Retire has the outputs of an operation that has failed not allocated again before the epoch has
// ended on all ranks.
func (m *Mapping) Retire(outputs []unsafe.Pointer, bytes []int64) {
	if m.own == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for i, p := range outputs {
		if i < len(bytes) && m.own.Contains(p) {
			m.own.Retire(p, bytes[i])
			m.retired = append(m.retired, span{p, bytes[i]})
		}
	}
}

// Close ends what the epoch shares. What it has retired is the process's from then on. The window
// is closed once no device has access to it any more: a peer may still be about to read whether
// this rank has stopped. An error tells of memory that a device has kept.
func (m *Mapping) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.retired) > 0 {
		// Without a descriptor it stays retired as long as there is the arena.
		if window, err := exec.MappingsOf(m.window.FD()); err == nil {
			m.arenas.keep(retired{window, m.retired})
		}
	}
	err := m.closeWindow()
	for _, id := range m.peers {
		m.arenas.leave(id)
	}
	m.peers = nil
	return err
}

func (m *Mapping) closeWindow() (err error) {
	if m.known == nil {
		m.window.Close()
		return nil
	}
	for _, b := range m.known {
		err = errors.Join(err, m.arenas.Devices.Remove(unsafe.Pointer(unsafe.SliceData(b))))
	}
	return err
}
