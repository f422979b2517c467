package core

import (
	"context"
	"unsafe"

	"github.com/goccl/goccl/core/channel"
	"github.com/goccl/goccl/core/exec"
)

// Memory is a part of shareable memory that peers may reach: registered here, or imported.
type Memory = channel.Memory

// Channel is this rank's end of a channel: see package channel.
type Channel = channel.Channel

// Proxy carries out puts, gets, signals and flushes of channels for producers that push them into
// its FIFO: see package channel.
type Proxy = channel.Proxy

// Trigger is what producers push.
type Trigger = exec.Trigger

// What a trigger asks for: see goccl_fifo.h.
const (
	TriggerPut    = exec.TriggerPut
	TriggerSignal = exec.TriggerSignal
	TriggerFlush  = exec.TriggerFlush
	TriggerGet    = exec.TriggerGet
)

// HandleSize is the size of what [Comm.Export] returns, in bytes.
const HandleSize = channel.HandleSize

// The rights to memory.
const (
	RemoteRead  = exec.RemoteRead
	RemoteWrite = exec.RemoteWrite
)

// WindowTag is the tag of the channels of a window, by its number.
func WindowTag(number int) int { return channel.WindowTag(number) }

// Channels is what callers in C use channels by, without entering Go.
func Channels() unsafe.Pointer { return exec.Channels() }

// Register lets peers read or write bytes of shareable memory: see [Runtime.Alloc].
func (c *Comm) Register(p unsafe.Pointer, bytes uint64, access int) (*Memory, error) {
	if c.destroyed.Load() {
		return nil, c.present.Load().Destroyed().During("memory_register", 0)
	}
	return c.shared.Memories.Register(p, bytes, access)
}

// Export returns the handle by which peers import memory that was registered here.
func (c *Comm) Export(m *Memory) ([HandleSize]byte, error) {
	return c.present.Load().ExportMemory(m)
}

// Import makes what a rank has exported known here.
func (c *Comm) Import(rank int, handle []byte) (*Memory, error) {
	e := c.present.Load()
	if c.destroyed.Load() {
		return nil, e.Destroyed().During("memory_import", 0)
	}
	return e.ImportMemory(rank, handle)
}

// Exchange gives each rank's memory to all, by rank: nil of one that has none, and this rank's own
// of itself. It is a collective call. With refused the caller takes part and gets that error;
// the others get ErrMismatch.
func (c *Comm) Exchange(ctx context.Context, m *Memory, refused error) ([]*Memory, error) {
	e := c.holdEpoch()
	c.changing.Unlock()
	return e.ExchangeMemory(ctx, m, refused)
}

// MapMemory returns where memory is mapped here: ErrUnsupported where it is not.
func (c *Comm) MapMemory(m *Memory) (unsafe.Pointer, error) { return c.present.Load().MapMemory(m) }

// OpenChannel opens this rank's end of a channel to a rank, which its peer opens by the same tag.
// It waits for nobody. The kind is that of [Channel.Kind], or "": the best that there is. Callers
// choose tags of 0 to 2^31 - 1, or [WindowTag].
func (c *Comm) OpenChannel(peer, tag int, kind string) (*Channel, error) {
	e := c.present.Load()
	if c.destroyed.Load() {
		return nil, e.Destroyed().During("channel_open", 0)
	}
	return e.OpenChannel(peer, tag, kind)
}

// NewProxy makes a proxy whose FIFO holds so many triggers: a power of two, or 0 for the default.
// With devices producers push, too, which ring no bell.
func (c *Comm) NewProxy(size uint64, devices bool) (*Proxy, error) {
	e := c.present.Load()
	if c.destroyed.Load() {
		return nil, e.Destroyed().During("proxy_create", 0)
	}
	return e.NewProxy(size, devices)
}
