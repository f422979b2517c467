package exec

import (
	"bytes"
	"math/rand/v2"
	"testing"
	"unsafe"

	"github.com/goccl/goccl/core/plan"
)

// What is put is what comes, of any length and alignment, whether it is written by way of the
// caches, past them, or so that this is measured.
func TestPutsAreWrittenAlike(t *testing.T) {
	const room = 300 << 10
	lanes := meshOf(t, 2, Layout{Ranks: 2, Lanes: 1, Slots: 4, Chunk: 256 << 10})
	from, to := off(t, room), off(t, room)
	in, out := unsafe.Slice((*byte)(from), room), unsafe.Slice((*byte)(to), room)
	for i := range in {
		in[i] = byte(1 + i%251)
	}
	for _, n := range []int{1, 64, 4095, 4096, 4097, 16<<10 - 1, 16 << 10, 16<<10 + 1, 128<<10 - 63,
		128 << 10, 200<<10 + 77} {
		for _, at := range []int{0, 1, 63, 75} {
			for _, writes := range []int{0, 2, -2} { // the first is measured, or is to be streamed, or not
				steer(lanes[0], 1, writes)
				clear(out)
				for rank, b := range []Binding{{In: []unsafe.Pointer{unsafe.Add(from, at)}},
					{Out: []unsafe.Pointer{unsafe.Add(to, 100-at)}}} {
					p := plan.Params{Collective: plan.Send, Size: 2, Root: 1, InBytes: []int64{int64(n)},
						ElemSize: 1, Chunk: 256 << 10, Slots: 4, Memory: true}
					if rank == 1 {
						p.Collective, p.Rank, p.Root, p.InBytes, p.OutBytes = plan.Recv, 1, 0, nil, p.InBytes
					}
					play(t, lanes[rank], p, b)
				}
				want := make([]byte, room)
				copy(want[100-at:], in[at:][:n])
				if !bytes.Equal(out, want) {
					t.Errorf("%d bytes at %d, course %d", n, at, writes)
				}
			}
		}
	}
}

// steer has so many writes to a peer, of each class of lengths, go past the caches, or, below 0, by
// way of them.
func steer(l *Lane, peer, writes int) {
	streamSlowly(false)
	course := &l.channels[peer].writer.course
	for i := range course {
		*(*int32)(unsafe.Pointer(&course[i])) = int32(writes)
	}
}

// play runs a plan that does not have to wait.
func play(t *testing.T, l *Lane, p plan.Params, b Binding) {
	t.Helper()
	built, err := plan.Build(p)
	if err != nil {
		t.Fatal(err)
	}
	c, r := must(Compile(built, false, false)), must(NewRun(l))
	defer c.Free()
	defer r.Free()
	r.Bind(b)
	r.Begin(c, 0)
	if s := r.Continue(soon()); s != Done {
		t.Fatalf("status %d", s)
	}
}

// Lines that come back with what a peer has left there are this rank's: what is put there goes by
// way of the caches.
func TestSwapsAreNotStreamed(t *testing.T) {
	const bytes = 64 << 10
	for swapMin, want := range map[int64]bool{0: true, 1: false} {
		lanes := meshOf(t, 2, Layout{Ranks: 2, Lanes: 1, Slots: 4, Chunk: 256 << 10})
		plans, params := make([]*plan.Plan, 2), make([]plan.Params, 2)
		for r := range params {
			steer(lanes[r], 1-r, 9)
			blocks := []int64{bytes, bytes}
			params[r] = plan.Params{Collective: plan.AllToAll, Algorithm: plan.Linear, Rank: r, Size: 2,
				InBytes: blocks, OutBytes: blocks, ElemSize: 1,
				Chunk: 256 << 10, Slots: 4, Memory: true, Thresholds: plan.Thresholds{SwapMin: swapMin}}
			var err error
			if plans[r], err = plan.Build(params[r]); err != nil {
				t.Fatal(err)
			}
		}
		carryAll(t, lanes, plans, params, rand.New(rand.NewPCG(1, 2)), func() {}, func(int, *Binding) {})
		for r, l := range lanes {
			if streamed := l.channels[1-r].writer.course[1] < 9; streamed != want {
				t.Errorf("swapped from %d bytes on: rank %d streamed %v", swapMin, r, streamed)
			}
		}
	}
}
