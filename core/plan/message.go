package plan

import "math"

// Message says what a rank does: it goes with the data of each collective. Ranks that do the same
// have equal messages.
type Message struct {
	Group, Sequence uint64
	Count, Digest   uint64
	Epoch           uint32
	Root            int32
	Collective      uint8
	DType           uint8
	Op              uint8
	Schedule        uint8
}

// These stand in messages for the collectives that a call is made of: peers and errors name what
// was called, and a peer's own collective never meets it.
const (
	Split Collective = math.MaxUint8 - 1 - iota
	RegisterProgram
	UnregisterProgram
	ExchangeMemory
)

// Name is the name of the collective, as in "allreduce".
func (m Message) Name() string { return Collective(m.Collective).String() }
