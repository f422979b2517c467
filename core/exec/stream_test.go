package exec

import (
	"testing"
	"time"
	"unsafe"

	"github.com/goccl/goccl/core/plan"
)

// Both ways are measured, or neither, and the answer stays.
func TestStreamsAreMeasured(t *testing.T) {
	cached, streamed := streamTimes()
	if cached < 0 || streamed < 0 || (cached == 0) != (streamed == 0) || cached > time.Minute {
		t.Errorf("a copy takes %v, a streamed one %v", cached, streamed)
	}
	t.Logf("a copy takes %v, a streamed one %v", cached, streamed)
	if first := FastStreams(); first != FastStreams() {
		t.Error("it changes")
	}
}

// Where streams gain nothing, what is put to a peer goes by way of the caches.
func TestSlowStreamsAreNotUsed(t *testing.T) {
	const bytes = 64 << 10
	for _, slowly := range []bool{false, true} {
		lanes := meshOf(t, 2, Layout{Ranks: 2, Lanes: 1, Slots: 4, Chunk: 256 << 10})
		steer(lanes[0], 1, 9)
		streamSlowly(slowly)
		p := plan.Params{Collective: plan.Send, Size: 2, Root: 1, InBytes: []int64{bytes}, ElemSize: 1,
			Chunk: 256 << 10, Slots: 4, Memory: true}
		play(t, lanes[0], p, Binding{In: []unsafe.Pointer{off(t, bytes)}})
		streamSlowly(false)
		if streamed := lanes[0].channels[1].writer.course[1] < 9; streamed == slowly {
			t.Errorf("streams gain nothing %v, one is used %v", slowly, streamed)
		}
	}
}
