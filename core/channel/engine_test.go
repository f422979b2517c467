package channel

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/goccl/goccl/core/exec"
	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/transport"
)

func data(flags uint8, seq, arg0, arg1 uint64, n int) frame {
	return frame{Header: transport.Header{Type: transport.Data, Flags: flags, Seq: seq,
		Arg: [2]uint64{arg0, arg1}}, payload: bytes.Repeat([]byte{0xee}, n)}
}

func control(kind uint8, seq, arg0, arg1 uint64, payload ...uint64) frame {
	f := frame{Header: transport.Header{Type: kind, Seq: seq, Arg: [2]uint64{arg0, arg1}}}
	for _, v := range payload {
		f.payload = binary.LittleEndian.AppendUint64(f.payload, v)
	}
	return f
}

// open has memory, an end that has met, and one that has not: of rank 0, to rank 1.
func opened01(t testing.TB, ports bool) (w *world, c, peer *Channel, theirs *Memory) {
	w = joinWorld(t, 3, ports)
	c, peer = w.ranks[0].open(1, 5, ""), w.ranks[1].open(0, 5, "")
	w.settle()
	theirs = w.ranks[1].imported(w.ranks[0].own, 0)
	return w, c, peer, theirs
}

// What no correct peer sends is told, and what may come late is dropped. Neither changes memory.
func TestForgedFrames(t *testing.T) {
	const end, memory = 1, 1 // the first of both
	none := func(w *world, c *Channel) {}
	closed := func(w *world, c *Channel) { c.Close() }
	closedByBoth := func(w *world, c *Channel) {
		c.Close()
		w.settle()
	}
	deregistered := func(w *world, c *Channel) { w.ranks[0].own.Deregister() }
	readOnly := func(w *world, c *Channel) { w.ranks[0].own.access = 1 }
	writeOnly := func(w *world, c *Channel) { w.ranks[0].own.access = 2 }
	full := func(w *world, c *Channel) { c.end.Arrived(math.MaxUint64) }
	for _, test := range []struct {
		name   string
		before func(w *world, c *Channel)
		src    int
		f      frame
		want   bool // it is a violation
	}{
		{"put for end 0", none, 1, data(putData, 0, memory, 0, 8), true},
		{"put for an end that was never opened", none, 1, data(putData, 2, memory, 0, 8), true},
		{"put for another's end", none, 2, data(putData, end, memory, 0, 8), true},
		{"put to memory 0", none, 1, data(putData, end, 0, 0, 8), true},
		{"put to memory that never was", none, 1, data(putData, end, 9, 0, 8), true},
		{"put past the end", none, 1, data(putData, end, memory, room-7, 8), true},
		{"put far past it", none, 1, data(putData, end, memory, math.MaxUint64, 8), true},
		{"put too long", none, 1, data(putData, end, memory, 0, room+1), true},
		{"put without right", readOnly, 1, data(putData, end, memory, 0, 8), true},
		{"put of too long a piece", none, 1, data(putData, end, memory, 0, pieceMost+1), true},
		{"put of nothing at the end", none, 1, data(putData, end, memory, room, 0), false},
		{"put to memory that is no more", deregistered, 1, data(putData, end, memory, 0, 8), false},
		{"too many signals of a put", full, 1, data(putData, end, memory|1<<32, 0, 0), true},
		{"signal for end 0", none, 1, control(frameSignal, 0, 1, 0), true},
		{"signal for another's end", none, 2, control(frameSignal, end, 1, 0), true},
		{"0 signals", none, 1, control(frameSignal, end, 0, 0), true},
		{"too many signals", full, 1, control(frameSignal, end, 1, 0), true},
		{"signal for a closed end", closed, 1, control(frameSignal, end, 1, 0), false},
		{"signal for an end that is no more", closedByBoth, 1, control(frameSignal, end, 1, 0), false},
		{"get past the end", none, 1, control(frameGet, end, memory, 0, 1, room+1), true},
		{"get far past it", none, 1, control(frameGet, end, memory, 8, 1, math.MaxUint64), true},
		{"get without right", writeOnly, 1, control(frameGet, end, memory, 0, 1, 8), true},
		{"get that says nothing", none, 1, control(frameGet, end, memory, 0), true},
		{"get of another's end", none, 2, control(frameGet, end, memory, 0, 1, 8), true},
		{"get of memory that is no more", deregistered, 1, control(frameGet, end, memory, 0, 1, 8),
			false},
		{"get of memory that never was", none, 1, control(frameGet, end, 1<<32|memory, 0, 1, 8), true},
		{"piece of get 0", none, 1, data(gotData, 0, 0, 0, 8), true},
		{"piece of a get that was not asked", none, 1, data(gotData, 1, 0, 0, 8), true},
		{"no memory for such a get", none, 1, control(frameNoGet, 1, 0, 0), true},
		{"flush for an end that was never opened", none, 1, control(frameFlush, 2, 1, 1), true},
		{"flush for a closed end", closed, 1, control(frameFlush, end, 1, 1), false},
		{"answer to a flush of the future", none, 1, control(frameFlushed, end, 1, 0), true},
		{"answer to a flush of another's end", none, 2, control(frameFlushed, end, 0, 0), true},
		{"answer to a flush of a closed end", closed, 1, control(frameFlushed, end, 0, 0), false},
		{"an id opened twice", none, 1, control(frameOpen, 1, 6, 0, 1), true},
		{"id 0 opened", none, 1, control(frameOpen, 0, 6, 0, 1), true},
		{"no such tag", none, 1, control(frameOpen, 2, 1<<32, 0, 1), true},
		{"opened by nobody", none, 1, control(frameOpen, 2, 6, 0), true},
		{"opened", none, 1, control(frameOpen, 2, 6, math.MaxUint64-64, 1), false},
		{"close of what was not opened", none, 1, control(frameClose, 9, 0, 0), true},
		{"close of another's", none, 2, control(frameClose, 1, 0, 0), true},
		{"closed, and nobody asked", none, 1, control(frameClosed, end, 0, 0), true},
		{"closed, by another", closed, 2, control(frameClosed, end, 0, 0), true},
		{"closed twice", closedByBoth, 1, control(frameClosed, end, 0, 0), true},
		{"closed, end 0", none, 1, control(frameClosed, 0, 0, 0), true},
		{"dropped, and nobody asked", none, 1, control(frameDropped, memory, 0, 0), true},
		{"dropped by one who reaches nothing", deregistered, 2, control(frameDropped, memory, 0, 0),
			true},
		{"dropped, memory 0", none, 1, control(frameDropped, 1<<32|memory, 0, 0), true},
		{"drop of what is not known", none, 1, control(frameDrop, 99, 0, 0), false},
		{"no such frame", none, 1, control(quickEnd, 0, 0, 0), true},
	} {
		for _, ports := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/%v", test.name, ports), func(t *testing.T) {
				w, c, _, _ := opened01(t, ports)
				before := bytes.Clone(w.ranks[0].block)
				test.before(w, c)
				w.ranks[0].take(test.src, test.f)
				if err := w.ranks[0].broken; (err != nil) != test.want {
					t.Errorf("told: %v", err)
				}
				if !bytes.Equal(w.ranks[0].block, before) {
					t.Error("memory has changed")
				}
			})
		}
	}
}

// forgeries are frames of a peer, right or wrong, with small numbers.
func forgeries() (all []frame) {
	for _, id := range []uint64{0, 1, 2, 3} {
		for _, memory := range []uint64{0, 1, 2, 1<<32 | 1} {
			all = append(all, data(putData, id, memory, 0, 8), data(putData, id, memory, room-4, 8))
		}
		all = append(all, data(gotData, id, 0, 0, 8), data(gotData, id, 8, 0, 500),
			data(gotData, id, 0, 0, 0), control(frameSignal, id, 1, 0),
			control(frameSignal, id, math.MaxUint64, 0), control(frameGet, id, 1, 0, 1, 16),
			control(frameNoGet, id, 0, 0), control(frameFlush, id, 1, 1), control(frameFlushed, id, 1, 1),
			control(frameOpen, id, 5, 128, 1), control(frameOpen, id, 6, 0, 1),
			control(frameClose, id, 0, 0), control(frameClosed, id, 0, 0), control(frameDrop, id, 0, 0),
			control(frameDropped, id, 0, 0))
	}
	return all
}

// states are what a rank may be in when a frame comes.
var states = map[string]func(w *world){
	"met": func(w *world) {
		w.ranks[0].open(1, 5, "")
		w.ranks[1].open(0, 5, "")
		w.settle()
	},
	"not met": func(w *world) { w.ranks[0].open(1, 5, "") },
	"opened by the peer": func(w *world) {
		w.ranks[1].open(0, 5, "")
		w.settle()
	},
	"closed": func(w *world) {
		c := w.ranks[0].open(1, 5, "")
		w.ranks[1].open(0, 5, "")
		w.settle()
		c.Close()
	},
	"closed and open again": func(w *world) {
		w.ranks[0].open(1, 5, "").Close()
		w.ranks[0].open(1, 5, "")
		w.ranks[1].open(0, 5, "")
		w.settle()
	},
	"got and flushed": func(w *world) {
		c := w.ranks[0].open(1, 5, KindPort)
		w.ranks[1].open(0, 5, KindPort)
		w.settle()
		its := w.ranks[0].imported(w.ranks[1].own, 1)
		if err := c.Get(make([]byte, 16), its, 0); err != nil {
			w.t.Fatal(err)
		}
		w.ranks[0].mu.Lock()
		c.flushes.begun++
		w.ranks[0].mu.Unlock()
	},
	"deregistered": func(w *world) {
		w.ranks[0].open(1, 5, "")
		w.ranks[1].open(0, 5, "")
		w.settle()
		w.ranks[0].own.Deregister()
	},
	"failed": func(w *world) {
		w.ranks[0].open(1, 5, "")
		w.ranks[0].Fail(fault.Errorf(fault.ErrAborted, "test"))
	},
	"gone": func(w *world) {
		w.ranks[0].open(1, 5, "")
		w.ranks[1].open(0, 5, "")
		w.settle()
		w.ranks[0].Depart(1, fault.Errorf(fault.ErrPeerFailed, "test"))
	},
}

// A peer that sends any two frames in any state is told from a correct one, or does no harm: what
// was not registered stays as it is, and the rank can close and leave.
func TestAnyFramesInAnyState(t *testing.T) {
	forged := forgeries()
	for name, state := range states {
		t.Run(name, func(t *testing.T) {
			for i := range forged {
				w := joinWorld(t, 2, i%2 == 0)
				state(w)
				r := w.ranks[0]
				for _, j := range rand.Perm(len(forged))[:20] {
					for _, f := range []frame{forged[i], forged[j]} {
						r.take(1, f)
						w.run()
					}
				}
				unregistered(t, r)
				for _, c := range r.all() {
					c.Close()
					if err := c.Signal(1); !errors.Is(err, fault.ErrAborted) &&
						!errors.Is(err, fault.ErrPeerFailed) {
						t.Fatalf("signal on a closed channel: %v", err)
					}
				}
				w.close()
				w.ranks = nil
			}
		})
	}
}

// all are the engine's ends.
func (r *rank) all() (all []*Channel) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.ends {
		all = append(all, c)
	}
	return all
}

// unregistered fails the test where memory around the registered one has changed.
func unregistered(t testing.TB, r *rank) {
	t.Helper()
	for _, b := range append(r.block[:beside:beside], r.block[beside+room:]...) {
		if b != 0 {
			t.Fatal("memory that is not registered has changed")
		}
	}
}

// actor is a rank of TestAnyOrder, which does a step at a time.
type actor struct {
	r     *rank
	steps []func(a *actor)
	c     *Channel
	its   *Memory
}

// Two ranks do what they may, and frames are read and handled in any order that links allow: each
// is correct to the other, each signal taken shows the data before it, and nothing is left.
func TestAnyOrder(t *testing.T) {
	put := func(a *actor) {
		if a.c.end.State() == exec.ChannelUnmet { // it would wait for the peer
			return
		}
		src := a.r.shareable(8)
		copy(src, "put here")
		err := a.c.Put(a.its, uint64(8*a.r.number), src, 1)
		a.r.release(src) // what is allocated there next is not what was put
		next := a.r.shareable(8)
		copy(next, "not this")
		a.r.release(next)
		if err != nil && !errors.Is(err, fault.ErrAborted) && !errors.Is(err, fault.ErrInvalidHandle) {
			a.r.w.t.Fatal(err)
		}
	}
	poll := func(a *actor) {
		taken, _ := a.c.Poll(1) // the channel may end
		if taken && a.r.own.usable() == nil && !bytes.Contains(a.r.registered(), []byte("put here")) {
			a.r.w.t.Fatal("a signal before its data")
		}
	}
	open := func(a *actor) { a.c = a.r.open(1-a.r.number, 3, KindPort) }
	shut := func(a *actor) { a.c.Close() }
	get := func(a *actor) {
		if a.c.end.State() == exec.ChannelPort {
			_ = a.c.Get(make([]byte, 100), a.its, 0) // the channel may end
		}
	}
	gone := func(a *actor) { a.r.own.Deregister() }
	scripts := []struct {
		opens int
		steps []func(*actor)
	}{
		{1, []func(*actor){open, put, shut}},
		{1, []func(*actor){open, put, poll, get, shut}},
		{2, []func(*actor){open, shut, open, put, shut}},
		{1, []func(*actor){open, gone, poll, shut}},
		{1, []func(*actor){open, get, put, gone, shut}},
		{2, []func(*actor){open, poll, shut, open, poll, shut}},
	}
	rounds := 60
	if testing.Short() {
		rounds = 10
	}
	for i, one := range scripts {
		for j, other := range scripts {
			for seed := range rounds {
				rng := rand.New(rand.NewPCG(uint64(seed), uint64(i*100+j)))
				w := joinWorld(t, 2, true)
				w.verbs = seed%2 == 1
				actors := make([]*actor, 2)
				for k, steps := range [][]func(*actor){one.steps, other.steps} {
					actors[k] = &actor{r: w.ranks[k], steps: steps,
						its: w.ranks[k].imported(w.ranks[1-k].own, 1-k)}
				}
				for w.step(rng, actors) {
				}
				w.correct()
				// A second end that one rank has opened and the other has not stays.
				want := "0 ends, 0 pairings, 0 met, 0 waiting, 0 gets, 0 lent"
				if one.opens == other.opens && (w.ranks[0].String() != want ||
					w.ranks[1].String() != want) {
					t.Fatalf("scripts %d and %d, seed %d: left are %v; %v", i, j, seed, w.ranks[0],
						w.ranks[1])
				}
				w.close()
				w.ranks = nil
			}
		}
	}
}

// step does what may happen next, drawn by lot, and reports whether anything may.
func (w *world) step(rng *rand.Rand, actors []*actor) bool {
	var all []func()
	for _, a := range actors {
		if len(a.steps) > 0 {
			all = append(all, func() {
				f := a.steps[0]
				a.steps = a.steps[1:]
				f(a)
			})
		}
	}
	for _, at := range []way{{0, 1}, {1, 0}} {
		if len(w.links[at]) > 0 {
			all = append(all, func() { w.read(at) })
		}
		if len(w.slow[at]) > 0 {
			all = append(all, func() { w.handle(at) })
		}
	}
	if len(w.tasks) > 0 {
		all = append(all, func() {
			f := w.tasks[0]
			w.tasks = w.tasks[1:]
			f()
		})
	}
	if len(all) == 0 {
		return false
	}
	all[rng.IntN(len(all))]()
	return true
}
