package core

import (
	"errors"
	"sync"

	"github.com/goccl/goccl/core/transport"
)

// dialer makes connections to peers, one at a time to each.
type dialer struct {
	mu    sync.Mutex
	dials map[int]chan struct{} // under way, by peer: closed when each has ended
}

// connect makes sure that there is a connection to a peer, or one is being made: until the channel
// that it returns is closed. A failure to make it fails the communicator. That the peer is gone is
// none: PeerDown or PeerLeft tell of it, and then what needs the peer fails.
func (c *epoch) connect(peer int) <-chan struct{} {
	d := &c.dialer
	d.mu.Lock()
	ended := d.dials[peer]
	if ended != nil {
		d.mu.Unlock()
		return ended
	}
	if d.dials == nil {
		d.dials = map[int]chan struct{}{}
	}
	ended = make(chan struct{})
	d.dials[peer] = ended
	d.mu.Unlock()
	c.spawn(func() {
		err := c.group.Connect(c.works.Context, peer)
		d.mu.Lock()
		delete(d.dials, peer)
		d.mu.Unlock()
		if err != nil && !errors.Is(err, transport.ErrPeerLeft) &&
			!errors.Is(err, transport.ErrPeerDown) {
			c.fail(c.peerError(peer, err), true)
		}
		close(ended)
	})
	return ended
}
