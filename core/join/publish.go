package join

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/goccl/goccl/core/bootstrap"
	"github.com/goccl/goccl/core/bootstrap/etcd"
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

// Publish lets processes find the communicator in a store, or in the etcd of the settings. From now
// on this rank writes its handle there when it is the lowest that lives. It does not wait for the
// store, and closes it when it is not used any more.
func (a *Acceptor) Publish(store bootstrap.Store) error {
	n := a.newNotice(store)
	old := a.notice.Swap(n)
	if old != nil {
		old.takeDown()
	}
	a.mu.Lock()
	closed := a.closed
	a.mu.Unlock()
	if closed != nil {
		n.takeDown()
		return closed
	}
	a.Changed()
	return nil
}

// CloseStore closes a store that is not used any more, if it is an [io.Closer].
func CloseStore(store bootstrap.Store) {
	if c, ok := store.(io.Closer); ok {
		_ = c.Close() // there is nobody to tell
	}
}

func (a *Acceptor) newNotice(store bootstrap.Store) *notice {
	n := &notice{store: store, key: bootstrap.MembersKey(a.config.Settings.GroupName),
		again: make(chan struct{}, 1), over: make(chan struct{})}
	n.ctx, n.end = context.WithCancel(a.config.Life)
	n.close = func() { CloseStore(store) } // a call of it may not return
	if a.config.Settings.Etcd != nil {
		s := etcd.Open(n.ctx, a.config.Settings.Etcd, a.config.Settings.Meeting)
		n.store = s
		n.close = func() {
			<-n.over
			s.Close(true)
			CloseStore(store)
		}
	}
	go n.maintain(a)
	return n
}

// Changed has the acceptor look whether the store is to name this rank. It takes no lock.
func (a *Acceptor) Changed() {
	if n := a.notice.Load(); n != nil {
		select {
		case n.again <- struct{}{}:
		default: // it is about to look
		}
	}
}

// maintain writes the handle when it is told to.
func (n *notice) maintain(a *Acceptor) {
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
		if !a.config.Owner.Leads() {
			continue
		}
		if err := n.write(a); err != nil && n.ctx.Err() == nil {
			n.warn.Do(func() {
				text := fmt.Sprintf("processes that want to join group %q cannot find it: writing %q to the "+
					"store: %v", a.config.Settings.GroupName, n.key, err)
				logs.For(a.config.Logger, logs.Bootstrap).Warn(text)
			})
		}
	}
}

func (n *notice) write(a *Acceptor) error {
	l, err := a.listen()
	if err != nil {
		return err
	}
	handle := []byte(l.handle.String())
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
