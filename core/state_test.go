package core

import (
	"fmt"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/goccl/goccl/core/exec"
	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/membership"
	"github.com/goccl/goccl/core/transport"
	"github.com/goccl/goccl/core/tune"
)

// Tests look at the private state of a communicator, and change it, by the functions of this file.

func shapeOf(c *Comm) tune.Shape { return now(c).shape }

func pidOf(c *Comm, rank int) int { return now(c).Peers[rank].PID }

// holdQueue keeps all others from running a communicator's queue, until letGo, or the test's end.
func holdQueue(t testing.TB, c *Comm) (letGo func()) {
	token := now(c).queue.Token(nil)
	token <- struct{}{}
	letGo = sync.OnceFunc(func() { <-token })
	t.Cleanup(letGo)
	return letGo
}

func queueIsRun(c *Comm) bool { return now(c).queue.Token(nil).Taken() }

// runHeldQueue runs a queue that is held for a while, and returns the step that it has come to.
func runHeldQueue(c *Comm, w *Work, d time.Duration) int {
	now(c).runner.Run(w, exec.Now()+d)
	return now(c).runner.engine.Run().Step()
}

// sendsItsPart runs a queue that is held, whose collective is a direct exchange, until the rank has
// sent to all others.
func sendsItsPart(t testing.TB, c *Comm, w *Work) {
	t.Helper()
	until(t, "a rank has sent its part", func() bool {
		return runHeldQueue(c, w, time.Millisecond) >= c.Size()-1
	})
}

// comesToPart runs a queue that is held until its work is in a part.
func comesToPart(t testing.TB, c *Comm, w *Work, part int) {
	t.Helper()
	until(t, fmt.Sprintf("a rank is in part %d", part), func() bool {
		runHeldQueue(c, w, time.Millisecond)
		return now(c).runner.part == part
	})
}

func fastPathIsOpen(c *Comm) bool { return !c.fast.Closed() }

// decides tells whether a rank is in a decision of the members.
func decides(c *Comm) bool {
	e := now(c)
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(e.decisions) > 0 && e.decisions[len(e.decisions)-1].begun
}

// anyBlockedIn tells whether a goroutine waits in a function, for a channel.
func anyBlockedIn(function string) bool {
	all := make([]byte, 1<<20)
	all = all[:runtime.Stack(all, true)]
	for g := range strings.SplitSeq(string(all), "\n\n") {
		state, stack, _ := strings.Cut(g, "\n")
		if strings.Contains(state, "[chan receive") && strings.Contains(stack, "core."+function) {
			return true
		}
	}
	return false
}

// awaitFailure waits until a communicator has failed.
func awaitFailure(c *Comm) { <-now(c).works.Context.Done() }

// sentOn is how many messages have gone to each peer on a lane. Of a direct plan they are two.
func sentOn(c *Comm, lane int) (n []uint64) {
	for peer := range now(c).Size() {
		n = append(n, now(c).window.Lane(lane).Sent(peer))
	}
	return n
}

// copiesOnce tells whether the ranks have found that all read each other's memory.
func copiesOnce(c *Comm) bool { return now(c).shape.SingleCopy }

// reads has a rank read a peer's memory by a process.
func reads(c *Comm, peer int, p exec.Process) { now(c).window.UseProcess(peer, p) }

// shareableOf tells whether a process has an arena, and how many bytes of it devices know.
func shareableOf(r *Runtime) (arena bool, known int64) {
	err := r.Free(nil)
	return !strings.HasSuffix(err.Error(), "nothing is"), r.MemoryStats().Registered
}

// advertised are the bytes that each rank's peers have read by themselves, and that it has read of
// theirs.
func advertised(w *world) (given, taken []int64) {
	for _, r := range w.runtimes {
		stats := r.MemoryStats()
		given, taken = append(given, stats.Given), append(taken, stats.Taken)
	}
	return given, taken
}

// until waits until a condition holds.
func until(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !holds(); time.Sleep(100 * time.Microsecond) {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
	}
}

// orderOf tells what a rank knows of the order of collectives: see order.Order.String.
func orderOf(c *Comm) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return now(c).order.String()
}

// announced tells whether a rank keeps a peer's refusal, the last of a row.
func (w *world) announced(rank, peer int, sequence uint64) bool {
	refused := regexp.MustCompile(fmt.Sprintf(`, %d was refused [^,]*#%d \(`, peer, sequence))
	return refused.MatchString(orderOf(w.comms[rank]))
}

// forgotten waits until all has been told and nothing of it is kept.
func (w *world) forgotten() {
	w.t.Helper()
	for rank, c := range w.comms {
		until(w.t, fmt.Sprintf("rank %d has told all and keeps nothing", rank), func() bool {
			c.mu.Lock()
			defer c.mu.Unlock()
			return !now(c).order.Ahead() && !strings.Contains(now(c).order.String(), ", tells ")
		})
	}
}

// hasAnnounced tells whether a rank keeps that a peer waits.
func hasAnnounced(c *Comm, peer int) bool {
	return strings.Contains(orderOf(c), fmt.Sprintf(", %d waits in ", peer))
}

// ownRefusals is how many of its own refusals a rank keeps.
func ownRefusals(c *Comm) int { return strings.Count(orderOf(c), ", refused #") }

// end has a rank's process end for all others, as far as they know: without a goodbye.
func (w *world) end(rank int) {
	for peer := range w.comms {
		if peer != rank {
			w.endFor(peer, rank)
		}
	}
}

func (w *world) endFor(peer, rank int) {
	handler{now(w.comms[peer])}.PeerDown(rank, fmt.Errorf("%w: %w: its process has ended",
		transport.ErrPeerDown, transport.ErrEnded))
}

// goneSince has all peers that are gone be so since a collective began.
func goneSince(c *Comm, sequence uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, rank := range now(c).membership.Departed() {
		d, _ := now(c).membership.Departure(rank)
		now(c).membership.Step(membership.Left{Peer: rank, Cause: d.Cause, Last: sequence})
	}
}

// awaitLeft waits until a rank knows that a peer has left.
func awaitLeft(t *testing.T, c *Comm, peer int) {
	t.Helper()
	until(t, fmt.Sprintf("rank %d hears that rank %d has left", now(c).Rank, peer), func() bool {
		return keeps(c, fmt.Sprintf("%d is gone", peer))
	})
}

// keeps tells whether a rank's sends and receives are in a state: see p2p.Engine.String.
func keeps(c *Comm, state string) bool { return strings.Contains(now(c).p2p.String(), ", "+state) }

// sendsInC tells whether callers in C may send.
func sendsInC(c *Comm) bool { return keeps(c, "open") && c.fast.SendsOpen() }

// linksOf is what reads a rank's links.
func linksOf(c *Comm) *transport.Poller { return now(c).poller }

// hold has nobody read a rank's links, until letGo, or the test's end.
func hold(t *testing.T, c *Comm) (letGo func()) {
	t.Helper()
	links := linksOf(c)
	until(t, "the poller's token", func() bool {
		links.YieldProgress()
		return links.Take()
	})
	letGo = sync.OnceFunc(links.Leave)
	t.Cleanup(letGo)
	return letGo
}

// The states in which sendUnread leaves what rank 0 sends: data of it flows; or all of it is the
// peer's to read.
const (
	begun     = "sends 1 to 1: moving"
	beingRead = begun + " (the peer reads)"
)

// sendUnread has rank 1 accept what rank 0 sends, and no thread read its links from before that on,
// until read is called. What rank 0 sends is in a state.
func sendUnread(t *testing.T, w *world, from, into []int32, state string) (sent,
	received *Work, read func()) {
	t.Helper()
	sender, receiver := w.comms[0], w.comms[1]
	received, err := receiver.Start(CallOptions{}, recvOp(into, 0, 0))
	if err != nil {
		t.Fatal(err)
	}
	letGo := hold(t, sender)
	if sent, err = sender.Start(CallOptions{}, sendOp(from, 1, 0)); err != nil {
		t.Fatal(err)
	}
	until(t, "the RTS", func() bool { return keeps(receiver, "receives 1 of 0: accepted") })
	read = hold(t, receiver)
	letGo()
	until(t, state, func() bool { return keeps(sender, state) })
	return sent, received, read
}

// hintOf is what stands at the end of the text of a failed communicator.
func hintOf(kind error) string {
	text := new(fault.Group).Errorf(kind, "?").Error()
	return strings.TrimPrefix(text, "the communicator has failed: ?. ")
}

// now is a communicator's present epoch.
func now(c *Comm) *epoch { return c.present.Load() }
