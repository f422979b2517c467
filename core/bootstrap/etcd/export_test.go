package etcd

// Tire makes the proof of the user one that etcd does not know.
func (s *Store) Tire() {
	s.gateway.mu.Lock()
	defer s.gateway.mu.Unlock()
	if s.gateway.token != "" {
		s.gateway.token = "unknown.1"
	}
}
