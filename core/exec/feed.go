package exec

/*
#include <stdlib.h>
#include "exec.h"

int goccl_go_need(void *context, int block, uint64_t from, uint64_t upto, char *error,
                  size_t error_size);
void goccl_go_final(void *context, int block, uint64_t from, uint64_t upto);

static inline void goccl_feed_final(void *final, void *context, int block, uint64_t upto) {
  ((void (*)(void *, int, uint64_t, uint64_t))final)(context, block, 0, upto);
}
*/
import "C"

import (
	"fmt"
	"runtime"
	"unsafe"

	"github.com/mattn/go-pointer"
)

// Feed is how the inputs of an operation come, and its outputs go, while its plan runs. Its
// functions are those of goccl_run_feed. A nil one: inputs are there, nobody is told of outputs, or
// blocks lie where the operation says.
type Feed struct {
	Context              unsafe.Pointer
	Need, Final, Segment unsafe.Pointer // functions in C
	Kept                 unsafe.Pointer // of a [Kept]; nil: no input is kept
}

// Feeder is a feed in Go. Its methods are called by the thread that runs the collective, one at a
// time. They must not block. One that panics fails the communicator.
type Feeder interface {
	// Need reports whether bytes from one on, up to another one, of an input block are there. It is
	// asked again until they are. An error fails the communicator.
	Need(block int, from, upto uint64) (there bool, err error)
	// Final tells that nothing writes to those bytes of an output block any more.
	Final(block int, from, upto uint64)
}

// held is a feeder that C has a pointer to.
type held struct {
	Feeder
	fail func(why string)
}

// NewFeed makes the feed of a feeder. It holds the feeder until release is called, once no
// collective uses it any more. It calls fail where Final panics, which has no other way to tell.
func NewFeed(f Feeder, fail func(why string)) (feed Feed, release func()) {
	context := pointer.Save(held{f, fail})
	return Feed{Context: context, Need: C.goccl_go_need, Final: C.goccl_go_final},
		func() { pointer.Unref(context) }
}

//export goccl_go_need
func goccl_go_need(context unsafe.Pointer, block C.int, from, upto C.uint64_t, text *C.char,
	size C.size_t) (answer C.int) {
	fail := func(why string) {
		to := unsafe.Slice((*byte)(unsafe.Pointer(text)), int(size))
		to[copy(to[:len(to)-1], why)] = 0
		answer = -1
	}
	defer func() { // a panic must not cross C
		if p := recover(); p != nil {
			fail(fmt.Sprintf("panic: %v", p))
		}
	}()
	there, err := pointer.Restore(context).(held).Need(int(block), uint64(from), uint64(upto))
	switch {
	case err != nil:
		fail(err.Error())
	case there:
		answer = 1
	}
	return answer
}

//export goccl_go_final
func goccl_go_final(context unsafe.Pointer, block C.int, from, upto C.uint64_t) {
	f := pointer.Restore(context).(held)
	defer func() {
		if p := recover(); p != nil {
			f.fail(fmt.Sprintf("panic: %v", p))
		}
	}()
	f.Final(int(block), uint64(from), uint64(upto))
}

// feed has the run ask a feed, nil for none.
func (r *Run) feed(f *Feed) {
	r.c.feed = C.goccl_run_feed{}
	if f == nil {
		return
	}
	r.c.feed.context = f.Context
	*(*unsafe.Pointer)(unsafe.Pointer(&r.c.feed.need)) = f.Need
	*(*unsafe.Pointer)(unsafe.Pointer(&r.c.feed.final)) = f.Final
	*(*unsafe.Pointer)(unsafe.Pointer(&r.c.feed.segment)) = f.Segment
	r.c.feed.kept = (*C.goccl_kept)(f.Kept)
}

// Locate has the feed say, before the first step of the plan that begins, where the bytes of blocks
// lie, from the plan's offset up to another one. Without such a feed that is known.
func (r *Run) Locate(upto int64) {
	if r.c.feed.segment != nil {
		r.c.upto = C.uint64_t(upto)
	}
}

// Deliver tells a feed that an output block, of so many bytes, is final.
func (f *Feed) Deliver(block int, bytes uint64) {
	if f.Final != nil && bytes > 0 {
		C.goccl_feed_final(f.Final, f.Context, C.int(block), C.uint64_t(bytes))
	}
}

// Kept has copies of inputs that come by a feed, and are overwritten by outputs: an operation that
// runs once more needs them.
type Kept struct {
	c       *C.goccl_kept
	cleanup runtime.Cleanup // for what is never started
}

// NewKept makes memory for inputs of some lengths, by block; 0: the block is not kept.
func NewKept(bytes []int64) (*Kept, error) {
	var a allocator
	k := &Kept{c: alloc[C.goccl_kept](&a, 1)}
	images := alloc[*C.uint8_t](&a, len(bytes))
	for i, n := range bytes {
		if n > 0 && a.err == nil {
			unsafe.Slice(images, len(bytes))[i] = alloc[C.uint8_t](&a, int(n))
		}
	}
	if k.c == nil {
		return nil, a.err
	}
	k.c.images, k.c.blocks = images, C.size_t(len(bytes))
	if a.err != nil {
		freeKept(k.c)
		return nil, a.err
	}
	k.cleanup = runtime.AddCleanup(k, freeKept, k.c)
	return k, nil
}

func freeKept(c *C.goccl_kept) {
	if c.images != nil {
		for _, image := range unsafe.Slice(c.images, c.blocks) {
			free(unsafe.Pointer(image))
		}
	}
	free(unsafe.Pointer(c.images), unsafe.Pointer(c.parts), unsafe.Pointer(c))
}

// C is what [Feed.Kept] has.
func (k *Kept) C() unsafe.Pointer { return unsafe.Pointer(k.c) }

// Restore copies what has been kept back to the inputs.
func (k *Kept) Restore(in []unsafe.Pointer) {
	C.goccl_restore(k.c, (**C.uint8_t)(unsafe.Pointer(unsafe.SliceData(in))))
}

// Free gives the memory back. No run uses it any more.
func (k *Kept) Free() {
	k.cleanup.Stop()
	freeKept(k.c)
}

// FeedError is why an input does not come.
func (r *Run) FeedError() string { return C.GoString(&r.c.feed_error[0]) }

// Unfed is the input that the present step waits for: bytes of a block. Of all blocks it is -1: the
// memory of the plan's is waited for.
func (r *Run) Unfed() (block int, from, upto int64) {
	if r.c.begun == 0 {
		return -1, int64(r.c.offset), int64(r.c.upto)
	}
	s := r.stepNow()
	ref := unsafe.Slice(r.c.plan.sources, s.first_source+1)[s.first_source]
	from = int64(r.c.offset) + int64(ref.offset)
	return int(ref.block), from, from + int64(s.bytes)
}
