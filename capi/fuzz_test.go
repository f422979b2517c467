package main

import (
	"bytes"
	"encoding/binary"
	"testing"
	"unsafe"
)

// FuzzTakeStruct hands over structs of other versions, as callers have who were compiled against
// them.
func FuzzTakeStruct(f *testing.F) {
	type known struct {
		size        uintptr
		first, last uint64
	}
	const own, least = uint64(unsafe.Sizeof(known{})), uint64(unsafe.Offsetof(known{}.last))
	f.Add(own, []byte("firstxyz"+"lastlast"))
	f.Add(least, []byte("firstxyz"+"notgiven"))
	f.Add(own+8, make([]byte, 24))
	f.Add(own+8, bytes.Repeat([]byte{1}, 24))
	f.Fuzz(func(t *testing.T, given uint64, fields []byte) {
		var memory [maxStruct / 8]uint64 // aligned
		there := unsafe.Slice((*byte)(unsafe.Pointer(&memory)), maxStruct)
		binary.NativeEndian.PutUint64(there, given)
		copy(there[8:], fields)
		got, err := takeStruct((*known)(unsafe.Pointer(&memory)), uintptr(least), "struct")
		fits := given >= least && given <= maxStruct
		unknown := fits && given > own && !bytes.Equal(there[own:given], make([]byte, given-own))
		if (err == nil) != (fits && !unknown) {
			t.Fatalf("%d bytes: %v", given, err)
		}
		if err != nil {
			return
		}
		var want [own]byte
		copy(want[:], there[:given])
		if taken := unsafe.Slice((*byte)(unsafe.Pointer(&got)), own); !bytes.Equal(taken, want[:]) {
			t.Fatalf("% x was taken of % x", taken, there[:given])
		}
	})
}

// FuzzRestore gives numbers that are no handles, among them such as are near to one.
func FuzzRestore(f *testing.F) {
	f.Add(uint64(0), false)
	f.Add(uint64(1), true)
	f.Fuzz(func(t *testing.T, h uint64, near bool) {
		w := &workHandle{}
		right := save(w)
		defer drop(right)
		if near {
			h ^= right
		}
		got, err := restore[*workHandle](h, "work")
		if h == right {
			if got != w || err != nil {
				t.Fatal(got, err)
			}
			return
		}
		if got != nil || codeOf(err) != codeInvalidHandle || drop(h) {
			t.Fatalf("%#x beside %#x: %v, %v", h, right, got, err)
		}
	})
}
