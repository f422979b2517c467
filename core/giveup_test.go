package core

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/internal/polltest"
	"github.com/goccl/goccl/core/plan"
)

// Destroy ends calls that wait for other ranks, which do not come.
func TestDestroyEndsWhatWaits(t *testing.T) {
	ctx := context.Background()
	calls := map[string]func(*Comm) error{
		"renew":   func(c *Comm) error { return c.Renew(ctx) },
		"recover": func(c *Comm) error { return c.Recover(ctx) },
		"agree": func(c *Comm) error {
			_, err := c.Agree(ctx, 1)
			return err
		},
		"shrink": func(c *Comm) error {
			_, err := c.Shrink(ctx, ShrinkOptions{})
			return err
		},
		"grow":            func(c *Comm) error { return c.Grow(ctx, 1) },
		"checkpoint":      func(c *Comm) error { return c.CheckPoint(ctx, nil, nil, 0) },
		"load checkpoint": func(c *Comm) error { _, err := c.LoadCheckPoint(ctx); return err },
		"split":           func(c *Comm) error { _, err := c.Split(ctx, 0, 0); return err },
		"monitored barrier": func(c *Comm) error {
			return run(c, Operation{Collective: plan.MonitoredBarrier})
		},
	}
	for name, call := range calls {
		t.Run(name, func(t *testing.T) {
			w := newWorldOf(t, "tcp", 2, Config{Timeout: time.Hour})
			c := w.comms[0]
			done := make(chan error, 1)
			go func() { done <- call(c) }()
			polltest.Until(t, "the call waits for others", func() bool {
				return decides(c) || !queueOf(c).Empty()
			})
			destroyed := make(chan struct{})
			go func() {
				c.Destroy()
				close(destroyed)
			}()
			select {
			case err := <-done:
				if !errors.Is(err, fault.ErrAborted) {
					t.Errorf("the call ended with %v", err)
				}
				<-destroyed
			case <-time.After(patience):
				t.Fatal("the call still waits")
			}
		})
	}
}

// Abort and Destroy end what a rank does to recover by itself, and the calls that wait for that.
func TestEndOfRecovery(t *testing.T) {
	for name, end := range map[string]func(*Comm){
		"abort": func(c *Comm) { c.Abort("test") }, "destroy": (*Comm).Destroy} {
		t.Run(name, func(t *testing.T) {
			w := newWorldOf(t, "tcp", 3, Config{Timeout: time.Hour, Recovery: RecoverySurvivors})
			c, silent := w.comms[0], w.comms[2]
			silent.changing.Lock()
			defer silent.changing.Unlock()
			held, err := c.Start(CallOptions{}, allReduce(t, 1))
			if err != nil {
				t.Fatal(err)
			}
			w.endFor(0, 1)
			awaitFailure(c)
			done := make(chan error, 1)
			op := allReduce(t, 1)
			go func() {
				_, err := c.Start(CallOptions{}, op)
				done <- err
			}()
			polltest.Until(t, "the call waits for the recovery",
				func() bool { return anyBlockedIn("(*Comm).awaitNext(") })
			polltest.Until(t, "the recovery waits for others", func() bool { return decides(c) })
			end(c)
			select {
			case err := <-done:
				if !errors.Is(err, fault.ErrAborted) {
					t.Errorf("the call was refused with %v", err)
				}
			case <-time.After(patience):
				t.Fatal("the call still waits")
			}
			if _, err := held.Wait(-1); !errors.Is(err, fault.ErrAborted) {
				t.Errorf("the work has ended with %v", err)
			}
		})
	}
}

// A communicator whose Destroy has begun, but has not failed it yet, has no next epoch.
func TestNothingFollowsDestroy(t *testing.T) {
	c := newWorldOf(t, "tcp", 2, Config{}).comms[0]
	life, end := context.WithCancelCause(c.shared.Life)
	c.shared.Life = life
	end(now(c).Destroyed())
	for name, err := range map[string]error{"recover": c.Recover(context.Background()),
		"renew": c.Renew(context.Background())} {
		if !errors.Is(err, fault.ErrAborted) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
