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

// keepEach is how often a rank looks at the handle in the store. In an etcd the handle ends with
// its lease, if etcd could not be reached for longer than that lasts. In any store a rank may have
// written over it that went on alone for a while, and was left out.
const keepEach = 10 * time.Second

// registration is where processes that want to join find a member: a key of a store, at which the
// lowest rank that lives writes its handle. One handle is enough. Where that process has ended, the
// lowest rank that is left writes its own: once it waits for newcomers, or in the next epoch.
type registration struct {
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
// on this rank writes its handle there while it is the lowest that lives. Publish does not wait for
// the store. The acceptor closes the store when it does not use it any more.
func (a *Acceptor) Publish(store bootstrap.Store) error {
	r := a.register(store)
	old := a.registration.Swap(r)
	if old != nil {
		old.withdraw()
	}
	a.mu.Lock()
	closed := a.closed
	a.mu.Unlock()
	if closed != nil {
		r.withdraw()
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

// register begins to keep the handle in a store.
func (a *Acceptor) register(store bootstrap.Store) *registration {
	r := &registration{store: store, key: bootstrap.MembersKey(a.config.Settings.GroupName),
		again: make(chan struct{}, 1), over: make(chan struct{})}
	r.ctx, r.end = context.WithCancel(a.config.Life)
	r.close = func() { CloseStore(store) } // a call of it may not return
	if a.config.Settings.Etcd != nil {
		s := etcd.Open(r.ctx, a.config.Settings.Etcd, a.config.Settings.Meeting)
		r.store = s
		r.close = func() {
			<-r.over
			s.Close(true)
			CloseStore(store)
		}
	}
	go r.maintain(a)
	return r
}

// Changed has the acceptor look whether this rank is to write its handle. It takes no lock, and may
// be called with any lock held.
func (a *Acceptor) Changed() {
	if r := a.registration.Load(); r != nil {
		select {
		case r.again <- struct{}{}:
		default: // it is about to look
		}
	}
}

// maintain writes the handle whenever this rank is the one whose handle is to be there.
func (r *registration) maintain(a *Acceptor) {
	defer close(r.over)
	look := time.NewTicker(keepEach)
	defer look.Stop()
	for {
		select {
		case <-r.again:
		case <-look.C:
		case <-r.ctx.Done():
			return
		}
		if !a.config.Owner.Leads() {
			continue
		}
		if err := r.write(a); err != nil && r.ctx.Err() == nil {
			r.warn.Do(func() {
				text := fmt.Sprintf("processes that want to join group %q cannot find it: writing %q to the "+
					"store: %v", a.config.Settings.GroupName, r.key, err)
				logs.For(a.config.Logger, logs.Bootstrap).Warn(text)
			})
		}
	}
}

// write writes the handle, unless it is there.
func (r *registration) write(a *Acceptor) error {
	l, err := a.listen()
	if err != nil {
		return err
	}
	handle := []byte(l.handle.String())
	if there, ok, err := r.store.Get(r.key); err == nil && ok && bytes.Equal(there, handle) {
		return nil
	}
	return r.store.Set(r.key, handle)
}

// withdraw ends the use of the store. The handle stays there; from an etcd it is removed.
func (r *registration) withdraw() {
	r.end()
	r.close()
}
