package transport

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goccl/goccl/core/address"
	"github.com/goccl/goccl/core/internal/polltest"
)

func TestFrames(t *testing.T) {
	for _, kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			w := newWorld(t, pair(t, kind, Config{}), kind, 2)
			ctx := within(t)
			ok(t, w.groups[0].Connect(ctx, 1))
			if !w.groups[0].Connected(1) {
				t.Fatal("not connected after Connect")
			}
			for i, n := range []int{0, 1, 63, 4096, 100_000, MaxControl} {
				p := bytes.Repeat([]byte{byte(i + 1)}, n)
				ok(t, w.groups[0].Send(ctx, 1,
					Header{Type: ControlBase, Flags: 3, Seq: uint64(i), Arg: [2]uint64{4, 5}},
					p[:n/2], p[n/2:]))
				ok(t, w.groups[1].Send(ctx, 0, Header{Type: Data, Seq: uint64(i)}, p))
			}
			for i, f := range w.handlers[1].untilFrames(t, 6) {
				if f.src != 0 || f.h.Seq != uint64(i) || f.h.Type != ControlBase ||
					f.h.Flags != 3 || f.h.Arg != [2]uint64{4, 5} ||
					f.h.Job != 1 || f.h.Group != 2 || f.h.Epoch != 5 || f.h.Dst != 1 ||
					len(f.payload) != int(f.h.Bytes) {
					t.Fatalf("frame %d: %+v", i, f.h)
				}
			}
			for i, f := range w.handlers[0].untilFrames(t, 6) {
				if f.h.Type != Data || f.h.Seq != uint64(i) ||
					!bytes.Equal(f.payload, bytes.Repeat([]byte{byte(i + 1)}, int(f.h.Bytes))) {
					t.Fatalf("data %d: %+v", i, f.h)
				}
			}
			w.groups[0].Broadcast(Header{Type: 200, Seq: 9}, []byte("abort"))
			if f := w.handlers[1].untilFrames(t, 7)[6]; f.h.Type != 200 ||
				string(f.payload) != "abort" {
				t.Fatalf("broadcast: %+v", f)
			}
			w.groups[0].Detach()
			w.handlers[1].until(t, "BYE", func() bool { return w.handlers[1].left[0] })
			wants(t, w.groups[1].Send(ctx, 0, Header{Type: ControlBase}), ErrPeerLeft)
			wants(t, w.groups[0].Send(ctx, 1, Header{Type: ControlBase}), ErrClosed)
			if o := w.handlers[1].order; o[0] != "attached 0" || o[len(o)-1] != "left 0" {
				t.Fatalf("order of events: %v", o)
			}
			if len(w.handlers[1].down)+len(w.handlers[0].down) > 0 {
				t.Fatal("leaving in good order is not a failure")
			}
		})
	}
}

func TestBadArguments(t *testing.T) {
	eps := pair(t, address.TCP, Config{})
	w := newWorld(t, eps, address.TCP, 2)
	ctx := within(t)
	for name, err := range map[string]error{
		"own rank":      w.groups[0].Send(ctx, 0, Header{Type: Data}),
		"rank too high": w.groups[0].Connect(ctx, 2),
		"negative rank": w.groups[0].Connect(ctx, -1),
		"reserved type": w.groups[0].Send(ctx, 1, Header{Type: typeBye}),
		"large control": w.groups[0].Send(ctx, 1, Header{Type: ControlBase},
			make([]byte, MaxControl+1)),
		"attached twice": func() error {
			c := groupConfig(eps, address.TCP, 2, 0)
			c.Handler = newRecorder()
			_, err := eps[0].Attach(c)
			return err
		}(),
		"short secret": func() error {
			c := groupConfig(eps, address.TCP, 3, 0)
			c.Handler, c.Secret = newRecorder(), nil
			_, err := eps[0].Attach(c)
			return err
		}(),
		"wrong kind": func() error {
			c := groupConfig(eps, "carrier pigeon", 3, 0)
			c.Handler = newRecorder()
			_, err := eps[0].Attach(c)
			return err
		}(),
		"wrong interface": func() error {
			_,
				err := Listen(Config{Interface: "nosuch0"})
			return err
		}(),
		"negative grace": func() error { _, err := Listen(Config{Grace: -1}); return err }(),
	} {
		if err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestWindowsAreHandedOver(t *testing.T) {
	for _, kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			eps := pair(t, kind, Config{})
			var gs []*Group
			var hs []*recorder
			for r, e := range eps {
				c := groupConfig(eps, kind, 4, r)
				c.Share = []int{memfd(t, fmt.Sprint("window ", r)),
					memfd(t, fmt.Sprint("memory ", r))}
				hs = append(hs, newRecorder())
				gs = append(gs, attach(t, e, c, hs[r]))
			}
			ok(t, gs[1].Connect(within(t), 0))
			hs[0].until(t, "attach", func() bool { return len(hs[0].attached) > 0 })
			for r, h := range hs {
				fds := h.attached[1-r]
				if address.IsPort(kind) {
					if len(fds) != 0 {
						t.Fatalf("descriptors %v over %s", fds, kind)
					}
					continue
				}
				if len(fds) != 2 {
					t.Fatalf("rank %d got descriptors %v", r, fds)
				}
				for i, fd := range fds {
					b := make([]byte, 8)
					_, err := unix.Pread(fd, b, 0)
					ok(t, err)
					if want := fmt.Sprint([]string{"window ", "memory "}[i],
						1-r); string(b) != want {
						t.Fatalf("rank %d got %q, want %q", r, b, want)
					}
					unix.Close(fd)
				}
			}
		})
	}
}

// Both sides dial at once, many times over: there is always one link, and both ends agree.
func TestSimultaneousDial(t *testing.T) {
	for _, kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			for range 30 {
				eps := pair(t, kind, Config{})
				w := newWorld(t, eps, kind, 2)
				ctx := within(t)
				var wg sync.WaitGroup
				for i := range 8 {
					wg.Go(func() {
						if err := w.groups[i%2].Send(ctx, 1-i%2, Header{Type: ControlBase},
							[]byte{byte(i)}); err != nil {
							t.Error(err)
						}
					})
				}
				wg.Wait()
				w.handlers[0].untilFrames(t, 4)
				w.handlers[1].untilFrames(t, 4)
				for _, e := range eps {
					e.mu.Lock()
					if n := len(e.links); kind != address.Mem && n != 1 {
						t.Errorf("%d links", n)
					}
					e.mu.Unlock()
				}
				for _, e := range eps {
					ok(t, e.Close())
				}
			}
		})
	}
}

// One side attaches long after the other has begun to connect.
func TestSkewedAttach(t *testing.T) {
	for _, kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			var here sockets
			eps := pair(t, kind, Config{OnFD: here.note})
			// the first has no link yet, the others have
			for group := uint64(1); group <= 3; group++ {
				before, _ := here.seen()
				h0, h1 := newRecorder(), newRecorder()
				g0 := attach(t, eps[0], groupConfig(eps, kind, group, 0), h0)
				sent := make(chan error, 1)
				go func() { sent <- g0.Send(within(t), 1, Header{Type: ControlBase}) }()
				if kind != address.Mem {
					// Not before the other side has heard of the group.
					polltest.Until(t, "news of the group", func() bool {
						opened, _ := here.seen()
						heard := opened >= before+2 // the dialer's end, and the other
						eps[1].mu.Lock()
						defer eps[1].mu.Unlock()
						for l := range eps[1].links {
							l.mu.Lock()
							heard = heard || len(l.pending) > 0
							l.mu.Unlock()
						}
						return heard
					})
				}
				attach(t, eps[1], groupConfig(eps, kind, group, 1), h1)
				ok(t, <-sent)
				h1.untilFrames(t, 1)
			}
		})
	}
}

func TestLateForTheGroup(t *testing.T) {
	for _, kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			eps := pair(t, kind, Config{})
			first := newWorld(t, eps, kind, 1)
			for group := uint64(2); group <= 3; group++ { // 2: without a link, 3: with one
				w := newWorld(t, eps, kind, group)
				w.groups[1].Detach()
				wants(t, w.groups[0].Connect(within(t), 1), ErrPeerLeft)
				w.handlers[0].until(t, "PeerLeft", func() bool { return w.handlers[0].left[1] })
				ok(t, first.groups[0].Connect(within(t), 1))
			}
		})
	}
}

func TestEpochs(t *testing.T) {
	for _, kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			eps := pair(t, kind, Config{})
			w := newWorld(t, eps, kind, 1)
			ctx := within(t)
			ok(t, w.groups[0].Connect(ctx, 1))
			// Rank 0 moves on to epoch 6 first.
			w.groups[0].Detach()
			next := func(r int) (*Group, *recorder) {
				c := groupConfig(eps, kind, 1, r)
				c.Epoch = 6
				h := newRecorder()
				return attach(t, eps[r], c, h), h
			}
			g0, _ := next(0)
			sent := make(chan error, 1)
			go func() { sent <- g0.Send(ctx, 1, Header{Type: ControlBase}) }()
			w.handlers[1].until(t, "BYE", func() bool { return w.handlers[1].left[0] })
			w.groups[1].Detach()
			_, h1 := next(1)
			ok(t, <-sent)
			if f := h1.untilFrames(t, 1)[0]; f.h.Epoch != 6 {
				t.Fatalf("epoch %d", f.h.Epoch)
			}
		})
	}
}

func TestManyGroupsShareALink(t *testing.T) {
	const groups = 200
	for _, kind := range []string{address.Shm, address.TCP} {
		t.Run(kind, func(t *testing.T) {
			eps := pair(t, kind, Config{})
			var ws []*world
			for i := range groups {
				ws = append(ws, newWorld(t, eps, kind, uint64(i)))
			}
			var wg sync.WaitGroup
			for i, w := range ws {
				wg.Go(func() {
					if err := w.groups[i%2].Send(within(t), 1-i%2,
						Header{Type: ControlBase, Seq: uint64(i)}); err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
			for i, w := range ws {
				if f := w.handlers[1-i%2].untilFrames(t, 1); f[0].h.Seq != uint64(i) {
					t.Fatalf("group %d got %+v", i, f)
				}
			}
			var links []*link
			eps[0].mu.Lock()
			links = eps[0].allLinks()
			eps[0].mu.Unlock()
			if len(links) != 1 {
				t.Fatalf("%d links", len(links))
			}
			if n := len(goroutines()); n > 20 {
				t.Fatalf("%d goroutines for %d groups", n, groups)
			}
			for _, w := range ws {
				w.groups[0].Detach()
				w.groups[1].Detach()
			}
			// With no group left, the link goes.
			select {
			case <-links[0].done:
			case <-time.After(patience):
				t.Fatal("the link stays without a group")
			}
		})
	}
}

// A link is retired by one side just when the other begins to use it: nobody is lost.
func TestRetireWhileConnecting(t *testing.T) {
	for _, kind := range []string{address.Shm, address.TCP} {
		t.Run(kind, func(t *testing.T) {
			eps := pair(t, kind, Config{})
			for i := range 50 {
				w := newWorld(t, eps, kind, uint64(2*i))
				ok(t, w.groups[0].Connect(within(t), 1))
				w.groups[0].Detach()
				w.groups[1].Detach()
				eps[0].mu.Lock()
				links := eps[0].allLinks()
				eps[0].mu.Unlock()
				var wg sync.WaitGroup
				for _, l := range links {
					wg.Go(func() { l.retire(false) })
				}
				next := newWorld(t, eps, kind, uint64(2*i+1))
				for r := range 2 {
					wg.Go(func() {
						if err := next.groups[r].Send(within(t), 1-r,
							Header{Type: ControlBase}); err != nil {
							t.Error(err)
						}
					})
				}
				wg.Wait()
				for r := range 2 {
					next.handlers[r].untilFrames(t, 1)
				}
				next.groups[0].Detach()
				next.groups[1].Detach()
			}
		})
	}
}

// A handler that is stuck in rank 1 fills the link; a Send that is interrupted then leaves the
// stream whole.
func TestInterruptedSend(t *testing.T) {
	for _, kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			w := newWorld(t, pair(t, kind, Config{}), kind, 1)
			ctx := within(t)
			hold := make(chan struct{})
			letGo := sync.OnceFunc(func() { close(hold) })
			defer letGo()
			var mu sync.Mutex
			var seqs []uint64
			bad := false
			done := make(chan struct{})
			w.handlers[1].control = func(_ int, h Header, p []byte) {
				<-hold
				mu.Lock()
				defer mu.Unlock()
				seqs = append(seqs, h.Seq)
				bad = bad || !bytes.Equal(p, bytes.Repeat([]byte{byte(h.Seq)}, len(p)))
				if h.Seq == 1<<40 {
					close(done)
				}
			}
			ok(t, w.groups[0].Connect(ctx, 1))
			payload := make([]byte, 100_000)
			sent := uint64(0)
			interrupted := 0
			for interrupted < 3 {
				sent++
				for i := range payload {
					payload[i] = byte(sent)
				}
				sctx, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
				err := w.groups[0].Send(sctx, 1, Header{Type: ControlBase, Seq: sent}, payload)
				cancel()
				clear(payload) // it is ours again
				if err != nil {
					wants(t, err, context.DeadlineExceeded)
					interrupted++
				}
			}
			// Broadcast does not block on the full link, nor grow without end.
			for range 100 {
				w.groups[0].Broadcast(Header{Type: ControlBase, Seq: 0}, make([]byte, MaxControl))
			}
			letGo()
			ok(t, w.groups[0].Send(ctx, 1, Header{Type: ControlBase, Seq: 1 << 40}))
			select {
			case <-done:
			case <-time.After(patience):
				t.Fatal("the last frame does not come")
			}
			mu.Lock()
			defer mu.Unlock()
			last := uint64(0)
			for _, s := range seqs {
				if s != 0 && s <= last {
					t.Fatalf("order: %v", seqs)
				}
				last = max(last, s)
			}
			if bad {
				t.Fatal("a payload is damaged")
			}
		})
	}
}

func TestBigDataBothWays(t *testing.T) {
	const count, size = 40, 1 << 20
	for _, kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			w := newWorld(t, pair(t, kind, Config{}), kind, 1)
			ctx := within(t)
			var payloads [2][]byte
			var wg sync.WaitGroup
			for r := range 2 {
				payloads[r] = make([]byte, size)
				for i := range payloads[r] {
					payloads[r][i] = byte(rand.Uint32())
				}
				wg.Go(func() {
					for i := range count {
						if err := w.groups[r].Send(ctx, 1-r, Header{Type: Data, Seq: uint64(i)},
							payloads[r][:1000], payloads[r][1000:]); err != nil {
							t.Error(err)
							return
						}
					}
				})
			}
			wg.Wait()
			for r := range 2 {
				for i, f := range w.handlers[r].untilFrames(t, count) {
					if f.h.Seq != uint64(i) || !bytes.Equal(f.payload, payloads[1-r]) {
						t.Fatalf("rank %d, frame %d is damaged", r, i)
					}
				}
			}
		})
	}
}

// Detach while a payload is coming in that never ends: the memory is free when it returns.
func TestDetachDuringAPayload(t *testing.T) {
	for _, kind := range []string{address.Shm, address.TCP} {
		t.Run(kind, func(t *testing.T) {
			eps := pair(t, kind, Config{})
			w, other := newWorld(t, eps, kind, 1), newWorld(t, eps, kind, 2)
			ctx := within(t)
			begun := make(chan []byte, 1)
			w.handlers[1].slot = func(_ int, h Header) ([]byte, error) {
				b := make([]byte, h.Bytes)
				begun <- b
				return b, nil
			}
			ok(t, w.groups[0].Connect(ctx, 1))
			ok(t, other.groups[0].Connect(ctx, 1))
			k := w.groups[0].members[1].ready.Load().link
			h := Header{Type: Data, Job: 1, Group: 1, Epoch: 5, Dst: 1, Bytes: 100_000}
			var raw [headerSize]byte
			h.put(&raw)
			k.conn.Write(append(raw[:], make([]byte, 60_000)...))
			slot := <-begun
			w.groups[1].Detach()
			// the race detector sees a reader that goes on
			copy(slot, bytes.Repeat([]byte{9}, len(slot)))
			k.conn.Write(make([]byte, 40_000))
			ok(t, other.groups[0].Send(ctx, 1, Header{Type: ControlBase}))
			other.handlers[1].untilFrames(t, 1)
			if !bytes.Equal(slot, bytes.Repeat([]byte{9}, len(slot))) {
				t.Fatal("written to after Detach")
			}
		})
	}
}

func TestPanicInAHandler(t *testing.T) {
	for _, kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			l := newLogbook()
			w := newWorld(t, pair(t, kind, Config{Logger: l.logger()}), kind, 1)
			w.handlers[1].control = func(int, Header, []byte) { panic("deliberate") }
			ok(t, w.groups[0].Send(within(t), 1, Header{Type: ControlBase}))
			wants(t, w.handlers[1].untilDown(t, 0), ErrPeerDown)
			wants(t, w.handlers[0].untilDown(t, 1), ErrPeerDown)
			if lines := l.wait(t, 1); !strings.Contains(lines[0], "deliberate") {
				t.Fatalf("log: %q", lines)
			}
			w.groups[1].Detach()
		})
	}
}

// An endpoint that closes leaves no goroutine, no descriptor, and keeps OnFD's books in order.
func TestNothingIsLeft(t *testing.T) {
	before := openFDs(t)
	var mu sync.Mutex
	open := map[int]bool{}
	onFD := func(fd int, o bool) {
		mu.Lock()
		defer mu.Unlock()
		if open[fd] == o || fd < 0 {
			t.Errorf("descriptor %d: open=%v reported twice", fd, o)
		}
		open[fd] = o
	}
	for _, kind := range kinds {
		eps := pair(t, kind, Config{OnFD: onFD, Grace: time.Second})
		c, err := net.Dial("tcp", eps[1].Address().TCP[0]) // one that says nothing
		ok(t, err)
		w := newWorld(t, eps, kind, 1)
		ok(t, w.groups[0].Connect(within(t), 1))
		late := attach(t, eps[0], groupConfig(eps, kind, 2, 0), newRecorder())
		ended := make(chan error, 1)
		go func() { ended <- late.Connect(context.Background(), 1) }() // nobody comes
		ok(t, eps[0].Close())
		ok(t, eps[1].Close())
		wants(t, <-ended, ErrClosed)
		c.Close()
		if _, err := eps[0].Attach(groupConfig(eps, kind, 9, 0)); err == nil {
			t.Error("Attach after Close")
		}
	}
	// One that has said that it ends may yet be seen for a moment.
	g := goroutines()
	for start := time.Now(); len(g) > 0 && time.Since(start) < patience; g = goroutines() {
		time.Sleep(time.Millisecond)
	}
	if len(g) > 0 {
		t.Errorf("goroutines are left:\n%s", strings.Join(g, "\n\n"))
	}
	for fd, o := range open {
		if o {
			t.Errorf("descriptor %d was never reported closed", fd)
		}
	}
	for to, n := range openFDs(t) {
		if n > before[to] {
			t.Errorf("descriptor left: %s", to)
		}
	}
}

// leaver leaves its group while a peer is attaching to it.
type leaver struct {
	*recorder
	group *Group
	left  chan struct{}
}

func (l *leaver) PeerAttached(src int, fds []int) {
	l.recorder.PeerAttached(src, fds)
	go func() {
		l.group.Detach()
		close(l.left)
	}()
	for !l.group.members[src].over.Load() { // it has parted from this peer
		runtime.Gosched()
	}
}

func TestDetachWhileAPeerAttaches(t *testing.T) {
	eps := pair(t, address.Shm, Config{})
	h := newRecorder()
	a := attach(t, eps[0], groupConfig(eps, address.Shm, 1, 0), h)
	l := &leaver{recorder: newRecorder(), left: make(chan struct{})}
	c := groupConfig(eps, address.Shm, 1, 1)
	c.Handler = l
	g, err := eps[1].Attach(c)
	ok(t, err)
	l.group = g
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := a.Connect(ctx, 1); err != nil { // it may succeed before the goodbye
		wants(t, err, ErrPeerLeft)
	}
	h.until(t, "rank 1's goodbye", func() bool { return h.left[1] })
	<-l.left
}
