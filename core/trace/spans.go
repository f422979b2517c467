package trace

// #include "trace.h"
import "C"

import (
	"errors"
	"math/bits"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/goccl/goccl/core/plan"
)

// Kind is what a span is of.
type Kind uint8

// The kinds. GOCCL_SPAN_... in spans.h says what they are.
const (
	SpanCall    Kind = C.GOCCL_SPAN_CALL
	SpanRead    Kind = C.GOCCL_SPAN_READ
	SpanConnect Kind = C.GOCCL_SPAN_CONNECT
	SpanRecover Kind = C.GOCCL_SPAN_RECOVER
	SpanCopyIn  Kind = C.GOCCL_SPAN_COPY_IN
	SpanCopyOut Kind = C.GOCCL_SPAN_COPY_OUT
	spanKinds        = C.GOCCL_SPAN_KINDS
)

var kindNames = [spanKinds]string{
	C.GOCCL_SPAN_CALL:        "call",
	C.GOCCL_SPAN_QUEUED:      "queued",
	C.GOCCL_SPAN_NEED:        "need",
	C.GOCCL_SPAN_PUT:         "put",
	C.GOCCL_SPAN_PUT_BY_LINK: "put by link",
	C.GOCCL_SPAN_WAIT:        "wait",
	C.GOCCL_SPAN_SLOT:        "wait for a slot",
	C.GOCCL_SPAN_COPY:        "copy",
	C.GOCCL_SPAN_COMBINE:     "combine",
	C.GOCCL_SPAN_GET:         "get",
	C.GOCCL_SPAN_RECLAIM:     "reclaim",
	C.GOCCL_SPAN_FINAL:       "final",
	C.GOCCL_SPAN_READ:        "read",
	C.GOCCL_SPAN_CONNECT:     "connect",
	C.GOCCL_SPAN_RECOVER:     "recover",
	C.GOCCL_SPAN_SIDE_STEP:   "side-step",
	C.GOCCL_SPAN_COPY_IN:     "copy in",
	C.GOCCL_SPAN_COPY_OUT:    "copy out",
}

// String is as in "wait for a slot".
func (k Kind) String() string {
	if int(k) < len(kindNames) && kindNames[k] != "" {
		return kindNames[k]
	}
	return "unknown"
}

// Span is a part of a call, or a whole one.
type Span struct {
	Begin, End time.Duration // since 1970
	Kind       Kind
	Collective plan.Collective // of the call
	Sequence   uint32          // the lower half of the call's; 0: it belongs to none
	Bytes      uint32          // all ones: so many, or more
	Peer       int             // -1: none
	Group      string
	Rank       int // this process's in the group
	Thread     int // that did it, as the kernel numbers it
	ThreadName string
	Row        int // spans of a thread and row lie within or beside each other
}

// joints are between what a span is and the peer that it is of.
var joints = map[Kind]string{
	C.GOCCL_SPAN_WAIT:        " for rank ",
	C.GOCCL_SPAN_SLOT:        " of rank ",
	C.GOCCL_SPAN_GET:         " from rank ",
	C.GOCCL_SPAN_RECLAIM:     " from rank ",
	C.GOCCL_SPAN_PUT:         " to rank ",
	C.GOCCL_SPAN_PUT_BY_LINK: " to rank ",
	C.GOCCL_SPAN_CONNECT:     " to rank ",
}

// Title is as in "allreduce", "recv from rank 1", "wait for rank 1" or "combine".
func (s *Span) Title() string {
	what, joint := s.Kind.String(), joints[s.Kind]
	if s.Kind == SpanCall {
		what, joint = s.Collective.String(), " to rank "
		if s.Collective == plan.Recv {
			joint = " from rank "
		}
	}
	if s.Peer < 0 || joint == "" {
		return what
	}
	return what + joint + strconv.Itoa(s.Peer)
}

// label is what is known of a communicator, by the number that spans have of it.
type label struct {
	group string
	rank  int
}

// labels are those of all communicators: spans may be read when they are no more. A number is used
// again after 65,536 communicators.
var labels labelTable

type labelTable struct {
	mu   sync.Mutex
	last uint16           // guarded by mu
	by   map[uint16]label // guarded by mu
}

func (t *labelTable) add() uint16 {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last++
	return t.last
}

func (t *labelTable) set(id uint16, l label) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.by == nil {
		t.by = map[uint16]label{}
	}
	t.by[id] = l
}

func (t *labelTable) get(id uint16) label {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.by[id]
}

// spans is C's only one, so that a look whether someone traces calls nothing in C.
var spans = C.goccl_all_spans()

// sessionsMost is how many sessions may be open at once.
const sessionsMost = 16

// ErrSessions is the error of Open where too many are open.
var ErrSessions = errors.New("16 traces are open already")

// sessions are those that are open, a bit each.
var sessions struct {
	sync.Mutex
	open atomic.Uint32 // changed with the lock held
}

// Session reads the spans that end while it is open. Sessions do not disturb each other.
type Session struct {
	bit    uint32
	mu     sync.Mutex // guards what follows
	closed bool
	times  timeline
	began  uint64               // tick
	lost   uint64               // spans, before it began
	next   map[uintptr]uint64   // spans to be read, by ring
	rows   map[uintptr][]intact // by ring
	copies []C.goccl_trace_span // room
}

// Open begins a session: from now on spans are written.
func Open() (*Session, error) {
	sessions.Lock()
	defer sessions.Unlock()
	open := sessions.open.Load()
	bit := uint32(1) << bits.TrailingZeros32(^open)
	if bit > 1<<(sessionsMost-1) {
		return nil, ErrSessions
	}
	if countsTicks() {
		atomic.StoreUint32((*uint32)(&spans.counter), 1)
	}
	began := moment(uint32(spans.counter))
	s := &Session{bit: bit, times: timeline{began}, began: began.Ticks,
		lost: uint64(C.goccl_spans_lost()), next: map[uintptr]uint64{}, rows: map[uintptr][]intact{},
		copies: make([]C.goccl_trace_span, 4096)}
	for r := C.goccl_span_rings(); r != nil; r = r.next {
		if open == 0 && C.goccl_span_ring_ended(r) != 0 {
			C.goccl_span_ring_read(r, 0, 0) // nobody reads it
		}
		s.next[uintptr(unsafe.Pointer(r))] = atomic.LoadUint64((*uint64)(&r.head))
	}
	sessions.open.Store(open | bit)
	atomic.StoreUint32((*uint32)(&spans.on), open|bit)
	return s, nil
}

// Close ends the session. What has been written can be read still. A second one does nothing.
func (s *Session) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	s.closed = true
	sessions.Lock()
	defer sessions.Unlock()
	open := sessions.open.Load() &^ s.bit
	sessions.open.Store(open)
	atomic.StoreUint32((*uint32)(&spans.on), open)
}

// Read returns the next spans, at most so many, in the order of their ends on each thread; and how
// many were lost since the last Read, because they were overwritten before. It returns none where
// there are no more.
func (s *Session) Read(most int) (all []Span, missed uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var some []copied
	for r := C.goccl_span_rings(); r != nil; r = r.next {
		ring := uintptr(unsafe.Pointer(r))
		ended := C.goccl_span_ring_ended(r) != 0
		thread, name := int(r.thread), C.GoString(&r.name[0]) // another has the ring after this
		for len(some) < most {
			from := s.next[ring]
			var n C.unsigned
			next := uint64(C.goccl_spans_copy(r, C.uint64_t(from), &s.copies[0],
				C.unsigned(min(len(s.copies), most-len(some))), &n))
			if next == from {
				if ended && !s.closed {
					C.goccl_span_ring_read(r, C.uint32_t(s.bit), C.uint32_t(sessions.open.Load()))
				}
				break
			}
			s.next[ring] = next
			missed += next - from - uint64(n)
			for i := range s.copies[:n] {
				some = append(some, copied{ring, thread, name, s.copies[i]})
			}
		}
	}
	s.times.pass(moment(uint32(spans.counter)))
	for i := range some {
		if span, ok := s.span(&some[i]); ok {
			all = append(all, span)
		}
	}
	lost := uint64(C.goccl_spans_lost())
	missed += lost - s.lost
	s.lost = lost
	return all, missed
}

// copied is a span of C's, and who has written it.
type copied struct {
	ring   uintptr
	thread int
	name   string
	span   C.goccl_trace_span
}

// span makes one of C's. Those that ended before the session began are not its own.
func (s *Session) span(of *copied) (Span, bool) {
	c := &of.span
	begin, end := uint64(c.begin), uint64(c.end)
	if end < s.began {
		return Span{}, false
	}
	begin = max(begin, s.began)
	end = max(begin, end)
	rows := s.rows[of.ring]
	row := place(&rows, begin, end)
	s.rows[of.ring] = rows
	l := labels.get(uint16(c.communicator))
	span := Span{Begin: s.times.realtime(begin), End: s.times.realtime(end), Kind: Kind(c.kind),
		Collective: plan.Collective(c.collective), Sequence: uint32(c.sequence),
		Bytes: uint32(c.bytes), Peer: int(c.peer), Group: l.group, Rank: l.rank,
		Thread: of.thread, ThreadName: of.name, Row: row}
	return span, true
}

// intact is what a row has, from left to right: intervals of ticks that do not lie within others.
type intact [][2]uint64

// intactMost is how far back a row looks.
const intactMost = 1 << 12

// place returns the first row that a span fits in: there it lies beside or within others, or others
// within it. The spans of a row come in the order of their ends.
func place(rows *[]intact, begin, end uint64) int {
	for i := range *rows {
		row := &(*rows)[i]
		n := len(*row)
		for n > 0 && (*row)[n-1][0] >= begin {
			n--
		}
		if n > 0 && (*row)[n-1][1] > begin {
			continue
		}
		*row = append((*row)[:n], [2]uint64{begin, end})
		if n == intactMost {
			*row = slices.Clone((*row)[n/2:])
		}
		return i
	}
	*rows = append(*rows, intact{{begin, end}})
	return len(*rows) - 1
}

// Begin is the present tick, for [Trace.Add]; 0: nobody traces. Then it calls nothing in C.
func Begin() uint64 {
	if atomic.LoadUint32((*uint32)(&spans.on)) == 0 {
		return 0
	}
	return uint64(C.goccl_ticks_by(spans.counter))
}

// Add adds a span from its beginning, as [Begin] has told it, to now, on this thread. A peer of -1
// is none, and a message of nil belongs to no call.
func (t *Trace) Add(k Kind, begin uint64, m *plan.Message, peer int, bytes uint64) {
	if begin == 0 {
		return
	}
	c := spanOf(k, begin, bytes)
	c.communicator, c.peer = t.c.id, C.int32_t(peer)
	if m != nil {
		c.sequence, c.collective = C.uint32_t(m.Sequence), C.uint8_t(m.Collective)
	}
	C.goccl_span_add(&c)
}

// Add is [Trace.Add] for what belongs to no communicator.
func Add(k Kind, begin, bytes uint64) {
	if begin == 0 {
		return
	}
	c := spanOf(k, begin, bytes)
	C.goccl_span_add(&c)
}

func spanOf(k Kind, begin, bytes uint64) C.goccl_trace_span {
	return C.goccl_trace_span{begin: C.uint64_t(begin), end: C.goccl_ticks_by(spans.counter), peer: -1,
		bytes: C.goccl_span_bytes(C.uint64_t(bytes)), kind: C.uint8_t(k)}
}
