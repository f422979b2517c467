package core

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"slices"
	"time"

	"github.com/goccl/goccl/core/address"
	"github.com/goccl/goccl/core/completion"
	"github.com/goccl/goccl/core/exec"
	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/meeting"
	"github.com/goccl/goccl/core/membership"
	"github.com/goccl/goccl/core/transport"
)

// decision is a rank's part in one decision of its epoch's members: see membership.Agreement.
type decision struct {
	agreement *membership.Agreement // under Comm.mu
	begun     bool                  // this rank has moved; under Comm.mu
	ended     chan struct{}         // closed once value or cause is set
	value     *membership.Value
	record    record // of value; set by reachDecision
	cause     *fault.Error

	// What Recover goes on with; under Comm.changing.
	mine      completion.Progress // in the epoch that ends
	transfers []*transfer         // what is passed on
}

const (
	agreementTick     = 50 * time.Millisecond
	agreementPatience = 10 // ticks
	// agreementSend is how long a message of an agreement may take. What is lost is sent again.
	agreementSend = 2 * time.Second
)

// Messages take every joiner whose address and handle can be read: these are not negative.
const (
	_ = uint(membership.MaxHost - address.MaxHostName)
	_ = uint(membership.MaxHandle - meeting.MaxHandle)
)

// decisionOf is this rank's part in the decision that a peer tells of: the epoch's first has number
// 0. It is nil where there can be none: peers are ahead by one that this rank has not moved in, and
// not once the epoch is over. It is called with the lock held.
func (c *epoch) decisionOf(number uint32) *decision {
	n := uint32(len(c.decisions))
	switch {
	case number < n:
		return c.decisions[number]
	case number == n && !c.over && (n == 0 || c.decisions[n-1].begun):
		return c.nextDecision()
	}
	return nil
}

// nextDecision makes this rank's part in the next decision. It is called with the lock held.
func (c *epoch) nextDecision() *decision {
	number := len(c.decisions)
	known := membership.Known{Settled: c.settled && !c.unmet()}
	for _, j := range c.entry.joiners {
		known.Joiners = append(known.Joiners, j.Joiner)
	}
	for _, peer := range c.membership.Departed() {
		departure, _ := c.membership.Departure(peer)
		known.Lost = append(known.Lost, membership.Lost{Peer: peer, Evidence: departure.Evidence})
	}
	if number > 0 {
		known.Before = c.decisions[number-1].agreement
	}
	d := &decision{ended: make(chan struct{}), agreement: membership.Replay(membership.Config{
		Rank: c.Rank, Size: c.Size(), Epoch: uint32(number), Founders: c.Founders,
		Uncontested: c.Founders != nil && !c.Contested && !c.IsNewcomer(c.Rank),
		MinSize:     max(c.config.MinSize, 1), Any: c.config.Quorum == QuorumAny,
		Patience: agreementPatience, Waits: true,
		Judge: func(states map[int][]byte) ([]byte, bool) { return judge(states, c.config.MinSize) }},
		known)}
	c.decisions = append(c.decisions, d)
	return d
}

// inform gives all decisions news. It is called with the lock held, and returns what must be called
// without it.
func (c *epoch) inform(n membership.News) (act func()) {
	var acts []func()
	for _, d := range c.decisions {
		acts = append(acts, c.informOf(d, n))
	}
	return func() {
		for _, act := range acts {
			act()
		}
	}
}

// informOf gives a decision news, in the manner of inform.
func (c *epoch) informOf(d *decision, n membership.News) (act func()) {
	actions := d.agreement.Step(n)
	group := c.group
	for _, a := range actions {
		switch a := a.(type) {
		case membership.Decided:
			d.value = a.Value
			close(d.ended)
		case membership.Out:
			d.cause = c.outError(a.Cause)
			close(d.ended)
		}
	}
	return func() {
		for _, a := range actions {
			switch a := a.(type) {
			case membership.Send:
				sendAgree(group, a.To, a.Message.Encode())
			case membership.Out:
				c.fail(d.cause, false)
			}
		}
	}
}

// outError is why this rank has no part in what follows.
func (c *epoch) outError(cause error) *fault.Error {
	if given := (*fault.Error)(nil); errors.As(cause, &given) {
		return given
	}
	if errors.Is(cause, membership.ErrExcluded) {
		return c.Members.Errorf(fault.ErrExcluded, "the others go on without %s, which they took for "+
			"dead, or which did not answer them in time", c.Members.Names(c.Rank)).Blaming(c.Rank)
	}
	least := ""
	if c.config.MinSize > 1 {
		least = fmt.Sprintf(", and at least %d members must be left", c.config.MinSize)
	}
	return c.Members.Errorf(fault.ErrNoQuorum, "%s reaches too few of %d ranks to go on: a majority "+
		"must answer, or all those that are not proved to have ended%s", c.Members.Names(c.Rank),
		c.Size(), least)
}

// sendAgree sends a message of an agreement. It waits for nobody, and the message may be lost. What
// a peer does not read that has attached waits in its link's queue, which has a bound.
func sendAgree(group *transport.Group, to int, message []byte) {
	h := transport.Header{Type: frameAgree}
	if group == nil || group.TrySend(to, h, message) || group.Notify(to, h, message) {
		return
	}
	go func() { // it may go on after the end of the epoch, so it is none of its tasks
		ctx, cancel := context.WithTimeout(context.Background(), agreementSend)
		defer cancel()
		_ = group.Send(ctx, to, h, message) // see above
	}()
}

// onAgree takes a peer's message.
func (c *epoch) onAgree(src int, payload []byte) error {
	m, err := membership.Decode(payload, c.Size())
	if err != nil {
		return fmt.Errorf("%w: %w", exec.ErrProtocol, err)
	}
	act := func() {}
	c.mu.Lock()
	if d := c.decisionOf(m.Epoch); d != nil {
		act = c.informOf(d, membership.Received{From: src, Message: m})
	}
	c.mu.Unlock()
	act()
	if m.Settled {
		c.settle()
	}
	return nil
}

// reachDecision has the epoch's members decide who goes on, and returns their decision. Members
// that are lost or do not answer take no part. It waits for the others for half of the context's
// time.
func (c *epoch) reachDecision(ctx context.Context, m proposal, exclude []int) (*decision, error) {
	var nonce [membership.NonceSize]byte
	rand.Read(nonce[:])
	m.Ended = !m.Completes && c.failed() != nil
	stopped := c.fence(ctx, c.blamed(), false)
	c.mu.Lock()
	var d *decision
	if n := len(c.decisions); n > 0 && (!c.decisions[n-1].begun || c.decisions[n-1].cause != nil) {
		d = c.decisions[n-1]
	} else {
		d = c.nextDecision()
	}
	d.begun = true
	news := stopped
	for _, peer := range exclude {
		news = append(news, membership.Excluded{Peer: peer})
	}
	news = append(news, membership.Begin{Nonce: nonce, State: m.encode(), Newcomers: m.Newcomers})
	var acts []func()
	for _, n := range news {
		acts = append(acts, c.informOf(d, n))
	}
	c.mu.Unlock()
	for _, act := range acts {
		act()
	}
	c.post() // newcomers may be waited for
	c.await(ctx, d)
	if d.cause != nil {
		return nil, d.cause.During(m.Operation, 0)
	}
	c.fenceLeftOut(d)
	var err error
	if d.record, err = readRecord(d.value, c.Size()); err != nil {
		return nil, fault.From(err, fault.ErrInternal, "decision").In(&c.Members)
	}
	if d.record.GivesUp && m.Completes {
		return nil, c.Members.Errorf(fault.ErrRevoked, "others have failed for another reason than a "+
			"peer's end, so that nothing can be completed")
	}
	if d.record.Recovers {
		// This rank recovers, too, even if it has not heard of the failure yet.
		c.fail(c.Members.Errorf(fault.ErrPeerFailed, "others recover from a failure"), false)
		return nil, errRecovers
	}
	if d.record.Calls != nil {
		return nil, c.Members.Errorf(fault.ErrMismatch, "the ranks have called different things").
			Calling(d.record.Calls).During(m.Operation, 0)
	}
	return d, nil
}

// await waits until a decision has ended, for as long as the context lasts.
func (c *epoch) await(ctx context.Context, d *decision) {
	defer c.listen()()
	step := func(n membership.News) {
		c.mu.Lock()
		act := c.informOf(d, n)
		c.mu.Unlock()
		act()
	}
	var half <-chan time.Time
	if deadline, ok := ctx.Deadline(); ok {
		t := time.NewTimer(time.Until(deadline) / 2)
		defer t.Stop()
		half = t.C
	}
	for {
		// Members that tick in step could stop each other for long.
		tick := time.NewTimer(agreementTick + mathrand.N(agreementTick/4))
		select {
		case <-d.ended:
			tick.Stop()
			return
		case <-tick.C:
			step(membership.Tick{})
		case <-half:
			c.mu.Lock()
			silent := d.agreement.Silent()
			c.mu.Unlock()
			for _, n := range c.fence(ctx, silent, true) {
				step(n)
			}
			// Newcomers that have not been met hold the members up no longer, whatever they answer.
			for _, rank := range c.strangers() {
				step(membership.Excluded{Peer: rank})
			}
			step(membership.Waited{})
		case <-ctx.Done():
			expired := membership.Expired{}
			if cause := (*fault.Error)(nil); errors.As(context.Cause(ctx), &cause) {
				expired.Cause = cause
			}
			step(expired)
		}
		tick.Stop()
	}
}

// blamed are the peers that a failure blames for a timeout.
func (c *epoch) blamed() (peers []int) {
	failure := c.failed()
	if failure == nil || !errors.Is(failure, fault.ErrTimeout) {
		return nil
	}
	for _, peer := range failure.Ranks {
		if _, gone := c.departure(peer); !gone && peer != c.Rank {
			peers = append(peers, peer)
		}
	}
	return peers
}

// refusal is why the epoch takes no operations, nil while it works. It is called with the lock
// held.
func (c *epoch) refusal() *fault.Error {
	if n := len(c.decisions); n > 0 && c.decisions[n-1].cause != nil {
		return c.decisions[n-1].cause // it says more than the failure before
	}
	return c.failed()
}

// fence tells of those of some peers that do not answer now. One that shares memory with this rank
// is killed if it is stopped: see [transport.Endpoint.Fence]. If it is not it may be late, and
// counts as silent only once it has been waited for.
func (c *epoch) fence(ctx context.Context, peers []int, waited bool) (news []membership.News) {
	if len(peers) == 0 {
		return nil
	}
	missing, _ := c.askThese(ctx, peers, 0)
	for _, peer := range missing {
		ended, lives := c.end.Fence(c.Peers[peer].Process)
		switch {
		case ended:
			news = append(news, membership.Lost{Peer: peer, Evidence: membership.Proof})
		case waited || !lives:
			news = append(news, membership.Lost{Peer: peer})
		}
	}
	return news
}

// decides tells whether this rank waits for a decision. It is called with the lock held.
func (c *epoch) decides() bool {
	n := len(c.decisions)
	if n == 0 {
		return false
	}
	d := c.decisions[n-1]
	return d.begun && d.value == nil && d.cause == nil
}

// fenceLeftOut kills those of this host that a decision leaves out and that are stopped: another
// member may have found them silent.
func (c *epoch) fenceLeftOut(d *decision) {
	c.mu.Lock()
	out := d.agreement.LeftOut()
	c.mu.Unlock()
	for _, peer := range out {
		c.end.Fence(c.Peers[peer].Process)
	}
}

// leadsTo tells that a decision has made another epoch, which this rank is about to begin.
func (c *epoch) leadsTo(next *epoch) {
	next.mu.Lock()
	next.before = c
	next.mu.Unlock()
	c.mu.Lock()
	c.next = next
	c.mu.Unlock()
}

// met tells that the first meeting is over: all members have begun the epoch, and have gone on with
// all that was decided in the epochs before. None of them does without newcomers any more.
func (c *epoch) met() {
	c.mu.Lock()
	waited := c.settled && c.unmet()
	c.allMet = true
	c.mu.Unlock()
	if waited {
		c.tellSettled()
	} else if !c.Contested {
		c.settle()
	}
	here := map[address.ProcessID]bool{}
	for rank := range c.Peers {
		here[c.Peers[rank].Process] = true
	}
	for b := c.leavesBefore(); b != nil; b = b.leavesBefore() {
		var ranks []int
		for rank := range b.Peers {
			if here[b.Peers[rank].Process] {
				ranks = append(ranks, rank)
			}
		}
		b.mu.Lock()
		act := b.inform(membership.Installed{Ranks: ranks})
		b.mu.Unlock()
		act()
		b.checkSettled()
	}
}

// leavesBefore returns the epoch before, and forgets it: it is told of later ones only once.
func (c *epoch) leavesBefore() *epoch {
	c.mu.Lock()
	defer c.mu.Unlock()
	before := c.before
	c.before = nil
	return before
}

// checkSettled does what can be done once nobody can ask for a decision of the epoch any more. It
// follows what informs of members. Handlers may call it.
func (c *epoch) checkSettled() {
	c.mu.Lock()
	next := c.next
	over := c.settled && next != nil && !c.owesDecision()
	c.mu.Unlock()
	if over {
		next.settle()
	}
	c.closeArchive()
}

// owesDecision tells whether a member may still ask for a decision of the epoch. It is called with
// the lock held.
func (c *epoch) owesDecision() bool {
	return slices.ContainsFunc(c.decisions, func(d *decision) bool {
		return d.value != nil && !d.agreement.Settled()
	})
}

// settle tells that no member of the epoch before can decide otherwise.
func (c *epoch) settle() {
	c.mu.Lock()
	settled := c.settled
	c.settled = true
	c.mu.Unlock()
	if !settled {
		c.tellSettled()
		c.checkSettled()
	}
}

// tellSettled tells that the epoch is settled, see membership.Settle, unless a member may still do
// without newcomers. These hear of it from the others.
func (c *epoch) tellSettled() {
	c.mu.Lock()
	if c.unmet() {
		c.mu.Unlock()
		return
	}
	group := c.group
	act := c.inform(membership.Settle{})
	tell := membership.Message{Kind: membership.Notice, Epoch: uint32(len(c.decisions)),
		Ended: membership.NewSet(c.Size()), Excluded: membership.NewSet(c.Size()), Settled: true}
	c.mu.Unlock()
	act()
	for rank := range c.Size() {
		if c.Founders.Has(c.Rank) && !c.Founders.Has(rank) {
			sendAgree(group, rank, tell.Encode())
		}
	}
}
