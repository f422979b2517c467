package membership

import (
	"math/rand/v2"
	"reflect"
	"testing"
)

// A part that is made late does what one does that has heard all from the beginning: whatever comes
// to the epoch, in whatever order, and whenever the agreements are made.
func TestReplay(t *testing.T) {
	const size = 4
	random := rand.New(rand.NewPCG(3, 4))
	config := func(number uint32) Config {
		return Config{Rank: 1, Size: size, Epoch: number, Founders: NewSet(size, 0, 1, 2), MinSize: 1,
			Patience: 3, Judge: func(map[int][]byte) ([]byte, bool) { return []byte("v"), false }}
	}
	replayed, decided := 0, 0
	for range 5000 {
		var known Known
		live := []*Agreement{NewAgreement(config(0)), NewAgreement(config(1))}
		tell := func(n News) {
			for _, a := range live {
				a.Step(n)
			}
		}
		lost := map[int]Evidence{}
		for range random.IntN(8) {
			switch peer := []int{0, 2, 3}[random.IntN(3)]; random.IntN(4) {
			case 0:
				known.Stable = true
				tell(Stable{})
			case 1:
				handle := []byte{byte(random.IntN(3))}
				known.Joiners = append(known.Joiners, Joiner{Handle: handle, Host: "a"})
				tell(Joining{Joiner: known.Joiners[len(known.Joiners)-1]})
			default:
				e := Evidence(random.IntN(2)) // a suspicion may become a proof
				if e < lost[peer] {
					continue
				}
				lost[peer] = e
				tell(Lost{Peer: peer, Evidence: e})
			}
		}
		for _, peer := range []int{0, 2, 3} {
			if e, ok := lost[peer]; ok {
				known.Lost = append(known.Lost, Lost{Peer: peer, Evidence: e})
			}
		}
		first := Replay(config(0), known)
		known.Before = first
		for number, late := range []*Agreement{first, Replay(config(1), known)} {
			what := []News{Begin{Nonce: [NonceSize]byte{7}, State: []byte("s"), Newcomers: random.IntN(3)},
				Tick{}, Waited{}, Tick{}, Tick{}, Tick{}, Tick{}, Expired{}}
			for i, n := range what {
				want, got := live[number].Step(n), late.Step(n)
				if !reflect.DeepEqual(got, want) {
					t.Fatalf("%+v, agreement %d: %T (%d) has it do %+v, want %+v", known, number, n, i, got, want)
				}
				replayed += len(got)
				for _, a := range got {
					if _, ok := a.(Decided); ok {
						decided++
					}
				}
			}
		}
	}
	if replayed < 1000 || decided < 100 {
		t.Errorf("only %d actions, and %d decisions", replayed, decided)
	}
}

// What the agreement before has heard in it, or was told of it alone, holds in the next one.
func TestReplayFollows(t *testing.T) {
	const size = 5
	config := func(number uint32) Config {
		return Config{Rank: 1, Size: size, Epoch: number, Founders: NewSet(size, 0, 1, 2), MinSize: 1,
			Patience: 3, Judge: func(map[int][]byte) ([]byte, bool) { return nil, false }}
	}
	before := NewAgreement(config(0))
	before.Step(Excluded{Peer: 2})
	before.Step(Received{From: 4, Message: &Message{Kind: Prepare, Stable: true,
		Ended: NewSet(size, 3), Excluded: NewSet(size)}})
	late, live := Replay(config(1), Known{Before: before}), NewAgreement(config(1))
	for _, n := range []News{Excluded{Peer: 2}, Left{Peer: 3}, Stable{}} {
		live.Step(n)
	}
	for name, sets := range map[string][2]Set{"ended": {late.ended, live.ended},
		"excluded": {late.excluded, live.excluded}} {
		if !reflect.DeepEqual(sets[0].Ranks(), sets[1].Ranks()) {
			t.Errorf("%s: %v, want %v", name, sets[0].Ranks(), sets[1].Ranks())
		}
	}
	if !late.stable {
		t.Error("it is not stable")
	}
}
