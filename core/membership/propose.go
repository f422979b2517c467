package membership

// proposal is a ballot of this member.
type proposal struct {
	ballot   Ballot
	reports  map[int]*Message // of those that have promised
	promised Set              // they
	value    *Value           // nil until enough have promised
	accepted Set
}

// reach is how far the attempts of one member may be beyond those that the others tell of. One that
// keeps to the rules needs years for as many, and one that does not comes to no end of the numbers
// without the others.
const reach = 1 << 20

// explains notes the attempt of a ballot that a member tells of, and reports whether it can be:
// ballots that cannot are not answered. They count as far as they could.
func (a *Agreement) explains(from int, b Ballot) bool {
	if b.Rank == a.config.Rank || b.Ended != a.ended.count() {
		return true // of an older count of those that have ended the attempts lead nowhere
	}
	most := uint64(reach)
	for member, attempt := range a.attempts {
		if member != from {
			most = max(most, attempt+reach)
		}
	}
	a.attempts[from] = max(a.attempts[from], min(b.Attempt, most))
	return b.Attempt <= most
}

// propose begins a ballot, and ends the one before.
func (a *Agreement) propose() {
	attempt := uint64(1)
	for _, other := range a.attempts {
		attempt = max(attempt, other+1)
	}
	a.idle = 0
	a.attempts[a.config.Rank] = attempt
	a.promised = Ballot{a.ended.count(), attempt, a.config.Rank}
	own := a.promise()
	a.proposal = &proposal{ballot: a.promised, reports: map[int]*Message{a.config.Rank: &own},
		promised: NewSet(a.config.Size, a.config.Rank), accepted: NewSet(a.config.Size)}
	a.sendAll(Message{Kind: Prepare, Ballot: a.promised})
	a.advance(false)
}

// onAnswer takes what a peer says of this member's ballot.
func (a *Agreement) onAnswer(from int, m *Message) {
	p := a.proposal
	switch {
	case p == nil || m.Ballot != p.ballot: // where another goes first this one waits for its next turn
	case m.Kind == Promise && p.value == nil:
		a.hear(m.Joiners)
		p.reports[from] = m
		p.promised.add(from)
		a.advance(false)
	case m.Kind == Accepted && p.value != nil:
		p.accepted.add(from)
		a.advance(false)
	}
}

// advance takes the next step of this member's ballot, or several, and reports whether there was
// one. While all may answer, a quorum is not enough: a member that is only slow would be left out.
// The impatient does without those that are silent.
func (a *Agreement) advance(impatient bool) bool {
	p := a.proposal
	stepped := p.value == nil && a.quorum(p.promised) && (impatient || len(a.Silent()) == 0)
	if stepped {
		v := p.highest()
		if v == nil {
			v = a.compose(p.reports)
		}
		switch {
		case v == nil && a.orphaned():
			a.leave(ErrNoQuorum)
			return true
		case v == nil:
			return false // the next ballot may find more
		}
		p.value = v
		p.accepted.add(a.config.Rank)
		a.accepted, a.value = p.ballot, v
		a.sendAll(Message{Kind: Accept, Ballot: p.ballot, Value: v})
		a.idle = 0
	}
	if p.value == nil || !a.quorum(p.accepted) ||
		a.config.Any && !impatient && !p.promised.without(a.ended).within(p.accepted) {
		return stepped
	}
	a.sendAll(Message{Kind: Decide, Value: p.value})
	for _, peer := range a.asking.Ranks() {
		a.send(peer, Message{Kind: Decide, Value: p.value})
	}
	a.conclude(p.value)
	return true
}

// orphaned reports whether no ballot of this member can find a value any more: nobody that lives is
// a founder, or knows that none is needed.
func (a *Agreement) orphaned() bool {
	heard := a.proposal.promised.without(a.ended).count() + a.ended.count()
	return !a.config.Any && !a.stable && a.founders.within(a.ended) && heard == a.config.Size
}

// highest is the value of the highest ballot that those that promised have accepted; nil: none.
func (p *proposal) highest() (v *Value) {
	var last Ballot
	for _, m := range p.reports {
		if last.before(m.Accepted) {
			last, v = m.Accepted, m.Value
		}
	}
	return v
}

// Silent are the members that this one, which proposes, waits for.
func (a *Agreement) Silent() (ranks []int) {
	if a.proposal == nil || a.proposal.value != nil {
		return nil
	}
	for rank := range a.config.Size {
		if !a.proposal.promised.Has(rank) && !a.ended.Has(rank) && !a.suspected.Has(rank) {
			ranks = append(ranks, rank)
		}
	}
	return ranks
}

// quorum reports whether members are enough to decide.
func (a *Agreement) quorum(s Set) bool {
	n, all := s.count(), a.config.Size
	if a.config.Any || 2*n > all || 2*n == all && s.Has(0) { // A
		return true
	}
	return n+a.ended.without(s).count() == all // B
}
