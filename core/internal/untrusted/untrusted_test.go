package untrusted

import "testing"

func TestReader(t *testing.T) {
	whole := []byte{1, 2, 0, 3, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 'a', 'b', 'c'}
	for n := range len(whole) + 2 { // cut, whole, and longer
		r := NewReader(append(whole[:min(n, len(whole))], whole[:max(n-len(whole), 0)]...))
		var last [2]byte
		sum := uint64(r.Byte()) + uint64(r.Uint16()) + uint64(r.Uint32()) + r.Uint64()
		first := string(r.Take(1))
		r.Fixed(last[:])
		whole := n >= len(whole)
		if whole && (sum != 10 || first != "a" || string(last[:]) != "bc") {
			t.Errorf("%d bytes: read %d, %q and %q", n, sum, first, last)
		}
		if r.Failed() == whole || r.Left() != max(n-18, 0) || (r.End() == nil) != (n == 18) {
			t.Errorf("%d bytes: failed %v, %d left, %v", n, r.Failed(), r.Left(), r.End())
		}
	}
}

// What comes behind the first thing that does not fit is not looked at.
func TestReaderFails(t *testing.T) {
	for _, n := range []int{-1, 4} {
		r := NewReader([]byte{1, 2, 3})
		if b := r.Take(n); b != nil || r.Byte() != 0 || r.End() == nil {
			t.Errorf("%d bytes of 3: %v", n, b)
		}
	}
	r := NewReader(nil)
	if r.Fail(); r.End() == nil {
		t.Error("what does not fit is taken")
	}
}

// Bytes are copies of what was appended, and no longer than allowed.
func TestBytes(t *testing.T) {
	b := AppendBytes(AppendBytes(nil, "ab"), []byte{})
	r := NewReader(b)
	first, second := r.Bytes(2), r.Bytes(2)
	b[4] = 'x'
	if string(first) != "ab" || len(second) != 0 || r.End() != nil {
		t.Errorf("read %q and %q, %v", first, second, r.End())
	}
	for _, n := range []int{0, 1} {
		if r := NewReader(b); r.Bytes(n) != nil || !r.Failed() {
			t.Errorf("2 bytes are taken where %d are allowed", n)
		}
	}
}
