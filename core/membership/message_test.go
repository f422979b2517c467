package membership

import (
	"bytes"
	"reflect"
	"strings"
	"testing"
)

// samples are messages of all kinds, of an epoch of ten.
func samples() (all []*Message) {
	joiners := []Joiner{{"here", []byte("one")}, {"there", []byte("another")}}
	v := &Value{Epoch: 8, Nonce: [NonceSize]byte{1, 2}, Survivors: NewSet(10, 0, 3, 9),
		Founders: NewSet(10, 3), Open: true, Joiners: joiners,
		Verdict: []byte("verdict")}
	for kind := range kinds {
		m := &Message{Kind: kind, Epoch: 7, Ended: NewSet(10, 1, 8),
			Excluded: NewSet(10, 8), Settled: kind%2 == 0}
		if kind != Call && kind != Decide && kind != Notice {
			m.Ballot = Ballot{3, 9}
		}
		if kind.reports() {
			m.Joiners = joiners
		}
		if kind == Promise {
			m.Suspected, m.State = NewSet(10, 2), []byte("state")
			all = append(all, &Message{Kind: kind, Epoch: 7, Ballot: m.Ballot, Ended: m.Ended,
				Excluded:  m.Excluded,
				Suspected: m.Suspected, State: m.State, Accepted: Ballot{2, 0}, Value: v})
		}
		if kind == Accept || kind == Decide {
			m.Value = v
		}
		all = append(all, m)
	}
	return all
}

// TestMessages has each message come as it was sent, and none that is cut, or longer.
func TestMessages(t *testing.T) {
	for _, m := range samples() {
		b := m.Encode()
		got, err := Decode(b, 10)
		if err != nil || !reflect.DeepEqual(got, m) {
			t.Errorf("%v: %v, %v", m, got, err)
		}
		for n := range b {
			if got, err := Decode(b[:n], 10); err == nil {
				t.Errorf("%v: %d bytes of %d are %v", m, n, len(b), got)
			}
		}
		if _, err := Decode(append(b, 0), 10); err == nil {
			t.Errorf("%v: a byte more is taken", m)
		}
	}
}

// TestLargestMessage holds the largest message to the bound.
func TestLargestMessage(t *testing.T) {
	opaque := bytes.Repeat([]byte{1}, MaxOpaque)
	var joiners []Joiner
	for range MaxJoiners {
		joiners = append(joiners,
			Joiner{strings.Repeat("h", MaxHost), bytes.Repeat([]byte{1}, MaxHandle)})
	}
	all := NewSet(MaxMembers)
	for i := range all {
		all[i] = 0xff
	}
	m := &Message{Kind: Promise, Ballot: Ballot{maxAttempt, MaxMembers - 1}, Ended: all,
		Excluded:  all,
		Suspected: all, Joiners: joiners, State: opaque, Accepted: Ballot{1, 1}, Value: &Value{
			Epoch: 1, Survivors: all, Founders: all, Joiners: joiners, Verdict: opaque}}
	b := m.Encode()
	if got, err := Decode(b, MaxMembers); err != nil || !reflect.DeepEqual(got, m) {
		t.Error(len(b), err)
	}
}

// FuzzMessage gives a member any bytes as a message of a peer, in each state of an agreement. What
// is taken is written as it was read, and whatever a peer says is answered.
func FuzzMessage(f *testing.F) {
	for _, m := range samples() {
		f.Add(m.Encode(), m.Encode(), byte(3))
	}
	f.Fuzz(func(t *testing.T, one, other []byte, from byte) {
		a := NewAgreement(Config{Rank: 2, Size: 10, Epoch: 7, MinSize: 1, Patience: 1})
		for i, b := range [][]byte{one, other, one} {
			if m, err := Decode(b, 10); err == nil {
				if again := m.Encode(); !bytes.Equal(again, b) {
					t.Errorf("%x is written as %x", b, again)
				}
				send(t, a.Step(Received{int(from % 10), m}))
			}
			if i == 0 {
				send(t, a.Step(Begin{}))
			}
			send(t, a.Step(Tick{}))
		}
	})
}

// TestLastAttempt has a member learn that another has ended, when no attempt is left. Its ballot
// has not told of that one, so it must end.
func TestLastAttempt(t *testing.T) {
	a := NewAgreement(Config{Size: 3, MinSize: 1, Patience: 1})
	a.Step(Begin{})
	none := NewSet(3)
	a.Step(Received{1, &Message{Kind: Refuse, Ballot: Ballot{maxAttempt, 1}, Ended: none}})
	a.Step(Lost{Peer: 2, Evidence: Proof})
	actions := a.Step(Received{1, &Message{Kind: Promise, Ballot: Ballot{1, 0}, Ended: none,
		Suspected: none}})
	if len(actions) > 0 {
		t.Errorf("the ballot goes on: %v", actions)
	}
}

// send writes what a member sends, and reads it.
func send(t *testing.T, actions []Action) {
	t.Helper()
	for _, a := range actions {
		if s, ok := a.(Send); ok {
			if m, err := Decode(s.Message.Encode(), 10); err != nil {
				t.Errorf("sends %v, %v", m, err)
			}
		}
	}
}

// One that has joined goes on alone once all founders have ended, if nobody else of the epoch
// before can live.
func TestFoundersEnd(t *testing.T) {
	for _, uncontested := range []bool{false, true} {
		a := NewAgreement(Config{Rank: 1, Size: 2, Epoch: 3, Founders: NewSet(2, 0), MinSize: 1,
			Patience: 1, Uncontested: uncontested})
		a.Step(Begin{})
		decides := false
		for _, action := range a.Step(Lost{Peer: 0, Evidence: Proof}) {
			_, decided := action.(Decided)
			decides = decides || decided
		}
		if decides != uncontested {
			t.Errorf("uncontested %v: decides is %v", uncontested, decides)
		}
	}
}
