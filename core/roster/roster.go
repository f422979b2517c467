// Package roster says who takes part in an epoch, as one of its ranks sees it.
//
// A [Roster] has one table of peers: where the process of each is, what joins this rank to it, and
// whether this rank reads its memory. All that reaches a peer asks this table. An [Identity] makes
// the traffic of a group its own. A group that comes of another one takes its identity from the
// other's, so that no store is needed.
package roster

import (
	"slices"

	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/membership"
	"github.com/goccl/goccl/core/tune"
)

// Roster is who takes part, by rank.
type Roster struct {
	Members   fault.Group // the group's name, and those of the ranks
	Rank      int         // this rank's
	Peers     Peers
	Identity  Identity
	Nobody    bool                // the epoch has been opened, and has no members yet
	Founders  membership.Set      // see membership.Config; nil: all
	Joined    []membership.Joiner // who were none before; they have the last ranks
	Contested bool                // see membership.Value.Open
	// SingleCopy tells that each rank reads the memory of all; before they have agreed on it, that
	// this one does. Reads are the slowest that one has found.
	SingleCopy bool
	Reads      tune.Reads
}

// New makes a roster, whose identity is not known yet. The global ranks may be nil.
func New(name string, rank int, globalRanks []int, peers Peers) Roster {
	r := Roster{Rank: rank, Peers: peers, SingleCopy: true, Reads: tune.CheapReads}
	pids := make([]int, len(peers))
	for peer := range peers {
		pids[peer] = peers[peer].PID
		r.SingleCopy = r.SingleCopy && (peer == rank || peers[peer].Readable)
	}
	r.Members = fault.NewGroup(name, globalRanks, pids)
	return r
}

// Size is the number of ranks.
func (r *Roster) Size() int { return len(r.Peers) }

// IsNewcomer reports whether a rank was no member of the epoch before.
func (r *Roster) IsNewcomer(rank int) bool { return rank >= r.Size()-len(r.Joined) }

// Part are the members of some of the ranks, in their order.
func (r *Roster) Part(ranks []int) (globalRanks []int, peers Peers) {
	for _, rank := range ranks {
		global := rank
		if r.Members.GlobalRanks != nil {
			global = r.Members.GlobalRanks[rank]
		}
		globalRanks, peers = append(globalRanks, global), append(peers, r.Peers[rank])
	}
	return globalRanks, peers
}

// Sharing are the ranks that share memory with this one, and itself; nil: all.
func (r *Roster) Sharing() (ranks []int) {
	for peer := range r.Peers {
		if !r.Peers[peer].Port() {
			ranks = append(ranks, peer)
		}
	}
	if len(ranks) == r.Size() {
		return nil
	}
	return ranks
}

// Answers are what a rank tells the others of how it reads their memory.
type Answers uint8

const (
	readsAll Answers = 1 << iota
	readsFast
	readsCheaply
)

// Measures reports whether this rank is to measure how fast it reads the memory of others: of ranks
// that read each other's memory the last one alone, for all are of one host.
func (r *Roster) Measures() bool {
	reads := func(p Peer) bool { return p.Readable }
	return slices.ContainsFunc(r.Peers[:r.Rank], reads) &&
		!slices.ContainsFunc(r.Peers[r.Rank+1:], reads)
}

// Answers are what this rank tells. So fast it has found its reads; the fastest, if it has not
// measured them.
func (r *Roster) Answers(reads tune.Reads) (a Answers) {
	if r.SingleCopy {
		a |= readsAll
	}
	if reads >= tune.FastReads {
		a |= readsFast
	}
	if reads >= tune.CheapReads {
		a |= readsCheaply
	}
	return a
}

// Agree settles what all ranks have answered yes to.
func (r *Roster) Agree(unanimous Answers) {
	r.SingleCopy, r.Reads = unanimous&readsAll != 0, tune.SlowReads
	if unanimous&readsFast != 0 {
		r.Reads = tune.FastReads
	}
	if unanimous&readsCheaply != 0 {
		r.Reads = tune.CheapReads
	}
}
