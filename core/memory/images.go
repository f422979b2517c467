package memory

import "sync"

// Images is memory for copies: what has been used costs less than fresh memory. The zero value is
// ready.
type Images struct{ pool sync.Pool } // of *[]byte

// Take returns memory of undefined contents.
func (m *Images) Take(bytes int) []byte {
	if b, ok := m.pool.Get().(*[]byte); ok && cap(*b) >= bytes {
		return (*b)[:bytes]
	}
	return make([]byte, bytes)
}

// Give takes back what Take has returned.
func (m *Images) Give(b *[]byte) { m.pool.Put(b) }
