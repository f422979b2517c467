package main

// #include "api.h"
import "C"

import (
	"cmp"
	"context"
	"errors"
	"time"
	"unsafe"

	"github.com/goccl/goccl/core"
	"github.com/goccl/goccl/core/bootstrap"
)

//export apiCommJoin
func apiCommJoin(
	to *C.goccl_comm, from *C.goccl_config, handles **C.char, n C.int, work *C.goccl_work,
) C.goccl_result {
	return export("comm_join", func() error {
		if work != nil {
			*work = 0
		}
		if err := cmp.Or(needs(to, "comm_join: comm"), needs(from, "comm_join: config")); err != nil {
			return err
		}
		members, err := handlesOf(handles, n, "comm_join")
		if err != nil {
			return err
		}
		g, err := take(from)
		if err != nil {
			g.drop()
			return err
		}
		return begin("comm_join", nil, work, g.drop, func(t *task) error {
			made, err := g.join(t.ctx, members)
			if err == nil {
				t.makes(to, made)
			}
			return err
		})
	})
}

// join is goccl_comm_join.
func (g *given) join(ctx context.Context, members []string) (*core.Comm, error) {
	defer g.drop()
	g.GlobalRanks = nil
	ctx, cancel := context.WithTimeout(ctx, process.Limit(g.Config))
	defer cancel()
	c := g.Config
	if len(members) == 0 && process.Getenv(core.EnvJoin) == "" {
		done, err := g.seekMembers(ctx, &c)
		if err != nil {
			return nil, err
		}
		defer done()
	}
	return process.Join(ctx, c, members)
}

// seekMembers fills in where members are named. The caller calls done when it has read it.
func (g *given) seekMembers(ctx context.Context, c *core.Config) (done func(), err error) {
	done = func() {}
	switch {
	case meetsAtEtcd():
		return done, nameMeeting(c, g.id)
	case g.fields.unique_id != nil && g.fields.store != nil:
		return nil, errorf(codeInvalidArgument, "comm_join: config.unique_id and config.store are both "+
			"given, one of them is allowed")
	case g.storeErr != nil:
		return nil, g.storeErr
	case g.store != nil:
		c.Store = g.store
	case g.id != nil:
		if _, err := bootstrap.IDSecret(*g.id); err != nil {
			return nil, errorf(codeInvalidArgument, "comm_join: config.unique_id: %v", err)
		}
		s, closer, err := bootstrap.DialRoot(ctx, *g.id)
		switch {
		case errors.Is(err, core.ErrAborted):
			return nil, errorf(C.GOCCL_ABORTED, "comm_join: %v", err)
		case errors.Is(err, context.DeadlineExceeded):
			return nil, errorf(C.GOCCL_TIMEOUT, "comm_join: config.unique_id: %v: has goccl_comm_publish() "+
				"been called with it, in the process that made it?", err)
		case err != nil:
			return nil, errorf(C.GOCCL_SYSTEM, "comm_join: config.unique_id: %v", err)
		}
		c.Store = s
		done = func() { _ = closer.Close() }
	}
	return done, nil
}

//export apiCommNumWaiting
func apiCommNumWaiting(handle C.goccl_comm, n *C.int) C.goccl_result {
	return onComm("comm_num_waiting", handle, func(c *commHandle) error {
		return put(n, "comm_num_waiting: n", C.int(c.comm.Joining()))
	})
}

//export apiCommPublish
func apiCommPublish(handle C.goccl_comm, uniqueID *C.goccl_unique_id,
	callbacks *C.goccl_store) C.goccl_result {
	return onComm("comm_publish", handle, func(c *commHandle) error {
		switch {
		case meetsAtEtcd():
			return c.comm.Publish(nil)
		case (uniqueID == nil) == (callbacks == nil):
			return errorf(codeInvalidArgument, "comm_publish: exactly one of unique_id and store must be "+
				"given, or %s", core.EnvStore)
		case uniqueID != nil:
			s, err := newRootStore(*(*[bootstrap.IDSize]byte)(unsafe.Pointer(uniqueID)))
			if err != nil {
				return err
			}
			return c.comm.Publish(s)
		}
		s, err := newStore(callbacks)
		if err != nil {
			return err
		}
		return c.comm.Publish(s)
	})
}

// rootTime is for a root to be dialled: it may have ended with its process.
const rootTime = 10 * time.Second

// rootStore is the store at a root address, served here if this process has made it.
type rootStore struct {
	id   [bootstrap.IDSize]byte
	root *bootstrap.Root // nil: another process serves it
}

func newRootStore(id [bootstrap.IDSize]byte) (*rootStore, error) {
	if _, err := bootstrap.IDSecret(id); err != nil {
		return nil, errorf(codeInvalidArgument, "comm_publish: unique_id: %v", err)
	}
	root, err := roots.Reopen(id)
	if err != nil {
		return nil, errorf(C.GOCCL_SYSTEM, "comm_publish: unique_id: %v", err)
	}
	return &rootStore{id, root}, nil
}

// Set implements bootstrap.Store.
func (s *rootStore) Set(key string, value []byte) error {
	return s.use(func(to bootstrap.Store) error { return to.Set(key, value) })
}

// Get implements bootstrap.Store.
func (s *rootStore) Get(key string) (value []byte, ok bool, err error) {
	err = s.use(func(from bootstrap.Store) (err error) {
		value, ok, err = from.Get(key)
		return err
	})
	return value, ok, err
}

func (s *rootStore) use(f func(bootstrap.Store) error) error {
	if s.root != nil {
		return f(s.root.Store())
	}
	ctx, cancel := context.WithTimeout(context.Background(), rootTime)
	defer cancel()
	there, closer, err := bootstrap.DialRoot(ctx, s.id)
	if err != nil {
		return err
	}
	defer closer.Close()
	return f(there)
}

// Close implements io.Closer.
func (s *rootStore) Close() error {
	if s.root != nil {
		s.root.Close()
	}
	return nil
}
