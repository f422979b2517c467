package core

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/goccl/goccl/core/channel"
	"github.com/goccl/goccl/core/plan"
)

// both is all rights.
const both = RemoteRead | RemoteWrite

// board is shareable memory of each rank, which all ranks know.
type board struct {
	own   [][]byte
	mine  []*Memory
	peers [][]*Memory // by rank, as each knows them
}

func newBoard(t testing.TB, w *world, bytes int) *board {
	t.Helper()
	n := len(w.comms)
	b := &board{own: make([][]byte, n), mine: make([]*Memory, n), peers: make([][]*Memory, n)}
	w.each(func(rank int) error {
		p, err := w.runtimes[rank].Alloc(int64(bytes))
		if err != nil {
			return err
		}
		t.Cleanup(func() { _ = w.runtimes[rank].Free(p) })
		b.own[rank] = unsafe.Slice((*byte)(p), bytes)
		clear(b.own[rank])
		if b.mine[rank], err = w.comms[rank].Register(p, uint64(bytes), both); err != nil {
			return err
		}
		b.peers[rank], err = w.comms[rank].Exchange(context.Background(), b.mine[rank], nil)
		return err
	})
	return b
}

// kindsOf are the kinds of channel that ranks joined by a transport may have.
func kindsOf(transport string) []string {
	if transport == "mem" || transport == "shm" {
		return []string{channel.KindMemory, channel.KindPort}
	}
	return []string{channel.KindPort}
}

// eachKind runs a test over all transports and kinds of channel.
func eachKind(t *testing.T, f func(t *testing.T, transport, kind string)) {
	for _, transport := range transports {
		for _, kind := range kindsOf(transport) {
			t.Run(transport+"/"+kind, func(t *testing.T) { f(t, transport, kind) })
		}
	}
}

func pattern(seed, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(seed*31 + i*7 + i>>8)
	}
	return b
}

// What was put is there once its signal has been taken, and what is got is there after a flush.
func TestChannelCarries(t *testing.T) {
	eachKind(t, func(t *testing.T, transport, kind string) {
		const size = 3
		w := newWorld(t, transport, size, patience)
		const room = 5 << 20
		b := newBoard(t, w, room)
		w.each(func(rank int) error {
			next, before := (rank+1)%size, (rank+size-1)%size
			to, err := w.comms[rank].OpenChannel(next, 1, kind)
			if err != nil {
				return err
			}
			defer to.Close()
			from, err := w.comms[rank].OpenChannel(before, 1, kind)
			if err != nil {
				return err
			}
			defer from.Close()
			for i, n := range []int{8, 0, 1, 4096, 4097, 64 << 10, 1 << 20, 3<<20 + 5} {
				offset := uint64(i * 100)
				if err := to.Put(b.peers[rank][next], offset, pattern(rank+i, n), 2); err != nil {
					return err
				}
				if err := from.Wait(context.Background(), 2, 0); err != nil {
					return err
				}
				if got := b.own[rank][offset:][:n]; string(got) != string(pattern(before+i, n)) {
					return fmt.Errorf("%d bytes: what was put is not there", n)
				}
				back := make([]byte, n)
				if err := to.Get(back, b.peers[rank][next], offset); err != nil {
					return err
				}
				if err := to.Flush(context.Background(), 0); err != nil {
					return err
				}
				if string(back) != string(pattern(rank+i, n)) {
					return fmt.Errorf("%d bytes: what was got is not what was put", n)
				}
				if err := from.Signal(1); err != nil { // the other may put again
					return err
				}
				if err := to.Wait(context.Background(), 1, 0); err != nil {
					return err
				}
			}
			if got := to.Kind(); got != kind {
				return fmt.Errorf("it is a %s channel", got)
			}
			// Nobody closes before all have got.
			return run(w.comms[rank], Operation{Collective: plan.Barrier})
		})
	})
}

// Bad arguments are refused at once, and name what is wrong.
func TestChannelRefuses(t *testing.T) {
	eachKind(t, func(t *testing.T, transport, kind string) {
		w := newWorld(t, transport, 3, patience)
		b := newBoard(t, w, 1000)
		c, err := w.comms[0].OpenChannel(1, 7, kind)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.comms[1].OpenChannel(0, 7, kind); err != nil {
			t.Fatal(err)
		}
		readOnly, err := w.comms[1].Register(unsafe.Pointer(&b.own[1][0]), 1000, RemoteRead)
		if err != nil {
			t.Fatal(err)
		}
		handle, err := w.comms[1].Export(readOnly)
		if err != nil {
			t.Fatal(err)
		}
		readable, err := w.comms[0].Import(1, handle[:])
		if err != nil {
			t.Fatal(err)
		}
		theirs := b.peers[0][1]
		open := func(peer, tag int, kind string) error {
			_, err := w.comms[0].OpenChannel(peer, tag, kind)
			return err
		}
		imported := func(rank int, change func([]byte)) error {
			b := handle
			change(b[:])
			_, err := w.comms[0].Import(rank, b[:])
			return err
		}
		register := func(p unsafe.Pointer, bytes uint64, access int) error {
			_, err := w.comms[0].Register(p, bytes, access)
			return err
		}
		poll := func(n uint64) error {
			_, err := c.Poll(n)
			return err
		}
		ordinary := make([]byte, 100)
		for _, test := range []struct {
			name string
			err  error
			want error
			text string
		}{
			{"past the end", c.Put(theirs, 1, make([]byte, 1000), 0), ErrInvalidArgument, "1000 bytes"},
			{"far past it", c.Put(theirs, 1<<63, make([]byte, 8), 0), ErrInvalidArgument, "offset is 922"},
			{"overflow", c.Put(theirs, ^uint64(0), make([]byte, 8), 0), ErrInvalidArgument, "offset"},
			{"get past", c.Get(make([]byte, 1001), theirs, 0), ErrInvalidArgument, "bytes is 1001"},
			{"own memory", c.Put(b.mine[0], 0, ordinary[:8], 0), ErrInvalidArgument, "this rank's own"},
			{"another's", c.Put(b.peers[0][2], 0, ordinary[:8], 0), ErrInvalidArgument, "from rank 2"},
			{"no right", c.Put(readable, 0, ordinary[:8], 0), ErrInvalidArgument, "REMOTE_WRITE"},
			{"signal 0", c.Signal(0), ErrInvalidArgument, "n is 0"},
			{"wait 0", c.Wait(context.Background(), 0, 0), ErrInvalidArgument, "n is 0"},
			{"poll 0", poll(0), ErrInvalidArgument, "n is 0"},
			{"no peer", open(3, 0, ""), ErrInvalidArgument, "peer is 3, allowed are 0 to 2"},
			{"negative peer", open(-1, 0, ""), ErrInvalidArgument, "peer is -1"},
			{"negative tag", open(1, -1, ""), ErrInvalidArgument, "tag is -1"},
			{"twice", open(1, 7, ""), ErrInvalidArgument, "tag is 7"},
			{"kind", open(1, 8, "fast"), ErrInvalidArgument, `kind is "fast"`},
			{"own port", open(0, 8, "port"), ErrUnsupported, "this rank"},
			{"changed handle", imported(1, func(b []byte) { b[40]++ }), ErrInvalidArgument, "changed"},
			{"other group", imported(1, func(b []byte) { b[24]++ }), ErrInvalidArgument, "another comm"},
			{"no handle", imported(1, func(b []byte) { clear(b) }), ErrInvalidArgument, "begins with"},
			{"rank of handle", imported(2, func(b []byte) {}), ErrInvalidArgument, "exported by rank 1"},
			{"rank", imported(9, func(b []byte) {}), ErrInvalidArgument, "rank is 9"},
			{"ordinary", register(unsafe.Pointer(&ordinary[0]), 100, both), ErrInvalidArgument,
				"goccl_mem_alloc"},
			{"too long", register(unsafe.Pointer(&b.own[0][0]), 1<<20, both), ErrInvalidArgument,
				"one block"},
			{"no rights", register(unsafe.Pointer(&b.own[0][0]), 10, 0), ErrInvalidArgument, "access is 0"},
			{"rights", register(unsafe.Pointer(&b.own[0][0]), 10, 4), ErrInvalidArgument, "access is 4"},
			{"NULL", register(nil, 10, both), ErrInvalidArgument, "NULL"},
		} {
			if !errors.Is(test.err, test.want) || !strings.Contains(test.err.Error(), test.text) {
				t.Errorf("%s: %v, want %v with %q", test.name, test.err, test.want, test.text)
			}
		}
		if kind == channel.KindPort && transport != "mem" && transport != "shm" {
			if err := open(1, 9, "memory"); !errors.Is(err, ErrUnsupported) {
				t.Errorf("memory: %v", err)
			}
		}
		// All goes on.
		if err := c.Put(theirs, 992, pattern(1, 8), 1); err != nil {
			t.Error(err)
		}
		// Deregistered by its owner: told at the call, or at the flush.
		readOnly.Deregister()
		b.mine[1].Deregister()
		err = c.Put(theirs, 0, ordinary[:8], 0)
		if err == nil {
			err = c.Flush(context.Background(), 0)
		}
		if !errors.Is(err, ErrInvalidHandle) || !strings.Contains(err.Error(), "deregistered") {
			t.Errorf("put to memory that is no more: %v", err)
		}
		err = c.Get(ordinary[:8], theirs, 0)
		if err == nil {
			err = c.Flush(context.Background(), 0)
		}
		if !errors.Is(err, ErrInvalidHandle) {
			t.Errorf("get of memory that is no more: %v", err)
		}
		theirs.Deregister()
		if err := c.Put(theirs, 0, ordinary[:8], 0); !errors.Is(err, ErrInvalidHandle) {
			t.Errorf("put to memory that was deregistered here: %v", err)
		}
		if err := c.Flush(context.Background(), 0); err != nil {
			t.Errorf("flush: %v", err)
		}
		c.Close()
		if err := c.Signal(1); !errors.Is(err, ErrAborted) || !strings.Contains(err.Error(), "closed") {
			t.Errorf("signal of a channel that is closed: %v", err)
		}
	})
}

// Waits time out, take nothing then, and may be repeated, by several threads.
func TestChannelWaits(t *testing.T) {
	eachKind(t, func(t *testing.T, transport, kind string) {
		w := newWorld(t, transport, 2, patience)
		a, err := w.comms[0].OpenChannel(1, 0, kind)
		if err != nil {
			t.Fatal(err)
		}
		err = a.Wait(context.Background(), 1, time.Millisecond)
		if !errors.Is(err, ErrTimeout) || !strings.Contains(err.Error(), "has not opened its end") ||
			!strings.Contains(err.Error(), "0 of 1 signals") {
			t.Fatalf("without a peer: %v", err)
		}
		b, err := w.comms[1].OpenChannel(0, 0, kind)
		if err != nil {
			t.Fatal(err)
		}
		if err := b.Signal(2); err != nil {
			t.Fatal(err)
		}
		if err := a.Wait(context.Background(), 3, time.Millisecond); !errors.Is(err, ErrTimeout) {
			t.Fatalf("3 of 2: %v", err)
		}
		if err := a.Wait(context.Background(), 2, 0); err != nil {
			t.Fatal(err)
		}
		if taken, err := a.Poll(1); taken || err != nil {
			t.Fatalf("polled %v, %v", taken, err)
		}
		// Many waiters get what comes, each its own.
		const waiters, times = 4, 50
		var wg sync.WaitGroup
		errs := make(chan error, waiters+1)
		for range waiters {
			wg.Go(func() {
				for range times {
					if err := a.Wait(context.Background(), 3, 0); err != nil {
						errs <- err
						return
					}
				}
			})
		}
		wg.Go(func() {
			for range waiters * times * 3 {
				if err := b.Signal(1); err != nil {
					errs <- err
					return
				}
			}
		})
		wg.Wait()
		close(errs)
		for err := range errs {
			t.Fatal(err)
		}
		if taken, err := a.Poll(1); taken || err != nil {
			t.Fatalf("more was taken or left: %v, %v", taken, err)
		}
		if err := b.Signal(1 << 32); err != nil {
			t.Fatal(err)
		}
		if err := a.Wait(context.Background(), 1<<32, 0); err != nil {
			t.Fatal(err)
		}
	})
}

// Calls in the background take their turns, whatever goroutine comes first, and each ends in time.
func TestChannelLater(t *testing.T) {
	eachKind(t, func(t *testing.T, transport, kind string) {
		w := newWorld(t, transport, 2, patience)
		b := newBoard(t, w, 1000)
		var ends [2]*Channel
		for rank := range ends {
			var err error
			if ends[rank], err = w.comms[rank].OpenChannel(1-rank, WindowTag(3), kind); err != nil {
				t.Fatal(err)
			}
		}
		to, from := ends[0], ends[1]
		begin := func(f func() error) <-chan error {
			ended := make(chan error, 1)
			go func() { ended <- f() }()
			return ended
		}
		finish := func(ended <-chan error) {
			t.Helper()
			if err := <-ended; err != nil {
				t.Fatal(err)
			}
		}

		first, hasty, last := from.WaitLater(1, 0), from.WaitLater(1, time.Millisecond),
			from.WaitLater(2, 0)
		lastEnded := begin(last)
		if err := hasty(); !errors.Is(err, ErrTimeout) || !strings.Contains(err.Error(),
			"of window 3: wait: timeout after 1ms: other waits come first") {
			t.Fatal(err)
		}
		if err := to.Signal(3); err != nil {
			t.Fatal(err)
		}
		finish(begin(first))
		finish(lastEnded)

		theirs := b.peers[0][1]
		one, two := []byte{1}, []byte{2}
		put := to.PutLater(theirs, 7, unsafe.Pointer(&one[0]), 1, 1, 0)
		signal := to.PutLater(nil, 0, nil, 0, 1, 0)
		over := to.PutLater(theirs, 7, unsafe.Pointer(&two[0]), 1, 1, 0)
		overEnded, signalEnded := begin(over), begin(signal)
		if taken, err := from.Poll(1); taken || err != nil {
			t.Fatal("a signal has come before its turn", err)
		}
		finish(begin(put))
		finish(signalEnded)
		finish(overEnded)
		if b.own[1][7] != 2 {
			t.Errorf("%d was put last, want 2", b.own[1][7])
		}
		if err := from.Wait(context.Background(), 3, 0); err != nil {
			t.Fatal(err)
		}

		waits, behind := begin(from.WaitLater(1, 0)), begin(from.WaitLater(1, 0))
		from.Close()
		for _, ended := range []<-chan error{waits, behind} {
			if err := <-ended; !errors.Is(err, ErrAborted) {
				t.Fatal(err)
			}
		}
	})
}

// An end of a tag meets the peer's of the same number, and what one side closes the other is told.
// Nothing is left of them.
func TestChannelsMeetInOrder(t *testing.T) {
	eachKind(t, func(t *testing.T, transport, kind string) {
		w := newWorld(t, transport, 2, patience)
		open := func(rank int) *Channel {
			c, err := w.comms[rank].OpenChannel(1-rank, 5, kind)
			if err != nil {
				t.Fatal(err)
			}
			return c
		}
		for range 20 {
			a := open(0)
			a.Close()
			a = open(0)
			b := open(1) // meets the first
			if err := b.Wait(context.Background(), 1, 0); !errors.Is(err, ErrAborted) ||
				!strings.Contains(err.Error(), "has closed its end") {
				t.Fatalf("the first of two: %v", err)
			}
			b.Close()
			b = open(1)
			if err := a.Signal(1); err != nil {
				t.Fatal(err)
			}
			a.Close()
			// It came before the end.
			if err := b.Wait(context.Background(), 1, 0); err != nil {
				t.Fatal(err)
			}
			if err := b.Wait(context.Background(), 1, 0); !errors.Is(err, ErrAborted) {
				t.Fatalf("the peer has closed: %v", err)
			}
			b.Close()
		}
		for rank, c := range w.comms {
			awaitText(t, c.present.Load().Channels, "0 ends, 0 pairings, 0 met, 0 waiting, 0 gets, 0 lent")
			_ = rank
		}
	})
}

// awaitText waits until a text is what it is to be.
func awaitText(t *testing.T, text func() string, want string) {
	t.Helper()
	end := time.Now().Add(patience)
	for text() != want {
		if time.Now().After(end) {
			t.Fatalf("it is %q, want %q", text(), want)
		}
		time.Sleep(time.Millisecond)
	}
}

// A rank is joined to itself, too.
func TestChannelToOneself(t *testing.T) {
	for _, size := range []int{1, 2} {
		w := newWorld(t, "shm", size, patience)
		b := newBoard(t, w, 100)
		c, err := w.comms[0].OpenChannel(0, 0, "")
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Put(b.peers[0][0], 3, pattern(1, 20), 1); err != nil {
			t.Fatal(err)
		}
		if err := c.Wait(context.Background(), 1, 0); err != nil {
			t.Fatal(err)
		}
		if string(b.own[0][3:23]) != string(pattern(1, 20)) || c.Kind() != channel.KindMemory {
			t.Error("what was put is not there")
		}
		c.Close()
	}
}

// What a user was told to be mapped stays so until it is deregistered, also when the communicator
// and its owner's have ended.
func TestMappedMemoryStays(t *testing.T) {
	w := newWorld(t, "shm", 2, patience)
	b := newBoard(t, w, 1<<20)
	copy(b.own[1], pattern(1, 1<<20))
	m := b.peers[0][1]
	p, err := w.comms[0].MapMemory(m)
	if err != nil {
		t.Fatal(err)
	}
	if m.Kept() {
		t.Error("it is kept before its communicator has ended")
	}
	w.comms[1].Destroy()
	w.comms[0].Destroy()
	if !m.Kept() {
		t.Fatal("it is not kept")
	}
	if string(unsafe.Slice((*byte)(p), 1<<20)) != string(pattern(1, 1<<20)) {
		t.Error("what is mapped has changed")
	}
	if _, err := w.comms[0].MapMemory(m); !errors.Is(err, ErrInvalidHandle) {
		t.Errorf("mapped anew: %v", err)
	}
	m.Deregister()
	if m.Kept() {
		t.Error("it is kept after it was deregistered")
	}
	m.Deregister()
}

// A peer's death ends its channels, and nothing else; what it has signalled can still be taken. A
// channel ends with its epoch.
func TestChannelsEnd(t *testing.T) {
	eachKind(t, func(t *testing.T, transport, kind string) {
		w := newWorld(t, transport, 3, patience)
		b := newBoard(t, w, 1000)
		var c [3][3]*Channel
		for from := range 3 {
			for to := range 3 {
				if from != to {
					var err error
					if c[from][to], err = w.comms[from].OpenChannel(to, 1, kind); err != nil {
						t.Fatal(err)
					}
				}
			}
		}
		if err := c[2][0].Put(b.peers[2][0], 0, pattern(5, 100), 2); err != nil {
			t.Fatal(err)
		}
		if err := c[0][2].Wait(context.Background(), 1, 0); err != nil {
			t.Fatal(err)
		}
		if err := c[2][0].Flush(context.Background(), 0); err != nil {
			t.Fatal(err)
		}
		waited := make(chan error, 1)
		go func() { waited <- c[0][2].Wait(context.Background(), 5, 0) }()
		w.comms[2].Destroy()
		if err := <-waited; !errors.Is(err, ErrAborted) || !strings.Contains(err.Error(), "rank 2") {
			t.Errorf("a wait for a rank that has left: %v", err)
		}
		if err := c[0][2].Wait(context.Background(), 1, 0); err != nil {
			t.Errorf("what came before the end: %v", err)
		}
		if err := c[0][1].Put(b.peers[0][1], 0, pattern(6, 10), 1); err != nil {
			t.Error(err)
		}
		if err := c[1][0].Wait(context.Background(), 1, 0); err != nil {
			t.Error(err)
		}
		w.comms[0].Abort("test")
		if err := c[1][0].Wait(context.Background(), 1, 0); !errors.Is(err, ErrAborted) {
			t.Errorf("after an abort: %v", err)
		}
		if err := c[0][1].Put(b.peers[0][1], 0, pattern(6, 10), 1); !errors.Is(err, ErrAborted) {
			t.Errorf("after an abort: %v", err)
		}
		w.comms[0].Destroy()
		if err := c[0][1].Signal(1); !errors.Is(err, ErrAborted) {
			t.Errorf("after destroy: %v", err)
		}
		c[0][1].Close()
		c[0][1].Close()
		b.mine[0].Deregister()
	})
}

// Memory that was imported before it was deregistered reaches nothing that lies there afterwards,
// however it is used again.
func TestStaleMemoryReachesNothing(t *testing.T) {
	eachKind(t, func(t *testing.T, transport, kind string) {
		ctx := context.Background()
		w := newWorld(t, transport, 2, patience)
		before, err := w.comms[0].OpenChannel(1, 0, kind)
		if err != nil {
			t.Fatal(err)
		}
		if _, err = w.comms[1].OpenChannel(0, 0, kind); err != nil {
			t.Fatal(err)
		}
		const bytes = 256
		var imported []*Memory
		for round := range 5 {
			p, err := w.runtimes[1].Alloc(bytes)
			if err != nil {
				t.Fatal(err)
			}
			m, err := w.comms[1].Register(p, bytes, both)
			if err != nil {
				t.Fatal(err)
			}
			handle, err := w.comms[1].Export(m)
			if err != nil {
				t.Fatal(err)
			}
			its, err := w.comms[0].Import(1, handle[:])
			if err != nil {
				t.Fatal(err)
			}
			own := unsafe.Slice((*byte)(p), bytes)
			clear(own)
			if err := before.Put(its, 0, pattern(round, 8), 0); err != nil {
				t.Fatal(err)
			}
			if err := before.Flush(ctx, 0); err != nil {
				t.Fatal(err)
			}
			// Each channel is refused all memory of the rounds before.
			late, err := w.comms[0].OpenChannel(1, 1, kind)
			if err != nil {
				t.Fatal(err)
			}
			other, err := w.comms[1].OpenChannel(0, 1, kind)
			if err != nil {
				t.Fatal(err)
			}
			for _, stale := range imported {
				for _, c := range []*Channel{before, late} {
					err := c.Put(stale, 8, pattern(99, 100), 1)
					if err == nil {
						err = c.Flush(ctx, 0)
					}
					if !errors.Is(err, ErrInvalidHandle) {
						t.Fatalf("round %d: %v", round, err)
					}
				}
			}
			if taken, err := other.Poll(1); taken || err != nil {
				t.Errorf("a signal without its data: %v, %v", taken, err)
			}
			if string(own) != string(append(pattern(round, 8), make([]byte, bytes-8)...)) {
				t.Fatalf("round %d: something was put to memory of which nobody knows", round)
			}
			late.Close()
			other.Close()
			imported = append(imported, its)
			m.Deregister()
			if err := w.runtimes[1].Free(p); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// What is wrong with a put is told at the call, also where the peer has not opened its end.
func TestChannelChecksBeforeItMeets(t *testing.T) {
	w := newWorld(t, "shm", 2, patience)
	b := newBoard(t, w, 100)
	c, err := w.comms[0].OpenChannel(1, 0, "")
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Put(b.peers[0][1], 99, make([]byte, 2), 0); !errors.Is(err, ErrInvalidArgument) {
		t.Error(err)
	}
}
