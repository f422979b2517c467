package core

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/goccl/goccl/core/fault"
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
	}
	for name, call := range calls {
		t.Run(name, func(t *testing.T) {
			w := newWorldOf(t, "tcp", 2, Config{Timeout: time.Hour})
			c := w.comms[0]
			done := make(chan error, 1)
			go func() { done <- call(c) }()
			for c.changing.TryLock() { // until the call has begun
				c.changing.Unlock()
				time.Sleep(time.Millisecond)
			}
			time.Sleep(20 * time.Millisecond)
			destroyed := make(chan struct{})
			go func() {
				c.Destroy()
				close(destroyed)
			}()
			select {
			case err := <-done:
				if !errors.Is(err, fault.ErrAborted) && !errors.Is(err, fault.ErrNoQuorum) {
					t.Errorf("the call ended with %v", err)
				}
				<-destroyed
			case <-time.After(20 * time.Second):
				t.Fatal("the call still waits")
			}
		})
	}
}

// A communicator whose Destroy has begun, but has not failed it yet, has no next epoch.
func TestNothingFollowsDestroy(t *testing.T) {
	c := newWorldOf(t, "tcp", 2, Config{}).comms[0]
	c.mu.Lock()
	c.destroyed = true
	c.mu.Unlock()
	for name, err := range map[string]error{"recover": c.Recover(context.Background()),
		"renew": c.Renew(context.Background())} {
		if !errors.Is(err, fault.ErrAborted) {
			t.Errorf("%s: %v", name, err)
		}
	}
	c.mu.Lock()
	c.destroyed = false
	c.mu.Unlock()
}
