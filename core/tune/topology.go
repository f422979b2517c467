package tune

import "slices"

// Place is where a rank is.
type Place struct {
	Host   string
	CPUs   int // that its process may use
	CPUSet int // tells sets of CPUs that processes of a host may use apart; 0: unknown
	Domain int // of the host's CPUs, that these are in; 0: several, or unknown
	// Memory names what shares memory: the places with the same name. "" shares it with none.
	Memory string
	// Fabric names the kind of network in which RDMA joins it to other hosts where the same is named.
	// "": TCP does.
	Fabric string
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
	RDMA           bool // between all hosts
	// Group is how many ranks, from each multiple of it on, are on one host (at the end they may be
	// fewer): the largest power of two of which that holds; 0: only 1 is, or all are on one host.
	Group int
	// PerHost is how many ranks each host has, if they are in order, as many on each; 0: they are not.
	PerHost int
	// Domain is the same of ranks whose CPUs are in one domain: those that share a NUMA node and the
	// last-level cache. 0: only 1 is, or a host has no several.
	Domain int
	// Order is the ranks host by host and domain by domain, if they are not numbered so and more would
	// be in succession: what is only moved goes by it, see plan.Params.Order. OrderGroup and
	// OrderDomain are then what Group and Domain would be.
	Order                   []int
	OrderGroup, OrderDomain int

	links Links // what their messages cost
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
	t.RDMA = t.MultiHost && first.Fabric != "" &&
		!slices.ContainsFunc(places, func(p Place) bool { return p.Fabric != first.Fabric })
	t.Group, t.Domain = groups(places)
	t.PerHost = perHost(places)
	order, sorted := nearTogether(places)
	if group, domain := groups(sorted); group > t.Group || group == t.Group && domain > t.Domain {
		t.Order, t.OrderGroup, t.OrderDomain = order, group, domain
	}
	return t
}

// perHost is Topology.PerHost.
func perHost(places []Place) int {
	each := 1
	for each < len(places) && places[each].Host == places[0].Host {
		each++
	}
	hosts := map[string]bool{}
	for rank, p := range places {
		if rank%each == 0 && hosts[p.Host] || p.Host != places[rank-rank%each].Host {
			return 0
		}
		hosts[p.Host] = true
	}
	if len(places)%each != 0 {
		return 0
	}
	return each
}

// Oversubscribed returns the hosts where some ranks outnumber the CPUs that they may use. Ranks
// with different sets of CPUs, as launchers give them, are taken to share none.
func Oversubscribed(places []Place) map[string]bool {
	type set struct {
		host string
		cpus int
	}
	all, sharing := map[string]int{}, map[set]int{}
	for _, p := range places {
		all[p.Host]++
		sharing[set{p.Host, p.CPUSet}]++
	}
	hosts := map[string]bool{}
	for _, p := range places {
		ranks := all[p.Host]
		if p.CPUSet != 0 {
			ranks = sharing[set{p.Host, p.CPUSet}] + sharing[set{p.Host, 0}]
		}
		if ranks > p.CPUs {
			hosts[p.Host] = true
		}
	}
	return hosts
}

// nearTogether is the ranks with those of each host, and there those of each domain, in succession,
// and their places.
func nearTogether(places []Place) (order []int, sorted []Place) {
	hosts, domains := map[string]int{}, map[Place]int{}
	firsts := make([][2]int, len(places)) // of the host and of the domain, by rank
	for rank, p := range places {
		order = append(order, rank)
		firsts[rank] = [2]int{firstOf(hosts, p.Host, rank), firstOf(domains, p.domain(), rank)}
	}
	slices.SortStableFunc(order, func(a, b int) int {
		return slices.Compare(firsts[a][:], firsts[b][:])
	})
	for _, rank := range order {
		sorted = append(sorted, places[rank])
	}
	return order, sorted
}

// firstOf is the first rank with a key, which is this one if none is known.
func firstOf[K comparable](known map[K]int, key K, rank int) int {
	first, ok := known[key]
	if !ok {
		known[key], first = rank, rank
	}
	return first
}

// domain is what the places in a domain have in common.
func (p Place) domain() Place { return Place{Host: p.Host, Domain: p.Domain} }

// groups are Topology.Group and Domain.
func groups(places []Place) (group, domain int) {
	hosts := map[string]int{} // the domain of the first rank
	several := false          // in some host
	for _, p := range places {
		first, known := hosts[p.Host]
		if !known {
			hosts[p.Host] = p.Domain
		} else if first != p.Domain {
			several = true
		}
	}
	if len(hosts) > 1 {
		group = groupOf(places, func(a, b Place) bool { return a.Host == b.Host })
	}
	if several {
		domain = groupOf(places, func(a, b Place) bool {
			return a.domain() == b.domain() && a.Domain > 0
		})
	}
	return group, domain
}

// groupOf is how many places, from each multiple of it on, are together: the largest power of two
// of which that holds; 0: only 1 is.
func groupOf(places []Place, together func(a, b Place) bool) int {
	size, group := len(places), 0
	for g := 2; g < size; g *= 2 {
		for rank, p := range places {
			if !together(p, places[rank-rank%g]) {
				return group
			}
		}
		group = g
	}
	return group
}
