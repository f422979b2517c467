package main

import (
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/mattn/go-pointer"
)

// object is what a handle names, such as a *commHandle.
type object interface{ handle() *atomic.Uint64 }

// issued is a part of every object: its own handle, 0 before it is saved and after it is dropped.
type issued struct{ number atomic.Uint64 }

func (i *issued) handle() *atomic.Uint64 { return &i.number }

// handleStep is odd, so that multiples of it repeat only after 2^64 handles. It is large, so that
// small numbers, which a program may give by mistake, are none for a long time.
const handleStep = 0x9e3779b97f4a7c15

// handles has the pointer of go-pointer for each handle that is valid now. The pointer itself is no
// handle: memory is reused at once, so a stale one would name a new object. What a program gives is
// looked up here and never becomes a pointer: to Go's garbage collector a forged one may be a fatal
// error. Nothing is assumed of the pointers, which come from the process's malloc.
var handles = struct {
	sync.RWMutex
	saved map[uint64]unsafe.Pointer
	last  uint64 // the last handle that was given out
}{saved: map[uint64]unsafe.Pointer{}}

// save gives an object a handle.
func save(o object) uint64 {
	p := pointer.Save(o)
	handles.Lock()
	defer handles.Unlock()
	handles.last += handleStep
	h := handles.last
	handles.saved[h] = p
	o.handle().Store(h)
	return h
}

// recent is the communicator that was restored last. Programs call one again and again.
var recent atomic.Pointer[commHandle]

// restoreComm finds the communicator of a handle.
func restoreComm(h uint64) (*commHandle, error) {
	if c := recent.Load(); c != nil && c.number.Load() == h && h != 0 {
		return c, nil
	}
	c, err := restore[*commHandle](h, "comm")
	if err == nil {
		recent.Store(c)
	}
	return c, err
}

// restore finds the object of a handle of type T.
func restore[T object](h uint64, what string) (T, error) {
	var none T
	handles.RLock()
	p := handles.saved[h]
	handles.RUnlock()
	// The handle may be dropped at this moment, and its memory may even carry another object.
	if o, ok := pointer.Restore(p).(T); ok && o.handle().Load() == h {
		return o, nil
	}
	return none, badHandle(h, what)
}

func badHandle(h uint64, what string) error {
	return errorf(codeInvalidHandle, "%[1]s is %#[2]x, which is not a valid handle of a %[1]s: "+
		"it is stale or was never given out", what, h)
}

// drop makes a handle invalid. Of several calls for one handle, one is told true.
func drop(h uint64) bool {
	handles.Lock()
	p, ok := handles.saved[h]
	delete(handles.saved, h)
	handles.Unlock()
	if ok {
		if o, ok := pointer.Restore(p).(object); ok {
			o.handle().Store(0)
		}
		pointer.Unref(p)
	}
	return ok
}

// allComms returns the communicators that have a handle now.
func allComms() []*commHandle {
	handles.RLock()
	var numbers []uint64
	for h := range handles.saved {
		numbers = append(numbers, h)
	}
	handles.RUnlock()
	var all []*commHandle
	for _, h := range numbers {
		if c, err := restore[*commHandle](h, "comm"); err == nil {
			all = append(all, c)
		}
	}
	return all
}
