package epoch

import (
	"maps"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/membership"
	"github.com/goccl/goccl/core/transport"
)

// lingering is an epoch that has ended here, as its links see it. It stays as long as a member may
// ask for a decision. Such a member may have been cut off. It is not told that this rank has left,
// because it would take that for a death.
type lingering struct{ *Epoch }

// Control implements transport.Handler.
func (e lingering) Control(src int, h transport.Header, payload []byte) {
	if h.Type == frameAgree {
		_ = e.agreement.Receive(src, payload) // what breaks the protocol harms nobody any more
	}
}

// PeerDown implements transport.Handler.
func (e lingering) PeerDown(src int, err error) { e.lost(src, evidence(err)) }

// PeerLeft implements transport.Handler.
func (e lingering) PeerLeft(src int) { e.lost(src, membership.Proof) }

// lost tells the decisions that a peer has ended, or has left.
func (e lingering) lost(src int, n membership.Evidence) {
	e.agreement.Inform(membership.Lost{Peer: src, Evidence: n})()
	e.agreement.CheckConfirmed()
}

// PeerAttached implements transport.Handler.
func (e lingering) PeerAttached(_ int, fds []int) {
	for _, fd := range fds {
		unix.Close(fd)
	}
}

// Slot implements transport.Handler.
func (e lingering) Slot(int, transport.Header) (head, body []byte, err error) {
	return nil, nil, fault.Errorf(fault.ErrInternal, "the epoch has ended")
}

// Arrived implements transport.Handler.
func (e lingering) Arrived(int, transport.Header) {}

// Dropped implements transport.Handler.
func (e lingering) Dropped(int, transport.Header) {}

// Acked implements transport.Handler.
func (e lingering) Acked(int, transport.Header, []byte) {}

// detach leaves the epoch's group: at once, or, where a member may ask for a decision, once none
// can any more.
func (e *Epoch) detach() {
	if !e.agreement.Unconfirmed() {
		e.group.Detach()
		return
	}
	e.config.Lingering.add(e)
	e.group.Halt()
	e.group.UseHandler(lingering{e})
	e.agreement.CheckConfirmed() // the last news may have come meanwhile
}

// Lingering has the epochs of a process that have ended, and whose members may still ask for a
// decision. The zero value has none. Its lock is taken before that of [endpoint.Pool].
type Lingering struct {
	mu  sync.Mutex
	all map[*Epoch]bool // guarded by mu
}

// add notes an epoch, and takes a use of its endpoint. An epoch that finishes comes here twice
// where the next one could not be made.
func (l *Lingering) add(e *Epoch) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.all == nil {
		l.all = map[*Epoch]bool{}
	}
	if !l.all[e] {
		l.all[e] = true
		e.end.Share()
	}
}

// remove drops an epoch, and reports whether it was there. Then the caller leaves its group.
func (l *Lingering) remove(e *Epoch) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	known := l.all[e]
	delete(l.all, e)
	return known
}

// leave leaves the group of an epoch that was removed, and gives the endpoint back.
func (e *Epoch) leave() {
	e.group.Detach()
	e.end.Leave()
}

// Close leaves the groups of all epochs. Nobody can ask for their decisions any more.
func (l *Lingering) Close() {
	l.mu.Lock()
	all := slices.Collect(maps.Keys(l.all))
	clear(l.all)
	l.mu.Unlock()
	for _, e := range all {
		e.leave()
	}
}
