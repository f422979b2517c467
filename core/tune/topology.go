package tune

import "slices"

// Place is where a rank is.
type Place struct {
	Host      string
	CPUs      int  // that its process may use
	FastReads bool // see exec.FastReads
	// Memory names what shares memory: the places with the same name. "" shares it with none.
	Memory string
}

// Topology is what the ways to move data depend on of the places of all ranks. All ranks of a group
// have the same one.
type Topology struct {
	Size           int
	Ports          bool // some ranks are joined by port channels
	Memory         bool // some ranks share memory
	Sharing        int  // the most ranks that share memory with each other; 1: none do
	Oversubscribed bool // some host has more ranks than CPUs
	MultiHost      bool // not all ranks are on one host
	FastReads      bool // of all ranks
	// Group is how many ranks, from each multiple of it on, are on one host (at the end they may be
	// fewer): the largest power of two of which that holds; 0: only 1 is, or all are on one host.
	Group int
	// Order is the ranks host by host, if they are not numbered so and more would be in succession:
	// what is only moved goes by it, see plan.Params.Order. OrderGroup is then what Group would be.
	Order      []int
	OrderGroup int
}

// Survey makes the topology of ranks at some places.
func Survey(places []Place) Topology {
	t := Topology{Size: len(places), Oversubscribed: len(Oversubscribed(places)) > 0}
	first := places[0]
	t.Sharing = 1
	sharing := map[string]int{}
	for i, p := range places {
		if sharing[p.Memory]++; p.Memory != "" {
			t.Sharing = max(t.Sharing, sharing[p.Memory])
		}
		t.Ports = t.Ports || i > 0 && (p.Memory == "" || p.Memory != first.Memory)
	}
	t.Memory = t.Sharing > 1 || !t.Ports
	t.MultiHost = slices.ContainsFunc(places, func(p Place) bool { return p.Host != first.Host })
	t.FastReads = !slices.ContainsFunc(places, func(p Place) bool { return !p.FastReads })
	if t.MultiHost {
		t.Group = groupOf(places)
		if order, group := hostByHost(places); group > t.Group {
			t.Order, t.OrderGroup = order, group
		}
	}
	return t
}

// Oversubscribed returns the hosts whose ranks outnumber the CPUs that one of them may use.
func Oversubscribed(places []Place) map[string]bool {
	ranks := map[string]int{}
	for _, p := range places {
		ranks[p.Host]++
	}
	hosts := map[string]bool{}
	for _, p := range places {
		if ranks[p.Host] > p.CPUs {
			hosts[p.Host] = true
		}
	}
	return hosts
}

// hostByHost is the ranks with those of each host in succession, and what Topology.Group would be
// if they were numbered so.
func hostByHost(places []Place) (order []int, group int) {
	first := map[string]int{} // rank of a host
	for rank, p := range places {
		order = append(order, rank)
		if _, known := first[p.Host]; !known {
			first[p.Host] = rank
		}
	}
	slices.SortStableFunc(order, func(a, b int) int {
		return first[places[a].Host] - first[places[b].Host]
	})
	sorted := make([]Place, len(places))
	for i, rank := range order {
		sorted[i] = places[rank]
	}
	return order, groupOf(sorted)
}

// groupOf is Topology.Group, where there are several hosts.
func groupOf(places []Place) int {
	size, group := len(places), 0
	for g := 2; g < size; g *= 2 {
		for rank, p := range places {
			if p.Host != places[rank-rank%g].Host {
				return group
			}
		}
		group = g
	}
	return group
}
