// Package deep calls functions on a deep stack.
package deep

// Room is how many bytes of stack a function that Call calls has below it, at least.
const Room = 224 << 10

// Call calls f on a goroutine's stack that has Room left, and keeps it so for f. A signal handler
// of C without SA_ONSTACK runs on the stack that the thread is on. A few KiB are not enough for it:
// the kernel alone writes up to 11 KiB there.
//
// The frame of Call has a little more than 256 KiB, which nothing uses. The size of a stack is a
// power of two, so it becomes 512 KiB. Go shrinks no stack of which a quarter is in use.
//
//go:noescape
func Call(f func())
