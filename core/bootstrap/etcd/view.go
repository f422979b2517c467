package etcd

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"
)

// view is what etcd holds of some keys, kept up to date by a watch.
type view struct {
	key    string // the one, or what all begin with
	prefix bool   // it is what all begin with
	most   int    // the size of all: where they are more they are not known

	mu      sync.Mutex
	found   *found             // nil while they are not known; guarded by mu
	changed chan struct{}      // closed at the next change; guarded by mu
	drop    context.CancelFunc // ends the present watch; guarded by mu
}

// entry is a key's value, or that there is none any more.
type entry struct {
	value    []byte
	gone     bool
	revision int64 // since when
	lease    int64 // that it ends with
}

func newView(key string, prefix bool, most int) *view {
	return &view{key: key, prefix: prefix, most: most, changed: make(chan struct{}), drop: func() {}}
}

// entryHead is what an entry takes up besides its key and value, about, here and in an answer.
const entryHead = 256

// size is what an entry takes up.
func (e *entry) size(key string) int { return entryHead + len(key) + len(e.value) }

// covers tells whether the view has a key.
func (v *view) covers(key string) bool {
	return key == v.key || v.prefix && strings.HasPrefix(key, v.key)
}

// rangeEnd is the first key after all that the view has.
func (v *view) rangeEnd() []byte {
	if !v.prefix {
		return nil
	}
	end := []byte(v.key)
	end[len(end)-1]++ // the last one is a slash
	return end
}

// get looks a key up. Known is false while the view is not up to date. Changed is closed once there
// may be something new.
func (v *view) get(key string) (value []byte, ok, known bool, changed <-chan struct{}) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.found == nil {
		return nil, false, false, v.changed
	}
	e, ok := v.found.entries[key]
	return e.value, ok && !e.gone, true, v.changed
}

// foreign tells whether there are keys that do not end with a lease.
func (v *view) foreign(lease int64) (is bool, changed <-chan struct{}) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.found == nil {
		return true, v.changed
	}
	for _, e := range v.found.entries {
		is = is || !e.gone && e.lease != lease
	}
	return is, v.changed
}

// put takes over what has been written, unless it knows something newer. It fails where that is
// more than the view may have.
func (v *view) put(key string, e entry) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.found == nil {
		return nil
	}
	if err := v.found.put(key, e); err != nil {
		return err
	}
	v.tell()
	return nil
}

// tell wakes those who wait for a change. The caller holds the lock.
func (v *view) tell() {
	close(v.changed)
	v.changed = make(chan struct{})
}

// run keeps the view up to date until the context ends.
func (v *view) run(ctx context.Context, g *gateway) {
	for wait := retryFirst; ctx.Err() == nil; wait = min(2*wait, retryLast) {
		if v.follow(ctx, g) {
			wait = retryFirst
		}
		v.set(nil, func() {})
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
		}
	}
}

// follow reads all keys and then what happens to them, and tells whether it could.
func (v *view) follow(ctx context.Context, g *gateway) (followed bool) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	all := &found{covers: v.covers, limit: v.most}
	which := rangeRequest{[]byte(v.key), v.rangeEnd()}
	if g.call(ctx, ctx, "kv/range", which, all) != nil {
		return false // a reader that asks etcd itself is told why
	}
	v.set(all, cancel)
	err := g.watch(ctx, watchCreate{which.Key, which.RangeEnd, all.revision + 1}, all.most(),
		func(e event) error {
			now := e.KV.entry()
			now.gone = e.Type == eventDelete
			return v.put(string(e.KV.Key), now)
		})
	return !errors.Is(err, errTooLong)
}

func (kv *keyValue) entry() entry {
	return entry{value: kv.Value, revision: kv.ModRevision, lease: kv.Lease}
}

func (v *view) set(all *found, drop context.CancelFunc) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.found, v.drop = all, drop
	v.tell()
}

// doubt ends the present watch, so that all is read anew.
func (v *view) doubt() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.drop()
}
