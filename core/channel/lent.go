package channel

import (
	"context"
	"slices"
	"unsafe"

	"github.com/goccl/goccl/core/transport"
)

// Over verbs a piece of shareable memory stays where it is, and the peer reads it (RDMA READ): see
// get.go of package transport. Until it has, the piece is lent: its user may have freed it, but
// nothing else is allocated there.

// loan is a piece that a peer is to read by itself: of a get by its number, of a put by 0.
type loan struct {
	piece []byte
	get   uint64
}

// lend reports whether a piece may stay where it is when it is sent next.
func (e *Engine) lend(rank int, piece []byte, get uint64) bool {
	if !e.links.Advertises(rank, piece) {
		return false
	}
	p := unsafe.Pointer(unsafe.SliceData(piece))
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.over || e.gone[rank] != nil || e.arena == nil || !e.arena.Allocated(p, int64(len(piece))) {
		return false
	}
	e.arena.Lend(p, int64(len(piece)))
	e.peers[rank].lent = append(e.peers[rank].lent, loan{piece, get})
	return true
}

// send sends a frame; with lent the payload is one piece, which lend has allowed to stay.
func (e *Engine) send(
	ctx context.Context, rank int, h transport.Header, lent bool, payload ...[]byte,
) error {
	if !lent {
		return e.links.Send(ctx, rank, h, payload...)
	}
	advertised, err := e.links.Advertise(ctx, false, rank, h, payload...)
	if !advertised {
		e.Acked(rank, payload[0])
	}
	return err
}

// Acked tells that a peer needs a piece no more.
func (e *Engine) Acked(rank int, piece []byte) {
	e.mu.Lock()
	defer e.mu.Unlock()
	p := &e.peers[rank]
	i := slices.IndexFunc(p.lent, func(l loan) bool {
		return unsafe.SliceData(l.piece) == unsafe.SliceData(piece) && len(l.piece) == len(piece)
	})
	if i < 0 {
		return // the peer is gone, and all came back
	}
	p.lent = slices.Delete(p.lent, i, i+1)
	e.giveBack(piece)
	p.returned.tell()
}

// takeBack takes back what a peer was lent that is gone. It is called with mu held.
func (e *Engine) takeBack(rank int) {
	p := &e.peers[rank]
	for _, l := range p.lent {
		e.giveBack(l.piece)
	}
	p.lent = nil
	p.returned.tell()
}

// giveBack is called with mu held.
func (e *Engine) giveBack(piece []byte) {
	e.arena.Return(unsafe.Pointer(unsafe.SliceData(piece)), int64(len(piece)))
}

// awaitRead waits until a peer has read all that it was lent for a get, or is gone, and reports
// whether it is so.
func (e *Engine) awaitRead(ctx context.Context, rank int, get uint64) bool {
	for {
		returned := e.awaited(rank, get)
		if returned == nil {
			return true
		}
		if e.Reader != nil {
			e.Reader.StartProgress()
		}
		select {
		case <-returned:
		case <-ctx.Done():
		}
		if e.Reader != nil {
			e.Reader.StopProgress()
		}
		if ctx.Err() != nil {
			return false
		}
	}
}

// awaited returns what is closed when a peer returns its next piece; nil: it was lent nothing for a
// get.
func (e *Engine) awaited(rank int, get uint64) <-chan struct{} {
	e.mu.Lock()
	defer e.mu.Unlock()
	p := &e.peers[rank]
	if !slices.ContainsFunc(p.lent, func(l loan) bool { return l.get == get }) {
		return nil
	}
	return p.returned.await()
}
