package goccl_test

import (
	"context"
	"errors"
	"math"
	"testing"
	"time"

	"github.com/goccl/goccl"
)

// A channel between two ranks, of each kind: elements, offsets, handles, maps, errors and contexts.
func TestChannel(t *testing.T) {
	for _, kind := range []goccl.ChannelKind{goccl.MemoryChannel, goccl.PortChannel} {
		t.Run(string(kind), func(t *testing.T) {
			ctx := background(t)
			comms := world(t, 2, goccl.Config{})
			board, err := goccl.Alloc[float64](100)
			if err != nil {
				t.Fatal(err)
			}
			defer goccl.Free(board)
			clear(board)
			mine, err := goccl.Register(comms[1], board[10:], goccl.RemoteRead|goccl.RemoteWrite)
			if err != nil {
				t.Fatal(err)
			}
			handle, err := mine.Export()
			if err != nil {
				t.Fatal(err)
			}
			theirs, err := comms[0].Import(1, handle)
			if err != nil {
				t.Fatal(err)
			}
			a, err := comms[0].Channel(1, 4, kind)
			if err != nil {
				t.Fatal(err)
			}
			b, err := comms[1].Channel(0, 4, kind)
			if err != nil {
				t.Fatal(err)
			}
			if err := goccl.PutSignal(a, theirs, 5, []float64{1, 2, 3}, 2); err != nil {
				t.Fatal(err)
			}
			if err := b.Wait(ctx, 2); err != nil {
				t.Fatal(err)
			}
			if err := same("board", board[15:18], []float64{1, 2, 3}); err != nil {
				t.Fatal(err)
			}
			got := make([]float64, 2)
			if err := goccl.Get(a, got, theirs, 6); err != nil {
				t.Fatal(err)
			}
			if err := a.Flush(ctx); err != nil {
				t.Fatal(err)
			}
			if err := same("got", got, []float64{2, 3}); err != nil {
				t.Fatal(err)
			}
			if a.Kind() != kind || a.Peer() != 1 || a.Tag() != 4 {
				t.Errorf("it is a %s channel to %d with tag %d", a.Kind(), a.Peer(), a.Tag())
			}
			mapped, err := goccl.Map[float64](theirs)
			if err != nil || len(mapped) != 90 || mapped[5] != 1 {
				t.Errorf("mapped %d, %v", len(mapped), err)
			}

			soon, cancel := context.WithTimeout(ctx, time.Millisecond)
			defer cancel()
			if err := a.Wait(soon, 1); !errors.Is(err, goccl.ErrTimeout) ||
				!errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("a wait with a deadline: %v", err)
			}
			canceled, cancel := context.WithCancel(ctx)
			time.AfterFunc(time.Millisecond, cancel)
			if err := a.Wait(canceled, 1); !errors.Is(err, goccl.ErrAborted) ||
				!errors.Is(err, context.Canceled) {
				t.Errorf("a wait that is canceled: %v", err)
			}
			if err := b.Signal(1); err != nil {
				t.Error(err)
			}
			if err := a.Wait(ctx, 1); err != nil {
				t.Errorf("the wait after these: %v", err)
			}
			for name, err := range map[string]error{
				"past the end": goccl.Put(a, theirs, 89, []float64{1, 2}),
				"negative":     goccl.Put(a, theirs, -1, []float64{1}),
				"far":          goccl.Put(a, theirs, math.MaxInt, []float64{1}),
				"signal":       a.Signal(0),
			} {
				if !errors.Is(err, goccl.ErrInvalidArgument) {
					t.Errorf("%s: %v", name, err)
				}
			}
			if _, err := goccl.Register(comms[0], make([]int32, 8), goccl.RemoteRead); !errors.Is(err,
				goccl.ErrInvalidArgument) {
				t.Errorf("ordinary memory: %v", err)
			}
			mine.Deregister()
			err = goccl.Put(a, theirs, 0, []float64{1})
			if err == nil {
				err = a.Flush(ctx)
			}
			if !errors.Is(err, goccl.ErrInvalidHandle) {
				t.Errorf("memory that is no more: %v", err)
			}
			if taken, err := a.Poll(1); taken || err != nil {
				t.Errorf("polled: %v, %v", taken, err)
			}
			_ = a.Close()
			if err := b.Wait(ctx, 1); !errors.Is(err, goccl.ErrAborted) {
				t.Errorf("the peer has closed: %v", err)
			}
		})
	}
}

// An exchange that one rank is refused gives none any memory.
func TestExchangeIsRefused(t *testing.T) {
	comms := world(t, 2, goccl.Config{})
	others := world(t, 1, goccl.Config{})
	board, err := goccl.Alloc[int8](100)
	if err != nil {
		t.Fatal(err)
	}
	defer goccl.Free(board)
	foreign, err := goccl.Register(others[0], board, goccl.RemoteRead)
	if err != nil {
		t.Fatal(err)
	}
	errs := try(2, func(rank int) error {
		m := foreign
		if rank == 1 {
			m = nil
		}
		_, err := comms[rank].Exchange(background(t), m)
		return err
	})
	if !errors.Is(errs[0], goccl.ErrInvalidArgument) || !errors.Is(errs[1], goccl.ErrMismatch) {
		t.Fatal(errs)
	}
	all(t, 2, func(rank int) error {
		memories, err := comms[rank].Exchange(background(t), nil)
		if err == nil && (memories[0] != nil || memories[1] != nil) {
			t.Error("memory that nobody has given")
		}
		return err
	})
}
