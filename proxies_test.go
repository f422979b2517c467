package goccl_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/goccl/goccl"
)

// A proxy of each kind of channel: puts, gets, positions, errors and contexts.
func TestProxy(t *testing.T) {
	for _, kind := range []goccl.ChannelKind{goccl.MemoryChannel, goccl.PortChannel} {
		t.Run(string(kind), func(t *testing.T) {
			ctx := background(t)
			comms := world(t, 2, goccl.Config{})
			var memory, channels = [2]*goccl.Memory{}, [2]*goccl.Channel{}
			var boards [2][]int32
			for rank, c := range comms {
				board, err := goccl.Alloc[int32](100)
				if err != nil {
					t.Fatal(err)
				}
				defer goccl.Free(board)
				clear(board)
				boards[rank] = board
				both := goccl.RemoteRead | goccl.RemoteWrite
				if memory[rank], err = goccl.Register(c, board, both); err != nil {
					t.Fatal(err)
				}
				if channels[rank], err = c.Channel(1-rank, 4, kind); err != nil {
					t.Fatal(err)
				}
			}
			handle, err := memory[1].Export()
			if err != nil {
				t.Fatal(err)
			}
			theirs, err := comms[0].Import(1, handle)
			if err != nil {
				t.Fatal(err)
			}
			p, err := comms[0].NewProxy(64)
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
			copy(boards[0], []int32{1, 2, 3})
			put := goccl.Trigger{Op: goccl.TriggerPut | goccl.TriggerSignal, Channel: channels[0],
				Signals: 2, Dst: theirs, DstOffset: 40, Src: memory[0], Bytes: 12}
			first, err := p.Push(ctx, put)
			if err != nil || first != 0 {
				t.Fatal(first, err)
			}
			if err := channels[1].Wait(ctx, 2); err != nil {
				t.Fatal(err)
			}
			if err := same("board", boards[1][10:13], []int32{1, 2, 3}); err != nil {
				t.Fatal(err)
			}
			get := goccl.Trigger{Op: goccl.TriggerGet | goccl.TriggerFlush, Channel: channels[0],
				Dst: memory[0], DstOffset: 80, Src: theirs, SrcOffset: 40, Bytes: 12}
			position, err := p.Push(ctx, get)
			if err := errors.Join(err, p.Wait(ctx, position)); err != nil {
				t.Fatal(err)
			}
			if err := same("board", boards[0][20:23], []int32{1, 2, 3}); err != nil {
				t.Fatal(err)
			}
			unmet, err := comms[0].Channel(1, 5, kind)
			if err != nil {
				t.Fatal(err)
			}
			held, err := p.Push(ctx, goccl.Trigger{Op: goccl.TriggerSignal, Signals: 1, Channel: unmet})
			if err != nil {
				t.Fatal(err)
			}
			// When one behind it is done the proxy has taken it.
			behind, err := p.Push(ctx,
				goccl.Trigger{Op: goccl.TriggerSignal, Signals: 1, Channel: channels[0]})
			if err := errors.Join(err, p.Wait(ctx, behind)); err != nil {
				t.Fatal(err)
			}
			soon, cancel := context.WithTimeout(ctx, time.Millisecond)
			defer cancel()
			if err := p.Wait(soon, held); !errors.Is(err, goccl.ErrTimeout) {
				t.Errorf("wait: %v", err)
			}
			if err := p.Stop(soon); !errors.Is(err, goccl.ErrTimeout) {
				t.Errorf("stop: %v", err)
			}
			unmet.Close()
			err = p.Stop(ctx)
			if !errors.Is(err, goccl.ErrAborted) || !strings.Contains(err.Error(), "trigger 2: ") {
				t.Errorf("stop: %v", err)
			}
			if _, err := p.Push(ctx, goccl.Trigger{}); !errors.Is(err, goccl.ErrAborted) {
				t.Errorf("push: %v", err)
			}
		})
	}
}
