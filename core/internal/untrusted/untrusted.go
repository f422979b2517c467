// Package untrusted takes apart what another process has written, or somebody who pretends to be
// one.
package untrusted

import (
	"encoding/binary"
	"errors"
	"slices"
)

// ErrMalformed tells of bytes that are not what they should be.
var ErrMalformed = errors.New("malformed: not written by this version of GoCCL")

// Reader takes untrusted bytes apart, little endian. After the first thing that does not fit it
// returns zeros.
type Reader struct {
	b   []byte
	bad bool
}

// NewReader returns a reader of b.
func NewReader(b []byte) Reader { return Reader{b: b} }

// Fail says that what was read does not fit.
func (r *Reader) Fail() { r.b, r.bad = nil, true }

// Failed tells whether something has not fitted.
func (r *Reader) Failed() bool { return r.bad }

// Left is how many bytes are left.
func (r *Reader) Left() int { return len(r.b) }

// Take returns the next n bytes, or nil where there are fewer.
func (r *Reader) Take(n int) []byte {
	if r.bad || n < 0 || n > len(r.b) {
		r.Fail()
		return nil
	}
	v := r.b[:n]
	r.b = r.b[n:]
	return v
}

// Fixed fills to.
func (r *Reader) Fixed(to []byte) { copy(to, r.Take(len(to))) }

// Byte returns the next byte.
func (r *Reader) Byte() byte {
	var b [1]byte
	r.Fixed(b[:])
	return b[0]
}

// Uint16 returns a number of two bytes.
func (r *Reader) Uint16() uint16 {
	var b [2]byte
	r.Fixed(b[:])
	return binary.LittleEndian.Uint16(b[:])
}

// Uint32 returns a number of four bytes.
func (r *Reader) Uint32() uint32 {
	var b [4]byte
	r.Fixed(b[:])
	return binary.LittleEndian.Uint32(b[:])
}

// Uint64 returns a number of eight bytes.
func (r *Reader) Uint64() uint64 {
	var b [8]byte
	r.Fixed(b[:])
	return binary.LittleEndian.Uint64(b[:])
}

// Number returns a number of four bytes that is at most most.
func (r *Reader) Number(most int) int {
	n := r.Uint32()
	if uint64(n) > uint64(most) {
		r.Fail()
		return 0
	}
	return int(n)
}

// Bytes returns a copy of what AppendBytes has written: at most most bytes.
func (r *Reader) Bytes(most int) []byte { return slices.Clone(r.Take(r.Number(most))) }

// End tells whether all has fitted, and nothing is left.
func (r *Reader) End() error {
	if r.bad || len(r.b) != 0 {
		return ErrMalformed
	}
	return nil
}

// AppendBytes appends the length of v in four bytes, and v.
func AppendBytes[T string | []byte](b []byte, v T) []byte {
	return append(binary.LittleEndian.AppendUint32(b, uint32(len(v))), v...)
}
