package core

import (
	"golang.org/x/sys/unix"

	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/membership"
	"github.com/goccl/goccl/core/transport"
)

// lingering is an epoch that has ended here, as its links see it. It stays as long as a member may
// ask what was decided. Such a member may have been cut off. It is not told that this rank has
// left, because it would take that for a death.
type lingering struct{ *epoch }

// Control implements transport.Handler.
func (c lingering) Control(src int, h transport.Header, payload []byte) {
	if h.Type == frameAgree {
		_ = c.onAgree(src, payload) // what breaks the protocol harms nobody any more
	}
}

// PeerDown implements transport.Handler.
func (c lingering) PeerDown(src int, err error) { c.lost(src, evidence(err)) }

// PeerLeft implements transport.Handler.
func (c lingering) PeerLeft(src int) { c.lost(src, membership.Proof) }

func (c lingering) lost(src int, e membership.Evidence) {
	c.mu.Lock()
	act := c.inform(membership.Lost{Peer: src, Evidence: e})
	c.mu.Unlock()
	act()
	c.checkSettled()
}

// PeerAttached implements transport.Handler.
func (c lingering) PeerAttached(_ int, fds []int) {
	for _, fd := range fds {
		unix.Close(fd)
	}
}

// Slot implements transport.Handler.
func (c lingering) Slot(int, transport.Header) (head, body []byte, err error) {
	return nil, nil, fault.Errorf(fault.ErrInternal, "the epoch has ended")
}

// Arrived implements transport.Handler.
func (c lingering) Arrived(int, transport.Header) {}

// Dropped implements transport.Handler.
func (c lingering) Dropped(int, transport.Header) {}

// Acked implements transport.Handler.
func (c lingering) Acked(int, transport.Header) {}

// detach leaves the epoch's group: at once, or once nobody can ask for a decision any more.
func (c *epoch) detach() {
	c.mu.Lock()
	owes := c.owesDecision()
	c.mu.Unlock()
	if !owes {
		c.group.Detach()
		return
	}
	c.runtime.linger(c)
	c.group.Halt()
	c.group.UseHandler(lingering{c})
	c.checkSettled() // the last news may have come meanwhile
}

// closeArchive leaves the group of an epoch that has ended, once nobody can ask for a decision any
// more.
func (c *epoch) closeArchive() {
	c.mu.Lock()
	owes := c.owesDecision()
	c.mu.Unlock()
	if owes || !c.runtime.endLingering(c) {
		return
	}
	go func() { // a handler may not wait for itself
		c.group.Detach()
		c.end.Leave()
	}()
}
