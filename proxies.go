package goccl

import (
	"context"

	"github.com/goccl/goccl/core"
)

// TriggerOp is what a [Trigger] asks for. A put may be added to a signal and a flush, a signal to a
// flush, and a get to a flush.
type TriggerOp uint32

// What triggers ask for.
const (
	TriggerPut    = TriggerOp(core.TriggerPut)    // Bytes from Src to Dst
	TriggerSignal = TriggerOp(core.TriggerSignal) // Signals of them
	TriggerFlush  = TriggerOp(core.TriggerFlush)  // what was put and got before is there
	TriggerGet    = TriggerOp(core.TriggerGet)    // Bytes from Src to Dst
)

// Trigger asks a [Proxy] for calls of a channel. The memory of both ends is registered: Src of a
// put and Dst of a get are this rank's own. Offsets are in bytes.
type Trigger struct {
	Op        TriggerOp
	Channel   *Channel
	Signals   uint32
	Dst       *Memory
	DstOffset uint64
	Src       *Memory
	SrcOffset uint64
	Bytes     uint64
}

// Proxy makes calls of channels for goroutines that must not wait. Triggers of a channel are
// carried out in the order in which they were pushed; a channel that has to wait holds up no other
// one. The first trigger that fails ends the proxy, as does the communicator's failure. Its methods
// may be called from any goroutine.
type Proxy struct{ core *core.Proxy }

// NewProxy makes a proxy which holds so many triggers: a power of two from 64 to 65,536, or 0 for
// 512. [Proxy.Close] gives it back.
func (c *Comm) NewProxy(size int) (*Proxy, error) {
	p, err := c.core.NewProxy(uint64(size), false)
	if err != nil {
		return nil, public(context.Background(), "new_proxy", err)
	}
	return &Proxy{p}, nil
}

// Push pushes a trigger, and returns its position. It waits while the proxy is full. One that fails
// has pushed nothing.
func (p *Proxy) Push(ctx context.Context, t Trigger) (position uint64, err error) {
	trigger := core.Trigger{Op: uint32(t.Op), Signals: t.Signals, DstOffset: t.DstOffset,
		SrcOffset: t.SrcOffset, Bytes: t.Bytes}
	if t.Channel != nil {
		trigger.Channel = t.Channel.core.Handle()
	}
	if t.Dst != nil {
		trigger.Dst = t.Dst.core.Handle()
	}
	if t.Src != nil {
		trigger.Src = t.Src.core.Handle()
	}
	position, err = p.core.Push(ctx, trigger, 0)
	return position, public(ctx, "push", err)
}

// Wait waits until the trigger of a position is done: its call of the channel would have returned.
func (p *Proxy) Wait(ctx context.Context, position uint64) error {
	return public(ctx, "wait", p.core.Wait(ctx, position, 0))
}

// Stop takes no more triggers, and waits until all that were pushed are done. After an error of the
// context it may be repeated.
func (p *Proxy) Stop(ctx context.Context) error { return public(ctx, "stop", p.core.Stop(ctx, 0)) }

// Close ends the proxy. It waits for nobody: what a channel has begun goes on, and what was not
// begun is dropped.
func (p *Proxy) Close() { p.core.Close() }
