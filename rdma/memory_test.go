package rdma

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/goccl/goccl/rdma/fake"
)

// use asks for memory, and expects it to be given or not.
func use(t *testing.T, m *Memory, d *Device, p unsafe.Pointer, bytes int, given bool) *Use {
	t.Helper()
	u, err := m.Use(d, p, bytes)
	if err != nil || (u != nil) != given || m.Knows(d, p, bytes) != given {
		t.Fatalf("%d bytes: %v, %v", bytes, u, err)
	}
	return u
}

func TestMemoryIsRegisteredWhileItLasts(t *testing.T) {
	const page, length = 4096, 3000
	f, d := openFake(t)
	var m Memory
	at := pages(t, 3*page)
	blocks := []unsafe.Pointer{unsafe.Add(at, 2*page), at, unsafe.Add(at, page)}
	ended := 0
	for _, b := range blocks {
		m.Add(b, length, nil, func() {
			if ended++; f.Live("mr") != 3-ended {
				t.Errorf("%d blocks have ended, and %d regions are left", ended, f.Live("mr"))
			}
		})
	}
	for _, outside := range []struct{ from, bytes int }{{length, 1}, {0, length + 1}, {length - 1, 2},
		{page - 1, 2}, {3 * page, 1}, {-1, 2}, {0, 3 * page}} {
		use(t, &m, d, unsafe.Add(at, outside.from), outside.bytes, false)
	}
	if n := f.Live("mr"); n != 0 {
		t.Fatalf("%d regions before the first use", n)
	}
	var uses []*Use
	for _, inside := range []struct{ from, bytes int }{{0, length}, {page + length - 1, 1}, {page, 1},
		{2*page + 7, 100}} {
		u := use(t, &m, d, unsafe.Add(at, inside.from), inside.bytes, true)
		if addr := u.Remote().Addr; addr != uint64(uintptr(at))+uint64(inside.from) {
			t.Errorf("%d is given out as %#x of %p", inside.from, addr, at)
		}
		uses = append(uses, u)
	}
	if n := f.Live("mr"); n != 3 || m.Registered() != 3*length {
		t.Fatalf("%d regions of %d bytes for three blocks", n, m.Registered())
	}
	// The end of a block in use is put off, that of another is not.
	for i, left := range []int{3, 3, 2, 2, 1} {
		var err error
		switch i {
		case 0:
			err = m.Remove(blocks[2])
		case 1:
			err = uses[1].End()
		case 2:
			err = uses[2].End()
		case 3:
			err = uses[3].End()
		case 4:
			err = m.Remove(blocks[0])
		}
		if n := f.Live("mr"); n != left || ended != 3-left || err != nil {
			t.Errorf("after step %d %d regions live, and %d blocks have ended: %v", i, n, ended, err)
		}
	}
	use(t, &m, d, blocks[2], 1, false)
	if err := errors.Join(uses[0].End(), m.Leave(d), d.Close()); err != nil || f.Live("") != 0 ||
		m.Registered() != 0 {
		t.Errorf("%d objects live, %d bytes are registered: %v", f.Live(""), m.Registered(), err)
	}
}

func TestMemoryThatCannotBeRegistered(t *testing.T) {
	f, d := openFake(t)
	var m Memory
	at := pages(t, 1<<20)
	for i := range MostRegistered + 1 {
		m.Add(unsafe.Add(at, 128*i), 128, nil, nil)
	}
	f.Fail("reg_mr", 1, 1, syscall.ENOMEM)
	if _, err := m.Use(d, at, 1); err == nil || !strings.Contains(err.Error(), "locked memory") {
		t.Errorf("the error is %v", err)
	}
	use(t, &m, d, at, 1, false) // it is not tried again
	first := use(t, &m, d, unsafe.Add(at, 128), 1, true)
	for i := range MostRegistered - 1 {
		use(t, &m, d, unsafe.Add(at, 128*(i+2)), 1, true)
	}
	m.Add(unsafe.Add(at, 1<<19), 128, nil, nil)
	if u, err := m.Use(d, unsafe.Add(at, 1<<19), 1); u != nil || err == nil ||
		!strings.Contains(err.Error(), "which is the most") {
		t.Errorf("one too many: %v, %v", u, err)
	}
	if m.Knows(d, unsafe.Add(at, 1<<19), 1) {
		t.Error("one too many is said to do")
	}
	spare := unsafe.Add(at, 128)
	if err := errors.Join(use(t, &m, d, spare, 1, true).End(), first.End(),
		m.Remove(spare)); err != nil {
		t.Error(err)
	}
	use(t, &m, d, unsafe.Add(at, 1<<19), 1, true)
	if err := errors.Join(m.Leave(d), d.Close()); err != nil {
		t.Error(err)
	}
}

// What a device gets to know is the second mapping, made when it is first needed, where that can
// be.
func TestMemoryThatHasATwin(t *testing.T) {
	_, d := openFake(t)
	var m Memory
	at := pages(t, 3*4096)
	twins := 0
	m.Add(at, 4096, func(p unsafe.Pointer) (unsafe.Pointer, error) {
		twins++
		return unsafe.Add(p, 2*4096), nil
	}, nil)
	m.Add(unsafe.Add(at, 4096), 4096, func(p unsafe.Pointer) (unsafe.Pointer, error) {
		return nil, errors.New("no room")
	}, nil)
	if twins > 0 {
		t.Error("it is mapped before it is used")
	}
	for range 2 {
		if addr := use(t, &m, d, unsafe.Add(at, 100), 1,
			true).Remote().Addr; addr != uint64(uintptr(at))+2*4096+100 || twins != 1 {
			t.Errorf("%p is given out as %#x, and was mapped %d times", at, addr, twins)
		}
	}
	if u, err := m.Use(d, unsafe.Add(at, 4096), 1); u != nil || err == nil ||
		err.Error() != "no room" {
		t.Errorf("what cannot be mapped: %v, %v", u, err)
	}
	use(t, &m, d, unsafe.Add(at, 4096), 1, false)
	if err := errors.Join(m.Leave(d), d.Close()); err != nil || m.registered != 0 {
		t.Errorf("%d are counted: %v", m.registered, err)
	}
}

// What a device may still have access to is not said to have ended.
func TestMemoryThatStaysRegistered(t *testing.T) {
	f, d := openFake(t)
	var m Memory
	at := pages(t, 4096)
	ended := false
	m.Add(at, 4096, nil, func() { ended = true })
	u := use(t, &m, d, at, 4096, true)
	region := u.r.region
	if err := u.End(); err != nil {
		t.Fatal(err)
	}
	f.Fail("dereg_mr", 1, 1, syscall.EBUSY)
	if err := m.Remove(at); !errors.Is(err, syscall.EBUSY) || ended {
		t.Errorf("%v, and it has ended: %v", err, ended)
	}
	use(t, &m, d, at, 4096, false)
	if err := errors.Join(region.Close(), d.Close()); err != nil {
		t.Error(err)
	}
}

// Who comes while somebody registers goes without; the memory does not end before that is over.
func TestMemoryThatIsBeingRegistered(t *testing.T) {
	_, d := openFake(t)
	var m Memory
	at := pages(t, 4096)
	m.Add(at, 4096, nil, nil)
	r := &registration{m: &m, block: m.blocks[0], made: make(chan struct{})}
	m.blocks[0].at[d] = r
	m.registered++
	use(t, &m, d, at, 1, false)
	removed := make(chan error)
	go func() { removed <- m.Remove(at) }()
	select {
	case <-removed:
		t.Error("memory that is being registered has ended")
	case <-time.After(20 * time.Millisecond):
	}
	if err := r.register(d); err != nil {
		t.Fatal(err)
	}
	if err := <-removed; err != nil || m.Registered() != 4096 {
		t.Errorf("%d bytes are registered, which are in use: %v", m.Registered(), err)
	}
	if err := errors.Join((&Use{r: r}).End(), d.Close()); err != nil || m.Registered() != 0 {
		t.Errorf("%d bytes are registered: %v", m.Registered(), err)
	}
}

func TestMemoryOfManyAtOnce(t *testing.T) {
	const blocks, length, users = 8, 4096, 4
	f, d := openFake(t)
	var m Memory
	at := pages(t, blocks*length)
	block := func(i int) unsafe.Pointer { return unsafe.Add(at, i%blocks*length) }
	for i := range blocks {
		m.Add(block(i), length, nil, nil)
	}
	f.Fail("reg_mr", 20, 20, syscall.ENOMEM)
	errs := make(chan error, users+1)
	for user := range users {
		go func() {
			var err error
			for i := range 3000 {
				u, _ := m.Use(d, block(i*(user+1)), length) // which may fail
				if u != nil && u.Remote().Addr != uint64(uintptr(block(i*(user+1)))) {
					err = errors.New("other memory is given out")
				}
				err = errors.Join(err, u.End())
			}
			errs <- err
		}()
	}
	go func() {
		var err error
		for i := range 1000 {
			err = errors.Join(err, m.Remove(block(i)))
			m.Add(block(i), length, nil, nil)
		}
		errs <- err
	}()
	for range users + 1 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	if n := f.Live("mr"); n != m.registered || m.Registered() != int64(n*length) {
		t.Errorf("%d regions, and there should be %d, of %d bytes", n, m.registered, m.Registered())
	}
	if err := errors.Join(m.Leave(d), d.Close()); err != nil || f.Live("") != 0 || m.registered != 0 {
		t.Errorf("%d objects live, %d are counted: %v", f.Live(""), m.registered, err)
	}
}

// lent is memory of side 0 that side 1 may read.
func lent(t *testing.T, m *Memory, d *Device, b []byte) *Use {
	at := pages(t, len(b))
	copy(unsafe.Slice((*byte)(at), len(b)), b)
	m.Add(at, int64(len(b)), nil, nil)
	t.Cleanup(func() {
		if err := m.Remove(at); err != nil {
			t.Error(err)
		}
	})
	u := use(t, m, d, at, len(b), true)
	t.Cleanup(func() { u.End() })
	return u
}

// word is a word of side 0, which says whether it has stopped.
func word(t *testing.T, m *Memory, d *Device, stopped byte) Remote {
	return lent(t, m, d, []byte{stopped, 0, 0, 0}).Remote()
}

// fetched waits until a fetch has ended.
func fetched(s *Stream) error {
	for {
		if all, err := s.Fetched(); all || err != nil {
			return err
		}
		if err := await(s); err != nil {
			return err
		}
	}
}

// served waits until the peer has answered so often, and not more often.
func served(s *Stream, n uint32) error {
	for {
		_, _, err := s.Read(&unix.Iovec{}, 1)
		if has := s.Served(); err != nil || has == n {
			return err
		} else if has > n {
			return fmt.Errorf("%d answers for %d", has, n)
		}
		if err := await(s); err != nil {
			return err
		}
	}
}

// testFetch reads the peer's memory, to where it is registered and where it is not.
func testFetch(t *testing.T, d *Device) {
	s := pair(t, d, LeastRing)
	var m Memory
	for i, n := range []int{1, 5000, 70_000, 1 << 20, 3<<20 + 1} {
		want := random(n, uint64(i))
		from := lent(t, &m, d, want).Remote()
		for _, cut := range []int{0, n / 3, n} {
			staged := make([]byte, cut)
			var to Use
			var uses [2]*Use
			rest := []byte(nil)
			if cut < n {
				to = *lent(t, &m, d, make([]byte, n-cut))
				uses[1], rest = &to, unsafe.Slice((*byte)(to.at), n-cut)
			}
			if err := s[1].Fetch(from, word(t, &m, d, 0), [2][]byte{staged, rest}, uses); err != nil {
				t.Fatal(err)
			}
			if err := fetched(s[1]); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(slices.Concat(staged, rest), want) {
				t.Fatalf("of %d bytes, %d of them staged: others have come", n, cut)
			}
			before := s[0].Served()
			s[1].Answer()
			if err := served(s[0], before+1); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// testFetchRefused reads what the peer does not lend.
func testFetchRefused(t *testing.T, d *Device) {
	s := pair(t, d, LeastRing)
	var m Memory
	from := lent(t, &m, d, make([]byte, 4096)).Remote()
	if err := s[1].Fetch(Remote{from.Addr + 1, from.Key}, word(t, &m, d, 0),
		[2][]byte{make([]byte, 4096)}, [2]*Use{}); err != nil {
		t.Fatal(err)
	}
	err := fetched(s[1])
	var fault *Error
	if !errors.Is(err, ErrBroken) || !errors.As(err, &fault) || fault.Verb != "RDMA READ" {
		t.Errorf("the error is %v", err)
	}
}

// testFetchFromStopped reads what is no longer what was lent.
func testFetchFromStopped(t *testing.T, d *Device) {
	s := pair(t, d, LeastRing)
	var m Memory
	for _, stopped := range []byte{1, 0} {
		if err := s[1].Fetch(lent(t, &m, d, make([]byte, 70_000)).Remote(), word(t, &m, d, stopped),
			[2][]byte{make([]byte, 70_000)}, [2]*Use{}); err != nil {
			t.Fatal(err)
		}
		if err := fetched(s[1]); errors.Is(err, ErrWithdrawn) != (stopped == 1) || err != nil &&
			stopped == 0 {
			t.Errorf("the word is %d, the error %v", stopped, err)
		}
	}
}

// What is read twice is the same. An answer that comes twice counts once, one that does not come is
// made good by the next, and one that comes again behind another is noticed before it counts.
func TestLoanTwiceOrLost(t *testing.T) {
	const writeWithImm, read = 1, 4 // of ibv_wr_opcode
	for _, fault := range []struct{ opcode, status int }{{read, fake.Twice},
		{writeWithImm, fake.Twice}, {writeWithImm, 0}} {
		f, d := openFake(t)
		t.Cleanup(func() { d.Close() })
		s := pair(t, d, LeastRing)
		var m Memory
		want, got := random(5000, 11), make([]byte, 5000)
		from := lent(t, &m, d, want).Remote()
		f.Complete(1, fault.opcode, s[1].Number(), fault.status, 0)
		if err := s[1].Fetch(from, word(t, &m, d, 0), [2][]byte{got}, [2]*Use{}); err != nil {
			t.Fatal(err)
		}
		if err := fetched(s[1]); err != nil || !bytes.Equal(got, want) {
			t.Fatalf("%+v: others have come: %v", fault, err)
		}
		s[1].Answer()
		s[1].Answer()
		if err := served(s[0], 2); err != nil {
			t.Errorf("%+v: %v", fault, err)
		}
		s[1].c.answered, s[1].c.reported = 0, 0
		s[1].Answer()
		if err := served(s[0], 3); !errors.Is(err, ErrProtocol) || s[0].Served() != 2 {
			t.Errorf("%+v: the first answer comes again, and there are %d: %v", fault, s[0].Served(), err)
		}
	}
}
