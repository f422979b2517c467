package exec

/*
#include <stdlib.h>
#include "exec.h"
*/
import "C"

import (
	"fmt"
	"slices"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/goccl/goccl/core/plan"
	"github.com/goccl/goccl/core/trace"
)

func toC(m plan.Message) C.goccl_message {
	return C.goccl_message{group: C.uint64_t(m.Group), sequence: C.uint64_t(m.Sequence),
		count: C.uint64_t(m.Count), digest: C.uint64_t(m.Digest), epoch: C.uint32_t(m.Epoch),
		root: C.int32_t(m.Root), collective: C.uint8_t(m.Collective), dtype: C.uint8_t(m.DType),
		op: C.uint8_t(m.Op), schedule: C.uint8_t(m.Schedule)}
}

func fromC(m C.goccl_message) plan.Message {
	return plan.Message{Group: uint64(m.group), Sequence: uint64(m.sequence), Count: uint64(m.count),
		Digest: uint64(m.digest), Epoch: uint32(m.epoch), Root: int32(m.root),
		Collective: uint8(m.collective), DType: uint8(m.dtype), Op: uint8(m.op),
		Schedule: uint8(m.schedule)}
}

// There are as many kernels as stages.
var _ [C.GOCCL_STAGES]struct{} = [plan.Last + 1]struct{}{}

// Compiled is a plan in the form that the loop runs: C memory, until Free.
type Compiled struct {
	c         *C.goccl_plan
	Scratch   int64
	Bytes     int64 // of its memory
	Algorithm plan.Algorithm
	// Transports are those that it uses: see Carries.
	Transports trace.Transports
}

// lineMax is what the first line of a slot holds.
const lineMax = int64(unsafe.Sizeof(C.goccl_message{}))

// Compile copies a plan into C memory. What its runs may post is found only if it is to go over
// port channels: memory channels have no use for it. Apart tells that inputs and outputs will share
// no memory.
func Compile(p *plan.Plan, ports, apart bool) (*Compiled, error) {
	sources := 0
	for i := range p.Steps {
		sources += len(p.Steps[i].Src) + len(p.Steps[i].Also)
	}
	var posts []plan.Post
	if ports {
		posts = p.Posts(plan.PostMin, apart)
	}
	var a allocator
	c := alloc[C.goccl_plan](&a, 1)
	stepMem := alloc[C.goccl_step](&a, len(p.Steps)+1)
	refMem := alloc[C.goccl_ref](&a, sources)
	postMem := alloc[C.goccl_post](&a, len(posts))
	senders, receivers := p.Peers()
	peerMem := alloc[C.int32_t](&a, len(senders)+len(receivers))
	if a.err != nil {
		free(unsafe.Pointer(c), unsafe.Pointer(stepMem), unsafe.Pointer(refMem),
			unsafe.Pointer(postMem), unsafe.Pointer(peerMem))
		return nil, fmt.Errorf("a plan of %d steps: %w", len(p.Steps), a.err)
	}
	steps := unsafe.Slice(stepMem, len(p.Steps))
	compileSteps(p, steps, unsafe.Slice(refMem, sources))
	C.goccl_stamp_steps(stepMem, C.uint32_t(len(p.Steps)))
	for i, q := range posts {
		unsafe.Slice(postMem, len(posts))[i] = C.goccl_post{wait: C.uint32_t(q.Wait),
			from: C.uint32_t(q.From)}
		steps[q.Wait+1].posted = 1
	}
	c.steps, c.sources, c.n_steps = stepMem, refMem, C.uint32_t(len(p.Steps))
	c.posts, c.n_posts = postMem, C.uint32_t(len(posts))
	peers := unsafe.Slice(peerMem, len(senders)+len(receivers))
	for i, peer := range slices.Concat(senders, receivers) {
		peers[i] = C.int32_t(peer)
	}
	c.senders, c.n_senders = peerMem, C.uint32_t(len(senders))
	c.receivers = (*C.int32_t)(unsafe.Add(unsafe.Pointer(peerMem), 4*len(senders)))
	c.n_receivers = C.uint32_t(len(receivers))
	c.algorithm = C.uint32_t(p.Algorithm)
	return &Compiled{c: c, Scratch: p.ScratchBytes, Bytes: a.bytes, Algorithm: p.Algorithm}, nil
}

// compileSteps makes C's steps, and the places that they name.
func compileSteps(p *plan.Plan, steps []C.goccl_step, refs []C.goccl_ref) {
	next := 0
	type message struct {
		form   C.uint8_t
		number C.int32_t
		step   int // of a put
	}
	waits, puts := make([][]message, p.Size), make([][]message, p.Size) // by peer
	// messages waited for, by sender
	shared := make([]C.int32_t, p.Size)
	messageOf := func(bytes int64, number int) message {
		m := message{form: C.GOCCL_BEHIND, number: C.int32_t(number)}
		if bytes <= lineMax {
			m.form = C.GOCCL_IN_LINE
		}
		return m
	}
	for i := range p.Steps {
		s := &p.Steps[i]
		peer := s.Peer
		switch s.Op {
		case plan.Wait:
			m := messageOf(s.Bytes, len(waits[peer]))
			if s.Multicast {
				m = message{form: C.GOCCL_SHARED, number: shared[peer]}
				shared[peer]++
			}
			waits[peer] = append(waits[peer], m)
		case plan.Put, plan.Offer:
			m := messageOf(s.Bytes, len(puts[peer]))
			m.step = i
			puts[peer] = append(puts[peer], m)
		case plan.PutToAll:
			for to := range puts {
				puts[to] = append(puts[to], message{form: C.GOCCL_SHARED}) // which is never reclaimed
			}
			peer = int32(p.Rank)
		case plan.Reclaim:
			steps[puts[peer][s.Src[0].Block].step].kept = 1
		}
		ref := func(r plan.Ref) C.goccl_ref {
			to := C.goccl_ref{space: C.uint8_t(r.Space), peer: C.int32_t(r.Peer), block: C.int32_t(r.Block),
				offset: C.int64_t(r.Off)}
			switch r.Space {
			case plan.Inbox:
				m := waits[r.Peer][r.Block]
				to.form, to.block = m.form, m.number
			case plan.Outbox:
				to.form = puts[r.Peer][r.Block].form
			}
			return to
		}
		steps[i] = C.goccl_step{op: C.uint8_t(s.Op), peer: C.int32_t(peer), bytes: C.int64_t(s.Bytes),
			total: C.int64_t(s.Total), dst: ref(s.Dst), first_source: C.uint32_t(next),
			sources: C.uint32_t(len(s.Src)), also: C.uint32_t(len(s.Also)),
			stage:  C.uint8_t(s.Stage),
			shared: C.uint8_t(flag(s.Multicast || s.Op == plan.PutToAll))}
		for _, list := range [][]plan.Ref{s.Src, s.Also} {
			for _, r := range list {
				refs[next] = ref(r)
				next++
			}
		}
	}
}

// Carries tells how many bytes the plan has go by each transport.
func (c *Compiled) Carries(bytes [trace.AllTransports]int64) {
	for via, n := range bytes {
		if c.c.carried[via] = C.uint64_t(n); n > 0 {
			c.c.transports |= 1 << via
		}
	}
	c.Transports = trace.Transports(c.c.transports)
}

// Free gives the plan's memory back. No run may hold it.
func (c *Compiled) Free() {
	free(unsafe.Pointer(c.c.steps), unsafe.Pointer(c.c.sources), unsafe.Pointer(c.c.posts),
		unsafe.Pointer(c.c.senders), unsafe.Pointer(c.c))
}

// Status says why a run left its loop.
type Status int

const (
	Done    Status = C.GOCCL_RUN_DONE
	Blocked Status = C.GOCCL_RUN_BLOCKED // the time is up
	Connect Status = C.GOCCL_RUN_CONNECT // the channel to Peer is not connected
	Receive Status = C.GOCCL_RUN_RECEIVE // something must be read from Peer, on a port channel
	// the run must sleep for Peer, on a memory channel: no more Reading
	Rest     Status = C.GOCCL_RUN_REST
	NeedPut  Status = C.GOCCL_RUN_PUT      // PortMessage must be carried to Peer, then Advance called
	Released Status = C.GOCCL_RUN_RELEASED // Peer, on a port channel, may be told of a free slot
	Stopped  Status = C.GOCCL_RUN_STOPPED
	Gone     Status = C.GOCCL_RUN_GONE     // Peer has left
	Mismatch Status = C.GOCCL_RUN_MISMATCH // Peer does something else: Seen
	// Of direct plans: some rank's blocks are not in memory that all map, and all must run the plan
	// that is not direct.
	Indirect Status = C.GOCCL_RUN_INDIRECT
	// Peer exposes what it does not have, or has sent less than it says
	Violation Status = C.GOCCL_RUN_VIOLATION
	// What Peer offers cannot be read: GetError.
	Unreadable Status = C.GOCCL_RUN_UNREADABLE
	// As Blocked: an input is not there yet, or the memory of blocks: see Unfed.
	WaitsForInput Status = C.GOCCL_RUN_UNFED
	InputFailed   Status = C.GOCCL_RUN_FEED_FAILED // it does not come: FeedError
)

// Run is the state of one plan's run on a lane. It can be left and taken up again, by another
// thread too. It is reused from plan to plan.
type Run struct {
	lane *Lane
	c    *C.goccl_run_state
	// C memory: in, then out, then operands: a source and a destination a rank, or two of each
	pointers []unsafe.Pointer
	held     int64        // bytes of scratch memory
	trace    *trace.Trace // which notes its waits; nil: none does
}

// NewRun makes a run on a lane.
func NewRun(l *Lane) (*Run, error) {
	ranks := l.window.Layout.Ranks
	var a allocator
	r := &Run{lane: l, c: alloc[C.goccl_run_state](&a, 1)}
	blocks := alloc[*C.uint8_t](&a, 2*ranks)
	if a.err != nil {
		free(unsafe.Pointer(r.c), unsafe.Pointer(blocks))
		return nil, a.err
	}
	r.c.peer_in = blocks
	r.c.peer_out = (**C.uint8_t)(unsafe.Add(unsafe.Pointer(r.c.peer_in),
		ranks*int(unsafe.Sizeof(uintptr(0)))))
	return r, nil
}

// Free gives the run's memory back.
func (r *Run) Free() {
	free(unsafe.Pointer(unsafe.SliceData(r.pointers)), unsafe.Pointer(r.c.scratch),
		unsafe.Pointer(r.c.peer_in), unsafe.Pointer(r.c))
}

var streams = [...]C.uint32_t{plan.StreamNone: C.GOCCL_STREAM_NONE,
	plan.StreamOwn: C.GOCCL_STREAM_OWN,
	plan.StreamAll: C.GOCCL_STREAM_ALL}

// Binding is what a plan's references mean in one operation.
type Binding struct {
	In, Out []unsafe.Pointer // by block; not Go memory
	Kernels unsafe.Pointer   // by plan.Stage, of package reduce; nil where nothing is combined
	Factor  [2]float64       // as they read it
	Message plan.Message
	Streams plan.Streams
	Feed    *Feed // of plans that have one
}

// Bind readies the run for the plans of an operation.
func (r *Run) Bind(b Binding) error {
	need := len(b.In) + len(b.Out) + 2*max(r.lane.window.Layout.Ranks, 2)
	if need > len(r.pointers) {
		var a allocator
		p := alloc[unsafe.Pointer](&a, need)
		if a.err != nil {
			return a.err
		}
		free(unsafe.Pointer(unsafe.SliceData(r.pointers)))
		r.pointers = unsafe.Slice(p, need)
	}
	copy(r.pointers, b.In)
	copy(r.pointers[len(b.In):], b.Out)
	at := func(i int) unsafe.Pointer {
		return unsafe.Add(unsafe.Pointer(&r.pointers[0]), i*int(unsafe.Sizeof(uintptr(0))))
	}
	r.c.in = (**C.uint8_t)(at(0))
	r.c.out = (**C.uint8_t)(at(len(b.In)))
	r.c.operands = (*unsafe.Pointer)(at(len(b.In) + len(b.Out)))
	r.c.kernels = (*C.goccl_kernel)(b.Kernels)
	r.c.factor = [2]C.double{C.double(b.Factor[0]), C.double(b.Factor[1])}
	r.c.message, r.c.fixed = toC(b.Message), 0
	r.c.streams = streams[b.Streams]
	if r.trace != nil {
		r.c.record = (*C.goccl_record)(r.trace.Record(b.Message.Sequence))
	}
	r.feed(b.Feed)
	return nil
}

// Begin starts a plan. Offset is added to every place in input and output blocks. Runs on one lane
// at the same time must wait for different peers, and put to different ones.
func (r *Run) Begin(p *Compiled, offset int64) error {
	if p.Scratch > r.held {
		free(unsafe.Pointer(r.c.scratch)) // before, for it may be large
		var a allocator
		r.c.scratch, r.held = alloc[C.uint8_t](&a, int(p.Scratch)), 0
		if a.err != nil {
			return a.err
		}
		r.held = p.Scratch
	}
	r.c.plan, r.c.begun, r.c.step, r.c.post, r.c.advertising, r.c.news = p.c, 0, 0, 0, 0, 0
	r.c.offset, r.c.upto = C.int64_t(offset), 0
	return nil
}

// GetError is why what Peer offers could not be read.
func (r *Run) GetError() error { return unix.Errno(r.c.error) }

// Spin as the time for [Run.Continue] has waits poll memory for a little while, and neither yield
// nor sleep.
const Spin = time.Duration(C.GOCCL_SPIN)

// Continue runs steps until the plan is done, until the given time, or until something is
// needed of the caller.
func (r *Run) Continue(until time.Duration) Status {
	r.lane.order.Add(1)
	status := Status(C.goccl_run(r.lane.c, r.c, C.uint64_t(max(until, 0))))
	r.lane.order.Load()
	if status == Done {
		r.c.plan = nil // nothing of it is posted any more
	}
	return status
}

// Peer is the peer of the step that made the run leave.
func (r *Run) Peer() int { return int(r.c.peer) }

// Peers are the ranks that the plan needs channels to, in the order of its steps: first those to
// which it puts something.
func (r *Run) Peers() (peers []int) {
	p := r.c.plan
	receivers := unsafe.Slice(p.receivers, p.n_receivers)
	for _, peer := range receivers {
		peers = append(peers, int(peer))
	}
	for _, peer := range unsafe.Slice(p.senders, p.n_senders) {
		if !slices.Contains(receivers, peer) {
			peers = append(peers, int(peer))
		}
	}
	return peers
}

// Seen is the message that did not match, and the bytes that it brought or stood for.
func (r *Run) Seen() (m plan.Message, bytes, total uint64) {
	return fromC(r.c.seen), uint64(r.c.seen.bytes), uint64(r.c.seen.total)
}

// Expected is what this run waits for at its present step; nothing, where that is only that peers
// read what it has advertised.
func (r *Run) Expected() (bytes, total uint64) {
	if r.c.step == r.c.plan.n_steps {
		return 0, 0
	}
	s := r.stepNow()
	return uint64(s.bytes), uint64(s.total)
}

func (r *Run) stepNow() *C.goccl_step {
	return &unsafe.Slice(r.c.plan.steps, r.c.plan.n_steps)[r.c.step]
}

// PortMessage is the message to be carried for the present step: header and payload. The memory
// is the run's and the user's.
func (r *Run) PortMessage() (header, payload []byte) {
	s := r.stepNow()
	header = unsafe.Slice((*byte)(unsafe.Pointer(&r.c.message)), unsafe.Sizeof(C.goccl_line{}))
	if s.bytes > 0 {
		from := C.goccl_resolve(r.lane.c, r.c, &unsafe.Slice(r.c.plan.sources,
			s.first_source+1)[s.first_source])
		payload = unsafe.Slice((*byte)(unsafe.Pointer(from)), int64(s.bytes))
	}
	return header, payload
}

// Advertise notes that the peer is going to read the present step's payload by itself: until
// [Lane.Fetched], the run leaves those bytes as they are, and is not done. It tells whether it
// could. It comes before the message is carried, for the peer may be quick.
func (r *Run) Advertise() bool {
	s := r.stepNow()
	if from := unsafe.Slice(r.c.plan.sources,
		s.first_source+1)[s.first_source]; plan.Space(from.space) != plan.In &&
		plan.Space(from.space) != plan.Out {
		return false // the run waits only before it writes to those
	}
	peer, slots := int(s.peer), r.lane.window.Layout.Slots
	ch := &r.lane.channels[peer]
	if uint64(ch.advertised)-atomic.LoadUint64((*uint64)(&ch.fetched)) >= uint64(slots) {
		return false
	}
	_, payload := r.PortMessage()
	r.lane.adverts[peer*slots+int(uint64(ch.advertised)%uint64(slots))] = C.goccl_advert{
		at: (*C.uint8_t)(unsafe.SliceData(payload)), bytes: C.uint64_t(len(payload))}
	ch.advertised++
	r.c.advertising = 1
	return true
}

// TakeBack undoes the last Advertise: the message was carried in another way, or not at all.
func (r *Run) TakeBack() { r.lane.channels[r.stepNow().peer].advertised-- }

// Withdraw ends a run that will not go on: when it returns, no reader writes to the run's buffers
// any more. A reader in the middle of a payload is waited for: its group must have been halted.
func (r *Run) Withdraw() {
	C.goccl_withdraw(r.lane.c, r.c)
	r.lane.order.Load()
}

// Brought says whether another thread reads what comes over port channels, so that waits for it
// sleep.
func (r *Run) Brought(yes bool) { r.c.brought = flag(yes) }

// Waited says whether the caller has nothing else to do, and may spin.
func (r *Run) Waited(yes bool) { r.c.waited = flag(yes) }

// Reading says whether the caller reads what comes over port channels, for others too, so that no
// wait may sleep.
func (r *Run) Reading(yes bool) { r.c.reading = flag(yes) }

// Step is the number of the present step.
func (r *Run) Step() int { return int(r.c.step) }

// Advance ends the present step, whose message was carried.
func (r *Run) Advance() {
	if r.c.stepped != 0 {
		C.goccl_span_put(r.c)
	}
	r.c.step++
}

// YieldCPU lets other threads run: those in C, too, of which runtime.Gosched knows nothing.
func YieldCPU() {
	_, _, _ = syscall.RawSyscall(syscall.SYS_SCHED_YIELD, 0, 0, 0) // it never fails
}

// Now is the clock of Continue: CLOCK_MONOTONIC.
func Now() time.Duration { return clock.at + time.Since(clock.start) }

// Never is a time that does not come. What is little later than it can be told, too.
const Never time.Duration = 1 << 62

// Later is the time that comes so long after another one, Never at most: a timeout may be as long
// as its type allows.
func Later(t, d time.Duration) time.Duration {
	if d > Never-t {
		return Never
	}
	return t + d
}

// clock is a moment, by both of CLOCK_MONOTONIC and Go's monotonic clock, which runs like it and is
// read without a system call.
var clock = func() (c struct {
	at    time.Duration
	start time.Time
}) {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		panic(fmt.Sprintf("clock_gettime: %v", err))
	}
	c.at, c.start = time.Duration(t.Nano()), time.Now()
	return c
}()
