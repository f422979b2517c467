package p2p

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/goccl/goccl/core/call"
	"github.com/goccl/goccl/core/exec"
	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/internal/scripts"
	"github.com/goccl/goccl/core/transport"
	"github.com/goccl/goccl/core/work"
)

// noted is mailboxes whose frames are noted.
type noted struct {
	mailWire
	r *rank
}

func (n noted) tryPost(h transport.Header, payload []byte) bool {
	ok := n.mailWire.tryPost(h, payload)
	if ok {
		n.note(h, payload)
	}
	return ok
}

func (n noted) post(ctx context.Context, h transport.Header, payload []byte) error {
	err := n.mailWire.post(ctx, h, payload)
	if err == nil {
		n.note(h, payload)
	}
	return err
}

func (n noted) begin(s *send) bool {
	if !n.tryPost(s.header, s.first) {
		return false
	}
	n.e.sent(s)
	return true
}

func (n noted) note(h transport.Header, payload []byte) {
	h.Bytes = uint32(len(payload))
	n.r.w.note("%d → %d: %s", n.r.number, n.peer, textOf(&frame{Header: h}))
}

// stepped makes a world in which nothing happens but by step: no goroutine and no timer runs.
func stepped(t testing.TB, way string, size int) *world {
	w := join(t, way, size)
	w.queued = true
	for _, r := range w.ranks {
		r.attention.after = func(time.Duration, func()) {}
		for peer := range r.peers {
			if m, ok := r.peers[peer].wire.(mailWire); ok && peer != r.number {
				r.peers[peer].wire = noted{m, r}
			}
		}
	}
	return w
}

// unread tells whether there are packets for a rank.
func (r *rank) unread() bool {
	for _, peer := range r.w.ranks {
		if peer != r && r.w.memory() && peer.mail.Unread(r.number) {
			return true
		}
	}
	return false
}

// choices are what can happen next.
func (w *world) choices() (all []func()) {
	if len(w.tasks) > 0 {
		f := w.tasks[0]
		all = append(all, func() { w.tasks = w.tasks[1:]; f() })
	}
	for _, r := range w.ranks {
		for _, peer := range w.ranks {
			if len(w.frames[r.number][peer.number]) > 0 {
				all = append(all, func() { r.pass(peer.number) })
			}
		}
		if r.unread() {
			all = append(all, r.collect)
		}
		if r.hasTransfers() {
			all = append(all, func() {
				r.token <- struct{}{}
				until := exec.Now() // for a part of a copy
				if w.way == byPlans {
					until += time.Millisecond
				}
				r.attend(nil, call.AnySource, until)
			})
		}
	}
	return all
}

// settle lets happen what can, until nothing can but that ranks wait for plans.
func (w *world) settle() {
	for idle := 0; idle < 20; {
		before := w.String()
		choices := w.choices()
		if len(choices) == 0 {
			return
		}
		for _, f := range choices {
			f()
		}
		if idle++; before != w.String() {
			idle = 0
		}
	}
}

func (w *world) String() string {
	text := fmt.Sprint(len(w.tasks), " tasks")
	for _, r := range w.ranks {
		text += fmt.Sprintf("\n%d: %v, %v", r.number, r.Engine, r.unread())
		for _, frames := range w.frames[r.number] {
			text += fmt.Sprintf(", %d frames", len(frames))
		}
	}
	return text
}

// script performs the commands of a script of testdata.
type script struct {
	t      *testing.T
	w      *world
	sent   map[int32]string // by content
	answer []string
}

func (s *script) note(format string, args ...any) {
	s.answer = append(s.answer, fmt.Sprintf(format, args...))
}

// TestScripts runs the scripts of testdata, which answer with the frames that go, and with what
// ends, and how. The commands are:
//
//	world WAY SIZE                   begins anew: link, rdma, plan or copy
//	most N                           of the sends that a rank keeps of a peer
//	send NAME FROM TO TAG BYTES
//	recv NAME RANK FROM TAG BYTES    FROM may be any
//	read RANK [PEER]                 a rank takes a frame; over memory all that are there
//	run                              goroutines do what they were started for
//	go                               all happens that can
//	state RANK                       what a rank keeps
//	leave RANK PEER                  a rank hears that a peer has left
//	lose RANK PEER                   a rank hears that a peer has ended without a goodbye
//	fail RANK                        the communicator fails on a rank
//	late RANK                        a rank's time is up
func TestScripts(t *testing.T) {
	scripts.Run(t, func() func([]string) []string {
		s := &script{t: t}
		return func(words []string) []string {
			s.answer = nil
			s.perform(words)
			slices.SortStableFunc(s.answer, func(a, b string) int {
				if strings.Contains(a, " fails: ") && strings.Contains(b, " fails: ") {
					return strings.Compare(a, b) // these come in no order
				}
				return 0
			})
			return s.answer
		}
	})
}

func (s *script) perform(words []string) {
	number := func(i int) int {
		n, err := strconv.Atoi(words[i])
		if err != nil {
			s.t.Fatal(words, err)
		}
		return n
	}
	rank := func(i int) *rank { return s.w.ranks[number(i)] }
	switch words[0] {
	case "world":
		s.w, s.sent = stepped(s.t, words[1], number(2)), map[int32]string{}
		s.w.log = s.note
	case "most":
		for _, r := range s.w.ranks {
			r.most = uint64(number(1))
		}
	case "send":
		b := buffer(s.t, number(5)/4)
		content := int32(len(s.sent) + 1)
		for i := range b {
			b[i] = content
		}
		s.sent[content] = words[1]
		s.start(words[1], rank(2), sendOp(b, number(3), number(4)), nil)
	case "recv":
		from := call.AnySource
		if words[3] != "any" {
			from = number(3)
		}
		b := buffer(s.t, number(5)/4)
		s.start(words[1], rank(2), recvOp(b, from, number(4)), b)
	case "read":
		switch r := rank(1); {
		case s.w.memory():
			r.collect()
		case !r.pass(number(2)):
			s.note("nothing")
		}
	case "run":
		s.w.run()
	case "go":
		s.w.settle()
	case "state":
		s.note("%v", rank(1).Engine)
	case "leave", "lose":
		rank(1).depart(number(2), words[0] == "leave")
	case "fail":
		rank(1).Fail(fault.Errorf(fault.ErrAborted, "for a test"))
	case "late":
		rank(1).expireBy(exec.Now() + time.Hour)
	default:
		s.t.Fatal(words)
	}
}

func (s *script) start(name string, r *rank, op call.Operation, out []int32) {
	r.startNoting(op, func(x *work.Work, err error) {
		switch {
		case err != nil:
			s.note("%s fails: %s", name, err.(*fault.Error).Text)
		case len(out) == 0:
			s.note("%s ends", name)
		default:
			different := slices.ContainsFunc(out, func(n int32) bool { return n != out[0] })
			if different {
				s.t.Errorf("%s has not all of %s", name, s.sent[out[0]])
			}
			s.note("%s has %s of %d", name, s.sent[out[0]], x.Source())
		}
	})
}

// ends is how often each of two works has ended, and how.
type ends struct {
	times [2]int
	errs  [2]error
}

// largeSend starts a large send and its receive in a world of two ranks. What has been received is
// compared when the receive ends.
func (w *world) largeSend(t *testing.T, in, out []int32) *ends {
	e := new(ends)
	for i, op := range []call.Operation{sendOp(in, 1, 0), recvOp(out, 0, 0)} {
		w.ranks[i].startNoting(op, func(_ *work.Work, err error) {
			e.times[i]++
			e.errs[i] = err
			if i == 1 && err == nil && !slices.Equal(in, out) {
				t.Error("the data differs")
			}
		})
	}
	return e
}

// stateOf is the state of a rank's only bulk, "" if there is none.
func (r *rank) stateOf() string {
	r.Engine.mu.Lock()
	defer r.Engine.mu.Unlock()
	for b := range r.all() {
		_, state, _ := strings.Cut(b.String(), ": ")
		return state
	}
	return ""
}

// A large send ends once on each of its ranks, and nothing is kept of it, whatever happens in
// whatever state: a rank is late, hears that the other has left or ended, or fails.
func TestEndsInEachState(t *testing.T) {
	events := map[string]struct {
		happens func(r *rank, peer int)
		kind    error
	}{
		"late": {func(r *rank, _ int) { r.expireBy(exec.Now() + time.Hour) }, fault.ErrTimeout},
		"left": {func(r *rank, peer int) { r.depart(peer, true) }, fault.ErrAborted},
		"lost": {func(r *rank, peer int) { r.depart(peer, false) }, fault.ErrPeerFailed},
		"fail": {func(r *rank, _ int) { r.Fail(fault.Errorf(fault.ErrAborted, "for a test")) },
			fault.ErrAborted},
	}
	seen := map[string][]string{
		byLinks: {"0 offered", "0 accepted", "0 moving", "1 accepted", "1 moving"},
		byRDMA: {"0 offered", "0 accepted", "0 moving", "0 moving (the peer reads)", "1 accepted",
			"1 moving"},
		byPlans: {"0 offered", "0 accepted", "0 moving", "1 accepted", "1 moving"},
		byCopy:  {"0 offered", "1 accepted", "1 moving"},
	}
	for _, way := range ways {
		for name, event := range events {
			for side := range 2 {
				t.Run(fmt.Sprintf("%s/%s/%d", way, name, side), func(t *testing.T) {
					left := slices.DeleteFunc(slices.Clone(seen[way]), func(s string) bool {
						return !strings.HasPrefix(s, strconv.Itoa(side))
					})
					const n = 5 << 20 / 4 // two frames, and many slots
					in, out := buffer(t, n), buffer(t, n)
					for steps := 0; ; steps++ {
						for i := range in {
							in[i] = int32(steps + i)
						}
						w := stepped(t, way, 2)
						e := w.largeSend(t, in, out)
						more := w.endInState(t, e, side, steps, event.happens, event.kind, &left)
						w.close()
						if !more {
							break
						}
					}
					if len(left) > 0 {
						t.Errorf("states that were not seen: %q", left)
					}
				})
			}
		}
	}
}

// endInState has something happen to a rank after some steps, some of them while a frame of data
// goes or comes. It tells whether the send had not ended before.
func (w *world) endInState(t *testing.T, e *ends, side, steps int,
	happens func(r *rank, peer int), kind error, left *[]string) bool {
	r, peer := w.ranks[side], w.ranks[1-side]
	over, pending, state := false, false, ""
	step := func() {
		if steps--; steps == -1 {
			over, pending, state = true, e.times[side] == 0, r.stateOf()
			happens(r, 1-side)
		}
	}
	w.onData = func(user int) {
		before := over
		if step(); over && !before && e.times[user] > 0 {
			t.Errorf("in %q: a work has ended while rank %d uses its memory", state, user)
		}
	}
	for turn := 0; ; turn++ {
		if step(); over {
			break
		}
		choices := w.choices()
		if len(choices) == 0 || e.times[0]+e.times[1] == 2 {
			return false
		}
		if choices[turn%len(choices)](); over {
			break
		}
	}
	w.settle()
	*left = slices.DeleteFunc(*left, func(s string) bool { return s == fmt.Sprint(side, " ", state) })
	// What has come about before it is known that it is in vain is well, as is what a FIN has ended
	// that lay in a mailbox.
	well := e.times[side] == 1 && e.errs[side] == nil &&
		(kind != fault.ErrTimeout || state == "offered")
	if pending && !well && !errors.Is(e.errs[side], kind) {
		t.Errorf("in %q: %v", state, e.errs[side])
	}
	peer.Fail(fault.Errorf(fault.ErrAborted, "the other rank has failed"))
	w.settle()
	if e.times != [2]int{1, 1} {
		t.Errorf("in %q: the works have ended %v times", state, e.times)
	}
	for _, r := range w.ranks {
		if kept := r.stateOf(); kept != "" || r.hasTransfers() {
			t.Errorf("in %q: rank %d keeps %q", state, r.number, kept)
		}
	}
	return true
}

// Whatever comes first of what may, every receive gets what is its own, in order.
func TestAnyInterleaving(t *testing.T) {
	const size, tags, count = 3, 2, 8
	lengths := []int{0, 1, 300, 70_000, 300_000}
	for _, way := range ways {
		for seed := range uint64(10) {
			t.Run(fmt.Sprintf("%s/%d", way, seed), func(t *testing.T) {
				random := rand.New(rand.NewPCG(seed, 1))
				w := stepped(t, way, size)
				for _, r := range w.ranks {
					r.most = 1 + random.Uint64N(4)
				}
				type pending struct {
					r   *rank
					op  call.Operation
					out []int32 // of a receive
					of  int32   // what it is to have
				}
				var all []pending
				for from := range size {
					for i := range count {
						to, tag := (from+1+random.IntN(size-1))%size, random.IntN(tags)
						n := lengths[random.IntN(len(lengths))]
						content := int32(1000*from + i + 1)
						in, out := buffer(t, n), buffer(t, n)
						for j := range in {
							in[j] = content
						}
						all = append(all, pending{r: w.ranks[from], op: sendOp(in, to, tag)},
							pending{w.ranks[to], recvOp(out, from, tag), out, content})
					}
				}
				// Each rank's are started in order, those of other ranks between them.
				ended := 0
				next := 0
				for next < len(all) || ended < len(all) {
					if next < len(all) && random.IntN(4) == 0 {
						p := all[next]
						next++
						p.r.startNoting(p.op, func(_ *work.Work, err error) {
							ended++
							if err != nil || slices.ContainsFunc(p.out, func(n int32) bool { return n != p.of }) {
								t.Errorf("%+v: %v", p.op, err)
							}
						})
					}
					if choices := w.choices(); len(choices) > 0 {
						choices[random.IntN(len(choices))]()
					} else if next == len(all) && ended < len(all) {
						t.Fatalf("%d of %d have ended\n%v", ended, len(all), w)
					}
				}
			})
		}
	}
}

// Plans of large sends are kept, few of them, and run again.
func TestPlansAreKept(t *testing.T) {
	w := newWorld(t, byPlans, 2)
	for range 2 {
		for i := range plansKept + 2 {
			n := 100_000 + i
			in, out := buffer(t, n), buffer(t, n)
			for j := range in {
				in[j] = int32(i + j)
			}
			receive := w.ranks[1].start(recvOp(out, 0, 0), time.Minute)
			send := w.ranks[0].start(sendOp(in, 1, 0), time.Minute)
			wait(t, "send and receive", send, receive)
			if !slices.Equal(in, out) {
				t.Fatalf("%d elements: the data differs", n)
			}
			if kept := len(w.ranks[0].peers[1].sending.plans); kept > plansKept {
				t.Fatalf("%d plans are kept, %d are allowed", kept, plansKept)
			}
		}
	}
	again := w.ranks[0].peers[1].sending.plans
	wait(t, "send and receive", w.ranks[0].start(sendOp(buffer(t, 100_000+plansKept+1), 1, 0),
		time.Minute), w.ranks[1].start(recvOp(buffer(t, 100_000+plansKept+1), 0, 0), time.Minute))
	if now := w.ranks[0].peers[1].sending.plans; !slices.Equal(now, again) {
		t.Error("a plan that was kept is built again")
	}
}

// Where they take much memory, none is kept that does not run.
func TestPlansTakeLittleMemory(t *testing.T) {
	w := newWorld(t, byPlans, 2)
	for _, r := range w.ranks {
		r.token <- struct{}{}
		r.planBytes = mostPlanBytes
		<-r.token
	}
	in, out := buffer(t, 100_000), buffer(t, 100_000)
	in[0], in[99_999] = 1, 2
	for range 2 {
		clear(out)
		receive := w.ranks[1].start(recvOp(out, 0, 0), time.Minute)
		wait(t, "send and receive", w.ranks[0].start(sendOp(in, 1, 0), time.Minute), receive)
		if !slices.Equal(in, out) {
			t.Fatal("the data differs")
		}
		for i, q := range []*queue{&w.ranks[0].peers[1].sending, &w.ranks[1].peers[0].receiving} {
			if bytes := w.ranks[i].planBytes; len(q.plans) > 0 || bytes != mostPlanBytes {
				t.Errorf("rank %d: %d plans, %d bytes", i, len(q.plans), bytes-mostPlanBytes)
			}
		}
	}
}
