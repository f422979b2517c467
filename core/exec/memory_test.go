package exec

import (
	"errors"
	"slices"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/goccl/goccl/core/plan"
)

// must returns what was made. That there is memory for it goes without saying.
func must[T any](made T, err error) T {
	if err != nil {
		panic(err)
	}
	return made
}

// Whatever cannot be allocated is an error, and all that was allocated before it is freed.
func TestMemoryThatCannotBeHad(t *testing.T) {
	original := calloc
	defer func() { calloc = original }()
	built := must(plan.Build(plan.Params{Collective: plan.AllReduce, Algorithm: plan.TwoShot, Size: 2,
		ElemSize: 4,
		InBytes:  []int64{4096}, OutBytes: []int64{4096}, Chunk: 1024, Slots: 4, Memory: true}))
	layout := Layout{Ranks: 2, Lanes: 2, Slots: 4, Chunk: 1024, Mailbox: MailboxFor(256),
		Bounce: BounceFor(256)}
	// all makes one of each, as a communicator does.
	all := func() error {
		w, err := NewWindow(layout, 0, false, Waiting{})
		if err != nil {
			return err
		}
		defer w.Close()
		r, err := NewRun(w.Lane(1))
		if err != nil {
			return err
		}
		defer r.Free()
		s, err := NewFastPath(r, 0)
		if err != nil {
			return err
		}
		defer s.Free()
		c, err := Compile(built, true, false)
		if err != nil {
			return err
		}
		defer c.Free()
		block := unsafe.Pointer(w.at(0))
		if err := r.Bind(Binding{In: []unsafe.Pointer{block}, Out: []unsafe.Pointer{block}}); err != nil {
			return err
		}
		c.Scratch = max(c.Scratch, 1)
		return r.Begin(c, 0)
	}
	for failing := 0; ; failing++ {
		n := 0
		calloc = func(count, size uintptr) unsafe.Pointer {
			n++
			if n == failing+1 {
				return nil
			}
			return original(count, size)
		}
		switch err := all(); {
		case n <= failing: // it has asked for less
			if err != nil {
				t.Error(err)
			}
			if failing < 12 {
				t.Errorf("only %d allocations were seen", failing)
			}
			return
		case !errors.Is(err, unix.ENOMEM):
			t.Errorf("without allocation %d: %v", failing, err)
		}
	}
}

func TestMoreMemoryThanThereIs(t *testing.T) {
	var a allocator
	if p := alloc[uint64](&a, 1<<60); p != nil || !errors.Is(a.err, unix.ENOMEM) {
		t.Errorf("%v, %v", p, a.err)
	}
	if p := alloc[byte](&a, 1); p != nil {
		t.Error("there is memory after a failure")
	}
	a = allocator{}
	p := alloc[uint64](&a, 3)
	if a.err != nil || !slices.Equal(unsafe.Slice(p, 3), make([]uint64, 3)) {
		t.Error(a.err)
	}
	free(unsafe.Pointer(p), nil)
}
