package channel

import (
	"errors"
	"math"
	"testing"

	"github.com/goccl/goccl/core/fault"
)

// A count that is full refuses signals at the call, whatever carries them.
func TestSignalsAreFull(t *testing.T) {
	for _, ports := range []bool{false, true} {
		w, _, peer, theirs := opened01(t, ports)
		if err := peer.Signal(math.MaxUint64 - 1); err != nil {
			t.Fatal(err)
		}
		for name, err := range map[string]error{
			"signal": peer.Signal(2), "put": peer.Put(theirs, 0, []byte{1}, 2),
		} {
			if !errors.Is(err, fault.ErrInvalidArgument) {
				t.Errorf("ports: %v, %s: %v", ports, name, err)
			}
		}
		if err := peer.Put(theirs, 0, nil, 1); err != nil {
			t.Error(err)
		}
		w.settle()
		w.correct()
	}
}
