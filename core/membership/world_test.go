package membership

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
)

// world is processes whose agreements send each other messages. It does with their actions what the
// package asks of a caller, and holds them to what the package promises.
type world struct {
	config    Config // of all groups, but for what is a group's own
	processes []*process
	groups    map[string]*group
	root      *group
	flight    []envelope
	cut       map[[2]int]bool // whose messages are lost
	suspected bool            // somebody has suspected another
	faulty    map[int]bool    // processes that have broken the protocol
	broken    string          // the promise that was broken, or ""
	trace     []string        // what has happened since the last command, where it is wanted
	traced    bool
}

// group is an epoch: those that begin it with one value. Another value makes another group.
type group struct {
	key      string
	epoch    uint32
	members  []int // processes by rank
	value    *Value
	decided  map[int]string // what processes have decided, whether they live or not
	excluded map[int]bool   // newcomers that some member has done without
	children map[string]*group
}

type process struct {
	id    int
	dead  bool // crashed
	left  bool // with an error
	seats []*seat
}

// seat is a process's place in a group. The last one is that of the present epoch.
type seat struct {
	*group
	rank      int
	agreement *Agreement
	met       bool // it has come to the first meeting
	allMet    bool // so have all
	stable    bool // no other decision can be made of the group before
}

type envelope struct {
	from, to int
	group    *group
	bytes    []byte // nil: a joiner is told that it is a member
}

func newWorld(members, joiners int, config Config) *world {
	w := &world{config: config, groups: map[string]*group{}, cut: map[[2]int]bool{},
		faulty: map[int]bool{}}
	w.root = &group{key: "epoch 0", decided: map[int]string{}, excluded: map[int]bool{},
		children: map[string]*group{}}
	for id := range members + joiners {
		w.processes = append(w.processes, &process{id: id})
		if id < members {
			w.root.members = append(w.root.members, id)
		}
	}
	w.groups[w.root.key] = w.root
	for _, id := range w.root.members {
		w.install(w.processes[id], w.root)
	}
	return w
}

func (p *process) ended() bool { return p.dead || p.left }

func (p *process) seat() *seat {
	if len(p.seats) == 0 || p.ended() {
		return nil
	}
	return p.seats[len(p.seats)-1]
}

// unmet reports whether some member may still do without newcomers.
func (s *seat) unmet() bool {
	return s.value != nil && len(s.value.Joiners) > 0 && !s.allMet
}

func (w *world) install(p *process, g *group) {
	config := w.config
	config.Rank, config.Size, config.Epoch = slices.Index(g.members, p.id), len(g.members), g.epoch
	if g.value != nil {
		config.Founders = g.value.NextFounders()
		config.Uncontested = !g.value.Open && config.Rank < g.newcomers()
	}
	p.seats = append(p.seats, &seat{group: g, rank: config.Rank, agreement: NewAgreement(config),
		stable: g.value == nil})
}

// child is the group that a value makes of another.
func (w *world) child(g *group, v *Value) *group {
	key := string(v.append(nil))
	c := g.children[key]
	if c == nil {
		c = &group{epoch: v.Epoch, value: v, decided: map[int]string{}, excluded: map[int]bool{},
			children: map[string]*group{}}
		for _, old := range v.Survivors.Ranks() {
			c.members = append(c.members, g.members[old])
		}
		for _, j := range v.Joiners {
			c.members = append(c.members, int(j.Handle[0]))
		}
		c.key = fmt.Sprintf("%s > %v", g.key, c.members)
		for w.groups[c.key] != nil { // of another nonce
			c.key += "'"
		}
		g.children[key], w.groups[c.key] = c, c
	}
	return c
}

// newcomers is the first rank of those that were no members before.
func (g *group) newcomers() int { return g.value.Survivors.count() }

func (w *world) note(format string, args ...any) {
	if w.traced {
		w.trace = append(w.trace, fmt.Sprintf(format, args...))
	}
}

func (w *world) breaks(format string, args ...any) {
	if w.broken == "" {
		w.broken = fmt.Sprintf(format, args...)
		w.note("BROKEN: %s", w.broken)
	}
}

func (w *world) step(p *process, s *seat, n News) {
	for _, action := range s.agreement.Step(n) {
		switch action := action.(type) {
		case Asked:
			w.note("%d is asked", p.id)
		case Send:
			to := s.members[action.To]
			w.note("%d to %d: %v", p.id, to, action.Message)
			w.flight = append(w.flight, envelope{p.id, to, s.group, action.Message.Encode()})
		case Decided:
			g := w.child(s.group, action.Value)
			w.note("%d begins %s", p.id, g.key)
			w.decide(p, s.group, action.Value)
			w.install(p, g)
			for _, id := range g.members[action.Value.Survivors.count():] {
				w.flight = append(w.flight, envelope{p.id, id, g, nil})
			}
			if len(p.seats) > 2 { // the survivors have told that they were members of this group
				w.installed(p, len(p.seats)-3, g.members)
			}
		case Out:
			w.note("%d is out: %v", p.id, action.Cause)
			if s.agreement.decided != nil {
				w.decide(p, s.group, s.agreement.decided)
			}
			p.left = true
		}
	}
	for i, s := range p.seats[1:] {
		before := p.seats[i]
		s.stable = s.stable || s.agreement.stable ||
			(before.stable || before.agreement.stable) && before.agreement.Confirmed()
		if s.stable && !s.unmet() {
			s.agreement.Step(Stable{})
		}
	}
	if w.whole() > 1 {
		w.breaks("two groups go on")
	}
}

// installed tells a process that others have begun what was decided in the group of a seat.
func (w *world) installed(p *process, seat int, processes []int) {
	s := p.seats[seat]
	var ranks []int
	for _, id := range processes {
		if rank := slices.Index(s.members, id); rank >= 0 {
			ranks = append(ranks, rank)
		}
	}
	w.step(p, s, Installed{ranks})
}

func (w *world) decide(p *process, g *group, v *Value) {
	key := string(v.append(nil))
	g.decided[p.id] = key
	for id, other := range g.decided {
		excluded := g.excluded[id] || g.excluded[p.id]
		if other != key && !w.processes[id].ended() && !w.config.Any && !excluded {
			w.breaks("%d and %d decide differently in %s", p.id, id, g.key)
		}
	}
}

// whole is how many groups go on: all whose members live, and have come to no other.
func (w *world) whole() (n int) {
	if w.config.Any {
		return 0
	}
	for _, g := range w.groups {
		if w.goesOn(g) {
			n++
		}
	}
	return n
}

// haveMet reports whether all members of a group, which goes on, have met.
func (w *world) haveMet(g *group) bool {
	return !slices.ContainsFunc(g.members, func(id int) bool { return !w.processes[id].seat().met })
}

func (w *world) goesOn(g *group) bool {
	return !slices.ContainsFunc(g.members, func(id int) bool {
		s := w.processes[id].seat()
		return s == nil || s.group != g
	})
}

// command is what a schedule is made of.
type command struct {
	name string
	args []int
}

func (c command) String() string {
	return c.name + strings.TrimRight(" "+strings.Trim(fmt.Sprint(c.args), "[]"), " ")
}

func parse(words []string) command {
	c := command{name: words[0]}
	for _, word := range words[1:] {
		n, err := strconv.Atoi(word)
		if err != nil {
			panic(err)
		}
		c.args = append(c.args, n)
	}
	return c
}

// perform does what a command says, or nothing where it says nothing that can be:
//
//	begin P       P stops, and begins to agree
//	crash P
//	prove P Q     P hears that Q has ended, if it has
//	suspect P Q   P suspects Q
//	deliver P Q   the oldest message from P to Q comes; with a number, one of the later ones
//	lose P Q      the same, and it does not come
//	cut P Q       messages between P and Q are lost; heal P Q undoes it
//	exclude P Q   P begins to do without Q, a newcomer of its epoch, which has not met
//	tick P
//	expire P
//	wait P        P has waited for long enough for who is silent
//	join P J      P hears of a joiner; unjoin P J: of its end
//	meet P        a collective of P's epoch completes, if all members have begun it; the second one,
//	              where there are newcomers, if the first one has on all
//	jump P N      P breaks the protocol: it tells all of a ballot of attempt N that it has not made
//	run           delivers all messages, and who is asked begins
//	finish [STAY [LATE]]   all that is broken mends, unless cut links are to stay, and all must come
//	              to an end; where LATE is 1, the latest message always comes first
func (w *world) perform(c command) {
	arg := func(i int) int {
		if i < len(c.args) {
			return c.args[i]
		}
		return 0
	}
	switch c.name {
	case "run":
		w.run(false)
		return
	case "finish":
		w.finish(arg(0) == 1, arg(1) == 1)
		return
	}
	p := w.processes[arg(0)]
	s := p.seat()
	if c.name == "jump" {
		w.jump(p, s, uint64(arg(1)))
		return
	}
	q := w.processes[arg(1)]
	switch c.name {
	case "deliver", "lose":
		w.deliver(p.id, q.id, arg(2), c.name == "lose")
	case "cut", "heal":
		w.cut[[2]int{p.id, q.id}] = c.name == "cut"
		w.cut[[2]int{q.id, p.id}] = c.name == "cut"
	case "crash":
		p.dead = true
	default:
		if s != nil && p != q || s != nil && len(c.args) == 1 {
			w.tell(c.name, p, q, s)
		}
	}
}

func (w *world) tell(name string, p, q *process, s *seat) {
	joiner := Joiner{Host: fmt.Sprint("host", q.id%2), Handle: []byte{byte(q.id)}}
	switch name {
	case "begin":
		w.begin(p)
	case "prove":
		if q.ended() {
			w.prove(p, q)
		}
	case "suspect":
		if rank := slices.Index(s.members, q.id); rank >= 0 {
			w.suspected = true
			w.step(p, s, Lost{Peer: rank, Evidence: Suspicion})
		}
	case "exclude":
		rank := slices.Index(s.members, q.id)
		if s.value != nil && !s.met && rank >= s.newcomers() && s.rank < s.newcomers() {
			s.excluded[q.id] = true
			w.step(p, s, Excluded{Peer: rank})
			w.begin(p)
		}
	case "tick":
		w.step(p, s, Tick{})
	case "expire":
		w.step(p, s, Expired{})
	case "wait":
		w.step(p, s, Waited{})
	case "join":
		if len(q.seats) == 0 && !slices.Contains(s.members, q.id) {
			w.step(p, s, Joining{joiner})
		}
	case "unjoin":
		if q.ended() {
			w.step(p, s, Unjoined{joiner.Handle})
		}
	case "meet":
		if !w.goesOn(s.group) {
			return
		}
		if s.met = true; s.unmet() && !w.haveMet(s.group) {
			return
		}
		s.allMet = true
		if s.value != nil && (s.stable || !s.value.Open) {
			s.stable = true
			w.step(p, s, Stable{})
		}
		if len(p.seats) > 1 {
			w.installed(p, len(p.seats)-2, s.members)
		}
	default:
		panic(name)
	}
}

func (w *world) begin(p *process) {
	s := p.seat()
	b := Begin{State: []byte{byte(p.id)}}
	b.Nonce[0], b.Nonce[1] = byte(p.id), byte(s.epoch)
	w.step(p, s, b)
}

// jump has a process tell all of a ballot that it has not made.
func (w *world) jump(p *process, s *seat, attempt uint64) {
	if s == nil {
		return
	}
	w.faulty[p.id] = true
	a := s.agreement
	m := Message{Kind: Prepare, Epoch: s.epoch, Ballot: Ballot{a.ended.count(), attempt, s.rank},
		Ended: a.ended, Excluded: a.excluded}
	for _, id := range s.members {
		if id != p.id {
			w.note("%d to %d: %v", p.id, id, &m)
			w.flight = append(w.flight, envelope{p.id, id, s.group, m.Encode()})
		}
	}
}

// prove gives a process the proof that another has ended, in all that it is a member of.
func (w *world) prove(p, q *process) {
	for _, s := range slices.Clone(p.seats) {
		if rank := slices.Index(s.members, q.id); rank >= 0 && !p.ended() {
			if q.dead {
				w.step(p, s, Lost{Peer: rank, Evidence: Proof})
			} else {
				w.step(p, s, Left{Peer: rank})
			}
		}
	}
}

func (w *world) deliver(from, to, skip int, lost bool) {
	for i, e := range w.flight {
		if e.from != from || e.to != to {
			continue
		}
		if skip--; skip >= 0 {
			continue
		}
		if e := w.take(i); !lost {
			w.arrive(e)
		}
		return
	}
}

func (w *world) take(i int) envelope {
	e := w.flight[i]
	w.flight = slices.Delete(w.flight, i, i+1)
	return e
}

func (w *world) arrive(e envelope) {
	p := w.processes[e.to]
	if p.ended() || w.cut[[2]int{e.from, e.to}] {
		return
	}
	if e.bytes == nil {
		if len(p.seats) == 0 {
			w.note("%d joins %s", p.id, e.group.key)
			w.install(p, e.group)
		}
		return
	}
	for _, s := range p.seats {
		if s.group == e.group {
			m, err := Decode(e.bytes, len(s.members))
			if err != nil {
				w.breaks("%v: %v", err, e.bytes)
				return
			}
			w.step(p, s, Received{slices.Index(s.members, e.from), m})
			return
		}
	}
}

func (w *world) run(late bool) {
	for busy := true; busy; {
		busy = len(w.flight) > 0
		if busy {
			i := 0
			if late {
				i = len(w.flight) - 1
			}
			w.arrive(w.take(i))
		}
		for _, p := range w.processes {
			if s := p.seat(); s != nil && s.agreement.asked && !s.agreement.begun {
				w.begin(p)
				busy = true
			}
		}
	}
}

// finish has all come to an end: each member of an epoch that cannot go on begins, hears of all
// that have ended, and has time.
func (w *world) finish(cutsStay, late bool) {
	if !cutsStay {
		clear(w.cut)
	}
	w.meet()
	if late {
		w.stir()
	}
	clocks := rand.New(rand.NewPCG(1, 1)) // members whose ticks are in step could block each other
	for range 100 * len(w.processes) {
		w.run(late)
		if w.stir() {
			continue
		}
		waiting := false
		for _, p := range w.processes {
			if s := p.seat(); s != nil && s.agreement.begun {
				waiting = true
				if clocks.IntN(2) == 0 {
					w.step(p, s, Waited{})
					w.step(p, s, Tick{})
				}
			}
		}
		if !waiting {
			break
		}
	}
	for _, p := range w.processes {
		if s := p.seat(); s != nil && s.agreement.begun {
			w.mayExpire(p, s)
		}
	}
	for _, p := range w.processes {
		if s := p.seat(); s != nil && s.agreement.begun {
			w.step(p, s, Expired{})
		}
	}
	w.outlived()
}

// stir tells members what has ended, and has those begin that cannot go on.
func (w *world) stir() (stirred bool) {
	before := len(w.flight)
	for _, p := range w.processes {
		for _, q := range w.processes {
			if p != q && p.seat() != nil && q.ended() && !w.cut[[2]int{p.id, q.id}] {
				w.prove(p, q)
				if s := p.seat(); s != nil && len(q.seats) == 0 {
					w.tell("unjoin", p, q, s)
				}
			}
		}
		if s := p.seat(); s != nil && !s.agreement.begun && !w.goesOn(s.group) {
			w.begin(p)
			stirred = true
		}
	}
	return stirred || len(w.flight) > before
}

func (w *world) meet() {
	for _, p := range w.processes {
		if s := p.seat(); s != nil {
			w.tell("meet", p, p, s)
		}
	}
}

// mayExpire tells that a member has no decision, though it could have one.
func (w *world) mayExpire(p *process, s *seat) {
	reached, ended, founded, silent := NewSet(len(s.members)), 0, false, false
	for rank, id := range s.members {
		q := w.processes[id]
		switch {
		case q.ended(), s.excluded[id]:
			if s.agreement.ended.Has(rank) {
				ended++
			}
		case w.cut[[2]int{p.id, id}]:
		case s.group.decided[id] != "":
			w.breaks("%d was not told what %d has decided in %s", p.id, id, s.key)
		case q.seat() == nil || q.seat().group != s.group:
			silent = true
		default:
			reached.add(rank)
			a := q.seat().agreement
			founded = founded || a.stable || a.founders.Has(rank)
		}
	}
	n := reached.count()
	quorum := 2*n > len(s.members) || 2*n == len(s.members) && reached.Has(0) ||
		n+ended == len(s.members)
	if quorum && founded && n >= w.config.MinSize && !w.suspected && !silent && !w.faulty[p.id] {
		w.breaks("%d has no decision in %s", p.id, s.key)
	}
}

// outlived checks that an epoch whose dead cannot have decided alone has had one decision of all,
// the dead included.
func (w *world) outlived() {
	for _, g := range w.groups {
		ended, first := NewSet(len(g.members)), ""
		for rank, id := range g.members {
			if w.processes[id].ended() {
				ended.add(rank)
			}
		}
		n := ended.count()
		alone := 2*n > len(g.members) || 2*n == len(g.members) && ended.Has(0)
		for _, key := range g.decided {
			if first != "" && key != first && !alone && !w.config.Any {
				w.breaks("two decisions in %s", g.key)
			}
			first = key
		}
	}
	for _, p := range w.processes {
		if s := p.seat(); s != nil && s.agreement.begun {
			w.breaks("%d has not ended", p.id)
		}
	}
}

// String is the message in short.
func (m *Message) String() string {
	text := m.Kind.String()
	if m.Ballot != (Ballot{}) {
		text += " " + m.Ballot.String()
	}
	if ended := m.Ended.Ranks(); len(ended) > 0 {
		text += fmt.Sprint(", ended ", ended)
	}
	if m.Kind == Promise && m.Suspected.count() > 0 {
		text += fmt.Sprint(", suspected ", m.Suspected.Ranks())
	}
	if m.Value != nil {
		text += ", " + m.Value.String()
	}
	return text
}

func (v *Value) String() string {
	return fmt.Sprintf("value of %d: %v and %d", v.Nonce[0], v.Survivors.Ranks(), len(v.Joiners))
}
