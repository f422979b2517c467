package rdma

// #include "device.h"
import "C"

import (
	"fmt"
	"slices"
	"syscall"
)

// EventType is the type of an Event.
type EventType int

// Types of events that matter here.
const (
	EventCQError     EventType = C.IBV_EVENT_CQ_ERR
	EventQPFatal     EventType = C.IBV_EVENT_QP_FATAL
	EventQPRequest   EventType = C.IBV_EVENT_QP_REQ_ERR
	EventQPAccess    EventType = C.IBV_EVENT_QP_ACCESS_ERR
	EventDeviceFatal EventType = C.IBV_EVENT_DEVICE_FATAL
	EventPortActive  EventType = C.IBV_EVENT_PORT_ACTIVE
	EventPortError   EventType = C.IBV_EVENT_PORT_ERR
	EventLIDChange   EventType = C.IBV_EVENT_LID_CHANGE
	EventGIDChange   EventType = C.IBV_EVENT_GID_CHANGE
	EventPathError   EventType = C.IBV_EVENT_PATH_MIG_ERR
)

// Event is what a device reports unasked.
type Event struct {
	Type   EventType
	Device string
	Port   int    // where it is of one, else 0
	QPN    uint32 // where it is of a queue pair, else 0
}

// AsyncFD is a descriptor that is readable when there is an event.
func (d *Device) AsyncFD() int { return int(d.context.async_fd) }

// FDs are the descriptors that the device holds, AsyncFD among them.
func (d *Device) FDs() []int {
	return slices.DeleteFunc([]int{int(d.context.cmd_fd), d.AsyncFD()},
		func(fd int) bool { return fd < 0 })
}

// NextEvent gives an event, if there is one: it does not wait.
func (d *Device) NextEvent() (e Event, ok bool, err error) {
	var c C.struct_goccl_event
	for {
		switch errno := syscall.Errno(C.goccl_next_event(d.lib.verbs, d.context, &c)); errno {
		case 0:
			return Event{Type: EventType(c._type), Device: d.Choice.Device, Port: int(c.port),
				QPN: uint32(c.qpn)}, true, nil
		case syscall.EAGAIN:
			return Event{}, false, nil
		case syscall.EINTR:
		default:
			return Event{}, false, newError("ibv_get_async_event", d.Choice.Device, errno)
		}
	}
}

// Fatal tells whether the event ends all that the device does, or all that the queue pair QPN does.
func (e Event) Fatal() bool {
	switch e.Type {
	case EventCQError, EventQPFatal, EventQPRequest, EventQPAccess, EventPathError, EventDeviceFatal:
		return true
	}
	return false
}

func (e Event) String() string {
	var text string
	switch e.Type {
	case EventDeviceFatal:
		text = "failed, or was removed: look for its driver's messages (dmesg)"
	case EventPortError:
		text = "link down: check the cable, the switch and the interface (ip link)"
	case EventPortActive:
		text = "link up"
	case EventLIDChange:
		text = "a new LID: a subnet manager took over"
	case EventGIDChange:
		text = "its addresses have changed"
	case EventCQError:
		text = "a completion queue overflowed or broke"
	case EventQPFatal:
		text = "the connection broke: the adapter failed"
	case EventQPRequest:
		text = "the connection broke: the peer's request was invalid"
	case EventQPAccess:
		text = "the connection broke: the peer's request had no access to memory"
	case EventPathError:
		text = "the connection broke: its path cannot be changed"
	default:
		text = fmt.Sprintf("event %d", int(e.Type))
	}
	who := e.Device
	if e.Port != 0 {
		who = fmt.Sprintf("%s:%d", who, e.Port)
	}
	if e.QPN != 0 {
		who = fmt.Sprintf("%s, queue pair %d", who, e.QPN)
	}
	return who + ": " + text
}
