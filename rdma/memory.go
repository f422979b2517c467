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

// Memory is what devices may be given access to: blocks of memory whose owner tells when they end.
// A block is registered with a device when it is first used there, and until it ends or the device
// does: no registration outlives its memory unnoticed, because none is of memory that is not known
// here. It is safe for use by several goroutines.
type Memory struct {
	// bytes that peers have read by themselves, and that were read so of peers' memory
	Given, Taken atomic.Int64

	mu         sync.Mutex // registering takes long, and so does ending that: without it
	blocks     []*block   // by address
	bytes      int64      // that are registered
	registered int        // so often, or about to be

	ending sync.RWMutex // held where registrations end, so that Leave leaves none behind; before mu
}

// MostRegistered is how many registrations there are at most.
const MostRegistered = 1024

type block struct {
	memory    unsafe.Pointer
	from, end uintptr
	twin      func(unsafe.Pointer) (unsafe.Pointer, error) // nil: it has none
	ended     func()                                       // nil: nobody wants to know
	at        map[*Device]*registration
	holds     int // while it is known, and by each region
	gone      bool
}

type registration struct {
	m      *Memory
	block  *block
	made   chan struct{}  // closed when registering has ended
	region *Region        // since then; nil where that has failed, or is over
	memory unsafe.Pointer // where the device finds it
	uses   int
}

// Use is registered memory in use: it stays registered meanwhile, even where its block has ended.
type Use struct {
	at unsafe.Pointer
	r  *registration
}

// Add makes memory known. Twin maps it a second time, for devices alone, when it is first used, or
// is nil: what a device knows may be missing in a forked child. Ended, if it is not nil, is called
// when the block has ended and nothing of it is registered any more: until then the memory stays
// mapped.
func (m *Memory) Add(p unsafe.Pointer, bytes int64,
	twin func(unsafe.Pointer) (unsafe.Pointer, error), ended func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	b := &block{memory: p, from: uintptr(p), end: uintptr(p) + uintptr(bytes), twin: twin,
		ended: ended, at: map[*Device]*registration{}, holds: 1}
	i, _ := m.search(b.from)
	m.blocks = slices.Insert(m.blocks, i, b)
}

// search needs m.mu.
func (m *Memory) search(from uintptr) (int, bool) {
	return slices.BinarySearchFunc(m.blocks, from,
		func(b *block, from uintptr) int { return cmp.Compare(b.from, from) })
}

// Remove ends the block that begins at p: its registrations end now, or with their last use.
func (m *Memory) Remove(p unsafe.Pointer) error {
	m.ending.RLock()
	defer m.ending.RUnlock()
	m.mu.Lock()
	i, ok := m.search(uintptr(p))
	if !ok {
		m.mu.Unlock()
		return nil
	}
	b := m.blocks[i]
	m.blocks = slices.Delete(m.blocks, i, i+1)
	b.gone = true
	m.mu.Unlock()
	var err error
	for _, r := range b.at { // which nobody changes any more
		<-r.made // else what comes to lie there next might be registered
		err = errors.Join(err, r.leave(0))
	}
	m.drop(b)
	return err
}

// drop gives a hold on a block back.
func (m *Memory) drop(b *block) {
	m.mu.Lock()
	b.holds--
	over := b.holds == 0
	m.mu.Unlock()
	if over && b.ended != nil {
		b.ended()
	}
}

// Use gives a device access to memory. It returns nil where the memory is not known, or is not
// registered; an error says why that has just failed, which is not tried again. Nobody waits for
// another's registering, but goes without.
func (m *Memory) Use(d *Device, p unsafe.Pointer, bytes int) (*Use, error) {
	m.mu.Lock()
	b := m.find(uintptr(p), bytes)
	if b == nil {
		m.mu.Unlock()
		return nil, nil
	}
	r := b.at[d]
	switch {
	case r == nil && m.registered >= MostRegistered:
		m.mu.Unlock()
		return nil, fmt.Errorf("%d pieces of memory are registered, which is the most", MostRegistered)
	case r == nil:
		r = &registration{m: m, block: b, made: make(chan struct{})}
		b.at[d] = r
		m.registered++
		m.mu.Unlock()
		if err := r.register(d); err != nil {
			return nil, err
		}
	case r.region == nil:
		m.mu.Unlock()
		return nil, nil
	default:
		r.uses++
		m.mu.Unlock()
	}
	return &Use{at: unsafe.Add(r.memory, uintptr(p)-b.from), r: r}, nil
}

// register makes the registration, and its first use.
func (r *registration) register(d *Device) error {
	b := r.block
	memory, err := b.memory, error(nil)
	if b.twin != nil {
		memory, err = b.twin(memory)
	}
	var region *Region
	if err == nil {
		region, err = d.Register(memory, int(b.end-b.from), LocalWrite|RemoteRead)
	}
	r.m.mu.Lock()
	defer r.m.mu.Unlock()
	defer close(r.made)
	if err != nil {
		r.m.registered--
		return err
	}
	r.region, r.memory, r.uses = region, memory, 1
	b.holds++
	r.m.bytes += int64(b.end - b.from)
	return nil
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

// Knows tells whether memory is known, and nothing that a device cannot be given access to.
func (m *Memory) Knows(d *Device, p unsafe.Pointer, bytes int) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	b := m.find(uintptr(p), bytes)
	if b == nil {
		return false
	}
	if r := b.at[d]; r != nil {
		return r.region != nil
	}
	return m.registered < MostRegistered
}

// Registered is how much memory devices have access to.
func (m *Memory) Registered() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.bytes
}

// Leave ends the registrations of a device, before it is closed. Nothing of it is in use.
func (m *Memory) Leave(d *Device) error {
	m.ending.Lock()
	defer m.ending.Unlock()
	m.mu.Lock()
	var ends []func() error
	for _, b := range m.blocks {
		if r := b.at[d]; r != nil {
			ends = append(ends, r.end())
			delete(b.at, d)
		}
	}
	m.mu.Unlock()
	var err error
	for _, end := range ends {
		err = errors.Join(err, end())
	}
	return err
}

// leave gives uses back, and ends the registration with the last one, if its block has ended. It
// needs m.ending.
func (r *registration) leave(uses int) error {
	end := func() error { return nil }
	r.m.mu.Lock()
	if r.uses -= uses; r.uses == 0 && r.block.gone {
		end = r.end()
	}
	r.m.mu.Unlock()
	return end()
}

// end takes the region out, and returns what closes it. It needs m.mu, which that must not.
func (r *registration) end() func() error {
	region := r.region
	if region == nil {
		return func() error { return nil }
	}
	r.region = nil
	r.m.registered--
	r.m.bytes -= int64(r.block.end - r.block.from)
	return func() error {
		if err := region.Close(); err != nil {
			return err // the device may still have access: what is mapped there stays
		}
		r.m.drop(r.block)
		return nil
	}
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
	m := u.r.m
	m.ending.RLock()
	defer m.ending.RUnlock()
	return u.r.leave(1)
}
