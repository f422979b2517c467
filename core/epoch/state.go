package epoch

import (
	"slices"

	"github.com/goccl/goccl/core/agreement"
	"github.com/goccl/goccl/core/endpoint"
	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/tune"
)

// Number is the epoch's: 0, 1, ...
func (e *Epoch) Number() uint32 { return e.number }

// Shape says how data moves. What Agree settles of it may be read after that.
func (e *Epoch) Shape() *tune.Shape { return &e.shape }

// Thresholds returns those of the shape, as far as they are settled.
func (e *Epoch) Thresholds() tune.Thresholds {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.shape.Thresholds
}

// Endpoint is what reaches peers; nil where there are no peers.
func (e *Epoch) Endpoint() *endpoint.Endpoint { return e.end }

// Decisions are those of the epoch's members on what follows it.
func (e *Epoch) Decisions() *agreement.Engine { return e.agreement }

// Sequence is the number of the last collective that was started or refused, 0 before the first.
func (e *Epoch) Sequence() uint64 { return e.fast.Sequence() }

// NextSplit returns the number of a split: 1, 2, ...
func (e *Epoch) NextSplit() uint64 { return e.splits.Add(1) }

// Kind returns what joins this rank to a peer: see core.Comm.Transport.
func (e *Epoch) Kind(peer int) string {
	switch {
	case peer == e.Rank:
		return "self"
	case peer < 0 || peer >= e.Size():
		return ""
	case e.group == nil: // Open has failed
		return e.Peers[peer].Kind
	}
	return e.group.Kind(peer)
}

// Algorithm names the algorithm by which the collective of a sequence number ran: see
// [exec.FastPath.Algorithm]. Of a registered program it is "plan:" and its name.
func (e *Epoch) Algorithm(sequence uint64) string {
	return e.programs.algorithm(e.fast.Algorithm(sequence))
}

// Err returns the first cause of the epoch's failure. Without a failure it returns what has ended a
// peer that said no goodbye, though nothing has needed the peer yet. It returns nil if there is
// neither.
func (e *Epoch) Err() *fault.Error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.membership.Err()
}

// Lost returns what has ended the first of the peers that said no goodbye; nil if there is none.
func (e *Epoch) Lost() *fault.Error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.membership.Lost()
}

// FailedRanks returns the ranks that the error of Err blames.
func (e *Epoch) FailedRanks() []int {
	if err := e.Err(); err != nil {
		return slices.Clone(err.Ranks)
	}
	return nil
}
