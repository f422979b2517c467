package epoch

import (
	"errors"
	"sync"

	"github.com/goccl/goccl/core/transport"
)

// mostDials is how many connections are made at once, beside those that are waited for.
const mostDials = 32

// dialer makes the connections that operations need, one at a time to each peer.
type dialer struct {
	mu    sync.Mutex    // guards what follows
	dials map[int]*dial // planned or under way, by peer
	next  []int         // peers to whom one is planned, in order; some may have begun
	busy  int           // how many are under way
}

// dial is the making of a connection.
type dial struct {
	begun bool
	ended chan struct{} // closed when it is made, or has failed
}

// connect starts a connection to a peer, if there is none. It closes the channel that it returns
// when the attempt is over. Next are peers that are needed soon: it dials some of them at the same
// time. A failed attempt fails the epoch, unless the peer is gone: PeerDown or PeerLeft report
// that, and what needs the peer fails then.
func (e *Epoch) connect(peer int, next ...int) <-chan struct{} {
	d := &e.dialer
	d.mu.Lock()
	now := d.plan(peer)
	begins := !now.begun
	if begins {
		d.begin(now)
	}
	for _, p := range next {
		if d.dials[p] == nil && !e.group.Connected(p) {
			d.plan(p)
			d.next = append(d.next, p)
		}
	}
	d.mu.Unlock()
	if begins {
		e.dial(peer)
	}
	e.dialNext()
	return now.ended
}

// plan notes a dial of a peer, if there is none. It is called with mu held.
func (d *dialer) plan(peer int) *dial {
	if d.dials == nil {
		d.dials = map[int]*dial{}
	}
	if d.dials[peer] == nil {
		d.dials[peer] = &dial{ended: make(chan struct{})}
	}
	return d.dials[peer]
}

// begin marks a planned dial as begun. It is called with mu held.
func (d *dialer) begin(planned *dial) {
	planned.begun = true
	d.busy++
}

// take begins the next of the planned dials, if fewer than mostDials are under way.
func (d *dialer) take() (peer int, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for len(d.next) > 0 && d.busy < mostDials {
		peer := d.next[0]
		d.next = d.next[1:]
		if planned := d.dials[peer]; planned != nil && !planned.begun {
			d.begin(planned)
			return peer, true
		}
	}
	return 0, false
}

// end notes that a dial has ended.
func (d *dialer) end(peer int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	close(d.dials[peer].ended)
	delete(d.dials, peer)
	d.busy--
}

// dialNext begins planned dials while there is room.
func (e *Epoch) dialNext() {
	for peer, ok := e.dialer.take(); ok; peer, ok = e.dialer.take() {
		e.dial(peer)
	}
}

// dial makes the connection to a peer whose dial has begun.
func (e *Epoch) dial(peer int) {
	e.spawn(func() {
		err := e.group.Meet(e.works.Context, peer)
		if err != nil && !errors.Is(err, transport.ErrPeerLeft) &&
			!errors.Is(err, transport.ErrPeerDown) {
			e.Fail(e.peerError(peer, err), true)
		}
		e.dialer.end(peer)
		if e.Failure() == nil {
			e.dialNext()
		}
	})
}
