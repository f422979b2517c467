package p2p

import (
	"testing"
)

func TestBufferClasses(t *testing.T) {
	for n := uint64(0); n <= EagerBudget; n += 1 + n/64 {
		class, length := bufferClass(n)
		if length < n || length > max(n+n/8, 1) || class >= len(buffers{}) {
			t.Fatalf("%d bytes: class %d, %d bytes", n, class, length)
		}
		if same, as := bufferClass(length); same != class || as != length {
			t.Fatalf("%d bytes: class %d, but %d of the same length, %d", n, class, same, length)
		}
	}
}
