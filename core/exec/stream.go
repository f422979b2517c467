package exec

/*
#include "stream.h"
*/
import "C"

import (
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// FastStreams tells whether this process's CPU copies what is in no cache faster past the caches
// than by way of them. Some CPUs write whole lines without fetching them first in either way. It is
// measured once, in less than two milliseconds. Where it is not so, writes to peers keep to the
// caches from then on. Where it cannot be measured streams are taken to be fast. Nothing but this
// rank's own time depends on it.
var FastStreams = sync.OnceValue(func() bool {
	cached, streamed := streamTimes()
	fast := streamed <= cached
	if !fast {
		streamSlowly(true)
	}
	return fast
})

// streamSlowly sets whether writes to peers keep to the caches.
func streamSlowly(yes bool) {
	word := uint32(0)
	if yes {
		word = 1
	}
	atomic.StoreUint32((*uint32)(unsafe.Pointer(&C.goccl_streams_slowly)), word)
}

// streamTimes are how long it takes to copy a piece by way of the caches and past them: the medians
// of several times each, in turn, for other threads may have had the CPU. Zero: it cannot be
// measured.
func streamTimes() (cached, streamed time.Duration) {
	const half = 256 << 10
	mem, err := unix.Mmap(-1, 0, 2*half, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return 0, 0
	}
	defer unix.Munmap(mem)
	var c, s C.uint64_t
	C.goccl_stream_times(unsafe.Pointer(&mem[0]), half, &c, &s)
	return time.Duration(c), time.Duration(s)
}
