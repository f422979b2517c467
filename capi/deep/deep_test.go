package deep

import (
	"runtime"
	"testing"
	"unsafe"
)

func TestCall(t *testing.T) {
	for depth := range 3 { // a call may be in another one
		calls := 0
		var nested func()
		nested = func() {
			if calls++; calls <= depth {
				Call(nested)
			}
			grow(100)    // moves the stack
			runtime.GC() // reads it, and shrinks what it can
		}
		Call(nested)
		if calls != depth+1 {
			t.Errorf("%d calls were made, not %d", calls, depth+1)
		}
	}
}

//go:noinline
func grow(n int) byte {
	var frame [4096]byte
	if n > 0 {
		frame[n] = grow(n - 1)
	}
	return frame[n]
}

// TestRoom calls on new goroutines, from frames at several depths.
func TestRoom(t *testing.T) {
	for depth := range 200 {
		moved := make(chan bool)
		go func() { moved <- movedBelow(depth) }()
		if <-moved {
			t.Errorf("at depth %d the stack was moved for a frame of %d bytes", depth, Room)
		}
	}
}

// movedBelow tells whether what Call calls, from so many frames down, has less than Room.
//
//go:noinline
func movedBelow(depth int) (moved bool) {
	var frame [256]byte
	if depth > 0 {
		moved = movedBelow(depth - 1)
	} else {
		Call(func() {
			here := 0
			before := uintptr(unsafe.Pointer(&here))
			large()
			moved = uintptr(unsafe.Pointer(&here)) != before
		})
	}
	frame[depth]++
	return moved
}

//go:noinline
func large() byte {
	var frame [Room]byte
	return frame[runtime.NumGoroutine()%Room]
}

func TestPanic(t *testing.T) {
	defer func() {
		if p := recover(); p != "f" {
			t.Errorf("recovered %v", p)
		}
	}()
	Call(func() { panic("f") })
}

func BenchmarkCall(b *testing.B) {
	calls := 0
	for b.Loop() {
		Call(func() { calls++ })
	}
}
