package main

// #include "api.h"
import "C"

import (
	"context"
	"errors"
	"time"
	"unsafe"

	"github.com/goccl/goccl/core"
	"github.com/goccl/goccl/core/bootstrap"
)

//export apiCommJoin
func apiCommJoin(to *C.goccl_comm, from *C.goccl_config, handles **C.char, n C.int) C.goccl_result {
	return export("comm_join", func() error {
		settle()
		if err := needs(to, "comm_join: comm"); err != nil {
			return err
		}
		if err := needs(from, "comm_join: config"); err != nil {
			return err
		}
		in, err := takeStruct(from, leastConfig, "config")
		if err != nil {
			return err
		}
		members, err := handlesOf(handles, n, "comm_join")
		if err != nil {
			return err
		}
		c := configOf(in)
		if c.Timeout == 0 {
			c.Timeout = core.DefaultTimeout
		}
		ctx, cancel := context.WithTimeout(context.Background(), c.Timeout)
		defer cancel()
		ctx, cancel = process.Until(ctx)
		defer cancel()
		if n == 0 && getenv(core.EnvJoin) == "" {
			done, err := seekMembers(ctx, &c, in)
			if err != nil {
				return err
			}
			defer done()
		}
		made, err := process.Join(ctx, c, members)
		if err != nil {
			return err
		}
		*to = give(made)
		return nil
	})
}

// seekMembers fills in where members are named. The caller calls done when it has read it.
func seekMembers(ctx context.Context, c *core.Config, in C.goccl_config) (done func(), err error) {
	done = func() {}
	switch {
	case meetsAtEtcd():
		return done, nameMeeting(c, unsafe.Pointer(in.unique_id))
	case in.unique_id != nil && in.store != nil:
		return nil, errorf(codeInvalidArgument, "comm_join: config.unique_id and config.store are both "+
			"given, one of them is allowed")
	case in.store != nil:
		s, err := newStore(in.store)
		if err != nil {
			return nil, err
		}
		c.Store = s
		return func() { _ = s.Close() }, nil
	case in.unique_id != nil:
		id := *(*[bootstrap.IDSize]byte)(unsafe.Pointer(in.unique_id))
		if _, err := bootstrap.IDSecret(id); err != nil {
			return nil, errorf(codeInvalidArgument, "comm_join: config.unique_id: %v", err)
		}
		s, closer, err := bootstrap.DialRoot(ctx, id)
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
		return func() { _ = closer.Close() }, nil
	}
	return done, nil
}

//export apiCommJoining
func apiCommJoining(handle C.goccl_comm, n *C.int) C.goccl_result {
	return export("comm_joining", func() error {
		c, err := comm(handle)
		if err == nil {
			err = needs(n, "comm_joining: n")
		}
		if err == nil {
			*n = C.int(c.comm.Joining())
		}
		return err
	})
}

//export apiCommPublish
func apiCommPublish(handle C.goccl_comm, uniqueID *C.goccl_unique_id,
	callbacks *C.goccl_store) C.goccl_result {
	return export("comm_publish", func() error {
		c, err := comm(handle)
		if err != nil {
			return err
		}
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
	root, err := reopenRoot(id)
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
