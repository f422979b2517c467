package transport

import (
	"sync"
	"testing"
	"time"

	"github.com/goccl/goccl/core/address"
	"github.com/goccl/goccl/core/internal/polltest"
)

// take takes a poller's token, from the progress goroutine if need be, until leave, or the test's
// end.
func take(t *testing.T, e *Endpoint) (p *Poller, leave func()) {
	t.Helper()
	p = e.Poller()
	polltest.Until(t, "the poller's token", func() bool {
		p.YieldProgress()
		return p.Take()
	})
	leave = sync.OnceFunc(p.Leave)
	t.Cleanup(leave)
	return p, leave
}

// The token's holder alone reads what comes; afterwards the progress goroutine does again.
func TestWaiterReads(t *testing.T) {
	for _, kind := range []string{address.Shm, address.TCP} {
		t.Run(kind, func(t *testing.T) {
			eps := pair(t, kind, Config{})
			w := newWorld(t, eps, kind, 1)
			ctx := within(t)
			ok(t, w.groups[0].Connect(ctx, 1))
			ok(t, w.groups[1].Connect(ctx, 0))
			p, leave := take(t, eps[1])
			frames := func() int {
				w.handlers[1].mu.Lock()
				defer w.handlers[1].mu.Unlock()
				return len(w.handlers[1].frames)
			}
			for i, h := range []Header{{Type: QuickBase}, {Type: Data}, {Type: Data}} {
				ok(t, w.groups[0].Send(ctx, 1, h, make([]byte, i*40_000)))
				if n := frames(); n != i {
					t.Fatalf("%d frames before anybody has read frame %d", n, i)
				}
				for frames() == i {
					if ctx.Err() != nil {
						t.Fatal("nothing comes")
					}
					if i == 1 {
						w.groups[1].Pump(0)
					} else {
						p.Wait(patience)
					}
				}
			}
			leave()
			ok(t, w.groups[0].Send(ctx, 1, Header{Type: QuickBase}))
			w.handlers[1].untilFrames(t, 4)
		})
	}
}

// A frame that is not quick is not handled by the token's holder.
func TestSlowFramesAreHandledElsewhere(t *testing.T) {
	eps := pair(t, address.TCP, Config{})
	w := newWorld(t, eps, address.TCP, 1)
	hold := make(chan struct{})
	letGo := sync.OnceFunc(func() { close(hold) })
	defer letGo()
	w.handlers[1].control = func(_ int, h Header, _ []byte) {
		<-hold
		w.handlers[1].mu.Lock()
		defer w.handlers[1].mu.Unlock()
		w.handlers[1].frames = append(w.handlers[1].frames, got{h: h})
		w.handlers[1].cond.Broadcast()
	}
	ctx := within(t)
	ok(t, w.groups[0].Connect(ctx, 1))
	ok(t, w.groups[1].Connect(ctx, 0))
	p, leave := take(t, eps[1])
	for i := range uint64(3) {
		ok(t, w.groups[0].Send(ctx, 1, Header{Type: ControlBase, Seq: i}))
	}
	begun := time.Now()
	p.Wait(time.Second) // has it begun, and returns
	p.Wait(0)
	if time.Since(begun) > patience/2 {
		t.Fatal("the reader has waited for a handler")
	}
	letGo()
	leave()
	for i, f := range w.handlers[1].untilFrames(t, 3) {
		if f.h.Seq != uint64(i) {
			t.Fatalf("frame %d comes as number %d", f.h.Seq, i)
		}
	}
}

func TestKick(t *testing.T) {
	p, leave := take(t, listen(t, Config{}))
	defer leave()
	for range 3 {
		back := make(chan struct{})
		go func() {
			p.Wait(-1)
			close(back)
		}()
		p.Kick()
		select {
		case <-back:
		case <-time.After(patience):
			t.Fatal("Wait does not return")
		}
	}
}

// A token's holder that wants to write, behind a writer whose socket is full, goes on reading: the
// other waits for that.
func TestWriterWaitsForWhoReads(t *testing.T) {
	eps := pair(t, address.TCP, Config{})
	w := newWorld(t, eps, address.TCP, 1)
	ctx := within(t)
	ok(t, w.groups[0].Connect(ctx, 1))
	ok(t, w.groups[1].Connect(ctx, 0))
	mine, leaveMine := take(t, eps[0])
	_, leaveTheirs := take(t, eps[1])
	sent := make(chan error, 1)
	go func() { sent <- w.groups[0].Send(ctx, 1, Header{Type: Data}, make([]byte, 64<<20)) }()
	polltest.Until(t, "the writer needs progress", func() bool { return mine.state.waiting() > 0 })
	go leaveTheirs()
	ok(t, w.groups[0].SendReading(ctx, 1, Header{Type: Data}, []byte("x")))
	ok(t, <-sent)
	leaveMine()
	if f := w.handlers[1].untilFrames(t, 2); len(f[0].payload) != 64<<20 ||
		string(f[1].payload) != "x" {
		t.Fatalf("%d and %d bytes come", len(f[0].payload), len(f[1].payload))
	}
}

func TestTrySend(t *testing.T) {
	eps := pair(t, address.TCP, Config{})
	w := newWorld(t, eps, address.TCP, 1)
	ctx := within(t)
	if w.groups[0].TrySend(1, Header{Type: QuickBase}) {
		t.Fatal("a frame is sent over no link")
	}
	ok(t, w.groups[0].Connect(ctx, 1))
	ok(t, w.groups[1].Connect(ctx, 0))
	_, leave := take(t, eps[1])
	n := 0
	for w.groups[0].TrySend(1, Header{Type: QuickBase, Seq: uint64(n)}, make([]byte, 100_000)) {
		n++
		if ctx.Err() != nil {
			t.Fatal("the socket does not fill")
		}
	}
	leave()
	for i, f := range w.handlers[1].untilFrames(t, n) {
		if f.h.Seq != uint64(i) || len(f.payload) != 100_000 {
			t.Fatalf("frame %d of %d bytes comes as number %d", f.h.Seq, len(f.payload), i)
		}
	}
}
