package p2p

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/goccl/goccl/core/call"
	"github.com/goccl/goccl/core/exec"
	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/reduce"
	"github.com/goccl/goccl/core/transport"
	"github.com/goccl/goccl/core/work"
)

// worldThatHolds is a world whose ranks hold sends back beyond so many.
func worldThatHolds(t *testing.T, way string, size int, most uint64) *world {
	w := join(t, way, size)
	for _, r := range w.ranks {
		r.most = most
	}
	w.read()
	return w
}

// unexpected is how many sends a rank keeps that no receive has met.
func (r *rank) unexpected() int {
	r.Engine.mu.Lock()
	defer r.Engine.mu.Unlock()
	return len(r.match.unexpected)
}

// What has not been received is bounded in number, and all of it is received late: sends beyond
// that wait for it.
func TestManySendsThatAreReceivedLate(t *testing.T) {
	const count, most = 3000, 100
	for _, way := range ways {
		t.Run(way, func(t *testing.T) {
			w := worldThatHolds(t, way, 2, most)
			empty := buffer(t, 0)
			var sends []*work.Work
			for range count {
				sends = append(sends, w.ranks[0].start(sendOp(empty, 1, 0), time.Minute))
			}
			if n := w.ranks[1].unexpected(); n > most {
				t.Errorf("%d sends are kept, %d are allowed", n, most)
			}
			for range count {
				wait(t, "receive", w.ranks[1].start(recvOp(empty, 0, 0), time.Minute))
			}
			wait(t, "send", sends...)
		})
	}
}

// A send that is never received does not keep those that came after it.
func TestHeldSendsBehindOneThatIsNeverReceived(t *testing.T) {
	const most, rounds = 10, 2000
	w := worldThatHolds(t, byPlans, 2, most)
	in, out := buffer(t, 1), buffer(t, 1)
	for range most + 1 { // the last is held
		w.ranks[0].start(sendOp(in, 1, 0), time.Minute)
	}
	for range rounds {
		send := w.ranks[0].start(sendOp(in, 1, 1), time.Minute)
		wait(t, "receive", w.ranks[1].start(recvOp(out, 0, 1), time.Minute))
		wait(t, "send", send)
	}
	e := w.ranks[0].Engine
	e.mu.Lock()
	defer e.mu.Unlock()
	h := &e.peers[1].held
	if len(h.order) > 100 || len(h.byTag) > 1 || len(h.probes) > 1 {
		t.Errorf("%d sends are kept, of %d tags, and %d to be asked about, where one waits",
			len(h.order), len(h.byTag), len(h.probes))
	}
}

// Receives of any tags, sources and sizes, posted before, among and after the sends, in any order,
// get what is theirs in order, however few sends the receiver keeps.
func TestHeldSendsMeetReceivesInAnyOrder(t *testing.T) {
	const size, count, tags = 3, 100, 7
	for _, way := range ways {
		for _, most := range []uint64{1, 2, 10} {
			for seed := range uint64(2) {
				t.Run(fmt.Sprintf("%s/%d/%d", way, most, seed), func(t *testing.T) {
					random := rand.New(rand.NewPCG(seed, most))
					w := worldThatHolds(t, way, size, most)
					// Each message is all of the number that it has in its tag's order, and as long as only its
					// tag has them.
					lengths := make([]int, tags)
					for tag := range lengths {
						lengths[tag] = []int{1, 0, 100, 20_000, 300_000}[random.IntN(5)]
					}
					var order [size - 1][]int // the sends' tags
					for from := range order {
						for i := range count {
							order[from] = append(order[from], i%tags)
						}
						random.Shuffle(count,
							func(i, j int) { order[from][i], order[from][j] = order[from][j], order[from][i] })
					}
					type expected struct {
						tag, source int
						out         []int32
					}
					var receives []expected
					for from := range order {
						for _, tag := range order[from] {
							source := from
							if tag == 0 { // all of one tag of any source
								source = call.AnySource
							}
							receives = append(receives, expected{tag, source, buffer(t, lengths[tag])})
						}
					}
					random.Shuffle(len(receives),
						func(i, j int) { receives[i], receives[j] = receives[j], receives[i] })
					var all sync.WaitGroup
					for from, tags := range order {
						all.Add(1)
						w.spawn(func() { // the world waits for it, too
							defer all.Done()
							sendAll(t, w.ranks[from], size-1, tags, lengths)
						})
					}
					var works []*work.Work
					for i, r := range receives {
						x := w.ranks[size-1].start(recvOp(r.out, r.source, r.tag), time.Minute)
						works = append(works, x)
						if i%20 == 19 && seed%2 == 0 { // one by one, now and then
							wait(t, "receive", x)
						}
					}
					wait(t, "receive", works...)
					all.Wait()
					next := map[[2]int]int32{}
					for _, r := range receives {
						if len(r.out) == 0 {
							continue
						}
						from := int(r.out[0]) / 1000
						if r.source != call.AnySource && r.source != from {
							t.Fatalf("of rank %d came what rank %d sent", r.source, from)
						}
						want := int32(1000*from) + next[[2]int{from, r.tag}]
						next[[2]int{from, r.tag}]++
						if slices.ContainsFunc(r.out, func(n int32) bool { return n != want }) {
							t.Fatalf("tag %d of rank %d: not all is %d", r.tag, from, want)
						}
					}
				})
			}
		}
	}
}

// sendAll sends messages of some tags, all of the number that each has in its tag's order.
func sendAll(t *testing.T, r *rank, to int, tags, lengths []int) {
	next := make([]int, len(lengths))
	var works []*work.Work
	for _, tag := range tags {
		in := buffer(t, lengths[tag])
		for i := range in {
			in[i] = int32(1000*r.number + next[tag])
		}
		next[tag]++
		works = append(works, r.start(sendOp(in, to, tag), time.Minute))
	}
	for i, x := range works {
		if done, err := x.Wait(-1); !done || err != nil {
			t.Errorf("send %d of rank %d: %v, %v", i, r.number, done, err)
		}
	}
}

// A send that is held ends at its timeout.
func TestHeldSendTimesOut(t *testing.T) {
	w := worldThatHolds(t, byPlans, 2, 2)
	var last *work.Work
	for range 5 {
		last = w.ranks[0].start(sendOp(buffer(t, 1), 1, 0), 300*time.Millisecond)
	}
	if _, err := last.Wait(-1); !errors.Is(err, fault.ErrTimeout) ||
		!strings.Contains(err.Error(), "no receive matched it") {
		t.Error(err)
	}
}

// One whose receiver leaves ends then, and others go on.
func TestHeldSendEndsWhenItsReceiverLeaves(t *testing.T) {
	for _, way := range ways {
		w := worldThatHolds(t, way, 3, 2)
		var works []*work.Work
		for range 5 {
			works = append(works, w.ranks[1].start(sendOp(buffer(t, 1), 0, 0), time.Minute))
		}
		w.ranks[1].depart(0, true)
		for i, x := range works[2:] {
			if done, err := x.Wait(-1); !done || !errors.Is(err, fault.ErrAborted) {
				t.Errorf("held send %d: %v, %v", i, done, err)
			}
		}
		send := w.ranks[1].start(sendOp(buffer(t, 10), 2, 0), time.Minute)
		wait(t, "receive", w.ranks[2].start(recvOp(buffer(t, 10), 1, 0), time.Minute))
		wait(t, "send", send)
	}
}

// A peer that ignores the bound is told, and what it sent takes no memory beyond it.
func TestPeerThatSendsMoreThanIsTaken(t *testing.T) {
	const most = 100
	about := uint64(reduce.Int32)
	for name, h := range map[string]transport.Header{
		"offers": {Type: FrameRTS, Seq: 1, Arg: [2]uint64{about, 4}},
		"empty":  {Type: transport.Data, Flags: EagerSend, Arg: [2]uint64{about}},
		"probes": {Type: FrameProbe, Seq: 1, Arg: [2]uint64{about, 4}},
	} {
		for _, way := range []string{byPlans, byLinks} {
			t.Run(name+"/"+way, func(t *testing.T) {
				w := worldThatHolds(t, way, 2, most)
				bad, victim := w.ranks[0], w.ranks[1]
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				var payload []byte
				if way == byPlans && name != "empty" {
					payload = make([]byte, 8)
				}
				for i := 0; i < 10*most && victim.Failed() == nil; i++ {
					if err := bad.peers[1].wire.post(ctx, h, payload); err != nil {
						break
					}
					victim.collect()
				}
				n := victim.unexpected()
				if name == "probes" {
					if n != 0 {
						t.Errorf("%d probes are kept", n)
					}
					return // asked and answered one after the other they are fine
				}
				if n > most {
					t.Errorf("%d sends are kept, %d are allowed", n, most)
				}
				<-victim.works.Context.Done()
				if err := victim.Failed(); !strings.Contains(err.Text, exec.ErrProtocol.Error()) {
					t.Error(err)
				}
			})
		}
	}
}
