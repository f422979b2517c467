package core

import (
	"github.com/goccl/goccl/core/address"
	"github.com/goccl/goccl/core/bootstrap"
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
	name string, rank int, globalRanks []int, peers roster.Peers, end *sharedEndpoint,
) roster.Roster {
	for peer := range peers {
		peers[peer].Readable = peer != rank && canRead(&peers[peer], end)
	}
	return roster.New(name, rank, globalRanks, peers)
}

// canRead tells whether this rank reads the memory of a peer: both share memory, and the kernel
// lets it. The number is the peer's word: a link over which memory goes will stand only if the
// kernel says the same.
func canRead(peer *roster.Peer, end *sharedEndpoint) bool {
	if !peer.SharesMemory() {
		return false
	}
	p := exec.Process{PID: peer.PID, FD: end.Hold(&peer.Address)}
	defer end.Release(peer.Process)
	return exec.CanGet(p, exec.Mark(peer.Mark)) == nil
}

// answersOf are what this rank tells the others of its roster.
func answersOf(ranks *roster.Roster) bootstrap.Answers {
	reads := tune.CheapReads
	if ranks.Measures() {
		reads = tune.ReadsAt(exec.ReadCost())
	}
	return bootstrap.Answers(ranks.Answers(reads))
}
