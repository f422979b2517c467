package channel

import (
	"github.com/goccl/goccl/core/transport"
)

// The frames of channels. The epoch and package p2p have others.
const (
	// Handled in order, each on the goroutine of its link.

	// Seq: the sender's id of its end; Flags: openPort, or 0; Arg[0]: tag; Arg[1]: where its semaphore
	// lies in its arena; payload: the Owner of the sender's memory.
	frameOpen    = transport.ControlBase + 64 + iota
	frameClose   // Seq: the sender's id of its end
	frameClosed  // Seq: the receiver's id of an end that nobody stores to any more
	frameDrop    // Seq: of the sender's memory
	frameDropped // Seq: of the receiver's, that nobody of the sender stores to any more

	quickFirst = transport.QuickBase + 64
)

const (
	// Handled by the reader of the link. Seq: the receiver's id of its end.

	frameSignal  = quickFirst + iota // Arg[0]: how many
	frameGet                         // Arg: of the receiver's memory, offset; payload: number, bytes
	frameNoGet                       // Seq: number of a get whose memory is no more
	frameFlush                       // Arg: number, the sender's id of its end
	frameFlushed                     // Arg: the same; of memory that was no more when a put came, or 0
	quickEnd
)

// openPort in Flags of an OPEN makes the channel a port channel on both sides: a port channel's
// waiters read links, and hear no bell.
const openPort = 1

// What Flags of a Data frame say.
const (
	// gotData is a piece of a get: Seq: its number; Arg[0]: where it belongs.
	gotData = 0xfc
	// putData is a piece of a put: Arg: of the receiver's memory, and in its upper half the signals
	// that come with it; offset.
	putData = 0xfd
)

// pieceMost is the most bytes of a piece, so that others get their turn on the link.
const pieceMost = 1 << 20

// Carries reports whether a Data frame is of a channel.
func Carries(h transport.Header) bool { return h.Flags == gotData || h.Flags == putData }

// Takes reports whether a control frame is of a channel.
func Takes(h transport.Header) bool {
	return h.Type >= frameOpen && h.Type <= frameDropped || h.Type >= quickFirst && h.Type < quickEnd
}
