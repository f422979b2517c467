package rdma

// #include "device.h"
import "C"

import (
	"fmt"
	"net"
	"net/netip"
	"syscall"
)

// LinkLayer tells how a port's packets travel.
type LinkLayer int

// Link layers.
const (
	UnknownLink LinkLayer = C.IBV_LINK_LAYER_UNSPECIFIED
	InfiniBand  LinkLayer = C.IBV_LINK_LAYER_INFINIBAND
	Ethernet    LinkLayer = C.IBV_LINK_LAYER_ETHERNET
)

func (l LinkLayer) String() string {
	switch l {
	case InfiniBand:
		return "InfiniBand"
	case Ethernet:
		return "Ethernet"
	}
	return "an unknown link"
}

// GIDType tells what packets from a GID look like. Both ends must use the same.
type GIDType int

// Types of GIDs.
const (
	GIDInfiniBand GIDType = C.IBV_GID_TYPE_IB
	GIDRoCEv1     GIDType = C.IBV_GID_TYPE_ROCE_V1
	GIDRoCEv2     GIDType = C.IBV_GID_TYPE_ROCE_V2
)

func (t GIDType) String() string {
	switch t {
	case GIDInfiniBand:
		return "InfiniBand"
	case GIDRoCEv1:
		return "RoCE v1"
	case GIDRoCEv2:
		return "RoCE v2"
	}
	return fmt.Sprintf("GID type %d", int(t))
}

// GID is an address of a port.
type GID struct {
	Index  int
	Raw    [16]byte
	Type   GIDType
	NetDev string // "" for InfiniBand
}

// Addr is the GID as an IP address, which it is for RoCE.
func (g GID) Addr() netip.Addr { return netip.AddrFrom16(g.Raw).Unmap() }

func (g GID) String() string { return fmt.Sprintf("%d (%v %v)", g.Index, g.Type, g.Addr()) }

// PortState is the state of a port's link.
type PortState int

// States of ports: of these only an active one can be used.
const (
	PortDown   PortState = C.IBV_PORT_DOWN
	PortInit   PortState = C.IBV_PORT_INIT
	PortArmed  PortState = C.IBV_PORT_ARMED
	PortActive PortState = C.IBV_PORT_ACTIVE
)

// Port is what is known of a device's port.
type Port struct {
	Device    string
	Number    int // from 1; 0 where the device cannot be opened
	State     PortState
	LinkLayer LinkLayer
	LID       uint16
	MTU       int     // active, in bytes
	Gbps      float64 // active; 0 where it is not known
	NetDev    string  // of its first GID that has one
	GIDs      []GID   // all that are not empty
	Problem   string  // why the port cannot be used, and what to do; "" where it can
}

func (p *Port) String() string {
	if p.Number == 0 {
		return p.Device
	}
	return fmt.Sprintf("%s:%d", p.Device, p.Number)
}

// Ports lists the ports of all devices.
func (l *Library) Ports() ([]Port, error) {
	var ports []Port
	err := l.devices(func(d *C.struct_ibv_device) error {
		ports = append(ports, l.portsOf(d)...)
		return nil
	})
	return ports, err
}

func (l *Library) portsOf(d *C.struct_ibv_device) []Port {
	name := l.name(d)
	broken := func(verb string, errno syscall.Errno) []Port {
		return []Port{{Device: name, Problem: newError(verb, "", errno).Error()}}
	}
	c, err := C.goccl_open_device(l.verbs, d)
	if c == nil {
		return broken("ibv_open_device", errnoOf(err))
	}
	defer C.goccl_close_device(l.verbs, c)
	var limits C.struct_ibv_device_attr
	if e := C.goccl_query_device(l.verbs, c, &limits); e != 0 {
		return broken("ibv_query_device", syscall.Errno(e))
	}
	var ports []Port
	for n := 1; n <= int(limits.phys_port_cnt); n++ {
		p := l.port(c, name, n)
		if p.Problem == "" {
			p.Problem = transportProblem(int(d.transport_type))
		}
		ports = append(ports, p)
	}
	return ports
}

func (l *Library) port(c *C.struct_ibv_context, device string, number int) Port {
	p := Port{Device: device, Number: number}
	var a C.struct_ibv_port_attr
	if e := C.goccl_query_port(l.verbs, c, C.int(number), &a); e != 0 {
		p.Problem = newError("ibv_query_port", "", syscall.Errno(e)).Error()
		return p
	}
	p.State = PortState(a.state)
	p.LinkLayer = LinkLayer(a.link_layer)
	p.LID = uint16(a.lid)
	p.MTU = mtuBytes(int(a.active_mtu))
	if p.Gbps = gbps(int(a.active_width), int(a.active_speed)); p.Gbps == 0 {
		p.Gbps = l.sysfsRate(device, number)
	}
	for i := range int(a.gid_tbl_len) {
		g, ok := l.gid(c, &p, i)
		if !ok {
			continue
		}
		p.GIDs = append(p.GIDs, g)
		if p.NetDev == "" {
			p.NetDev = g.NetDev
		}
	}
	if p.NetDev == "" {
		p.NetDev = l.sysfsNetDev(device, number)
	}
	p.Problem = stateProblem(p.State, p.LinkLayer, p.NetDev)
	return p
}

// gid asks for one entry of the port's table: where the library is too old to tell all, the rest
// comes from the kernel.
func (l *Library) gid(c *C.struct_ibv_context, p *Port, index int) (g GID, ok bool) {
	g.Index = index
	var entry C.struct_ibv_gid_entry
	switch syscall.Errno(C.goccl_query_gid_ex(l.verbs, c, C.int(p.Number), C.int(index), &entry)) {
	case 0:
		g.Raw = entry.gid
		g.Type = GIDType(entry.gid_type)
		if entry.ndev_ifindex != 0 {
			if i, err := net.InterfaceByIndex(int(entry.ndev_ifindex)); err == nil {
				g.NetDev = i.Name
			}
		}
	case syscall.ENODATA:
		return g, false
	default:
		if C.goccl_query_gid(l.verbs, c, C.int(p.Number), C.int(index), (*C.uint8_t)(&g.Raw[0])) != 0 {
			return g, false
		}
		g.Type, g.NetDev = l.sysfsGID(p, index)
	}
	return g, g.Raw != [16]byte{}
}

// stateProblem tells why a port in this state cannot be used.
func stateProblem(s PortState, layer LinkLayer, netdev string) string {
	if s == PortActive {
		return ""
	}
	if layer != InfiniBand {
		up := "and its network interface"
		if netdev != "" {
			up = fmt.Sprintf("and the interface (ip link set %s up)", netdev)
		}
		return "the link is down: check the cable, the switch " + up
	}
	if s == PortInit || s == PortArmed {
		return "the link waits for a subnet manager: start one in the fabric (opensm)"
	}
	return "the link is down: check the cable and the switch"
}

// transportProblem tells why a device cannot be used.
func transportProblem(transport int) string {
	switch transport {
	case C.IBV_TRANSPORT_IB:
		return ""
	case C.IBV_TRANSPORT_IWARP:
		return "it speaks iWARP, which GoCCL cannot connect: use an adapter for RoCE or InfiniBand, " +
			"or TCP"
	}
	return "it has no reliable connections: use an adapter for RoCE or InfiniBand, or TCP"
}

// mtuBytes gives the bytes of an enum ibv_mtu.
func mtuBytes(mtu int) int {
	if mtu < C.IBV_MTU_256 || mtu > C.IBV_MTU_4096 {
		return 0
	}
	return 128 << mtu
}

// gbps is the speed of so many lanes, both coded as in InfiniBand's PortInfo; 0 if either is
// unknown.
func gbps(width, speed int) float64 {
	lanes := map[int]float64{1: 1, 2: 4, 4: 8, 8: 12, 16: 2}[width]
	lane := map[int]float64{1: 2.5, 2: 5, 4: 10, 8: 10, 16: 14, 32: 25, 64: 50, 128: 100}[speed]
	return lanes * lane
}

// describe lists ports for people.
func describe(ports []Port) []string {
	var l []string
	for i := range ports {
		p := &ports[i]
		text := p.String()
		if p.Number != 0 {
			text += fmt.Sprintf(" (%v", p.LinkLayer)
			if p.Gbps != 0 {
				text += fmt.Sprintf(", %g Gbit/s", p.Gbps)
			}
			if p.NetDev != "" {
				text += ", " + p.NetDev
			}
			text += ")"
		}
		if p.Problem != "" {
			text += ": " + p.Problem
		}
		l = append(l, text)
	}
	return l
}
