package plan

import "slices"

// A collective that only moves data may be built on places instead of ranks (Params.Order), as what
// moves it needs no order of its own. The plan is that of the rank's place among as many places, in
// which each place is then named by the rank that has it.

// checkOrder refuses an order that is none of all ranks, or where sums have one of their own.
func (p *Params) checkOrder(fail func(format string, args ...any) error) error {
	if p.Order == nil {
		return nil
	}
	if p.Collective.Reduces() {
		return fail("has an order of ranks, but reduces in that of their numbers")
	}
	has := make([]bool, p.Size)
	for _, rank := range p.Order {
		if rank >= 0 && rank < p.Size {
			has[rank] = true
		}
	}
	if len(p.Order) != p.Size || slices.Contains(has, false) {
		return fail("order is %v; it must have each rank of %d once", p.Order, p.Size)
	}
	return nil
}

// Places is the place of each rank in an order of ranks.
func Places(order []int) []int {
	places := make([]int, len(order))
	for place, rank := range order {
		places[rank] = place
	}
	return places
}

// atPlaces is the parameters with places for ranks.
func (p *Params) atPlaces() Params {
	q, places := *p, Places(p.Order)
	q.Order, q.Rank = nil, places[p.Rank]
	if p.hasRoot() {
		q.Root = places[p.Root]
	}
	if p.Ports != nil {
		q.Ports = inOrder(p.Ports, p.Order)
	}
	if p.blockEach(In) {
		q.InBytes = inOrder(p.InBytes, p.Order)
	}
	if p.blockEach(Out) {
		q.OutBytes = inOrder(p.OutBytes, p.Order)
	}
	return q
}

func inOrder[T any](of []T, order []int) []T {
	all := make([]T, len(order))
	for place, rank := range order {
		all[place] = of[rank]
	}
	return all
}

// blockEach tells whether a space of a collective that moves data has a block for each rank.
func (p *Params) blockEach(s Space) bool {
	switch p.Collective {
	case AllGather, Gather:
		return s == Out
	case Scatter:
		return s == In
	}
	return p.Collective == AllToAll
}

// atRanks names places in a plan by the ranks that have them.
func (p *Params) atRanks(plan *Plan) *Plan {
	name := func(r *Ref) {
		switch r.Space {
		case Inbox, Outbox, PeerIn, PeerOut:
			r.Peer = int32(p.Order[r.Peer])
		case In, Out:
			if p.blockEach(r.Space) {
				r.Block = int32(p.Order[r.Block])
			}
		}
	}
	plan.Rank = p.Rank
	for i := range plan.Steps {
		s := &plan.Steps[i]
		if s.Op != Copy && s.Op != Combine && s.Op != PutToAll {
			s.Peer = int32(p.Order[s.Peer])
		}
		name(&s.Dst)
		for k := range s.Src {
			name(&s.Src[k])
		}
	}
	return plan
}
