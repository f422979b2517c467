package agreement

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/goccl/goccl/core/address"
	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/membership"
	"github.com/goccl/goccl/core/roster"
)

// group is the engines of an epoch's members, which hear each other at once.
type group struct {
	t       *testing.T
	members []*member
}

// member is one of them, and its face.
type member struct {
	*Engine
	of   *group
	rank int

	mu        sync.Mutex
	dead      bool
	outs      []*fault.Error
	confirmed int

	silent       func(peers []int) []int
	ended, lives bool // what Fence finds
	fenced       []int
}

// newGroup makes a group. Change may change the roster of each member before.
func newGroup(t *testing.T, size int, config Config, change func(*roster.Roster)) *group {
	g := &group{t: t}
	for rank := range size {
		peers := make(roster.Peers, size)
		pids := make([]int, size)
		for r := range peers {
			peers[r].Process, pids[r] = address.ProcessID{byte(r + 1)}, r+1
		}
		r := &roster.Roster{Rank: rank, Peers: peers, Members: fault.NewGroup("test", nil, pids)}
		if change != nil {
			change(r)
		}
		m := &member{of: g, rank: rank, silent: func([]int) []int { return nil }}
		config.Roster = r
		m.Engine = New(config, m)
		g.members = append(g.members, m)
	}
	return g
}

func (m *member) Send(to int, message []byte) {
	peer := m.of.members[to]
	peer.mu.Lock()
	dead := peer.dead
	peer.mu.Unlock()
	if dead {
		return
	}
	if err := peer.Receive(m.rank, message); err != nil {
		m.of.t.Error(err)
	}
}

func (m *member) Out(cause *fault.Error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.outs = append(m.outs, cause)
}

func (m *member) Silent(_ context.Context, peers []int) []int { return m.silent(peers) }

func (m *member) Fence(peer int) (ended, lives bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fenced = append(m.fenced, peer)
	return m.ended, m.lives
}

func (m *member) Listen() (stop func()) { return func() {} }

func (m *member) Confirmed() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.confirmed++
}

// left is how often a member has been told that nobody can ask for a decision any more.
func (m *member) left() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.confirmed
}

// die has a member die, and those of some ranks know of it.
func (g *group) die(rank int, knows ...int) {
	m := g.members[rank]
	m.mu.Lock()
	m.dead = true
	m.mu.Unlock()
	for _, r := range knows {
		g.members[r].Inform(membership.Lost{Peer: rank, Evidence: membership.Proof})()
	}
}

// decide has some members decide on what each proposes.
func (g *group) decide(ctx context.Context, of func(rank int) Proposal, ranks ...int) (
	[]*Decision, []error) {
	decisions, errs := make([]*Decision, len(ranks)), make([]error, len(ranks))
	var wg sync.WaitGroup
	for i, rank := range ranks {
		wg.Go(func() {
			m, p := g.members[rank], of(rank)
			decisions[i] = m.Begin(ctx, p, nil, nil)
			errs[i] = m.Await(ctx, decisions[i], p)
		})
	}
	wg.Wait()
	return decisions, errs
}

// Stable reports whether no member of the epoch before can decide otherwise.
func (e *Engine) Stable() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.stable
}

// Len is how many decisions have begun, here or elsewhere.
func (e *Engine) Len() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.decisions)
}

func soon(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func agrees(flags ...uint64) func(int) Proposal {
	return func(rank int) Proposal { return Proposal{Operation: "agree", Flags: flags[rank]} }
}

func recovers(int) Proposal { return Proposal{Operation: "recover"} }

// Members that live come to one decision. Who has ended takes no part, also in decisions that begin
// later.
func TestDecide(t *testing.T) {
	g := newGroup(t, 3, Config{}, nil)
	decisions, errs := g.decide(soon(t), agrees(7, 6, 3), 0, 1, 2)
	for rank, d := range decisions {
		if m := g.members[rank]; m.Unmet() || !m.Unconfirmed() {
			t.Errorf("rank %d waits for newcomers, or owes nothing", rank)
		}
		if errs[rank] != nil || d.Record.Flags != 2 {
			t.Fatalf("rank %d: %+v, %v", rank, d, errs[rank])
		}
	}
	g.die(2, 0, 1)
	for range 2 {
		decisions, errs = g.decide(soon(t), agrees(7, 6), 0, 1)
		for rank, d := range decisions {
			if errs[rank] != nil || d.Record.Flags != 6 ||
				!slices.Equal(d.Value.Survivors.Ranks(), []int{0, 1}) {
				t.Fatalf("rank %d: %+v, %v", rank, d, errs[rank])
			}
		}
	}
	if n := g.members[0].Len(); n != 3 {
		t.Errorf("there are %d decisions", n)
	}
}

// Of peers that have ended, left or been excluded before there is a decision none is waited for.
func TestKnownBefore(t *testing.T) {
	for name, tell := range map[string]func(m *member){
		"ended": func(m *member) {
			m.Inform(membership.Lost{Peer: 2, Evidence: membership.Proof})()
		},
		"left": func(m *member) { m.Inform(membership.Left{Peer: 2})() },
		"none": func(m *member) {},
	} {
		g := newGroup(t, 3, Config{}, nil)
		g.die(2)
		var exclude []int
		if name == "none" {
			exclude = []int{2}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour) // half of it is more than a test has
		defer cancel()
		var wg sync.WaitGroup
		for _, m := range g.members[:2] {
			tell(m)
			wg.Go(func() {
				d := m.Begin(ctx, recovers(m.rank), nil, exclude)
				if err := m.Await(ctx, d, recovers(m.rank)); err != nil ||
					!slices.Equal(d.Value.Survivors.Ranks(), []int{0, 1}) {
					t.Errorf("%s: rank %d: %+v, %v", name, m.rank, d.Value, err)
				}
			})
		}
		wg.Wait()
	}
}

// All members are told of what cannot be decided.
func TestDifferentCalls(t *testing.T) {
	proposals := map[string]Proposal{"recovers": {Operation: "recover", Completes: true},
		"calls": {Operation: "recover"}, "failed": {Operation: "recover", Ended: true},
		"agrees": {Operation: "agree"}, "grows": {Operation: "grow", Newcomers: 1}}
	for _, test := range []struct {
		of   [2]string
		want [2]error
	}{
		{[2]string{"calls", "calls"}, [2]error{nil, nil}},
		{[2]string{"calls", "agrees"}, [2]error{fault.ErrMismatch, fault.ErrMismatch}},
		{[2]string{"calls", "grows"}, [2]error{fault.ErrMismatch, fault.ErrMismatch}},
		{[2]string{"recovers", "recovers"}, [2]error{nil, nil}},
		{[2]string{"recovers", "calls"}, [2]error{ErrRecovers, ErrRecovers}},
		{[2]string{"recovers", "agrees"}, [2]error{ErrRecovers, ErrRecovers}},
		{[2]string{"recovers", "failed"}, [2]error{fault.ErrRevoked, ErrRecovers}},
	} {
		g := newGroup(t, 2, Config{}, nil)
		for rank := range 2 { // nobody waits for a newcomer
			g.members[rank].Offer(membership.Joiner{Host: "h", Handle: []byte("x")})()
		}
		_, errs := g.decide(soon(t), func(rank int) Proposal { return proposals[test.of[rank]] }, 0, 1)
		for rank, err := range errs {
			if !errors.Is(err, test.want[rank]) {
				t.Errorf("%v: rank %d: %v", test.of, rank, err)
			}
		}
	}
}

// A member that does not answer is lost if it has ended; one that lives may be late, and is
// suspected only after it has been waited for.
func TestFence(t *testing.T) {
	proof := []membership.News{membership.Lost{Peer: 1, Evidence: membership.Proof}}
	suspicion := []membership.News{membership.Lost{Peer: 1}}
	for _, test := range []struct {
		silent, ended, lives, waited bool
		want                         []membership.News
	}{
		{false, false, true, true, nil},
		{true, true, false, false, proof},
		{true, true, false, true, proof},
		{true, false, true, false, nil},
		{true, false, true, true, suspicion},
		{true, false, false, false, suspicion},
	} {
		m := newGroup(t, 2, Config{}, nil).members[0]
		m.silent = func(peers []int) []int {
			if test.silent {
				return peers
			}
			return nil
		}
		m.ended, m.lives = test.ended, test.lives
		if news := m.fence(soon(t), []int{1}, test.waited); !reflect.DeepEqual(news, test.want) {
			t.Errorf("%+v: news are %+v", test, news)
		}
		if fenced := len(m.fenced) > 0; fenced != test.silent {
			t.Errorf("%+v: fenced are %v", test, m.fenced)
		}
	}
}

// A member that does not come is left out after half of the time, if it does not answer either, and
// is fenced where it is left out.
func TestSilentMember(t *testing.T) {
	t.Parallel()
	g := newGroup(t, 3, Config{}, nil)
	for _, m := range g.members {
		m.silent = func(peers []int) []int { return peers }
		m.lives = true
	}
	ctx, cancel := context.WithTimeout(t.Context(), 6*time.Second)
	defer cancel()
	half, _ := ctx.Deadline()
	half = half.Add(-3 * time.Second)
	decisions, errs := g.decide(ctx, recovers, 0, 1)
	if time.Now().Before(half) {
		t.Error("it has not been waited for")
	}
	for i, d := range decisions {
		if errs[i] != nil || !slices.Equal(d.Value.Survivors.Ranks(), []int{0, 1}) {
			t.Errorf("rank %d: %+v, %v", i, d, errs[i])
		}
		if !slices.Contains(g.members[i].fenced, 2) {
			t.Errorf("rank %d has fenced %v", i, g.members[i].fenced)
		}
	}
}

// Newcomers that have not come to the first meeting are done without after half of the time, though
// they answer, and are as many as the members.
func TestLateNewcomers(t *testing.T) {
	t.Parallel()
	g := newGroup(t, 4, Config{}, func(r *roster.Roster) {
		r.Founders = membership.NewSet(4, 0, 1)
		r.Joined = make([]membership.Joiner, 2)
	})
	ctx, cancel := context.WithTimeout(t.Context(), 6*time.Second)
	defer cancel()
	decisions, errs := g.decide(ctx, recovers, 0, 1)
	for i, d := range decisions {
		if errs[i] != nil || !slices.Equal(d.Value.Survivors.Ranks(), []int{0, 1}) {
			t.Errorf("rank %d: %+v, %v", i, d, errs[i])
		}
	}
}

// Too few members that reach each other do not go on, and each is told once why.
func TestOut(t *testing.T) {
	given := new(fault.Group).Errorf(fault.ErrAborted, "given up")
	for name, test := range map[string]struct {
		end  func(context.Context) (context.Context, context.CancelFunc)
		want error
	}{
		"time": {func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithTimeout(ctx, 100*time.Millisecond)
		}, fault.ErrNoQuorum},
		"cause": {func(ctx context.Context) (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancelCause(ctx)
			cancel(given)
			return ctx, func() { cancel(nil) }
		}, fault.ErrAborted},
	} {
		g := newGroup(t, 3, Config{MinSize: 2}, nil)
		ctx, cancel := test.end(t.Context())
		_, errs := g.decide(ctx, recovers, 0)
		cancel()
		m := g.members[0]
		if !errors.Is(errs[0], test.want) || !errors.Is(m.Cause(), test.want) || m.Waits() ||
			m.Unconfirmed() {
			t.Errorf("%s: %v, %v", name, errs[0], m.Cause())
		}
		if _, errs = g.decide(ctx, recovers, 0); !errors.Is(errs[0], test.want) || m.Len() != 1 {
			t.Errorf("%s: once more: %v, of %d decisions", name, errs[0], m.Len())
		}
		if len(m.outs) != 1 || !errors.Is(m.outs[0], test.want) {
			t.Errorf("%s: told are %v", name, m.outs)
		}
	}
}

// Who asks to be a member is let in by decisions that begin later, too, as long as it asks.
func TestOffer(t *testing.T) {
	g := newGroup(t, 2, Config{}, nil)
	for _, host := range []string{"stays", "goes", "stays"} { // one asks twice
		g.members[1].Offer(membership.Joiner{Host: host, Handle: []byte("handle of " + host)})()
	}
	g.members[1].Withdraw([]byte("handle of goes"))()
	if n := len(g.members[1].joiners); n != 1 {
		t.Errorf("%d that ask are kept", n)
	}
	for range 2 {
		decisions, errs := g.decide(soon(t), recovers, 0, 1)
		for rank, d := range decisions {
			if errs[rank] != nil || len(d.Value.Joiners) != 1 || d.Value.Joiners[0].Host != "stays" {
				t.Fatalf("rank %d: %+v, %v", rank, d.Value, errs[rank])
			}
		}
	}
}

// A peer that tells of decisions that cannot be has a member keep nothing of them.
func TestDecisionsOfAFaultyMember(t *testing.T) {
	g := newGroup(t, 3, Config{}, nil)
	m := g.members[0]
	tells := func(number uint32) {
		t.Helper()
		message := membership.Message{Kind: membership.Notice, Epoch: number,
			Ended: membership.NewSet(3), Excluded: membership.NewSet(3)}
		if err := m.Receive(2, message.Encode()); err != nil {
			t.Fatal(err)
		}
	}
	for number := range uint32(1000) {
		tells(number)
	}
	if n := m.Len(); n != 1 { // the first may have begun elsewhere
		t.Fatalf("%d decisions are kept", n)
	}
	if err := m.Receive(2, []byte("nonsense")); err == nil {
		t.Error("nonsense is taken for a message")
	}
	if _, errs := g.decide(soon(t), recovers, 0, 1, 2); errors.Join(errs...) != nil {
		t.Fatal(errs)
	}
	m.End()
	tells(1)
	if n := m.Len(); n != 1 {
		t.Errorf("an epoch that is over has %d decisions", n)
	}
}

// A decision is unconfirmed until all members are known to have gone on: by a meeting of the next
// epoch, or of a later one, or because they have ended.
func TestConfirmed(t *testing.T) {
	for _, later := range []int{1, 2} {
		g := newGroup(t, 3, Config{}, nil)
		if _, errs := g.decide(soon(t), recovers, 0, 1, 2); errors.Join(errs...) != nil {
			t.Fatal(errs)
		}
		m, before := g.members[0], g
		if !m.Unconfirmed() {
			t.Fatal("nobody can ask for the decision")
		}
		for range later { // epochs of two, of whom the last one meets
			next := newGroup(t, 2, Config{}, func(r *roster.Roster) {
				r.Founders = membership.NewSet(2, 0, 1)
			})
			before.members[0].SetSuccessor(next.members[0].Engine)
			before = next
		}
		last := before.members[0]
		if last.Stable() {
			t.Fatal("it is stable before its members have met")
		}
		last.AllMet()
		if !m.Unconfirmed() || m.left() > 0 {
			t.Fatal("the member that has not met may ask, and cannot")
		}
		if !last.Stable() {
			t.Error("it is not stable though its members have met")
		}
		g.die(2, 0)
		m.CheckConfirmed()
		if m.Unconfirmed() || m.left() != 1 {
			t.Errorf("the decision is still unconfirmed, told %d times", m.left())
		}
	}
}

// Newcomers that have not been met may be done without, but for by newcomers. The epoch is stable
// for others only after the second meeting, also where a founder has heard before that it is.
func TestNewcomers(t *testing.T) {
	settled := membership.Message{Kind: membership.Notice, Ended: membership.NewSet(3),
		Excluded: membership.NewSet(3), Stable: true}
	for _, heard := range []bool{false, true} {
		for rank := range 3 {
			t.Run(fmt.Sprint(heard, rank), func(t *testing.T) {
				g := newGroup(t, 3, Config{}, func(r *roster.Roster) {
					r.Founders = membership.NewSet(3, 0)
					r.Joined = make([]membership.Joiner, 2)
				})
				m := g.members[rank]
				want := []int{1, 2}
				if rank > 0 {
					want = nil
				}
				if got := m.Strangers(); !slices.Equal(got, want) || !m.Unmet() || m.Stable() {
					t.Errorf("strangers are %v", got)
				}
				m.Met()
				if got := m.Strangers(); got != nil || !m.Unmet() || m.Stable() {
					t.Errorf("after the first meeting strangers are %v", got)
				}
				if heard {
					if err := m.Receive((rank+1)%3, settled.Encode()); err != nil {
						t.Fatal(err)
					}
				}
				for peer, p := range g.members {
					if p.Stable() != (heard && peer == rank) {
						t.Errorf("before the second meeting rank %d is told: %v", peer, p.Stable())
					}
				}
				m.AllMet()
				if m.Unmet() || !m.Stable() {
					t.Error("after the second meeting it is not stable")
				}
				for peer, p := range g.members { // the founder tells the newcomers
					if told := rank == 0 && peer > 0; told != (p.Stable() && peer != rank) {
						t.Errorf("rank %d is told: %v", peer, p.Stable())
					}
				}
			})
		}
	}
}

// Where members of the epoch before may go on elsewhere, a meeting makes an epoch stable for
// nobody.
func TestContested(t *testing.T) {
	for _, contested := range []bool{false, true} {
		g := newGroup(t, 2, Config{}, func(r *roster.Roster) {
			r.Founders, r.Contested = membership.NewSet(2, 0, 1), contested
		})
		m := g.members[0]
		m.AllMet()
		if m.Stable() == contested {
			t.Errorf("contested: %v, stable: %v", contested, m.Stable())
		}
	}
}
