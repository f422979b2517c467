package channel

import (
	"errors"
	"runtime"
	"testing"
	"unsafe"

	"github.com/goccl/goccl/core/fault"
)

// Each loss is told to the flushes that are for what was lost, and to no others.
func TestLosses(t *testing.T) {
	work := func(number, before uint64) flushing { return flushing{number: number, puts: &before} }
	all := func(number uint64) flushing { return flushing{number: number} }
	for name, test := range map[string]struct {
		after, by uint64 // of the loss
		begun     uint64
		flushes   []flushing // that look one after the other
		told      []bool
	}{
		"works in order": {1, 2, 4, []flushing{work(1, 0), work(3, 2), work(2, 1), work(4, 3)},
			[]bool{false, false, true, false}},
		"another flush tells it": {0, 1, 2, []flushing{work(2, 0), all(1)},
			[]bool{true, true}},
		"a later one comes first": {0, 2, 2, []flushing{work(1, 0)},
			[]bool{true}},
		"threads side by side": {0, 1, 2, []flushing{all(2), all(1), all(3)},
			[]bool{true, true, false}},
		"a get": {0, 0, 1, []flushing{work(1, 0), all(1), all(2)},
			[]bool{false, true, false}},
	} {
		t.Run(name, func(t *testing.T) {
			var s losses
			err := fault.Errorf(fault.ErrInvalidHandle, "test")
			s.add(loss{after: test.after, by: test.by, err: err}, test.after)
			for i, f := range test.flushes {
				if told := s.tell(f, test.begun) != nil; told != test.told[i] {
					t.Errorf("flush %d is told: %v", f.number, told)
				}
			}
		})
	}
}

// What was told is forgotten, and gets that nobody flushes are one loss.
func TestLossesAreBounded(t *testing.T) {
	var s losses
	err := fault.Errorf(fault.ErrInvalidHandle, "test")
	for number := uint64(1); number < 4*mostLosses; number++ {
		s.add(loss{err: err}, number-1)
		s.add(loss{err: err}, number-1)
		s.add(loss{after: number - 1, by: number, err: err}, number-1)
		if s.tell(flushing{number: number}, number) == nil {
			t.Fatal("a loss is not told")
		}
	}
	if len(s) > mostLosses+1 {
		t.Errorf("%d losses are kept", len(s))
	}
}

// Of puts in the background that which is lost ends with the error, and no other one.
func TestLostPutOfSeveral(t *testing.T) {
	w := joinWorld(t, 2, true)
	r, owner := w.ranks[0], w.ranks[1]
	c := r.open(1, 0, "")
	owner.open(0, 0, "")
	w.settle()
	gone, err := owner.Memories.Register(unsafe.Pointer(&owner.block[0]), beside, both)
	if err != nil {
		t.Fatal(err)
	}
	lost, good := r.imported(gone, 1), r.imported(owner.own, 1)
	gone.Deregister()
	const puts, bad = 5, 2
	src := make([]byte, 8)
	ends := make([]chan error, puts)
	for i := range ends {
		ends[i] = make(chan error, 1)
		its := good
		if i == bad {
			its = lost
		}
		put := c.PutLater(its, 0, unsafe.Pointer(&src[0]), 8, 0, 0)
		go func() { ends[i] <- put() }()
	}
	for i, end := range ends {
		for done := false; !done; {
			select {
			case err := <-end:
				if failed := errors.Is(err, fault.ErrInvalidHandle); failed != (i == bad) {
					t.Errorf("put %d: %v", i, err)
				}
				done = true
			default:
				w.settle()
				runtime.Gosched()
			}
		}
	}
	w.correct()
}
