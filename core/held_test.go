package core

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/goccl/goccl/core/exec"
	"github.com/goccl/goccl/core/reduce"
	"github.com/goccl/goccl/core/transport"
)

// worldThatHolds is a world whose ranks hold sends back beyond so many.
func worldThatHolds(t *testing.T, tr string, size int, most uint64, timeout time.Duration) *world {
	w := newWorldOf(t, tr, size, Config{Timeout: timeout})
	for _, c := range w.comms {
		limitSends(c, most)
	}
	return w
}

func begin(t *testing.T, c *Comm, op Operation) *Work {
	t.Helper()
	w, err := c.Start(CallOptions{}, op)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func wait(t *testing.T, what string, works []*Work) {
	t.Helper()
	for i, w := range works {
		if _, err := w.Wait(-1); err != nil {
			t.Fatalf("%s %d: %v", what, i, err)
		}
	}
}

// What has not been received is bounded in number, and all of it is received late: sends beyond
// that wait for it.
func TestManySendsThatAreReceivedLate(t *testing.T) {
	const count, most = 3000, 100
	for _, tr := range []string{"mem", "shm", "tcp"} {
		t.Run(tr, func(t *testing.T) {
			w := worldThatHolds(t, tr, 2, most, time.Minute)
			empty := buffer(t, 0)[:0]
			op := sendOp(buffer(t, 1), 1, 0)
			op.InCounts = []uint64{0}
			var sends []*Work
			for range count {
				sends = append(sends, begin(t, w.comms[0], op))
			}
			if n := unexpected(w.comms[1]); n > most {
				t.Errorf("%d sends are kept, %d are allowed", n, most)
			}
			for range count {
				r := recvOp(buffer(t, 1), 0, 0)
				r.OutCounts = []uint64{uint64(len(empty))}
				if err := run(w.comms[1], r); err != nil {
					t.Fatal(err)
				}
			}
			wait(t, "send", sends)
			collectives(t, w, 2, 10, false)
		})
	}
}

// A send that is never received does not keep those that came after it.
func TestHeldSendsBehindOneThatIsNeverReceived(t *testing.T) {
	const most, rounds = 10, 2000
	w := worldThatHolds(t, "mem", 2, most, time.Minute)
	for range most + 1 { // the last is held
		begin(t, w.comms[0], sendOp(buffer(t, 1), 1, 0))
	}
	for range rounds {
		send := begin(t, w.comms[0], sendOp(buffer(t, 1), 1, 1))
		if err := run(w.comms[1], recvOp(buffer(t, 1), 0, 1)); err != nil {
			t.Fatal(err)
		}
		wait(t, "send", []*Work{send})
	}
	if sends, tags, probes := heldFor(w.comms[0], 1); sends > 100 || tags > 1 || probes > 1 {
		t.Errorf("%d sends are kept, of %d tags, and %d to be asked about, where one waits",
			sends, tags, probes)
	}
}

// Receives of any tags, sources and sizes, posted before, among and after the sends, in any order,
// get what is theirs in order, however few sends the receiver keeps.
func TestHeldSendsMeetReceivesInAnyOrder(t *testing.T) {
	const size, count, tags = 3, 100, 7
	for _, tr := range []string{"mem", "shm", "tcp"} {
		for _, most := range []uint64{1, 2, 10} {
			for seed := range uint64(2) {
				t.Run(fmt.Sprintf("%s/%d/%d", tr, most, seed), func(t *testing.T) {
					random := rand.New(rand.NewPCG(seed, most))
					w := worldThatHolds(t, tr, size, most, time.Minute)
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
								source = AnySource
							}
							receives = append(receives, expected{tag, source, buffer(t, lengths[tag])[:lengths[tag]]})
						}
					}
					random.Shuffle(len(receives),
						func(i, j int) { receives[i], receives[j] = receives[j], receives[i] })
					w.each(func(rank int) error {
						c := w.comms[rank]
						var works []*Work
						if rank < size-1 {
							next := make([]int, tags)
							for _, tag := range order[rank] {
								in := buffer(t, lengths[tag])[:lengths[tag]]
								for i := range in {
									in[i] = int32(1000*rank + next[tag])
								}
								next[tag]++
								op := sendOp(buffer(t, 1), size-1, tag)
								if op.InCounts[0] = uint64(len(in)); len(in) > 0 {
									op = sendOp(in, size-1, tag)
								}
								work, err := c.Start(CallOptions{}, op)
								if err != nil {
									return err
								}
								works = append(works, work)
							}
						} else {
							for i, r := range receives {
								op := recvOp(buffer(t, 1), r.source, r.tag)
								if op.OutCounts[0] = uint64(len(r.out)); len(r.out) > 0 {
									op = recvOp(r.out, r.source, r.tag)
								}
								work, err := c.Start(CallOptions{}, op)
								if err != nil {
									return err
								}
								works = append(works, work)
								if i%20 == 19 && seed%2 == 0 { // one by one, now and then
									if _, err := work.Wait(-1); err != nil {
										return err
									}
								}
							}
						}
						for _, work := range works {
							if _, err := work.Wait(-1); err != nil {
								return err
							}
						}
						return nil
					})
					next := map[[2]int]int32{}
					for _, r := range receives {
						if len(r.out) == 0 {
							continue
						}
						from := int(r.out[0]) / 1000
						if r.source != AnySource && r.source != from {
							t.Fatalf("of rank %d came what rank %d sent", r.source, from)
						}
						want := int32(1000*from) + next[[2]int{from, r.tag}]
						next[[2]int{from, r.tag}]++
						if err := expect("received", r.out, func(int) int32 { return want }); err != nil {
							t.Fatalf("tag %d of rank %d: %v", r.tag, from, err)
						}
					}
				})
			}
		}
	}
}

// A send that is held ends at its timeout.
func TestHeldSendTimesOut(t *testing.T) {
	w := worldThatHolds(t, "shm", 2, 2, 300*time.Millisecond)
	var last *Work
	for range 5 {
		last = begin(t, w.comms[0], sendOp(buffer(t, 1), 1, 0))
	}
	if _, err := last.Wait(-1); !errors.Is(err, ErrTimeout) ||
		!strings.Contains(err.Error(), "no receive matched it") {
		t.Error(err)
	}
}

// One whose receiver leaves ends then.
func TestHeldSendEndsWhenItsReceiverLeaves(t *testing.T) {
	w := worldThatHolds(t, "shm", 3, 2, time.Minute)
	around(t, w, 3, 1)
	var works []*Work
	for range 5 {
		works = append(works, begin(t, w.comms[1], sendOp(buffer(t, 1), 0, 0)))
	}
	w.comms[0].Destroy()
	for i, work := range works[2:] {
		if _, err := work.Wait(-1); !errors.Is(err, ErrAborted) {
			t.Errorf("held send %d: %v", i, err)
		}
	}
	othersGoOn(t, w, 10)
}

// A peer that ignores the bound is told, and what it sent takes no memory beyond it.
func TestPeerThatSendsMoreThanIsTaken(t *testing.T) {
	const most = 100
	about := uint64(reduce.Int32)
	for name, h := range map[string]transport.Header{
		"offers": {Type: frameOffer, Seq: 1, Arg: [2]uint64{about, 4}},
		"empty":  {Type: transport.Data, Flags: eagerSend, Arg: [2]uint64{about}},
		"probes": {Type: frameProbe, Seq: 1, Arg: [2]uint64{about, 4}},
	} {
		for _, tr := range []string{"shm", "tcp"} {
			t.Run(name+"/"+tr, func(t *testing.T) {
				w := worldThatHolds(t, tr, 2, most, time.Minute)
				around(t, w, 2, 1)
				bad, victim := w.comms[0], w.comms[1]
				ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
				defer cancel()
				var payload []byte
				if tr == "shm" && name != "empty" {
					payload = make([]byte, 8)
				}
				for i := 0; i < 10*most && victim.Err() == nil; i++ {
					if err := tellPeer(ctx, bad, 1, h, payload); err != nil {
						break
					}
					if tr == "shm" {
						readMail(victim)
					}
				}
				n := unexpected(victim)
				if name == "probes" {
					if n != 0 {
						t.Errorf("%d probes are kept", n)
					}
					return // asked and answered one after the other they are fine
				}
				if n > most {
					t.Errorf("%d sends are kept, %d are allowed", n, most)
				}
				<-now(victim).stopped
				if err := victim.Err(); err == nil || !strings.Contains(err.Error(), exec.ErrProtocol.Error()) {
					t.Error(err)
				}
			})
		}
	}
}
