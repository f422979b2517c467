package epoch

import (
	"context"
	"errors"
	"slices"

	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/internal/errtext"
	"github.com/goccl/goccl/core/logs"
	"github.com/goccl/goccl/core/membership"
	"github.com/goccl/goccl/core/transport"
)

// step gives news to membership, and carries out its actions. An epoch that is over ignores news.
func (e *Epoch) step(n membership.Event) {
	e.mu.Lock()
	if e.over {
		e.mu.Unlock()
		return
	}
	e.act(e.membership.Step(n))
}

// act carries out what membership decides. It is called with mu held, and unlocks it.
func (e *Epoch) act(actions []membership.Action) {
	for _, a := range actions {
		if stop, ok := a.(membership.Stop); ok {
			e.failure.Store(stop.Cause)
			kind := stop.Cause.Kind.Error()
			if e.ending.Load() {
				kind = "" // it is no failure
			}
			e.fast.Trace().Fail(kind, stop.Cause.Text)
			if e.completes(stop.Cause) {
				e.config.Owner.Recover()
			}
			e.fast.Shut()
			e.window.Stop()
		}
	}
	group := e.group
	e.mu.Unlock()
	if len(actions) > 0 {
		e.config.Owner.Changed()
	}
	for _, a := range actions {
		switch a := a.(type) {
		case membership.Part:
			e.Log(logs.Init).Info("a peer is gone", "peer", e.Members.Names(a.Peer),
				"cause", a.Cause.Text, "evidence", a.Evidence.String())
			e.window.Leave(a.Peer)
			e.p2p.Depart(a.Peer, a.Departure)
			e.channels.Depart(a.Peer, a.Cause)
			notify(e.monitored.changed)
			e.kick()
		case membership.Stop:
			if e.config.Life.Err() == nil && !e.ending.Load() {
				e.Log(logs.Init).Info("the group has failed", "cause", a.Cause.Text)
				e.config.Owner.Failed()
			}
		case membership.Tell:
			if group != nil {
				group.Fail(failFrame(a.Cause))
			}
		case membership.EndWorks:
			e.cancel()
			e.kick()
			if group != nil {
				group.Halt() // what comes now would be written to buffers whose works have ended
			}
			e.p2p.Fail(a.Cause)
			e.channels.Fail(a.Cause)
			e.queue.Stop()
			close(e.stopped)
		}
	}
}

// Fail breaks the epoch. The first cause stays, and all works end with it. Where tell is set all
// other ranks are told: those that have a connection now, others when they make one.
func (e *Epoch) Fail(cause *fault.Error, tell bool) {
	e.step(membership.Failure{Cause: cause, Quiet: !tell})
}

// FailWith is Fail that tells all ranks, and returns the first cause.
func (e *Epoch) FailWith(cause *fault.Error) *fault.Error {
	e.Fail(cause, true)
	return e.Failure()
}

// LeaveWord tells the cause of a failure to ranks that have no connection to this one. One of them
// that comes later would find this process ended, and blame that end. A rank calls it before it
// leaves for good. LeaveWord waits for half a second at most.
func (e *Epoch) LeaveWord() {
	e.mu.Lock()
	group := e.group
	e.mu.Unlock()
	if group == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), askTime)
	defer cancel()
	group.Repeat(ctx, membership.Hearers(e.Rank, e.Size()))
}

// Failure is the first cause of the epoch's failure; nil while it works.
func (e *Epoch) Failure() *fault.Error { return e.failure.Load() }

// failFrame returns the frame that tells a peer of a failure.
func failFrame(cause *fault.Error) (transport.Header, []byte) {
	return transport.Header{Type: frameFail, Flags: fault.Number(cause.Kind)}, cause.Encode()
}

// departure returns how a peer has ended.
func (e *Epoch) departure(peer int) (d membership.Departure, gone bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.membership.Departure(peer)
}

// FoundersAreGone reports whether all that were members before the newcomers came have ended.
func (e *Epoch) FoundersAreGone() bool {
	return !slices.ContainsFunc(e.Founders.Ranks(), func(rank int) bool {
		_, gone := e.departure(rank)
		return !gone
	})
}

// peerError returns the error of a peer that cannot be reached, or the epoch's failure, which comes
// first.
func (e *Epoch) peerError(peer int, err error) *fault.Error {
	if n := e.Failure(); n != nil {
		return n
	}
	return e.unreachable(peer, err)
}

// unreachable returns the error of a peer that cannot be reached.
func (e *Epoch) unreachable(peer int, err error) *fault.Error {
	if errors.Is(err, transport.ErrPeerLeft) {
		return e.hasLeft(peer)
	}
	what := "cannot be reached"
	if errors.Is(err, transport.ErrPeerDown) {
		what = "has failed"
	}
	var link *transport.PeerError
	if errors.As(err, &link) {
		err = link.Err // the rest is said here
	}
	return e.Members.Errorf(fault.ErrPeerFailed, "%s, on host %s and joined by %s, %s: %v",
		e.Members.Names(peer), e.Peers[peer].Name, e.Peers[peer].Kind, what, errtext.Error(err)).
		Blaming(peer)
}

// hasLeft returns the error of a send or receive whose peer has left in good order.
func (e *Epoch) hasLeft(peer int) *fault.Error {
	return e.Members.Errorf(fault.ErrAborted, "%s has left (it destroyed its communicator or ended)",
		e.Members.Names(peer)).Blaming(peer).
		Hinting("Sends and receives between the ranks that are left go on")
}
