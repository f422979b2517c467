package membership

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
)

// Errors with which an agreement ends for a member.
var (
	// ErrNoQuorum: too few members can be reached, and the others may go on without this one.
	ErrNoQuorum = errors.New("no quorum")
	// ErrExcluded: the others go on without this member.
	ErrExcluded = errors.New("excluded")
)

// Config is what an agreement begins with. All members have the same, but for Rank.
type Config struct {
	Rank, Size int
	Epoch      uint32 // the one that ends
	// Founders are members of whom one at least must be a member of the next epoch; nil: all. An
	// epoch's first founders are those of the value that was decided for it.
	Founders Set
	// Uncontested: of the members of the epoch before, none but the founders can live. So nobody can
	// decide otherwise once all founders have ended. A newcomer cannot know that: those that did
	// without it, before they met it, may go on.
	Uncontested bool
	MinSize     int  // the least size of the next epoch
	Any         bool // those who reach each other go on, though others may go on elsewhere
	Patience    int  // Ticks after which a peer that has not answered is done without
	// Waits: as long as there is no Waited, whoever is silent is waited for, unless it is suspected.
	// Members may come to the decision as late as their callers like.
	Waits bool
	// Judge says what becomes of operations, from the states that the survivors have reported, and
	// whether joiners wait for another decision. It is pure. nil: nothing.
	Judge func(states map[int][]byte) (record []byte, closed bool)
}

// Agreement is one member's part in the decision on what follows its epoch. Once decided it is kept
// as long as a member may ask for the decision. It must hear of [Left] only where a peer takes no
// part in a later epoch, either: who has gone on with the decision has not left.
//
// It has more fields than others: it is an acceptor, a proposer and a learner.
type Agreement struct {
	config   Config
	founders Set

	// What this member knows.
	ended, suspected Set
	excluded         Set // of those ended: see Excluded
	asking           Set // of those excluded: who has come to the decision nevertheless
	installed        Set // who is known to have gone on with the decision
	joiners          []Joiner
	gone             map[string]bool // handles of joiners that have ended, of maxGone at most
	stable           bool            // see Stable
	nonce            [NonceSize]byte
	state            []byte
	newcomers        int // see Begin

	begun   bool             // this member has stopped, and state says where
	asked   bool             // a peer has begun, and the caller has been told
	pending map[int]*Message // of each peer, the latest that asks, before begun
	decided *Value
	out     error // why this member is not in the next epoch
	waited  bool  // see Waited

	// The acceptor. It accepts nothing of a ballot before promised.
	promised, accepted Ballot
	value              *Value // of the ballot accepted

	// The proposer.
	proposal *proposal // nil: another member proposes, or nobody does
	// attempts are, by member, the highest of the ballots that it has told of, or, of this one, made.
	// They are of the present count of those that have ended.
	attempts map[int]uint64
	passed   Set // who was to propose, and has come to no end in its time
	called   int // who has been told last that it is to propose; -1: nobody
	idle     int // ticks since the present proposer began

	actions []Action
}

// News is an event of an agreement.
type News interface{ inform(a *Agreement) }

// Excluded tells that the members go on without a peer, as if it had ended. It may live, and ask
// for the decision. Either all members are told of the same peers, or the peer is a newcomer that
// this member, which is none, has not met, and does not meet any more.
type Excluded struct{ Peer int }

// Begin tells that this member has stopped, because its communicator has failed or is to grow, or
// because of Asked.
type Begin struct {
	Nonce [NonceSize]byte // random: it becomes that of what this member proposes
	State []byte          // what Config.Judge is given of this member: at most MaxOpaque bytes
	// Newcomers are how many joiners are waited for until Waited.
	Newcomers int
}

// Received tells that a message has come.
type Received struct {
	From    int
	Message *Message
}

// Joining tells that a process asks to be a member.
type Joining struct{ Joiner Joiner }

// Unjoined tells that a joiner has ended.
type Unjoined struct{ Handle []byte }

// Tick tells that a while has passed.
type Tick struct{}

// Waited tells that this member has waited for long enough for those that are silent.
type Waited struct{}

// Expired tells that this member waits no longer. Where that is not for the time, Cause says why.
type Expired struct{ Cause error }

// Installed tells that members have begun the epoch that was decided. A collective of that epoch
// that has completed shows it for all survivors.
type Installed struct{ Ranks []int }

// Stable tells that no member of the epoch before can come to another decision than that for this
// epoch. This holds once a collective of this epoch has completed, unless its Value is Open. It
// also holds once the agreement before is [Agreement.Confirmed], if that has had a Stable, too.
// Where there are newcomers two collectives must have completed in any case: then the first one has
// completed on all members, and none of these does without newcomers any more.
type Stable struct{}

// Asked is the action that stops this member, for a peer has begun. Begin must follow.
type Asked struct{}

// Send is the action that sends a message. What cannot be sent may be lost.
type Send struct {
	To      int
	Message *Message
}

// Decided is the action that begins the next epoch, of which this member is one.
type Decided struct{ Value *Value }

// Out is the action that ends this member's part with ErrNoQuorum, ErrExcluded or the cause of
// Expired. It must say goodbye, and takes no part in what comes.
type Out struct{ Cause error }

func (Asked) action()   {}
func (Send) action()    {}
func (Decided) action() {}
func (Out) action()     {}

// NewAgreement makes a member's part.
func NewAgreement(config Config) *Agreement {
	empty := func() Set { return NewSet(config.Size) }
	return &Agreement{config: config, founders: config.Founders, stable: config.Founders == nil,
		ended: empty(), suspected: empty(), excluded: empty(), asking: empty(),
		installed: empty(), passed: empty(),
		called: -1, attempts: map[int]uint64{},
		gone: map[string]bool{}, pending: map[int]*Message{}}
}

// Step takes an event, and returns what to do.
func (a *Agreement) Step(n News) []Action {
	a.actions = nil
	n.inform(a)
	return a.actions
}

// Confirmed reports whether each member is known to have begun the epoch that was decided, or to
// have ended or left. Then nobody asks for the decision any more.
func (a *Agreement) Confirmed() bool {
	known := a.ended.count() + a.installed.without(a.ended).count()
	return a.decided != nil && a.excluded.count() == 0 && known == a.config.Size
}

// LeftOut are the members that the decision leaves out though there is no proof that they have
// ended, and nobody has asked for it: see [Excluded].
func (a *Agreement) LeftOut() []int {
	all := NewSet(a.config.Size)
	for rank := range a.config.Size {
		all.add(rank)
	}
	return all.without(a.decided.Survivors).without(a.ended).Ranks()
}

func (e Lost) inform(a *Agreement) {
	if e.Evidence == Proof {
		Left{Peer: e.Peer}.inform(a)
		return
	}
	a.suspected.add(e.Peer)
	a.lead()
}

func (e Left) inform(a *Agreement) {
	gone := NewSet(a.config.Size, e.Peer)
	a.excluded = a.excluded.without(gone)
	a.learn(gone)
}

func (e Excluded) inform(a *Agreement) {
	out := NewSet(a.config.Size, e.Peer)
	a.exclude(out)
	a.learn(out)
}

// exclude notes which of those are excluded who have not ended so far.
func (a *Agreement) exclude(out Set) { a.excluded.merge(out.without(a.ended)) }

func (e Begin) inform(a *Agreement) {
	if a.begun || a.over() {
		return
	}
	a.begun, a.nonce, a.state, a.newcomers = true, e.Nonce, e.State, e.Newcomers
	for from := range a.config.Size {
		if m := a.pending[from]; m != nil && !a.ended.Has(from) {
			a.receive(from, m)
		}
	}
	a.pending = nil
	if a.promised == (Ballot{}) {
		a.lead()
	}
}

func (e Received) inform(a *Agreement) {
	m := e.Message
	switch {
	case m.Epoch != a.config.Epoch || e.From == a.config.Rank:
		return
	case a.ended.Has(e.From): // see the package's comment: the dead must not be heard
		switch { // one that has been excluded, and lives
		case !m.Kind.asks():
		case a.decided != nil:
			a.send(e.From, Message{Kind: Decide, Value: a.decided})
		case a.excluded.Has(e.From):
			a.asking.add(e.From)
		}
		return
	}
	a.stable = a.stable || m.Stable
	a.exclude(m.Excluded)
	a.learn(m.Ended)
	a.receive(e.From, m)
}

func (e Joining) inform(a *Agreement) {
	delete(a.gone, string(e.Joiner.Handle)) // it has come again
	a.hear([]Joiner{e.Joiner})
	a.called = -1 // who proposes is to hear of it
	a.lead()
}

// maxGone bounds what joiners that come and go can make a member keep. One that is forgotten may be
// let in, and is found to have ended then.
const maxGone = 256

func (e Unjoined) inform(a *Agreement) {
	if len(a.gone) < maxGone {
		a.gone[string(e.Handle)] = true
	}
	a.joiners = slices.DeleteFunc(slices.Clone(a.joiners), func(j Joiner) bool {
		return slices.Equal(j.Handle, e.Handle)
	})
}

func (e Tick) inform(a *Agreement) {
	if !a.begun || a.over() {
		return
	}
	a.idle++
	p := a.proposal
	if p == nil && a.idle < 3*a.config.Patience || a.idle < a.config.Patience {
		return
	}
	a.idle = 0
	if p != nil && p.value == nil && a.config.Waits && !a.waited {
		// The others hear that this member is still at it.
		a.sendAll(Message{Kind: Prepare, Ballot: p.ballot})
		return
	}
	if p != nil && a.advance(true) {
		return
	}
	a.passed.add(a.leader())
	a.called, a.proposal = -1, nil
	a.lead()
}

func (e Waited) inform(a *Agreement) { a.waited = true }

func (e Expired) inform(a *Agreement) {
	if a.begun && !a.over() {
		a.leave(cmp.Or(e.Cause, ErrNoQuorum))
	}
}

func (e Installed) inform(a *Agreement) {
	for _, rank := range e.Ranks {
		a.installed.add(rank)
	}
}

func (e Stable) inform(a *Agreement) { a.stable = true }

// Known is what a member knows of its epoch when the part in a further agreement is made.
type Known struct {
	Stable  bool       // it has been told: see [Stable]
	Joiners []Joiner   // that ask to be members, in the order in which they came
	Lost    []Lost     // peers
	Before  *Agreement // the epoch's agreement before; nil: this is the first
}

// Replay makes a member's part in an agreement, as if it had been there from the beginning of the
// epoch, and had been given the news of that one by one. Nothing has been told of it.
func Replay(config Config, known Known) *Agreement {
	a := NewAgreement(config)
	if known.Stable {
		a.Step(Stable{})
	}
	for _, j := range known.Joiners {
		a.Step(Joining{Joiner: j})
	}
	if before := known.Before; before != nil {
		a.ended.merge(before.ended)
		a.excluded.merge(before.excluded)
		a.stable = a.stable || before.stable
	}
	for _, lost := range known.Lost {
		a.Step(lost)
	}
	return a
}

func (a *Agreement) over() bool { return a.decided != nil || a.out != nil }

func (a *Agreement) leave(cause error) {
	a.out, a.proposal = cause, nil
	a.actions = append(a.actions, Out{cause})
}

func (a *Agreement) send(to int, m Message) {
	m.Epoch, m.Stable = a.config.Epoch, a.stable
	m.Ended, m.Excluded = slices.Clone(a.ended), slices.Clone(a.excluded)
	a.actions = append(a.actions, Send{to, &m})
}

// sendAll sends to all peers that have not ended: to those that are suspected, too, which must
// hear that they are excluded.
func (a *Agreement) sendAll(m Message) {
	for peer := range a.config.Size {
		if peer != a.config.Rank && !a.ended.Has(peer) {
			a.send(peer, m)
		}
	}
}

// learn takes a proof that members have ended. What is proposed begins anew, for the rule B of a
// ballot counts with the ended that its messages tell of.
func (a *Agreement) learn(ended Set) {
	if !a.ended.merge(ended) || a.over() {
		return
	}
	clear(a.attempts)
	if a.config.Uncontested && a.founders.within(a.ended.without(a.excluded)) {
		a.stable = true
	}
	switch {
	case a.ended.Has(a.config.Rank): // peers take this member for ended, and may go on without it
		a.leave(ErrExcluded)
	case a.proposal != nil:
		a.propose()
	default:
		a.lead()
	}
}

// leader is who is to propose: the lowest rank that is not known to have ended, and is not
// suspected. One that comes to no end in its time is followed by the next, and the last by the
// first.
func (a *Agreement) leader() int {
	for rank := range a.config.Size {
		out := rank != a.config.Rank && (a.ended.Has(rank) || a.suspected.Has(rank))
		if !out && !a.passed.Has(rank) {
			return rank
		}
	}
	clear(a.passed)
	return a.leader()
}

// lead proposes where this member is to, or else calls who is.
func (a *Agreement) lead() {
	if !a.begun || a.over() {
		return
	}
	leader := a.leader()
	switch {
	case leader == a.config.Rank && a.proposal == nil:
		a.propose()
	case leader == a.config.Rank:
		a.advance(false)
	case leader != a.called:
		a.called = leader
		a.send(leader, Message{Kind: Call, Joiners: a.joiners})
	}
}

func (a *Agreement) receive(from int, m *Message) {
	asks := m.Kind.asks()
	switch {
	case a.decided != nil:
		if asks {
			a.send(from, Message{Kind: Decide, Value: a.decided})
		}
		return
	case a.out != nil:
		return
	case m.Kind == Decide:
		a.conclude(m.Value)
		return
	case !a.begun:
		if asks {
			// Messages may overtake each other, and an answer to an older one counts no more.
			if last := a.pending[from]; last == nil || !m.before(last) {
				a.pending[from] = m
			}
			if !a.asked {
				a.asked = true
				a.actions = append(a.actions, Asked{})
			}
		}
		return
	}
	if !a.explains(from, m.Ballot) {
		return
	}
	switch m.Kind {
	case Call:
		a.hear(m.Joiners)
		a.lead()
	case Prepare, Accept:
		a.answer(from, m)
	default:
		a.onAnswer(from, m)
	}
}

// answer is the acceptor's part.
func (a *Agreement) answer(from int, m *Message) {
	if m.Ballot.Rank != from {
		return // no member writes such
	}
	if m.Ballot.before(a.promised) {
		a.send(from, Message{Kind: Refuse, Ballot: a.promised})
		return
	}
	// One that tries again and again has no more time for it. One that repeats itself waits.
	if a.promised.Rank != from || m.Ballot == a.promised {
		a.idle = 0
	}
	a.promised, a.proposal = m.Ballot, nil
	if m.Kind == Accept {
		a.accepted, a.value = m.Ballot, m.Value
		a.send(from, Message{Kind: Accepted, Ballot: m.Ballot})
		return
	}
	a.send(from, a.promise())
}

// promise is this member's report in a ballot.
func (a *Agreement) promise() Message {
	return Message{Kind: Promise, Ballot: a.promised, Joiners: a.joiners,
		Suspected: slices.Clone(a.suspected), State: a.state, Accepted: a.accepted, Value: a.value}
}

// conclude takes the decision.
func (a *Agreement) conclude(v *Value) {
	a.decided, a.proposal = v, nil
	if !v.Survivors.Has(a.config.Rank) {
		a.leave(ErrExcluded)
		return
	}
	a.installed.add(a.config.Rank)
	a.actions = append(a.actions, Decided{v})
}

func (b Ballot) String() string { return fmt.Sprintf("%d.%d.%d", b.Ended, b.Attempt, b.Rank) }
