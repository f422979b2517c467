package core

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/goccl/goccl/core/bootstrap"
	"github.com/goccl/goccl/core/bootstrap/etcd"
	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/logs"
)

// keepEach is how often the handle is looked at that lies in the store. In an etcd it ends with its
// lease, where etcd could not be reached for longer than that lasts. In any store it may have been
// written over by a rank that went on alone for a while, and was left out.
const keepEach = 10 * time.Second

// notice is where processes that want to join find a member: a key of a store, under which the
// lowest rank that lives writes its handle. That one is enough. Where its process has ended, the
// lowest of those that are left writes its own: once they wait for newcomers, or in the next epoch.
type notice struct {
	store bootstrap.Store
	key   string
	ctx   context.Context
	end   context.CancelFunc
	again chan struct{} // this rank may be the lowest now
	over  chan struct{} // closed when nothing is written any more
	close func()        // ends the use of the store
	warn  sync.Once
}

// Publish lets processes find the communicator that want to join it: see [Runtime.Join]. From now
// on the lowest rank of each epoch writes its handle to a store: to the etcd of GOCCL_STORE, or
// else to the given one. Every rank calls it, also one that has joined, for any may become the
// lowest. It does not wait for the store; where that cannot be written to a warning is logged.
//
// The store is used until the communicator is destroyed, or Publish is called again, by one
// goroutine at a time. If it is an [io.Closer] it is closed then. Where the job has no secret,
// whoever can read the store can join.
func (c *Comm) Publish(store bootstrap.Store) error {
	e := c.present.Load()
	err := c.alive(e)
	if err == nil && store == nil && c.config.Etcd == nil {
		err = fault.Errorf(fault.ErrInvalidArgument, "publish: no store is given, nor %s", EnvStore)
	}
	if err == nil && e.Rank == 0 {
		_, err = c.openDoor() // here, for a communicator of one begins anew by that
	}
	if err != nil {
		closeStore(store)
		return err
	}
	n := c.newNotice(store)
	c.mu.Lock()
	old, late := c.entry.notice, c.destroyed
	c.entry.notice = n
	c.mu.Unlock()
	if old != nil {
		old.takeDown()
	}
	if late {
		n.takeDown()
		return destroyedHere(e)
	}
	c.post()
	return nil
}

func closeStore(store bootstrap.Store) {
	if c, ok := store.(io.Closer); ok {
		_ = c.Close() // there is nobody to tell
	}
}

func (c *Comm) newNotice(store bootstrap.Store) *notice {
	n := &notice{store: store, key: bootstrap.MembersKey(c.config.GroupName),
		again: make(chan struct{}, 1), over: make(chan struct{})}
	n.ctx, n.end = context.WithCancel(c.life)
	n.close = func() { closeStore(store) } // a call of it may not return
	if c.config.Etcd != nil {
		s := etcd.Open(n.ctx, c.config.Etcd, c.config.Meeting)
		n.store = s
		n.close = func() {
			<-n.over
			s.Close(true)
			closeStore(store)
		}
	}
	go n.maintain(c)
	return n
}

// post has the notice look whether it is to name this rank.
func (c *Comm) post() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.postLocked()
}

// postLocked is post, with the lock held.
func (c *Comm) postLocked() {
	if n := c.entry.notice; n != nil {
		select {
		case n.again <- struct{}{}:
		default: // it is about to look
		}
	}
}

// leads tells whether newcomers are to come to this rank: it is the lowest of those that live.
// Where the epoch has failed others may go on without it, unless it waits for their decision.
func (c *Comm) leads() bool {
	e := c.present.Load()
	c.mu.Lock()
	defer c.mu.Unlock()
	for peer := range e.Rank {
		if _, gone := e.membership.Departure(peer); !gone {
			return false
		}
	}
	return e.failed() == nil || e.decides()
}

// maintain writes the handle when it is told to.
func (n *notice) maintain(c *Comm) {
	defer close(n.over)
	look := time.NewTicker(keepEach)
	defer look.Stop()
	for {
		select {
		case <-n.again:
		case <-look.C:
		case <-n.ctx.Done():
			return
		}
		if !c.leads() {
			continue
		}
		if err := n.write(c); err != nil && n.ctx.Err() == nil {
			n.warn.Do(func() {
				c.runtime.log(logs.Bootstrap).Warn(fmt.Sprintf("processes that want to join group %q cannot "+
					"find it: writing %q to the store: %v", c.config.GroupName, n.key, err))
			})
		}
	}
}

func (n *notice) write(c *Comm) error {
	d, err := c.openDoor()
	if err != nil {
		return err
	}
	handle := []byte(d.handle.String())
	if there, ok, err := n.store.Get(n.key); err == nil && ok && bytes.Equal(there, handle) {
		return nil
	}
	return n.store.Set(n.key, handle)
}

// takeDown ends the use of the store. What was written stays; from an etcd it is removed.
func (n *notice) takeDown() {
	n.end()
	n.close()
}
