package exec

/*
#include <stdlib.h>
#include "mail.h"
*/
import "C"

import (
	"encoding/binary"
	"fmt"
	"iter"
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"
)

// Mail is how ranks that share memory send each other letters: short messages that are no part of a plan. Each
// rank's window has a mailbox for every peer, a ring of bytes that the peer writes and the rank reads.
//
// What is longer than a few lines travels in shuttles where the sender has enough of them: places that two ranks share, of which each belongs to
// whoever has read it last, at first to who may write into the other's window. So what comes the other way comes in the same lines of memory, which are in the cache of who
// writes them. Who sends more than it gets soon has none left, and the ring has the rest.
//
// A letter lies there until somebody looks. Who waits for one, and meanwhile carries on what runs on the last lane, is
// counted at the rank's door, so that a peer knows whether it must tell the rank of a letter by other means.
// Sleepers wait for the lane's bell.
type Mail struct {
	c     *C.goccl_mail
	lane  *Lane
	ring  int64 // bytes of a mailbox's ring
	mine  []*C.goccl_mailbox
	taken []uint64 // what this rank has published in each of them, where a peer may write to it
	peers []outbox

	shuttle int64 // bytes of a shuttle; 0: there are none

	mu     sync.RWMutex
	closed bool
}

// outbox is a peer's mailbox for this rank.
type outbox struct {
	mu     sync.Mutex
	box    *C.goccl_mailbox // nil until the peer's window is mapped
	door   *C.goccl_mail_door
	bell   *C.goccl_bell
	posted uint64
	writer C.goccl_writer

	// The shuttles in the peer's window, whose numbers come first here, and those in this rank's. A number of the peer's is the same here plus or minus
	// shuttlesEach, which changes one bit.
	theirs, mine unsafe.Pointer
	has          []uint8 // those that belong to this rank; the last was the last to come
}

// Letter is what precedes a letter's payload.
type Letter struct {
	Type  uint8  // not 0
	Bytes uint32 // less than 16 MiB
	Seq   uint64
	Arg   [2]uint64

	shuttles uint32 // in which the payload travels, by the numbers that its sender gives them, one bit each; 0: it follows
}

const (
	letterHeader = 32 // bytes of an encoded Letter
	letterAlign  = 64 // of which its length, with what follows, is a multiple
	// shuttlesEach is the number of shuttles of a pair that lie in the window of each; shuttleMin, from how many bytes on a letter travels in them.
	shuttlesEach = 16
	shuttleMin   = 1 << 10
)

// size is what the letter takes of the ring.
func (l Letter) size() uint64 {
	n := uint64(letterHeader)
	if l.shuttles == 0 {
		n += uint64(l.Bytes)
	}
	return (n + letterAlign - 1) &^ (letterAlign - 1)
}

func (l Letter) encode(b []byte) {
	u := binary.NativeEndian
	u.PutUint32(b, uint32(l.Type)|l.Bytes<<8)
	u.PutUint32(b[4:], l.shuttles)
	u.PutUint64(b[8:], l.Seq)
	u.PutUint64(b[16:], l.Arg[0])
	u.PutUint64(b[24:], l.Arg[1])
}

func decodeLetter(b []byte) Letter {
	u := binary.NativeEndian
	return Letter{Type: uint8(u.Uint32(b)), Bytes: u.Uint32(b) >> 8, shuttles: u.Uint32(b[4:]), Seq: u.Uint64(b[8:]),
		Arg: [2]uint64{u.Uint64(b[16:]), u.Uint64(b[24:])}}
}

// MailboxFor is the size of a mailbox for letters of so many bytes at most: wherever the last one ended, the longest
// fits into an empty one.
func MailboxFor(letter int64) int64 { return 2 * int64(Letter{Bytes: uint32(letter)}.size()) }

// ShuttleFor is the size of a shuttle of which those in one window carry such a letter.
func ShuttleFor(letter int64) int64 {
	return (letter/shuttlesEach + lineBytes - 1) &^ (lineBytes - 1)
}

func newMail(w *Window) (*Mail, error) {
	l, lane := w.Layout, w.lanes[len(w.lanes)-1]
	var a allocator
	c := alloc[C.goccl_mail](&a, 1)
	if a.err != nil {
		return nil, a.err
	}
	c.door = (*C.goccl_mail_door)(w.at(l.door()))
	c.boxes = (*C.uint8_t)(w.at(l.mailbox(0)))
	c.stride = C.uint64_t(l.mailbox(1) - l.mailbox(0))
	c.ranks = C.uint32_t(l.Ranks)
	c.lane = lane.c
	m := &Mail{c: c, lane: lane, ring: l.Mailbox, peers: make([]outbox, l.Ranks), taken: make([]uint64, l.Ranks), shuttle: l.Shuttle}
	for i := range l.Ranks {
		m.mine = append(m.mine, (*C.goccl_mailbox)(w.at(l.mailbox(i))))
		m.peers[i].writer = lane.c.writer
		m.peers[i].mine = m.behindRing(m.mine[i])
		for n := range shuttlesEach {
			m.peers[i].has = append(m.peers[i].has, uint8(n)) // to be used once the peer's window is mapped
		}
	}
	return m, nil
}

func (m *Mail) connect(peer int, door, box unsafe.Pointer) {
	o := &m.peers[peer]
	o.mu.Lock()
	defer o.mu.Unlock()
	o.door, o.box = (*C.goccl_mail_door)(door), (*C.goccl_mailbox)(box)
	o.bell = m.lane.channels[peer].peer_bell
	o.theirs = m.behindRing(o.box)
}

func (m *Mail) ringOf(box *C.goccl_mailbox) []byte {
	at := unsafe.Add(unsafe.Pointer(box), unsafe.Sizeof(C.goccl_mailbox{}))
	return unsafe.Slice((*byte)(at), m.ring)
}

// behindRing is where a mailbox's shuttles lie.
func (m *Mail) behindRing(box *C.goccl_mailbox) unsafe.Pointer {
	return unsafe.Add(unsafe.Pointer(box), int64(unsafe.Sizeof(C.goccl_mailbox{}))+m.ring)
}

// places are the shuttles of a letter, as far as its payload fills them. Of its sender's numbers the lower are at lower, the others at upper.
func (m *Mail) places(l Letter, lower, upper unsafe.Pointer) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		left := int64(l.Bytes)
		for i := range numbers(l.shuttles) {
			at := unsafe.Add(lower, int64(i)*m.shuttle)
			if i >= shuttlesEach {
				at = unsafe.Add(upper, int64(i-shuttlesEach)*m.shuttle)
			}
			if !yield(unsafe.Slice((*byte)(at), min(left, m.shuttle))) {
				return
			}
			left -= m.shuttle
		}
	}
}

// numbers are those of the bits that are set.
func numbers(set uint32) iter.Seq[int] {
	return func(yield func(int) bool) {
		for ; set != 0 && yield(bits.TrailingZeros32(set)); set &= set - 1 {
		}
	}
}

// fill is how many shuttles a payload fills.
func (m *Mail) fill(bytes uint32) int { return int((int64(bytes) + m.shuttle - 1) / m.shuttle) }

// Mapped tells whether letters can be posted to a peer.
func (m *Mail) Mapped(peer int) bool {
	o := &m.peers[peer]
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.box != nil
}

// Post puts a letter into a peer's mailbox, whose window is mapped. It tells whether there was room for it, and
// whether the peer looks for letters now.
func (m *Mail) Post(peer int, l Letter, payload []byte) (posted, seen bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if m.closed {
		return false, false
	}
	o := &m.peers[peer]
	o.mu.Lock()
	defer o.mu.Unlock()
	l.Bytes = uint32(len(payload))
	l.shuttles = m.choose(o, l.Bytes)
	size, bytes := l.size(), m.ringOf(o.box)
	at := o.posted % uint64(m.ring)
	skip := m.skip(o, size)
	if o.posted+skip+size-atomic.LoadUint64((*uint64)(&o.box.taken)) > uint64(m.ring) {
		return false, false
	}
	if skip > 0 {
		Letter{Bytes: uint32(skip - letterHeader)}.encode(bytes[at:])
		at = 0
	}
	l.encode(bytes[at:])
	switch {
	case l.shuttles != 0:
		o.has = o.has[:len(o.has)-bits.OnesCount32(l.shuttles)]
		for place := range m.places(l, o.theirs, o.mine) {
			payload = payload[copy(place, payload):]
		}
	case len(payload) < C.GOCCL_WRITE_MIN:
		copy(bytes[at+letterHeader:], payload)
	default:
		C.goccl_write(&o.writer, unsafe.Pointer(&bytes[at+letterHeader]), unsafe.Pointer(&payload[0]), C.size_t(len(payload)))
	}
	o.posted += skip + size
	// Sequentially consistent, as all of package atomic: either the peer, who counts itself first and then
	// looks, sees the letter, or this rank sees the peer.
	atomic.StoreUint64((*uint64)(&o.box.posted), o.posted)
	seen = atomic.LoadUint32((*uint32)(&o.door.pollers)) > 0
	ring(o.bell)
	return true, seen
}

// choose chooses the shuttles for a payload: those that have come last, which this rank's cache holds; 0 where it goes into the ring.
func (m *Mail) choose(o *outbox, bytes uint32) (shuttles uint32) {
	if m.shuttle == 0 || bytes < shuttleMin {
		return 0
	}
	left := len(o.has) - m.fill(bytes)
	if left < 0 {
		return 0
	}
	for _, i := range o.has[left:] {
		shuttles |= 1 << i
	}
	return shuttles
}

// skip is how many bytes are left free before a letter of a size, because it lies in one piece.
func (m *Mail) skip(o *outbox, size uint64) uint64 {
	if at := o.posted % uint64(m.ring); at+size > uint64(m.ring) {
		return uint64(m.ring) - at
	}
	return 0
}

// Unread tells whether there are letters in a peer's mailbox that nobody looks for now.
func (m *Mail) Unread(peer int) bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if m.closed {
		return false
	}
	o := &m.peers[peer]
	o.mu.Lock()
	defer o.mu.Unlock()
	return atomic.LoadUint64((*uint64)(&o.box.taken)) != o.posted && atomic.LoadUint32((*uint32)(&o.door.pollers)) == 0
}

// AwaitRoom waits until there is room in a peer's mailbox for a letter with so many bytes, or until a time.
func (m *Mail) AwaitRoom(peer, bytes int, until time.Duration) {
	o := &m.peers[peer]
	o.mu.Lock()
	size := Letter{Bytes: uint32(bytes), shuttles: m.choose(o, uint32(bytes))}.size()
	end := o.posted + m.skip(o, size) + size
	o.mu.Unlock()
	if end > uint64(m.ring) {
		C.goccl_mail_await_room(m.c, &o.box.taken, C.uint64_t(end-uint64(m.ring)), C.uint64_t(until))
	}
}

// Poll counts a caller among those who look for letters without being told, or (-1) no more. Who leaves looks once
// more afterwards.
func (m *Mail) Poll(n int) { atomic.AddUint32((*uint32)(&m.c.door.pollers), uint32(n)) }

// What ends a wait for letters.
const (
	Came        = C.GOCCL_MAIL_CAME
	Over        = C.GOCCL_MAIL_DONE    // what the caller waits for
	Ran         = C.GOCCL_MAIL_RAN     // a run has left its loop
	Interrupted = C.GOCCL_MAIL_BLOCKED // or the time is up
	Halted      = C.GOCCL_MAIL_STOPPED
)

// Await waits for a letter or for Poke, until done is not 0, or until a time. Meanwhile it carries runs on the last
// lane on, as their Continue would: it ends with the status of the one that has left its loop. Who sets done calls
// Ring then. Waits: the caller has nothing else to do, and may spin.
func (m *Mail) Await(runs []*Run, done *atomic.Uint32, waits bool, until time.Duration) (why int, run *Run, status Status) {
	states := make([]*C.goccl_run_state, len(runs))
	for i, r := range runs {
		states[i] = r.c
	}
	var which C.uint32_t
	var left C.int
	m.lane.order.Add(1)
	why = int(C.goccl_mail_await(m.c, unsafe.SliceData(states), C.uint32_t(len(states)), (*C.uint32_t)(unsafe.Pointer(done)),
		C.int(flag(waits)), C.uint64_t(max(until, 0)), &which, &left))
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

// Poke makes who waits for letters look around, now or when one comes to wait.
func (m *Mail) Poke() { m.notify(func() { atomic.StoreUint32((*uint32)(&m.c.poke), 1) }) }

// Ring wakes who waits for letters.
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

// Next is the oldest letter of a peer, if there is one. Read copies its payload, and Take takes it out. All three are called by one goroutine at a time.
func (m *Mail) Next(peer int) (l Letter, ok bool, err error) {
	box := m.mine[peer]
	for {
		posted, taken := atomic.LoadUint64((*uint64)(&box.posted)), m.taken[peer]
		held := posted - taken
		if held == 0 {
			return Letter{}, false, nil
		}
		left := min(held, uint64(m.ring)-taken%uint64(m.ring))
		if held > uint64(m.ring) || held%letterAlign != 0 {
			return Letter{}, false, fmt.Errorf("%w: a mailbox of %d bytes with %d in it", ErrProtocol, m.ring, held)
		}
		var header [letterHeader]byte
		copy(header[:], m.unread(peer)) // before it is looked at: it is the peer's to write to
		l = decodeLetter(header[:])
		if l.size() > left {
			return Letter{}, false, fmt.Errorf("%w: a letter of %d bytes, where %d are there", ErrProtocol, l.Bytes, left)
		}
		if l.shuttles != 0 && !m.sent(peer, l) {
			return Letter{}, false, fmt.Errorf("%w: a letter of %d bytes in shuttles %#x of %d bytes, of which some are not the sender's", ErrProtocol, l.Bytes, l.shuttles, m.shuttle)
		}
		if l.Type != 0 {
			return l, true, nil
		}
		m.Take(peer, l)
	}
}

// unread is the part of a peer's mailbox that begins with its oldest letter.
func (m *Mail) unread(peer int) []byte {
	return m.ringOf(m.mine[peer])[m.taken[peer]%uint64(m.ring):]
}

// sent tells whether a letter can have come in its shuttles.
func (m *Mail) sent(peer int, l Letter) bool {
	if m.shuttle == 0 || l.Bytes == 0 || bits.OnesCount32(l.shuttles) != m.fill(l.Bytes) {
		return false
	}
	o := &m.peers[peer]
	o.mu.Lock()
	defer o.mu.Unlock()
	return !slices.ContainsFunc(o.has, func(i uint8) bool { return l.shuttles>>(i^shuttlesEach)&1 != 0 })
}

// Read copies the payload of the letter that Next has shown.
func (m *Mail) Read(peer int, l Letter, to []byte) {
	if l.shuttles == 0 {
		copy(to[:l.Bytes], m.unread(peer)[letterHeader:])
		return
	}
	o := &m.peers[peer]
	o.mu.Lock()
	mine, theirs := o.mine, o.theirs
	o.mu.Unlock()
	for place := range m.places(l, mine, theirs) {
		to = to[copy(to, place):]
	}
}

// Take takes the letter that Next has shown out of the mailbox. Its shuttles are this rank's.
func (m *Mail) Take(peer int, l Letter) {
	o := &m.peers[peer]
	o.mu.Lock()
	defer o.mu.Unlock()
	for i := range numbers(l.shuttles) {
		o.has = append(o.has, uint8(i^shuttlesEach))
	}
	m.taken[peer] += l.size()
	atomic.StoreUint64((*uint64)(&m.mine[peer].taken), m.taken[peer])
	if o.door != nil {
		ring(o.bell)
	}
}

// ring is goccl_ring, entering C only if there is a sleeper: what he waits for has been changed by an atomic
// operation before.
func ring(bell *C.goccl_bell) {
	if atomic.LoadUint32((*uint32)(&bell.sleepers)) > 0 {
		C.goccl_ring(bell)
	}
}

func (m *Mail) free() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	free(unsafe.Pointer(m.c))
}
