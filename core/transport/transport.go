// Package transport joins processes.
//
// An [Endpoint] is a process's end: it listens, and holds at most one link a peer process and kind.
// A link is an authenticated, ordered stream of frames over a wire: a Unix socket between processes
// of one host (where it also hands over the descriptors of shared windows), TCP otherwise, or a
// queue pair of an RDMA device, beside which a TCP connection tells whether the peer lives. Groups
// (communicators) share links: a frame names its group, its epoch and the ranks it goes between.
//
// A group attaches to an endpoint with a [Handler] for each of its local ranks. Its traffic flows
// over a link only after both sides have proved, for that group, that they hold its secret.
//
// # Which goroutine does what
//
// All that comes in over a link is handled in order, one frame at a time. The holder of the token
// of the endpoint's [Poller] reads the links: a waiter, or the progress goroutine. It also handles
// Data frames and control frames from QuickBase up, so their handlers must be quick, and must not
// need what a waiter may hold. All else is handled on a goroutine of the link's, and delays that
// peer only. The goroutine that calls [Group.Send] writes. Nothing here waits for ever but for a
// peer that is stopped: that ends with the context of the caller.
//
// # Locks
//
// A goroutine that holds one of the poller's token, link.reading.lock and link.writing.lock only
// tries the others. The rest are taken in this order: member.events or Endpoint.loops, Endpoint.mu,
// member.mu, hostPulse.mu, link.mu, Poller.mu; no other lock is taken while one that is not named
// here is held. A handler may be called with the first three and member.events held, and no other.
package transport

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"
	"unsafe"

	"github.com/goccl/goccl/core/address"
)

// Errors that callers tell apart, by errors.Is. The texts name the rank, its process and the cause.
var (
	// ErrProtocol: the peer has sent what no correct peer sends.
	ErrProtocol = errors.New("protocol violation")
	// ErrPeerDown: the peer has ended the connection without a goodbye, or broken the protocol, or its
	// host acknowledges nothing. See ErrEnded.
	ErrPeerDown = errors.New("peer down")
	// ErrEnded: it is proved that the peer's process has ended, or takes part in nothing any more. Of
	// a peer that is down without it, that is only suspected: it may go on.
	ErrEnded = errors.New("peer ended")
	// ErrPeerLeft: the peer has detached from the group in good order.
	ErrPeerLeft = errors.New("peer has left the group")
	// ErrRefused: one side could not prove to the other that it belongs to the group.
	ErrRefused = errors.New("refused")
	// ErrClosed: this side's group or endpoint has been closed.
	ErrClosed = errors.New("transport closed")
)

// PeerError is an error of the link to a rank.
type PeerError struct {
	of  *member
	Err error // what happened
}

// Error also names the rank, its process and the link.
func (e *PeerError) Error() string {
	return fmt.Sprintf("rank %d (%s) of group %s, over %s: %v", e.of.rank, e.of.addr.Who(),
		e.of.g.name, e.of.kind, e.Err)
}

func (e *PeerError) Unwrap() error { return e.Err }

const (
	// MaxControl is the longest payload of a control frame, in bytes.
	MaxControl = 128 << 10
	// MaxData is the longest payload of a Data frame, in bytes.
	MaxData = 1 << 30

	handshakeTimeout = 10 * time.Second       // in which a stranger is to prove itself
	answerTime       = time.Second            // of it, that is left for the proof of one that waits
	maxHandshakes    = 256                    // beyond it the oldest is told to try again
	maxPending       = 1024                   // attaches to groups not here yet, that a link keeps
	maxText          = 1024                   // bytes of any other text of a peer's
	maxGone          = 4096                   // detached groups that are remembered
	maxLogged        = 1024                   // remote addresses that are remembered as logged
	maxQueued        = 1 << 20                // bytes of best-effort frames that a link queues
	maxInbox         = 8 << 20                // bytes that wait for a rank of the same process
	maxTold          = maxInbox + maxQueued   // the same, where who is told waits for nobody
	idleDelay        = 200 * time.Millisecond // a link without groups is closed after it
	meetDelay        = 100 * time.Millisecond // how long a peer is left to dial first
	readSlice        = 100 * time.Millisecond // a writer reads so long between looks at its context
	readBuffer       = 16 << 10
	defaultGrace     = 10 * time.Second

	// Endpoint.Close waits closeFlush for goodbyes to go out, after nothing is on its way any more,
	// and then closeWait for its goroutines.
	closeFlush = 400 * time.Millisecond
	closeWait  = 500 * time.Millisecond

	// longRead is how many bytes of a longer payload wake its reader: these, or a quarter of it.
	longRead = 256 << 10
	// getMin is the least payload for which an advert costs less than copying the bytes.
	getMin = 128 << 10
	// getGrace is how long a get may take whose bytes are not wanted any more.
	getGrace = time.Second
)

// Config says how an endpoint listens and when it gives a host up.
type Config struct {
	Mark address.Mark // for the address
	Life int          // for the address
	// Interface is the name of the network interface to listen on; "" lets the endpoint choose.
	Interface string
	// StoreHost is a host that all ranks reach: the route to it tells which interface to use.
	StoreHost string
	// Verbs says how RDMA devices are to be used.
	Verbs VerbsConfig
	// Grace is how long a host may acknowledge nothing before it is given up; 0 means 10 s.
	Grace time.Duration
	// Sightings are those of this host's processes; nil: there are none.
	Sightings Sightings
	// Logger is told of links, refused connections and internal errors; it may be nil.
	Logger *slog.Logger
	// OnFD is told of every socket that the endpoint opens and (before it does) closes, so that a
	// forked child can close its copies. It must not block; it may be nil.
	OnFD func(fd int, open bool)
}

// Handler is a local rank's side of a group. PeerAttached, frames and PeerDown or PeerLeft of one
// peer come in that order and never at once; calls for different peers may come at once, and also
// before [Endpoint.Attach] has returned. A method must not block for long, and must not call
// Detach, Connect, Send or Endpoint.Close; TrySend, Broadcast, Halt and Connected are fine.
type Handler interface {
	// Slot tells where the payload of a Data frame goes: two pieces of memory that together are
	// exactly h.Bytes bytes, and stay valid until Arrived or Dropped. An error is a violation by
	// the peer: the link is closed.
	Slot(src int, h Header) (head, body []byte, err error)
	// Arrived tells that the payload lies in its slot.
	Arrived(src int, h Header)
	// Dropped tells that the payload will not come, and that nothing more is written to its slot:
	// the group is halted or left, or the link has ended.
	Dropped(src int, h Header)
	// Acked tells that the peer has done with a buffer that [Group.Advertise] told it of with that
	// header, the oldest that it had not acked.
	Acked(dst int, h Header, buffer []byte)
	// Control takes a frame of a type from ControlBase up. The payload is valid during the call.
	Control(src int, h Header, payload []byte)
	// PeerAttached tells that both sides have proved themselves. fds are copies of the peer's
	// GroupConfig.Share, owned by the callee; none where the link carries none, or where one of the
	// two processes can open no more files.
	PeerAttached(src int, fds []int)
	// PeerDown tells, once, that the peer is lost. Nothing of that peer comes after it. The error is
	// one of ErrEnded where that the peer has ended is proved.
	PeerDown(src int, err error)
	// PeerLeft tells that the peer has detached. Nothing of that peer comes after it.
	PeerLeft(src int)
}

// GroupConfig describes a local rank's membership in a group.
type GroupConfig struct {
	Job, Group uint64
	Epoch      uint32
	Secret     []byte // at least 16 bytes
	Name       string // for texts
	Rank       int
	Peers      []address.Address // by rank
	// by rank: what address.Decide said; that of Rank itself is not looked at
	Kinds   []string
	Handler Handler
	// descriptors that are passed to peers over mem and shm links, few. The caller keeps them.
	Share []int
	// Stopped is a word (of four bytes) in memory that VerbsConfig.Memory knows. It is set before
	// an advertised buffer may change that has not been acked. Where it is nil nothing is
	// advertised.
	Stopped unsafe.Pointer
}

// sleep waits, or ends early with the context.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-t.C:
		return nil
	}
}
