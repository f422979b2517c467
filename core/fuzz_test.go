package core

import (
	"bytes"
	"context"
	"errors"
	"os"
	"testing"
	"time"
	"unsafe"

	"github.com/goccl/goccl/core/address"
	"github.com/goccl/goccl/core/bootstrap"
	"github.com/goccl/goccl/core/config"
	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/internal/printable"
	"github.com/goccl/goccl/core/order"
	"github.com/goccl/goccl/core/p2p"
	"github.com/goccl/goccl/core/plan"
	"github.com/goccl/goccl/core/reduce"
	"github.com/goccl/goccl/core/transport"
)

// FuzzControl gives a communicator a frame of a peer, twice, while it waits for that peer. Whatever
// the frame says, the works end: in success, or with an error that tells something.
func FuzzControl(f *testing.F) {
	const tag = 3
	dtype := uint64(reduce.Int32)
	f.Add(transport.Data, uint8(p2p.EagerSend), uint64(0), tag<<8|dtype, uint64(0), []byte("12345678"))
	f.Add(transport.Data, uint8(collectiveLane), uint64(0), uint64(0), uint64(0), make([]byte, 100))
	f.Add(p2p.FrameRTS, uint8(0), uint64(1), tag<<8|dtype, uint64(8), []byte{})
	f.Add(p2p.FrameCTS, uint8(0), uint64(1), uint64(0), uint64(0), []byte{})
	f.Add(p2p.FrameReject, uint8(0), uint64(1), uint64(0), uint64(0), []byte("not this"))
	f.Add(p2p.FrameRTS, uint8(0), uint64(1), tag<<8|dtype, uint64(8), []byte("anywhere"))
	f.Add(p2p.FrameFIN, uint8(0), uint64(1), uint64(0), uint64(0), []byte{})
	f.Add(p2p.FrameCredit, uint8(0), uint64(0), uint64(1), uint64(0), []byte{})
	f.Add(frameFail, uint8(1), uint64(0), uint64(0), uint64(0), []byte("text"))
	f.Add(frameFail, uint8(1), uint64(0), uint64(0), uint64(0),
		bytes.Repeat([]byte("\x1b[2J\n\xff"), transport.MaxControl/6))
	f.Add(p2p.FrameReject, uint8(0), uint64(1), uint64(0), uint64(0), []byte("\x1b]0;title\a\n\u202e"))
	f.Add(frameAnnounce, uint8(0), uint64(0), uint64(0), uint64(0), order.Encode(plan.Message{Count: 5,
		Root: -1, Sequence: 1}))
	f.Add(frameLook, uint8(0), uint64(0), uint64(0), uint64(0), []byte{})
	f.Add(frameReport, uint8(0), uint64(0), uint64(0), uint64(0), []byte(`{"call": {"peer": 1}}`))
	f.Fuzz(func(t *testing.T, kind, flags uint8, seq, a, b uint64, payload []byte) {
		if kind != transport.Data && kind < transport.ControlBase || len(payload) > transport.MaxControl {
			t.Skip("not let through by a link")
		}
		w := newWorldOf(t, "mem", 2, Config{Timeout: time.Minute, Thresholds: "send_get_min=1"})
		c := w.comms[0]
		var works []*Work
		for _, op := range []Operation{
			{Collective: plan.Recv, DType: reduce.Int32, Root: 1, Tag: tag,
				Out: []unsafe.Pointer{ptr(buffer(t, 2))}, OutCounts: []uint64{2}},
			{Collective: plan.Send, DType: reduce.Int32, Root: 1,
				In: []unsafe.Pointer{ptr(buffer(t, 1<<20))}, InCounts: []uint64{1 << 20}},
		} {
			work, err := c.Start(CallOptions{}, op)
			if err != nil {
				t.Fatal(err)
			}
			works = append(works, work)
		}
		h := transport.Header{Type: kind, Flags: flags, Bytes: uint32(len(payload)), Seq: seq,
			Arg: [2]uint64{a, b}}
		for range 2 {
			if h.Type != transport.Data {
				handlerOf(c).Control(1, h, payload)
			} else if head, body, err := handlerOf(c).Slot(1, h); err == nil {
				n := copy(head, payload)
				if n += copy(body, payload[n:]); n != len(payload) {
					t.Fatalf("%d of %d bytes have a place", n, len(payload))
				}
				handlerOf(c).Arrived(1, h)
			}
		}
		c.Destroy()
		for _, work := range works {
			done, err := work.Wait(time.Minute)
			if !done || err != nil && err.Error() == "" {
				t.Fatal(done, err)
			}
			if err != nil && printable.Text(err.Error(), 2*fault.MaxText) != err.Error() {
				t.Fatalf("a text for a terminal: %q", err)
			}
		}
	})
}

// FuzzMember reads what another rank says of itself.
func FuzzMember(f *testing.F) {
	a := address.Address{Process: address.ProcessID{1}, PID: 7, Name: "a", Host: "h", Unix: "@x",
		TCP: []string{"127.0.0.1:1"}}
	own, shared, err := a.Encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(own, shared)
	f.Fuzz(func(t *testing.T, own, shared []byte) {
		if max(len(own), len(shared)) > bootstrap.MaxMember {
			t.Skip("not let through by a roster")
		}
		store := bootstrap.NewMemStore()
		joined := make(chan error, 1)
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		go func() {
			c, err := Config{Rank: 1, Size: 2, Store: store}.Complete(config.ReadEnvironment(os.Getenv))
			if err != nil {
				joined <- err
				return
			}
			join := c.JoinConfig()
			join.Member = bootstrap.Member{Own: own, Shared: shared}
			_, err = bootstrap.Join(ctx, store, join)
			joined <- err
		}()
		r := NewRuntime(RuntimeConfig{})
		defer r.Close()
		c, err := r.Init(ctx, Config{Rank: 0, Size: 2, Store: store, Timeout: time.Minute})
		if joinErr := <-joined; !errors.Is(joinErr, bootstrap.ErrUnfit) == (err != nil) {
			t.Fatalf("rank 0: %v, rank 1: %v", err, joinErr)
		}
		if err != nil {
			return
		}
		if kind := c.Transport(1); kind != "shm" && kind != "tcp" {
			t.Fatalf("joined by %q", kind)
		}
		c.Abort("seen enough") // nobody is there to part from in good order
		c.Destroy()
	})
}
