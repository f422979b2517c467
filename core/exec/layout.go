package exec

// #include "exec.h"
// #include "mail.h"
import "C"

import (
	"slices"
	"unsafe"
)

const (
	// MessageHeader is the length of what precedes each message's payload in its slot.
	MessageHeader = int64(unsafe.Sizeof(C.goccl_line{}))

	lineBytes = 128 // adjacent cache lines are fetched in pairs
	bellSize  = lineBytes
	// apart is how far two inboxes are from having the same place in a page. What a rank puts to a
	// peer would have the place of what it waits for from it, and CPUs compare a load with the stores
	// before it by that: it would wait until these are done, which takes as long as it takes a line of
	// memory to come from the other CPU. More than what small messages are long.
	apart = 9 * lineBytes
)

// Layout is the shape of the windows of a communicator.
type Layout struct {
	Ranks int
	Lanes int
	Slots int   // messages a direction of a channel holds
	Chunk int64 // the most bytes a message carries, where nothing else is said
	// LaterChunk is the same on all lanes but the first; 0: it is Chunk there, too.
	LaterChunk int64
	// Near are the peers of a rank, in order, with which it exchanges messages of up to NearChunk
	// bytes on the first lane. A rank that is near to another one has that one near, too. nil: no rank
	// has such peers.
	Near      func(rank int) []int
	NearChunk int64
	// Sharing are the ranks that share memory with this one, itself among them, in order; nil: all.
	// Memory is shared by all of them with all of them.
	Sharing []int
	Mailbox int64 // bytes of the ring of a peer's mailbox, by MailboxFor; 0: there are none
	// bytes of each of a mailbox's bounce buffers, see [Mail]; a multiple of a line; 0: there are none
	Bounce int64
	// Pipe is the bytes of the slots of a pair's pipes together, see pipe.h: a power of two, of at
	// least one slot; 0: there are none.
	Pipe int64
}

// region is the layout of memory through which some ranks reach one of them, which owns it.
type region struct {
	*Layout
	ranks  []int // that have a place each, in order; nil: all
	near   []int // of them those that are near to the owner, in order
	lanes  int
	shared bool // peers write to it: see apart
}

// regions are the region of a rank's window, which the peers that share memory with it map, and
// that of private memory, which the readers of its links fill. Messages of links come on the first
// lane alone.
func (l *Layout) regions(owner int) (mapped, private region) {
	mapped = region{Layout: l, ranks: l.Sharing, lanes: l.Lanes, shared: true}
	private = region{Layout: l, lanes: 1}
	if l.Near == nil {
		return mapped, private
	}
	for _, peer := range l.Near(owner) {
		if l.shares(peer) {
			mapped.near = append(mapped.near, peer)
		} else {
			private.near = append(private.near, peer)
		}
	}
	return mapped, private
}

// chunk is the most bytes of a message on a lane between ranks that are not near.
func (l *Layout) chunk(lane int) int64 {
	if lane > 0 && l.LaterChunk > 0 {
		return l.LaterChunk
	}
	return l.Chunk
}

func (l *Layout) shares(peer int) bool {
	if l.Sharing == nil {
		return true
	}
	_, shares := slices.BinarySearch(l.Sharing, peer)
	return shares
}

// n is how many ranks have a place.
func (r *region) n() int {
	if r.ranks == nil {
		return r.Ranks
	}
	return len(r.ranks)
}

// mails tells whether there are mailboxes.
func (r *region) mails() bool { return r.shared && r.Mailbox > 0 }

// position is which of the region's ranks one is.
func (r *region) position(rank int) int {
	if r.ranks == nil {
		return rank
	}
	at, _ := slices.BinarySearch(r.ranks, rank)
	return at
}

func (r *region) bell(lane int) int64 {
	if lane == 0 {
		return 0
	}
	return r.laneSize(0) + int64(lane-1)*r.laneSize(1)
}
func (r *region) released(lane, rank int) int64 {
	return r.bell(lane) + bellSize + int64(r.position(rank))*lineBytes
}

// inbox is where the inbox of a rank begins, and how far its slots are from each other.
func (r *region) inbox(lane, rank int) (at, stride int64) {
	if i, near := slices.BinarySearch(r.near, rank); near && lane == 0 {
		return r.nearInboxes() + int64(i)*r.inboxSize(r.NearChunk), slotSize(r.NearChunk)
	}
	chunk := r.chunk(lane)
	return r.inboxes(lane) + int64(r.position(rank))*r.inboxSize(chunk), slotSize(chunk)
}

func (r *region) inboxes(lane int) int64 { return r.bell(lane) + r.counters() }

// stage is where the stage begins: an inbox for all ranks.
func (r *region) stage(lane int) int64 {
	return r.inboxes(lane) + int64(r.n())*r.inboxSize(r.chunk(lane))
}
func (r *region) counters() int64 { return pageRound(bellSize + int64(r.n())*lineBytes) }
func (r *region) inboxSize(chunk int64) int64 {
	size := int64(r.Slots) * slotSize(chunk)
	if r.shared {
		size = pageRound(size) + apart
	}
	return size
}
func (r *region) laneSize(lane int) int64 {
	return r.counters() + pageRound(int64(r.n()+1)*r.inboxSize(r.chunk(lane)))
}
func (r *region) nearInboxes() int64 { return r.bell(r.lanes) }

func (r *region) door() int64 {
	return r.nearInboxes() + pageRound(int64(len(r.near))*r.inboxSize(r.NearChunk))
}
func (r *region) mailboxSize() int64 {
	return r.pipeAt() + r.pipeSize()
}

// pipeAt is where the pipe lies in a mailbox.
func (r *region) pipeAt() int64 {
	return int64(unsafe.Sizeof(C.goccl_mailbox{})) + r.Mailbox + bouncesEach*r.Bounce
}
func (r *region) pipeSize() int64 {
	if r.Pipe == 0 {
		return 0
	}
	return int64(unsafe.Sizeof(C.goccl_pipe{})) + r.Pipe
}
func (r *region) mailboxes() int64 { return r.door() + lineBytes }
func (r *region) mailboxOf(rank int) int64 {
	return r.mailboxes() + int64(r.position(rank))*r.mailboxSize()
}

// size is how long the region is in bytes of address space; memory is used only where messages
// went.
func (r *region) size() int64 {
	if !r.mails() {
		return r.door()
	}
	return pageRound(r.mailboxes() + int64(r.n())*r.mailboxSize())
}

// Size is how many bytes of address space a rank's window takes, and its private memory.
func (l *Layout) Size(rank int) (window, private int64) {
	m, p := l.regions(rank)
	if l.Sharing == nil {
		return m.size(), 0
	}
	return m.size(), p.size()
}

// slotSize is how far two slots for messages of so many bytes are from each other.
func slotSize(chunk int64) int64 { return MessageHeader + chunk }

func pageRound(n int64) int64 { return (n + 4095) &^ 4095 }
