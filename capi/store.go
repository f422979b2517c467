package main

// #include <stdlib.h>
// #include <string.h>
// #include "api.h"
import "C"

import (
	"math"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/goccl/goccl/capi/deep"
)

// store is the caller's key-value store. A callback may not return, and nobody waits for it for
// long.
type store struct {
	c     *C.goccl_store
	turn  chan struct{} // held by the callback that runs
	left  atomic.Bool   // no callback begins any more
	freed chan struct{} // closed when, besides, none runs
}

// callbackPatience is for a callback that still runs.
const callbackPatience = time.Second

const storeMessage = 1024

var errNoMemory = errorf(C.GOCCL_SYSTEM, "out of memory")

// newStore copies the struct into C's memory: it holds pointers of C, and Go hands it to C.
func newStore(from *C.goccl_store) (*store, error) {
	given, err := takeStruct(from, C.sizeof_goccl_store, "store")
	if err != nil {
		return nil, err
	}
	if given.set == nil {
		return nil, invalid("config.store.set", "NULL", "it must be a function")
	}
	if given.get == nil {
		return nil, invalid("config.store.get", "NULL", "it must be a function")
	}
	s := &store{c: (*C.goccl_store)(C.calloc(1, C.sizeof_goccl_store)), turn: make(chan struct{}, 1),
		freed: make(chan struct{})}
	if s.c == nil {
		return nil, errNoMemory
	}
	*s.c = given
	return s, nil
}

// leave ends the use of the store: no callback begins any more.
func (s *store) leave() {
	if s.left.Swap(true) {
		return
	}
	go func() {
		s.turn <- struct{}{} // and stays there
		C.free(unsafe.Pointer(s.c))
		close(s.freed)
	}()
}

// Close is leave that waits for the callback that runs, if it returns soon.
func (s *store) Close() error {
	s.leave()
	select {
	case <-s.freed:
	case <-time.After(callbackPatience):
	}
	return nil
}

// begin lets one callback run at a time.
func (s *store) begin() error {
	select {
	case s.turn <- struct{}{}:
	case <-time.After(callbackPatience):
		return errorf(C.GOCCL_SYSTEM, "an earlier call of the store has not returned")
	}
	if s.left.Load() {
		s.end()
		return errorf(C.GOCCL_SYSTEM, "the store is not used any more")
	}
	return nil
}

func (s *store) end() { <-s.turn }

// call runs one callback of the store. C may call in again, on the same stack.
func (s *store) call(key string, f func(key, message *C.char) C.int) (C.int, error) {
	if err := s.begin(); err != nil {
		return 0, err
	}
	defer s.end()
	k := C.CString(key)
	defer C.free(unsafe.Pointer(k))
	message := (*C.char)(C.calloc(1, storeMessage))
	if message == nil {
		return 0, errNoMemory
	}
	defer C.free(unsafe.Pointer(message))
	var status C.int
	deep.Call(func() { status = f(k, message) })
	if status < 0 || status > 1 {
		return 0, errorf(C.GOCCL_SYSTEM, "%s",
			C.GoStringN(message, C.int(C.strnlen(message, storeMessage))))
	}
	return status, nil
}

// Set implements bootstrap.Store.
func (s *store) Set(key string, value []byte) error {
	_, err := s.call(key, func(key, message *C.char) C.int {
		return C.api_store_set(s.c, key, (*C.char)(unsafe.Pointer(unsafe.SliceData(value))),
			C.size_t(len(value)), message, storeMessage)
	})
	return err
}

// Get implements bootstrap.Store.
func (s *store) Get(key string) (value []byte, ok bool, err error) {
	status, err := s.call(key, func(key, message *C.char) C.int {
		var copied unsafe.Pointer
		var size C.size_t
		status := C.api_store_get(s.c, key, &copied, &size, message, storeMessage)
		if copied != nil {
			defer C.free(copied)
			if status == 0 && size <= math.MaxInt32 {
				value = C.GoBytes(copied, C.int(size))
			}
		}
		return status
	})
	return value, err == nil && status == 0, err
}
