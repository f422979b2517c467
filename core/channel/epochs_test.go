package channel

import (
	"testing"
	"unsafe"
)

// Memory that is deregistered in a later epoch is not allocated again while peers may still be in a
// copy of an earlier one. The end of the earlier one undoes nothing that peers of the later one
// must answer.
func TestMemoryOutlivesEpochs(t *testing.T) {
	for _, reached := range []bool{false, true} {
		w, _, _, _ := opened01(t, false)
		r := w.ranks[0]
		old := r.Engine
		r.Engine = New(old.Config, r)
		r.UseLinks(r)
		if reached {
			r.open(1, 0, "") // of the later epoch
		}
		clear(w.links)
		r.own.Deregister()
		w.run()
		if asked := len(w.links[way{0, 1}]) > 0; asked != reached {
			t.Errorf("reached: %v, asked: %v", reached, asked)
		}
		if err := r.arena.Free(unsafe.Pointer(unsafe.SliceData(r.block))); err != nil {
			t.Fatal(err)
		}
		allocated := func() bool {
			p, err := r.arena.Alloc(int64(len(r.block)))
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = r.arena.Free(p) }()
			return p == unsafe.Pointer(unsafe.SliceData(r.block))
		}
		if allocated() {
			t.Errorf("reached: %v: allocated again while an epoch's peers may write there", reached)
		}
		old.Free()
		if left := len(r.own.waiting.peers); reached && left != 1 {
			t.Errorf("%d peers have to answer", left)
		}
		r.arena.Reclaim(r.own.at, room) // the epoch's window is mapped by nobody
		if got := allocated(); got == reached {
			t.Errorf("reached: %v, allocated again: %v", reached, got)
		}
		// What the world frees:
		p, err := r.arena.Alloc(1)
		if err != nil {
			t.Fatal(err)
		}
		r.block = unsafe.Slice((*byte)(p), 1)
	}
}

// So it is with copies of this rank to itself.
func TestOwnCopiesOutliveEpochs(t *testing.T) {
	r := joinWorld(t, 1, false).ranks[0]
	r.open(0, 0, "")
	old := r.Engine
	r.Engine = New(old.Config, r)
	r.UseLinks(r)
	r.own.Deregister()
	block := unsafe.Pointer(unsafe.SliceData(r.block))
	if err := r.arena.Free(block); err != nil {
		t.Fatal(err)
	}
	p, err := r.arena.Alloc(int64(len(r.block)))
	if err != nil || p == block {
		t.Errorf("allocated again while a thread of this rank may write there: %v", err)
	}
	old.Free()
	r.block = unsafe.Slice((*byte)(p), 1) // which the world frees
}
