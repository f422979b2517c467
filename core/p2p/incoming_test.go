package p2p

import (
	"errors"
	"math"
	"testing"
	"time"

	"github.com/goccl/goccl/core/exec"
	"github.com/goccl/goccl/core/transport"
)

// A CTS for what was not offered to its sender moves nothing, and data that was not accepted breaks
// the protocol.
func TestClearToSendIsChecked(t *testing.T) {
	const n = 1 << 20 // elements
	w := join(t, byLinks, 3)
	w.queued = true
	first := w.ranks[0].start(sendOp(buffer(t, n), 1, 0), time.Minute)
	other := w.ranks[0].start(sendOp(buffer(t, n), 2, 0), time.Minute)
	receive := w.ranks[1].start(recvOp(buffer(t, n), 0, 0), time.Minute)
	w.ranks[1].pass(0) // the RTS
	w.ranks[0].pass(1) // the CTS: data is to be sent
	for _, c := range []struct{ src, id int }{
		{1, 1}, // again
		{2, 1}, // another's
		{1, 2},
		{1, 3}, // none
	} {
		h := transport.Header{Type: FrameCTS, Seq: uint64(c.id)}
		if err := w.ranks[0].Control(c.src, h, nil); err != nil {
			t.Errorf("%+v: %v", c, err)
		}
	}
	w.run()
	if sent := len(w.frames[1][0]); sent != 1 || len(w.frames[2][0]) != 1 {
		t.Errorf("%d frames of data go", sent)
	}
	if first.Ended() == other.Ended() {
		t.Error("the other send has ended")
	}
	for _, c := range []struct {
		id, from uint64
		bytes    uint32
	}{
		{1, 0, 0}, {1, 0, 4*n + 4}, {1, 4, 4}, {1, math.MaxUint64, 4}, {2, 0, 4},
	} {
		h := transport.Header{Type: transport.Data, Flags: LargeSend, Seq: c.id,
			Arg: [2]uint64{c.from}, Bytes: c.bytes}
		if _, err := w.ranks[1].Slot(0, h); !errors.Is(err, exec.ErrProtocol) {
			t.Errorf("%+v: %v", c, err)
		}
	}
	w.ranks[1].pass(0)
	wait(t, "receive", receive)
}
