package main

import (
	"fmt"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/mattn/go-pointer"
)

// A handle is the pointer that go-pointer stores an object under, and a serial number: memory is
// reused at once, so the pointer alone would let a stale handle name a new object. Pointers are
// below 2^48 and aligned to 16 bytes, so both fit into 64 bits.
const (
	pointerBits  = 48
	pointerAlign = 4
	serialBits   = 64 - pointerBits + pointerAlign
)

// object is what a handle names: a *commHandle or a *workHandle.
type object interface{ handle() *atomic.Uint64 }

// issued is a part of every object: its own handle, 0 before it is saved and after it is dropped.
type issued struct{ number atomic.Uint64 }

func (i *issued) handle() *atomic.Uint64 { return &i.number }

// handles holds the handles that are valid now. A number is looked up here before it becomes a
// pointer: to Go's garbage collector a forged pointer may be a fatal error.
var handles = struct {
	sync.RWMutex
	live   map[uint64]struct{}
	serial uint64
}{live: map[uint64]struct{}{}}

// save gives an object a handle.
func save(o object) uint64 {
	p := pointer.Save(o)
	address := uint64(uintptr(p))
	if address>>pointerBits != 0 || address&(1<<pointerAlign-1) != 0 {
		pointer.Unref(p)
		panic(fmt.Sprintf("a pointer of malloc, %#x, has an unknown form", address))
	}
	handles.Lock()
	defer handles.Unlock()
	handles.serial++
	h := address>>pointerAlign<<serialBits | handles.serial&(1<<serialBits-1)
	handles.live[h] = struct{}{}
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
	_, ok := handles.live[h]
	handles.RUnlock()
	if ok {
		// The handle may be dropped at this moment, and its memory may even carry another object.
		if o, ok := pointer.Restore(saved(h)).(T); ok && o.handle().Load() == h {
			return o, nil
		}
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
	_, ok := handles.live[h]
	delete(handles.live, h)
	handles.Unlock()
	if ok {
		if o, ok := pointer.Restore(saved(h)).(object); ok {
			o.handle().Store(0)
		}
		pointer.Unref(saved(h))
	}
	return ok
}

// saved is the pointer of a handle that save has given out.
func saved(h uint64) unsafe.Pointer {
	address := uintptr(h >> serialBits << pointerAlign)
	// Memory of malloc, which Go's garbage collector neither owns nor moves.
	return *(*unsafe.Pointer)(unsafe.Pointer(&address))
}

// allComms returns the communicators that have a handle now.
func allComms() []*commHandle {
	handles.RLock()
	var numbers []uint64
	for h := range handles.live {
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
