package core

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/goccl/goccl/core/bootstrap"
	"github.com/goccl/goccl/core/fault"
)

// looks are calls that may be made at any time.
var looks = map[string]func(*Comm){
	"describe":  func(c *Comm) { c.Describe() },
	"algorithm": func(c *Comm) { c.Algorithm(c.Sequence()) },
	"err": func(c *Comm) {
		_ = c.Err()
		c.FailedRanks()
	},
	"members": func(c *Comm) {
		c.Members()
		c.Transport(c.Size() - 1)
		c.Epoch()
	},
	"joining": func(c *Comm) { c.Joining() },
	"handle": func(c *Comm) {
		_, _ = c.Handle()
	},
	"timeout": func(c *Comm) {
		_ = c.SetTimeout(20 * time.Second)
	},
}

// looking makes all calls that may be made at any time, of all ranks, until it is stopped.
func looking(w *world) (stop func()) {
	over := make(chan struct{})
	var all sync.WaitGroup
	for _, c := range w.comms {
		for _, look := range looks {
			all.Go(func() {
				for {
					select {
					case <-over:
						return
					case <-time.After(50 * time.Microsecond):
						look(c)
					}
				}
			})
		}
	}
	return sync.OnceFunc(func() {
		close(over)
		all.Wait()
	})
}

// Whatever changes the members, other threads look at the communicator meanwhile.
func TestLooksBesideChanges(t *testing.T) {
	for _, transport := range transports {
		for _, recovery := range []string{RecoveryStep, RecoverySurvivors} {
			t.Run(transport+" "+recovery, func(t *testing.T) {
				w := newWorldOf(t, transport, 3, Config{Timeout: 20 * time.Second, Recovery: recovery})
				defer looking(w)()
				w.each(func(rank int) error {
					c := w.comms[rank]
					child := func(c *Comm, err error) error {
						if err == nil {
							err = run(c, allReduce(t, 9))
							c.Destroy()
						}
						return err
					}
					for range 4 {
						_, agreed := c.Agree(soon(t), 1)
						_, loaded := c.LoadCheckPoint(soon(t))
						err := errors.Join(agreed, loaded, c.Renew(soon(t)), run(c, allReduce(t, 9)),
							c.Recover(soon(t)), child(c.Split(soon(t), 0, 0)),
							child(c.Shrink(soon(t), ShrinkOptions{})), c.Publish(bootstrap.NewMemStore()))
						if err != nil {
							return err
						}
					}
					return nil
				})
			})
		}
	}
}

// Abort, Revoke and Destroy of several threads end whatever ranks are in, also where they come in
// the middle of a change.
func TestEndsBesideChanges(t *testing.T) {
	destroys := func(child *Comm, err error) error {
		if err == nil {
			child.Destroy()
		}
		return err
	}
	calls := []func(context.Context, *Comm) error{
		func(ctx context.Context, c *Comm) error { return c.Recover(ctx) },
		func(ctx context.Context, c *Comm) error { return c.Renew(ctx) },
		func(ctx context.Context, c *Comm) error { return c.Grow(ctx, 1) },
		func(ctx context.Context, c *Comm) error { _, err := c.Agree(ctx, 1); return err },
		func(ctx context.Context, c *Comm) error { return destroys(c.Split(ctx, 0, 0)) },
		func(ctx context.Context, c *Comm) error { return destroys(c.Shrink(ctx, ShrinkOptions{})) },
	}
	ends := []func(*Comm){func(c *Comm) { c.Abort("test") }, func(c *Comm) { c.Revoke("test") },
		(*Comm).Destroy, (*Comm).Destroy, func(c *Comm) { c.Refuse("test") }}
	for _, transport := range transports {
		for i, call := range calls {
			t.Run(fmt.Sprint(transport, i), func(t *testing.T) {
				config := Config{Timeout: 5 * time.Second, Recovery: RecoveryStep}
				if rand.N(2) == 0 {
					config.Recovery = RecoverySurvivors
				}
				w := newWorldOf(t, transport, 3, config)
				defer looking(w)()
				if rand.N(2) == 0 {
					w.beside.Go(func() { w.endFor(0, 2) })
				}
				w.each(func(rank int) error {
					c := w.comms[rank]
					var all sync.WaitGroup
					defer all.Wait()
					for _, end := range ends {
						all.Go(func() {
							time.Sleep(rand.N(20 * time.Millisecond))
							end(c)
						})
					}
					all.Go(func() {
						for !c.destroyed.Load() {
							_ = run(c, allReduce(t, 5))
						}
					})
					for !c.destroyed.Load() {
						err := call(soon(t), c)
						if errors.Is(err, fault.ErrSystem) || errors.Is(err, fault.ErrInternal) {
							return err
						}
					}
					return nil
				})
			})
		}
	}
}
