package roster

import (
	"fmt"
	"slices"

	"github.com/goccl/goccl/core/address"
	"github.com/goccl/goccl/core/tune"
)

// Peer is a rank as this rank sees it.
type Peer struct {
	address.Address        // of its process
	Kind            string // of channel that joins this rank to it: see address.Decide; "self"
	Readable        bool   // this rank reads the memory of its process; never its own
}

const self = "self"

// Port reports whether the channels to the peer are port channels.
func (p *Peer) Port() bool { return address.IsPort(p.Kind) }

// SharesMemory reports whether the peer does, which is not this rank.
func (p *Peer) SharesMemory() bool { return p.Kind == address.Shm || p.Kind == address.Mem }

// Peers are all ranks of a group, this one among them.
type Peers []Peer

// Alone is a group of one process.
func Alone(a address.Address) Peers { return Peers{{Address: a, Kind: self}} }

// Join tells what joins a rank to each of the processes at some addresses: to all processes of a
// host the same, but for its own process. Hosts tells which say the same of their host: see
// address.Decode. The error for a pair is the same on both ranks.
func Join(addresses []address.Address, hosts []int, rank int, forced string) (Peers, error) {
	peers := make(Peers, len(addresses))
	byHost := map[int]string{}
	for peer := range addresses {
		p := &peers[peer]
		p.Address = addresses[peer]
		if peer == rank {
			p.Kind = self
			continue
		}
		apart := addresses[peer].Process != addresses[rank].Process
		if kind, ok := byHost[hosts[peer]]; ok && apart {
			p.Kind = kind
			continue
		}
		a, b := min(rank, peer), max(rank, peer)
		kind, err := address.Decide(addresses[a], addresses[b], forced)
		if err != nil {
			return nil, fmt.Errorf("ranks %d and %d cannot be joined: %w", a, b, err)
		}
		if p.Kind = kind; apart {
			byHost[hosts[peer]] = kind
		}
	}
	return peers, nil
}

// Addresses are where the peers are.
func (p Peers) Addresses() []address.Address {
	all := make([]address.Address, len(p))
	for peer := range p {
		all[peer] = p[peer].Address
	}
	return all
}

// Kinds are what joins this rank to each.
func (p Peers) Kinds() []string {
	all := make([]string, len(p))
	for peer := range p {
		all[peer] = p[peer].Kind
	}
	return all
}

// Ports tells of each whether the channels to it are port channels.
func (p Peers) Ports() []bool {
	all := make([]bool, len(p))
	for peer := range p {
		all[peer] = p[peer].Port()
	}
	return all
}

// Hosts are those of the peers.
func (p Peers) Hosts() []string {
	all := make([]string, len(p))
	for peer := range p {
		all[peer] = p[peer].Host
	}
	return all
}

// SharesMemory reports whether some peer does with this rank.
func (p Peers) SharesMemory() bool {
	return slices.ContainsFunc(p, func(q Peer) bool { return q.SharesMemory() })
}

// Has reports whether some peer is joined by a kind of channel.
func (p Peers) Has(kind string) bool {
	return slices.ContainsFunc(p, func(q Peer) bool { return q.Kind == kind })
}

// Places are where the ranks are, as they say.
func (p Peers) Places(forced string) []tune.Place {
	all := make([]tune.Place, len(p))
	for rank := range p {
		a := &p[rank].Address
		all[rank] = tune.Place{Host: a.Host, CPUs: a.CPUs, CPUSet: a.CPUSet, Domain: a.Domain,
			Memory: a.Memory(forced), Fabric: a.Fabric(forced)}
	}
	return all
}
