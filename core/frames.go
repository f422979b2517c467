package core

import (
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

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
	frameAsk      // what do you do?
	frameStatus   // payload: what the sender started last
	frameCheckIn  // Seq: of a monitored barrier
	frameCheckOut // the same; payload: the error, or nothing
	frameAgree    // payload: a membership.Message
)

// frameCredit is handled by the reader of the link. Flags: lane; Arg[0]: messages released. In Data
// frames of a lane Arg is the message's number, and how many of the receiver's are released. All
// other frames are those of package p2p.
const frameCredit = transport.QuickBase

// handler is an epoch as its links see it. Its methods run on the links' goroutines; Slot, Arrived,
// Dropped and Control of quick frames also on the thread of a waiter of any communicator, which may
// have its token.
type handler struct{ *epoch }

// Slot implements transport.Handler.
func (c handler) Slot(src int, h transport.Header) (head, body []byte, err error) {
	if p2p.Carries(h) {
		body, err = c.p2p.Slot(src, h)
		return nil, body, err
	}
	if h.Flags != collectiveLane {
		return nil, nil, fmt.Errorf("%w: lane %d", exec.ErrProtocol, h.Flags)
	}
	lane := c.window.Lane(collectiveLane)
	if err := lane.Released(src, h.Arg[1]); err != nil {
		return nil, nil, err
	}
	return lane.Slot(src, h.Arg[0], int(h.Bytes))
}

// Arrived implements transport.Handler.
func (c handler) Arrived(src int, h transport.Header) {
	if p2p.Carries(h) {
		c.p2p.Arrived(src, h)
		return
	}
	c.window.Lane(collectiveLane).Arrived(src)
}

// Dropped implements transport.Handler.
func (c handler) Dropped(src int, h transport.Header) {
	if p2p.Carries(h) {
		c.p2p.Dropped(src)
		return
	}
	c.window.Lane(collectiveLane).Dropped(src, h.Arg[0])
}

// Acked implements transport.Handler.
func (c handler) Acked(dst int, h transport.Header) {
	if p2p.Carries(h) {
		c.p2p.Acked(h.Seq)
		return
	}
	c.window.Lane(collectiveLane).Fetched(dst)
}

// PeerAttached implements transport.Handler.
func (c handler) PeerAttached(src int, fds []int) {
	switch {
	case c.Peers[src].Port():
		c.window.ConnectPort(src)
		return
	case len(fds) == 0: // plans count on the memory
		c.fail(c.Members.Errorf(fault.ErrSystem, "shared memory with %s: no descriptor of it has "+
			"come: its process or that of %s can open no more files; raise their limit (ulimit -n)",
			c.Members.Names(src), c.Members.Names(c.Rank)), true)
		return
	case len(fds) > 2:
		for _, fd := range fds {
			unix.Close(fd)
		}
		c.violation(src,
			fmt.Errorf("%w: it came with %d descriptors, which must be its window, and its arena if it "+
				"has one", exec.ErrProtocol, len(fds)))
		return
	}
	if len(fds) > 1 {
		if err := c.memory.Join(src, fds[1]); err != nil {
			c.log(logs.Mem).Warn(fmt.Sprintf("mapping the shareable memory of %s: %v",
				c.Members.Names(src), err))
		}
	}
	if err := c.window.ConnectMemory(c.Rank, src, fds[0]); err != nil {
		c.fail(c.Members.Errorf(fault.ErrSystem, "shared memory with %s: %v", c.Members.Names(src), err),
			true)
	}
}

// PeerDown implements transport.Handler.
func (c handler) PeerDown(src int, err error) {
	e := membership.Lost{Peer: src, Cause: c.unreachable(src, err), Evidence: evidence(err),
		Broken: errors.Is(err, transport.ErrProtocol)}
	e.Exited = e.Evidence == membership.Proof && c.end.Exited(&c.Peers[src].Address)
	c.lockOrder()
	e.Last, e.Awaited = c.Sequence(), slices.Collect(c.order.Waiting())
	agree := c.inform(e)
	c.act(c.membership.Step(e))
	agree()
}

// evidence is how sure an error makes it that a peer's process has ended.
func evidence(err error) membership.Evidence {
	if errors.Is(err, transport.ErrEnded) {
		return membership.Proof
	}
	return membership.Suspicion
}

// PeerLeft implements transport.Handler.
func (c handler) PeerLeft(src int) {
	e := membership.Left{Peer: src, Cause: c.hasLeft(src)}
	c.lockOrder()
	e.Last, e.Awaited = c.Sequence(), slices.Collect(c.order.Waiting())
	agree := c.inform(e)
	c.act(c.membership.Step(e))
	agree()
}

// Control implements transport.Handler.
func (c handler) Control(src int, h transport.Header, payload []byte) {
	<-c.attached // frames may come before the group is known here
	switch h.Type {
	case frameCredit:
		if h.Flags != collectiveLane {
			c.violation(src, fmt.Errorf("%w: lane %d", exec.ErrProtocol, h.Flags))
		} else if err := c.window.Lane(collectiveLane).Released(src, h.Arg[0]); err != nil {
			c.violation(src, err)
		}
	case frameFail:
		c.fail(c.Members.Decode(fault.KindOf(h.Flags), payload), true)
	case frameAnnounce:
		if err := c.onAnnounce(src, payload); err != nil {
			c.violation(src, err)
		}
	case frameStatus:
		if err := c.inquiry.onStatus(src, payload); err != nil {
			c.violation(src, err)
		}
	case frameAsk:
		c.answer(src)
	case frameAgree:
		if err := c.onAgree(src, payload); err != nil {
			c.violation(src, err)
		}
	case frameCheckIn:
		c.monitored.onCheckIn(src, h.Seq)
	case frameCheckOut:
		var verdict *fault.Error
		if len(payload) > 0 {
			verdict = c.Members.Decode(fault.ErrTimeout, payload)
		}
		c.monitored.onCheckOut(src, h.Seq, verdict)
	case p2p.FrameMail:
		c.p2p.Told()
	default:
		if err := c.p2p.Control(src, h, payload); err != nil {
			c.violation(src, err)
		}
	}
}

// violation fails the communicator because a peer sent what no correct peer sends.
func (c handler) violation(src int, err error) {
	c.fail(c.Members.Errorf(fault.ErrInternal, "from %s: %v", c.Members.Names(src), err), true)
}

func notify(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}
