package core

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/goccl/goccl/core/bootstrap"
	"github.com/goccl/goccl/core/internal/logtest"
	"github.com/goccl/goccl/core/internal/polltest"
)

// publishes has all ranks publish in a store.
func (w *world) publishes(store bootstrap.Store) {
	w.t.Helper()
	w.each(func(rank int) error { return w.comms[rank].Publish(store) })
}

// names reports whether a store names a member.
func (w *world) names(store bootstrap.Store, rank int) func() bool {
	handle := w.handles()[rank]
	return func() bool {
		v, _, _ := store.Get(bootstrap.MembersKey("test"))
		return string(v) == handle
	}
}

func storeConfigOf(store bootstrap.Store) Config {
	c := joinConfigOf("tcp")
	c.Store, c.GroupName = store, "test"
	return c
}

// Two processes at once find a group of one, and one of two, by the store alone. The lowest rank
// ends, then all that were there at first: the present lowest rank is found.
func TestJoinByStore(t *testing.T) {
	for size := 1; size <= 2; size++ {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			store := bootstrap.NewMemStore()
			config := storeConfigOf(store)
			w := newWorldOf(t, "tcp", size, joinConfigOf("tcp"))
			joined := w.joining(config, nil, nil) // before there is a name
			w.publishes(store)
			w.each(func(rank int) error { return w.comms[rank].Grow(soon(t), 2) })
			w = joined()
			checkMembers(t, w)
			w.publishes(store)
			for range size + 1 {
				w.end(0)
				w = w.of(without(0, len(w.comms))...)
				joined = w.joining(config, nil) // by the name of one that has ended
				w.each(func(rank int) error { return w.comms[rank].Recover(soon(t)) })
				polltest.Until(t, "the lowest rank is named", w.names(store, 0))
				polltest.Until(t, "a process waits, or is in", func() bool {
					return w.someWait() || w.comms[0].Size() > len(w.comms)
				})
				if w.someWait() {
					w.each(func(rank int) error { return w.comms[rank].Recover(soon(t)) })
				}
				w = joined()
				checkMembers(t, w)
				w.comms[len(w.comms)-1].Publish(store)
			}
		})
	}
}

// The member that a store names does not answer, as one that is stopped. The process asks the next
// one that the store names.
func TestJoinPassesOverAStoppedMember(t *testing.T) {
	store := bootstrap.NewMemStore()
	stopped := newWorldOf(t, "tcp", 2, joinConfigOf("tcp"))
	w := newWorldOf(t, "tcp", 2, joinConfigOf("tcp"))
	stopped.publishes(store)
	joined := w.joining(storeConfigOf(store), nil)
	polltest.Until(t, "a process waits", stopped.someWait)
	w.publishes(store)
	w.each(func(rank int) error { return w.comms[rank].Grow(soon(t), 1) })
	checkMembers(t, joined())
}

// A member without which the others go on sends those away that wait at it.
func TestJoinPassesOverAnExcludedMember(t *testing.T) {
	store := bootstrap.NewMemStore()
	config := joinConfigOf("tcp")
	config.MinSize = 3
	w := newWorldOf(t, "tcp", 3, config)
	w.publishes(store)
	config = storeConfigOf(store)
	config.MinSize, config.Timeout = 3, 3*time.Second
	polltest.Until(t, "the lowest rank is named", w.names(store, 0))
	r := NewRuntime(RuntimeConfig{Logger: logtest.Warnings(t)})
	t.Cleanup(r.Close)
	w.end(1)
	w.end(2)
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	if err := w.comms[0].Recover(ctx); !errors.Is(err, ErrNoQuorum) {
		t.Fatal(err)
	}
	_, err := r.Join(context.Background(), config, nil)
	if !errors.Is(err, ErrTimeout) || !strings.Contains(err.Error(), "is not a member any more") {
		t.Error(err)
	}
}

// The lowest rank has ended, and those that are left are too few. They are found while they wait
// for newcomers.
func TestJoinWhereTooFewAreLeft(t *testing.T) {
	for _, how := range []string{"least size", "grow"} {
		t.Run(how, func(t *testing.T) {
			store, config := bootstrap.NewMemStore(), joinConfigOf("tcp")
			goOn := func(c *Comm) error { return c.Grow(soon(t), 1) }
			if how == "least size" {
				config.MinSize = 3
				goOn = func(c *Comm) error { return c.Recover(soon(t)) }
			}
			w := newWorldOf(t, "tcp", 3, config)
			w.publishes(store)
			polltest.Until(t, "the lowest rank is named", w.names(store, 0))
			w.end(0)
			w = w.of(1, 2)
			named := w.names(store, 0)
			config.Store, config.GroupName = store, "test"
			joined := w.joining(config, nil)
			w.each(func(rank int) error { return goOn(w.comms[rank]) })
			if !named() {
				t.Error("the lowest rank that is left is not named")
			}
			checkMembers(t, joined())
		})
	}
}

// What somebody has written over a member's handle does not keep a process out: members look at it
// again.
func TestJoinByStoreWrittenOver(t *testing.T) {
	store := bootstrap.NewMemStore()
	w := newWorldOf(t, "tcp", 2, joinConfigOf("tcp"))
	w.publishes(store)
	named := w.names(store, 0)
	polltest.Until(t, "the lowest rank is named", named)
	_ = store.Set(bootstrap.MembersKey("test"), []byte(changed(w.handles()[1])))
	joined := w.joining(storeConfigOf(store), nil)
	w.comms[0].acceptor.Changed() // as after a while
	polltest.Until(t, "the lowest rank is named again", named)
	w.each(func(rank int) error { return w.comms[rank].Grow(soon(t), 1) })
	checkMembers(t, joined())
}

// A store that names a member of another group leads nobody into it.
func TestJoinAnotherGroup(t *testing.T) {
	store := bootstrap.NewMemStore()
	w := newWorldOf(t, "tcp", 2, joinConfigOf("tcp"))
	_ = store.Set(bootstrap.MembersKey("mine"), []byte(w.handles()[0]))
	config := storeConfigOf(store)
	config.GroupName = "mine"
	r := NewRuntime(RuntimeConfig{Logger: logtest.Warnings(t)})
	t.Cleanup(r.Close)
	_, err := r.Join(soon(t), config, nil)
	if !errors.Is(err, ErrMismatch) || !strings.Contains(err.Error(),
		`wants to join group "mine", and is at a member of group "test"`) {
		t.Error(err)
	}
}

// failingStore is a store that cannot be used.
type failingStore struct{ bootstrap.Store }

func (failingStore) Get(string) ([]byte, bool, error) {
	return nil, false, errors.New("it is shut")
}

// silentStore is a store whose calls do not return.
type silentStore struct{ bootstrap.Store }

func (silentStore) Get(string) ([]byte, bool, error) { select {} }

// storeWith is a store that names something.
func storeWith(value string) bootstrap.Store {
	s := bootstrap.NewMemStore()
	_ = s.Set(bootstrap.MembersKey("test"), []byte(value))
	return s
}

// changed is a handle with another TCP port, or whatever stands there.
func changed(handle string) string {
	b, _ := base64.RawURLEncoding.DecodeString(handle)
	b[len(b)/2] ^= 1
	return base64.RawURLEncoding.EncodeToString(b)
}

// A process that cannot find members is told why.
func TestJoinFindsNobody(t *testing.T) {
	gone := newWorldOf(t, "tcp", 2, joinConfigOf("tcp"))
	handles := gone.handles()
	gone.close()
	for _, c := range []struct {
		what  string
		store bootstrap.Store
		join  string // GOCCL_JOIN
		kind  error
		text  string
	}{
		{"nothing", nil, "", ErrInvalidArgument, "no handles are given, nor GOCCL_JOIN, GOCCL_STORE"},
		{"no handle", nil, handles[0] + ",x", ErrInvalidArgument,
			`handle 2 of 2 in GOCCL_JOIN, "x", is none`},
		{"gone", nil, handles[0] + ", " + handles[1], ErrPeerFailed,
			"no member of those whose handles are given in GOCCL_JOIN is there any more"},
		{"empty store", bootstrap.NewMemStore(), "", ErrTimeout,
			`at "goccl/members/test" of the store: nothing is there`},
		{"gone, in the store", storeWith(handles[0]), "", ErrTimeout, "is not a member any more"},
		{"malformed", storeWith("a\nb"), "", ErrInvalidArgument,
			`at "goccl/members/test" of the store is "a\\nb", which is no handle`},
		{"changed", nil, changed(handles[0]), ErrMismatch, "handle 1 of 1 in GOCCL_JOIN: pid "},
		{"changed, in the store", storeWith(changed(handles[0])), "", ErrMismatch,
			`at "goccl/members/test" of the store is the handle of another job: pid `},
		{"failing", failingStore{}, "", ErrSystem, `reading "goccl/members/test" from the store: it is`},
		{"silent", silentStore{}, "", ErrTimeout, "it has not answered within"},
	} {
		t.Run(c.what, func(t *testing.T) {
			t.Parallel()
			r := NewRuntime(RuntimeConfig{Logger: logtest.Warnings(t), Getenv: func(name string) string {
				return map[string]string{EnvJoin: c.join}[name]
			}})
			defer r.Close()
			config := storeConfigOf(c.store)
			for config.Timeout = time.Second; ; config.Timeout *= 4 { // a busy host takes longer
				_, err := r.Join(context.Background(), config, nil)
				if errors.Is(err, c.kind) && strings.Contains(fmt.Sprint(err), c.text) {
					return
				}
				if config.Timeout > time.Minute || !errors.Is(err, ErrTimeout) {
					t.Fatal(err)
				}
			}
		})
	}
}

// closedStore counts how often it is closed.
type closedStore struct {
	bootstrap.Store
	mu    sync.Mutex
	times int
}

func (s *closedStore) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.times++
	return nil
}

// A store is used until the next one is given, or the communicator is destroyed, and closed once.
func TestPublish(t *testing.T) {
	w := newWorldOf(t, "tcp", 2, joinConfigOf("tcp"))
	first := &closedStore{Store: bootstrap.NewMemStore()}
	second := &closedStore{Store: bootstrap.NewMemStore()}
	late := &closedStore{Store: bootstrap.NewMemStore()}
	c := w.comms[0]
	if err := c.Publish(nil); !errors.Is(err, ErrInvalidArgument) ||
		!strings.Contains(err.Error(), "publish: no store is given, nor GOCCL_STORE") {
		t.Error(err)
	}
	for _, s := range []bootstrap.Store{first, second} {
		if err := c.Publish(s); err != nil {
			t.Fatal(err)
		}
		polltest.Until(t, "the handle is there", w.names(s, 0))
	}
	if first.times != 1 || second.times != 0 {
		t.Errorf("closed %d and %d times", first.times, second.times)
	}
	c.Destroy()
	if second.times != 1 {
		t.Errorf("closed %d times", second.times)
	}
	if err := c.Publish(late); !errors.Is(err, ErrAborted) || late.times != 1 {
		t.Errorf("closed %d times: %v", late.times, err)
	}
}
