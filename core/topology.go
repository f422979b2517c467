package core

import (
	"fmt"
	"time"

	"github.com/goccl/goccl/core/address"
	"github.com/goccl/goccl/core/bootstrap"
	"github.com/goccl/goccl/core/exec"
	"github.com/goccl/goccl/core/transport"
	"github.com/goccl/goccl/core/tune"
)

// readAddresses reads what the ranks publish of themselves. Hosts tells which say the same of their
// host.
func readAddresses(members []bootstrap.Member) (
	addresses []address.Address, hosts []int, err error,
) {
	own, shared := make([][]byte, len(members)), make([][]byte, len(members))
	for rank, m := range members {
		own[rank], shared[rank] = m.Own, m.Shared
	}
	return address.Decode(own, shared)
}

// writeAddresses writes addresses as address.Decode reads them: what each says of itself,
// and what hosts share, each once. HostOf tells by rank which of these it is.
func writeAddresses(addresses []address.Address) (
	own, hosts [][]byte, hostOf []int, err error,
) {
	known := map[string]int{}
	for rank := range addresses {
		mine, shared, err := addresses[rank].Encode()
		if err != nil {
			return nil, nil, nil, fmt.Errorf("the address of rank %d: %w", rank, err)
		}
		host, ok := known[string(shared)]
		if !ok {
			host = len(hosts)
			known[string(shared)] = host
			hosts = append(hosts, shared)
		}
		own, hostOf = append(own, mine), append(hostOf, host)
	}
	return own, hosts, hostOf, nil
}

// decide tells what joins this rank to each peer: to all processes of a host the same, but for its
// own process. The error for a pair is the same on both ranks.
func decide(addresses []address.Address, hosts []int, rank int, forced string) (
	[]string, error,
) {
	kinds := make([]string, len(addresses))
	byHost := map[int]string{}
	for peer := range addresses {
		if peer == rank {
			kinds[peer] = "self"
			continue
		}
		apart := addresses[peer].Process != addresses[rank].Process
		if kind, ok := byHost[hosts[peer]]; ok && apart {
			kinds[peer] = kind
			continue
		}
		a, b := min(rank, peer), max(rank, peer)
		kind, err := address.Decide(addresses[a], addresses[b], forced)
		if err != nil {
			return nil, fmt.Errorf("ranks %d and %d cannot be joined: %w", a, b, err)
		}
		if kinds[peer] = kind; apart {
			byHost[hosts[peer]] = kind
		}
	}
	return kinds, nil
}

// options are what the settings, and what links carry, say of how data moves.
func (config *Config) options() tune.Options {
	return tune.Options{Thresholds: config.Thresholds, Schedule: config.AllToAllSchedule,
		Algorithms: config.Algorithms, Links: config.Links,
		LongMost: transport.MaxData - exec.MessageHeader}
}

// places are where ranks are, as they say.
func places(addresses []address.Address, forced string) []tune.Place {
	all := make([]tune.Place, len(addresses))
	for rank := range addresses {
		a := &addresses[rank]
		all[rank] = tune.Place{Host: a.Host, CPUs: a.CPUs, Domain: a.Domain,
			Memory: a.Memory(forced), Fabric: a.Fabric(forced)}
	}
	return all
}

// waiting chooses how waits poll: hardly at all on an oversubscribed host.
func waiting(oversubscribed bool) exec.Waiting {
	if oversubscribed {
		return exec.Waiting{Yields: 100, PortPolls: 3}
	}
	return exec.Waiting{Spin: 3 * time.Millisecond, Yields: 20, PortPolls: 300}
}
