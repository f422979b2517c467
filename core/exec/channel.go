package exec

/*
#include "channel.h"

static int goccl_channel_put(uint64_t channel, uint64_t memory, uint64_t offset, const void *src,
                             uint64_t bytes, uint64_t signals) {
  return goccl_channels.put(channel, memory, offset, src, bytes, signals);
}
static int goccl_channel_get(uint64_t channel, void *dst, uint64_t memory, uint64_t offset,
                             uint64_t bytes) {
  return goccl_channels.get(channel, dst, memory, offset, bytes);
}
static int goccl_channel_signal(uint64_t channel, uint64_t n) {
  return goccl_channels.signal(channel, n);
}
static int goccl_channel_try(uint64_t channel, uint64_t n, int waits) {
  return goccl_channels.take(channel, n, waits);
}
#cgo noescape goccl_channel_put
#cgo nocallback goccl_channel_put
#cgo noescape goccl_channel_get
#cgo nocallback goccl_channel_get
#cgo noescape goccl_channel_signal
#cgo nocallback goccl_channel_signal
#cgo noescape goccl_channel_try
#cgo nocallback goccl_channel_try
*/
import "C"

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"
)

// Channels is what callers in C use channels by, a goccl_channel_calls: see channel.h.
func Channels() unsafe.Pointer { return unsafe.Pointer(&C.goccl_channels) }

// The rights to a region.
const (
	RemoteRead  = C.GOCCL_REGION_READ
	RemoteWrite = C.GOCCL_REGION_WRITE
)

// SemaphoreBytes is the size of a semaphore, which lies in an arena.
const SemaphoreBytes = C.sizeof_goccl_semaphore

// ChannelState says what a channel's end can do.
type ChannelState uint32

const (
	ChannelUnmet  = ChannelState(C.GOCCL_CHANNEL_UNMET)  // its peer's end is not known yet
	ChannelMemory = ChannelState(C.GOCCL_CHANNEL_MEMORY) // it reaches the peer's memory
	ChannelPort   = ChannelState(C.GOCCL_CHANNEL_PORT)
	ChannelEnded  = ChannelState(C.GOCCL_CHANNEL_ENDED) // what has come can still be taken
	ChannelGone   = ChannelState(C.GOCCL_CHANNEL_GONE)
)

// Carried says how far C has carried a call.
type Carried int

const (
	CarriedAll  = Carried(C.GOCCL_CHANNEL_DONE)
	CarriedNot  = Carried(C.GOCCL_CHANNEL_GO) // the caller must find out why
	CarriedNone = Carried(C.GOCCL_CHANNEL_NOTHING)
	CarriedLate = Carried(C.GOCCL_CHANNEL_LATE)
)

// table gives out the places of a table in C, and handles to them. A place is used again by another
// handle.
type table struct {
	mu          sync.Mutex // guards what follows
	free        []uint32
	used        uint32 // places that were ever given out
	generations uint64 // handles that were
	first       uint64 // generation, odd of ends and even of regions
}

// firstGeneration makes handles no small numbers, which a program may give by mistake.
const firstGeneration = 0x5c_1a2b_0000

var (
	ends    = table{first: firstGeneration | 1}
	regions = table{first: firstGeneration}
)

// take returns a place and its next handle.
func (t *table) take(made func(index uint32) bool) (index uint32, handle uint64, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if n := len(t.free); n > 0 {
		index, t.free = t.free[n-1], t.free[:n-1]
	} else {
		if t.used == 1<<C.GOCCL_TABLE_BITS {
			return 0, 0, fmt.Errorf("%d are in use, which is the most", t.used)
		}
		index = t.used
		if !made(index) {
			return 0, 0, fmt.Errorf("a table: out of memory")
		}
		t.used++
	}
	handle = (t.first+2*t.generations)<<C.GOCCL_TABLE_BITS | uint64(index)
	t.generations++
	return index, handle, nil
}

func (t *table) give(index uint32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.free = append(t.free, index)
}

// Region is memory that is registered, here or at a peer, as callers in C find it.
type Region struct {
	c      *C.goccl_region
	index  uint32
	Handle uint64
}

// NewRegion makes a region, of which a word holds a mark while it is registered. Where they are
// mapped is told by Map.
func NewRegion(owner, mark, bytes uint64, access int) (*Region, error) {
	r := &Region{}
	var err error
	r.index, r.Handle, err = regions.take(func(i uint32) bool {
		return C.goccl_region_at(C.uint32_t(i)) != nil
	})
	if err != nil {
		return nil, err
	}
	r.c = C.goccl_region_at(C.uint32_t(r.index))
	r.c.owner, r.c.bytes, r.c.access = C.uint64_t(owner), C.uint64_t(bytes), C.uint32_t(access)
	r.c.alive, r.c.mark = nil, C.uint64_t(mark)
	atomic.StorePointer((*unsafe.Pointer)(unsafe.Pointer(&r.c.base)), nil)
	atomic.StoreUint64((*uint64)(&r.c.handle), r.Handle)
	return r, nil
}

// Map tells where the region lies, and the word that holds its mark until it is deregistered.
// It is called once.
func (r *Region) Map(base unsafe.Pointer, alive *uint64) {
	r.c.alive = (*C.uint64_t)(unsafe.Pointer(alive))
	atomic.StorePointer((*unsafe.Pointer)(unsafe.Pointer(&r.c.base)), base)
}

// Base is where the region is mapped; nil: it is not.
func (r *Region) Base() unsafe.Pointer {
	return atomic.LoadPointer((*unsafe.Pointer)(unsafe.Pointer(&r.c.base)))
}

// Alive tells whether the owner of a mapped region has it registered.
func (r *Region) Alive() bool {
	return atomic.LoadUint64((*uint64)(r.c.alive)) == uint64(r.c.mark)
}

// Close makes the handle invalid. A caller may still be where it led.
func (r *Region) Close() { atomic.StoreUint64((*uint64)(&r.c.handle), 0) }

// Free gives the place back, once no caller can be where the handle led.
func (r *Region) Free() { regions.give(r.index) }

// ChannelEnd is this rank's end of a channel, as callers in C find it. Its methods may be called
// by any goroutine, unless they say otherwise.
type ChannelEnd struct {
	c      *C.goccl_channel_end
	index  uint32
	Handle uint64
	own    *C.goccl_semaphore
	closed atomic.Bool

	settling sync.Mutex // guards the change of phases

	mu    sync.Mutex // held while the state changes; guards freed
	freed bool       // the place may be another end's
}

// NewChannelEnd makes an end whose signals are counted in a semaphore, memory of SemaphoreBytes.
func NewChannelEnd(semaphore unsafe.Pointer, w Waiting) (*ChannelEnd, error) {
	e := &ChannelEnd{own: (*C.goccl_semaphore)(semaphore)}
	var err error
	e.index, e.Handle, err = ends.take(func(i uint32) bool {
		return C.goccl_channel_end_at(C.uint32_t(i)) != nil
	})
	if err != nil {
		return nil, err
	}
	*e.own = C.goccl_semaphore{}
	spin, yields := C.uint32_t(w.Spin), C.uint32_t(w.Yields)
	e.own.bell.naps = flag(w.Spin > 0) // as of a lane
	c := C.goccl_channel_end_at(C.uint32_t(e.index))
	e.c = c
	c.own, c.peer, c.target, c.sent = e.own, nil, 0, 0
	c.patience = C.goccl_patience{spin_most: spin, spin: spin, yields_most: yields, yields: yields}
	atomic.StoreUint64((*uint64)(&c.taken), 0)
	atomic.StoreUint32((*uint32)(&c.state), uint32(ChannelUnmet))
	atomic.StoreUint64((*uint64)(&c.handle), e.Handle)
	return e, nil
}

// State is what the end can do. One that is closed is gone.
func (e *ChannelEnd) State() ChannelState {
	if e.closed.Load() {
		return ChannelGone
	}
	return e.state()
}

func (e *ChannelEnd) state() ChannelState {
	return ChannelState(atomic.LoadUint32((*uint32)(&e.c.state)))
}

// Meet tells of the peer's end: whose memory it reaches, and where its semaphore is mapped; nil:
// all goes over a link. It is called once; an end that has ended stays so.
func (e *ChannelEnd) Meet(target uint64, semaphore unsafe.Pointer) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.freed || e.state() != ChannelUnmet {
		return
	}
	e.c.target, e.c.peer = C.uint64_t(target), (*C.goccl_semaphore)(semaphore)
	state := ChannelMemory
	if semaphore == nil {
		state = ChannelPort
	}
	e.set(state)
}

// End lets no caller reach the peer any more. What has come can still be taken.
func (e *ChannelEnd) End() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.freed && e.state() < ChannelEnded {
		e.set(ChannelEnded)
	}
}

// Leave lets no caller take any more, either.
func (e *ChannelEnd) Leave() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.freed && e.state() != ChannelGone {
		e.set(ChannelGone)
	}
}

// set needs mu.
func (e *ChannelEnd) set(state ChannelState) {
	atomic.StoreUint32((*uint32)(&e.c.state), uint32(state))
	C.goccl_ring(&e.own.bell)
}

// Put copies to memory of the peer, and then signals if signals is not 0.
func (e *ChannelEnd) Put(memory, offset uint64, src unsafe.Pointer, bytes, signals uint64) Carried {
	return Carried(C.goccl_channel_put(C.uint64_t(e.Handle), C.uint64_t(memory), C.uint64_t(offset),
		src, C.uint64_t(bytes), C.uint64_t(signals)))
}

// Get copies from memory of the peer.
func (e *ChannelEnd) Get(dst unsafe.Pointer, memory, offset, bytes uint64) Carried {
	return Carried(C.goccl_channel_get(C.uint64_t(e.Handle), dst, C.uint64_t(memory),
		C.uint64_t(offset), C.uint64_t(bytes)))
}

// Signal adds to the peer's count.
func (e *ChannelEnd) Signal(n uint64) Carried {
	return Carried(C.goccl_channel_signal(C.uint64_t(e.Handle), C.uint64_t(n)))
}

// Take takes signals if they have come. A caller that waits polls for them for a little while.
func (e *ChannelEnd) Take(n uint64, waits bool) Carried {
	return Carried(C.goccl_channel_try(C.uint64_t(e.Handle), C.uint64_t(n), C.int(flag(waits))))
}

// Await takes signals once they have come. It ends without them where the end's state is another
// one (CarriedNot), or at a time (CarriedLate).
func (e *ChannelEnd) Await(n uint64, state ChannelState, until time.Duration) Carried {
	taking := (*uint32)(&e.c.taking)
	atomic.AddUint32(taking, 1)
	defer atomic.AddUint32(taking, ^uint32(0))
	if atomic.LoadUint64((*uint64)(&e.c.handle)) != e.Handle || e.State() != state {
		return CarriedNot
	}
	return Carried(C.goccl_channel_await(e.c, C.uint64_t(n), C.uint32_t(state),
		C.uint64_t(max(until, 0))))
}

// Sent is how many signals were sent by a memory channel.
func (e *ChannelEnd) Sent() uint64 { return atomic.LoadUint64((*uint64)(&e.c.sent)) }

// Untaken is how many signals have come and were not taken, about; 0 of an end that is closed or
// gone.
func (e *ChannelEnd) Untaken() uint64 {
	taking := (*uint32)(&e.c.taking)
	atomic.AddUint32(taking, 1)
	defer atomic.AddUint32(taking, ^uint32(0))
	if atomic.LoadUint64((*uint64)(&e.c.handle)) != e.Handle || e.state() == ChannelGone {
		return 0
	}
	taken := atomic.LoadUint64((*uint64)(&e.c.taken))
	return atomic.LoadUint64((*uint64)(&e.own.signals)) - taken
}

// Arrived counts signals that came over a link. It reports whether the count holds them. The end
// has not been freed.
func (e *ChannelEnd) Arrived(n uint64) bool {
	signals := (*uint64)(&e.own.signals)
	if n > ^atomic.LoadUint64(signals) {
		return false
	}
	atomic.AddUint64(signals, n)
	C.goccl_ring(&e.own.bell)
	return true
}

// Close makes the handle invalid. Callers that wait leave once End is called.
func (e *ChannelEnd) Close() {
	if !e.closed.Swap(true) {
		atomic.StoreUint64((*uint64)(&e.c.handle), 0)
	}
}

// Copies reports whether a caller may be using the peer's memory.
func (e *ChannelEnd) Copies() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return !e.freed && C.goccl_channel_copies(e.c) != 0
}

// Settle waits until no caller is in a copy that was in one before. Others may come meanwhile.
func (e *ChannelEnd) Settle() {
	e.settling.Lock()
	defer e.settling.Unlock()
	phase := atomic.LoadUint32((*uint32)(&e.c.phase))
	e.awaitCopies(1 - phase)
	e.mu.Lock()
	if e.freed {
		e.mu.Unlock()
		return
	}
	atomic.StoreUint32((*uint32)(&e.c.phase), 1-phase)
	e.mu.Unlock()
	e.awaitCopies(phase)
	C.goccl_channel_pass(e.c)
}

// awaitCopies waits until no caller is in a long copy that counts itself by a phase.
func (e *ChannelEnd) awaitCopies(phase uint32) {
	copies := func() bool {
		e.mu.Lock()
		defer e.mu.Unlock()
		return !e.freed && atomic.LoadUint32((*uint32)(&e.c.copying[phase])) != 0
	}
	for since := Now(); copies(); AwaitCaller(since) {
	}
}

// Takes reports whether a caller may be using the end's semaphore, or looks at the peer's.
func (e *ChannelEnd) Takes() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return !e.freed && C.goccl_channel_takes(e.c) != 0
}

// Free gives the place back, once the end is closed and nobody copies or takes.
func (e *ChannelEnd) Free() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.freed {
		e.freed = true
		ends.give(e.index)
	}
}
