package bootstrap

import (
	"sync"
	"time"
)

// rootLinger is how long a root stays after rank 0 has met the others, for ranks that still read.
const rootLinger = 30 * time.Second

// Roots are the roots that a process has opened, until rank 0 meets the others there. The zero
// value has none.
type Roots struct {
	mu   sync.Mutex
	byID map[[IDSize]byte]*Root // nil: it has been taken; guarded by mu
}

// Open opens a root as [NewRootOn] does, and returns its id. One that is not taken closes after the
// time.
func (r *Roots) Open(allowed string, unused time.Duration) (id [IDSize]byte, err error) {
	root, err := NewRootOn(allowed)
	if err != nil {
		return id, err
	}
	id = root.ID()
	r.mu.Lock()
	if r.byID == nil {
		r.byID = map[[IDSize]byte]*Root{}
	}
	r.byID[id] = root
	r.mu.Unlock()
	time.AfterFunc(unused, func() { r.Close(id) })
	return id, nil
}

// Take hands over a root of this process, nil if the id is of another one, or has been taken.
func (r *Roots) Take(id [IDSize]byte) *Root {
	r.mu.Lock()
	defer r.mu.Unlock()
	root := r.byID[id]
	if root != nil {
		r.byID[id] = nil
	}
	return root
}

// Reopen hands over a root of this process, which it opens at the same address if it has been
// taken; nil if the id is of another process.
func (r *Roots) Reopen(id [IDSize]byte) (*Root, error) {
	if root := r.Take(id); root != nil {
		return root, nil
	}
	r.mu.Lock()
	_, own := r.byID[id]
	r.mu.Unlock()
	if !own {
		return nil, nil
	}
	return OpenRoot(id)
}

// Close closes a root that has not been taken.
func (r *Roots) Close(id [IDSize]byte) {
	if root := r.Take(id); root != nil {
		root.Close()
	}
}

// Meet takes a root of this process, and returns its store; nil if there is none to take. The
// caller calls done when it has met the others there.
func (r *Roots) Meet(id [IDSize]byte) (s Store, done func()) {
	root := r.Take(id)
	if root == nil {
		return nil, nil
	}
	return root.Store(), func() { root.Drain(rootLinger) }
}
