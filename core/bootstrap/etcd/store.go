package etcd

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"time"
)

const (
	// leaseTime is for how long what a process has written outlives it.
	leaseTime = time.Minute
	// aliveEach is how often a lease is renewed. Where that fails what watches have shown is
	// doubted.
	aliveEach = 10 * time.Second
	// lastWords is for how long after the end of the context a request may still take, by which a
	// rank says why it goes.
	lastWords = 500 * time.Millisecond
)

// Store is a store of package bootstrap. All that it writes ends with its lease.
type Store struct {
	gateway *gateway
	prefix  string          // of all keys, with a slash at its end
	ctx     context.Context // the caller's
	alive   context.Context // until the store is closed
	end     context.CancelFunc
	running sync.WaitGroup // goroutines

	mu      sync.Mutex
	lease   int64   // 0 until something is written; guarded by mu
	renewed bool    // a goroutine renews the lease; guarded by mu
	views   []*view // guarded by mu
	mirror  *view   // the one of Mirror, else nil; guarded by mu
}

// Open makes a store of an etcd. The context bounds its use, but for Close. Name tells meetings
// under one prefix apart, where it is not "". Nothing is asked of etcd yet.
func Open(ctx context.Context, a *Address, name string) *Store {
	s := &Store{gateway: newGateway(a), prefix: a.prefix + "/", ctx: ctx}
	if name != "" {
		s.prefix += name + "/"
	}
	s.alive, s.end = context.WithCancel(context.WithoutCancel(ctx))
	return s
}

// call asks etcd until the context of Open has ended, and a moment longer.
func (s *Store) call(method string, in any, out answer) error {
	late, cancel := context.WithCancel(s.alive)
	defer cancel()
	stop := context.AfterFunc(s.ctx, func() { time.AfterFunc(lastWords, cancel) })
	defer stop()
	return s.gateway.call(s.ctx, late, method, in, out)
}

// Set implements bootstrap.Store.
func (s *Store) Set(key string, value []byte) error {
	key = s.prefix + key
	id, err := s.leased()
	if err != nil {
		return err
	}
	var done putResponse
	err = s.call("kv/put", putRequest{[]byte(key), value, id}, small{&done})
	if refused(err, codeNotFound) { // the lease has ended: this process stood still
		s.forget(id)
		if id, err = s.leased(); err == nil {
			err = s.call("kv/put", putRequest{[]byte(key), value, id}, small{&done})
		}
	}
	if err != nil {
		return err
	}
	if v := s.covering(key); v != nil {
		now := entry{value: bytes.Clone(value), revision: done.Header.Revision, lease: id}
		if v.put(key, now) != nil {
			v.doubt()
		}
	}
	return nil
}

// Get implements bootstrap.Store.
func (s *Store) Get(key string) (value []byte, ok bool, err error) {
	key = s.prefix + key
	if v := s.covering(key); v != nil {
		if value, ok, known, _ := v.get(key); known {
			return value, ok, nil
		}
	}
	return s.read(key, maxValue)
}

// GetSized implements bootstrap.Sized.
func (s *Store) GetSized(key string, most int) ([]byte, bool, error) {
	value, ok, err := s.read(s.prefix+key, most)
	if errors.Is(err, errTooLong) {
		return nil, false, nil
	}
	return value, ok, err
}

// read asks etcd for a value.
func (s *Store) read(key string, most int) ([]byte, bool, error) {
	one := &found{covers: func(k string) bool { return k == key },
		limit: entryHead + len(key) + most}
	if err := s.call("kv/range", rangeRequest{Key: []byte(key)}, one); err != nil {
		return nil, false, err
	}
	e, ok := one.entries[key]
	return e.value, ok, nil
}

// Watch implements bootstrap.Watcher.
func (s *Store) Watch(key string, old []byte, most time.Duration) ([]byte, bool, error) {
	full := s.prefix + key
	v := s.covering(full)
	if v == nil {
		v = s.observe(full, false, maxSmall)
	}
	timer := time.NewTimer(most)
	defer timer.Stop()
	for {
		value, ok, known, changed := v.get(full)
		if known && !bytes.Equal(value, old) {
			return value, ok, nil
		}
		select {
		case <-changed:
		case <-timer.C:
			return s.Get(key)
		case <-s.ctx.Done():
			return s.Get(key)
		}
	}
}

// Mirror implements bootstrap.Mirror.
func (s *Store) Mirror(prefix string, most int) {
	v := s.observe(s.prefix+prefix, true, most)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mirror = v
}

// covering is a view that has a key; nil where there is none.
func (s *Store) covering(key string) *view {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, v := range s.views {
		if v.covers(key) {
			return v
		}
	}
	return nil
}

func (s *Store) observe(key string, prefix bool, most int) *view {
	v := newView(key, prefix, most)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.views = append(s.views, v)
	s.running.Go(func() { v.run(s.alive, s.gateway) })
	return v
}

// leased returns the lease of what this store writes.
func (s *Store) leased() (int64, error) {
	s.mu.Lock()
	id := s.lease
	s.mu.Unlock()
	if id != 0 {
		return id, nil
	}
	var granted lease
	err := s.call("lease/grant", grant{int64(leaseTime / time.Second)}, small{&granted})
	if err != nil {
		return 0, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lease = granted.ID
	if !s.renewed {
		s.renewed = true
		s.running.Go(s.renew)
	}
	return s.lease, nil
}

// forget gives up a lease that has ended.
func (s *Store) forget(id int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lease == id {
		s.lease = 0
	}
}

// renew keeps the lease until the store is closed.
func (s *Store) renew() {
	ticker := time.NewTicker(aliveEach)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-s.alive.Done():
			return
		}
		s.mu.Lock()
		id, views := s.lease, s.views
		s.mu.Unlock()
		if id == 0 {
			continue
		}
		var kept kept
		err := s.gateway.attempt(s.alive, "lease/keepalive", leaseID{id}, small{&kept})
		switch {
		case err != nil || kept.Error != nil:
			for _, v := range views {
				v.doubt()
			}
		case kept.Result.TTL == 0:
			s.forget(id)
		}
	}
}

// Close ends the use of the store. Met says that there is a group. Then nobody needs any more what
// this rank has written, and it is removed; but others may not have read yet what rank 0 has. It
// stays until they have removed what they have written, or the deadline of the context. Where there
// is no group all stays for the time of a lease: those who come late are to be told why.
func (s *Store) Close(met bool) {
	s.mu.Lock()
	id, mirror := s.lease, s.mirror
	s.mu.Unlock()
	switch {
	case met && mirror != nil:
		go func() {
			s.awaitOthers(mirror, id)
			s.revoke(id)
			s.shut()
		}()
		return
	case met:
		s.revoke(id)
	}
	s.shut()
}

// awaitOthers waits until nothing is left but what has been written with a lease.
func (s *Store) awaitOthers(mirror *view, id int64) {
	deadline, ok := s.ctx.Deadline()
	if !ok {
		deadline = time.Now().Add(leaseTime)
	}
	timer := time.NewTimer(time.Until(deadline))
	defer timer.Stop()
	for {
		foreign, changed := mirror.foreign(id)
		if !foreign {
			return
		}
		select {
		case <-changed:
		case <-timer.C:
			return
		}
	}
}

// revoke removes what has been written with a lease. Where that fails the lease ends by itself.
func (s *Store) revoke(id int64) {
	if id != 0 {
		ctx, cancel := context.WithTimeout(s.alive, lastWords)
		defer cancel()
		_ = s.gateway.attempt(ctx, "lease/revoke", leaseID{id}, small{&struct{}{}})
	}
}

func (s *Store) shut() {
	s.end()
	s.running.Wait()
	s.gateway.close()
}
