package trace

import (
	"slices"
	"sync"
	"sync/atomic"
)

// groupNames is how many groups are counted under their own names, the others under Other: a job
// may make groups without end.
const groupNames = 64

// Other is the name of all groups that have none of their own in a Registry's Counters.
const Other = "other"

// Registry has the traces of a process's communicators. The zero one is empty. To read it takes no
// lock.
type Registry struct {
	mu    sync.Mutex      // guards changes
	names map[string]bool // of groups; guarded by mu
	held  atomic.Pointer[held]
}

// held is what a registry has. It does not change: the next one takes its place.
type held struct {
	traces []*Trace
	names  []string // under which each is counted
	gone   Counters // of traces that were taken out
}

func (r *Registry) load() held {
	if h := r.held.Load(); h != nil {
		return *h
	}
	return held{}
}

// Add adds the trace of a group.
func (r *Registry) Add(t *Trace, group string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.names == nil {
		r.names = map[string]bool{}
	}
	if !r.names[group] && len(r.names) == groupNames {
		group = Other
	} else {
		r.names[group] = true
	}
	h := r.load()
	r.held.Store(&held{append(slices.Clone(h.traces), t), append(slices.Clone(h.names), group),
		h.gone})
}

// Remove takes a trace out, in which nothing is counted any more. Its counters stay.
func (r *Registry) Remove(t *Trace) {
	r.mu.Lock()
	defer r.mu.Unlock()
	h := r.load()
	i := slices.Index(h.traces, t)
	if i < 0 {
		return
	}
	r.held.Store(&held{slices.Delete(slices.Clone(h.traces), i, i+1),
		slices.Delete(slices.Clone(h.names), i, i+1), h.gone.plus(t.Counters(), h.names[i])})
}

// All are the traces, in the order in which they were added. The caller does not change them.
func (r *Registry) All() []*Trace { return r.load().traces }

// Counters are the sums of all traces, with those that were taken out. Of each group the name is
// that under which it is counted.
func (r *Registry) Counters() Counters {
	h := r.load()
	sums := h.gone
	for i, t := range h.traces {
		sums = sums.plus(t.Counters(), h.names[i])
	}
	return sums
}
