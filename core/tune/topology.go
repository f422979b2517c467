package tune

import "slices"

// Place is where a rank is.
type Place struct {
	Host      string
	CPUs      int  // that its process may use
	HugePages bool // large pieces of its memory have them
}

// Topology is what the ways to move data depend on of the places of all ranks. All ranks of a group
// have the same one.
type Topology struct {
	Size           int
	Ports          bool // some ranks are joined by port channels
	Memory         bool // some ranks share memory
	Oversubscribed bool // some host has more ranks than CPUs
	MultiHost      bool // not all ranks are on one host
	HugePages      bool // all have them
	// Group is how many ranks, from each multiple of it on, are on one host: the largest power of
	// two of which that holds; 0: only 1 is, or all are on one host.
	Group int
}

// Survey makes the topology of ranks at some places, of which share tells which pairs share memory.
func Survey(places []Place, share func(a, b int) bool) Topology {
	t := Topology{Size: len(places), Oversubscribed: len(Oversubscribed(places)) > 0}
	first := places[0].Host
	t.MultiHost = slices.ContainsFunc(places, func(p Place) bool { return p.Host != first })
	t.HugePages = !slices.ContainsFunc(places, func(p Place) bool { return !p.HugePages })
	for rank := 1; rank < t.Size && !t.Ports; rank++ { // memory that all share with one all share
		t.Ports = !share(0, rank)
	}
	t.Memory = !t.Ports || anyShare(places, share)
	if t.MultiHost {
		t.Group = groupOf(places)
	}
	return t
}

// anyShare tells whether some pair shares memory: only ranks of one host may.
func anyShare(places []Place, share func(a, b int) bool) bool {
	byHost := map[string][]int{}
	for b, p := range places {
		if slices.ContainsFunc(byHost[p.Host], func(a int) bool { return share(a, b) }) {
			return true
		}
		byHost[p.Host] = append(byHost[p.Host], b)
	}
	return false
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

// groupOf is Topology.Group, where there are several hosts.
func groupOf(places []Place) int {
	size, group := len(places), 0
	for g := 2; g < size && size%g == 0; g *= 2 {
		for rank, p := range places {
			if p.Host != places[rank-rank%g].Host {
				return group
			}
		}
		group = g
	}
	return group
}
