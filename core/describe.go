package core

import (
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"

	"github.com/goccl/goccl/core/address"
)

// Description says what a communicator is made of. Its lists have one entry a rank.
type Description struct {
	Name        string   `json:"name"`
	Rank        int      `json:"rank"`
	Size        int      `json:"size"`
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
	d := Description{Name: e.Members.Name, Rank: e.Rank, Size: e.Size(),
		Oversubscribed: e.shape.Oversubscribed,
		Thresholds:     map[string]int64{}, Schedule: e.shape.Schedule.String(),
		Algorithms:      e.shape.Algorithms.String(),
		TimeoutMS:       c.defaultTimeout().Milliseconds(),
		LivenessGraceMS: c.config.LivenessGrace.Milliseconds(),
		Settings:        maps.Clone(c.config.Settings)}
	for rank, a := range e.Peers {
		if a.Name == "" { // a group of one publishes nothing
			a.Name, _ = os.Hostname()
		}
		d.Hosts, d.PIDs = append(d.Hosts, a.Name), append(d.PIDs, a.PID)
		kind := c.Transport(rank)
		d.Transports, d.Reasons = append(d.Transports, kind), append(d.Reasons, e.why(rank, kind))
		if e.Members.GlobalRanks == nil {
			d.GlobalRanks = append(d.GlobalRanks, rank)
		}
	}
	d.GlobalRanks = append(d.GlobalRanks, e.Members.GlobalRanks...)
	if c.end != nil {
		d.Addresses, d.Congestion = c.end.Address().TCP, c.end.Congestion()
		d.Interface = interfaceOf(d.Addresses)
	}
	thresholds := e.shape.Thresholds
	for name, bytes := range thresholds.Fields() {
		d.Thresholds[name] = *bytes
	}
	return d
}

// Algorithm names the algorithm by which the collective of a sequence number ran, such as
// "two_shot". It is "" where that has not ended well yet, where it is not among the last 64, and of
// a monitored barrier.
func (c *Comm) Algorithm(sequence uint64) string {
	c.mu.Lock() // Destroy frees the record
	defer c.mu.Unlock()
	return c.fast.Algorithm(sequence).String()
}

// why tells why a rank is joined by a kind of channel.
func (c *epoch) why(rank int, kind string) string {
	switch {
	case rank == c.Rank:
		return ""
	case kind != c.Peers[rank].Kind:
		return "its RDMA connection could not be made, and TCP stands in: the log tells why"
	}
	return address.Why(c.Peers[c.Rank].Address, c.Peers[rank].Address, kind)
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
