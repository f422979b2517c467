package core

import (
	"bytes"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/goccl/goccl/core/internal/polltest"
	"github.com/goccl/goccl/core/plan"
)

// slowFeed brings the inputs of an operation late, a piece of each in turn, and keeps what it is
// told of outputs.
type slowFeed struct {
	rank  int
	op    *Operation
	data  [][]byte // the inputs
	there []atomic.Uint64
	final []atomic.Uint64           // by output block, how many bytes
	seen  [][]byte                  // what was there when it was final
	fails string                    // why an input does not come
	again bool                      // the operation may run once more
	hole  atomic.Pointer[[2]uint64] // bytes of inputs that do not come
	asked *atomic.Uint64
}

func bytesAt(at unsafe.Pointer, n int64) []byte { return unsafe.Slice((*byte)(at), n) }

// newSlowFeed takes the inputs of an operation away.
func newSlowFeed(rank int, op *Operation) *slowFeed {
	f := &slowFeed{rank: rank, op: op, there: make([]atomic.Uint64, len(op.In)),
		final: make([]atomic.Uint64, len(op.Out)), seen: make([][]byte, len(op.Out))}
	if op.Collective == plan.Broadcast && rank != op.Root {
		return f // its buffer is no input
	}
	for i, n := range op.InBytes()[:len(op.In)] {
		block := bytesAt(op.In[i], n)
		f.data = append(f.data, slices.Clone(block))
		spoil(block)
	}
	return f
}

// spoil writes over what is not there yet. The race detector would take most of a test for it.
//
//go:norace
func spoil(block []byte) {
	for i := range block {
		block[i] = 0xA5
	}
}

// produce has the inputs come, so many bytes at a time.
func (f *slowFeed) produce(step int) {
	for more := true; more; {
		more = false
		for i, all := range f.data {
			from := int(f.there[i].Load())
			to := min(from+step, len(all))
			copy(bytesAt(f.op.In[i], int64(len(all)))[from:to], all[from:to])
			f.there[i].Store(uint64(to))
			more = more || to < len(all)
		}
		runtime.Gosched()
	}
}

func (f *slowFeed) Need(block int, from, upto uint64) (bool, error) {
	if f.asked != nil {
		f.asked.Add(1)
	}
	if f.fails != "" {
		return false, errors.New(f.fails)
	}
	if hole := f.hole.Load(); hole != nil && from < hole[1] && upto > hole[0] {
		return false, nil
	}
	return f.there[block].Load() >= upto, nil
}

func (f *slowFeed) Final(block int, from, upto uint64) {
	all := f.op.OutBytes()[block]
	if f.seen[block] == nil {
		f.seen[block] = make([]byte, all)
	}
	copy(f.seen[block][from:upto], bytesAt(f.op.Out[block], all)[from:upto])
	f.final[block].Add(upto - from)
}

// check tells whether all outputs were final, and have stayed as they were then.
func (f *slowFeed) check() error {
	in, out := f.op.Uses(f.rank)
	if !out || f.op.Collective == plan.Broadcast && f.rank == f.op.Root {
		return nil
	}
	for i, n := range f.op.OutBytes() {
		if final := f.final[i].Load(); final != uint64(n) && !f.again {
			return fmt.Errorf("%v: of %d bytes of output %d %d are final", f.op.Collective, n, i, final)
		}
		if n > 0 && !bytes.Equal(f.seen[i], bytesAt(f.op.Out[i], n)) {
			return fmt.Errorf("%v: output %d was not final", f.op.Collective, i)
		}
	}
	for i, all := range f.data {
		if in && f.there[i].Load() != uint64(len(all)) {
			return fmt.Errorf("%v: it has ended before input %d", f.op.Collective, i)
		}
	}
	return nil
}

// runFed runs an operation with a feed. Some ranks have none.
func runFed(c *Comm, op Operation) error {
	if c.Rank()%4 == 3 {
		return run(c, op)
	}
	f := newSlowFeed(c.Rank(), &op)
	feed, release := c.NewFeed(f)
	defer release()
	op.Feed = feed
	produced := make(chan struct{})
	w, err := c.Start(CallOptions{WaitSoon: c.Rank()%2 == 0}, op)
	if err != nil {
		return err
	}
	go func() {
		f.produce(300_000)
		close(produced)
	}()
	_, err = w.Wait(-1)
	<-produced
	return errors.Join(err, f.check())
}

// Every collective has the same results whether its inputs are there, or come while it runs: over
// all transports, in place or not, and where ranks differ.
func TestFeed(t *testing.T) {
	for _, transport := range transports {
		for _, size := range []int{1, 2, 5} {
			if testing.Short() && size == 5 && transport != "shm" {
				continue
			}
			t.Run(fmt.Sprint(transport, size), func(t *testing.T) {
				w := newWorld(t, transport, size, time.Minute)
				w.run = runFed
				for _, n := range []int{0, 1, 1000, 700_000} {
					collectives(t, w, size, n, false)
					collectives(t, w, size, n, true)
				}
			})
		}
	}
}

// Programs run with feeds, too.
func TestFeedOfPrograms(t *testing.T) {
	for _, transport := range []string{"shm", "tcp"} {
		w := newWorld(t, transport, 3, time.Minute)
		for _, p := range programsOf(t, 3) {
			w.register(p, 0, 0)
		}
		w.run = runFed
		for _, inPlace := range []bool{false, true} {
			collectives(t, w, 3, 700_001, inPlace)
		}
	}
}

// What is longer than a segment comes segment by segment.
func TestFeedOfSegments(t *testing.T) {
	w := newWorld(t, "shm", 2, time.Minute)
	const n = 70 << 18 // ints of 70 MiB
	w.each(func(rank int) error {
		op, out := sumOf(t, rank, n, rank == 0)
		return errors.Join(runFed(w.comms[rank], op), sumIs(out, []int{0, 1}))
	})
}

// Whoever waits for an input that does not come is ended by a timeout that says so, here and on
// peers; and by an abort.
func TestFeedThatStays(t *testing.T) {
	for _, transport := range transports {
		for how, want := range map[string]error{
			"its input is not there yet: bytes 0 to 4000 of block 0": ErrTimeout, // of rank 0
			"waits for its input of #":                               ErrTimeout, // of rank 1
			"it is enough":                                           ErrAborted,
		} {
			w := newWorld(t, transport, 2, time.Minute)
			everything(t, w)
			var asked atomic.Uint64
			for rank, err := range w.try(func(rank int) error {
				op, _ := sumOf(t, rank, 1000, false)
				options := CallOptions{Timeout: time.Minute}
				if rank == 0 {
					f := newSlowFeed(rank, &op)
					f.asked = &asked
					feed, release := w.comms[rank].NewFeed(f)
					defer release()
					op.Feed = feed
				} else {
					polltest.Until(t, "the feed is asked", func() bool { return asked.Load() > 0 })
				}
				if want == ErrTimeout && strings.HasPrefix(how, "its") == (rank == 0) {
					options.Timeout = 2 * time.Second
				}
				k, err := w.comms[rank].Start(options, op)
				if err != nil {
					return err
				}
				if want == ErrAborted && rank == 1 {
					w.comms[1].Abort(how)
				}
				_, err = k.Wait(-1)
				return err
			}) {
				if !errors.Is(err, want) || !strings.Contains(err.Error(), how) {
					t.Errorf("%s, %s, rank %d: %v", transport, how, rank, err)
				}
			}
		}
	}
}

// An input that fails ends the communicator, on all ranks with the text and the rank.
func TestFeedFails(t *testing.T) {
	w := newWorld(t, "shm", 3, time.Minute)
	for rank, err := range w.try(func(rank int) error {
		op, _ := sumOf(t, rank, 1000, false)
		f := newSlowFeed(rank, &op)
		if rank == 1 {
			f.fails = "the camera is off"
			feed, release := w.comms[rank].NewFeed(f)
			defer release()
			op.Feed = feed
		}
		return run(w.comms[rank], op)
	}) {
		var e *Error
		if !errors.Is(err, ErrSystem) || !strings.Contains(err.Error(), "the camera is off") ||
			!errors.As(err, &e) || !slices.Equal(e.Ranks, []int{1}) {
			t.Errorf("rank %d: %v", rank, err)
		}
	}
}

// panics is a feed that panics: in Final, or before.
type panics bool

func (atFinal panics) Need(int, uint64, uint64) (bool, error) {
	if !atFinal {
		panic("in need")
	}
	return true, nil
}

func (panics) Final(int, uint64, uint64) { panic("in final") }

// A feed that panics fails the communicator.
func TestFeedPanics(t *testing.T) {
	for text, want := range map[string]error{"in need": ErrSystem, "in final": ErrInternal} {
		w := newWorld(t, "shm", 2, time.Minute)
		for rank, err := range w.try(func(rank int) (err error) {
			op, _ := sumOf(t, rank, 1000, false)
			if rank == 1 {
				feed, release := w.comms[rank].NewFeed(panics(text == "in final"))
				defer release()
				op.Feed = feed
			}
			for err == nil { // the first collective may end before the failure is heard of
				err = run(w.comms[rank], op)
			}
			return err
		}) {
			if !errors.Is(err, want) || !strings.Contains(err.Error(), "panic: "+text) {
				t.Errorf("%s, rank %d: %v", text, rank, err)
			}
		}
	}
}

// A send has no feed.
func TestFeedOfASend(t *testing.T) {
	w := newWorld(t, "shm", 2, time.Minute)
	op := sendOp(buffer(t, 4), 1, 0)
	feed, release := w.comms[0].NewFeed(newSlowFeed(0, &op))
	defer release()
	op.Feed = feed
	if err := run(w.comms[0], op); !errors.Is(err, ErrInvalidArgument) {
		t.Error(err)
	}
}

// Where a member dies while inputs are yet to come, the survivors complete the collective: in
// place, too, where some of them are overwritten by then.
func TestFeedCompletes(t *testing.T) {
	for _, transport := range transports {
		for _, inPlace := range []bool{false, true} {
			if testing.Short() && inPlace != (transport == "shm") {
				continue
			}
			t.Run(fmt.Sprint(transport, inPlace), func(t *testing.T) {
				feedCompletes(t, transport, inPlace)
			})
		}
	}
}

func feedCompletes(t *testing.T, transport string, inPlace bool) {
	var releases []func() // once the world has ended
	t.Cleanup(func() {
		for _, release := range releases {
			release()
		}
	})
	w := newWorldOf(t, transport, 4, Config{Timeout: 20 * time.Second, Recovery: RecoverySurvivors})
	everything(t, w)
	var feeds [4]*slowFeed
	var works [4]*Work
	var outs [4][]int32
	for rank, c := range w.comms {
		var op Operation
		op, outs[rank] = sumOf(t, rank, 1<<22, inPlace)
		feeds[rank] = newSlowFeed(rank, &op)
		feeds[rank].again = true
		feed, release := c.NewFeed(feeds[rank])
		releases = append(releases, release)
		op.Feed = feed
		var err error
		if works[rank], err = c.Start(CallOptions{}, op); err != nil {
			t.Fatal(err)
		}
	}
	// The end of the input of the one that is to die does not come.
	feeds[2].hole.Store(&[2]uint64{12 << 20, 16 << 20})
	for _, f := range feeds {
		f.produce(1 << 19)
	}
	polltest.Until(t, "some of the result is there", func() bool {
		return feeds[0].final[0].Load()+feeds[1].final[0].Load()+feeds[3].final[0].Load() > 0
	})
	w.endFor(0, 2)
	ids := []int{0, 1, 3}
	for _, rank := range ids {
		_, err := works[rank].Wait(-1)
		if err = errors.Join(err, sumIs(outs[rank], ids), feeds[rank].check()); err != nil {
			t.Errorf("rank %d: %v", rank, err)
		}
	}
	checkMembers(t, w.of(ids...))
}
