package channel

import (
	"bytes"
	"encoding/binary"
	"testing"
	"time"
	"unsafe"

	"github.com/goccl/goccl/core/exec"
	"github.com/goccl/goccl/core/transport"
)

// frameOf takes a frame from bytes, and returns what is left of them.
func frameOf(b []byte) (f frame, rest []byte) {
	const about = 1 + 1 + 1 + 3*8 + 1
	var head [about]byte
	rest = b[copy(head[:], b):]
	word := func(i int) uint64 {
		v := binary.LittleEndian.Uint64(head[3+8*i:])
		if head[2]&(1<<i) == 0 {
			v %= 4 // most numbers that mean something are small
		}
		return v
	}
	kinds := []uint8{transport.Data, transport.Data, transport.Data, frameOpen, frameClose,
		frameClosed, frameDrop, frameDropped, frameSignal, frameGet, frameNoGet, frameFlush,
		frameFlushed, quickEnd}
	f.Type = kinds[int(head[0])%len(kinds)]
	f.Flags = head[1]
	if f.Type == transport.Data {
		f.Flags = gotData + head[1]%2
	}
	f.Seq, f.Arg = word(0), [2]uint64{word(1), word(2)}
	n := min(int(head[about-1]), len(rest))
	f.payload = rest[:n]
	return f, rest[n:]
}

// Whatever frames a peer sends, they are told or dropped. Memory changes where it is registered
// with the right only, and all can be closed.
func FuzzFrames(f *testing.F) {
	f.Add([]byte{0, 1, 0})
	var put []byte
	put = append(put, 0, 1, 0)
	for _, v := range []uint64{1, 1, 0} {
		put = binary.LittleEndian.AppendUint64(put, v)
	}
	f.Add(append(append(put, 8), "12345678"...))
	f.Fuzz(func(t *testing.T, b []byte) {
		defer time.AfterFunc(2*time.Second, func() { panic("it hangs") }).Stop()
		w := joinWorld(t, 2, len(b)%2 == 0)
		r := w.ranks[0]
		readable, err := r.Memories.Register(unsafe.Pointer(&r.block[0]), 16, exec.RemoteRead)
		if err != nil {
			t.Fatal(err)
		}
		c := r.open(1, 5, "")
		w.ranks[1].open(0, 5, "")
		r.open(1, 6, KindPort)
		w.settle()
		if r.Ports[1] {
			its := r.imported(w.ranks[1].own, 1)
			if err := c.Get(make([]byte, 20), its, 0); err != nil {
				t.Fatal(err)
			}
		}
		for len(b) > 0 {
			var f frame
			var turn byte
			turn, b = b[0], b[1:]
			switch turn {
			case 250:
				c.Close()
			case 251:
				r.own.Deregister()
			case 252:
				w.settle()
			case 253:
				_, _ = c.Poll(1) // the channel may have ended
			}
			f, b = frameOf(b)
			r.take(1, f)
			w.run()
		}
		readable.Deregister()
		unregistered(t, r)
		for _, c := range r.all() {
			c.Close()
		}
		w.close()
		w.ranks = nil
	})
}

// A handle is what was exported, or is refused.
func FuzzHandle(f *testing.F) {
	secret := []byte("secret")
	h := handle{access: 3, rank: 1, epoch: 2, id: 3, owner: 4, group: group, offset: 128, bytes: 256,
		alive: 512}
	good := h.encode(secret)
	f.Add(good[:])
	f.Add(good[1:])
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := decodeHandle(b, func(g uint64) []byte {
			if g == group {
				return secret
			}
			return nil
		})
		if (err == nil) != bytes.Equal(b, good[:]) || err == nil && got != h {
			t.Errorf("%+v, %v", got, err)
		}
		// Sealed by a member that lies:
		if len(b) != HandleSize {
			return
		}
		lie := handle{access: b[3], rank: 1, epoch: 1, id: binary.LittleEndian.Uint32(b[12:]),
			owner: binary.LittleEndian.Uint64(b[16:]), group: group,
			offset: binary.LittleEndian.Uint64(b[32:]), bytes: binary.LittleEndian.Uint64(b[40:]),
			alive: binary.LittleEndian.Uint64(b[48:])}
		sealed := lie.encode(secret)
		arenas := joinWorld(t, 1, false).ranks[0]
		m, err := arenas.Memories.Import(1, 1, sealed[:])
		if err != nil {
			return
		}
		if m.owner != arenas.Memories.Owner {
			if fail := m.mapIn(arenas.arena.Memory(), func() {}); fail == nil {
				base := unsafe.Pointer(unsafe.SliceData(arenas.arena.Memory()))
				at := uint64(uintptr(m.region.Base()) - uintptr(base))
				if size := uint64(len(arenas.arena.Memory())); at > size || m.bytes > size-at {
					t.Errorf("%+v is mapped at %d of %d", lie, at, size)
				}
			}
			_ = m.usable()
		}
		m.Deregister()
	})
}
