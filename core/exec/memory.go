package exec

// #include <stdlib.h>
import "C"

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// calloc is C's, except in tests.
var calloc = func(n, size uintptr) unsafe.Pointer { return C.calloc(C.size_t(n), C.size_t(size)) }

// allocator makes memory of C for things that are needed together. It remembers the first failure,
// and makes nothing after it.
type allocator struct {
	bytes int64 // that it has allocated
	err   error
}

// alloc returns memory for so many values, and for one at least. They are zero.
func alloc[T any](a *allocator, n int) *T {
	if a.err != nil {
		return nil
	}
	size := unsafe.Sizeof(*new(T))
	p := calloc(uintptr(max(n, 1)), size)
	a.bytes += int64(max(n, 1)) * int64(size)
	if p == nil {
		a.err = fmt.Errorf("%d times %d bytes of memory: %w", n, size, outOfMemory(unix.ENOMEM))
	}
	return (*T)(p)
}

// free gives memory of C back. Of nil there is none.
func free(memory ...unsafe.Pointer) {
	for _, p := range memory {
		C.free(p)
	}
}
