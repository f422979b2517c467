package agreement

import (
	"testing"

	"github.com/goccl/goccl/core/completion"
	"github.com/goccl/goccl/core/membership"
)

// FuzzRecord reads what a member has made of the reports of all: nothing that follows from it may
// be out of bounds.
func FuzzRecord(f *testing.F) {
	state := Proposal{Operation: "recover", Progress: completion.Progress{Finished: 3,
		Has: []completion.Result{{Sequence: 3, Bytes: 8}}}}
	lags := Proposal{Operation: "agree", Progress: completion.Progress{Finished: 2}}
	decided, _ := judge(map[int][]byte{0: state.encode(), 2: lags.encode()}, 0)
	f.Add(decided, state.encode())
	f.Add([]byte(`{"Calls":{"7":"agree"},"Fetch":[{"Bytes":18446744073709551615,"From":1}]}`),
		lags.encode())
	f.Fuzz(func(t *testing.T, text, state []byte) {
		survivors := membership.NewSet(3, 0, 2)
		made, _ := judge(map[int][]byte{0: state, 2: state}, 0)
		for _, record := range [][]byte{text, made} {
			v, err := readRecord(&membership.Value{Survivors: survivors, Record: record}, 3)
			if err != nil {
				continue
			}
			for _, fetch := range v.Fetch {
				if !survivors.Has(fetch.From) || fetch.Bytes > completion.MaxBytes {
					t.Errorf("%+v is let through", fetch)
				}
			}
			for rank := range v.Calls {
				if rank < 0 || rank > 2 {
					t.Errorf("a call of rank %d is let through", rank)
				}
			}
		}
	})
}
