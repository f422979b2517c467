package channel

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/goccl/goccl/core/exec"
	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/memory"
	"github.com/goccl/goccl/core/transport"
)

const (
	group = 7
	// room is the size of what each rank of a world has registered.
	room = 512
	// beside is what lies around it, in the same block, and is not registered.
	beside = 128
)

// world is ranks of one process, whose engines are joined by faked links: frames in lists. Nothing
// happens by itself: a test delivers frames, and runs what was spawned.
type world struct {
	t     testing.TB
	ranks []*rank
	mu    sync.Mutex
	links map[way][]frame // frames to be read, in order; guarded by mu
	slow  map[way][]frame // that were read, and wait for the goroutine of the link
	tasks []func()
	full  bool // links take nothing that may not wait
	verbs bool // peers read pieces of shareable memory by themselves
}

// way is a link, in one direction.
type way struct{ from, to int }

type frame struct {
	transport.Header
	payload []byte
	lent    bool // the payload is the sender's memory, until it is read
}

// rank is the face and the links of its engine.
type rank struct {
	*Engine
	w      *world
	number int
	arena  *exec.Arena
	block  []byte  // of the arena
	own    *Memory // the middle of block
	blind  bool    // it can map no arena
	cancel context.CancelFunc
	broken error // what no correct peer sends
}

// joinWorld makes a world; ports: its ranks share no memory.
func joinWorld(t testing.TB, size int, ports bool) *world {
	t.Helper()
	w := &world{t: t, links: map[way][]frame{}, slow: map[way][]frame{}}
	members := fault.NewGroup("test", nil, slices.Repeat([]int{7}, size))
	for number := range size {
		r := &rank{w: w, number: number}
		ctx, cancel := context.WithCancel(context.Background())
		r.cancel = cancel
		arenas := &memory.Arenas{Logger: slog.New(slog.DiscardHandler)}
		memories := NewMemories(arenas)
		memories.Enter(group, []byte("secret"))
		others := make([]bool, size)
		for peer := range others {
			others[peer] = ports && peer != number
		}
		var err error
		if r.arena, err = arenas.Acquire(); err != nil {
			t.Fatal(err)
		}
		r.Engine = New(Config{Rank: number, Members: &members, Ports: others,
			Local: make([]bool, size), Waiting: exec.Waiting{Spin: 10, Yields: 10}, Memories: memories,
			Context: ctx, Spawn: w.spawn}, r)
		r.UseLinks(r)
		p, err := r.arena.Alloc(room + 2*beside)
		if err != nil {
			t.Fatal(err)
		}
		r.block = unsafe.Slice((*byte)(p), room+2*beside)
		clear(r.block)
		if r.own, err = memories.Register(unsafe.Add(p, beside), room, both); err != nil {
			t.Fatal(err)
		}
		w.ranks = append(w.ranks, r)
	}
	t.Cleanup(w.close)
	return w
}

const both = exec.RemoteRead | exec.RemoteWrite

func (w *world) close() {
	for _, r := range w.ranks {
		r.cancel()
		r.Fail(fault.Errorf(fault.ErrAborted, "the test is over"))
	}
	w.run()
	for _, r := range w.ranks {
		r.Engine.Free()
		r.Memories.DeregisterAll()
		_ = r.arena.Free(unsafe.Pointer(unsafe.SliceData(r.block)))
		r.Memories.Arenas.Release()
	}
}

func (w *world) spawn(f func()) { w.tasks = append(w.tasks, f) }

// run runs what was spawned.
func (w *world) run() {
	for len(w.tasks) > 0 {
		f := w.tasks[0]
		w.tasks = w.tasks[1:]
		f()
	}
}

// settle delivers all, until there is nothing more.
func (w *world) settle() {
	for more := true; more; {
		w.run()
		more = false
		for from := range w.ranks {
			for to := range w.ranks {
				more = w.read(way{from, to}) || w.handle(way{from, to}) || more
			}
		}
	}
}

// write has a link carry a frame.
func (w *world) write(at way, f frame) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.links[at] = append(w.links[at], f)
}

// read has a link's reader take a frame.
func (w *world) read(at way) bool {
	w.mu.Lock()
	if len(w.links[at]) == 0 {
		w.mu.Unlock()
		return false
	}
	f := w.links[at][0]
	w.links[at] = w.links[at][1:]
	w.mu.Unlock()
	if f.Type >= transport.ControlBase && f.Type < transport.QuickBase {
		w.slow[at] = append(w.slow[at], f)
		return true
	}
	w.ranks[at.to].take(at.from, f)
	if f.lent {
		w.ranks[at.from].Acked(at.to, f.payload)
	}
	return true
}

// handle has the goroutine of a link take a frame.
func (w *world) handle(at way) bool {
	if len(w.slow[at]) == 0 {
		return false
	}
	f := w.slow[at][0]
	w.slow[at] = w.slow[at][1:]
	w.ranks[at.to].take(at.from, f)
	return true
}

// take has the engine take a frame, as an epoch does.
func (r *rank) take(src int, f frame) {
	err := r.deliver(src, f)
	if err == nil {
		return
	}
	if !errors.Is(err, exec.ErrProtocol) {
		r.w.t.Fatalf("it is no violation: %v", err)
	}
	if r.broken == nil {
		r.broken = fmt.Errorf("from rank %d: %w", src, err)
	}
}

func (r *rank) deliver(src int, f frame) error {
	f.Bytes = uint32(len(f.payload))
	if f.Type != transport.Data {
		return r.Control(src, f.Header, f.payload)
	}
	to, err := r.Slot(src, f.Header)
	if err != nil {
		return err
	}
	if len(to) != len(f.payload) {
		r.w.t.Fatalf("a slot of %d bytes for %d", len(to), len(f.payload))
	}
	copy(to, f.payload)
	return r.Arrived(src, f.Header)
}

// Connected implements Links.
func (r *rank) Connected(peer int) bool { return true }

// Connect implements Links.
func (r *rank) Connect(ctx context.Context, peer int) error { return nil }

// Send implements Links.
func (r *rank) Send(ctx context.Context, peer int, h transport.Header, payload ...[]byte) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	r.w.write(way{r.number, peer}, frame{h, slices.Concat(payload...), false})
	return nil
}

// Advertises implements Links.
func (r *rank) Advertises(peer int, payload []byte) bool { return r.w.verbs && len(payload) > 0 }

// Advertise implements Links.
func (r *rank) Advertise(
	ctx context.Context, reading bool, peer int, h transport.Header, payload ...[]byte,
) (advertised bool, err error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	r.w.write(way{r.number, peer}, frame{h, payload[0], true})
	return true, nil
}

// TrySend implements Links.
func (r *rank) TrySend(peer int, h transport.Header, payload ...[]byte) bool {
	return !r.w.full && r.Send(context.Background(), peer, h, payload...) == nil
}

// Pump implements Links.
func (r *rank) Pump(peer int) {}

// PeerError implements Face.
func (r *rank) PeerError(peer int, err error) *fault.Error {
	return fault.From(err, fault.ErrPeerFailed, "rank %d", peer)
}

// Timeout implements Face.
func (r *rank) Timeout() time.Duration { return time.Minute }

// HoldArena implements Face.
func (r *rank) HoldArena(peer int) (arena []byte, release func(), ok bool) {
	if r.Ports[peer] || r.blind {
		return nil, nil, false
	}
	return r.w.ranks[peer].arena.Memory(), func() {}, true
}

// Retire implements Face.
func (r *rank) Retire(p unsafe.Pointer, bytes int64) { r.arena.Retire(p, bytes) }

// open opens an end, which must succeed.
func (r *rank) open(peer, tag int, kind string) *Channel {
	r.w.t.Helper()
	c, err := r.Open(peer, tag, kind)
	if err != nil {
		r.w.t.Fatal(err)
	}
	return c
}

// imported is memory of a peer, as this rank knows it.
func (r *rank) imported(m *Memory, peer int) *Memory {
	r.w.t.Helper()
	b, err := m.Export(peer, 1, group)
	if err != nil {
		r.w.t.Fatal(err)
	}
	its, err := r.Memories.Import(peer, 1, b[:])
	if err != nil {
		r.w.t.Fatal(err)
	}
	return its
}

// shareable allocates memory of the rank's arena.
func (r *rank) shareable(bytes int) []byte {
	r.w.t.Helper()
	p, err := r.arena.Alloc(int64(bytes))
	if err != nil {
		r.w.t.Fatal(err)
	}
	return unsafe.Slice((*byte)(p), bytes)
}

// release frees what shareable has allocated.
func (r *rank) release(b []byte) {
	r.w.t.Helper()
	if err := r.arena.Free(unsafe.Pointer(unsafe.SliceData(b))); err != nil {
		r.w.t.Fatal(err)
	}
}

// registered is all that peers may write.
func (r *rank) registered() []byte { return r.block[beside:][:room] }

// correct fails the test where a rank has been told of what no correct peer sends, or has failed.
func (w *world) correct() {
	w.t.Helper()
	for _, r := range w.ranks {
		if r.broken != nil {
			w.t.Fatalf("rank %d: %v", r.number, r.broken)
		}
	}
}
