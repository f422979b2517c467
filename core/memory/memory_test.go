package memory

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/goccl/goccl/core/exec"
	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/internal/logtest"
)

func newArenas(t *testing.T) *Arenas { return &Arenas{Logger: logtest.Warnings(t)} }

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// newMapping makes the mapping of one of two ranks.
func newMapping(a *Arenas, own *exec.Arena) *Mapping {
	layout := exec.Layout{Ranks: 2, Lanes: 1, Slots: 2, Chunk: 1024}
	return a.NewMapping(must(exec.NewWindow(layout, 0, true, exec.Waiting{})), own)
}

// mapAsPeer maps a window as a peer does, until unmap is called.
func mapAsPeer(w *exec.Window) (unmap func()) {
	mem := must(unix.Mmap(w.FD(), 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED))
	return func() { _ = unix.Munmap(mem) }
}

func TestAllocRefuses(t *testing.T) {
	a := newArenas(t)
	if _, err := a.Alloc(-1); !errors.Is(err, fault.ErrInvalidArgument) {
		t.Error(err)
	}
	if _, err := a.Alloc(1 << 50); !errors.Is(err, fault.ErrSystem) {
		t.Error(err)
	}
	if err := a.Free(unsafe.Pointer(t)); !errors.Is(err, fault.ErrInvalidArgument) ||
		!strings.Contains(err.Error(), "nothing is") {
		t.Error(err)
	}
	p := must(a.Alloc(0))
	if err := a.Free(p); err != nil {
		t.Error(err)
	}
	if err := a.Free(p); !errors.Is(err, fault.ErrInvalidArgument) {
		t.Errorf("freed twice: %v", err)
	}
}

// Nothing of an arena is left when nobody uses it: neither communicators nor what is allocated.
func TestArenaEnds(t *testing.T) {
	a := newArenas(t)
	if first, second := must(a.Acquire()), must(a.Acquire()); first != second {
		t.Error("there are two arenas")
	}
	var all []unsafe.Pointer
	for range 3 {
		all = append(all, must(a.Alloc(1<<20)))
	}
	slices.Reverse(all)
	for _, end := range []func(){a.Release, a.Release, func() { a.Free(all[0]) },
		func() { a.Free(all[1]) }, func() { a.Free(all[2]) }} {
		if a.own == nil {
			t.Fatal("it ended before its last use")
		}
		end()
	}
	if a.own != nil {
		t.Error("it is still there")
	}
}

// Outputs of a failed operation are allocated again once neither this rank nor a peer maps the
// window of its epoch, in whatever order they end; all else at once.
func TestRetired(t *testing.T) {
	for _, test := range []struct {
		name      string
		peer      bool // maps the window, and ends last
		freedLast bool // by its owner: after the epoch has ended
	}{
		{"no peer", false, false}, {"no peer, freed last", false, true},
		{"a peer", true, false}, {"a peer, freed last", true, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			a := newArenas(t)
			own := must(a.Acquire())
			defer a.Release()
			m := newMapping(a, own)
			unmap := func() {}
			if test.peer {
				unmap = mapAsPeer(m.window)
			}
			const bytes = 1 << 20
			p, beside := must(a.Alloc(bytes)), must(a.Alloc(bytes))
			ordinary := make([]byte, bytes)
			m.Retire([]unsafe.Pointer{unsafe.Pointer(&ordinary[0]), p, beside}, []int64{bytes, bytes})
			free := func(p unsafe.Pointer) {
				t.Helper()
				if err := a.Free(p); err != nil {
					t.Fatal(err)
				}
			}
			free(beside)
			if q := must(a.Alloc(bytes)); q != beside {
				t.Error("what was not retired is not allocated again")
			} else {
				free(q)
			}
			again := func() bool {
				q := must(a.Alloc(bytes))
				free(q)
				return q == p
			}
			if !test.freedLast {
				free(p)
				if again() {
					t.Error("allocated again, and the epoch is there")
				}
			}
			if err := m.Close(); err != nil {
				t.Fatal(err)
			}
			if test.freedLast {
				free(p)
			}
			if test.peer && again() {
				t.Error("allocated again, and a peer can write there")
			}
			unmap()
			if !again() {
				t.Error("not allocated again, and nobody can write there")
			}
		})
	}
}

// What is retired ends with the arena, whoever maps the window.
func TestRetiredEndsWithTheArena(t *testing.T) {
	a := newArenas(t)
	m := newMapping(a, must(a.Acquire()))
	defer mapAsPeer(m.window)()
	p := must(a.Alloc(8))
	m.Retire([]unsafe.Pointer{p}, []int64{8})
	a.Free(p)
	m.Close()
	a.Release()
	if a.own != nil || a.ended != nil {
		t.Error("something is still there")
	}
	a.Free(must(a.Alloc(8)))
}

// A peer's arena is mapped once, until the last epoch leaves it.
func TestArenasOfPeers(t *testing.T) {
	a := newArenas(t)
	theirs := must(exec.NewArena())
	defer theirs.Close()
	join := func(m *Mapping, peer, fd int) error { return m.Join(peer, must(unix.Dup(fd))) }
	first, second := newMapping(a, nil), newMapping(a, nil)
	for _, m := range []*Mapping{first, second} {
		if err := join(m, 1, theirs.FD()); err != nil {
			t.Fatal(err)
		}
	}
	if err := join(second, 0, first.window.FD()); err != nil { // another one, that is sealed
		t.Fatal(err)
	}
	unsealed := must(unix.MemfdCreate("goccl-test", unix.MFD_CLOEXEC))
	defer unix.Close(unsealed)
	if err := join(first, 0, unsealed); err == nil {
		t.Error("memory is mapped that its owner can take away")
	}
	var uses []int
	for _, p := range a.peers {
		uses = append(uses, p.uses)
	}
	slices.Sort(uses)
	if !slices.Equal(uses, []int{1, 2}) {
		t.Errorf("uses of the arenas are %v", uses)
	}
	second.Close()
	if len(a.peers) != 1 {
		t.Errorf("%d arenas are mapped when one epoch has ended", len(a.peers))
	}
	first.Close()
	if len(a.peers) != 0 {
		t.Errorf("%d arenas are mapped when both have ended", len(a.peers))
	}
}

// A window is closed with its mapping; where devices were told of it, once all of it is theirs no
// more.
func TestWindowEnds(t *testing.T) {
	for _, registered := range []bool{false, true} {
		t.Run(fmt.Sprint("registered ", registered), func(t *testing.T) {
			m := newMapping(newArenas(t), nil)
			window := must(exec.MappingsOf(m.window.FD()))
			defer window.Close()
			if registered {
				m.Register()
				word, _ := m.window.Memory()
				if err := m.arenas.Devices.Remove(unsafe.Pointer(&word[0])); err != nil {
					t.Fatal(err)
				}
			}
			if window.Over() {
				t.Fatal("it ended before its last use")
			}
			if err := m.Close(); err != nil {
				t.Error(err)
			}
			if !window.Over() {
				t.Error("it is still mapped")
			}
		})
	}
}

func TestImages(t *testing.T) {
	var m Images
	for _, bytes := range []int{0, 10, 5, 1000} {
		b := m.Take(bytes)
		if len(b) != bytes {
			t.Errorf("%d bytes, want %d", len(b), bytes)
		}
		m.Give(&b)
	}
}
