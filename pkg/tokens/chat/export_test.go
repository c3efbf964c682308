package chat

// Used returns how many bytes the store is taken to use, and how many members it holds.
func (s *Store) Used() (bytes, members int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.used, len(s.entries)
}
