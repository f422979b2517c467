package membership

import (
	"bytes"
	"math"
	"reflect"
	"strconv"
	"strings"
	"testing"
)

// samples are messages of all kinds, of an epoch of ten.
func samples() (all []*Message) {
	joiners := []Joiner{{"here", []byte("one")}, {"there", []byte("another")}}
	v := &Value{Epoch: 8, Nonce: [NonceSize]byte{1, 2}, Survivors: NewSet(10, 0, 3, 9),
		Founders: NewSet(10, 3), Open: true, Joiners: joiners,
		Record: []byte("record")}
	for kind := range kinds {
		m := &Message{Kind: kind, Epoch: 7, Ended: NewSet(10, 1, 8),
			Excluded: NewSet(10, 8), Stable: kind%2 == 0}
		if kind != Call && kind != Decide && kind != Notice {
			m.Ballot = Ballot{2, 3, 9}
		}
		if kind.reports() {
			m.Joiners = joiners
		}
		if kind == Promise {
			m.Suspected, m.State = NewSet(10, 2), []byte("state")
			all = append(all, &Message{Kind: kind, Epoch: 7, Ballot: m.Ballot, Ended: m.Ended,
				Excluded:  m.Excluded,
				Suspected: m.Suspected, State: m.State, Accepted: Ballot{1, 2, 0}, Value: v})
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
	m := &Message{Kind: Promise, Ballot: Ballot{1, math.MaxUint64, MaxMembers - 1}, Ended: all,
		Excluded:  all,
		Suspected: all, Joiners: joiners, State: opaque, Accepted: Ballot{0, 1, 1}, Value: &Value{
			Epoch: 1, Survivors: all, Founders: all, Joiners: joiners, Record: opaque}}
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

// A member that says that more have ended than it names could have its ballots come before those of
// all who know that it has ended.
func TestBallotsThatCannotBe(t *testing.T) {
	m := &Message{Kind: Prepare, Ballot: Ballot{2, 1, 1}, Ended: NewSet(3, 0), Excluded: NewSet(3)}
	if got, err := Decode(m.Encode(), 3); err == nil {
		t.Errorf("one of %v is taken", got)
	}
	// However far a member jumps, and however often, the others' numbers do not end.
	a := NewAgreement(Config{Size: 3, MinSize: 1, Patience: 1})
	a.Step(Begin{})
	for _, attempt := range []uint64{1, 2, reach, reach + 1, 2 * reach, 1 << 63, math.MaxUint64} {
		a.Step(Received{1, &Message{Kind: Refuse, Ballot: Ballot{0, attempt, 2}, Ended: NewSet(3)}})
	}
	a.Step(Tick{})
	a.Step(Tick{})
	if most := a.attempts[0]; most > 2*reach+10 {
		t.Errorf("attempt %d follows", most)
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

// Joiners that come and go are forgotten some time.
func TestGoneJoinersAreForgotten(t *testing.T) {
	a := NewAgreement(Config{Size: 2, MinSize: 1, Patience: 1})
	for i := range 10 * maxGone {
		handle := []byte(strconv.Itoa(i))
		a.Step(Joining{Joiner{Handle: handle}})
		a.Step(Unjoined{Handle: handle})
	}
	if len(a.gone) > maxGone || len(a.joiners) > 0 {
		t.Errorf("%d that have gone are kept, and %d that have not", len(a.gone), len(a.joiners))
	}
}
