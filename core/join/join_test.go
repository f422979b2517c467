package join

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goccl/goccl/core/address"
	"github.com/goccl/goccl/core/bootstrap"
	"github.com/goccl/goccl/core/config"
	"github.com/goccl/goccl/core/endpoint"
	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/meeting"
	"github.com/goccl/goccl/core/membership"
	"github.com/goccl/goccl/core/roster"
)

// decisions note what they are told, once that is carried out. That may call the acceptor.
type decisions struct {
	told []string
	of   *Acceptor
}

func (d *decisions) note(what string) (act func()) {
	return func() {
		d.of.Joining()
		d.told = append(d.told, what)
	}
}

func (d *decisions) Offer(j membership.Joiner) (act func()) { return d.note("offer " + j.Host) }

func (d *decisions) Withdraw(handle []byte) (act func()) {
	h, _ := meeting.Parse(string(handle))
	return d.note("withdraw " + h.Address.Host)
}

// stay is a communicator that stays in its epoch.
type stay struct{ end *endpoint.Endpoint }

func (s stay) Listen() (*endpoint.Endpoint, error) { return s.end, nil }

func (s stay) Leads() bool { return true }

// newAcceptor makes an acceptor of a group of one, in its first epoch.
func newAcceptor(t testing.TB) (a *Acceptor, now Epoch, d *decisions) {
	t.Helper()
	logger := slog.New(slog.DiscardHandler)
	pool := endpoint.Pool{Logger: logger}
	end, err := pool.Open(endpoint.Key{StoreHost: "127.0.0.1"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(end.Leave)
	a = NewAcceptor(Config{Settings: config.Completed{Config: config.Config{GroupName: "test"}},
		Life: t.Context(), Logger: logger, Owner: stay{end}})
	me := end.Address()
	r := end.Roster("test", 0, nil, roster.Alone(me.AsRead()))
	d = &decisions{of: a}
	now = Epoch{Roster: &r, Decisions: d}
	a.Moved(now)
	t.Cleanup(func() { a.Close(fault.Errorf(fault.ErrAborted, "the test is over")) })
	return a, now, d
}

// at is a process that asks to be a member, and cannot be reached any more.
func at(t *testing.T, host string) *joiner {
	t.Helper()
	h, err := meeting.New(address.Address{Host: host, TCP: []string{"127.0.0.1:9"}}, "")
	if err != nil {
		t.Fatal(err)
	}
	return &joiner{Joiner: membership.Joiner{Host: host, Handle: []byte(h.String())},
		address: &h.Address, told: make(chan answer, 1)}
}

// told is what a process has been told that waits; ok is false as long as it waits.
func told(j *joiner) (a answer, ok bool) {
	select {
	case a = <-j.told:
		return a, true
	default:
		return a, false
	}
}

// A process that has lost its connection asks again, before or after the member knows of the loss.
// In both cases it waits, and is told when it is a member.
func TestAsksAgain(t *testing.T) {
	for first, want := range map[string][]string{
		"asks":   {"offer here", "offer here"},
		"leaves": {"offer here", "withdraw here", "offer here"},
	} {
		a, now, d := newAcceptor(t)
		now.Roster.Peers[0].Host = "here"
		lost, again := at(t, "here"), at(t, "here")
		again.Handle = lost.Handle
		a.add(lost)
		if first == "leaves" {
			a.remove(lost)
		}
		a.add(again)
		if first == "asks" {
			a.remove(lost)
		}
		if !slices.Equal(d.told, want) {
			t.Errorf("%s first: decisions are told %q, not %q", first, d.told, want)
		}
		if _, ok := told(again); ok || a.Joining() != 1 {
			t.Fatalf("%s first: it does not wait", first)
		}
		next := *now.Roster
		next.Joined = []membership.Joiner{again.Joiner}
		a.Moved(Epoch{Roster: &next, Number: 1, Decisions: d})
		if w, ok := told(again); !ok || w.epoch == nil || w.epoch.Number != 1 || a.Joining() != 0 {
			t.Errorf("%s first: it is told %+v", first, w)
		}
	}
}

// In the next epoch those that still wait are offered again, and who cannot be joined to its
// members is refused.
func TestMoved(t *testing.T) {
	a, now, _ := newAcceptor(t)
	now.Roster.Peers[0].Host = "here"
	waits, unfit := at(t, "here"), at(t, "here")
	a.add(waits)
	a.add(unfit)
	unfit.address.Host = "another host"
	d := decisions{of: a}
	a.Moved(Epoch{Roster: now.Roster, Number: 1, Decisions: &d})
	if want := []string{"offer here"}; !slices.Equal(d.told, want) {
		t.Errorf("decisions are told %q, not %q", d.told, want)
	}
	if _, ok := told(waits); ok {
		t.Error("the one that can be a member does not wait any more")
	}
	if w, ok := told(unfit); !ok || !errors.Is(w.refusal, fault.ErrUnsupported) {
		t.Errorf("the other one is told %+v", w)
	}
}

// Who is sent away is told once, and nobody waits in vain before the next epoch.
func TestReject(t *testing.T) {
	a, now, d := newAcceptor(t)
	now.Roster.Peers[0].Host = "here"
	j := at(t, "here")
	a.add(j)
	a.Reject(fault.ErrTimeout)
	if _, ok := told(j); ok {
		t.Error("after a timeout it is sent away, though members may still go on with this rank")
	}
	j.address.Host = "another host" // it would be refused
	a.Reject(fault.ErrExcluded)
	if w, ok := told(j); !ok || w.epoch != nil || w.refusal != nil {
		t.Errorf("it is told %+v", w)
	}
	a.Reject(fault.ErrExcluded) // nobody is told twice
	if a.add(at(t, "here")) {
		t.Error("another one waits where the others go on without this rank")
	}
	a.Moved(Epoch{Roster: now.Roster, Number: 1, Decisions: d})
	if !a.add(at(t, "here")) {
		t.Error("nobody can wait in the next epoch")
	}
}

// What members decide on lets in only those that can be joined to all, and to each other, whatever
// a member that asks for it has let through.
func TestAdmit(t *testing.T) {
	at := func(id byte, host, tcp, forced string) address.Address {
		return address.Address{Process: address.ProcessID{id}, Host: host, TCP: []string{tcp},
			Forced: forced, Unix: "@x"}
	}
	joiner := func(a address.Address) membership.Joiner {
		h, err := meeting.New(a, "")
		if err != nil {
			t.Fatal(err)
		}
		return membership.Joiner{Host: a.Host, Handle: []byte(h.String())}
	}
	members := []address.Address{at(1, "a", "10.0.0.1:1", ""), at(2, "b", "10.0.0.2:1", "")}
	good := joiner(at(3, "a", "10.0.0.1:2", ""))
	far := joiner(at(4, "c", "10.0.0.3:1", ""))
	for _, c := range []struct {
		what    string
		joiners []membership.Joiner
		in      int // how many of them, the first ones
	}{
		{"all", []membership.Joiner{good, far}, 2},
		{"no handle", []membership.Joiner{good, {Host: "a", Handle: []byte("x")}}, 1},
		{"loopback of another host", []membership.Joiner{good, joiner(at(5, "c", "127.0.0.1:1", ""))}, 1},
		{"no address", []membership.Joiner{far, joiner(address.Address{Host: "d"})}, 1},
		{"memory of another host", []membership.Joiner{joiner(at(6, "a", "10.0.0.1:3", "shm"))}, 0},
		{"verbs of nobody", []membership.Joiner{joiner(at(7, "c", "10.0.0.3:2", "verbs"))}, 0},
		{"nonsense", []membership.Joiner{joiner(at(8, "c", "10.0.0.3:2", "pigeons"))}, 0},
		{"not joined to each other", []membership.Joiner{joiner(at(9, "a", "127.0.0.1:1", "")),
			joiner(at(10, "b", "127.0.0.1:1", ""))}, 0},
	} {
		in, all := Admit(slices.Clone(members), c.joiners, "")
		if !reflect.DeepEqual(in, slices.Clone(c.joiners[:c.in])) && len(in)+c.in > 0 ||
			len(all) != len(members)+c.in {
			t.Errorf("%s: %d are in, of %d members", c.what, len(in), len(all))
		}
	}
	alone := members[:1]
	in, _ := Admit(slices.Clone(alone), []membership.Joiner{joiner(at(3, "a", "127.0.0.1:1", "")),
		joiner(at(4, "c", "10.0.0.3:1", ""))}, "")
	if len(in) != 1 || string(in[0].Handle) == string(far.Handle) {
		t.Errorf("of two that cannot be joined to each other %d are in", len(in))
	}
}

// readStore tells of values that were read.
type readStore struct {
	bootstrap.Store
	read chan string
}

func (s readStore) Get(key string) ([]byte, bool, error) {
	v, ok, err := s.Store.Get(key)
	select {
	case s.read <- string(v):
	default:
	}
	return v, ok, err
}

// What somebody has written over a member's handle does not keep out one that has waited for long:
// it has patience again.
func TestFindHasPatience(t *testing.T) {
	handle := at(t, "here").Handle
	other := []byte(strings.ToLower(string(handle))) // is no handle
	store := readStore{bootstrap.NewMemStore(), make(chan string)}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	found := make(chan error, 1)
	p := &applicant{settings: &config.Completed{Config: config.Config{GroupName: "test"}},
		own: &listener{}, patience: 4 * time.Second}
	late := time.After(p.patience)
	go func() {
		_, err := p.find(ctx, store)
		found <- err
	}()
	<-late
	_ = store.Set(bootstrap.MembersKey("test"), other)
	for range 2 { // it has gone on from there
		for value := ""; value == ""; {
			select {
			case value = <-store.read:
			case err := <-found:
				t.Fatal(err)
			}
		}
	}
	cancel()
	if err := <-found; !errors.Is(err, fault.ErrInvalidArgument) {
		t.Error(err)
	}
}

// FuzzWelcome reads what a process is told that joins: all its members have addresses, and the
// process is one of them.
func FuzzWelcome(f *testing.F) {
	a, now, _ := newAcceptor(f)
	handle, err := a.Handle()
	if err != nil {
		f.Fatal(err)
	}
	peers := now.Roster.Peers
	own, hosts, hostOf, err := address.EncodeAll(append(peers, peers...).Addresses())
	if err != nil {
		f.Fatal(err)
	}
	good := Welcome{Name: "test", Number: 1, Own: own, Hosts: hosts, HostOf: hostOf,
		Founders: membership.NewSet(2), Handles: []string{handle}}
	if _, err := a.Roster(&good); err != nil {
		f.Fatal(err)
	}
	for _, change := range []func(w *Welcome){
		func(*Welcome) {},
		func(w *Welcome) { w.HostOf = []int{0, 7} },
		func(w *Welcome) { w.HostOf = nil },
		func(w *Welcome) { w.Own = w.Own[:1] },
		func(w *Welcome) { w.Handles = nil },
		func(w *Welcome) { w.Handles = append([]string{"", ""}, w.Handles...) },
		func(w *Welcome) { w.Founders = nil },
	} {
		w := good
		change(&w)
		text, _ := json.Marshal(w)
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		var w Welcome
		if json.Unmarshal(text, &w) != nil {
			return
		}
		ranks, err := a.Roster(&w)
		if err != nil {
			return
		}
		if len(ranks.Peers) != len(w.Own) ||
			ranks.Peers[ranks.Rank].Process != now.Roster.Peers[0].Process {
			t.Errorf("%+v is let through", ranks)
		}
	})
}
