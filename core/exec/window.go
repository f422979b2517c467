// Package exec runs plans.
//
// A [Window] is the memory through which a rank's peers reach it: for every peer a counter and an
// inbox, a ring of message slots; and a stage, such a ring that all peers read. It is a sealed
// memfd, handed to peers on the same host as a descriptor and mapped by them; or, where no peer
// shares memory with this rank, private memory that the readers of this rank's links fill. Either
// way a plan sees the same layout.
//
// A window has lanes, so that plans on different lanes run at the same time; plans on one lane run
// one after the other in the same order on all ranks. [Run] runs a plan's steps in one loop in C
// and leaves it only for what Go must do: connect a channel, or carry a message to a port channel.
// Beside the lanes it has mailboxes: see [Mail].
package exec

/*
#cgo CFLAGS: -O3 -Wall -Wextra -fvisibility=hidden
#include <stdlib.h>
#include "exec.h"
#include "mail.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Waiting says how long a wait polls before it sleeps.
type Waiting struct {
	// Spin is how long a caller with nothing else to do polls with pauses, on memory channels, at
	// most; 0: ranks share CPUs.
	Spin      time.Duration
	Yields    int // polls that give the CPU away, on memory channels
	PortPolls int // polls that give the CPU away, on port channels
}

// pollMost is the most bytes that are polled for: a thread that waits for more sleeps until it is
// there, and leaves the CPU to others. Up to 1 MiB polling is the faster by up to 1.4 times between
// two ranks of a host.
const pollMost = 1 << 20

// PortPollsFor is how often a wait for so many bytes polls on port channels.
func (w Waiting) PortPollsFor(bytes uint64) int {
	if bytes > pollMost {
		return 0
	}
	return w.PortPolls
}

// Window is a rank's own window, and its view of its peers' windows.
type Window struct {
	Layout  Layout
	mapped  region // of mem
	private region // of inboxes; where all ranks share memory there are none
	fd      int
	mem     []byte
	inboxes []byte
	peers   [][]byte
	lanes   []*Lane
	mail    *Mail
	news    *C.uint32_t
}

// Lane is a set of channels, one to each peer, over a part of the windows.
type Lane struct {
	window     *Window
	c          *C.goccl_lane
	channels   []C.goccl_connection
	placements []C.goccl_placement // Layout.Slots a channel
	adverts    []C.goccl_advert    // likewise
	// The loop and the readers are ordered by their C atomics; Go's memory model, and its race
	// detector, hear of it through this one.
	order atomic.Uint32
}

// NewWindow makes the window of a rank. A shared one can be handed to processes of this host.
func NewWindow(l Layout, rank int, shared bool, w Waiting) (*Window, error) {
	win := &Window{Layout: l, fd: -1, peers: make([][]byte, l.Ranks)}
	win.mapped, win.private = win.Layout.regions(rank)
	size := int(win.mapped.size())
	var err error
	if shared {
		if win.fd, err = newMemfd("goccl-window", "a window", size); err != nil {
			return nil, err
		}
		win.mem, err = mapMemfd(win.fd, size)
	} else {
		win.mem, err = mapPrivate(size)
	}
	if err == nil && l.Sharing != nil {
		size = int(win.private.size())
		win.inboxes, err = mapPrivate(size)
	}
	if err != nil {
		win.Close()
		return nil, fmt.Errorf("a window of %d bytes: %w", size, err)
	}
	_, _ = placeHere(win.mem), placeHere(win.inboxes)
	if err := win.furnish(w); err != nil {
		win.Close()
		return nil, fmt.Errorf("a window: %w", err)
	}
	return win, nil
}

// mapPrivate returns memory of this process, which takes up what is used of it.
func mapPrivate(size int) ([]byte, error) {
	return unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
}

// furnish makes what the window has beside its memory.
func (w *Window) furnish(wait Waiting) error {
	var a allocator
	if w.news = alloc[C.uint32_t](&a, 1); a.err != nil {
		return a.err
	}
	for i := range w.Layout.Lanes {
		lane, err := newLane(w, i, wait)
		if err != nil {
			return err
		}
		w.lanes = append(w.lanes, lane)
	}
	if w.Layout.Mailbox == 0 {
		return nil
	}
	var err error
	w.mail, err = newMail(w)
	return err
}

func newLane(w *Window, index int, wait Waiting) (*Lane, error) {
	l := w.Layout
	var a allocator
	c := alloc[C.goccl_lane](&a, 1)
	channels := alloc[C.goccl_connection](&a, l.Ranks)
	placements := alloc[C.goccl_placement](&a, l.Ranks*l.Slots)
	adverts := alloc[C.goccl_advert](&a, l.Ranks*l.Slots)
	if a.err != nil {
		free(unsafe.Pointer(c), unsafe.Pointer(channels), unsafe.Pointer(placements),
			unsafe.Pointer(adverts))
		return nil, a.err
	}
	c.channels = channels
	c.bell = (*C.goccl_bell)(w.at(w.mapped.bell(index)))
	c.stage = (*C.uint8_t)(w.at(w.mapped.stage(index)))
	c.news = w.news
	c.ranks, c.slots = C.uint32_t(l.Ranks), C.uint64_t(l.Slots)
	c.stage_stride = C.uint64_t(slotSize(l.chunk(index)))
	c.bell.naps = flag(wait.Spin > 0) // a nap costs a rank that shares its CPU more than a fence does
	spin, yields := C.uint32_t(wait.Spin), C.uint32_t(wait.Yields)
	c.patience = C.goccl_patience{spin_most: spin, spin: spin, yields_most: yields, yields: yields}
	if wait.Spin == 0 {
		c.writer.limit = C.GOCCL_WRITE_LIMIT
	}
	lane := &Lane{window: w, c: c, channels: unsafe.Slice(channels, l.Ranks),
		placements: unsafe.Slice(placements, l.Ranks*l.Slots),
		adverts:    unsafe.Slice(adverts, l.Ranks*l.Slots)}
	for peer := range lane.channels {
		ch := &lane.channels[peer]
		ch.placements = &lane.placements[peer*l.Slots]
		ch.adverts = &lane.adverts[peer*l.Slots]
		ch.writer = c.writer
		own, mem := &w.mapped, w.mem
		if !l.shares(peer) {
			if own, mem = &w.private, w.inboxes; index >= own.lanes {
				continue
			}
		}
		ch.released = (*C.uint64_t)(unsafe.Pointer(&mem[own.released(index, peer)]))
		at, stride := own.inbox(index, peer)
		ch.inbox, ch.stride = (*C.uint8_t)(unsafe.Pointer(&mem[at])), C.uint64_t(stride)
	}
	return lane, nil
}

func (w *Window) at(offset int64) unsafe.Pointer { return unsafe.Pointer(&w.mem[offset]) }

// FD is the descriptor to hand to peers, which stays the window's; -1 if it is not shared.
func (w *Window) FD() int { return w.fd }

// Memory is where the word lies that Stopped tells, and what messages of links come into: apart,
// for what lies between is none of a peer's business.
func (w *Window) Memory() (word, inboxes []byte) {
	return w.mem[:w.mapped.counters()], w.inboxes
}

// Stopped is a word among a lane's counters, which Stop sets: peers that have read this rank's
// memory look there afterwards.
func (w *Window) Stopped(lane int) unsafe.Pointer {
	return unsafe.Pointer(&w.lanes[lane].c.bell.stopped)
}

// Lane returns a lane by its number.
func (w *Window) Lane(i int) *Lane { return w.lanes[i] }

// Mail is the packets between this rank and its peers; nil if the layout has no mailboxes.
func (w *Window) Mail() *Mail { return w.mail }

// ConnectMemory maps the window of a peer and makes memory channels to it; rank is this rank's
// number, under which the peer knows it. It takes the descriptor over.
func (w *Window) ConnectMemory(rank, peer, fd int) error {
	defer unix.Close(fd)
	l, _ := w.Layout.regions(peer)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fmt.Errorf("window of rank %d: fstat: %w", peer, err)
	}
	if size := l.size(); st.Size != size {
		return fmt.Errorf("window of rank %d has %d bytes, expected %d", peer, st.Size, size)
	}
	if err := checkSealed(fd); err != nil {
		return fmt.Errorf("window of rank %d: %w", peer, err)
	}
	mem, err := mapMemfd(fd, int(st.Size))
	if err != nil {
		return fmt.Errorf("window of rank %d: %w", peer, err)
	}
	w.peers[peer] = mem
	for i, lane := range w.lanes {
		ch := &lane.channels[peer]
		ch.peer_released = (*C.uint64_t)(unsafe.Pointer(&mem[l.released(i, rank)]))
		inbox, _ := l.inbox(i, rank)
		ch.peer_inbox = (*C.uint8_t)(unsafe.Pointer(&mem[inbox]))
		ch.peer_stage = (*C.uint8_t)(unsafe.Pointer(&mem[l.stage(i)]))
		ch.peer_bell = (*C.goccl_bell)(unsafe.Pointer(&mem[l.bell(i)]))
	}
	w.setState(peer, C.GOCCL_MEMORY)
	w.ring()
	if w.mail != nil { // last: a thread that can post can also run plans
		w.mail.connect(rank, peer, &l, unsafe.Pointer(&mem[l.door()]),
			unsafe.Pointer(&mem[l.mailboxOf(rank)]))
	}
	return nil
}

// UseArena tells where this rank's shareable memory lies: before any run.
func (w *Window) UseArena(mem []byte) {
	for _, lane := range w.lanes {
		lane.c.arena = arenaOf(mem)
	}
}

// ConnectArena tells where a peer's shareable memory is mapped: before ConnectMemory.
func (w *Window) ConnectArena(peer int, mem []byte) {
	for _, lane := range w.lanes {
		lane.channels[peer].arena = arenaOf(mem)
	}
}

// UseProcess tells that the memory of a peer's process can be read: before any run.
func (w *Window) UseProcess(peer int, p Process) {
	for _, lane := range w.lanes {
		lane.channels[peer].pid, lane.channels[peer].pidfd = C.int32_t(p.PID), C.int32_t(p.FD)
	}
}

// Reads tells whether a peer's memory can be read.
func (w *Window) Reads(peer int) bool { return w.lanes[0].channels[peer].pid != 0 }

func arenaOf(mem []byte) C.goccl_arena {
	return C.goccl_arena{base: (*C.uint8_t)(unsafe.Pointer(unsafe.SliceData(mem))),
		size: C.uint64_t(len(mem))}
}

// ConnectPort makes the channels to a peer port channels.
func (w *Window) ConnectPort(peer int) {
	w.setState(peer, C.GOCCL_PORT)
	w.ring()
}

// Leave marks a peer as gone. What it sent can still be read; a run that needs more of it, or is
// still to send it something, ends with [Gone], whatever it is waiting for.
func (w *Window) Leave(peer int) {
	w.setState(peer, C.GOCCL_GONE)
	atomic.AddUint32((*uint32)(w.news), C.GOCCL_DEPARTED)
	w.ring()
}

func (w *Window) setState(peer int, state uint32) {
	for _, lane := range w.lanes {
		atomic.StoreUint32((*uint32)(&lane.channels[peer].state), state)
	}
}

func (w *Window) ring() {
	for _, lane := range w.lanes {
		C.goccl_ring(lane.c.bell)
	}
}

// Stop makes every wait on the window end, now and later. Peers take nothing for good that they
// read of this rank's memory from now on.
func (w *Window) Stop() {
	atomic.OrUint32((*uint32)(w.news), C.GOCCL_STOPPED)
	for _, lane := range w.lanes {
		C.goccl_stop(lane.c.bell)
	}
}

// Close frees the window. Nothing may run on it any more.
func (w *Window) Close() {
	if w.mail != nil {
		w.mail.free()
	}
	for _, lane := range w.lanes {
		free(unsafe.Pointer(&lane.placements[0]), unsafe.Pointer(&lane.adverts[0]),
			unsafe.Pointer(lane.c.channels), unsafe.Pointer(lane.c))
	}
	w.lanes = nil
	free(unsafe.Pointer(w.news))
	w.news = nil
	for _, mem := range append(w.peers, w.mem, w.inboxes) {
		if mem != nil {
			_ = unix.Munmap(mem) // fails only for what was not mapped
		}
	}
	w.peers, w.mem, w.inboxes = nil, nil, nil
	if w.fd >= 0 {
		unix.Close(w.fd)
		w.fd = -1
	}
}

// ErrProtocol tells that a peer sent what no correct peer sends.
var ErrProtocol = errors.New("protocol violation")

// Slot returns where message number n of a peer on a port channel goes, size bytes in all: its
// header, and then its payload, at the place that a run has posted for it or else in the inbox,
// unless it is too long for that.
func (l *Lane) Slot(peer int, n uint64, size int) (header, payload []byte, err error) {
	ch := &l.channels[peer]
	arrived := atomic.LoadUint64((*uint64)(&ch.arrived))
	freed := atomic.LoadUint64((*uint64)(&ch.freed))
	layout := l.window.Layout
	switch {
	case n != arrived:
		return nil, nil, fmt.Errorf("%w: message %d where %d was due", ErrProtocol, n, arrived)
	case arrived-freed >= uint64(layout.Slots):
		return nil, nil, fmt.Errorf("%w: more than %d messages in flight", ErrProtocol, layout.Slots)
	case int64(size) < MessageHeader:
		return nil, nil, fmt.Errorf("%w: message of %d bytes, %d are its header", ErrProtocol, size,
			MessageHeader)
	}
	bytes := int64(size) - MessageHeader
	at := unsafe.Add(unsafe.Pointer(ch.inbox), int64(n%uint64(layout.Slots))*int64(ch.stride))
	header = unsafe.Slice((*byte)(at), MessageHeader)
	l.order.Load()
	p := l.placement(peer, n)
	state := (*uint64)(&p.state)
	// A placement of another length is left alone: the run will find the mismatch in the header.
	switch {
	case atomic.LoadUint64(state) == posted(n) && int64(p.bytes) == bytes &&
		atomic.CompareAndSwapUint64(state, posted(n), taken(n)):
		payload = unsafe.Slice((*byte)(unsafe.Pointer(p.to)), bytes)
	case int64(size) <= int64(ch.stride):
		payload = unsafe.Slice((*byte)(unsafe.Add(at, MessageHeader)), bytes)
	// the placement may have been withdrawn
	case atomic.LoadUint32((*uint32)(l.window.news))&C.GOCCL_STOPPED != 0:
		payload = make([]byte, bytes)
	default:
		return nil, nil,
			fmt.Errorf("%w: message of %d bytes, for which no place is posted; allowed are %d", ErrProtocol,
				size, int64(ch.stride))
	}
	return header, payload, nil
}

func (l *Lane) placement(peer int, n uint64) *C.goccl_placement {
	slots := l.window.Layout.Slots
	return &l.placements[peer*slots+int(n%uint64(slots))]
}

// The states of a placement, as in exec.h.
func posted(n uint64) uint64 { return (n + 1) * 2 }
func taken(n uint64) uint64  { return (n+1)*2 + 1 }

// Arrived tells the lane that the message last asked a Slot for is in place.
func (l *Lane) Arrived(peer int) {
	l.order.Add(1)
	atomic.AddUint64((*uint64)(&l.channels[peer].arrived), 1)
	C.goccl_ring(l.c.bell)
}

// Dropped tells the lane that message n, which was last asked a Slot for, will not be put in place.
func (l *Lane) Dropped(peer int, n uint64) {
	l.order.Add(1)
	atomic.CompareAndSwapUint64((*uint64)(&l.placement(peer, n).state), taken(n), 0)
	C.goccl_ring(l.c.bell)
}

// Released takes over the peer's count of released messages. An older count than the last is no
// news: counts also come with messages, which may have been overtaken.
func (l *Lane) Released(peer int, n uint64) error {
	ch := &l.channels[peer]
	old, sent := atomic.LoadUint64((*uint64)(ch.released)), atomic.LoadUint64((*uint64)(&ch.sent))
	if n > sent {
		return fmt.Errorf("%w: %d messages released where %d were sent", ErrProtocol, n, sent)
	}
	if n > old {
		atomic.StoreUint64((*uint64)(ch.released), n)
		C.goccl_ring(l.c.bell)
	}
	return nil
}

// Freed is the number of the peer's messages that this rank has released.
func (l *Lane) Freed(peer int) uint64 {
	return atomic.LoadUint64((*uint64)(&l.channels[peer].freed))
}

// Sent is the number of messages put to a peer.
func (l *Lane) Sent(peer int) uint64 { return uint64(l.channels[peer].sent) }

// MarkSent counts a message that is carried over a port channel: before it is, for the peer's
// release may be here before the call that carries it has returned.
func (l *Lane) MarkSent(peer int) {
	atomic.AddUint64((*uint64)(&l.channels[peer].sent), 1)
}

// MarkUnsent takes the last MarkSent back: the message was not carried after all.
func (l *Lane) MarkUnsent(peer int) {
	atomic.AddUint64((*uint64)(&l.channels[peer].sent), ^uint64(0))
}

// Fetched tells the lane that a peer has acked the oldest buffer that is advertised to it.
func (l *Lane) Fetched(peer int) {
	l.order.Add(1)
	atomic.AddUint64((*uint64)(&l.channels[peer].fetched), 1)
	C.goccl_ring(l.c.bell)
}
