// Package bootstrap is how the ranks of a communicator find each other.
//
// [Join] agrees on a [Roster] through any key-value [Store] that all ranks share: torch's, a
// [MemStore], or one that rank 0 serves itself at a root address ([NewRoot], [DialRoot]).
package bootstrap

import "sync"

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
