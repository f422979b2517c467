package transport

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/goccl/goccl/core/address"
	"github.com/goccl/goccl/core/internal/logtest"
	"github.com/goccl/goccl/core/internal/polltest"
	"github.com/goccl/goccl/core/logs"
	"github.com/goccl/goccl/rdma/fake"
)

const patience = polltest.Patience

var kinds = []string{address.Mem, address.Shm, address.TCP, address.Verbs}

// got is a frame that a recorder has received.
type got struct {
	src     int
	h       Header
	payload []byte
}

// recorder is a Handler that remembers.
type recorder struct {
	stopped  *uint32 // GroupConfig.Stopped
	mu       sync.Mutex
	cond     *sync.Cond
	frames   []got
	attached map[int][]int // descriptors by rank
	down     map[int]error
	left     map[int]bool
	order    []string
	slot     func(src int, h Header) ([]byte, error)
	slots    map[int][]byte
	control  func(src int, h Header, payload []byte)
}

func newRecorder() *recorder {
	r := &recorder{attached: map[int][]int{}, down: map[int]error{}, left: map[int]bool{},
		slots: map[int][]byte{}}
	r.cond = sync.NewCond(&r.mu)
	r.slot = func(_ int, h Header) ([]byte, error) { return make([]byte, h.Bytes), nil }
	return r
}

func (r *recorder) note(format string, args ...any) {
	r.order = append(r.order, fmt.Sprintf(format, args...))
	r.cond.Broadcast()
}

// Slot cuts what slot gives in two.
func (r *recorder) Slot(src int, h Header) (head, body []byte, err error) {
	b, err := r.slot(src, h)
	r.mu.Lock()
	r.slots[src] = b
	r.mu.Unlock()
	return b[:len(b)/3], b[len(b)/3:], err
}

func (r *recorder) Dropped(src int, h Header) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.note("dropped %d", src)
}

func (r *recorder) Acked(dst int, h Header, _ []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.note("acked %d", dst)
}

func (r *recorder) Arrived(src int, h Header) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.frames = append(r.frames, got{src, h, r.slots[src]})
	r.note("data %d", src)
}

func (r *recorder) Control(src int, h Header, payload []byte) {
	if r.control != nil {
		r.control(src, h, payload)
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.frames = append(r.frames, got{src, h, bytes.Clone(payload)})
	r.note("control %d", src)
}

func (r *recorder) PeerAttached(src int, fds []int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.attached[src] = fds
	r.note("attached %d", src)
}

func (r *recorder) PeerDown(src int, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.down[src] != nil {
		panic("down twice")
	}
	r.down[src] = err
	r.note("down %d", src)
}

func (r *recorder) PeerLeft(src int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.left[src] = true
	r.note("left %d", src)
}

// until waits for a condition on the recorder.
func (r *recorder) until(t testing.TB, what string, f func() bool) {
	t.Helper()
	late := time.AfterFunc(patience, func() { r.mu.Lock(); r.cond.Broadcast(); r.mu.Unlock() })
	defer late.Stop()
	start := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	for !f() {
		if time.Since(start) > patience {
			t.Fatalf("%s does not come; so far: %v", what, r.order)
		}
		r.cond.Wait()
	}
}

func (r *recorder) untilDown(t testing.TB, src int) error {
	t.Helper()
	r.until(t, fmt.Sprintf("the end of rank %d", src), func() bool { return r.down[src] != nil })
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.down[src]
}

func (r *recorder) untilFrames(t testing.TB, n int) []got {
	t.Helper()
	r.until(t, fmt.Sprintf("frame %d", n), func() bool { return len(r.frames) >= n })
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.frames
}

// isUp fails the test where a peer is down.
func (r *recorder) isUp(t testing.TB, src int) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.down[src]; err != nil {
		t.Fatal(err)
	}
}

// logbook collects what an endpoint warns of.
type logbook struct {
	mu    sync.Mutex
	lines []string
	more  chan struct{}
}

func newLogbook() *logbook { return &logbook{more: make(chan struct{}, 1000)} }

func (l *logbook) logger() *slog.Logger {
	return logtest.Logger(logs.Warn, func(r logs.Record) {
		l.mu.Lock()
		l.lines = append(l.lines, r.Text)
		l.mu.Unlock()
		l.more <- struct{}{}
	})
}

func (l *logbook) wait(t *testing.T, n int) []string {
	t.Helper()
	late := time.After(patience)
	for {
		l.mu.Lock()
		lines := l.lines
		l.mu.Unlock()
		if len(lines) >= n {
			return lines
		}
		select {
		case <-l.more:
		case <-late:
			t.Fatalf("line %d of the log does not come: %q", n, lines)
		}
	}
}

// sockets follows the sockets of an endpoint, as its Config.OnFD.
type sockets struct {
	mu     sync.Mutex
	opened int // so far
	last   int // opened
}

func (s *sockets) note(fd int, open bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if open {
		s.opened++
		s.last = fd
	}
}

func (s *sockets) seen() (opened, last int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.opened, s.last
}

func listen(t testing.TB, c Config) *Endpoint {
	t.Helper()
	if c.StoreHost == "" && c.Interface == "" {
		c.StoreHost = "127.0.0.1"
	}
	if c.Logger == nil {
		c.Logger = logtest.Warnings(t)
	}
	e, err := Listen(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closes(t, e) })
	return e
}

// closes closes an endpoint. What a failed test has left behind may keep that from ending: it is
// then left, too.
func closes(t testing.TB, e *Endpoint) {
	t.Helper()
	closed := make(chan error, 1)
	go func() { closed <- e.Close() }()
	most := patience
	if t.Failed() {
		most = patience / 6
	}
	select {
	case err := <-closed:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(most):
		t.Error("an endpoint does not close")
	}
}

// crowd makes many endpoints. End closes them all at once, which takes less time.
func crowd(t testing.TB, n int) (eps []*Endpoint, end func()) {
	t.Helper()
	for range n {
		e, err := Listen(Config{StoreHost: "127.0.0.1"})
		ok(t, err)
		eps = append(eps, e)
	}
	return eps, func() {
		var all sync.WaitGroup
		for _, e := range eps {
			all.Go(func() { _ = e.Close() })
		}
		all.Wait()
	}
}

var secret = bytes.Repeat([]byte{7}, 32)

// world is a group whose ranks live in the given endpoints, joined by one kind.
type world struct {
	groups   []*Group
	handlers []*recorder
}

func groupConfig(eps []*Endpoint, kind string, group uint64, rank int) GroupConfig {
	c := GroupConfig{Job: 1, Group: group, Epoch: 5, Secret: secret, Name: "world", Rank: rank}
	for _, e := range eps {
		c.Peers = append(c.Peers, e.Address())
		k := kind
		if e == eps[rank] {
			k = address.Mem
		}
		c.Kinds = append(c.Kinds, k)
	}
	return c
}

func attach(t testing.TB, e *Endpoint, c GroupConfig, h *recorder) *Group {
	t.Helper()
	c.Handler = h
	if e.verbs != nil {
		page := pages(t, 4096)
		c.Stopped = unsafe.Pointer(&page[0])
		e.verbs.memory.Add(c.Stopped, 4096, nil, nil)
		h.stopped = (*uint32)(c.Stopped)
	}
	g, err := e.Attach(c)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// pages is memory of a test. What a failed test has left behind may use it still: it is then left,
// too.
func pages(t testing.TB, size int) []byte {
	t.Helper()
	b, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	ok(t, err)
	t.Cleanup(func() {
		if !t.Failed() {
			ok(t, unix.Munmap(b))
		}
	})
	return b
}

func newWorld(t testing.TB, eps []*Endpoint, kind string, group uint64) *world {
	t.Helper()
	w := &world{}
	for r, e := range eps {
		h := newRecorder()
		w.handlers = append(w.handlers, h)
		w.groups = append(w.groups, attach(t, e, groupConfig(eps, kind, group, r), h))
	}
	return w
}

// pair makes two endpoints (for mem: one, twice).
func pair(t testing.TB, kind string, c Config) []*Endpoint {
	if kind == address.Verbs && c.Verbs.Library == "" {
		c.Verbs = VerbsConfig{Library: fake.New(t).Path, GIDIndex: -1}
	}
	a := listen(t, c)
	if kind == address.Mem {
		return []*Endpoint{a, a}
	}
	return []*Endpoint{a, listen(t, c)}
}

func within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wants(t testing.TB, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("got %v, want %v", err, want)
	}
}

// openFDs lists this process's descriptors, but for those of the runtime's poller.
func openFDs(t *testing.T) map[string]int {
	t.Helper()
	dir, err := os.ReadDir("/proc/self/fd")
	ok(t, err)
	l := map[string]int{}
	for _, d := range dir {
		if to, err := os.Readlink("/proc/self/fd/" + d.Name()); err == nil &&
			!strings.HasPrefix(to, "anon_inode:") &&
			!strings.HasPrefix(to, "/proc/") {
			l[to]++
		}
	}
	return l
}

// goroutines lists those that run code of this package, other than tests.
func goroutines() []string {
	b := make([]byte, 1<<20)
	b = b[:runtime.Stack(b, true)]
	var l []string
	for _, g := range strings.Split(string(b), "\n\n") {
		if strings.Contains(g, "created by github.com/goccl/goccl/core/transport.(*Endpoint)") {
			l = append(l, g)
		}
	}
	return l
}

func memfd(t *testing.T, content string) int {
	t.Helper()
	fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC)
	ok(t, err)
	t.Cleanup(func() { unix.Close(fd) })
	_, err = unix.Pwrite(fd, []byte(content), 0)
	ok(t, err)
	return fd
}
