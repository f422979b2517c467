package core

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"
)

// newProxy makes a proxy of a rank, which ends with the test.
func newProxy(t testing.TB, w *world, rank int, size uint64) *Proxy {
	t.Helper()
	p, err := w.comms[rank].NewProxy(size, false)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

// push pushes a trigger, which must succeed.
func push(t testing.TB, p *Proxy, trigger Trigger) uint64 {
	t.Helper()
	position, err := p.Push(context.Background(), trigger, 0)
	if err != nil {
		t.Fatal(err)
	}
	return position
}

func wait(t testing.TB, p *Proxy, position uint64) {
	t.Helper()
	if err := p.Wait(context.Background(), position, 0); err != nil {
		t.Fatal(err)
	}
}

// pushing is what tests of proxies begin with: two ranks, an end of a channel at each, and triggers
// of rank 0 for it.
type pushing struct {
	*world
	*board
	ends   [2]*Channel
	signal Trigger
	put    Trigger // of the second half of rank 0's memory to the first half of rank 1's
	get    Trigger // the other way round
}

const pushingBytes = 1 << 20

func newPushing(t testing.TB, transport, kind string, timeout time.Duration) *pushing {
	t.Helper()
	w := newWorld(t, transport, 2, timeout)
	p := &pushing{world: w, board: newBoard(t, w, pushingBytes)}
	p.openEnds(kind)
	return p
}

// openEnds opens a channel, and makes triggers for it.
func (p *pushing) openEnds(kind string) {
	p.t.Helper()
	for rank := range p.ends {
		var err error
		if p.ends[rank], err = p.comms[rank].OpenChannel(1-rank, 3, kind); err != nil {
			p.t.Fatal(err)
		}
	}
	channel, mine, theirs := p.ends[0].Handle(), p.mine[0].Handle(), p.peers[0][1].Handle()
	const half = pushingBytes / 2
	p.signal = Trigger{Op: TriggerSignal, Signals: 1, Channel: channel}
	p.put = Trigger{Op: TriggerPut | TriggerSignal, Signals: 2, Channel: channel, Dst: theirs,
		Src: mine, SrcOffset: half, Bytes: half}
	p.get = Trigger{Op: TriggerGet | TriggerFlush, Channel: channel, Dst: mine, Src: theirs,
		DstOffset: half, Bytes: half}
}

// What is pushed is carried out, in order, and known to be done.
func TestProxyCarries(t *testing.T) {
	eachKind(t, func(t *testing.T, transport, kind string) {
		w := newPushing(t, transport, kind, patience)
		p := newProxy(t, w.world, 0, 0)
		const half = pushingBytes / 2
		copy(w.own[0][half:], pattern(1, half))
		push(t, p, w.put)
		if err := w.ends[1].Wait(context.Background(), 2, 0); err != nil {
			t.Fatal(err)
		}
		if string(w.own[1][:half]) != string(pattern(1, half)) {
			t.Error("what was put is not there")
		}
		w.put.Op = TriggerPut | TriggerSignal | TriggerFlush
		w.put.DstOffset, w.put.Bytes = 17, 4001
		wait(t, p, push(t, p, w.put))
		if string(w.own[1][17:][:4001]) != string(pattern(1, half)[:4001]) {
			t.Error("what was put and flushed is not there")
		}
		for range 3 * 512 { // laps
			push(t, p, w.signal)
		}
		if err := w.ends[1].Wait(context.Background(), 3*512+2, 0); err != nil {
			t.Fatal(err)
		}
		copy(w.own[1], pattern(2, half))
		wait(t, p, push(t, p, w.get))
		if string(w.own[0][half:]) != string(pattern(2, half)) {
			t.Error("what was got and flushed is not there")
		}
		w.get.Op = TriggerGet
		clear(w.own[0])
		push(t, p, w.get)
		wait(t, p, push(t, p, Trigger{Op: TriggerFlush, Channel: w.get.Channel}))
		if string(w.own[0][half:]) != string(pattern(2, half)) {
			t.Error("what was got is not there after a flush")
		}
		if err := p.Wait(context.Background(), 1<<40, 0); !errors.Is(err, ErrInvalidArgument) ||
			!strings.Contains(err.Error(), "position is 1099511627776, and ") {
			t.Errorf("a wait for what was not pushed: %v", err)
		}
		last := push(t, p, w.signal)
		if err := p.Stop(context.Background(), 0); err != nil {
			t.Fatal(err)
		}
		wait(t, p, last)
		if err := p.Stop(context.Background(), 0); err != nil {
			t.Errorf("stopped again: %v", err)
		}
		_, err := p.Push(context.Background(), w.signal, 0)
		if !errors.Is(err, ErrAborted) || !strings.Contains(err.Error(), "stopped") {
			t.Errorf("push after stop: %v", err)
		}
	})
}

// A bad trigger ends the proxy: the error names its position and what is wrong. The channel goes
// on.
func TestProxyRefuses(t *testing.T) {
	const far = math.MaxUint64 - 3
	for name, test := range map[string]struct {
		change func(w *pushing, t *Trigger)
		want   error
		text   string
	}{
		"nothing": {func(w *pushing, t *Trigger) { t.Op = 0 }, ErrInvalidArgument,
			"op is 0, allowed are"},
		"unknown":   {func(w *pushing, t *Trigger) { t.Op = 16 }, ErrInvalidArgument, "op is 16"},
		"put, get":  {func(w *pushing, t *Trigger) { t.Op = 9 }, ErrInvalidArgument, "op is 9"},
		"no signal": {func(w *pushing, t *Trigger) { t.Signals = 0 }, ErrInvalidArgument, "signals is 0"},
		"channel":   {func(w *pushing, t *Trigger) { t.Channel++ }, ErrInvalidHandle, "channel is 0x"},
		"peer's channel": {func(w *pushing, t *Trigger) { t.Channel = w.ends[1].Handle() },
			ErrInvalidHandle, "channel is 0x"},
		"dst": {func(w *pushing, t *Trigger) { t.Dst = 7 }, ErrInvalidHandle, "dst is 0x7, which"},
		"src": {func(w *pushing, t *Trigger) { t.Src = 7 }, ErrInvalidHandle, "src is 0x7, which"},
		"dst here": {func(w *pushing, t *Trigger) { t.Dst = t.Src }, ErrInvalidArgument,
			"the memory is this rank's own"},
		"src there": {func(w *pushing, t *Trigger) { t.Src = t.Dst }, ErrInvalidArgument,
			"src is 0x"},
		"dst_offset": {func(w *pushing, t *Trigger) { t.DstOffset = pushingBytes/2 + 1 },
			ErrInvalidArgument, "dst_offset is 524289 and bytes is 524288, and the memory has 1048576"},
		"src_offset": {func(w *pushing, t *Trigger) { t.SrcOffset = far }, ErrInvalidArgument,
			"src_offset is 18446744073709551612"},
		"bytes": {func(w *pushing, t *Trigger) { t.Bytes = far }, ErrInvalidArgument,
			"bytes is 18446744073709551612"},
		"get's dst": {func(w *pushing, t *Trigger) { *t = w.get; t.Dst = t.Src }, ErrInvalidArgument,
			"dst is 0x"},
		"no right": {func(w *pushing, t *Trigger) {
			m, err := w.comms[1].Register(unsafe.Pointer(&w.own[1][0]), 8, RemoteRead)
			if err != nil {
				panic(err)
			}
			handle, _ := w.comms[1].Export(m)
			readable, _ := w.comms[0].Import(1, handle[:])
			t.Dst, t.DstOffset, t.Bytes = readable.Handle(), 0, 8
		}, ErrInvalidArgument, "GOCCL_REMOTE_WRITE"},
		"closed channel": {func(w *pushing, t *Trigger) { w.ends[0].Close() }, ErrInvalidHandle,
			"no channel that this rank has open"},
		"deregistered": {func(w *pushing, t *Trigger) { w.mine[0].Deregister() }, ErrInvalidHandle,
			"src is 0x"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newPushing(t, "mem", "", patience)
			p := newProxy(t, w.world, 0, 64)
			wait(t, p, push(t, p, w.signal))
			bad := w.put
			test.change(w, &bad)
			position := push(t, p, bad)
			err := p.Wait(context.Background(), position, 0)
			if !errors.Is(err, test.want) || !strings.Contains(err.Error(), test.text) ||
				!strings.Contains(err.Error(), "trigger 1: ") {
				t.Fatalf("%v, want %v with %q", err, test.want, test.text)
			}
			if _, again := p.Push(context.Background(), w.signal, 0); !errors.Is(again, test.want) {
				t.Errorf("the next call: %v", again)
			}
			if name == "closed channel" {
				return
			}
			err = errors.Join(w.ends[0].Signal(1),
				w.ends[1].Wait(context.Background(), 2, patience/6))
			if err != nil {
				t.Errorf("the channel: %v", err)
			}
		})
	}
	w := newWorld(t, "mem", 1, patience)
	for _, size := range []uint64{1, 63, 100, 1 << 17, 1 << 63} {
		if _, err := w.comms[0].NewProxy(size, false); !errors.Is(err, ErrInvalidArgument) ||
			!strings.Contains(err.Error(), "powers of two from 64 to 65536") {
			t.Errorf("size %d: %v", size, err)
		}
	}
	for n := 0; ; n++ {
		if _, err := w.comms[0].NewProxy(64, false); err != nil {
			if n != 64 || !errors.Is(err, ErrInvalidArgument) {
				t.Errorf("proxy %d: %v", n, err)
			}
			break
		}
	}
}

// A channel that has to wait holds up no other one. When the FIFO is full a push waits, and one
// that is late has pushed nothing.
func TestProxyIsFull(t *testing.T) {
	w := newPushing(t, "tcp", "", patience)
	p := newProxy(t, w.world, 0, 64)
	alone, err := w.comms[0].OpenChannel(1, 9, "") // whose peer has not opened it
	if err != nil {
		t.Fatal(err)
	}
	held := Trigger{Op: TriggerSignal, Signals: 1, Channel: alone.Handle()}
	first := push(t, p, held)
	for range 63 {
		push(t, p, w.signal)
	}
	if err := w.ends[1].Wait(context.Background(), 63, 0); err != nil {
		t.Fatal(err)
	}
	for range 64 { // that are not taken
		push(t, p, w.signal)
	}
	_, err = p.Push(context.Background(), w.signal, 20*time.Millisecond)
	if !errors.Is(err, ErrTimeout) || !strings.Contains(err.Error(), "64 places are full") {
		t.Errorf("push: %v", err)
	}
	err = p.Wait(context.Background(), first, time.Millisecond)
	if !errors.Is(err, ErrTimeout) || !strings.Contains(err.Error(), "trigger 0 is not done") {
		t.Errorf("wait: %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := p.Wait(ctx, first, 0); !errors.Is(err, ErrAborted) {
		t.Errorf("wait that is canceled: %v", err)
	}
	pushed := make(chan error, 1)
	go func() {
		_, err := p.Push(context.Background(), w.signal, 0)
		pushed <- err
	}()
	if err := p.Stop(context.Background(), time.Millisecond); !errors.Is(err, ErrTimeout) ||
		!strings.Contains(err.Error(), "trigger 0 is not done") {
		t.Errorf("stop: %v", err)
	}
	if err := <-pushed; !errors.Is(err, ErrAborted) && err != nil {
		t.Errorf("a push that stop has ended: %v", err)
	}
	if _, err := w.comms[1].OpenChannel(0, 9, ""); err != nil {
		t.Fatal(err)
	}
	if err := p.Stop(context.Background(), 0); err != nil {
		t.Fatal(err)
	}
	if err := w.ends[1].Wait(context.Background(), 64, 0); err != nil {
		t.Error(err)
	}
}

// A producer that ends between its ticket and the trigger ends the proxy, in time.
func TestProxyTicketWithoutTrigger(t *testing.T) {
	w := newPushing(t, "mem", "", patience)
	w.limit(50 * time.Millisecond)
	for _, awake := range []bool{false, true} {
		p := newProxy(t, w.world, 0, 64)
		memory, _ := p.FIFO()
		if awake {
			wait(t, p, push(t, p, w.signal))
		}
		atomic.AddUint64((*uint64)(unsafe.Add(memory, 128)), 1) // head
		after := push(t, p, w.signal)
		err := p.Wait(context.Background(), after, patience)
		if !errors.Is(err, ErrTimeout) || !strings.Contains(err.Error(), fmt.Sprintf("trigger %d: a "+
			"producer has taken its place, and not filled it in for 50ms", after-1)) {
			t.Errorf("awake: %v: %v", awake, err)
		}
	}
}

// Producers of many threads push by a few channels.
func TestProxyProducers(t *testing.T) {
	eachKind(t, func(t *testing.T, transport, kind string) {
		const producers, times = 8, 200
		w := newPushing(t, transport, kind, patience)
		p := newProxy(t, w.world, 0, 64)
		var wg sync.WaitGroup
		for i := range producers {
			wg.Go(func() {
				trigger := w.put
				trigger.Signals, trigger.Bytes = 1, 100
				trigger.SrcOffset, trigger.DstOffset = uint64(i*100), uint64(i*100)
				copy(w.own[0][i*100:], pattern(i, 100))
				for range times {
					position, err := p.Push(context.Background(), trigger, 0)
					if err == nil && i%2 == 0 {
						err = p.Wait(context.Background(), position, 0)
					}
					if err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		wg.Wait()
		if err := p.Stop(context.Background(), 0); err != nil {
			t.Fatal(err)
		}
		if err := w.ends[1].Wait(context.Background(), producers*times, 0); err != nil {
			t.Fatal(err)
		}
		for i := range producers {
			if string(w.own[1][i*100:][:100]) != string(pattern(i, 100)) {
				t.Errorf("what producer %d has put is not there", i)
			}
		}
	})
}

// A proxy ends with the peer of a trigger, with the communicator and with the epoch.
func TestProxyEnds(t *testing.T) {
	eachKind(t, func(t *testing.T, transport, kind string) {
		for name, test := range map[string]struct {
			end  func(w *pushing)
			want error
			text string
		}{
			"death":   {func(w *pushing) { w.end(1) }, ErrPeerFailed, "rank 1"},
			"left":    {func(w *pushing) { w.comms[1].Destroy() }, ErrAborted, "rank 1"},
			"closed":  {func(w *pushing) { w.ends[1].Close() }, ErrAborted, "closed"},
			"aborted": {func(w *pushing) { w.comms[0].Abort("enough") }, ErrAborted, "enough"},
			"destroyed": {func(w *pushing) { w.comms[0].Destroy() }, ErrAborted,
				"it was destroyed on this rank"},
		} {
			t.Run(name, func(t *testing.T) {
				w := newPushing(t, transport, kind, patience)
				p := newProxy(t, w.world, 0, 64)
				position := push(t, p, w.put)
				wait(t, p, position)
				waits := make(chan error, 1)
				if name == "closed" {
					waits <- test.want
				} else { // for a channel whose peer has not opened it
					unmet, err := w.comms[0].OpenChannel(1, 9, "")
					if err != nil {
						t.Fatal(err)
					}
					held := push(t, p, Trigger{Op: TriggerSignal, Signals: 1, Channel: unmet.Handle()})
					go func() { waits <- p.Wait(context.Background(), held, 0) }()
				}
				test.end(w)
				var err error
				for err == nil { // until the proxy hears of it
					_, err = p.Push(context.Background(), w.signal, 0)
				}
				if !errors.Is(err, test.want) || !strings.Contains(err.Error(), test.text) {
					t.Errorf("push: %v", err)
				}
				if err := <-waits; !errors.Is(err, test.want) {
					t.Errorf("wait: %v", err)
				}
				wait(t, p, position) // it was done before
				p.Close()
				p.Close()
				if _, err := p.Push(context.Background(), w.signal, 0); err == nil {
					t.Error("a push after the end")
				}
			})
		}
	})
}

// A proxy of the next epoch serves channels of that.
func TestProxyEpochs(t *testing.T) {
	for _, transport := range transports {
		t.Run(transport, func(t *testing.T) {
			w := newPushing(t, transport, "", patience)
			p := newProxy(t, w.world, 0, 0)
			wait(t, p, push(t, p, w.signal))
			w.each(func(rank int) error { return w.comms[rank].Renew(soon(t)) })
			if _, err := p.Push(context.Background(), w.signal, 0); !errors.Is(err, ErrAborted) {
				t.Errorf("a proxy of an epoch that is over: %v", err)
			}
			old := w.signal
			w.openEnds("")
			p = newProxy(t, w.world, 0, 0)
			wait(t, p, push(t, p, w.put))
			err := p.Wait(context.Background(), push(t, p, old), 0)
			if !errors.Is(err, ErrInvalidHandle) {
				t.Errorf("a channel of an epoch that is over: %v", err)
			}
		})
	}
}

// Proxies are closed while threads push, wait and stop, and while triggers are inside.
func TestProxyClosedUnderCalls(t *testing.T) {
	eachKind(t, func(t *testing.T, transport, kind string) {
		w := newPushing(t, transport, kind, patience)
		for range 20 {
			p, err := w.comms[0].NewProxy(64, false)
			if err != nil {
				t.Fatal(err)
			}
			var wg sync.WaitGroup
			var begun sync.WaitGroup
			for i := range 4 {
				begun.Add(1)
				wg.Go(func() {
					for n := 0; ; n++ {
						position, err := p.Push(context.Background(), w.put, 0)
						if err == nil && i == 0 {
							err = p.Wait(context.Background(), position, 0)
						}
						if n == 0 {
							begun.Done()
						}
						if errors.Is(err, ErrAborted) {
							return
						} else if err != nil {
							t.Error(err)
							return
						}
					}
				})
			}
			begun.Wait()
			wg.Go(p.Close)
			if err := p.Stop(context.Background(), 0); err != nil && !errors.Is(err, ErrAborted) {
				t.Error(err)
			}
			wg.Wait()
		}
	})
}

// BenchmarkPutByProxy tells what a put of 1 MiB costs the thread that calls it, and one that
// pushes.
func BenchmarkPutByProxy(b *testing.B) {
	for _, proxy := range []bool{false, true} {
		b.Run(fmt.Sprintf("proxy=%v", proxy), func(b *testing.B) {
			const bytes = 1 << 20
			w := newWorld(b, "tcp", 2, patience)
			board := newBoard(b, w, bytes)
			to, err := w.comms[0].OpenChannel(1, 0, "")
			if err != nil {
				b.Fatal(err)
			}
			from, err := w.comms[1].OpenChannel(0, 0, "")
			if err != nil {
				b.Fatal(err)
			}
			p := newProxy(b, w, 0, 0)
			put := Trigger{Op: TriggerPut | TriggerSignal, Signals: 1, Channel: to.Handle(),
				Dst: board.peers[0][1].Handle(), Src: board.mine[0].Handle(), Bytes: bytes}
			var took []time.Duration
			for range b.N {
				since := time.Now()
				if proxy {
					_, err = p.Push(context.Background(), put, 0)
				} else {
					err = to.Put(board.peers[0][1], 0, board.own[0], 1)
				}
				took = append(took, time.Since(since))
				if err := errors.Join(err, from.Wait(context.Background(), 1, 0)); err != nil {
					b.Fatal(err)
				}
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Nanoseconds()), "median-ns/caller")
		})
	}
}
