package core

import (
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"

	"github.com/goccl/goccl/core/address"
	"github.com/goccl/goccl/core/roster"
)

// Description says what a communicator is made of. Its lists have one entry a rank.
type Description struct {
	Name        string   `json:"name"`
	Rank        int      `json:"rank"`
	Size        int      `json:"size"`
	Epoch       uint32   `json:"epoch"` // how often the members have changed
	GlobalRanks []int    `json:"global_ranks"`
	Hosts       []string `json:"hosts"`
	PIDs        []int    `json:"pids"`
	Transports  []string `json:"transports"` // what joins this rank to each
	Reasons     []string `json:"reasons"`    // why; "" for itself
	// that listens; "" where no links are needed
	Interface       string             `json:"interface"`
	Addresses       []string           `json:"addresses"` // of it, with the port
	Congestion      string             `json:"congestion_control"`
	Oversubscribed  bool               `json:"oversubscribed"` // some host has more ranks than CPUs
	Thresholds      map[string]int64   `json:"thresholds"`     // in bytes
	Schedule        string             `json:"alltoall_schedule"`
	Algorithms      string             `json:"algorithms"` // those allowed; "": any
	TimeoutMS       int64              `json:"timeout_ms"`
	LivenessGraceMS int64              `json:"liveness_grace_ms"`
	Settings        map[string]Setting `json:"settings"` // by the names of their variables
}

// Describe may be called at any time, by any goroutine.
func (c *Comm) Describe() Description {
	e := c.present.Load()
	d := Description{Name: e.Members.Name, Rank: e.Rank, Size: e.Size(), Epoch: e.Number(),
		Oversubscribed: e.Shape().Oversubscribed,
		Thresholds:     map[string]int64{}, Schedule: e.Shape().Schedule.String(),
		Algorithms:      e.Shape().Algorithms.String(),
		TimeoutMS:       c.Timeout().Milliseconds(),
		LivenessGraceMS: c.shared.Settings.LivenessGrace.Milliseconds(),
		Settings:        maps.Clone(c.shared.Settings.Settings)}
	for rank, a := range e.Peers {
		if a.Name == "" { // a group of one publishes nothing
			a.Name, _ = os.Hostname()
		}
		d.Hosts, d.PIDs = append(d.Hosts, a.Name), append(d.PIDs, a.PID)
		kind := e.Kind(rank)
		d.Transports = append(d.Transports, kind)
		d.Reasons = append(d.Reasons, why(&e.Roster, rank, kind))
		if e.Members.GlobalRanks == nil {
			d.GlobalRanks = append(d.GlobalRanks, rank)
		}
	}
	d.GlobalRanks = append(d.GlobalRanks, e.Members.GlobalRanks...)
	if end := e.Endpoint(); end != nil {
		d.Addresses, d.Congestion = end.Address().TCP, end.Congestion()
		d.Interface = interfaceOf(d.Addresses)
	}
	thresholds := e.Thresholds()
	for name, bytes := range thresholds.Fields() {
		d.Thresholds[name] = *bytes
	}
	return d
}

// Algorithm names the algorithm by which the collective of a sequence number ran, such as
// "two_shot", or "plan:" and the name of a registered program. It is "" where that has not ended
// well yet, where it is not among the last 512, and of a monitored barrier.
func (c *Comm) Algorithm(sequence uint64) string {
	return c.present.Load().Algorithm(sequence)
}

// why returns why a rank is joined by a kind of channel.
func why(r *roster.Roster, rank int, kind string) string {
	switch {
	case rank == r.Rank:
		return ""
	case kind != r.Peers[rank].Kind:
		return "its RDMA connection could not be made, and TCP stands in: the log tells why"
	}
	return address.Why(r.Peers[r.Rank].Address, r.Peers[rank].Address, kind)
}

// interfaceOf names the network interface that has the first of some addresses; "" where none has.
func interfaceOf(addresses []string) string {
	if len(addresses) == 0 {
		return ""
	}
	first, err := netip.ParseAddrPort(addresses[0])
	if err != nil {
		return ""
	}
	all, err := net.Interfaces()
	if err != nil {
		return ""
	}
	for _, i := range all {
		has, err := i.Addrs()
		if err == nil && slices.ContainsFunc(has, func(a net.Addr) bool {
			n, ok := a.(*net.IPNet)
			return ok && n.IP.Equal(first.Addr().AsSlice())
		}) {
			return i.Name
		}
	}
	return ""
}
