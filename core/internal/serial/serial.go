// Package serial runs functions one after the other.
package serial

import "sync"

// Queue runs functions in order, in a goroutine that exists while there are some. The zero value,
// with Spawn, has none.
type Queue struct {
	Spawn func(func()) // runs a function in the background

	mu      sync.Mutex // guards what follows
	waiting []func()
	busy    bool
}

// Do has f run behind all that is there. It does not wait.
func (q *Queue) Do(f func()) {
	q.mu.Lock()
	q.waiting = append(q.waiting, f)
	start := !q.busy
	q.busy = true
	q.mu.Unlock()
	if start {
		q.Spawn(q.drain)
	}
}

// Now runs f on the caller if nothing is before it. It reports whether it did, and f said that it
// was done.
func (q *Queue) Now(f func() bool) bool {
	q.mu.Lock()
	if q.busy {
		q.mu.Unlock()
		return false
	}
	q.busy = true
	q.mu.Unlock()
	done := f()
	q.mu.Lock()
	more := len(q.waiting) > 0
	q.busy = more
	q.mu.Unlock()
	if more {
		q.Spawn(q.drain)
	}
	return done
}

func (q *Queue) drain() {
	for {
		q.mu.Lock()
		if len(q.waiting) == 0 {
			q.busy, q.waiting = false, nil
			q.mu.Unlock()
			return
		}
		f := q.waiting[0]
		q.waiting = q.waiting[1:]
		q.mu.Unlock()
		f()
	}
}
