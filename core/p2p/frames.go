package p2p

import (
	"github.com/goccl/goccl/core/transport"
)

// FrameMail tells that there are packets in the mailboxes.
const FrameMail = transport.QuickBase - 1

// The frames of the protocol, which the reader of a link handles at once. The communicator has
// those before.
const (
	// a send: Seq: its number; Arg: tag and dtype, bytes; payload, if a packet: where it lies
	FrameRTS    = transport.QuickBase + 1 + iota
	FrameCTS    // Seq: number of the RTS; data may flow
	FrameReject // Seq: number of the RTS; payload: the error
	// Arg: bytes of eager sends received so far; number of sends that met a receive
	FrameCredit
	// Seq: number of the RTS, whose data, if any, the receiver has read by itself
	FrameFIN
	// a send that is held: as an RTS, which is forgotten if no receive waits for it
	FrameProbe
	FrameNotNow // Seq: of a probe: no receive waits for it
	// Arg[0]: tag of a receive that nothing matches, to a rank that holds sends back
	FrameWanted
	FrameNoneHeld // no more sends are held
)

// What Flags of a Data frame say.
const (
	// LargeSend: a part of a large send: Seq: number of the RTS; Arg[0]: where it belongs.
	LargeSend = 0xfe
	// EagerSend: a send: Arg[0]: tag and dtype.
	EagerSend = 0xff
)

// Carries tells whether a Data frame is of a send.
func Carries(h transport.Header) bool { return h.Flags >= LargeSend }
