package core

import (
	"fmt"
	"reflect"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/goccl/goccl/core/agreement"
	"github.com/goccl/goccl/core/collective"
	"github.com/goccl/goccl/core/epoch"
	"github.com/goccl/goccl/core/exec"
	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/internal/polltest"
	"github.com/goccl/goccl/core/membership"
	"github.com/goccl/goccl/core/order"
	"github.com/goccl/goccl/core/p2p"
	"github.com/goccl/goccl/core/suspended"
	"github.com/goccl/goccl/core/transport"
	"github.com/goccl/goccl/core/tune"
	"github.com/goccl/goccl/core/work"
)

// Tests look at the private state of a communicator, and change it, by the functions of this file.

// private is a field of a communicator's present epoch, by its path.
func private[T any](c *Comm, path string) *T { return privateOf[T](now(c), path) }

// privateOf is a field of what of points to, by its path. Its package does not show it.
func privateOf[T any](of any, path string) *T {
	v := reflect.ValueOf(of).Elem()
	for name := range strings.SplitSeq(path, ".") {
		if v.Kind() == reflect.Pointer {
			v = v.Elem()
		}
		v = v.FieldByName(name)
	}
	return (*T)(unsafe.Pointer(v.UnsafeAddr()))
}

// decisionsOf is how many decisions of an epoch have begun, on any rank.
func decisionsOf(e *epoch.Epoch) int {
	mu := privateOf[sync.Mutex](e, "agreement.mu")
	mu.Lock()
	defer mu.Unlock()
	return len(*privateOf[[]*agreement.Decision](e, "agreement.decisions"))
}

// isStable tells whether nobody can decide otherwise than on a communicator's present epoch.
func isStable(c *Comm) bool {
	e := now(c)
	mu := privateOf[sync.Mutex](e, "agreement.mu")
	mu.Lock()
	defer mu.Unlock()
	return *privateOf[bool](e, "agreement.stable")
}

// lingers tells whether an epoch of a process lingers.
func lingers(r *Runtime) bool {
	mu := privateOf[sync.Mutex](&r.lingering, "mu")
	mu.Lock()
	defer mu.Unlock()
	return len(*privateOf[map[*epoch.Epoch]bool](&r.lingering, "all")) > 0
}

// runnerOf is what runs a communicator's queue.
func runnerOf(c *Comm) work.Engine {
	v := reflect.ValueOf(now(c)).Elem().FieldByName("runner")
	return reflect.NewAt(v.Type(), unsafe.Pointer(v.UnsafeAddr())).Interface().(work.Engine)
}

func lockOf(c *Comm) *sync.Mutex { return private[sync.Mutex](c, "mu") }

func queueOf(c *Comm) *work.Queue { return *private[*work.Queue](c, "queue") }

func windowOf(c *Comm) *exec.Window { return *private[*exec.Window](c, "window") }

func worksOf(c *Comm) *work.Group { return private[work.Group](c, "works") }

func groupOf(c *Comm) *transport.Group { return *private[*transport.Group](c, "group") }

// lockOrder has the order of a communicator's collectives stand still, until unlock is called.
func lockOrder(c *Comm) (unlock func()) {
	for {
		lockOf(c).Lock()
		c.shared.FastPath.Shut()
		if c.shared.FastPath.Closed() {
			break
		}
		lockOf(c).Unlock()
		exec.YieldCPU()
	}
	return func() {
		lockOf(c).Unlock()
		runnerOf(c).Rest()
	}
}

// queued puts a work of one operation into a communicator's queue, but does not tell that it has
// started. Change may change its only part before.
func queued(
	t *testing.T, c *Comm, timeout time.Duration, op *Operation, change func(*work.Part),
) *Work {
	t.Helper()
	m := op.Message()
	m.Schedule = uint8(now(c).Shape().ScheduleOf(op))
	k := worksOf(c).New(1, false)
	k.Add(work.Part{Operation: op, Message: m})
	part := &k.Parts()[0]
	change(part)
	k.SetTimeout(timeout)
	c.shared.Suspended.Guard(k, suspended.Epoch{Number: now(c).Number(), Rank: c.Rank(),
		Members: &now(c).Members}, []Operation{*op})
	unlock := lockOrder(c)
	defer unlock()
	if err := private[order.Order](c, "order").Start(&part.Message); err != nil {
		t.Fatal(err)
	}
	queueOf(c).Push(k)
	return k
}

// The lanes and control frames of package epoch.
const (
	collectiveLane   = 0
	pointToPointLane = 1

	frameFail     = transport.ControlBase
	frameAnnounce = transport.ControlBase + 1
	frameAsk      = transport.ControlBase + 2
	frameLook     = transport.ControlBase + 7
	frameReport   = transport.ControlBase + 8
)

// handlerOf is a communicator as its links see it.
func handlerOf(c *Comm) transport.Handler { return now(c).Handler() }

func shapeOf(c *Comm) tune.Shape { return *now(c).Shape() }

func pidOf(c *Comm, rank int) int { return now(c).Peers[rank].PID }

// holdQueue keeps all others from running a communicator's queue, until letGo, or the test's end.
func holdQueue(t testing.TB, c *Comm) (letGo func()) {
	token := queueOf(c).Token(nil)
	token <- struct{}{}
	letGo = sync.OnceFunc(func() { <-token })
	t.Cleanup(letGo)
	return letGo
}

func queueIsRun(c *Comm) bool { return queueOf(c).Token(nil).Taken() }

// runHeldQueue runs a queue that is held for a while, and returns the step that it has come to.
func runHeldQueue(c *Comm, w *Work, d time.Duration) int {
	runnerOf(c).Run(w, exec.Now()+d)
	return (*private[*collective.Engine](c, "runner.engine")).Run().Step()
}

// sendsItsPart runs a queue that is held, whose collective is a direct exchange, until the rank has
// sent to all others.
func sendsItsPart(t testing.TB, c *Comm, w *Work) {
	t.Helper()
	polltest.Until(t, "a rank has sent its part", func() bool {
		return runHeldQueue(c, w, time.Millisecond) >= c.Size()-1
	})
}

// comesToPart runs a queue that is held until its work is in a part.
func comesToPart(t testing.TB, c *Comm, w *Work, part int) {
	t.Helper()
	polltest.Until(t, fmt.Sprintf("a rank is in part %d", part), func() bool {
		runHeldQueue(c, w, time.Millisecond)
		return *private[int](c, "runner.part") == part
	})
}

func fastPathIsOpen(c *Comm) bool { return !c.shared.FastPath.Closed() }

// decides reports whether a rank is in a decision of the members.
func decides(c *Comm) bool { return now(c).Decisions().Waits() }

// anyBlockedIn reports whether a goroutine waits in a function, for a channel.
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
func awaitFailure(c *Comm) { <-worksOf(c).Context.Done() }

// sentOn is how many messages have gone to each peer on a lane. Of a direct plan they are two.
func sentOn(c *Comm, lane int) (n []uint64) {
	for peer := range now(c).Size() {
		n = append(n, windowOf(c).Lane(lane).Sent(peer))
	}
	return n
}

// copiesOnce reports whether the ranks have found that all read each other's memory.
func copiesOnce(c *Comm) bool { return now(c).Shape().SingleCopy }

// reads has a rank read a peer's memory by a process.
func reads(c *Comm, peer int, p exec.Process) { windowOf(c).UseProcess(peer, p) }

// shareableOf reports whether a process has an arena, and how many bytes of it devices know.
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

// orderOf tells what a rank knows of the order of collectives: see order.Order.String.
func orderOf(c *Comm) string {
	lockOf(c).Lock()
	defer lockOf(c).Unlock()
	return private[order.Order](c, "order").String()
}

// announced reports whether a rank keeps a peer's refusal, the last of a row.
func (w *world) announced(rank, peer int, sequence uint64) bool {
	refused := regexp.MustCompile(fmt.Sprintf(`, %d was refused [^,]*#%d \(`, peer, sequence))
	return refused.MatchString(orderOf(w.comms[rank]))
}

// forgotten waits until all has been told and nothing of it is kept.
func (w *world) forgotten() {
	w.t.Helper()
	for rank, c := range w.comms {
		polltest.Until(w.t, fmt.Sprintf("rank %d has told all and keeps nothing", rank), func() bool {
			lockOf(c).Lock()
			defer lockOf(c).Unlock()
			calls := private[order.Order](c, "order")
			return !calls.Ahead() && !strings.Contains(calls.String(), ", tells ")
		})
	}
}

// hasAnnounced reports whether a rank keeps that a peer waits.
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

// endFor is end for one peer, unless the present epoch has finished. As with links it finishes only
// when the handler has returned.
func (w *world) endFor(peer, rank int) {
	e := now(w.comms[peer])
	mu, tasks := privateOf[sync.Mutex](e, "tasks.mu"), privateOf[sync.WaitGroup](e, "tasks.WaitGroup")
	mu.Lock()
	over := *privateOf[bool](e, "tasks.ended")
	if !over {
		tasks.Add(1)
		defer tasks.Done()
	}
	mu.Unlock()
	if !over {
		e.Handler().PeerDown(rank, fmt.Errorf("%w: %w: its process has ended", transport.ErrPeerDown,
			transport.ErrEnded))
	}
}

// goneSince has all peers that are gone be so since a collective began.
func goneSince(c *Comm, sequence uint64) {
	lockOf(c).Lock()
	defer lockOf(c).Unlock()
	members := private[membership.Machine](c, "membership")
	for _, rank := range members.Departed() {
		d, _ := members.Departure(rank)
		members.Step(membership.Left{Peer: rank, Cause: d.Cause, Last: sequence})
	}
}

// awaitLeft waits until a rank knows that a peer has left.
func awaitLeft(t *testing.T, c *Comm, peer int) {
	t.Helper()
	what := fmt.Sprintf("rank %d hears that rank %d has left", now(c).Rank, peer)
	polltest.Until(t, what, func() bool { return keeps(c, fmt.Sprintf("%d is gone", peer)) })
}

// keeps reports whether a rank's sends and receives are in a state: see p2p.Engine.String.
func keeps(c *Comm, state string) bool {
	return strings.Contains((*private[*p2p.Engine](c, "p2p")).String(), ", "+state)
}

// sendsInC reports whether callers in C may send.
func sendsInC(c *Comm) bool { return keeps(c, "open") && c.shared.FastPath.SendsOpen() }

// linksOf is what reads a rank's links.
func linksOf(c *Comm) *transport.Poller { return now(c).Endpoint().Poller() }

// hold has nobody read a rank's links, until letGo, or the test's end.
func hold(t *testing.T, c *Comm) (letGo func()) {
	t.Helper()
	links := linksOf(c)
	polltest.Until(t, "the poller's token", func() bool {
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
	polltest.Until(t, "the RTS", func() bool { return keeps(receiver, "receives 1 of 0: accepted") })
	read = hold(t, receiver)
	letGo()
	polltest.Until(t, state, func() bool { return keeps(sender, state) })
	return sent, received, read
}

// hintOf is what stands at the end of the text of a failed communicator.
func hintOf(kind error) string {
	text := new(fault.Group).Errorf(kind, "?").Error()
	return strings.TrimPrefix(text, "the communicator has failed: ?. ")
}

// now is a communicator's present epoch.
func now(c *Comm) *epoch.Epoch { return c.present.Load() }
