// Package bootstrap is how the ranks of a communicator find each other.
//
// [Join] agrees on a [Roster] through any key-value [Store] that all ranks share: torch's, a
// [MemStore], or one that rank 0 serves itself at a root address ([NewRoot], [DialRoot]).
package bootstrap

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/url"
	"sync"
	"time"

	"github.com/goccl/goccl/core/internal/printable"
)

// Store is a key-value store that all ranks share.
type Store interface {
	// Set stores a value, over an older one if there is one.
	Set(key string, value []byte) error
	// Get returns a value and whether there is one. It never blocks until there is.
	Get(key string) (value []byte, ok bool, err error)
}

// MemStore is a store in memory, for ranks that are threads of one process.
type MemStore struct {
	mu     sync.Mutex
	values map[string][]byte
}

// NewMemStore returns an empty store.
func NewMemStore() Store { return &MemStore{values: map[string][]byte{}} }

// Set stores a copy of value.
func (s *MemStore) Set(key string, value []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.values[key] = append([]byte(nil), value...)
	return nil
}

// Get returns a copy of a value.
func (s *MemStore) Get(key string) ([]byte, bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	v, ok := s.values[key]
	return append([]byte(nil), v...), ok, nil
}

// Watcher is a store that tells of changes: its readers need not poll.
type Watcher interface {
	Store
	// Watch is Get, but waits until the value is not old, for a while at most.
	Watch(key string, old []byte, most time.Duration) (value []byte, ok bool, err error)
}

// Sized is a store that takes a long value only from who says how long it is.
type Sized interface {
	Store
	// GetSized is Get, for a value of at most so many bytes. A longer one counts as none.
	GetSized(key string, most int) (value []byte, ok bool, err error)
}

// Mirror is a store that can keep at hand what others write.
type Mirror interface {
	Store
	// Mirror says that many keys with a prefix will be read again and again: rank 0 reads all. Where
	// they are more than so many bytes together they need not be kept.
	Mirror(prefix string, most int)
}

// Ranks poll other stores: a torch store can wait for a key, but not for one to change.
const (
	pollFirst = 500 * time.Microsecond
	pollLast  = 50 * time.Millisecond
	pollEach  = 50 * time.Microsecond // of a store's time for each rank that polls it
	watchMost = 500 * time.Millisecond
	// Before the first look at a rank's own join, which is larger: at least, and for each rank.
	standFirst = 500 * time.Millisecond
	standEach  = time.Millisecond
)

func (j *joiner) set(key string, value []byte) error {
	_, err := j.ask("writing %q to the store", key,
		func(key string) ([]byte, error) { return nil, j.store.Set(key, value) })
	return err
}

// get returns nil where there is no value.
func (j *joiner) get(key string) ([]byte, error) { return j.fetch(key, j.store.Get) }

// stored is the table of a roster as the store has it. It may be another one: see
// [rosterRecord.fill].
func (j *joiner) stored(r *rosterRecord) ([]byte, error) {
	s, ok := j.store.(Sized)
	if !ok {
		return j.get("table")
	}
	return j.fetch("table", func(key string) ([]byte, bool, error) { return s.GetSized(key, r.bytes) })
}

// fetch is get, by one of the store's ways to read.
func (j *joiner) fetch(key string, by func(key string) ([]byte, bool, error)) ([]byte, error) {
	return j.ask("reading %q from the store", key, func(key string) ([]byte, error) {
		v, ok, err := by(key)
		if !ok {
			v = nil
		}
		return v, err
	})
}

// ask has the store do something. A store is foreign code, which may not return: its host may stand
// still. So it is waited for until the context ends, and a moment longer, for it may just be about
// to answer. What comes after that is dropped.
func (j *joiner) ask(what, key string, f func(key string) ([]byte, error)) ([]byte, error) {
	type answer struct {
		value []byte
		err   error
	}
	answers := make(chan answer, 1)
	begun := time.Now()
	failed := func(err error) error {
		return fmt.Errorf("rank %d of %s: %s: %w (look at the log of the process that keeps the store: "+
			"rank 0, the launcher or etcd)", j.config.Rank, j.group(), fmt.Sprintf(what, j.prefix+key), err)
	}
	go func() {
		defer func() {
			if p := recover(); p != nil {
				answers <- answer{err: fmt.Errorf("it has panicked: %v", p)}
			}
		}()
		v, err := f(j.prefix + key)
		answers <- answer{v, err}
	}()
	var a answer
	select {
	case a = <-answers:
	case <-j.ctx.Done():
		t := time.NewTimer(patience)
		defer t.Stop()
		select {
		case a = <-answers:
		case <-t.C:
			return nil, failed(&storeSilent{time.Since(begun).Round(time.Millisecond), context.Cause(j.ctx)})
		}
	}
	if a.err != nil {
		return nil, failed(printable.Error(a.err, maxStoreError))
	}
	return a.value, nil
}

// storeSilent is the failure of a store that does not answer.
type storeSilent struct {
	waited time.Duration
	cause  error // why it is waited for no longer
}

func (e *storeSilent) Error() string {
	return fmt.Sprintf("it has not answered within %v", e.waited)
}

func (e *storeSilent) Unwrap() error { return e.cause }

// end tells why the context has ended.
func (j *joiner) end() string {
	switch cause := context.Cause(j.ctx); {
	case errors.Is(cause, context.DeadlineExceeded):
		return "the time is up"
	case errors.Is(cause, context.Canceled):
		return "it was given up"
	default:
		return printable.Text(cause.Error(), maxStoreError)
	}
}

// pause waits before the next poll: longer each time, from the start again after progress. It is
// false when the context has ended.
func (j *joiner) pause(progress bool) bool {
	if progress {
		j.wait = j.first
	}
	t := time.NewTimer(j.wait)
	defer t.Stop()
	j.wait = min(2*j.wait, j.last)
	select {
	case <-t.C:
		return j.ctx.Err() == nil
	case <-j.ctx.Done():
		return false
	}
}

// await is pause and get, for a key whose value was old. Alive is false once the context has ended.
func (j *joiner) await(key string, old []byte, progress bool) (v []byte, alive bool, err error) {
	w, ok := j.store.(Watcher)
	if !ok {
		if !j.pause(progress) {
			return nil, false, nil
		}
		v, err = j.get(key)
		return v, true, err
	}
	v, err = j.fetch(key, func(key string) ([]byte, bool, error) {
		return w.Watch(key, old, watchMost)
	})
	return v, j.ctx.Err() == nil, err
}

// Await returns the value of a key once there is one that is not old, and after a while the old
// one, nil where there is none. The store may be foreign code, which does not return: see
// joiner.ask.
func Await(ctx context.Context, s Store, key string, old []byte, most time.Duration) ([]byte,
	error) {
	type answer struct {
		value []byte
		err   error
	}
	answers := make(chan answer, 1)
	begun := time.Now()
	go func() {
		v, err := await(ctx, s, key, old, begun.Add(most))
		answers <- answer{v, err}
	}()
	var a answer
	select {
	case a = <-answers:
	case <-ctx.Done():
		t := time.NewTimer(patience)
		defer t.Stop()
		select {
		case a = <-answers:
		case <-t.C:
			a.err = &storeSilent{time.Since(begun).Round(time.Millisecond), context.Cause(ctx)}
		}
	}
	if a.err != nil {
		return nil, fmt.Errorf("reading %q from the store: %w", key,
			printable.Error(a.err, maxStoreError))
	}
	return a.value, nil
}

func await(ctx context.Context, s Store, key string, old []byte, until time.Time) ([]byte, error) {
	w, watches := s.(Watcher)
	for wait := pollFirst; ; wait = min(2*wait, pollLast) {
		v, ok, err := s.Get(key)
		if watches && err == nil && (!ok || bytes.Equal(v, old)) {
			v, ok, err = w.Watch(key, old, min(time.Until(until), watchMost))
		}
		switch {
		case err != nil:
			return nil, err
		case ok && !bytes.Equal(v, old):
			return v, nil
		case ctx.Err() != nil || time.Now().After(until):
			return old, nil
		case watches:
			continue
		}
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
		}
	}
}

// MembersKey is the key under which processes that want to join a group find its members.
func MembersKey(group string) string { return "goccl/members/" + url.PathEscape(group) }

// join writes this rank's join.
func (j *joiner) join() error {
	if err := j.set("newest", j.own.nonce[:]); err != nil {
		return err
	}
	j.stood = time.Now()
	return j.set(j.joinKey(j.config.Rank), j.own.encoded)
}

// stands makes sure that this rank's join is in the store. It may be lost: the last user of a torch
// FileStore removes the file, even if others have begun to use it anew. It may have been written
// over by another live process with this rank, which is an error.
func (j *joiner) stands() (lost bool, err error) {
	v, err := j.get(j.joinKey(j.config.Rank))
	j.stood = time.Now()
	switch {
	case err != nil:
		return false, err
	case v == nil:
		return true, j.join()
	case !bytes.Equal(v, j.own.encoded):
		if other, err := j.readJoin(j.config.Rank, v); err == nil {
			// Where it cannot be written the others are told less.
			_ = j.set(j.twiceKey(j.config.Rank), other.nonce[:])
		}
		return false, fmt.Errorf("%w: another process joined %s as rank %d after this one: "+
			"every rank may be started once, and nobody else may write to the store", ErrMismatch,
			j.group(), j.config.Rank)
	}
	return false, nil
}

// doubled reports whether a join has taken the place of one of a live process.
func (j *joiner) doubled(rec *joinRecord) bool {
	v, err := j.get(j.twiceKey(rec.rank))
	return err == nil && bytes.Equal(v, rec.nonce[:])
}

// startedTwice tells of ranks as which two processes have joined; "" where there are none.
func startedTwice(ranks []int) string {
	if len(ranks) == 0 {
		return ""
	}
	return "; two processes have joined as each of these ranks: " + enumerate(ranks) +
		". Look whether one of them was to be another rank"
}
