// Package plan holds collectives as data.
//
// A plan is one rank's list of steps over its buffers and its channels. It is built by a pure
// function of (collective, rank, size, bytes) and knows nothing of sockets or shared memory, so
// that the same plan is run by package exec, and proved by [Verify] without data.
//
// # Channels
//
// A channel joins this rank to one peer, in both directions. Each direction is a ring of message
// slots in the *receiver's* memory: its inbox. Messages of one direction keep their order.
//
//   - Put writes a message into the peer's next free slot and signals it. It waits while the peer
//     has not yet released enough earlier messages (Params.Slots of them fit).
//   - Wait waits for the next message of the peer. From then on steps may read it as
//     (Inbox, peer, n), where n counts the Waits of this plan on that peer from 0.
//   - Release hands the slot of the oldest message not yet released back to the peer.
//
// A plan releases every message that it waits for, and puts as many messages to a peer as that
// peer's plan waits for; so rings are empty between plans and plans may follow one another freely.
//
// Where both ends map the same memory (Params.Memory), a message's slot also carries something
// back:
//
//   - Combine and Copy may write to messages of the inbox, before they are released.
//   - Reclaim waits until the peer has released message n, counted from 0, of this plan's Puts to
//     it. From then on, until the Put Params.Slots later, steps may read what the peer has left
//     there, as (Outbox, peer, n).
//
// So a result goes back in the very lines in which the contribution came: a line changes hands
// twice, not four times.
//
// Put is a synchronous copy: when the step has ended its source may be overwritten. A sender may
// learn of a release late, as long as at most one release is unknown to it at any time; plans make
// do with Slots-1 slots.
//
// Over a port channel a message may be longer than a slot (Params.Long), if its receiver has posted
// its place before it is put: see Post. Then it goes straight there.
//
// What is for all peers need not be written once for each: PutToAll puts one message to every peer,
// whose payload lies in this rank's stage, memory that they all read. It waits as a Put to each of
// them would, and is waited for, read and released like one; nothing is left in it to be reclaimed.
// A stage holds Params.Slots messages.
//
// Where the blocks of all ranks lie in memory that all of them map ([Direct]), a plan needs no
// slots:
//
//   - Expose tells a peer where blocks of this rank are, for the peer to read (an input) or to
//     write (an output).
//   - Access waits for the peer's Expose. From then on steps may read (PeerIn, peer), and Copy and
//     Combine write (PeerOut, peer), until a Put to that peer tells that this rank is done. Ranks
//     work on places that no other rank touches.
//
// A rank finds out when it runs such a plan whether a peer's blocks are not to be had: then all
// ranks run the plan without it.
//
// Where each rank can read the others' memory, mapped or not (Thresholds.GetMin), what is long need
// not go through slots either:
//
//   - Offer tells a peer where a place of this rank's is, by a message of OfferBytes. The place
//     stays as it is until that message is reclaimed.
//   - Get copies from what a message offers that has been waited for, until it is released.
//
// # Local steps
//
// Copy moves bytes; a copy onto itself (a buffer in place) does nothing. Combine reduces the raw
// inputs of all ranks, given in rank order, in one pass and in the canonical order: the balanced
// binary tree over ranks, aligned at powers of two (of three: (0+1)+2; of six:
// ((0+1)+(2+3))+(4+5)). It also does what is done once to a whole result (the division of an
// average, the rounding of a 16-bit float). So plans move raw inputs and results, not partial sums,
// but for one case: in levels (Params.Radices) and along a tree (BinomialTree) a Combine may be of
// the raw inputs of a block of ranks, which are a subtree, or of what such Combines have left of
// blocks that make up a larger one. Where something is done once (Params.PartialSize), each such
// Combine has a Stage: what is done to each input is done in the first, and what is done to the
// result in the last; between them partial sums may be longer than elements.
//
// # In place
//
// A plan does not know whether the caller's blocks are the same memory, and is right either way,
// where the blocks that may be the same are at exactly the same address: In[i] and Out[i] of
// AllReduce, In and Out of Reduce's root, In and Out[Rank] of AllGather, In[Rank] and Out of
// ReduceScatter, In and Out[Root] of Gather's root, In[Root] and Out of Scatter's root. AllToAll
// has no form in place.
//
// # Being told
//
// Each collective lets every rank hear from the others before it ends (from the root at least,
// and the root from all), if only by a message of zero bytes, so that ranks that call different
// things are all told. Send and Recv are one-way: Send does not wait for its receiver.
package plan

import "fmt"

// Collective names what ranks do together.
type Collective uint8

const (
	AllReduce Collective = iota
	Reduce
	Broadcast
	AllGather
	ReduceScatter
	Gather
	Scatter
	AllToAll
	Barrier
	MonitoredBarrier // not built here: core runs it over control messages
	Send             // as a two-rank plan
	Recv
	Custom // what a program says; it has no form in place
)

var collectiveNames = [...]string{"allreduce", "reduce", "broadcast", "allgather", "reduce_scatter",
	"gather", "scatter", "alltoall", "barrier", "monitored_barrier", "send", "recv",
	"custom"}

func (c Collective) String() string {
	switch c {
	case Split:
		return "split"
	case RegisterProgram:
		return "program_register"
	case UnregisterProgram:
		return "program_unregister"
	case ExchangeMemory:
		return "memory_exchange"
	}
	if int(c) < len(collectiveNames) {
		return collectiveNames[c]
	}
	return fmt.Sprintf("collective(%d)", uint8(c))
}

// Reduces tells whether the collective combines elements with a reduce op.
func (c Collective) Reduces() bool { return c == AllReduce || c == Reduce || c == ReduceScatter }

// Rooted tells whether the collective has a root.
func (c Collective) Rooted() bool {
	return c == Reduce || c == Broadcast || c == Gather || c == Scatter
}

// Space says what a Ref points into.
type Space uint8

const (
	None    Space = iota
	In            // input block Ref.Block
	Out           // output block Ref.Block
	Inbox         // message Ref.Block (counted from 0 by the plan's Waits) of peer Ref.Peer
	Scratch       // this rank's own Plan.ScratchBytes bytes; undefined at the plan's start
	Outbox        // message Ref.Block (counted from 0 by the plan's Puts) to peer Ref.Peer, reclaimed
	PeerIn        // the input block that peer Ref.Peer exposes to this rank
	PeerOut       // the output block
)

// Ref is a place: byte Off of a block of a space. Inputs and outputs are lists of blocks, each with
// an address of its own: one block for allreduce, one a rank for allgather.
type Ref struct {
	Space Space
	Peer  int32 // Inbox, Outbox, PeerIn and PeerOut only
	Block int32
	Off   int64
}

// Op is what a step does.
type Op uint8

const (
	Put      Op = iota // Src[0] (none where Bytes is 0) to Peer, as one message
	Wait               // for the next message of Peer, which must be of Bytes bytes
	Release            // of the oldest unreleased message of Peer
	Copy               // Src[0] to Dst
	Combine            // Src, one a rank or block, in rank order, into Dst and Also, maybe some of Src
	Reclaim            // the message Src[0] to Peer
	Expose             // Src, an input, an output or both, to Peer, which uses Bytes bytes of each
	Access             // Src, what Peer exposes: Bytes bytes of each
	Offer              // Src[0] to Peer, as one message of OfferBytes bytes
	Get                // from what Peer offers by the message Src[0], from Src[0].Off on, to Dst
	PutToAll           // Src[0] to every peer, as one message each, written once
	Need               // until Src[0], of an input, is there
	Final              // of Dst, of an output: nothing writes there any more
)

// Stage is what a Combine makes of what. The values are those of reduce.Stage.
type Stage uint8

const (
	Whole  Stage = iota // of inputs the result, or where there are no stages what is an input again
	First               // of inputs a partial sum
	Middle              // of partial sums a larger one
	Last                // of partial sums the result
)

// OfferBytes is the length of the message of an Offer.
const OfferBytes = 8

// Step is one step of a plan.
type Step struct {
	Op        Op
	Multicast bool  // of a Wait: the message is a PutToAll's
	Stage     Stage // of a Combine
	Peer      int32 // of all but Copy, Combine, PutToAll, Need and Final
	Bytes     int64 // of a Combine: of each source
	// Total is what this direction of this pair carries in the whole operation, in bytes, where
	// only the two ranks know it (alltoall with splits); else 0. It travels with each message and is
	// compared by Wait, so that unequal counts are told at the first message.
	Total int64
	Dst   Ref
	Src   []Ref
	Also  []Ref // Combine only: further destinations, in the inbox or of peers
}

// Plan is one rank's part of a collective.
type Plan struct {
	Algorithm  Algorithm
	Rank, Size int
	Steps      []Step
	// ScratchBytes is how much Scratch the steps use: at most Params.Chunk, or several times that
	// where partial sums are longer than elements, or Params.Scratch.
	ScratchBytes int64
	Fed          bool // inputs come, and outputs are taken, while it runs: see [Plan.Feed]
}

// Params is all that a builder may know. It has more fields than others, as each says another thing
// of the operation or the group, and builders know nothing else.
type Params struct {
	Collective Collective
	Algorithm  Algorithm
	Rank, Size int
	Root       int // Rooted collectives

	// InBytes and OutBytes are the lengths of this rank's blocks, multiples of ElemSize.
	//   AllReduce, Reduce, Broadcast: one block each (AllReduce: or several, reduced one by one;
	//     Broadcast: In is Out, the plan uses Out only;
	//     Reduce: Out is used on the root only, but its length is given on all).
	//   AllGather: In one block of OutBytes[Rank]; Out a block a rank.
	//   ReduceScatter: In a block a rank; Out one block of InBytes[Rank].
	//   Gather: In one block, Out a block a rank (lengths given on all; used on the root only).
	//   Scatter: In a block a rank (lengths given on all; used on the root only), Out one block.
	//   AllToAll: a block a rank each.
	//   Barrier: none.
	//   Send: In one block, Root is the peer. Recv: Out one block, Root is the peer.
	//   Custom: one block each.
	InBytes, OutBytes []int64
	ElemSize          int64 // a divisor of 64
	// PartialSize is the length of an element of a partial sum where that is something else than an
	// element (16-bit floats are summed as float32, averages divided in the end): a multiple of
	// ElemSize, of which 64 is one. 0: partial sums are elements like any.
	PartialSize int64

	// Chunk is the most bytes one message carries that goes through a slot: a multiple of 64, at
	// least 64.
	Chunk int64
	// Long is the most bytes that a message carries whose place its receiver has posted for certain
	// before it is put, to or from those ranks that Ports says are joined to this one by a port
	// channel; 0: there is none such.
	Long  int64
	Ports []bool
	Slots int // how many messages a direction of a channel holds: at least 2; 4 give full overlap
	// Ahead is by how many rounds puts may run ahead of waits, where slots allow: 0 means 1, which is
	// enough where both ends share memory. Where a message has a way to go, more hide that way.
	Ahead int

	// Scratch is the most scratch memory that a plan of a program may use. It is no limit of what
	// Build uses.
	Scratch int64
	// AnyOrder tells that operands may be combined in another than the canonical order. Then a program
	// may combine any that have no rank in common.
	AnyOrder bool

	// Memory tells that the channels of all ranks are memory channels.
	Memory bool
	// Radices are those of the levels in which RecursiveMultiplying and Hierarchical exchange, that of
	// the ranks nearest to each other first; where they reduce, what some ranks have reduced may be
	// reduced further. All but the last are powers of two greater than 1, and the last is Size divided
	// by their product, rounded up, which is more than 1.
	Radices []int
	// Order is the rank that has each place, where a collective that only moves data goes by places
	// in its stead: so that ranks near each other are in succession; nil: rank i has place i.
	Order []int
	// Oversubscribed tells that on some host ranks outnumber the CPUs.
	Oversubscribed bool
	// Schedule is of AllToAll.
	Schedule Schedule
	// InPlaceOfDirect tells that ranks run the plan that cannot run the direct one, which is tried
	// first.
	InPlaceOfDirect bool

	Thresholds
}

// Thresholds says where, within an algorithm, single blocks or pairs are treated in another way, in
// bytes of a block; of AllToAll, of what a pair exchanges, in the larger direction.
type Thresholds struct {
	// OneShotMax is up to where a block of AllReduce is not sliced: it is sent to every rank by
	// itself, or in levels to twins.
	OneShotMax int64
	// MulticastMin is from where on Multicast writes a block of AllGather once for all.
	MulticastMin int64
	// SwapMin is from where on what two ranks send each other, as much in either direction, goes to
	// and fro in the same slots: a block of AllToAll, of AllGather where it is not multicast, and
	// among two ranks of ReduceScatter; 0: never. It has no effect but over memory channels.
	SwapMin int64
	// PipelineMin is from where on what goes to one peer is cut into several messages even if it
	// fits into one, so that writing one, reading another and combining a third go on at once; 0:
	// never.
	PipelineMin int64
	// WindowMin is from where on AllToAll by size exchanges blocks in a window of Window peers (0:
	// all); 0: never. It must be 0 where all ranks share memory.
	WindowMin int64
	Window    int
	// GetMin is from where on what AllToAll and Scatter send to one peer is got by it from where it
	// lies; 0: never. It needs Memory, and that each rank can read the memory of those who send to it.
	GetMin int64
}
