package goccl

import (
	"context"
	"math"
	"unsafe"

	"github.com/goccl/goccl/core"
	"github.com/goccl/goccl/core/fault"
)

// Access is what peers may do to memory.
type Access int

// The rights to memory, which are added up.
const (
	RemoteRead  = Access(core.RemoteRead)  // by [Get]
	RemoteWrite = Access(core.RemoteWrite) // by [Put]
)

// Memory is shareable memory that peers may reach: registered here, or imported from a peer. Its
// methods may be called from any goroutine.
type Memory struct {
	core *core.Memory
	comm *core.Comm
}

// Register lets peers read or write s, which is memory of [Alloc] or a part of that. It stays the
// caller's, and is not allocated again before [Memory.Deregister], also where it is freed.
func Register[T Element](c *Comm, s []T, access Access) (*Memory, error) {
	var element T
	bytes := uint64(len(s)) * uint64(unsafe.Sizeof(element))
	m, err := c.core.Register(unsafe.Pointer(unsafe.SliceData(s)), bytes, int(access))
	return wrapMemory(c, "register", m, err)
}

func wrapMemory(c *Comm, operation string, m *core.Memory, err error) (*Memory, error) {
	if err != nil {
		return nil, public(context.Background(), operation, err)
	}
	return &Memory{m, c.core}, nil
}

// Bytes is the memory's size.
func (m *Memory) Bytes() uint64 { return m.core.Bytes() }

// Export returns a handle of 64 bytes by which members of the present epoch import the memory. It
// may be sent to them in any way.
func (m *Memory) Export() ([]byte, error) {
	b, err := m.comm.Export(m.core)
	if err != nil {
		return nil, public(context.Background(), "export", err)
	}
	return b[:], nil
}

// Deregister ends what [Register], [Comm.Import] or [Comm.Exchange] has begun. It waits for nobody:
// puts that are under way may still write to the memory, but nothing else is allocated there before
// they have ended. From then on peers get [ErrInvalidHandle], over a port channel at their next
// flush.
func (m *Memory) Deregister() { m.core.Deregister() }

// Map returns the memory as it is mapped in this process; ErrUnsupported where no memory is shared,
// as on another host. It may be used as long as it is registered here and at its owner. What is
// left of it that is no whole element is not in the slice.
func Map[T Element](m *Memory) ([]T, error) {
	p, err := m.comm.MapMemory(m.core)
	if err != nil {
		return nil, public(context.Background(), "map", err)
	}
	var element T
	return unsafe.Slice((*T)(p), m.Bytes()/uint64(unsafe.Sizeof(element))), nil
}

// Import makes memory known here that a rank has exported. It waits for nobody.
func (c *Comm) Import(rank int, handle []byte) (*Memory, error) {
	m, err := c.core.Import(rank, handle)
	return wrapMemory(c, "import", m, err)
}

// Exchange gives each rank's memory to all, by rank: nil of one that gives nil, and m itself of
// this one. All ranks call it. If one is refused, none has any, and the group goes on: the others
// get [ErrMismatch].
func (c *Comm) Exchange(ctx context.Context, m *Memory) ([]*Memory, error) {
	var mine *core.Memory
	var refused error
	switch {
	case m == nil:
	case m.comm != c.core:
		refused = fault.Errorf(ErrInvalidArgument, "exchange: m was registered with another communicator")
	default:
		mine = m.core
	}
	all, err := c.core.Exchange(ctx, mine, refused)
	if err != nil {
		return nil, public(ctx, "exchange", err)
	}
	memories := make([]*Memory, len(all))
	for rank, its := range all {
		switch {
		case its == nil:
		case its == mine:
			memories[rank] = m
		default:
			memories[rank] = &Memory{its, c.core}
		}
	}
	return memories, nil
}

// ChannelKind is how an end of a channel reaches the other.
type ChannelKind string

// The kinds of channel.
const (
	BestChannel   ChannelKind = ""       // the best that there is
	MemoryChannel ChannelKind = "memory" // loads and stores of memory that both map
	PortChannel   ChannelKind = "port"   // the link between the processes
)

// Channel is this rank's end of a channel: puts, gets and signals between two ranks, without a call
// of the other one. Who has taken a signal sees what was put before it on the same channel. Nothing
// else is ordered: not two channels, and not a get after a put without a [Channel.Flush] between.
//
// A channel ends when its peer closes its end or leaves ([ErrAborted]) or dies ([ErrPeerFailed]),
// and with the communicator's failure or epoch. What was signalled before can still be taken from
// one that a peer has ended. Its methods may be called from any goroutine.
type Channel struct{ core *core.Channel }

// Channel opens this rank's end of a channel to a peer, which opens its own by the same tag, 0 or
// more. It waits for nobody: the first call that needs the peer's end does. The first end of a tag
// meets the peer's first, the second the second. One end a peer and tag may be open at a time. The
// peer may be this rank. [Channel.Close] gives it back.
func (c *Comm) Channel(peer, tag int, kind ChannelKind) (*Channel, error) {
	if tag > math.MaxInt32 { // the tags behind are those of windows
		return nil, public(context.Background(), "channel", fault.Errorf(fault.ErrInvalidArgument,
			"channel: tag is %d, allowed are 0 to %d", tag, math.MaxInt32))
	}
	ch, err := c.core.OpenChannel(peer, tag, string(kind))
	if err != nil {
		return nil, public(context.Background(), "channel", err)
	}
	return &Channel{ch}, nil
}

// Kind is how this end reaches the peer; before the two ends have met, what is expected.
func (c *Channel) Kind() ChannelKind { return ChannelKind(c.core.Kind()) }

// Peer is the rank at the other end.
func (c *Channel) Peer() int { return c.core.Peer() }

// Tag is that by which the channel was opened.
func (c *Channel) Tag() int { return c.core.Tag() }

// Put copies src to memory of the peer, from an offset on that counts elements. src may be any
// memory, and is free when Put returns. It waits for the peer's end, and while the link is full,
// for the communicator's timeout at most.
func Put[T Element](c *Channel, dst *Memory, offset int, src []T) error {
	return PutSignal(c, dst, offset, src, 0)
}

// PutSignal is [Put], and then adds n to the count of the peer's end.
func PutSignal[T Element](c *Channel, dst *Memory, offset int, src []T, n uint64) error {
	at, bytes, err := placeOf[T]("put", offset, len(src))
	if err == nil {
		err = c.core.PutFrom(dst.core, at, unsafe.Pointer(unsafe.SliceData(src)), bytes, n)
	}
	return public(context.Background(), "put", err)
}

// Get copies memory of the peer, from an offset on that counts elements, to dst. It is there when
// [Channel.Flush] has returned; until then, or until the channel is closed, dst must not be
// touched.
func Get[T Element](c *Channel, dst []T, src *Memory, offset int) error {
	at, bytes, err := placeOf[T]("get", offset, len(dst))
	if err == nil {
		err = c.core.GetTo(unsafe.Pointer(unsafe.SliceData(dst)), src.core, at, bytes)
	}
	return public(context.Background(), "get", err)
}

// placeOf returns a part of memory in bytes.
func placeOf[T Element](call string, offset, n int) (at, bytes uint64, err error) {
	if offset < 0 {
		return 0, 0, fault.Errorf(ErrInvalidArgument, "%s: offset is %d, it must be 0 or more", call,
			offset)
	}
	var element T
	size := uint64(unsafe.Sizeof(element))
	if uint64(offset) > ^uint64(0)/size {
		return 0, 0, fault.Errorf(ErrInvalidArgument, "%s: offset is %d elements of %d bytes, which no "+
			"memory has", call, offset, size)
	}
	return uint64(offset) * size, uint64(n) * size, nil
}

// Signal adds n, 1 or more, to the count of the peer's end.
func (c *Channel) Signal(n uint64) error {
	return public(context.Background(), "signal", c.core.Signal(n))
}

// Wait takes n signals, 1 or more, once so many have come. A wait that fails has taken none, and
// may be repeated. Several goroutines may wait: each takes its own.
func (c *Channel) Wait(ctx context.Context, n uint64) error {
	return public(ctx, "wait", c.core.Wait(ctx, n, 0))
}

// Poll takes n signals if so many have come, and reports whether it did. It never waits.
func (c *Channel) Poll(n uint64) (taken bool, err error) {
	taken, err = c.core.Poll(n)
	return taken, public(context.Background(), "poll", err)
}

// Flush waits until all puts of the channel that came before it are in the peer's memory, and all
// gets are here. The peer need not be in a call.
func (c *Channel) Flush(ctx context.Context) error {
	return public(ctx, "flush", c.core.Flush(ctx, 0))
}

// Close ends the channel on both ranks. What was signalled the peer can still take. It returns nil,
// and may be called again.
func (c *Channel) Close() error {
	c.core.Close()
	return nil
}
