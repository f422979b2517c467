package exec

import (
	"os"
	"testing"
	"time"
)

// What one process tells of a host the others see, the last of it, whatever it has told of others.
func TestSightings(t *testing.T) {
	var s Sightings
	if _, known := s.Seen(7); known {
		t.Error("a host of which nobody has told is known")
	}
	for host := range uint64(1000) { // more than there is room for
		s.Saw(host+1000, time.Hour)
	}
	s.Saw(7, time.Minute)
	s.Saw(7, time.Second)
	peer := &Life{ownPage(t)}
	lives.mu.Lock()
	if lives.watched == nil {
		lives.watched = map[*Life]func(){}
	}
	lives.watched[peer] = func() {}
	lives.mu.Unlock()
	defer func() {
		lives.mu.Lock()
		defer lives.mu.Unlock()
		delete(lives.watched, peer)
	}()
	ago, known := s.Seen(7)
	if !known || ago < time.Second || ago > 30*time.Second {
		t.Errorf("seen %v ago, known %v", ago, known)
	}
	if _, known := s.Seen(8); known {
		t.Error("a host of which nobody has told is known")
	}
}

// ownPage maps this process's page, as another process does.
func ownPage(t *testing.T) []byte {
	t.Helper()
	return must(mapLife(os.Getpid(), must(OwnLife()), OwnMark()))
}
