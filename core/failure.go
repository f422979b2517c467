package core

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/goccl/goccl/core/call"
	"github.com/goccl/goccl/core/exec"
	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/internal/plain"
	"github.com/goccl/goccl/core/logs"
	"github.com/goccl/goccl/core/order"
	"github.com/goccl/goccl/core/plan"
	"github.com/goccl/goccl/core/transport"
	"github.com/goccl/goccl/core/work"
)

// fail breaks the communicator: the first cause stays, all works end with it, and, where tell is set,
// all other ranks are told: those that have a connection now, others when they make one.
func (c *Comm) fail(cause *fault.Error, tell bool) {
	c.mu.Lock()
	if !c.failure.CompareAndSwap(nil, cause) {
		c.mu.Unlock()
		return
	}
	c.shortcut.Shut()
	group, destroyed := c.group, c.destroyed
	c.window.Stop() // before anybody can hear of the failure, and give buffers back that peers are reading
	c.mu.Unlock()
	defer close(c.stopped)
	if !destroyed {
		c.log(logs.Init).Info("the group has failed", "cause", cause.Text)
	}
	if tell && group != nil {
		group.Fail(failFrame(cause))
	}
	c.cancel()
	c.kick()
	if group != nil {
		group.Halt() // what comes now would be written to buffers whose works have ended
	}
	c.p2p.fail(cause)
	c.queue.Stop() // ends what is queued
}

// failFrame is what tells a peer of a failure.
func failFrame(cause *fault.Error) (transport.Header, []byte) {
	return transport.Header{Type: frameFail, Flags: fault.Number(cause.Kind)}, cause.Encode()
}

// failed is the first cause of the failure; nil while the communicator works.
func (c *Comm) failed() *fault.Error { return c.failure.Load() }

// connect makes sure that there is a connection to a peer, or one is being made: until the channel
// that it returns is closed. A failure to make it fails the communicator. That the peer is gone is
// none: PeerDown or PeerLeft tell of it, and then what needs the peer fails.
func (c *Comm) connect(peer int) <-chan struct{} {
	c.mu.Lock()
	ended := c.dials[peer]
	if ended != nil {
		c.mu.Unlock()
		return ended
	}
	ended = make(chan struct{})
	c.dials[peer] = ended
	c.mu.Unlock()
	c.spawn(func() {
		err := c.group.Connect(c.works.Context, peer)
		c.mu.Lock()
		delete(c.dials, peer)
		c.mu.Unlock()
		if err != nil && !errors.Is(err, transport.ErrPeerLeft) && !errors.Is(err, transport.ErrPeerDown) {
			c.fail(c.peerError(peer, err), true)
		}
		close(ended)
	})
	return ended
}

// departure is a peer's end, by a goodbye or without one. It harms those operations only that still
// need the peer: a process that ends without a goodbye may have been killed, or may have done its
// part.
type departure struct {
	cause  *fault.Error // fault.ErrPeerFailed where there was no goodbye
	exited bool         // the process is known to have ended by itself, with status 0
	last   uint64       // number of this rank's last collective when it heard of it
}

// lost tells whether the peer has ended without a goodbye. Then whoever misses it fails the
// communicator, so that all ranks hear of it.
func (d departure) lost() bool { return d.cause.Kind == fault.ErrPeerFailed }

// missedBy is the failure of a collective that needs the peer.
func (d departure) missedBy(m plan.Message) *fault.Error {
	if d.lost() {
		return d.cause
	}
	missed := *d.cause
	missed.Text += fmt.Sprintf(" and can no longer take part in #%d %s", m.Sequence, call.Describe(m))
	return missed.Hinting("").During(m.Name(), m.Sequence)
}

// depart takes the news that a peer is gone.
func (c *Comm) depart(peer int, d departure) {
	c.lockOrder()
	d.last = c.Sequence()
	c.departed[peer] = d
	c.log(logs.Init).Info("a peer is gone", "peer", c.members.Names(peer), "cause", d.cause.Text)
	var doomed *fault.Error
	for m := range c.order.Waiting() {
		if doomed == nil {
			doomed = c.missing(m)
		}
	}
	c.mu.Unlock()
	c.window.Leave(peer)
	c.p2p.depart(peer, d)
	notify(c.checked)
	c.kick()
	if doomed != nil {
		c.fail(doomed, true)
	}
}

func (c *Comm) departure(peer int) (d departure, gone bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	d, gone = c.departed[peer]
	return d, gone
}

// missing tells whether a collective misses a peer that was gone before this rank came to it. No
// rank is through a collective before it has heard from all others, which plans are proved to do:
// in one with a root the root has heard from all others, and these from the root. It is called with
// the lock held.
func (c *Comm) missing(m plan.Message) *fault.Error {
	for _, peer := range slices.Sorted(maps.Keys(c.departed)) {
		root, d := int(m.Root), c.departed[peer]
		if m.Sequence > d.last && (root < 0 || root == c.rank || root == peer) {
			return d.missedBy(m)
		}
	}
	return nil
}

// peerError is the failure to reach a peer.
func (c *Comm) peerError(peer int, err error) *fault.Error {
	if e := c.failed(); e != nil {
		return e
	}
	if errors.Is(err, transport.ErrPeerLeft) {
		return c.hasLeft(peer)
	}
	what := "cannot be reached"
	if errors.Is(err, transport.ErrPeerDown) {
		what = "has failed"
	}
	var link *transport.PeerError
	if errors.As(err, &link) {
		err = link.Err // the rest is said here
	}
	return c.members.Errorf(fault.ErrPeerFailed, "%s, on host %s and joined by %s, %s: %v",
		c.members.Names(peer), c.addresses[peer].Name,
		c.kinds[peer], what, plain.Error(err)).Blaming(peer)
}

// hasLeft ends a send or receive whose peer has left in good order.
func (c *Comm) hasLeft(peer int) *fault.Error {
	return c.members.Errorf(fault.ErrAborted, "%s has left (it destroyed its communicator or ended)",
		c.members.Names(peer)).Blaming(peer).
		Hinting("Sends and receives between the ranks that are left go on")
}

// undone is what a collective ends with that a failure has ended: the cause, which collective it was, and what has become of its buffers.
func (c *Comm) undone(p *work.Part, begun bool, cause *fault.Error) *fault.Error {
	m := p.Message
	return cause.During(m.Name(), m.Sequence).
		Ending(fmt.Sprintf("#%d %s", m.Sequence, call.Describe(m)), p.Operation.Aftermath(c.rank, begun))
}

// refusalTime is how long the news of a refused call may take, on a busy host, after the peer's next
// call has been seen.
const refusalTime = time.Second

// mismatchError tells of two ranks that call different things, or the same with different sizes.
func (c *Comm) mismatchError(
	mine plan.Message, run *exec.Run, peer int, seen plan.Message, sent order.Traffic,
) *fault.Error {
	if mine == seen {
		var expected order.Traffic
		expected.Bytes, expected.Total = run.Expected()
		return c.order.DifferInBytes(mine, peer, expected, sent)
	}
	if seen.Sequence > mine.Sequence {
		// The peer left this call out. If it was refused, that is under way, fails the communicator,
		// and says more.
		t := time.NewTimer(refusalTime)
		defer t.Stop()
		select {
		case <-c.works.Context.Done():
		case <-t.C:
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.order.Differ(mine, peer, seen)
}

// announce tells the peers what this rank waits in. Those that do another thing at the same place in
// the order find it out.
func (c *Comm) announce(m plan.Message) {
	c.group.Broadcast(transport.Header{Type: frameAnnounce, Seq: m.Sequence}, order.Encode(m))
}

// onAnnounce takes a peer's announcement: of what it waits in, or of what it was refused.
func (c *Comm) onAnnounce(peer int, payload []byte) error {
	a, err := order.DecodeAnnouncement(payload)
	if err != nil {
		return fmt.Errorf("%w: %w", exec.ErrProtocol, err)
	}
	c.lockOrder()
	mismatch := c.order.Hear(peer, a)
	if mismatch == nil && a.Waits() && a.Message.Sequence > c.Sequence() {
		mismatch = c.missing(a.Message) // nobody else may know that it waits in vain
	}
	c.unlockOrder()
	if mismatch != nil {
		c.fail(mismatch, true)
	}
	return nil
}

// askTime is how long a rank that timed out waits for its peers to say what they are doing.
const askTime = 500 * time.Millisecond

// timeoutError finds out which ranks did not arrive.
func (c *Comm) timeoutError(w *Work, m plan.Message) *fault.Error {
	missing, behind := c.ask(m.Sequence)
	head := fmt.Sprintf("#%d %s: timeout after %v on %s", m.Sequence, call.Describe(m), w.Timeout(),
		c.members.Names(c.rank))
	var parts []string
	if len(missing) > 0 {
		parts = append(parts, fmt.Sprintf("%s did not answer (stopped, or stuck outside of the "+
			"interpreter, or unreachable)", c.members.Names(missing...)))
	}
	for _, r := range behind {
		what := "has not started a collective yet"
		if r.sequence > 0 {
			what = fmt.Sprintf("is still at #%d", r.sequence)
		}
		parts = append(parts, c.members.Names(r.rank)+" "+what)
	}
	if len(parts) == 0 {
		return c.members.Errorf(fault.ErrTimeout, "%s. All ranks have arrived: the transfer itself "+
			"did not end in time", head).During(m.Name(), m.Sequence)
	}
	all := slices.Clone(missing)
	for _, r := range behind {
		all = append(all, r.rank)
	}
	slices.Sort(all)
	return c.members.Errorf(fault.ErrTimeout, "%s: %s did not arrive: %s", head,
		c.members.Names(all...), strings.Join(parts, ", ")).
		During(m.Name(), m.Sequence).Blaming(all...)
}

type laggard struct {
	rank     int
	sequence uint64
}

// ask asks all peers how far they have come, and returns those that do not answer and those that
// have not started the collective of the given number.
func (c *Comm) ask(sequence uint64) (missing []int, behind []laggard) {
	ctx, cancel := context.WithTimeout(context.Background(), askTime)
	defer cancel()
	c.mu.Lock()
	c.answers = map[int]plan.Message{}
	c.mu.Unlock()
	var wg sync.WaitGroup
	for peer := range c.size {
		if peer == c.rank {
			continue
		}
		wg.Add(1)
		go func() {
			defer wg.Done()
			// An error means no answer, which is what is found out here.
			_ = c.group.Send(ctx, peer, transport.Header{Type: frameAsk})
		}()
	}
	wg.Wait()
	for {
		c.mu.Lock()
		n := len(c.answers)
		c.mu.Unlock()
		if n == c.size-1 {
			break
		}
		select {
		case <-c.answered:
			continue
		case <-ctx.Done():
		}
		break
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for peer := range c.size {
		if m, ok := c.answers[peer]; peer == c.rank {
			continue
		} else if !ok {
			missing = append(missing, peer)
		} else if m.Sequence < sequence {
			behind = append(behind, laggard{peer, m.Sequence})
		}
	}
	return missing, behind
}

// monitoredBarrier runs a barrier over control messages: rank 0 hears from every rank, then tells all.
func (c *Comm) monitoredBarrier(
	w *Work, p *work.Part, until time.Duration,
) (finished bool, failure *fault.Error) {
	r := &c.runner
	sequence := p.Message.Sequence
	if c.size == 1 {
		return true, nil
	}
	defer func() {
		// What comes after it in its batch is not run here, so peers must not wait for it.
		if failure != nil && p != &w.Parts()[len(w.Parts())-1] {
			c.fail(failure, true)
		}
	}()
	if !r.begun {
		if c.rank != 0 && exec.Now() < w.Deadline() {
			ctx := work.WithDeadline(w.Context(), until)
			err := c.group.Send(ctx, 0, transport.Header{Type: frameCheckIn, Seq: sequence})
			ctx.End()
			switch {
			case errors.Is(err, context.DeadlineExceeded):
				return false, nil
			case err != nil:
				c.fail(c.peerError(0, err), true)
				return true, c.failed()
			}
		}
		r.begun = true
	}
	// Rank 0 decides; the others wait a little longer, to hear from it who is missing.
	deadline := w.Deadline()
	if c.rank != 0 {
		deadline += 2 * askTime
	}
	for {
		here, verdict, told, missed := c.barrierState(p.Message)
		switch {
		case told && verdict == nil:
			return true, nil
		case told:
			return true, c.barrierError(c.members.Names(0)+" said: "+verdict.Text, verdict.Ranks...)
		case missed != nil:
			c.fail(missed, true)
			return true, c.failed()
		case c.rank == 0 && here == c.size-1:
			return true, c.checkOut(w, sequence, nil)
		case exec.Now() >= deadline && c.rank == 0:
			verdict := c.missingError(sequence, w, p.Operation.WaitAll)
			return true, cmp.Or(c.checkOut(w, sequence, verdict), verdict)
		case exec.Now() >= deadline:
			return true, c.barrierError(c.members.Names(0)+" did not answer in time", 0)
		}
		now := exec.Now()
		if now >= until {
			return false, nil
		}
		t := time.NewTimer(min(until, deadline) - now)
		select {
		case <-c.checked:
		case <-t.C:
		case <-c.works.Context.Done():
			t.Stop()
			return true, c.failed()
		}
		t.Stop()
	}
}

// barrierError is what a rank that came to a monitored barrier says when others did not. The first
// sentence is the one that users of Gloo know.
func (c *Comm) barrierError(news string, absent ...int) *fault.Error {
	return fault.Errorf(fault.ErrTimeout, "[Rank %d]: Rank %d successfully reached "+
		"monitoredBarrier, but received errors while waiting for send/recv from rank 0. "+
		"Please check rank 0 logs for faulty rank. This is %s. %s", c.rank, c.rank,
		c.members.Names(c.rank), news).In(&c.members).Blaming(absent...)
}

// barrierState tells who has come to rank 0 or what that has said, and whether one is missed that
// is gone.
func (c *Comm) barrierState(
	m plan.Message,
) (here int, verdict *fault.Error, told bool, missed *fault.Error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	verdict, told = c.checkOuts[m.Sequence]
	missed = c.missing(m)
	for _, peer := range slices.Sorted(maps.Keys(c.departed)) {
		if missed == nil && (peer == 0 || c.rank == 0 && !c.checkIns[m.Sequence][peer]) {
			missed = c.departed[peer].missedBy(m)
		}
	}
	return len(c.checkIns[m.Sequence]), verdict, told, missed
}

// endBarrier forgets a monitored barrier. What comes of it later is dropped.
func (c *Comm) endBarrier(sequence uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.barriers = sequence
	delete(c.checkIns, sequence)
	delete(c.checkOuts, sequence)
}

// missingError names the ranks that have not come to rank 0; nil if all have.
func (c *Comm) missingError(sequence uint64, w *Work, all bool) *fault.Error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var missing []int
	for r := 1; r < c.size; r++ {
		if !c.checkIns[sequence][r] {
			missing = append(missing, r)
			if !all {
				break
			}
		}
	}
	if len(missing) == 0 {
		return nil
	}
	noun := "Rank "
	if all {
		noun = "Ranks "
	}
	numbers := strings.ReplaceAll(strings.Trim(fmt.Sprint(missing), "[]"), " ", ", ")
	return fault.Errorf(fault.ErrTimeout, "[Rank 0]: %s%s failed to pass monitoredBarrier "+
		"in %d ms: %s", noun, numbers,
		w.Timeout().Milliseconds(), c.members.Names(missing...)).In(&c.members).Blaming(missing...)
}

// checkOut tells all ranks that came how a monitored barrier ended. One that came may have ended
// since: the barrier is complete without it.
func (c *Comm) checkOut(w *Work, sequence uint64, verdict *fault.Error) (failure *fault.Error) {
	var payload []byte
	if verdict != nil {
		payload = verdict.Encode()
	}
	c.mu.Lock()
	here := maps.Clone(c.checkIns[sequence])
	c.mu.Unlock()
	ctx, cancel := context.WithTimeout(c.works.Context, max(w.Deadline()-exec.Now(), askTime))
	defer cancel()
	for r := 1; r < c.size; r++ {
		if !here[r] {
			continue
		}
		err := c.group.Send(ctx, r, transport.Header{Type: frameCheckOut, Seq: sequence}, payload)
		gone := errors.Is(err, transport.ErrPeerDown) || errors.Is(err, transport.ErrPeerLeft)
		if err != nil && !gone && failure == nil && verdict == nil {
			failure = c.peerError(r, err)
		}
	}
	return failure
}
