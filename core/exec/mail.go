package exec

/*
#include <stdlib.h>
#include "mail.h"
#cgo noescape goccl_mail_post
#cgo nocallback goccl_mail_post
#cgo noescape goccl_mail_pull
#cgo nocallback goccl_mail_pull
#cgo noescape goccl_mail_take
#cgo nocallback goccl_mail_take
*/
import "C"

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"
)

// Mail is how ranks that share memory send each other packets: short messages that are no part of a
// plan. Each rank's window has a mailbox for every peer, a ring of bytes that the peer writes and
// the rank reads.
//
// What is longer than a few lines travels in bounce buffers, where the sender has enough of them:
// places that two ranks share. Each belongs to the rank that has read it last, at first to the one
// that may write into the other's window. So what comes the other way comes in the same lines of
// memory, which are in the cache of the rank that writes them. A rank that sends more than it gets
// soon has none left, and the ring has the rest.
//
// A packet lies there until somebody looks. A waiter for one, which meanwhile carries on what runs
// on the last lane, is counted at the rank's door, so that a peer knows whether it must tell the
// rank of a packet by other means. Sleepers wait for the lane's bell.
//
// Callers in C use the mailboxes, too, while the gate of [FastPath] for sends is open. The methods
// that post and take are for a caller that has shut it.
type Mail struct {
	c     *C.goccl_mail
	lane  *Lane
	peers []C.goccl_mail_peer
	// each guards what is posted to a peer, and the bounce buffers that this rank has
	locks []sync.Mutex

	mu     sync.RWMutex
	closed bool
}

// Packet is what precedes a packet's payload.
type Packet struct {
	Type  uint8  // not 0
	Bytes uint32 // less than 16 MiB
	Seq   uint64
	Arg   [2]uint64

	shown C.goccl_taken_packet // of one that Next has shown
}

const (
	packetAlign = C.GOCCL_PACKET_ALIGN
	bouncesEach = C.GOCCL_BOUNCES
	bounceMin   = C.GOCCL_BOUNCE_MIN
)

// MailboxFor is the size of a mailbox for packets of so many bytes at most: wherever the last one
// ended, the longest fits into an empty one.
func MailboxFor(packet int64) int64 { return 2 * int64(ringSize(uint64(packet))) }

// ringSize is what a packet with a payload that follows it takes of the ring.
func ringSize(payload uint64) uint64 {
	return (C.sizeof_goccl_packet + payload + packetAlign - 1) &^ (packetAlign - 1)
}

// BounceFor is the size of a bounce buffer of which those in one window carry such a packet.
func BounceFor(packet int64) int64 {
	return (packet/bouncesEach + lineBytes - 1) &^ (lineBytes - 1)
}

func newMail(w *Window) (*Mail, error) {
	l, own, lane := w.Layout, &w.mapped, w.lanes[len(w.lanes)-1]
	var a allocator
	c := alloc[C.goccl_mail](&a, 1)
	peers := alloc[C.goccl_mail_peer](&a, l.Ranks)
	if a.err != nil {
		free(unsafe.Pointer(c), unsafe.Pointer(peers))
		return nil, a.err
	}
	c.door = (*C.goccl_mail_door)(w.at(own.door()))
	c.boxes = (*C.uint8_t)(w.at(own.mailboxes()))
	c.stride = C.uint64_t(own.mailboxSize())
	c.n_boxes = C.uint32_t(own.n())
	c.lane = lane.c
	c.peers, c.ring, c.bounce = peers, C.uint64_t(l.Mailbox), C.uint64_t(l.Bounce)
	m := &Mail{c: c, lane: lane, peers: unsafe.Slice(peers, l.Ranks),
		locks: make([]sync.Mutex, l.Ranks)}
	for i := range m.peers {
		if !l.shares(i) {
			continue
		}
		p := &m.peers[i]
		p.from = (*C.goccl_mailbox)(w.at(own.mailboxOf(i)))
		p.writer = lane.c.writer
		p.mine = m.behindRing(p.from)
		p.pipes.from = m.pipeOf(own, p.from)
		slot := max(l.Pipe/C.GOCCL_PIPE_SLOTS, C.GOCCL_PIPE_SLOT_LEAST)
		p.pipes.slot, p.pipes.n_slots = C.uint64_t(slot), C.uint64_t(l.Pipe/slot)
		p.pipes.writer.limit = C.GOCCL_WRITE_LIMIT
		p.owned = bouncesEach // to be used once the peer's window is mapped
		for n := range p.owned {
			p.has[n] = C.uint8_t(n)
		}
	}
	return m, nil
}

func (m *Mail) connect(rank, peer int, r *region, door, box unsafe.Pointer) {
	m.locks[peer].Lock()
	defer m.locks[peer].Unlock()
	p, to := &m.peers[peer], (*C.goccl_mailbox)(box)
	p.door = (*C.goccl_mail_door)(door)
	p.bell = m.lane.channels[peer].peer_bell
	p.theirs = m.behindRing(to)
	if p.pipes.to = m.pipeOf(r, to); p.pipes.to != nil {
		p.pipes.slots = slotsOf(p.pipes.from)
		if peer < rank {
			p.pipes.slots = slotsOf(p.pipes.to)
		}
	}
	// Last: callers in C use the rest once this is set.
	atomic.StorePointer((*unsafe.Pointer)(unsafe.Pointer(&p.to)), unsafe.Pointer(to))
}

// ringOf is the ring of a mailbox.
func (m *Mail) ringOf(box *C.goccl_mailbox) []byte {
	return unsafe.Slice((*byte)(unsafe.Add(unsafe.Pointer(box), C.sizeof_goccl_mailbox)), m.c.ring)
}

// behindRing is where a mailbox's bounce buffers lie.
func (m *Mail) behindRing(box *C.goccl_mailbox) *C.uint8_t {
	ring := m.ringOf(box)
	return (*C.uint8_t)(unsafe.Add(unsafe.Pointer(unsafe.SliceData(ring)), len(ring)))
}

// pipeOf is a mailbox's pipe; nil if there are none.
func (m *Mail) pipeOf(r *region, box *C.goccl_mailbox) *C.goccl_pipe {
	if r.Pipe == 0 {
		return nil
	}
	return (*C.goccl_pipe)(unsafe.Add(unsafe.Pointer(box), r.pipeAt()))
}

func slotsOf(p *C.goccl_pipe) *C.uint8_t {
	return (*C.uint8_t)(unsafe.Add(unsafe.Pointer(p), C.sizeof_goccl_pipe))
}

// Mapped tells whether packets can be posted to a peer.
func (m *Mail) Mapped(peer int) bool {
	m.locks[peer].Lock()
	defer m.locks[peer].Unlock()
	return m.peers[peer].to != nil
}

// Post puts a packet into a peer's mailbox, whose window is mapped. It tells whether there was room
// for it, and whether the peer looks for packets now.
func (m *Mail) Post(peer int, l Packet, payload []byte) (posted, seen bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if m.closed {
		return false, false
	}
	m.locks[peer].Lock()
	defer m.locks[peer].Unlock()
	arg := [2]C.uint64_t{C.uint64_t(l.Arg[0]), C.uint64_t(l.Arg[1])}
	how := C.goccl_mail_post(m.c, C.uint32_t(peer), C.uint32_t(l.Type), C.uint64_t(l.Seq), &arg[0],
		unsafe.Pointer(unsafe.SliceData(payload)), C.uint32_t(len(payload)))
	return how != C.GOCCL_MAIL_FULL, how == C.GOCCL_MAIL_SEEN
}

// Unread tells whether there are packets in a peer's mailbox that nobody looks for now.
func (m *Mail) Unread(peer int) bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if m.closed {
		return false
	}
	m.locks[peer].Lock()
	defer m.locks[peer].Unlock()
	p := &m.peers[peer]
	return atomic.LoadUint64((*uint64)(&p.to.taken)) != uint64(p.posted) &&
		atomic.LoadUint32((*uint32)(&p.door.pollers)) == 0
}

// AwaitRoom waits until there is room in a peer's mailbox for a packet with so many bytes, or until
// a time.
func (m *Mail) AwaitRoom(peer, bytes int, until time.Duration) {
	m.locks[peer].Lock()
	p, ring := &m.peers[peer], uint64(m.c.ring)
	size := ringSize(uint64(bytes))
	if C.goccl_mail_choose(m.c, C.uint32_t(peer), C.uint32_t(bytes)) != 0 {
		size = ringSize(0)
	}
	end := uint64(p.posted) + size
	if at := uint64(p.posted) % ring; at+size > ring {
		end += ring - at
	}
	m.locks[peer].Unlock()
	if end > ring {
		C.goccl_mail_await_room(m.c, C.int32_t(peer), &p.to.taken, C.uint64_t(end-ring),
			C.uint64_t(until))
	}
}

// Poll counts a caller among those who look for packets without being told, or (-1) no more. A
// caller that leaves looks once more afterwards.
func (m *Mail) Poll(n int) { atomic.AddUint32((*uint32)(&m.c.door.pollers), uint32(n)) }

// What ends a wait for packets.
const (
	Came   = C.GOCCL_MAIL_CAME
	Over   = C.GOCCL_MAIL_DONE // what the caller waits for
	Ran    = C.GOCCL_MAIL_RAN  // a run has left its loop
	Late   = C.GOCCL_MAIL_BLOCKED
	Halted = C.GOCCL_MAIL_STOPPED
)

// Await waits for a packet or for Poke, until done is not 0, or until a time. Meanwhile it carries
// runs on the last lane on, as their Continue would: it ends with the status of the one that has
// left its loop. The caller that sets done calls Ring then. Peer is whose packet it waits
// for; below 0: that of any. Waits: this caller has nothing else to do, and may spin.
func (m *Mail) Await(runs []*Run, done *atomic.Uint32, peer int, waits bool,
	until time.Duration) (why int, run *Run, status Status) {
	states := make([]*C.goccl_run_state, len(runs))
	for i, r := range runs {
		states[i] = r.c
	}
	var which C.uint32_t
	var left C.int
	m.lane.order.Add(1)
	why = int(C.goccl_mail_await(m.c, unsafe.SliceData(states), C.uint32_t(len(states)),
		(*C.uint32_t)(unsafe.Pointer(done)), C.int32_t(peer), C.int(flag(waits)),
		C.uint64_t(max(until, 0)), &which, &left))
	m.lane.order.Load()
	atomic.StoreUint32((*uint32)(&m.c.poke), 0)
	if why == Ran {
		run, status = runs[which], Status(left)
		if status == Done {
			run.c.plan = nil
		}
	}
	return why, run, status
}

// Poke makes a thread that waits for packets look around, now or when one comes to wait.
func (m *Mail) Poke() { m.notify(func() { atomic.StoreUint32((*uint32)(&m.c.poke), 1) }) }

// Ring wakes the threads that wait for packets.
func (m *Mail) Ring() { m.notify(func() {}) }

// notify may come too late, when the window is closed.
func (m *Mail) notify(change func()) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if !m.closed {
		change()
		ring(m.lane.c.bell)
	}
}

// Next is the oldest packet of a peer, if there is one. Take follows, which takes it out and copies
// its payload. Both are called by one goroutine at a time. A peer that shares no memory has none.
func (m *Mail) Next(peer int) (l Packet, ok bool, err error) {
	p := &m.peers[peer]
	if p.from == nil {
		return Packet{}, false, nil
	}
	if held := atomic.LoadUint64((*uint64)(&p.from.posted)) - uint64(p.taken); held == 0 {
		return Packet{}, false, nil
	}
	m.locks[peer].Lock()
	how := C.goccl_mail_pull(m.c, C.uint32_t(peer), &l.shown)
	m.locks[peer].Unlock()
	shown := &l.shown.packet
	l.Type, l.Bytes, l.Seq = uint8(shown.head), uint32(shown.head)>>8, uint64(shown.seq)
	l.Arg = [2]uint64{uint64(shown.arg[0]), uint64(shown.arg[1])}
	switch how {
	case C.GOCCL_MAIL_EMPTY: // now, after a gap
		return Packet{}, false, nil
	case C.GOCCL_MAIL_PACKET:
		return l, true, nil
	case C.GOCCL_MAIL_BAD_LENGTH:
		err = fmt.Errorf("%w: more in a mailbox than it holds, or a part of a packet", ErrProtocol)
	case C.GOCCL_MAIL_BAD_PACKET:
		err = fmt.Errorf("%w: a packet of %d bytes, of which not all are there", ErrProtocol, l.Bytes)
	case C.GOCCL_MAIL_BAD_BOUNCES:
		err = fmt.Errorf("%w: a packet of %d bytes in bounce buffers %#x of %d bytes, which are not the "+
			"sender's or not so many", ErrProtocol, l.Bytes, shown.bounces, m.c.bounce)
	}
	return Packet{}, false, err
}

// Take takes the packet that Next has shown out of the mailbox. Its bounce buffers are this rank's.
func (m *Mail) Take(peer int, l Packet, to []byte) {
	if l.shown.taken != 0 {
		copy(to[:l.Bytes], unsafe.Slice((*byte)(&l.shown.payload[0]), l.Bytes))
		return
	}
	m.locks[peer].Lock()
	defer m.locks[peer].Unlock()
	C.goccl_mail_take(m.c, C.uint32_t(peer), &l.shown.packet,
		unsafe.Pointer(unsafe.SliceData(to[:l.Bytes])))
}

// ring is goccl_ring, entering C only if there is a sleeper: what he waits for has been changed by
// an atomic operation before.
func ring(bell *C.goccl_bell) {
	if atomic.LoadUint32((*uint32)(&bell.sleepers)) > 0 {
		C.goccl_ring(bell)
	}
}

func (m *Mail) free() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	free(unsafe.Pointer(m.c.peers), unsafe.Pointer(m.c))
}
