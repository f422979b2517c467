package exec

import (
	"encoding/binary"
	"errors"
	"sync/atomic"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/goccl/goccl/core/plan"
)

// FuzzMessage changes the stamp of a message in shared memory, and the count of what was released,
// as a peer could. Only the message that is due is taken.
func FuzzMessage(f *testing.F) {
	f.Add(uint64(0), uint64(0))
	f.Add(uint64(1), uint64(1))
	f.Add(uint64(1)<<32, uint64(1)<<63)
	f.Add(uint64(1)<<33, uint64(0))
	f.Add(^uint64(0), ^uint64(0))
	f.Fuzz(func(t *testing.T, change, released uint64) {
		w := newPair(t)
		m := plan.Message{Group: 1, Sequence: 2, Count: 3, Digest: 4, Epoch: 5, Root: -1}
		send, in := started(t, w, 0, 10, m)
		recv, out := started(t, w, 1, 10, m)
		copy(unsafe.Slice((*byte)(in), 10), "0123456789")
		if s := send.Continue(soon()); s != Done {
			t.Fatalf("send: status %d", s)
		}
		*(*uint64)(unsafe.Add(unsafe.Pointer(w[1].lanes[1].channels[0].inbox), lineMax)) ^= change
		atomic.StoreUint64((*uint64)(w[1].lanes[1].channels[0].released), released)
		want := Mismatch
		switch {
		case change == 0:
			want = Done
		case change>>33 != 0: // the number
			want = Blocked
		}
		if s := recv.Continue(soon()); s != want {
			t.Fatalf("recv: status %d, want %d", s, want)
		}
		if got := string(unsafe.Slice((*byte)(out), 10)); (got == "0123456789") != (want == Done) {
			t.Fatalf("received %q", got)
		}
	})
}

// FuzzExposure has a peer say what it likes of where its blocks lie in its arena, to a rank that
// writes to one. What it writes lies within.
func FuzzExposure(f *testing.F) {
	const n, arena = 100, 4096
	f.Add(uint64(1), uint64(1), uint64(n))
	f.Add(uint64(0), uint64(arena-n+1), uint64(n))
	f.Add(uint64(0), uint64(arena-n+2), uint64(n))
	f.Add(uint64(0), uint64(0), uint64(n))
	f.Add(^uint64(0), ^uint64(0), uint64(n))
	f.Add(uint64(1), uint64(1), ^uint64(0))
	f.Fuzz(func(t *testing.T, in, out, bytes uint64) {
		w := newPair(t)
		var arenas [2][]byte
		for i := range arenas {
			mem := unsafe.Slice((*byte)(off(t, 3*arena)), 3*arena)
			for _, guard := range [][]byte{mem[:arena], mem[2*arena:]} {
				if err := unix.Mprotect(guard, unix.PROT_NONE); err != nil {
					t.Fatal(err)
				}
			}
			arenas[i] = mem[arena:][:arena]
		}
		var runs [2]*Run
		for i := range runs {
			w[i].UseArena(arenas[i])
			w[i].ConnectArena(1-i, arenas[1-i])
			blocks := []unsafe.Pointer{unsafe.Pointer(&arenas[i][0])}
			b := Binding{In: append(blocks, unsafe.Pointer(&arenas[i][n])), Out: blocks}
			p, err := plan.Build(plan.Params{Collective: plan.Scatter, Algorithm: plan.Direct, Rank: i,
				Size:    2,
				InBytes: []int64{n, n}, OutBytes: []int64{n}, ElemSize: 1, Chunk: layout.Chunk,
				Slots: layout.Slots, Memory: true})
			if err != nil {
				t.Fatal(err)
			}
			c := must(Compile(p, false, false))
			atEnd(t, c.Free)
			runs[i] = must(NewRun(w[i].Lane(1)))
			atEnd(t, runs[i].Free)
			runs[i].Bind(b)
			runs[i].Begin(c, 0)
		}
		if s := runs[1].Continue(soon()); s != Blocked {
			t.Fatalf("the peer: status %d", s)
		}
		exposure := unsafe.Slice((*uint64)(unsafe.Pointer(w[0].lanes[1].channels[1].inbox)), 3)
		exposure[0], exposure[1], exposure[2] = in, out, bytes
		s := runs[0].Continue(soon())
		switch within := out != 0 && out-1 <= arena-n; {
		case bytes != n:
			if s != Indirect {
				t.Fatalf("status %d, %d bytes are exposed", s, bytes)
			}
		case !within:
			if s != Violation {
				t.Fatalf("status %d, %d is exposed", s, out)
			}
		case s != Done && s != Blocked:
			t.Fatalf("status %d, %d is exposed", s, out)
		}
	})
}

// FuzzLane plays a peer on a port channel, who says what he likes in 17 bytes each: a message, or
// messages that he has released.
func FuzzLane(f *testing.F) {
	say := func(what byte, n, size uint64) []byte {
		return binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64([]byte{what}, n), size)
	}
	f.Add(append(say(0, 0, 64), say(0, 1, 128)...))
	f.Add(say(1, 1, 0))
	f.Fuzz(func(t *testing.T, in []byte) {
		w, err := NewWindow(layout, 0, false, Waiting{})
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
		w.ConnectPort(1)
		l := w.Lane(0)
		l.MarkSent(1)
		inbox := unsafe.Slice((*byte)(unsafe.Pointer(l.channels[1].inbox)),
			int64(layout.Slots)*slotSize(layout.Chunk))
		for ; len(in) >= 17; in = in[17:] {
			n, size := binary.LittleEndian.Uint64(in[1:]), int(int64(binary.LittleEndian.Uint64(in[9:])))
			if in[0] != 0 {
				if err := l.Released(1, n); (err != nil) != (n > 1) || err != nil &&
					!errors.Is(err, ErrProtocol) {
					t.Fatalf("%d messages released of 1: %v", n, err)
				}
				continue
			}
			head, body, err := l.Slot(1, n, size)
			if err != nil {
				if !errors.Is(err, ErrProtocol) {
					t.Fatal(err)
				}
				continue
			}
			if len(head)+len(body) != size || n >= uint64(layout.Slots) {
				t.Fatalf("message %d of %d bytes got %d and %d", n, size, len(head), len(body))
			}
			for _, part := range [][]byte{head, body} {
				from := uintptr(unsafe.Pointer(unsafe.SliceData(part))) - uintptr(unsafe.Pointer(&inbox[0]))
				if len(part) > 0 && from+uintptr(len(part)) > uintptr(len(inbox)) {
					t.Fatalf("message %d of %d bytes lies outside of the inbox", n, size)
				}
			}
			l.Arrived(1)
		}
	})
}

// FuzzMailbox has a peer write what it likes into its mailbox. What is read of it lies within.
func FuzzMailbox(f *testing.F) {
	f.Add(uint64(64), []byte{1, 32})
	f.Add(uint64(128), []byte{0, 32, 63: 0, 64: 1})
	f.Add(uint64(1)<<63, []byte{1})
	f.Add(uint64(64), []byte{1, 255, 255, 255})
	f.Add(uint64(64), []byte{1, 128, 0, 0, 1})
	f.Add(uint64(64), []byte{1, 128, 0, 0, 0, 0, 1, 0})
	f.Add(uint64(128), []byte{1, 128, 0, 0, 1, 64: 1, 128, 0, 0, 1})
	f.Fuzz(func(t *testing.T, posted uint64, bytes []byte) {
		w := newPair(t)
		m := w[0].Mail()
		box := m.peers[1].from
		copy(m.ringOf(box), bytes)
		atomic.StoreUint64((*uint64)(&box.posted), posted)
		atomic.StoreUint64((*uint64)(&box.taken), ^posted) // which is this rank's to count
		for range 2 * layout.Mailbox / packetAlign {
			l, ok, err := m.Next(1)
			if err != nil && !errors.Is(err, ErrProtocol) {
				t.Fatal(err)
			}
			if !ok {
				return
			}
			if s := l.shown.packet.bounces; s == 0 && l.Bytes > uint32(layout.Mailbox) ||
				s != 0 && int64(l.Bytes) > 2*bouncesEach*layout.Bounce {
				t.Fatalf("a packet of %d bytes", l.Bytes)
			}
			m.Take(1, l, make([]byte, l.Bytes))
		}
		t.Fatal("there is no end to the packets")
	})
}
