package epoch

import (
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/goccl/goccl/core/channel"
	"github.com/goccl/goccl/core/exec"
	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/logs"
	"github.com/goccl/goccl/core/membership"
	"github.com/goccl/goccl/core/p2p"
	"github.com/goccl/goccl/core/transport"
)

// The control frames of a group.
const (
	frameFail = transport.ControlBase + iota // Flags: kind of error; payload: the error
	// payload: what the sender waits in, or was refused and why
	frameAnnounce
	frameAsk // what do you do?
	// payload: what the sender started last; Arg[0]: which collective waits for its input there, or 0
	frameStatus
	frameCheckIn  // Seq: of a monitored barrier
	frameCheckOut // the same; payload: the error, or nothing
	frameAgree    // payload: a membership.Message
	frameLook     // somebody asks what the group's ranks do
	frameReport   // payload: a status.Report, in answer
)

// frameCredit is handled by the reader of the link. Flags: lane; Arg[0]: messages released. In Data
// frames of a lane Arg is the message's number, and how many of the receiver's messages are
// released. All other frames are those of packages p2p and channel.
const frameCredit = transport.QuickBase

// handler is an epoch as its links see it. Its methods run on the links' goroutines. Slot, Arrived,
// Dropped, and Control of quick frames also run on the thread of a waiter of any communicator,
// which may have its token.
type handler struct{ *Epoch }

// Handler is the epoch as its links see it.
func (e *Epoch) Handler() transport.Handler { return handler{e} }

// Slot implements transport.Handler.
func (e handler) Slot(src int, h transport.Header) (head, body []byte, err error) {
	switch {
	case p2p.Carries(h):
		body, err = e.p2p.Slot(src, h)
		return nil, body, err
	case channel.Carries(h):
		body, err = e.channels.Slot(src, h)
		return nil, body, err
	}
	if h.Flags != collectiveLane {
		return nil, nil, fmt.Errorf("%w: lane %d", exec.ErrProtocol, h.Flags)
	}
	lane := e.window.Lane(collectiveLane)
	if err := lane.Released(src, h.Arg[1]); err != nil {
		return nil, nil, err
	}
	return lane.Slot(src, h.Arg[0], int(h.Bytes))
}

// Arrived implements transport.Handler.
func (e handler) Arrived(src int, h transport.Header) {
	switch {
	case p2p.Carries(h):
		e.p2p.Arrived(src, h)
		return
	case channel.Carries(h):
		if err := e.channels.Arrived(src, h); err != nil {
			e.violation(src, err)
		}
		return
	}
	e.window.Lane(collectiveLane).Arrived(src)
}

// Dropped implements transport.Handler.
func (e handler) Dropped(src int, h transport.Header) {
	switch {
	case p2p.Carries(h):
		e.p2p.Dropped(src)
		return
	case channel.Carries(h):
		e.channels.Dropped(src)
		return
	}
	e.window.Lane(collectiveLane).Dropped(src, h.Arg[0])
}

// Acked implements transport.Handler.
func (e handler) Acked(dst int, h transport.Header, buffer []byte) {
	switch {
	case p2p.Carries(h):
		e.p2p.Acked(h.Seq)
		return
	case channel.Carries(h):
		e.channels.Acked(dst, buffer)
		return
	}
	e.window.Lane(collectiveLane).Fetched(dst)
}

// PeerAttached implements transport.Handler.
func (e handler) PeerAttached(src int, fds []int) {
	switch {
	case e.Peers[src].Port():
		e.window.ConnectPort(src)
		return
	case len(fds) == 0: // plans count on the memory
		e.Fail(e.Members.Errorf(fault.ErrSystem, "shared memory with %s: no descriptor of it has "+
			"come: its process or that of %s can open no more files; raise their limit (ulimit -n)",
			e.Members.Names(src), e.Members.Names(e.Rank)), true)
		return
	case len(fds) > 2:
		for _, fd := range fds {
			unix.Close(fd)
		}
		e.violation(src,
			fmt.Errorf("%w: it came with %d descriptors, which must be its window, and its arena if it "+
				"has one", exec.ErrProtocol, len(fds)))
		return
	}
	if len(fds) > 1 {
		if err := e.memory.Join(src, fds[1]); err != nil {
			e.Log(logs.Mem).Warn(fmt.Sprintf("mapping the shareable memory of %s: %v",
				e.Members.Names(src), err))
		}
	}
	if err := e.window.ConnectMemory(e.Rank, src, fds[0]); err != nil {
		e.Fail(e.Members.Errorf(fault.ErrSystem, "shared memory with %s: %v", e.Members.Names(src), err),
			true)
	}
}

// PeerDown implements transport.Handler.
func (e handler) PeerDown(src int, err error) {
	n := membership.Lost{Peer: src, Cause: e.unreachable(src, err), Evidence: evidence(err),
		Broken: errors.Is(err, transport.ErrProtocol)}
	n.Exited = n.Evidence == membership.Proof && e.end.Exited(&e.Peers[src].Address)
	e.lockOrder()
	n.Last, n.Awaited = e.fast.Sequence(), slices.Collect(e.order.Waiting())
	agree := e.agreement.Inform(n)
	e.act(e.membership.Step(n))
	agree()
}

// evidence returns how sure an error makes it that a peer's process has ended.
func evidence(err error) membership.Evidence {
	if errors.Is(err, transport.ErrEnded) {
		return membership.Proof
	}
	return membership.Suspicion
}

// PeerLeft implements transport.Handler.
func (e handler) PeerLeft(src int) {
	n := membership.Left{Peer: src, Cause: e.hasLeft(src)}
	e.lockOrder()
	n.Last, n.Awaited = e.fast.Sequence(), slices.Collect(e.order.Waiting())
	agree := e.agreement.Inform(n)
	e.act(e.membership.Step(n))
	agree()
}

// Control implements transport.Handler.
func (e handler) Control(src int, h transport.Header, payload []byte) {
	<-e.attached // frames may come before the group is known here
	switch h.Type {
	case frameCredit:
		if h.Flags != collectiveLane {
			e.violation(src, fmt.Errorf("%w: lane %d", exec.ErrProtocol, h.Flags))
		} else if err := e.window.Lane(collectiveLane).Released(src, h.Arg[0]); err != nil {
			e.violation(src, err)
		}
	case frameFail:
		e.Fail(e.Members.Decode(fault.KindOf(h.Flags), payload), true)
	case frameAnnounce:
		if err := e.onAnnounce(src, payload); err != nil {
			e.violation(src, err)
		}
	case frameStatus:
		if err := e.inquiry.onStatus(src, h.Arg[0], payload); err != nil {
			e.violation(src, err)
		}
	case frameAsk:
		e.answer(src)
	case frameAgree:
		if err := e.agreement.Receive(src, payload); err != nil {
			e.violation(src, err)
		}
	case frameLook, frameReport:
		if err := e.onLook(src, h, payload); err != nil {
			e.violation(src, err)
		}
	case frameCheckIn:
		e.monitored.onCheckIn(src, h.Seq)
	case frameCheckOut:
		var result *fault.Error
		if len(payload) > 0 {
			result = e.Members.Decode(fault.ErrTimeout, payload)
		}
		e.monitored.onCheckOut(src, h.Seq, result)
	case p2p.FrameMail:
		e.p2p.Told()
	default:
		take := e.p2p.Control
		if channel.Takes(h) {
			take = e.channels.Control
		}
		if err := take(src, h, payload); err != nil {
			e.violation(src, err)
		}
	}
}

// violation fails the epoch because a peer sent what no correct peer sends.
func (e handler) violation(src int, err error) {
	e.Fail(e.Members.Errorf(fault.ErrInternal, "from %s: %v", e.Members.Names(src), err), true)
}

// notify wakes who waits at a channel with room for one.
func notify(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}
