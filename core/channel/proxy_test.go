package channel

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/goccl/goccl/core/exec"
	"github.com/goccl/goccl/core/fault"
)

// proxyOf makes a proxy whose goroutine does not run: a test takes triggers itself, by step.
func proxyOf(t testing.TB, r *rank) *Proxy {
	t.Helper()
	p, err := r.NewProxy(64, false)
	if err != nil {
		t.Fatal(err)
	}
	r.w.tasks = r.w.tasks[:len(r.w.tasks)-1]
	return p
}

// endOf ends a proxy of proxyOf, whose goroutine has ended at once.
func (p *Proxy) endOf() {
	p.Close()
	p.serve()
}

// step carries out what was pushed.
func (p *Proxy) step(w *world) {
	t, position, ok := p.fifo.Take()
	if ok {
		p.carry(position, t)
	}
	w.settle()
}

// What a get fills is not allocated again before it has come, also where the proxy has ended, and
// its memory was deregistered.
func TestProxyHoldsMemory(t *testing.T) {
	w, _, peer, theirs := opened01(t, true)
	r := w.ranks[1]
	for i := range w.ranks[0].registered() {
		w.ranks[0].registered()[i] = 7
	}
	p := proxyOf(t, r)
	get := exec.Trigger{Op: exec.TriggerGet, Channel: peer.Handle(), Dst: r.own.Handle(),
		Src: theirs.Handle(), Bytes: room}
	if _, ok := p.fifo.TryPush(get); !ok {
		t.Fatal("it is full")
	}
	trigger, position, _ := p.fifo.Take()
	p.carry(position, trigger)
	w.run() // the request is on its way
	p.endOf()
	r.own.Deregister()
	w.run()
	block := unsafe.Pointer(unsafe.SliceData(r.block))
	if err := r.arena.Free(block); err != nil {
		t.Fatal(err)
	}
	allocated := func() bool {
		at, err := r.arena.Alloc(int64(len(r.block)))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = r.arena.Free(at) }()
		return at == block
	}
	if allocated() {
		t.Error("allocated again while a get is under way")
	}
	w.settle()
	w.correct()
	if !allocated() {
		t.Error("not allocated again")
	}
	at, err := r.arena.Alloc(1) // which the world frees
	if err != nil {
		t.Fatal(err)
	}
	r.block = unsafe.Slice((*byte)(at), 1)
}

// Whatever lies in a trigger, the proxy carries out what is right, and ends with a typed error that
// names the position. Memory changes where it is registered with the right only, and the peer is
// sent what a correct rank sends.
func FuzzTriggers(f *testing.F) {
	const bytes = 64
	trigger := func(words ...uint64) (b []byte) {
		for _, w := range words {
			b = binary.LittleEndian.AppendUint64(b, w)
		}
		return b
	}
	f.Add(trigger(exec.TriggerPut|exec.TriggerSignal|1<<32, 0, 1, 0, 8, 16, 24))
	f.Add(trigger(exec.TriggerGet|exec.TriggerFlush, 0, 0, 1, 8, 16, 24))
	f.Add(trigger(exec.TriggerPut, 0, 2, 3, room, 0, 1))
	f.Fuzz(func(t *testing.T, b []byte) {
		defer time.AfterFunc(5*time.Second, func() { panic("it hangs") }).Stop()
		ports := len(b)%2 == 0
		w, peer, c, theirs := opened01(t, ports)
		r := w.ranks[1]
		readable, err := w.ranks[0].Memories.Register(unsafe.Pointer(&w.ranks[0].block[0]), 16,
			exec.RemoteRead)
		if err != nil {
			t.Fatal(err)
		}
		closed := r.open(0, 6, "")
		channels := []uint64{c.Handle(), peer.Handle(), closed.Handle()}
		closed.Close()
		memories := []uint64{r.own.Handle(), theirs.Handle(),
			w.ranks[1].imported(readable, 0).Handle(), w.ranks[0].own.Handle()}
		p := proxyOf(t, r)
		for ; len(b) >= bytes; b = b[bytes:] {
			word := func(i int) uint64 { return binary.LittleEndian.Uint64(b[8*i:]) }
			given := exec.Trigger{Op: uint32(word(0)), Signals: uint32(word(0) >> 32), Channel: word(1),
				Dst: word(2), Src: word(3), DstOffset: word(4), SrcOffset: word(5), Bytes: word(6)}
			if given.Channel < uint64(len(channels)) {
				given.Channel = channels[given.Channel]
			}
			for _, m := range []*uint64{&given.Dst, &given.Src} {
				if *m < uint64(len(memories)) {
					*m = memories[*m]
				}
			}
			if ports { // nobody answers meanwhile
				given.Op &^= exec.TriggerFlush
			}
			position, ok := p.fifo.TryPush(given)
			if !ok {
				t.Fatal("it is full")
			}
			p.step(w)
			var cause *fault.Error
			switch {
			case p.fifo.Done(position) == p.over.Load():
				t.Fatalf("%+v: done: %v", given, p.fifo.Done(position))
			case !p.over.Load():
				continue
			case !errors.As(p.ended("wait"), &cause) ||
				!strings.Contains(cause.Text, fmt.Sprintf("trigger %d: ", position)) ||
				cause.Kind != fault.ErrInvalidArgument && cause.Kind != fault.ErrInvalidHandle:
				t.Fatalf("%+v: %v", given, p.ended("wait"))
			}
			p.endOf()
			p = proxyOf(t, r)
		}
		p.endOf()
		w.correct()
		readable.Deregister()
		for _, r := range w.ranks[:2] {
			unregistered(t, r)
			for _, c := range r.all() {
				c.Close()
			}
		}
		w.close()
		w.ranks = nil
	})
}

// Producers, and peers that map the memory, may write whatever they like to the words that tell
// what is done: the proxy goes on, and believes none of it.
func TestProxyWithForeignWords(t *testing.T) {
	w, c, peer, _ := opened01(t, false)
	p := proxyOf(t, w.ranks[0])
	defer p.endOf()
	at, bytes := p.FIFO()
	words := int64(p.fifo.Size()) * 8
	for i := range words {
		*(*byte)(unsafe.Add(at, bytes-words+i)) = 0xff
	}
	for range 3 {
		signal := exec.Trigger{Op: exec.TriggerSignal, Signals: 1, Channel: c.Handle()}
		if _, ok := p.fifo.TryPush(signal); !ok {
			t.Fatal("it is full")
		}
		p.step(w)
	}
	if taken, err := peer.Poll(3); !taken || err != nil {
		t.Errorf("3 signals have not come: %v", err)
	}
	if p.oldest != 3 || p.fifo.Done(3) {
		t.Errorf("trigger %d is the first that is not done, want 3", p.oldest)
	}
	w.correct()
}
