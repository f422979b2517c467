package exec

// #include "fastpath.h"
import "C"

import (
	"runtime"
	"unsafe"
)

// Credit is a goccl_credit: what has gone between this rank and a peer. Sends and receives in Go
// and in C go on with it, those in C while the gate for sends is open.
type Credit struct {
	EagerSent, EagerDone, Sent, Done, Received, Told, Came, Taken, ToldTaken uint64
}

var _ [C.sizeof_goccl_credit]byte = [unsafe.Sizeof(Credit{})]byte{}

// Credits are those of all ranks. Their memory lives as long as they do.
type Credits struct {
	c     *C.goccl_credit
	ranks int
}

// NewCredits makes credits with nothing sent or received.
func NewCredits(ranks int) (*Credits, error) {
	var a allocator
	c := &Credits{alloc[C.goccl_credit](&a, ranks), ranks}
	if a.err != nil {
		return nil, a.err
	}
	runtime.AddCleanup(c, func(p *C.goccl_credit) { free(unsafe.Pointer(p)) }, c.c)
	return c, nil
}

// Of is the credit of a rank.
func (c *Credits) Of(rank int) *Credit {
	return (*Credit)(unsafe.Pointer(&unsafe.Slice(c.c, c.ranks)[rank]))
}
