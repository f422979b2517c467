package channel

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/goccl/goccl/core/exec"
	"github.com/goccl/goccl/core/fault"
)

const (
	// MostProxies is how many proxies a communicator has at most.
	MostProxies = 64
	// ProxySize is how many triggers a proxy's FIFO holds, unless its user says otherwise.
	ProxySize = 512

	// proxySpin is how long a proxy looks for triggers before it sleeps.
	proxySpin = 20 * time.Microsecond
	// A proxy naps so long, first and at most, where nobody rings.
	proxyNapLeast, proxyNapMost = time.Microsecond, 50 * time.Microsecond
	// proxySleep is how long it sleeps at most: a producer that has taken a place and died has not
	// rung.
	proxySleep = time.Second
)

// Proxy carries out what producers push into a FIFO, which lies in shareable memory: puts, gets,
// signals and flushes of channels of this rank. Its methods may be called from any goroutine.
//
// A goroutine takes triggers in order, copies and checks them, and carries out those of memory
// channels. What may have to wait goes to a queue of its channel. So triggers of a channel are
// carried out in order, and no channel waits for another one. The first trigger that fails ends the
// proxy.
type Proxy struct {
	e       *Engine
	fifo    *exec.FIFO
	arena   *exec.Arena
	devices bool // push, too, which ring no bell

	over atomic.Bool // cause is set

	mu      sync.Mutex // guards what follows
	oldest  uint64     // position of the first trigger that is not done
	taken   uint64     // position of the first trigger that was not taken
	crowded bool       // the goroutine waits until oldest grows
	stopped bool       // by its user: it ends when all is done
	cause   *fault.Error
	changed change
	users   int  // of the FIFO's memory: the proxy's user, its goroutine, and calls
	closed  bool // by its user
}

// NewProxy makes a proxy whose FIFO holds so many triggers; 0: ProxySize. With devices producers
// push that ring no bell.
func (e *Engine) NewProxy(size uint64, devices bool) (*Proxy, error) {
	const call = "proxy_create"
	if size == 0 {
		size = ProxySize
	}
	if !exec.FIFOSizeFits(size) {
		return nil, fault.Errorf(fault.ErrInvalidArgument, "%s: size is %d, allowed are 0 (%d) and the "+
			"powers of two from %d to %d", call, size, ProxySize, exec.FIFOSizeLeast, exec.FIFOSizeMost).
			In(e.Members)
	}
	arena, err := e.Memories.Arenas.Acquire()
	if err != nil {
		return nil, fault.Errorf(fault.ErrUnsupported, "%s: no shareable memory: %v", call, err)
	}
	memory, err := arena.Alloc(exec.FIFOBytes(size))
	if err != nil {
		e.Memories.Arenas.Release()
		return nil, fault.Errorf(fault.ErrSystem, "%s: %v", call, err).In(e.Members)
	}
	fifo, err := exec.NewFIFO(memory, size)
	if err != nil {
		_ = arena.Free(memory) // it has just been allocated
		e.Memories.Arenas.Release()
		return nil, fault.Errorf(fault.ErrSystem, "%s: %v", call, err).In(e.Members)
	}
	p := &Proxy{e: e, fifo: fifo, arena: arena, devices: devices, users: 2}
	if err := e.enroll(p); err != nil {
		p.free()
		return nil, err
	}
	e.Spawn(p.serve)
	return p, nil
}

// enroll has a proxy end with the engine.
func (e *Engine) enroll(p *Proxy) error {
	const call = "proxy_create"
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.failure != nil:
		return e.failure.During(call, 0).Ending(call, "")
	case len(e.proxies) >= MostProxies:
		return fault.Errorf(fault.ErrInvalidArgument, "%s: the communicator has %d proxies, which is "+
			"the most", call, len(e.proxies)).In(e.Members)
	}
	e.proxies[p] = true
	return nil
}

// endProxies ends all proxies.
func (e *Engine) endProxies(cause *fault.Error) {
	e.mu.Lock()
	all := make([]*Proxy, 0, len(e.proxies))
	for p := range e.proxies {
		all = append(all, p)
	}
	e.mu.Unlock()
	for _, p := range all {
		p.end(cause)
	}
}

// FIFO is where producers push: memory that stays until Close.
func (p *Proxy) FIFO() (memory unsafe.Pointer, bytes int64) {
	return p.fifo.Memory(), exec.FIFOBytes(p.fifo.Size())
}

// Push pushes a trigger, and returns its position. It waits while the FIFO is full. One that fails
// has pushed nothing. A timeout of 0 is the communicator's; it ends with the context, too.
func (p *Proxy) Push(
	ctx context.Context, t exec.Trigger, timeout time.Duration,
) (position uint64, err error) {
	const call = "push"
	if !p.enter() {
		return 0, p.ended(call)
	}
	defer p.leave()
	pushed := false
	err = p.await(ctx, call, timeout, func() (done bool, err error) {
		if p.fifo.Ended() {
			return false, p.ended(call)
		}
		position, pushed = p.fifo.TryPush(t)
		return pushed, nil
	}, func() string { return fmt.Sprintf("the FIFO's %d places are full", p.fifo.Size()) })
	return position, err
}

// Wait waits until the trigger of a position is done: its call on the channel would have returned.
// A timeout of 0 is the communicator's; it ends with the context, too.
func (p *Proxy) Wait(ctx context.Context, position uint64, timeout time.Duration) error {
	const call = "wait"
	if !p.enter() {
		return p.ended(call)
	}
	defer p.leave()
	if head := p.fifo.Head(); position >= head {
		return p.errorf(fault.ErrInvalidArgument, call, "position is %d, and %d triggers were pushed",
			position, head)
	}
	return p.await(ctx, call, timeout, func() (done bool, err error) {
		switch {
		case p.fifo.Done(position):
			return true, nil
		case p.over.Load():
			return false, p.ended(call)
		}
		return false, nil
	}, func() string { return fmt.Sprintf("trigger %d is not done", position) })
}

// Stop takes no more triggers, and waits until all that were pushed are done. Then the proxy has
// ended. Where the time is up it may be repeated. A timeout of 0 is the communicator's; it ends
// with the context, too.
func (p *Proxy) Stop(ctx context.Context, timeout time.Duration) error {
	const call = "stop"
	if !p.enter() {
		return p.ended(call)
	}
	defer p.leave()
	p.mu.Lock()
	first := !p.stopped && p.cause == nil
	p.stopped = p.stopped || first
	p.changed.tell() // those who wait for room
	p.mu.Unlock()
	if first {
		p.fifo.End()
	}
	err := p.await(ctx, call, timeout, func() (done bool, err error) {
		p.mu.Lock()
		defer p.mu.Unlock()
		switch {
		case p.stopped && p.oldest == p.fifo.Head():
			return true, nil
		case p.cause != nil:
			return false, p.causeOf(call)
		}
		return false, nil
	}, func() string {
		p.mu.Lock()
		defer p.mu.Unlock()
		return fmt.Sprintf("trigger %d is not done", p.oldest)
	})
	if err == nil {
		p.end(fault.Errorf(fault.ErrAborted, "it was stopped").In(p.e.Members))
	}
	return err
}

// Close ends the proxy, and gives its memory back. It waits for nobody: what a channel has begun
// goes on, and what was not begun is dropped. Producers that know the memory must have stopped.
func (p *Proxy) Close() {
	p.end(fault.Errorf(fault.ErrAborted, "it was destroyed on this rank").In(p.e.Members))
	p.mu.Lock()
	first := !p.closed
	p.closed = true
	p.mu.Unlock()
	if first {
		p.e.mu.Lock()
		delete(p.e.proxies, p)
		p.e.mu.Unlock()
		p.leave()
	}
}

// enter keeps the FIFO's memory until leave is called. It reports whether it is there.
func (p *Proxy) enter() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	p.users++
	return true
}

// leave undoes enter.
func (p *Proxy) leave() {
	p.mu.Lock()
	p.users--
	last := p.users == 0
	p.mu.Unlock()
	if last {
		p.free()
	}
}

func (p *Proxy) free() {
	p.fifo.Close()
	_ = p.arena.Free(p.fifo.Memory()) // it fails only for what was not allocated
	p.e.Memories.Arenas.Release()
}

// await calls done at each change, until that reports true or an error, or the time is up. why
// tells what is missing.
func (p *Proxy) await(
	ctx context.Context, call string, timeout time.Duration, done func() (bool, error),
	why func() string,
) error {
	if ok, err := done(); ok || err != nil {
		return err
	}
	l := p.e.limit(ctx, timeout)
	t := time.NewTimer(l.until - exec.Now())
	defer t.Stop()
	for {
		p.mu.Lock()
		changed := p.changed.await()
		p.mu.Unlock()
		if ok, err := done(); ok || err != nil {
			return err
		}
		select {
		case <-changed:
			continue
		case <-t.C:
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.Canceled) {
				return p.errorf(fault.ErrAborted, call, "%v", ctx.Err())
			}
		}
		return p.errorf(fault.ErrTimeout, call, "timeout after %v: %s", l.most, why())
	}
}

func (p *Proxy) errorf(kind error, call, format string, args ...any) *fault.Error {
	return fault.Errorf(kind, "proxy: %s: %s", call, fmt.Sprintf(format, args...)).In(p.e.Members).
		During("proxy_"+call, 0)
}

// ended is the error of a call on a proxy that has ended, or takes no more triggers.
func (p *Proxy) ended(call string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.causeOf(call)
}

// causeOf is called with mu held.
func (p *Proxy) causeOf(call string) error {
	cause := p.cause
	switch {
	case cause == nil:
		return p.errorf(fault.ErrAborted, call, "it is stopped on this rank")
	case cause.Error() == cause.Text:
		return p.errorf(cause.Kind, call, "%s", cause.Text).Blaming(cause.Ranks...)
	case cause.Kind == fault.ErrRevoked:
		cause = cause.Hinting("Destroy the proxy, and make it and its channels anew")
	}
	return cause.During("proxy_"+call, 0).Ending("proxy: "+call, "")
}

// end ends the proxy: the first cause stays.
func (p *Proxy) end(cause *fault.Error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cause != nil {
		return
	}
	p.cause = cause
	p.over.Store(true)
	p.fifo.End()
	p.fifo.Ring()
	p.changed.tell()
}

// ---- the goroutine ------------------------------------------------------------------------------

// serve carries out triggers until the proxy has ended.
func (p *Proxy) serve() {
	defer p.leave()
	var idle idling
	for !p.over.Load() {
		if p.full() {
			p.fifo.Sleep(proxySleep, func() bool { return p.over.Load() || !p.full() })
			continue
		}
		t, position, ok := p.fifo.Take()
		if !ok {
			p.idle(&idle, position)
			continue
		}
		idle = idling{}
		p.carry(position, t)
	}
}

// took tells producers that wait of a place that is free.
func (p *Proxy) took(position uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.taken = position + 1
	p.changed.tell()
}

// full reports whether so many triggers are not done that no more are taken: those of a place
// follow one another.
func (p *Proxy) full() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.crowded = p.taken-p.oldest >= p.fifo.Size()
	return p.crowded
}

// finish tells that a trigger is done.
func (p *Proxy) finish(position uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cause != nil { // the memory may be another's
		return
	}
	p.fifo.Finish(position)
	for p.fifo.Done(p.oldest) {
		p.oldest++
	}
	if p.crowded {
		p.fifo.Ring()
	}
	p.changed.tell()
}

// idling is what a proxy knows that waits for a trigger.
type idling struct {
	since  time.Duration // it waits; 0: not yet
	coming time.Duration // since when a producer has the place; 0: none has
	nap    time.Duration
}

// idle waits a little for the trigger of a position.
func (p *Proxy) idle(i *idling, position uint64) {
	now := exec.Now()
	if i.since == 0 {
		i.since, i.nap = now, proxyNapLeast
	}
	coming := p.fifo.Coming()
	if coming && i.coming == 0 {
		i.coming = now
	}
	switch {
	case now-i.since < proxySpin:
		runtime.Gosched() // to the queues of channels
		exec.YieldCPU()
	case coming && now-i.coming >= p.e.face.Timeout():
		p.end(fault.Errorf(fault.ErrTimeout, "trigger %d: a producer has taken its place, and not "+
			"filled it in for %v", position, p.e.face.Timeout()).In(p.e.Members))
	case coming || p.devices:
		exec.Nap(i.nap)
		i.nap = min(2*i.nap, proxyNapMost)
	default:
		p.fifo.Sleep(proxySleep, func() bool { return p.over.Load() || p.fifo.Coming() })
		i.since = 0
	}
}

// carry carries a trigger out: at once where that does not wait for the peer, else in the queue of
// its channel.
func (p *Proxy) carry(position uint64, t exec.Trigger) {
	p.took(position)
	c, err := p.e.checkTrigger(&t)
	if err != nil {
		p.fail(position, err)
		return
	}
	carry := func() {
		if p.over.Load() {
			return
		}
		if err := p.e.carryTrigger(c, &t); err != nil {
			p.fail(position, err)
			return
		}
		p.finish(position)
	}
	atOnce := func() bool {
		if c.end.State() != exec.ChannelMemory {
			return false
		}
		carry()
		return true
	}
	if !c.triggers.Now(atOnce) {
		c.triggers.Do(carry)
	}
}

// fail ends the proxy with the error of a trigger.
func (p *Proxy) fail(position uint64, err error) {
	cause := fault.From(err, fault.ErrInternal, "it failed")
	if cause.Error() == cause.Text {
		cause = fault.Errorf(cause.Kind, "trigger %d: %s", position, cause.Text).In(p.e.Members).
			Blaming(cause.Ranks...)
	} else {
		cause = cause.Because(fmt.Sprintf("It ended the proxy at trigger %d", position))
	}
	p.end(cause)
}

// ---- triggers -----------------------------------------------------------------------------------

// triggerOps are what triggers may ask for.
var triggerOps = []uint32{
	exec.TriggerPut, exec.TriggerPut | exec.TriggerSignal, exec.TriggerPut | exec.TriggerFlush,
	exec.TriggerPut | exec.TriggerSignal | exec.TriggerFlush, exec.TriggerSignal,
	exec.TriggerSignal | exec.TriggerFlush, exec.TriggerFlush, exec.TriggerGet,
	exec.TriggerGet | exec.TriggerFlush,
}

// checkTrigger returns the channel of a trigger, whose bytes are foreign, or why it is bad. Memory
// that it names may be deregistered afterwards.
func (e *Engine) checkTrigger(t *exec.Trigger) (*Channel, error) {
	bad := func(kind error, format string, args ...any) (*Channel, error) {
		return nil, fault.Errorf(kind, format, args...).In(e.Members)
	}
	switch {
	case !slices.Contains(triggerOps, t.Op):
		return bad(fault.ErrInvalidArgument, "op is %d, allowed are put (1), signal (2), flush (4) and "+
			"their sums, get (8), and get and flush (12)", t.Op)
	case t.Op&exec.TriggerSignal != 0 && t.Signals == 0:
		return bad(fault.ErrInvalidArgument, "signals is 0, it must be 1 or more")
	}
	e.mu.Lock()
	c := e.handles[t.Channel]
	e.mu.Unlock()
	if c == nil {
		return bad(fault.ErrInvalidHandle, "channel is %#x, which is no channel that this rank has "+
			"open in the communicator's present epoch", t.Channel)
	}
	if t.Op&(exec.TriggerPut|exec.TriggerGet) == 0 {
		return c, nil
	}
	for _, side := range []struct {
		name           string
		handle, offset uint64
		here           bool // it must be this rank's
	}{
		{"dst", t.Dst, t.DstOffset, t.Op&exec.TriggerGet != 0},
		{"src", t.Src, t.SrcOffset, t.Op&exec.TriggerPut != 0},
	} {
		m := e.Memories.named(side.handle)
		switch {
		case m == nil:
			return bad(fault.ErrInvalidHandle, "%s is %#x, which is no memory that the communicator has "+
				"registered or imported", side.name, side.handle)
		case side.here && !m.Own():
			return bad(fault.ErrInvalidArgument, "%s is %#x, which is memory of a peer; it must be "+
				"registered on this rank", side.name, side.handle)
		case t.Bytes > m.bytes || side.offset > m.bytes-t.Bytes:
			return bad(fault.ErrInvalidArgument, "%s_offset is %d and bytes is %d, and the memory has %d "+
				"bytes", side.name, side.offset, t.Bytes, m.bytes)
		}
	}
	return c, nil
}

// carryTrigger carries out a trigger that was checked.
func (e *Engine) carryTrigger(c *Channel, t *exec.Trigger) error {
	var err error
	switch {
	case t.Op&exec.TriggerPut != 0:
		signals := uint64(0)
		if t.Op&exec.TriggerSignal != 0 {
			signals = uint64(t.Signals)
		}
		err = e.withMemory("put", t.Src, t.Dst, func(here, there *Memory) error {
			return c.PutFrom(there, t.DstOffset, unsafe.Add(here.at, t.SrcOffset), t.Bytes, signals)
		})
	case t.Op&exec.TriggerGet != 0:
		err = e.withMemory("get", t.Dst, t.Src, func(here, there *Memory) error {
			return c.getTo(unsafe.Add(here.at, t.DstOffset), there, t.SrcOffset, t.Bytes, here)
		})
	case t.Op&exec.TriggerSignal != 0:
		err = c.Signal(uint64(t.Signals))
	}
	if err == nil && t.Op&exec.TriggerFlush != 0 {
		err = c.Flush(context.Background(), 0)
	}
	return err
}

// withMemory calls f with memory of this rank, which is not allocated again meanwhile, and with the
// peer's.
func (e *Engine) withMemory(
	call string, here, there uint64, f func(here, there *Memory) error,
) error {
	own, its := e.Memories.holdNamed(here), e.Memories.named(there)
	if own != nil {
		defer e.Memories.let(own)
	}
	if own == nil || its == nil {
		return fault.Errorf(fault.ErrInvalidHandle, "%s: memory was deregistered on this rank before it "+
			"was carried out", call).In(e.Members)
	}
	return f(own, its)
}
