package exec

/*
#include <stdlib.h>
#include "fastpath.h"
*/
import "C"

import (
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/goccl/goccl/core/plan"
	"github.com/goccl/goccl/core/trace"
)

// FastPath lets callers in C run collectives of a communicator without entering Go: see fastpath.h.
// It also holds the order of the communicator's collectives, which both ways go on with. Each of
// them writes into the communicator's trace.
//
// A fast path is born shut. Its methods but Shut, Closed, Open, Sequence, Trace and Algorithm may
// be called only while it is closed, and all by one goroutine at a time but Shut, Sequence, Trace
// and Algorithm.
type FastPath struct {
	c            *C.goccl_fast_path
	run          *Run
	plan, direct [C.GOCCL_FAST_PATH_KEEPS]*Compiled
	trace        *trace.Trace
}

// AtOnceMax is how many bytes there are at most in a block of a collective that holds up a caller
// that does not wait.
const AtOnceMax = C.GOCCL_AT_ONCE_MAX

// retired is memory of fast paths that have ended. C code that holds a stale handle may still look
// into it.
var retired struct {
	sync.Mutex
	free []*C.goccl_fast_path
}

// NewFastPath makes the fast path of a run whose channels are memory channels, or which is never
// opened, of the first epoch of a communicator.
func NewFastPath(r *Run, rank int) (*FastPath, error) {
	t, err := trace.New()
	if err != nil {
		return nil, err
	}
	var a allocator
	retired.Lock()
	defer retired.Unlock()
	var c *C.goccl_fast_path
	if n := len(retired.free); n > 0 {
		c, retired.free = retired.free[n-1], retired.free[:n-1]
	} else {
		if c = alloc[C.goccl_fast_path](&a, 1); a.err != nil {
			return nil, a.err
		}
		*gateOf(&c.gate).shut() = 1
		c.call = (*[0]byte)(C.goccl_fast_path_call)
		c.send = (*[0]byte)(C.goccl_fast_path_send)
		c.receive = (*[0]byte)(C.goccl_fast_path_receive)
	}
	c.trace = (*C.goccl_trace)(t.C())
	c.sends.trace = c.trace
	// it counts, and a former user has left it shut
	atomic.StoreUint32(gateOf(&c.sends.gate).shut(), 1)
	s := &FastPath{c: c, trace: t}
	s.Use(r, rank)
	// Not by Free: a goroutine that has come too late for the communicator may still call Shut.
	runtime.AddCleanup(s, retire, c)
	return s, nil
}

// Use has the fast path go on with another run, of this rank: it knows no collective, and the next
// one is the first.
func (s *FastPath) Use(r *Run, rank int) {
	s.run, r.trace = r, s.trace
	s.c.lane, s.c.run = r.lane.c, r.c
	r.c.trace = s.c.trace
	r.c.counts = &s.c.trace.counters[C.GOCCL_COUNTS_COLLECTIVES]
	s.c.rank, s.c.ranks = C.uint32_t(rank), C.uint32_t(r.lane.window.Layout.Ranks)
	s.trace.Restart(s.Sequence())
	atomic.StoreUint64((*uint64)(&s.c.sequence), 0)
	s.ForgetAll()
	s.c.oldest = 0
	for i := range s.c.results {
		s.c.results[i].sequence = 0
	}
}

// KeepResults has the fast path keep the results of the last collectives that survivors complete,
// of at most so many bytes.
func (s *FastPath) KeepResults(most int) error {
	s.freeResults()
	var a allocator
	for i := range s.c.results {
		k := &s.c.results[i]
		k.result, k.before = alloc[C.uint8_t](&a, most), alloc[C.uint8_t](&a, most)
	}
	if a.err == nil {
		s.c.result_most = C.uint64_t(most)
	}
	return a.err
}

func (s *FastPath) freeResults() {
	s.c.result_most = 0
	for i := range s.c.results {
		k := &s.c.results[i]
		free(unsafe.Pointer(k.result), unsafe.Pointer(k.before))
		*k = C.goccl_kept_result{}
	}
}

// Keep keeps the result of a collective, which is in some blocks, if it is short enough.
func (s *FastPath) Keep(sequence uint64, blocks []unsafe.Pointer, bytes []int64) {
	k := &s.c.results[sequence%C.GOCCL_KEPT_RESULTS]
	to := unsafe.Slice((*byte)(k.result), s.c.result_most)
	k.sequence = 0
	n := 0
	for i, at := range blocks {
		if n+int(bytes[i]) > len(to) {
			return
		}
		n += copy(to[n:], unsafe.Slice((*byte)(at), bytes[i]))
	}
	k.bytes, k.sequence = C.uint64_t(n), C.uint64_t(sequence)
}

// Kept is a copy of the result of a collective; ok tells whether it is kept.
func (s *FastPath) Kept(sequence uint64) (result []byte, ok bool) {
	k := &s.c.results[sequence%C.GOCCL_KEPT_RESULTS]
	if sequence == 0 || uint64(k.sequence) != sequence {
		return nil, false
	}
	return C.GoBytes(unsafe.Pointer(k.result), C.int(k.bytes)), true
}

// Before is the input of a collective that the caller inside has begun, where the output is the
// same memory of so many bytes. It is called before Leave; nil where it is not kept.
func (s *FastPath) Before(bytes int) []byte {
	if bytes > int(s.c.result_most) {
		return nil
	}
	k := &s.c.results[s.Sequence()%C.GOCCL_KEPT_RESULTS]
	return C.GoBytes(unsafe.Pointer(k.before), C.int(bytes))
}

func retire(c *C.goccl_fast_path) {
	retired.Lock()
	defer retired.Unlock()
	retired.free = append(retired.free, c)
}

// Free ends the fast path, which is closed and stays so.
func (s *FastPath) Free() {
	atomic.StoreUint64((*uint64)(&s.c.handle), 0)
	s.freeResults()
	clear(s.c.known[:])
}

// C is the fast path as callers in C know it, which name it by the handle.
func (s *FastPath) C(handle uint64) unsafe.Pointer {
	atomic.StoreUint64((*uint64)(&s.c.handle), handle)
	return unsafe.Pointer(s.c)
}

// gate is a goccl_gate.
type gate struct{ words *[2]uint32 }

func gateOf(g *C.goccl_gate) gate { return gate{(*[2]uint32)(unsafe.Pointer(g))} }

func (g gate) inside() *uint32 { return &g.words[0] }
func (g gate) shut() *uint32   { return &g.words[1] }

func (g gate) close() { atomic.StoreUint32(g.shut(), 1) }

func (g gate) closed() bool {
	return atomic.LoadUint32(g.shut()) == 1 && atomic.LoadUint32(g.inside()) == 0
}

// leave is for the caller inside.
func (g gate) leave() {
	atomic.StoreUint32(g.shut(), 1)
	atomic.StoreUint32(g.inside(), 0)
}

// Shut lets nobody in any more. One may still be inside.
func (s *FastPath) Shut() { gateOf(&s.c.gate).close() }

// Closed tells whether the gate is shut, and nobody inside.
func (s *FastPath) Closed() bool { return gateOf(&s.c.gate).closed() }

// Open lets callers in, if they are not.
func (s *FastPath) Open() {
	if len(s.run.pointers) == 0 || !s.Closed() { // nothing has run yet, or it is open
		return
	}
	s.c.pointers = &s.run.pointers[0]
	atomic.StoreUint32(gateOf(&s.c.gate).shut(), 0)
}

// Sends says how callers in C send and receive.
type Sends struct {
	Packet           uint8  // the type of an eager packet
	EagerMax         uint64 // bytes of one
	PipeMin, PipeMax uint64 // bytes of what may go through a pipe; most 0: nothing does
	StreamMin        uint64 // bytes from which on that is written past the caches
	Window, Most     uint64 // bytes, and sends, to a peer that it has not received yet, at most
}

// UseSends says how callers send and receive from now on. It is called with the gate for sends
// shut.
func (s *FastPath) UseSends(credits *Credits, n Sends) {
	c := &s.c.sends
	c.mail, c.credits = s.run.lane.window.mail.c, credits.c
	c.data, c.eager_max = C.uint32_t(n.Packet), C.uint64_t(n.EagerMax)
	c.pipe_min, c.pipe_max = C.uint64_t(n.PipeMin), C.uint64_t(n.PipeMax)
	c.stream_min = C.uint64_t(n.StreamMin)
	c.window, c.most = C.uint64_t(n.Window), C.uint64_t(n.Most)
}

// ShutSends keeps callers in C from sending and receiving until OpenSends undoes it, and waits for
// the caller inside to leave. The gate counts: it is open once each ShutSends has been undone, and
// the one that it is born with.
func (s *FastPath) ShutSends() {
	g := gateOf(&s.c.sends.gate)
	atomic.AddUint32(g.shut(), 1)
	if atomic.LoadUint32(g.inside()) == 0 {
		return
	}
	for since := Now(); atomic.LoadUint32(g.inside()) != 0; {
		AwaitCaller(since)
	}
}

// callerTime is how long a thread yields to a caller inside, before it sleeps.
const callerTime = 50 * time.Microsecond

// AwaitCaller lets the caller inside a gate get on, for which a thread has been waiting since a
// time. The caller may copy much, or have lost its CPU to this very thread, if it has a lower
// priority: to such a one a yield gives nothing.
func AwaitCaller(since time.Duration) {
	if Now()-since < callerTime {
		YieldCPU()
	} else {
		time.Sleep(callerTime)
	}
}

// SendsOpen tells whether callers in C may send.
func (s *FastPath) SendsOpen() bool {
	return atomic.LoadUint32(gateOf(&s.c.sends.gate).shut()) == 0
}

// OpenSends undoes so many calls of ShutSends, one or more, and says whether callers may receive.
func (s *FastPath) OpenSends(times int, receives bool) {
	atomic.StoreUint32((*uint32)(&s.c.sends.receives), uint32(flag(receives)))
	atomic.AddUint32(gateOf(&s.c.sends.gate).shut(), -uint32(times))
}

// Leave is called in the name of the caller inside, whose collective was begun, and shuts the gate
// behind it. It returns the plan that the run is left with.
func (s *FastPath) Leave() *Compiled {
	begun := s.plan[s.c.begun]
	if d := s.direct[s.c.begun]; d != nil && d.c == s.run.c.plan {
		begun = d
	}
	gateOf(&s.c.gate).leave()
	return begun
}

// LeaveStale does it for a communicator that is no more.
func LeaveStale(c unsafe.Pointer) { gateOf(&(*C.goccl_fast_path)(c).gate).leave() }

// Sequence is the number of the last collective.
func (s *FastPath) Sequence() uint64 { return atomic.LoadUint64((*uint64)(&s.c.sequence)) }

// Append gives a collective its number, and notes that it was queued, refused or side-stepped.
func (s *FastPath) Append(m *plan.Message, state trace.State) {
	m.Sequence = s.Sequence() + 1
	s.trace.Queue(m, state)
	atomic.StoreUint64((*uint64)(&s.c.sequence), m.Sequence)
}

// At is the collective of a number, if it is among those kept; else another one, or none.
func (s *FastPath) At(sequence uint64) plan.Message {
	m, _ := s.trace.Called(sequence)
	return m
}

// Trace is the communicator's.
func (s *FastPath) Trace() *trace.Trace { return s.trace }

// Algorithm is that by which a collective has run; none of one that has not ended, or is not among
// those kept. It may be called at any time, by any goroutine.
func (s *FastPath) Algorithm(sequence uint64) (a plan.Algorithm) {
	if r, ok := s.trace.Collective(sequence); ok && r.State == trace.Ended {
		a = r.Algorithm
	}
	return a
}

// Known is a collective as it has just been run.
type Known struct {
	Binding
	Element               int    // bytes
	Total                 uint64 // bytes of inputs or outputs, whichever are more
	Collective, DType, Op uint8
	Root                  int
	Programs              int8     // as of the call
	InCounts, OutCounts   []uint64 // elements, by block
	UsesIn, UsesOut       bool     // this rank has these buffers
	Completes             bool     // survivors complete it where a rank dies in it
}

// FastPathBlocks is the most buffers, of input or of output, that a collective may have which is
// learned.
const FastPathBlocks = C.GOCCL_FAST_PATH_BLOCKS

// Learn lets callers run a collective like this one, by its plan, or its direct plan if there is
// one. A collective that has not been learned for long is forgotten for it.
func (s *FastPath) Learn(k *Known, p, direct *Compiled) {
	e := C.goccl_known{plan: p.c, kernels: (*C.goccl_kernel)(k.Kernels), inputs: C.double(k.Factor[0]),
		element: C.size_t(k.Element), message: toC(k.Message),
		collective: C.uint8_t(k.Collective), dtype: C.uint8_t(k.DType), op: C.uint8_t(k.Op),
		root: C.int32_t(k.Root), programs: C.int8_t(k.Programs), completes: flag(k.Completes),
		n_in: C.uint32_t(len(k.InCounts)), n_out: C.uint32_t(len(k.OutCounts)), uses_in: flag(k.UsesIn),
		uses_out: flag(k.UsesOut)}
	e.message.sequence = 0
	e.total = C.uint64_t(k.Total)
	e.fixed = C.goccl_fixed(&e.message)
	if direct != nil {
		e.direct = direct.c
	}
	for i, n := range k.InCounts {
		e.in_counts[i] = C.uint64_t(n)
		e.bytes = max(e.bytes, C.uint64_t(n)*C.uint64_t(e.element))
	}
	for j, n := range k.OutCounts {
		e.out_counts[j] = C.uint64_t(n)
		e.bytes = max(e.bytes, C.uint64_t(n)*C.uint64_t(e.element))
		for i := range k.In {
			if k.UsesIn && k.UsesOut && k.In[i] == k.Out[j] && k.InCounts[i] == n {
				e.in_place[i] |= 1 << j
			}
		}
	}
	if slices.Contains(s.c.known[:], e) {
		return
	}
	i := s.c.oldest
	s.c.oldest = (i + 1) % C.GOCCL_FAST_PATH_KEEPS
	s.c.known[i], s.plan[i], s.direct[i] = e, p, direct
}

func flag(b bool) C.uint32_t {
	if b {
		return 1
	}
	return 0
}

// ForgetAll forgets all collectives: others may run them now.
func (s *FastPath) ForgetAll() {
	clear(s.c.known[:])
	clear(s.plan[:])
	clear(s.direct[:])
}

// Forget forgets the collectives with a plan, which is about to be freed.
func (s *FastPath) Forget(p *Compiled) {
	for i := range s.plan {
		if s.plan[i] == p || s.direct[i] == p {
			s.c.known[i], s.plan[i], s.direct[i] = C.goccl_known{}, nil, nil
		}
	}
}
