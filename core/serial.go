package core

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

func (s *serial) do(c *epoch, f func()) {
	c.p2p.enter()
	s.mu.Lock()
	s.waiting = append(s.waiting, f)
	start := !s.busy
	s.busy = true
	s.mu.Unlock()
	if start {
		c.spawn(func() { s.drain(c) })
	}
}

// now runs f on the caller if nothing is before it. It tells whether it did, and f said that it was
// done.
func (s *serial) now(c *epoch, f func() bool) bool {
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
		c.spawn(func() { s.drain(c) })
	}
	return done
}

func (s *serial) drain(c *epoch) {
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
		c.p2p.exit()
	}
}
