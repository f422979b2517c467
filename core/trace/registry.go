package trace

import (
	"slices"
	"sync"
	"sync/atomic"
)

// Registry has the traces of a process's communicators. The zero one is empty. To read it takes no
// lock.
type Registry struct {
	mu  sync.Mutex // guards changes of all
	all atomic.Pointer[[]*Trace]
}

// Add adds a trace.
func (r *Registry) Add(t *Trace) {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := append(slices.Clone(r.All()), t)
	r.all.Store(&all)
}

// Remove takes a trace out.
func (r *Registry) Remove(t *Trace) {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := slices.DeleteFunc(slices.Clone(r.All()), func(o *Trace) bool { return o == t })
	r.all.Store(&all)
}

// All are the traces, in the order in which they were added. The caller does not change them.
func (r *Registry) All() []*Trace {
	if all := r.all.Load(); all != nil {
		return *all
	}
	return nil
}
