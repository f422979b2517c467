package core

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/goccl/goccl/core/plan"
)

// pairOf is the two ends of a channel, which have met.
func pairOf(t testing.TB, w *world, tag int, kind string) (a, b *Channel) {
	t.Helper()
	var ends [2]*Channel
	w.each(func(rank int) (err error) {
		if rank < 2 {
			ends[rank], err = w.comms[rank].OpenChannel(1-rank, tag, kind)
		}
		return err
	})
	return ends[0], ends[1]
}

// Puts of several threads, collectives, sends and another communicator of the same ranks use the
// links at once, and each gets what is its own.
func TestChannelBesideAll(t *testing.T) {
	eachKind(t, func(t *testing.T, transport, kind string) {
		const times, piece = 20, 20_000
		w := newWorld(t, transport, 2, patience)
		other := worldOfRuntimes(t, w.runtimes, transport, 2, Config{Timeout: patience})
		var beside sync.WaitGroup
		errs := make(chan error, 20)
		also := func(f func() error) {
			beside.Go(func() {
				if err := f(); err != nil {
					errs <- err
				}
			})
		}
		for i, x := range []*world{w, other} {
			b := newBoard(t, x, 4*piece)
			for thread := range 2 {
				to, from := pairOf(t, x, thread, kind)
				also(func() error {
					for k := range times {
						data := pattern(100*i+10*thread+k, piece)
						offset := uint64(thread * piece)
						if err := to.Put(b.peers[0][1], offset, data, 1); err != nil {
							return err
						}
						if err := to.Flush(context.Background(), 0); err != nil {
							return err
						}
						if err := to.Wait(context.Background(), 1, 0); err != nil {
							return err
						}
					}
					return nil
				})
				also(func() error {
					for k := range times {
						if err := from.Wait(context.Background(), 1, 0); err != nil {
							return err
						}
						if string(b.own[1][thread*piece:][:piece]) != string(pattern(100*i+10*thread+k, piece)) {
							return fmt.Errorf("put %d of thread %d is not there", k, thread)
						}
						if err := from.Signal(1); err != nil {
							return err
						}
					}
					return nil
				})
			}
		}
		for rank, c := range w.comms {
			also(func() error {
				for range times {
					if err := run(c, allReduce(t, 5000)); err != nil {
						return err
					}
				}
				return nil
			})
			also(func() error {
				for range times {
					op := sendOp(buffer(t, 30_000), 1, 3)
					if rank == 1 {
						op = recvOp(buffer(t, 30_000), 0, 3)
					}
					if err := run(c, op); err != nil {
						return err
					}
				}
				return nil
			})
		}
		beside.Wait()
		close(errs)
		for err := range errs {
			t.Error(err)
		}
	})
}

// Gets of both sides at once, of more than sockets hold, end.
func TestGetsBothWays(t *testing.T) {
	eachKind(t, func(t *testing.T, transport, kind string) {
		const size, times = 6 << 20, 2
		w := newWorld(t, transport, 2, patience)
		b := newBoard(t, w, size)
		for rank := range b.own {
			copy(b.own[rank], pattern(rank, size))
		}
		var c [2]*Channel
		c[0], c[1] = pairOf(t, w, 0, kind)
		w.each(func(rank int) error {
			var back [times][]byte
			for i := range back {
				back[i] = make([]byte, size)
				if err := c[rank].Get(back[i], b.peers[rank][1-rank], 0); err != nil {
					return err
				}
			}
			if err := c[rank].Flush(context.Background(), 0); err != nil {
				return err
			}
			for i := range back {
				if string(back[i]) != string(pattern(1-rank, size)) {
					return fmt.Errorf("what was got is not the peer's")
				}
			}
			return nil
		})
	})
}

// Memory that is deregistered while peers put to it may be freed and allocated again at once: no
// put lands there.
func TestDeregisterUnderPuts(t *testing.T) {
	eachKind(t, func(t *testing.T, transport, kind string) {
		const size, rounds, threads = 100_000, 8, 2
		w := newWorld(t, transport, 2, patience)
		to, _ := pairOf(t, w, 0, kind)
		alloc := func() unsafe.Pointer {
			p, err := w.runtimes[1].Alloc(size)
			if err != nil {
				t.Fatal(err)
			}
			return p
		}
		data := make([]byte, size)
		for i := range data {
			data[i] = 0xaa
		}
		for range rounds {
			p := alloc()
			mine, err := w.comms[1].Register(p, size, both)
			if err != nil {
				t.Fatal(err)
			}
			handle, err := w.comms[1].Export(mine)
			if err != nil {
				t.Fatal(err)
			}
			theirs, err := w.comms[0].Import(1, handle[:])
			if err != nil {
				t.Fatal(err)
			}
			var puts atomic.Int64
			var putters sync.WaitGroup
			ends := make([]error, threads)
			for i := range threads {
				putters.Go(func() {
					for ends[i] == nil {
						if ends[i] = to.Put(theirs, 0, data[:size-i*97_000], 0); ends[i] == nil {
							ends[i] = to.Flush(context.Background(), 0)
						}
						puts.Add(1)
					}
				})
			}
			for end := time.Now().Add(patience); puts.Load() < 3; time.Sleep(time.Millisecond / 10) {
				if time.Now().After(end) {
					t.Fatal("the puts do not begin")
				}
			}
			mine.Deregister()
			if err := w.runtimes[1].Free(p); err != nil {
				t.Fatal(err)
			}
			var again [3]unsafe.Pointer
			for i := range again {
				again[i] = alloc()
				for k := range unsafe.Slice((*byte)(again[i]), size) {
					unsafe.Slice((*byte)(again[i]), size)[k] = 0x55
				}
			}
			putters.Wait()
			for _, p := range again {
				for k, v := range unsafe.Slice((*byte)(p), size) {
					if v != 0x55 {
						t.Fatalf("byte %d of other memory is %#x", k, v)
					}
				}
				if err := w.runtimes[1].Free(p); err != nil {
					t.Fatal(err)
				}
			}
			for _, err := range ends {
				if !errors.Is(err, ErrInvalidHandle) {
					t.Fatalf("a put to memory that was deregistered: %v", err)
				}
			}
			_ = to.Flush(context.Background(), 0) // what threads have lost, or the other's answer told
			theirs.Deregister()
		}
	})
}

// Whatever ends a channel, calls under way and later ones return with its cause.
func TestChannelEndsUnderCalls(t *testing.T) {
	over := []error{ErrAborted, ErrPeerFailed, ErrRevoked}
	for name, end := range map[string]func(w *world, c [2]*Channel){
		"close here":    func(w *world, c [2]*Channel) { c[0].Close() },
		"close there":   func(w *world, c [2]*Channel) { c[1].Close() },
		"close both":    func(w *world, c [2]*Channel) { c[1].Close(); c[0].Close() },
		"destroy here":  func(w *world, c [2]*Channel) { w.comms[0].Destroy() },
		"destroy there": func(w *world, c [2]*Channel) { w.comms[1].Destroy() },
		"destroy both": func(w *world, c [2]*Channel) {
			w.each(func(rank int) error { w.comms[rank].Destroy(); return nil })
		},
		"abort":  func(w *world, c [2]*Channel) { w.comms[0].Abort("test") },
		"revoke": func(w *world, c [2]*Channel) { w.comms[1].Revoke("test") },
	} {
		t.Run(name, func(t *testing.T) {
			eachKind(t, func(t *testing.T, transport, kind string) {
				const size = 300_000
				w := newWorld(t, transport, 2, patience)
				b := newBoard(t, w, size)
				var c [2]*Channel
				c[0], c[1] = pairOf(t, w, 0, kind)
				var calls sync.WaitGroup
				var begun atomic.Int64
				errs := make(chan error, 100)
				for rank := range c {
					theirs := b.peers[rank][1-rank]
					data := make([]byte, size)
					for _, call := range []func() error{
						func() error { return c[rank].Put(theirs, 0, data, 1) },
						func() error { return c[rank].Put(theirs, 8, data[:100], 0) },
						func() error { return c[rank].Get(make([]byte, size), theirs, 0) },
						func() error { return c[rank].Flush(context.Background(), 0) },
						func() error { return c[rank].Wait(context.Background(), 1, 0) },
						func() error { return c[rank].Wait(context.Background(), 1<<40, 0) },
						func() error { _, err := c[rank].Poll(1); runtime.Gosched(); return err },
					} {
						calls.Go(func() {
							for {
								begun.Add(1)
								if err := call(); err != nil {
									errs <- err
									return
								}
							}
						})
					}
				}
				for end := time.Now().Add(patience); begun.Load() < 50; time.Sleep(time.Millisecond / 10) {
					if time.Now().After(end) {
						t.Fatal("the calls do not begin")
					}
				}
				end(w, c)
				w.await(ended(&calls), 2*patience, "the end of calls")
				close(errs)
				for err := range errs {
					// A peer that leaves deregisters its memory.
					ok := strings.HasPrefix(name, "destroy") && errors.Is(err, ErrInvalidHandle)
					for _, kind := range over {
						ok = ok || errors.Is(err, kind)
					}
					if !ok {
						t.Errorf("it ended with %v", err)
					}
				}
				for _, c := range c {
					c.Close()
				}
			})
		})
	}
}

// ended returns what is closed once all is over.
func ended(g *sync.WaitGroup) <-chan struct{} {
	over := make(chan struct{})
	go func() {
		defer close(over)
		g.Wait()
	}()
	return over
}

// A channel ends with its epoch, and memory does not.
func TestChannelEpochs(t *testing.T) {
	for name, change := range map[string]func(w *world, rank int) error{
		"renew": func(w *world, rank int) error { return w.comms[rank].Renew(soon(w.t)) },
		"recover": func(w *world, rank int) error {
			w.comms[rank].Revoke("test")
			return w.comms[rank].Recover(soon(w.t))
		},
	} {
		t.Run(name, func(t *testing.T) {
			eachKind(t, func(t *testing.T, transport, kind string) {
				w := newWorld(t, transport, 2, patience)
				b := newBoard(t, w, 1000)
				old, peer := pairOf(t, w, 0, kind)
				if err := peer.Signal(1); err != nil {
					t.Fatal(err)
				}
				waits := make(chan error, 1)
				go func() { waits <- old.Wait(context.Background(), 10, 0) }()
				w.each(func(rank int) error { return change(w, rank) })
				for _, err := range []error{<-waits, old.Put(b.peers[0][1], 0, []byte{1}, 1),
					old.Flush(context.Background(), 0), peer.Signal(1)} {
					if !errors.Is(err, ErrRevoked) && !errors.Is(err, ErrAborted) {
						t.Fatalf("a channel of the epoch before: %v", err)
					}
				}
				to, from := pairOf(t, w, 0, kind)
				if taken, err := to.Poll(1); taken || err != nil {
					t.Fatalf("signals of the epoch before count: %v, %v", taken, err)
				}
				if err := to.Put(b.peers[0][1], 0, pattern(3, 1000), 1); err != nil {
					t.Fatal(err)
				}
				if err := from.Wait(context.Background(), 1, 0); err != nil {
					t.Fatal(err)
				}
				if string(b.own[1]) != string(pattern(3, 1000)) {
					t.Error("what was put is not there")
				}
				old.Close()
				peer.Close()
			})
		})
	}
}

// Of up to 10,000 channels that were opened and closed nothing is left.
func TestManyChannels(t *testing.T) {
	for transport, rounds := range map[string]int{"shm": 100, "tcp": 20} {
		t.Run(transport, func(t *testing.T) {
			const each = 100
			w := newWorld(t, transport, 2, patience)
			place := func() uintptr {
				p, err := w.runtimes[0].Alloc(1 << 20)
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = w.runtimes[0].Free(p) }()
				return uintptr(p)
			}
			keep, err := w.runtimes[0].Alloc(1) // so that the arena stays
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = w.runtimes[0].Free(keep) }()
			before, goroutines := place(), 0
			for round := range rounds {
				if round == 1 { // those of links are there
					goroutines = runtime.NumGoroutine()
				}
				w.each(func(rank int) error {
					var all []*Channel
					for tag := range each {
						c, err := w.comms[rank].OpenChannel(1-rank, tag, "")
						if err != nil {
							return err
						}
						all = append(all, c)
						if (round+tag)%7 == rank {
							c.Close()
						}
					}
					for _, c := range all {
						_ = c.Signal(1) // the peer may have closed its end
						c.Close()
					}
					return run(w.comms[rank], Operation{Collective: plan.Barrier})
				})
			}
			for _, c := range w.comms {
				awaitText(t, c.present.Load().Channels, "0 ends, 0 pairings, 0 met, 0 waiting, 0 gets, 0 lent")
			}
			awaitText(t, func() string {
				return fmt.Sprintf("%d goroutines more", max(0, runtime.NumGoroutine()-goroutines))
			}, "0 goroutines more")
			awaitText(t, func() string { return fmt.Sprintf("%#x", place()) }, fmt.Sprintf("%#x", before))
		})
	}
}

// Offsets and sizes have 64 bits.
func TestFarOffsets(t *testing.T) {
	eachKind(t, func(t *testing.T, transport, kind string) {
		const size, far = 5 << 30, 5<<30 - 5000
		w := newWorld(t, transport, 2, patience)
		at, err := w.runtimes[1].Alloc(size)
		if err != nil {
			t.Skip(err)
		}
		defer func() { _ = w.runtimes[1].Free(at) }()
		mine, err := w.comms[1].Register(at, size, both)
		if err != nil {
			t.Fatal(err)
		}
		var theirs *Memory
		w.each(func(rank int) error {
			all, err := w.comms[rank].Exchange(context.Background(), []*Memory{nil, mine}[rank], nil)
			if err == nil && rank == 0 {
				theirs = all[1]
			}
			return err
		})
		to, from := pairOf(t, w, 0, kind)
		if err := to.Put(theirs, far, pattern(1, 5000), 1); err != nil {
			t.Fatal(err)
		}
		if err := from.Wait(context.Background(), 1, 0); err != nil {
			t.Fatal(err)
		}
		if string(unsafe.Slice((*byte)(unsafe.Add(at, far)), 5000)) != string(pattern(1, 5000)) {
			t.Error("what was put is not there")
		}
		back := make([]byte, 5000)
		if err := errors.Join(to.Get(back, theirs, far), to.Flush(context.Background(), 0)); err != nil {
			t.Fatal(err)
		}
		if string(back) != string(pattern(1, 5000)) {
			t.Error("what was got is not there")
		}
	})
}

// A wait whose time is up takes nothing, whoever else takes signals at that time.
func TestWaitsThatAreLate(t *testing.T) {
	eachKind(t, func(t *testing.T, transport, kind string) {
		const signals = 3000
		w := newWorld(t, transport, 2, patience)
		from, to := pairOf(t, w, 0, kind)
		var taken atomic.Int64
		errs := make([]error, 5)
		var waiters sync.WaitGroup
		for i := range 4 {
			waiters.Go(func() {
				for taken.Load() < signals && errs[i] == nil {
					n := uint64(1 + i%2)
					switch err := from.Wait(context.Background(), n, 20*time.Microsecond); {
					case err == nil:
						taken.Add(int64(n))
					case !errors.Is(err, ErrTimeout):
						errs[i] = err
					}
				}
			})
		}
		for range signals + 1 {
			if errs[4] == nil {
				errs[4] = to.Signal(1)
			}
		}
		w.await(ended(&waiters), patience, "the end of waits")
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
		// The last ones may be still on their way.
		if left := signals + 1 - taken.Load(); left > 0 {
			if err := from.Wait(context.Background(), uint64(left), patience); err != nil {
				t.Fatalf("of %d signals %d were taken; the rest: %v", signals+1, taken.Load(), err)
			}
		}
		if more, err := from.Poll(1); more || taken.Load() > signals+1 || err != nil {
			t.Errorf("more than %d signals were taken: %d, and %v, %v", signals+1, taken.Load(), more, err)
		}
	})
}

// A peer's death ends its channels with ErrPeerFailed, and no other; what it has signalled can be
// taken. Where those who are left recover, memory is theirs still, whatever their numbers are.
func TestChannelsAfterADeath(t *testing.T) {
	eachKind(t, func(t *testing.T, transport, kind string) {
		w := newWorld(t, transport, 3, patience)
		b := newBoard(t, w, 1000)
		var dead, alive [3]*Channel // of ranks 1 and 2: to 0, which dies, and to one another
		w.each(func(rank int) (err error) {
			if rank == 0 {
				for peer := 1; peer < 3; peer++ {
					c, err := w.comms[0].OpenChannel(peer, 0, kind)
					if err != nil {
						return err
					}
					if err := errors.Join(c.Signal(1), c.Flush(context.Background(), 0)); err != nil {
						return err
					}
				}
				return nil
			}
			if dead[rank], err = w.comms[rank].OpenChannel(0, 0, kind); err != nil {
				return err
			}
			alive[rank], err = w.comms[rank].OpenChannel(3-rank, 0, kind)
			return err
		})
		w.end(0)
		for rank := 1; rank < 3; rank++ {
			if err := dead[rank].Wait(context.Background(), 2, 0); !errors.Is(err, ErrPeerFailed) ||
				!strings.Contains(err.Error(), "rank 0") {
				t.Fatalf("a wait for a rank that is dead: %v", err)
			}
			if err := dead[rank].Wait(context.Background(), 1, 0); err != nil {
				t.Fatalf("what came before the death: %v", err)
			}
			if err := dead[rank].Put(b.peers[rank][0], 0, []byte{1}, 1); !errors.Is(err, ErrPeerFailed) {
				t.Fatalf("a put: %v", err)
			}
			if err := alive[rank].Put(b.peers[rank][3-rank], 0, pattern(rank, 900), 1); err != nil {
				t.Fatal(err)
			}
			if err := alive[3-rank].Wait(context.Background(), 1, 0); err != nil {
				t.Fatal(err)
			}
		}
		left := w.of(1, 2)
		left.each(func(rank int) error { return left.comms[rank].Recover(soon(t)) })
		to, from := pairOf(t, left, 0, kind)
		if err := to.Put(b.peers[1][2], 0, pattern(9, 1000), 1); err != nil {
			t.Fatal(err)
		}
		if err := from.Wait(context.Background(), 1, 0); err != nil {
			t.Fatal(err)
		}
		if string(b.own[2]) != string(pattern(9, 1000)) {
			t.Error("what was put is not there")
		}
	})
}

// Threads put and get while ranks renew the communicator again and again. They go on by channels of
// the next epoch, to memory that was registered in the first.
func TestPutsOverRenewals(t *testing.T) {
	eachKind(t, func(t *testing.T, transport, kind string) {
		const size, times, threads = 50_000, 4, 2
		w := newWorld(t, transport, 2, patience)
		b := newBoard(t, w, threads*size)
		var over atomic.Bool
		var done [2][threads]atomic.Int64
		var all sync.WaitGroup
		errs := make(chan error, 2*threads)
		for rank := range 2 {
			for thread := range threads {
				all.Go(func() {
					src, dst := pattern(rank, size), make([]byte, size)
					theirs, at := b.peers[rank][1-rank], uint64(thread*size)
					for !over.Load() {
						c, err := w.comms[rank].OpenChannel(1-rank, thread, kind)
						for err == nil && !over.Load() {
							err = errors.Join(c.Put(theirs, at, src, 1), c.Get(dst, theirs, at),
								c.Flush(context.Background(), 0))
							if err == nil && string(dst) != string(src) {
								errs <- errors.New("what was got is not what was put")
								return
							}
							done[rank][thread].Add(1)
						}
						if c != nil {
							c.Close()
						}
						if err != nil && !errors.Is(err, ErrAborted) && !errors.Is(err, ErrRevoked) {
							errs <- err
							return
						}
					}
				})
			}
		}
		for range times {
			var before [2][threads]int64
			for rank := range 2 {
				for thread := range threads {
					before[rank][thread] = done[rank][thread].Load()
				}
			}
			for end := time.Now().Add(patience); len(errs) == 0; time.Sleep(time.Millisecond / 10) {
				more := true
				for rank := range 2 {
					for thread := range threads {
						more = more && done[rank][thread].Load() > before[rank][thread]+2
					}
				}
				if more || time.Now().After(end) {
					break
				}
			}
			w.each(func(rank int) error { return w.comms[rank].Renew(soon(t)) })
		}
		over.Store(true)
		for _, c := range w.comms { // who waits for a peer that has left
			c.Abort("the test is over")
		}
		w.await(ended(&all), patience, "the end of puts")
		close(errs)
		for err := range errs {
			t.Error(err)
		}
	})
}
