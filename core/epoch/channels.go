package epoch

import (
	"context"
	"encoding/binary"
	"fmt"
	"time"
	"unsafe"

	"github.com/goccl/goccl/core/channel"
	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/plan"
)

// makeChannels makes what carries the channels of users.
func (e *Epoch) makeChannels(ports []bool) {
	local := make([]bool, e.Size())
	for peer := range local {
		local[peer] = e.Peers[peer].Process == e.Peers[e.Rank].Process
	}
	config := channel.Config{Rank: e.Rank, Members: &e.Members, Ports: ports, Local: local,
		Waiting:  e.waiting,
		Memories: e.config.Memories, Context: e.works.Context, Spawn: e.spawn}
	if e.poller != nil {
		config.Reader = e.poller
	}
	e.channels = channel.New(config, carrier{e})
}

// carrier is an epoch as its channels see it.
type carrier struct{ *Epoch }

// Fail implements channel.Face.
func (e carrier) Fail(cause *fault.Error) { e.Epoch.Fail(cause, true) }

// PeerError implements channel.Face.
func (e carrier) PeerError(peer int, err error) *fault.Error { return e.peerError(peer, err) }

// Timeout implements channel.Face.
func (e carrier) Timeout() time.Duration { return e.config.Owner.Timeout() }

// HoldArena implements channel.Face.
func (e carrier) HoldArena(peer int) (arena []byte, release func(), ok bool) {
	return e.memory.Hold(peer)
}

// Retire implements channel.Face.
func (e carrier) Retire(p unsafe.Pointer, bytes int64) {
	e.memory.Retire([]unsafe.Pointer{p}, []int64{bytes})
}

// OpenChannel opens this rank's end of a channel: see [channel.Engine.Open].
func (e *Epoch) OpenChannel(peer, tag int, kind string) (*channel.Channel, error) {
	c, err := e.channels.Open(peer, tag, kind)
	if err == nil && peer != e.Rank {
		e.connect(peer)
	}
	return c, err
}

// NewProxy makes a proxy: see [channel.Engine.NewProxy].
func (e *Epoch) NewProxy(size uint64, devices bool) (*channel.Proxy, error) {
	return e.channels.NewProxy(size, devices)
}

// MapMemory returns where memory of a peer is mapped here.
func (e *Epoch) MapMemory(m *channel.Memory) (unsafe.Pointer, error) {
	rank, epoch := m.Rank()
	if m.Mapped() == nil && epoch != e.number {
		return nil, fault.Errorf(fault.ErrRevoked, "memory_map: memory was imported in epoch %d, and "+
			"this is epoch %d, in which ranks have other numbers: import it anew", epoch, e.number).
			In(&e.Members)
	}
	return e.channels.Map(m, rank)
}

// ExportMemory returns the handle of memory that was registered here.
func (e *Epoch) ExportMemory(m *channel.Memory) ([channel.HandleSize]byte, error) {
	return m.Export(e.Rank, e.number, e.Identity.Group)
}

// ImportMemory makes what a rank has exported known here.
func (e *Epoch) ImportMemory(rank int, handle []byte) (*channel.Memory, error) {
	if rank < 0 || rank >= e.Size() {
		return nil, fault.Errorf(fault.ErrInvalidArgument, "memory_import: rank is %d, allowed are 0 to "+
			"%d", rank, e.Size()-1).In(&e.Members)
	}
	m, err := e.config.Memories.Import(rank, e.number, handle)
	if err != nil {
		return nil, fault.From(err, fault.ErrInternal, "memory_import").In(&e.Members)
	}
	return m, nil
}

// handleWords is what a rank tells in an exchange: whether it was refused, whether it has memory,
// and its handle.
const handleWords = 2 + channel.HandleSize/8

// ExchangeMemory gives each rank's memory to all, by rank: nil of one that has none, and mine of
// this one. A collective call: where a rank was refused none has any.
func (e *Epoch) ExchangeMemory(
	ctx context.Context, mine *channel.Memory, refused error,
) ([]*channel.Memory, error) {
	fail := func(kind error, format string, args ...any) error {
		return fault.Errorf(kind, "%v: %s", plan.ExchangeMemory, fmt.Sprintf(format, args...)).
			In(&e.Members).During(plan.ExchangeMemory.String(), 0)
	}
	words := make([]int64, handleWords)
	if mine != nil && refused == nil {
		handle, err := e.ExportMemory(mine)
		refused = err
		words[1] = 1
		for i := range handle[:channel.HandleSize/8] {
			words[2+i] = int64(binary.LittleEndian.Uint64(handle[8*i:]))
		}
	}
	if refused != nil {
		words[0] = 1
	}
	s := Service{e: e, options: Options{FailFast: true}, partOf: plan.ExchangeMemory}
	all, err := s.Gather(ctx, words...)
	if err != nil {
		return nil, err
	}
	if refused != nil {
		return nil, refused
	}
	var refusals []int
	for rank := range e.Size() {
		if all[rank*handleWords] != 0 {
			refusals = append(refusals, rank)
		}
	}
	if len(refusals) > 0 {
		return nil, fail(fault.ErrMismatch, "the memory was refused on %s, whose own error says why: no "+
			"rank has any", e.Members.Names(refusals...))
	}
	memories := make([]*channel.Memory, e.Size())
	for rank := range memories {
		its := all[rank*handleWords:][:handleWords]
		switch {
		case rank == e.Rank:
			memories[rank] = mine
			continue
		case its[1] == 0:
			continue
		}
		var handle []byte
		for _, w := range its[2:] {
			handle = binary.LittleEndian.AppendUint64(handle, uint64(w))
		}
		m, err := e.ImportMemory(rank, handle)
		if err != nil {
			for _, m := range memories[:rank] {
				if m != nil && m != mine {
					m.Deregister()
				}
			}
			return nil, err
		}
		memories[rank] = m
	}
	return memories, nil
}

// Channels tells what there is of channels, for tests.
func (e *Epoch) Channels() string { return e.channels.String() }
