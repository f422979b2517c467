package rdma

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goccl/goccl/rdma/fake"
)

// realDevice opens a device of this host, if it has one.
func realDevice(t testing.TB) *Device {
	lib, err := Load("")
	if err != nil {
		t.Skip(err)
	}
	ports, err := lib.Ports()
	if err != nil {
		t.Fatal(err)
	}
	choice, err := Choose(ports, Want{GIDIndex: -1})
	if err != nil {
		t.Skip(err)
	}
	d, err := lib.Open(choice)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

// pair makes two streams that are joined.
func pair(t testing.TB, d *Device, ring int) [2]*Stream {
	var s [2]*Stream
	for i := range s {
		var err error
		if s[i], err = d.NewStream(ring); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := s[i].Close(); err != nil {
				t.Error(err)
			}
		})
	}
	var offers [2][RecordSize]byte
	for i := range s {
		var err error
		if offers[i], err = s[i].Offer(); err != nil {
			t.Fatal(err)
		}
	}
	for i := range s {
		if err := s[i].Join(offers[1-i]); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

const patience = 30 * time.Second

// await waits for an event of a stream.
func await(s *Stream) error {
	fds := []unix.PollFd{{Fd: int32(s.FD()), Events: unix.POLLIN}}
	n, err := unix.Poll(fds, int(patience.Milliseconds()))
	if err == unix.EINTR {
		return nil
	}
	if n == 0 && err == nil {
		err = errors.New("nothing happens")
	}
	s.Wake()
	return err
}

func iovec(b []byte) unix.Iovec { return unix.Iovec{Base: &b[0], Len: uint64(len(b))} }

// exchange writes all of out and reads n bytes, in pieces.
func exchange(s *Stream, out []byte, n int) ([]byte, error) {
	in := make([]byte, 0, n)
	for len(out) > 0 || len(in) < n {
		moved := 0
		if len(out) > 0 {
			v := iovec(out)
			k, err := s.Write(&v, 1)
			if err != nil {
				return nil, err
			}
			out = out[k:]
			moved += k
		}
		var v []unix.Iovec
		if len(in) < n {
			middle := len(in) + (n-len(in)+1)/2
			v = append(v, iovec(in[len(in):middle]))
			if middle < n {
				v = append(v, iovec(in[middle:n]))
			}
		} else {
			v = append(v, unix.Iovec{}) // only to learn of room
		}
		k, room, err := s.Read(&v[0], len(v))
		if err != nil {
			return nil, err
		}
		in = in[:len(in)+k]
		if moved+k == 0 && !room && (len(out) == 0 || !s.Ask()) {
			if err := await(s); err != nil {
				return nil, fmt.Errorf("%d bytes are to be written, %d of %d have been read: %w", len(out),
					len(in), n, err)
			}
		}
	}
	return in, nil
}

// both runs exchange on both ends, and compares.
func both(s [2]*Stream, out [2][]byte) error { return bothRest(s, out, out) }

// bothRest is both where only the rest of what is read is still to be written.
func bothRest(s [2]*Stream, rest, all [2][]byte) error {
	ends := make(chan error, 2)
	for i := range s {
		go func() {
			got, err := exchange(s[i], rest[i], len(all[1-i]))
			if err == nil && !bytes.Equal(got, all[1-i]) {
				err = errors.New("others have come")
			}
			if err != nil {
				err = fmt.Errorf("side %d: %w", i, err)
			}
			ends <- err
		}()
	}
	return errors.Join(<-ends, <-ends)
}

func random(n int, seed uint64) []byte {
	b := make([]byte, n)
	r := rand.New(rand.NewPCG(seed, 1))
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

// testLengths sends messages of many lengths, both ways and one way.
func testLengths(t *testing.T, d *Device) {
	s := pair(t, d, LeastRing)
	for i, n := range []int{1, 64, 220, 221, 4096, 65535, 65536, 65537, 200_000, 1 << 20} {
		for _, out := range [][2][]byte{{random(n, uint64(i)), random(n, 99)}, {random(n, 5), nil},
			{nil, random(n, 6)}} {
			if err := both(s, out); err != nil {
				t.Fatalf("%d and %d bytes: %v", len(out[0]), len(out[1]), err)
			}
		}
	}
}

// testEcho sends back and forth, many small messages.
func testEcho(t *testing.T, d *Device) {
	s := pair(t, d, LeastRing)
	for i := range 1000 {
		b := random(1+i%500, uint64(i))
		for from := range s {
			if _, err := exchange(s[from], b, 0); err != nil {
				t.Fatal(err)
			}
			got, err := exchange(s[1-from], nil, len(b))
			if err != nil || !bytes.Equal(got, b) {
				t.Fatalf("message %d: others have come: %v", i, err)
			}
		}
	}
}

// write writes what there is room for, and returns the rest.
func write(t *testing.T, s *Stream, b []byte) []byte {
	v := iovec(b)
	n, err := s.Write(&v, 1)
	if err != nil || n > LeastRing {
		t.Fatalf("%d bytes fit into a ring of %d: %v", n, LeastRing, err)
	}
	return b[n:]
}

// testFull fills a ring that nobody reads.
func testFull(t *testing.T, d *Device) {
	s := pair(t, d, LeastRing)
	b := random(3*LeastRing, 7)
	rest := write(t, s[0], b)
	if err := bothRest(s, [2][]byte{rest}, [2][]byte{b}); err != nil {
		t.Fatal(err)
	}
}

// testFlush waits until all has reached the peer, who reads nothing.
func testFlush(t *testing.T, d *Device) {
	s := pair(t, d, LeastRing)
	b := random(1000, 3)
	write(t, s[0], b)
	for {
		done, err := s[0].Flush()
		if err != nil {
			t.Fatal(err)
		}
		if done {
			break
		}
		if err := await(s[0]); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := exchange(s[1], nil, len(b)); err != nil || !bytes.Equal(got, b) {
		t.Fatal("others have come", err)
	}
}

// testGone closes the peer's end.
func testGone(t *testing.T, d *Device) {
	s := pair(t, d, LeastRing)
	if err := s[1].Close(); err != nil {
		t.Fatal(err)
	}
	write(t, s[0], random(100, 1))
	b := make([]byte, 1)
	v := iovec(b)
	for {
		_, _, err := s[0].Read(&v, 1)
		var fault *Error
		if errors.As(err, &fault) && errors.Is(err, ErrBroken) && fault.Status != 0 {
			return
		}
		if err != nil {
			t.Fatalf("a peer that is gone: %v", err)
		}
		if err := await(s[0]); err != nil {
			t.Fatal(err)
		}
	}
}

func TestStream(t *testing.T) {
	for name, test := range map[string]func(*testing.T, *Device){
		"lengths": testLengths, "echo": testEcho, "full": testFull, "flush": testFlush, "gone": testGone,
		"fetch": testFetch, "refused fetch": testFetchRefused,
		"fetch from who has stopped": testFetchFromStopped,
	} {
		t.Run(name, func(t *testing.T) {
			t.Run("double", func(t *testing.T) {
				_, d := openFake(t)
				t.Cleanup(func() { d.Close() })
				test(t, d)
			})
			t.Run("real", func(t *testing.T) { test(t, realDevice(t)) })
		})
	}
}

// What an adapter does twice or not at all is noticed before it is read.
func TestMessageTwiceOrLost(t *testing.T) {
	// of the second of three messages
	for status, right := range map[int]int{fake.Twice: 200, 0: 100} {
		f, d := openFake(t)
		t.Cleanup(func() { d.Close() })
		s := pair(t, d, LeastRing)
		f.Complete(2, -1, 0, status, 0)
		all := random(300, 8)
		for i := range 3 {
			write(t, s[0], all[100*i:100*(i+1)])
		}
		var got []byte
		for {
			b := make([]byte, 400)
			v := iovec(b)
			n, _, err := s[1].Read(&v, 1)
			got = append(got, b[:n]...)
			if err == nil && n == 0 {
				err = await(s[1])
			}
			if err == nil {
				continue
			}
			if !errors.Is(err, ErrProtocol) || !bytes.Equal(got, all[:right]) {
				t.Errorf("status %d: after %d bytes, of which %d had come: %v", status, len(got), right, err)
			}
			break
		}
	}
}

// Where what gives back comes twice or not at all, the next makes it good.
func TestRoomTwiceOrLost(t *testing.T) {
	for _, status := range []int{fake.Twice, 0} {
		f, d := openFake(t)
		t.Cleanup(func() { d.Close() })
		s := pair(t, d, LeastRing)
		f.Complete(17, -1, 0, status, 0)
		for range 16 {
			write(t, s[0], []byte{1})
		}
		if _, err := exchange(s[1], nil, 16); err != nil {
			t.Fatal(err)
		}
		if err := both(s, [2][]byte{random(3*LeastRing, 9), random(3*LeastRing, 10)}); err != nil {
			t.Errorf("status %d: %v", status, err)
		}
	}
}

// FuzzRecord reads whatever a peer may say of itself.
func FuzzRecord(f *testing.F) {
	_, d := openFake(f)
	s, err := d.NewStream(LeastRing)
	if err != nil {
		f.Fatal(err)
	}
	good, err := s.Offer()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good[:])
	for _, at := range []int{0, 8, 16, 20, 24, 28, 32, 34, 48} { // each field in turn
		bad := good
		bad[at] ^= 0xff
		f.Add(bad[:])
	}
	if err := errors.Join(s.Close(), d.Close()); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		var record [RecordSize]byte
		copy(record[:], in)
		r, err := parseRecord(record, LeastRing)
		if err == nil && (r.size != LeastRing || r.qpn>>24|r.psn>>24 != 0 ||
			mtuCode(128<<r.mtu) != int(r.mtu)) {
			t.Fatalf("%+v is believed", r)
		}
		if err != nil && !errors.Is(err, ErrProtocol) {
			t.Fatal(err)
		}
	})
}
