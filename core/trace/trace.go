// Package trace keeps what the communicators of a process have done and do, so that people can see
// it: `goccl ps`, metrics, the profiler, a trace file and the flight recorder read it.
//
// # Model
//
// A communicator has one [Trace], which outlives its epochs. It holds:
//
//   - Records. Each call has a [Record]: what it is, how large, when it was called, begun and
//     ended, by which algorithm and transports, its state, and for whom it waited. The last 512
//     collectives are kept, by sequence, and the last 256 sends and receives, by a number of their
//     own. The records of collectives are also the order by which ranks compare their calls.
//   - [Counters]: of calls by collective and algorithm, of bytes by transport, of time that was
//     waited for each peer, and of failures. They only grow.
//   - [Group]: who the ranks are, of each of the last epochs.
//
// While a [Session] is open there are also [Span]s: the parts of calls, in a ring of each thread
// that does them.
//
// Times are in ticks: those of the CPU's counter where that can be trusted, which takes 9 to 20 ns
// to read, else nanoseconds. A [Clock] makes times of them.
//
// Writers know none of the readers. They are the fast path in C, the engine of collectives and
// package p2p: one at a time for each record, see [Trace.Queue]. Readers take no lock and stop no
// writer: what is written meanwhile they leave out, and count. trace.h has the memory order.
//
// A [Registry] has the traces of a process's communicators, and the sums of those that are gone.
package trace

/*
#cgo CFLAGS: -O3 -Wall -Wextra -fvisibility=hidden
#include "trace.h"
#cgo noescape goccl_trace_queue
#cgo nocallback goccl_trace_queue
#cgo noescape goccl_trace_begin
#cgo nocallback goccl_trace_begin
#cgo noescape goccl_trace_end
#cgo nocallback goccl_trace_end
#cgo noescape goccl_trace_queue_message
#cgo nocallback goccl_trace_queue_message
#cgo noescape goccl_trace_begin_message
#cgo nocallback goccl_trace_begin_message
#cgo noescape goccl_trace_end_message
#cgo nocallback goccl_trace_end_message
#cgo noescape goccl_trace_waiting
#cgo nocallback goccl_trace_waiting
#cgo noescape goccl_record_copy
#cgo nocallback goccl_record_copy
#cgo noescape goccl_records_copy
#cgo nocallback goccl_records_copy
*/
import "C"

import (
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/goccl/goccl/core/plan"
)

// How many records are kept.
const (
	Collectives = C.GOCCL_TRACE_COLLECTIVES
	Messages    = C.GOCCL_TRACE_MESSAGES
)

// Trace is what a communicator has done and does. Its methods may be called from any goroutine,
// unless they say otherwise.
type Trace struct {
	c      *C.goccl_trace
	began  Moment
	mu     sync.Mutex // guards changes of life
	life   atomic.Pointer[life]
	unfed  atomic.Uint64
	staged atomic.Uint64 // bytes: see Staged
}

// Group is who the ranks of an epoch are.
type Group struct {
	ID     uint64 // as in messages
	Epoch  uint32
	Name   string
	Rank   int   // this one
	Ranks  []int // of each rank its number in the job
	Hosts  []string
	PIDs   []int
	Near   []bool // which are processes of this host and pid namespace
	Failed string // why the epoch has failed; "": it has not
}

// JobRank is this rank's number in the job.
func (g *Group) JobRank() int {
	if g.Rank < len(g.Ranks) {
		return g.Ranks[g.Rank]
	}
	return g.Rank
}

// retired is memory of traces that have ended. A fast path, in C, may still lead to it.
var retired struct {
	sync.Mutex
	free []*C.goccl_trace
}

const bytes = int(unsafe.Sizeof(C.goccl_trace{}))

// New makes a trace.
func New() (*Trace, error) {
	c, err := memory()
	if err != nil {
		return nil, err
	}
	c.scale = scaleOfNS
	if countsTicks() {
		c.counter, c.scale = 1, C.uint64_t(scaleOfTicks())
	}
	t := &Trace{c: c}
	c.spans, c.id = spans, C.uint16_t(labels.add())
	t.began = t.now()
	t.life.Store(new(life))
	runtime.AddCleanup(t, retire, c)
	return t, nil
}

// memory returns zero memory, of which only what is used takes any.
func memory() (*C.goccl_trace, error) {
	retired.Lock()
	defer retired.Unlock()
	if n := len(retired.free); n > 0 {
		var c *C.goccl_trace
		c, retired.free = retired.free[n-1], retired.free[:n-1]
		return c, nil
	}
	m, err := unix.MmapPtr(-1, 0, nil, uintptr(bytes), unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, fmt.Errorf("%d bytes for what a communicator does: %w", bytes, err)
	}
	return (*C.goccl_trace)(m), nil
}

func retire(c *C.goccl_trace) {
	if unix.Madvise(unsafe.Slice((*byte)(unsafe.Pointer(c)), bytes), unix.MADV_DONTNEED) != nil {
		return // it is locked in memory: another one is mapped
	}
	retired.Lock()
	defer retired.Unlock()
	retired.free = append(retired.free, c)
}

// C is the trace as package exec knows it: a goccl_trace. It lives as long as the trace.
func (t *Trace) C() unsafe.Pointer { return unsafe.Pointer(t.c) }

// SetUnfed tells which collective waits for an input of this rank's that is not there yet; 0: none
// does.
func (t *Trace) SetUnfed(sequence uint64) { t.unfed.Store(sequence) }

// Unfed is the collective that waits for an input; 0: none does.
func (t *Trace) Unfed() uint64 { return t.unfed.Load() }

// Staged counts the bytes of a collective whose tensors come and go piece by piece, by way of other
// memory.
func (t *Trace) Staged(bytes uint64) { t.staged.Add(bytes) }

// Transport is what joins this rank to a peer of the present epoch.
func (t *Trace) Transport(peer int) Transport {
	if peer < 0 || peer >= len(t.c.transports) {
		return Self
	}
	return Transport(t.c.transports[peer])
}

// Queue notes a collective, by the sequence of its message: one that was called, refused, or
// side-stepped. Calls of Queue come one at a time, and with nobody in the fast path. Begin and End
// may come at the same time, of other collectives.
func (t *Trace) Queue(m *plan.Message, s State) {
	c := toC(m)
	C.goccl_trace_queue(t.c, &c, C.unsigned(s))
}

// SetBytes tells how large the collective is that was queued last.
func (t *Trace) SetBytes(sequence, bytes uint64) {
	r := t.collective(sequence)
	atomic.StoreUint64((*uint64)(&r.bytes), bytes)
}

// Record is where package exec notes the waits of a collective: a goccl_record.
func (t *Trace) Record(sequence uint64) unsafe.Pointer {
	return unsafe.Pointer(t.collective(sequence))
}

// collective is the place of a collective of the present epoch.
func (t *Trace) collective(sequence uint64) *C.goccl_record {
	before := atomic.LoadUint64((*uint64)(&t.c.before))
	return &t.c.collectives[(before+sequence)%Collectives]
}

// Restart tells that the numbers of collectives begin anew, after those up to the last: those of
// the epoch that is over stay where they are. It is called while nobody writes.
func (t *Trace) Restart(last uint64) { atomic.AddUint64((*uint64)(&t.c.before), last) }

// Begin notes that a collective begins, on this thread. One that has begun goes on.
func (t *Trace) Begin(sequence uint64) { C.goccl_trace_begin(t.c, C.uint64_t(sequence)) }

// Ending is the end of a call.
type Ending struct {
	State      State
	Algorithm  plan.Algorithm
	Transports Transports
	Bytes      uint64
}

func (e *Ending) c(number uint64, c uint8) C.goccl_trace_ending {
	return C.goccl_trace_ending{number: C.uint64_t(number), bytes: C.uint64_t(e.Bytes),
		algorithm: C.uint32_t(e.Algorithm), transports: C.uint32_t(e.Transports),
		collective: C.uint8_t(c), state: C.uint8_t(e.State)}
}

// End notes that a collective has ended. Calls of End come one at a time.
func (t *Trace) End(m *plan.Message, e Ending) {
	c := e.c(m.Sequence, m.Collective)
	C.goccl_trace_end(t.c, &c)
}

// Message is a send or receive that is being noted. The zero one is not.
type Message struct {
	t          *Trace
	number     uint64
	collective uint8
}

// QueueMessage notes a send or receive. Its message needs no more than what the call says: root is
// the peer, and digest the tag. It is called with nobody in the gate of sends in C.
func (t *Trace) QueueMessage(m plan.Message, bytes uint64) Message {
	m.Group, m.Epoch = uint64(t.c.group), uint32(t.c.epoch)
	c := toC(&m)
	number := C.goccl_trace_queue_message(t.c, &c, C.uint64_t(bytes))
	return Message{t, uint64(number), m.Collective}
}

// Begin notes that the message begins to move, from or to a peer.
func (m Message) Begin(peer int) {
	if m.t != nil {
		C.goccl_trace_begin_message(m.t.c, C.uint64_t(m.number), C.int32_t(peer))
	}
}

// End notes that the message has ended.
func (m Message) End(e Ending) {
	if m.t != nil {
		c := e.c(m.number, m.collective)
		C.goccl_trace_end_message(m.t.c, &c)
	}
}

// Called is the message of a collective of the present epoch, as it was queued. Ok is false where
// it is not kept any more. It is called while nobody queues.
func (t *Trace) Called(sequence uint64) (m plan.Message, ok bool) {
	r := t.collective(sequence)
	m = fromC(&r.message)
	ok = sequence > 0 && m.Sequence == sequence && r.message.epoch == t.c.epoch
	return m, ok
}

// Collective is the record of a collective of the present epoch. Ok is false where it is not kept,
// or is being written.
func (t *Trace) Collective(sequence uint64) (r Record, ok bool) {
	var c C.goccl_record
	if C.goccl_record_copy(t.collective(sequence), &c) <= 0 {
		return r, false
	}
	r = recordOf(&c)
	return r, sequence > 0 && r.Number == sequence && r.Message.Epoch == uint32(t.c.epoch)
}

// ReadCollectives returns the records of collectives, in the order of their calls, and how many are
// left out.
func (t *Trace) ReadCollectives() (all []Record, missed int) { return read(t.c.collectives[:]) }

// ReadMessages is ReadCollectives for sends and receives.
func (t *Trace) ReadMessages() (all []Record, missed int) { return read(t.c.messages[:]) }

// Records is how many records there are.
func (t *Trace) Records() (n int) {
	for _, ring := range [][]C.goccl_record{t.c.collectives[:], t.c.messages[:]} {
		for i := range ring {
			if load(&ring[i].version) != 0 {
				n++
			}
		}
	}
	return n
}

func read(ring []C.goccl_record) (all []Record, missed int) {
	copies := make([]C.goccl_record, len(ring))
	var left C.unsigned
	n := C.goccl_records_copy(&ring[0], C.unsigned(len(ring)), &copies[0], &left)
	all = make([]Record, n)
	for i := range all {
		all[i] = recordOf(&copies[i])
	}
	slices.SortFunc(all, Record.compare)
	return all, int(left)
}

func toC(m *plan.Message) C.goccl_message {
	return C.goccl_message{group: C.uint64_t(m.Group), sequence: C.uint64_t(m.Sequence),
		count: C.uint64_t(m.Count), digest: C.uint64_t(m.Digest), epoch: C.uint32_t(m.Epoch),
		root: C.int32_t(m.Root), collective: C.uint8_t(m.Collective), dtype: C.uint8_t(m.DType),
		op: C.uint8_t(m.Op), schedule: C.uint8_t(m.Schedule)}
}

func fromC(m *C.goccl_message) plan.Message {
	return plan.Message{Group: uint64(m.group), Sequence: uint64(m.sequence), Count: uint64(m.count),
		Digest: uint64(m.digest), Epoch: uint32(m.epoch), Root: int32(m.root),
		Collective: uint8(m.collective), DType: uint8(m.dtype), Op: uint8(m.op),
		Schedule: uint8(m.schedule)}
}
