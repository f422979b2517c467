package p2p

import (
	"math/bits"
	"sync"
)

// buffers are kept for eager sends that no receive waits for: fresh memory costs more than the
// copy. Their lengths are eight to each power of two, so that they hold an eighth more than their
// data at most; what is not used for long Go takes back.
type buffers [8 * 24]sync.Pool // for more than eagerBudget

func bufferClass(n uint64) (class int, length uint64) {
	last := max(n, 1) - 1
	shift := max(bits.Len64(last)-4, 0)
	eighths := last>>shift + 1
	return 8*shift + int(eighths), eighths << shift
}

func (b *buffers) get(n uint64) []byte {
	class, length := bufferClass(n)
	if kept, ok := b[class].Get().(*[]byte); ok {
		return (*kept)[:n]
	}
	return make([]byte, n, length)
}

func (b *buffers) put(data []byte) {
	class, _ := bufferClass(uint64(cap(data)))
	b[class].Put(&data)
}
