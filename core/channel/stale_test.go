package channel

import (
	"bytes"
	"errors"
	"testing"
	"unsafe"

	"github.com/goccl/goccl/core/fault"
)

// Memory that its owner has deregistered stays so for those who have imported it, whatever is
// allocated and registered where the word was that told them of it.
func TestStaleImport(t *testing.T) {
	w, _, peer, theirs := opened01(t, false)
	r := w.ranks[0]
	if err := peer.Put(theirs, 0, []byte("before"), 0); err != nil {
		t.Fatal(err)
	}
	r.own.Deregister()
	w.settle()
	clear(r.block)
	word := func() unsafe.Pointer {
		p, err := r.arena.Alloc(aliveBytes)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	refused := func(what string) {
		t.Helper()
		if err := peer.Put(theirs, 0, []byte("after"), 0); !errors.Is(err, fault.ErrInvalidHandle) {
			t.Errorf("%s: %v", what, err)
		}
		if bytes.Contains(r.block, []byte("after")) {
			t.Fatalf("%s: memory has changed", what)
		}
	}
	refused("deregistered")
	again, err := r.Memories.Register(unsafe.Pointer(&r.block[0]), beside, both)
	if err != nil {
		t.Fatal(err)
	}
	refused("another one is registered")
	again.Deregister()
	w.settle()
	for range 4 {
		copy(unsafe.Slice((*byte)(word()), aliveBytes), bytes.Repeat([]byte{1}, aliveBytes))
		refused("its place was allocated again")
	}
}
