package exec

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

func TestArenaIsSeenByPeers(t *testing.T) {
	a, err := NewArena()
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	peer, err := MapArena(a.FD())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Munmap(peer) }()
	p, err := a.Alloc(100)
	if err != nil {
		t.Fatal(err)
	}
	*(*byte)(p) = 7
	if got := peer[uintptr(p)-uintptr(unsafe.Pointer(&a.Memory()[0]))]; got != 7 {
		t.Errorf("the peer sees %d", got)
	}
	if uintptr(p)%allocUnit != 0 {
		t.Errorf("%p is not aligned", p)
	}
}

// The second mapping is of the same memory, and is not there before it is asked for.
func TestArenaHasATwin(t *testing.T) {
	a, err := NewArena()
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	p, err := a.Alloc(100)
	if err != nil {
		t.Fatal(err)
	}
	if a.twin != nil {
		t.Error("it is there already")
	}
	twin, err := a.Twin(p)
	if err != nil {
		t.Fatal(err)
	}
	*(*byte)(p) = 7
	if got := *(*byte)(twin); got != 7 || twin == p || a.Contains(twin) {
		t.Errorf("at %p the twin of %p holds %d", twin, p, got)
	}
}

// Memory of large blocks goes back to the system, that of small ones stays.
func TestArenaGivesMemoryBack(t *testing.T) {
	a, err := NewArena()
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	held := func() int64 {
		var st unix.Stat_t
		if err := unix.Fstat(a.FD(), &st); err != nil {
			t.Fatal(err)
		}
		return st.Blocks * 512
	}
	for _, c := range []struct{ bytes, left int64 }{{keptFree / 2, keptFree / 2}, {2 * keptFree, 0}} {
		p, err := a.Alloc(c.bytes)
		if err != nil {
			t.Fatal(err)
		}
		clear(unsafe.Slice((*byte)(p), c.bytes))
		if err := a.Free(p); err != nil {
			t.Fatal(err)
		}
		if got := held(); got != c.left {
			t.Errorf("%d bytes freed, %d held", c.bytes, got)
		}
	}
}

// What is lent is not allocated again when it is freed, and keeps what it holds. What is retired
// alone does not.
func TestLentMemoryIsKept(t *testing.T) {
	for name, lends := range map[string]bool{"lent": true, "retired": false} {
		t.Run(name, func(t *testing.T) {
			a, err := NewArena()
			if err != nil {
				t.Fatal(err)
			}
			defer a.Close()
			const bytes = 1 << 20
			alloc := func() unsafe.Pointer {
				p, err := a.Alloc(bytes)
				if err != nil {
					t.Fatal(err)
				}
				return p
			}
			p := alloc()
			*(*byte)(unsafe.Add(p, bytes/2)) = 7
			a.Retire(p, bytes)
			if lends {
				a.Lend(p, bytes/2+1)
			}
			if err := a.Free(p); err != nil {
				t.Fatal(err)
			}
			if kept := *(*byte)(unsafe.Add(p, bytes/2)) == 7; kept != lends {
				t.Errorf("it keeps what it holds: %v", kept)
			}
			a.Reclaim(p, bytes)
			if again := alloc(); (again == p) == lends {
				t.Errorf("it was at %p, and the next is at %p", p, again)
			}
			if lends {
				a.Return(p, bytes/2+1)
				if again := alloc(); again != p {
					t.Errorf("it was at %p, and is never allocated again", p)
				}
			}
		})
	}
}

func TestMapArenaRefuses(t *testing.T) {
	fd, err := unix.MemfdCreate("unsealed", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.Ftruncate(fd, 4096); err != nil {
		t.Fatal(err)
	}
	if _, err := MapArena(fd); err == nil {
		t.Error("took an arena that can shrink")
	}
}

// At random: blocks never overlap, and all is one free piece in the end.
func TestHeap(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	const size = 1 << 20
	h := heap{free: []extent{{0, size}}, used: map[int64]int64{}}
	owner := make([]int64, size/allocUnit)
	live := map[int64]int64{}
	free := func(off int64) {
		if _, free, ok := h.release(off); !free || !ok {
			t.Fatalf("%d was not allocated", off)
		}
		for i := off / allocUnit; i*allocUnit < off+live[off]; i++ {
			owner[i] = 0
		}
		delete(live, off)
	}
	for step := range int64(20_000) {
		if rnd.IntN(5) < 3 {
			bytes := 1 + rnd.Int64N(20_000)
			off, ok := h.alloc(bytes)
			if !ok {
				continue
			}
			live[off] = bytes
			for i := off / allocUnit; i*allocUnit < off+bytes; i++ {
				if owner[i] != 0 {
					t.Fatalf("block %d overlaps", off)
				}
				owner[i] = step + 1
			}
		} else {
			for off := range live {
				free(off)
				break
			}
		}
	}
	for off := range live {
		free(off)
	}
	if len(h.free) != 1 || h.free[0] != (extent{0, size}) || h.inUse != 0 {
		t.Errorf("left: %v, in use %d", h.free, h.inUse)
	}
	if _, _, ok := h.release(0); ok {
		t.Error("released what is free")
	}
	if _, ok := h.alloc(size + 1); ok {
		t.Error("allocated more than there is")
	}
}

// Other users of the host cannot open it through /proc.
func TestMemoryIsOfThisUserOnly(t *testing.T) {
	fd, err := newMemfd("goccl-test", "a test", 4096)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&0o777 != 0o600 {
		t.Errorf("mode is %o, error %v", st.Mode, err)
	}
	if _, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", fd), unix.O_RDWR, 0); err != nil {
		t.Errorf("this user is refused: %v", err)
	}
	if err := unix.Ftruncate(fd, 0); err == nil {
		t.Error("it could be made shorter")
	}
}

func TestArenaSize(t *testing.T) {
	const gib = 1 << 30
	for _, c := range []struct{ memory, files, addresses, want uint64 }{
		{16 * gib, unix.RLIM_INFINITY, unix.RLIM_INFINITY, 16 * gib},
		{1024 * gib, unix.RLIM_INFINITY, unix.RLIM_INFINITY, arenaMost},
		{16 * gib, gib + 1, unix.RLIM_INFINITY, gib},
		{16 * gib, unix.RLIM_INFINITY, 8 * gib, gib / 2},
		{16 * gib, 0, unix.RLIM_INFINITY, 4096},
	} {
		if got := arenaSize(c.memory, c.files, c.addresses); got != c.want {
			t.Errorf("%+v: it is %d", c, got)
		}
	}
}
