package p2p

import (
	"sync"
)

// serial runs functions one after the other, in order, in a goroutine that exists while there are
// some.
type serial struct {
	mu      sync.Mutex
	waiting []func()
	busy    bool
}

func (s *serial) do(e *Engine, f func()) {
	e.enter()
	s.mu.Lock()
	s.waiting = append(s.waiting, f)
	start := !s.busy
	s.busy = true
	s.mu.Unlock()
	if start {
		e.Works.Spawn(func() { s.drain(e) })
	}
}

// now runs f on the caller if nothing is before it. It tells whether it did, and f said that it was
// done.
func (s *serial) now(e *Engine, f func() bool) bool {
	s.mu.Lock()
	if s.busy {
		s.mu.Unlock()
		return false
	}
	s.busy = true
	s.mu.Unlock()
	done := f()
	s.mu.Lock()
	more := len(s.waiting) > 0
	s.busy = more
	s.mu.Unlock()
	if more {
		e.Works.Spawn(func() { s.drain(e) })
	}
	return done
}

func (s *serial) drain(e *Engine) {
	for {
		s.mu.Lock()
		if len(s.waiting) == 0 {
			s.busy = false
			s.waiting = nil
			s.mu.Unlock()
			return
		}
		f := s.waiting[0]
		s.waiting = s.waiting[1:]
		s.mu.Unlock()
		f()
		e.exit()
	}
}
