package core

import (
	"errors"

	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/internal/plain"
	"github.com/goccl/goccl/core/logs"
	"github.com/goccl/goccl/core/membership"
	"github.com/goccl/goccl/core/transport"
)

// step gives news to membership, and carries out its actions. An epoch that is over takes no news.
func (c *epoch) step(e membership.Event) {
	c.mu.Lock()
	if c.over {
		c.mu.Unlock()
		return
	}
	c.act(c.membership.Step(e))
}

// act carries out what membership decides. It is called with the lock held, and gives it back.
func (c *epoch) act(actions []membership.Action) {
	for _, a := range actions {
		if stop, ok := a.(membership.Stop); ok {
			c.failure.Store(stop.Cause)
			c.awaitRecovery(stop.Cause)
			c.fast.Shut()
			c.window.Stop()
		}
	}
	group, destroyed := c.group, c.destroyed
	if len(actions) > 0 {
		c.postLocked()
	}
	c.mu.Unlock()
	for _, a := range actions {
		switch a := a.(type) {
		case membership.Part:
			c.log(logs.Init).Info("a peer is gone", "peer", c.Members.Names(a.Peer),
				"cause", a.Cause.Text, "evidence", a.Evidence.String())
			c.window.Leave(a.Peer)
			c.p2p.Depart(a.Peer, a.Departure)
			notify(c.monitored.changed)
			c.kick()
		case membership.Stop:
			if !destroyed {
				c.log(logs.Init).Info("the group has failed", "cause", a.Cause.Text)
			}
		case membership.Tell:
			if group != nil {
				group.Fail(failFrame(a.Cause))
			}
		case membership.EndWorks:
			c.cancel()
			c.kick()
			if group != nil {
				group.Halt() // what comes now would be written to buffers whose works have ended
			}
			c.p2p.Fail(a.Cause)
			c.queue.Stop()
			close(c.stopped)
		}
	}
}

// fail breaks the communicator: the first cause stays, all works end with it, and, where tell is
// set, all other ranks are told: those that have a connection now, others when they make one.
func (c *epoch) fail(cause *fault.Error, tell bool) {
	c.step(membership.Failure{Cause: cause, Quiet: !tell})
}

// failWith is fail that tells all ranks, and returns the first cause.
func (c *epoch) failWith(cause *fault.Error) *fault.Error {
	c.fail(cause, true)
	return c.failed()
}

// failed is the first cause of the failure; nil while the communicator works.
func (c *epoch) failed() *fault.Error { return c.failure.Load() }

// failFrame is what tells a peer of a failure.
func failFrame(cause *fault.Error) (transport.Header, []byte) {
	return transport.Header{Type: frameFail, Flags: fault.Number(cause.Kind)}, cause.Encode()
}

// departure is how a peer has ended.
func (c *epoch) departure(peer int) (d membership.Departure, gone bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.membership.Departure(peer)
}

// peerError is the failure to reach a peer, or the one that came before.
func (c *epoch) peerError(peer int, err error) *fault.Error {
	if e := c.failed(); e != nil {
		return e
	}
	return c.unreachable(peer, err)
}

// unreachable is the failure to reach a peer.
func (c *epoch) unreachable(peer int, err error) *fault.Error {
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
	return c.Members.Errorf(fault.ErrPeerFailed, "%s, on host %s and joined by %s, %s: %v",
		c.Members.Names(peer), c.Peers[peer].Name, c.Peers[peer].Kind, what, plain.Error(err)).
		Blaming(peer)
}

// hasLeft ends a send or receive whose peer has left in good order.
func (c *epoch) hasLeft(peer int) *fault.Error {
	return c.Members.Errorf(fault.ErrAborted, "%s has left (it destroyed its communicator or ended)",
		c.Members.Names(peer)).Blaming(peer).
		Hinting("Sends and receives between the ranks that are left go on")
}
