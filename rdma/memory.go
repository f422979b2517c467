package rdma

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"
)

// Memory is what devices may be given access to: blocks of memory whose owner tells when they end. A block is registered with a device when it is
// first used there, and until it ends or the device does: no registration outlives its memory unnoticed, because none is of memory that is not known here.
// It is safe for use by several goroutines.
type Memory struct {
	Given, Taken atomic.Int64 // bytes that peers have read by themselves, and that were read so of peers' memory

	mu         sync.Mutex
	blocks     []*block // by address
	bytes      int64    // that are registered
	registered int      // so often
}

// MostRegistered is how many registrations there are at most.
const MostRegistered = 1024

type block struct {
	from, end uintptr
	twin      unsafe.Pointer
	at        map[*Device]*registration
	gone      bool
}

type registration struct {
	m      *Memory
	block  *block
	region *Region // nil where registering has failed
	uses   int
}

// Use is registered memory in use: it stays registered meanwhile, even where its block has ended.
type Use struct {
	at unsafe.Pointer
	r  *registration
}

// Add makes memory known. Twin is where it is mapped a second time, for devices alone, or the same: what a device knows may be missing in a
// forked child.
func (m *Memory) Add(p unsafe.Pointer, bytes int64, twin unsafe.Pointer) {
	m.mu.Lock()
	defer m.mu.Unlock()
	b := &block{from: uintptr(p), end: uintptr(p) + uintptr(bytes), twin: twin, at: map[*Device]*registration{}}
	i, _ := m.search(b.from)
	m.blocks = slices.Insert(m.blocks, i, b)
}

// search needs m.mu.
func (m *Memory) search(from uintptr) (int, bool) {
	return slices.BinarySearchFunc(m.blocks, from, func(b *block, from uintptr) int { return cmp.Compare(b.from, from) })
}

// Remove ends the block that begins at p: its registrations end now, or with their last use.
func (m *Memory) Remove(p unsafe.Pointer) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	i, ok := m.search(uintptr(p))
	if !ok {
		return nil
	}
	b := m.blocks[i]
	m.blocks = slices.Delete(m.blocks, i, i+1)
	b.gone = true
	var err error
	for _, r := range b.at {
		if r.uses == 0 {
			err = errors.Join(err, r.end())
		}
	}
	return err
}

// Use gives a device access to memory. It returns nil where the memory is not known, or could not be registered; the error, why
// not, comes once a block.
func (m *Memory) Use(d *Device, p unsafe.Pointer, bytes int) (*Use, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	b := m.find(uintptr(p), bytes)
	if b == nil {
		return nil, nil
	}
	r := b.at[d]
	if r == nil {
		r = &registration{m: m, block: b}
		b.at[d] = r
		if m.registered >= MostRegistered {
			return nil, fmt.Errorf("%d pieces of memory are registered, which is the most", m.registered)
		}
		var err error
		if r.region, err = d.Register(b.twin, int(b.end-b.from), LocalWrite|RemoteRead); err != nil {
			return nil, err
		}
		m.registered++
		m.bytes += int64(b.end - b.from)
	}
	if r.region == nil {
		return nil, nil
	}
	r.uses++
	return &Use{at: unsafe.Add(b.twin, uintptr(p)-b.from), r: r}, nil
}

// find needs m.mu.
func (m *Memory) find(p uintptr, bytes int) *block {
	i, ok := m.search(p)
	if !ok {
		i--
	}
	if i < 0 || uintptr(bytes) > m.blocks[i].end-min(p, m.blocks[i].end) {
		return nil
	}
	return m.blocks[i]
}

// Knows tells whether memory is known.
func (m *Memory) Knows(p unsafe.Pointer, bytes int) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.find(uintptr(p), bytes) != nil
}

// Registered is how much memory devices have access to.
func (m *Memory) Registered() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.bytes
}

// Leave ends the registrations of a device, before it is closed. Nothing of it is in use.
func (m *Memory) Leave(d *Device) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	var err error
	for _, b := range m.blocks {
		if r := b.at[d]; r != nil {
			err = errors.Join(err, r.end())
			delete(b.at, d)
		}
	}
	return err
}

// end needs m.mu.
func (r *registration) end() error {
	if r.region == nil {
		return nil
	}
	r.m.registered--
	r.m.bytes -= int64(r.block.end - r.block.from)
	err := r.region.Close()
	r.region = nil
	return err
}

// Remote is where a peer can read memory, and by which key.
type Remote struct {
	Addr uint64
	Key  uint32
}

// Remote tells it of the memory.
func (u *Use) Remote() Remote { return Remote{uint64(uintptr(u.at)), u.r.region.RKey} }

// End ends the use. Of nil it does nothing.
func (u *Use) End() error {
	if u == nil {
		return nil
	}
	u.r.m.mu.Lock()
	defer u.r.m.mu.Unlock()
	u.r.uses--
	if u.r.uses == 0 && u.r.block.gone {
		return u.r.end()
	}
	return nil
}
