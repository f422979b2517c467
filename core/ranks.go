package core

import (
	"github.com/goccl/goccl/core/address"
	"github.com/goccl/goccl/core/bootstrap"
	"github.com/goccl/goccl/core/endpoint"
	"github.com/goccl/goccl/core/exec"
	"github.com/goccl/goccl/core/roster"
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

// newRoster makes a roster. It finds the peers whose memory this rank can read.
func newRoster(
	name string, rank int, globalRanks []int, peers roster.Peers, end *endpoint.Endpoint,
) roster.Roster {
	for peer := range peers {
		p := &peers[peer]
		p.Readable = peer != rank && p.SharesMemory() && end.CanRead(&p.Address)
	}
	return roster.New(name, rank, globalRanks, peers)
}

// answersOf are what this rank tells the others of its roster.
func answersOf(ranks *roster.Roster) bootstrap.Answers {
	reads := tune.CheapReads
	if ranks.Measures() {
		reads = tune.ReadsAt(exec.ReadCost())
	}
	return bootstrap.Answers(ranks.Answers(reads))
}
