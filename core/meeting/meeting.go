// Package meeting has processes that know each other's handles agree to form a group, without a
// store.
//
// A meeting is named by a text that is used once, its uuid. The rank whose handle is the least
// leads it. The others call the leader, and each call is answered by the outcome. After a while the
// leader calls those that have not come, and these calls, too, are answered by the outcome. So it
// hears at once of a process that has ended, or that was given another list of handles: that list
// may have another leader. The outcome of a meeting is kept until a number of later meetings have
// begun, for those that ask again.
package meeting

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/goccl/goccl/core/address"
	"github.com/goccl/goccl/core/bootstrap"
	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/internal/seal"
	"github.com/goccl/goccl/core/transport"
)

const (
	// Operation is what texts call it.
	Operation = "reconfigure"

	callDelay = 50 * time.Millisecond // how long the leader waits for others before it calls them
	// extra is how much longer than its own time a rank waits for the leader to tell who is missing.
	extra = 500 * time.Millisecond
	// mostKept is of how many meetings it is known what has come of them.
	mostKept = 1024
)

// Caller asks a service of a peer: see [transport.Endpoint.Call].
type Caller func(ctx context.Context, to *address.Address, service, topic uint64,
	secret, request []byte) ([]byte, error)

// Meetings are those of one communicator.
type Meetings struct {
	self Handle
	key  string // of the job
	call Caller

	mu      sync.Mutex // guards what follows, and the meetings
	changed chan struct{}
	all     map[uint64]*Meeting // by topic, of the last mostKept
	begun   []*Meeting          // they, in order; of all but the last the outcome is kept, and no more
	closed  *fault.Error        // why no meeting can take place any more
}

// Meeting is one rank's part in a meeting.
type Meeting struct {
	of    *Meetings
	uuid  string
	topic uint64
	ctx   context.Context // of this rank's calls: ends with the meeting
	stop  context.CancelFunc
	done  chan struct{} // closed when there is an outcome

	list    *List // nil until it is known
	own     Part
	parts   map[int]*Part // the leader's: of those that have come
	over    bool          // there is an outcome
	outcome outcome       // for those that have come; some may be told only after the next has begun
	used    *fault.Error  // for those that come too late to be told that it is agreed; nil: none can
}

// Part is what a rank brings to a meeting.
type Part struct {
	Epoch    uint32 // the number of its present epoch
	Answers  bootstrap.Answers
	Settings []bootstrap.Setting // that must be the same on all ranks
}

// outcome is what has come of a meeting.
type outcome struct {
	failure *fault.Error // nil: it is agreed
	foreign bool         // the failure is that of a rank that was given another list
	epoch   uint32       // the greatest of all
	answers bootstrap.Answers
}

// NewMeetings makes the meetings of the communicator of a handle, for ranks that hold the job's
// key.
func NewMeetings(self Handle, key string, call Caller) *Meetings {
	return &Meetings{self: self, key: key, call: call, changed: make(chan struct{}),
		all: map[uint64]*Meeting{}}
}

// Secret is what ranks prove to each other that come to a meeting.
func (m *Meetings) Secret() []byte {
	s := seal.Of(m.key, "goccl meeting secret")
	return s[:]
}

// Begin begins a meeting. It fails where the uuid has been used, as far back as is known. Meet or
// Fail must follow.
func (m *Meetings) Begin(uuid string) (*Meeting, error) {
	if uuid == "" {
		return nil, errorf(fault.ErrInvalidArgument, "the uuid is empty: give one that no call has "+
			"used before, the same on all ranks")
	}
	sum := seal.Of(m.key, "goccl meeting", []byte(uuid))
	n := &Meeting{of: m, uuid: uuid, topic: binary.LittleEndian.Uint64(sum[:]),
		done: make(chan struct{}), parts: map[int]*Part{}}
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.closed != nil:
		return nil, m.closed
	case m.all[n.topic] != nil:
		return nil, used(uuid, "this rank")
	}
	if k := len(m.begun); k > 0 {
		m.begun[k-1].forget()
	}
	m.begun = append(m.begun, n)
	if len(m.begun) > mostKept {
		delete(m.all, m.begun[0].topic)
		m.begun = slices.Delete(m.begun, 0, 1)
	}
	n.ctx, n.stop = context.WithCancel(context.Background())
	m.all[n.topic] = n
	m.signal()
	return n, nil
}

// forget drops what a meeting that is over needs no more. It is called with mu held.
func (n *Meeting) forget() {
	n.list, n.parts, n.own = nil, nil, Part{}
}

func used(uuid, where string) *fault.Error {
	return errorf(fault.ErrInvalidArgument, "uuid %q was already used on %s: give one that no call "+
		"has used before", uuid, where)
}

// Interrupt fails the meeting that is under way, if there is one.
func (m *Meetings) Interrupt(cause *fault.Error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, n := range m.all {
		n.conclude(outcome{failure: cause})
	}
}

// Close has no more meetings take place.
func (m *Meetings) Close(cause *fault.Error) {
	m.mu.Lock()
	m.closed = cause
	m.mu.Unlock()
	m.Interrupt(cause)
}

// signal wakes what waits for a change. It is called with mu held.
func (m *Meetings) signal() {
	close(m.changed)
	m.changed = make(chan struct{})
}

func errorf(kind error, format string, args ...any) *fault.Error {
	return fault.Errorf(kind, Operation+": "+format, args...)
}

// Fail ends the meeting for all, because this rank cannot take part. It returns the cause.
func (n *Meeting) Fail(cause error) error {
	failure := fault.From(cause, fault.ErrSystem, Operation)
	n.of.mu.Lock()
	defer n.of.mu.Unlock()
	n.conclude(outcome{failure: failure})
	return cause
}

// conclude ends the meeting with an outcome, unless it has one, and reports whether it did. It is
// called with mu held.
func (n *Meeting) conclude(v outcome) bool {
	if n.over {
		return false
	}
	n.over, n.outcome = true, v
	if v.failure == nil {
		n.used = used(n.uuid, n.list.name(n.list.Rank))
	}
	n.stop()
	close(n.done)
	n.of.signal()
	return true
}

func (n *Meeting) end(failure *fault.Error) {
	n.of.mu.Lock()
	defer n.of.mu.Unlock()
	n.conclude(outcome{failure: failure})
}

// Meet brings this rank's part, and waits for the others until the context ends. It returns what
// all ranks have answered yes to, and the number of the epoch that they begin.
func (n *Meeting) Meet(ctx context.Context, list *List, own Part) (Part, error) {
	m := n.of
	m.mu.Lock()
	n.list, n.own = list, own
	n.parts[list.Rank] = &own
	m.signal()
	n.tally()
	m.mu.Unlock()
	deadline, limited := ctx.Deadline()
	wait := ctx
	if list.leader == list.Rank {
		t := time.AfterFunc(callDelay, n.callAbsent)
		defer t.Stop()
	} else {
		left := time.Duration(0)
		if limited { // the leader knows who is missing
			left = time.Until(deadline)
			var cancel context.CancelFunc
			wait, cancel = context.WithDeadline(context.WithoutCancel(ctx), deadline.Add(extra))
			defer cancel()
			defer context.AfterFunc(ctx, func() {
				if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
					cancel()
				}
			})()
		}
		go n.ask(list, list.leader, n.request(joins, left))
	}
	select {
	case <-n.done:
	case <-wait.Done():
		n.expire(wait.Err())
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	v := n.outcome
	if v.failure != nil {
		return Part{}, v.failure
	}
	return Part{Epoch: v.epoch + 1, Answers: v.answers}, nil
}

// expire fails the meeting when the time is up.
func (n *Meeting) expire(cause error) {
	n.of.mu.Lock()
	defer n.of.mu.Unlock()
	if n.over {
		return
	}
	l := n.list
	missing := []int{l.leader}
	if l.leader == l.Rank {
		missing = nil
		for rank := range l.Handles {
			if _, came := n.parts[rank]; !came {
				missing = append(missing, rank)
			}
		}
	}
	if !errors.Is(cause, context.DeadlineExceeded) {
		n.conclude(outcome{failure: errorf(fault.ErrAborted, "%s gave it up", l.name(l.Rank)).
			In(&l.Members).Blaming(l.Rank)})
		return
	}
	n.conclude(outcome{failure: errorf(fault.ErrTimeout, "%s did not come to uuid %q in time",
		l.names(missing), n.uuid).In(&l.Members).Blaming(missing...)})
}

// callAbsent has the leader call those that have not come.
func (n *Meeting) callAbsent() {
	n.of.mu.Lock()
	defer n.of.mu.Unlock()
	if n.over {
		return
	}
	for rank := range n.list.Handles {
		if _, came := n.parts[rank]; !came {
			n.visit(rank)
		}
	}
}

// visit calls a rank that has not come, or has gone again. It is called with mu held.
func (n *Meeting) visit(rank int) {
	go n.ask(n.list, rank, n.request(visits, 0))
}

// ask calls a rank for its outcome, which holds here, too.
func (n *Meeting) ask(l *List, rank int, request []byte) {
	m := n.of
	to := &l.Handles[rank]
	reply, err := m.call(n.ctx, &to.Address, to.id, n.topic, m.Secret(), request)
	switch {
	case n.ctx.Err() != nil:
	case errors.Is(err, transport.ErrPeerLeft):
		n.end(errorf(fault.ErrPeerFailed, "%s has destroyed the communicator of its handle",
			l.name(rank)).In(&l.Members).Blaming(rank))
	case errors.Is(err, transport.ErrPeerDown):
		n.end(errorf(fault.ErrPeerFailed, "%s has failed: %v", l.name(rank), err).In(&l.Members).
			Blaming(rank))
	case errors.Is(err, transport.ErrRefused):
		n.end(errorf(fault.ErrMismatch, "%s and %s hold different secrets (GOCCL_SECRET)",
			l.name(l.Rank), l.name(rank)).In(&l.Members).Blaming(rank))
	case err != nil:
		n.end(errorf(fault.ErrPeerFailed, "%s cannot be reached: %v", l.name(rank), err).
			In(&l.Members).Blaming(rank))
	default:
		v, err := l.readOutcome(reply)
		if err != nil {
			v.failure = errorf(fault.ErrInternal, "from %s: %v", l.name(rank), err)
		} else if v.foreign { // its ranks are not those of this list
			v.failure = v.failure.Blaming(rank)
		}
		m.mu.Lock()
		n.conclude(v)
		m.mu.Unlock()
	}
}

// tally concludes the meeting once all have come. It is called with mu held.
func (n *Meeting) tally() {
	l := n.list
	if l.leader != l.Rank || len(n.parts) < len(l.Handles) {
		return
	}
	v := outcome{answers: ^bootstrap.Answers(0)}
	for rank := range l.Handles {
		p := n.parts[rank]
		for i, s := range n.own.Settings {
			if i >= len(p.Settings) || p.Settings[i] != s {
				theirs := bootstrap.Setting{}
				if i < len(p.Settings) {
					theirs = p.Settings[i]
				}
				n.conclude(outcome{failure: errorf(fault.ErrMismatch, "%s is %q on %s and %q on %s: it "+
					"must be the same on all ranks", s.Name, s.Value, l.name(l.Rank), theirs.Value,
					l.name(rank)).In(&l.Members).Blaming(rank)})
				return
			}
		}
		v.epoch, v.answers = max(v.epoch, p.Epoch), v.answers&p.Answers
	}
	n.conclude(v)
}

// Answer is that to a call: see [transport.Service].
func (m *Meetings) Answer(ctx context.Context, topic uint64, request []byte) []byte {
	came := time.Now()
	q, err := readRequest(request)
	if err != nil {
		return outcome{failure: errorf(fault.ErrInternal, "a request is %v", err)}.bytes()
	}
	n := m.find(ctx, topic)
	if n == nil {
		return nil // the caller has gone
	}
	m.mu.Lock()
	l := n.list
	switch {
	case n.used != nil:
		defer m.mu.Unlock()
		return outcome{failure: n.used}.bytes()
	case l == nil:
		defer m.mu.Unlock()
		return n.outcome.bytes()
	}
	rank := l.rankOf(q.from.text)
	if q.digest != l.digest {
		failure := l.differs(rank, q)
		n.conclude(outcome{failure: failure})
		m.mu.Unlock()
		return outcome{failure: failure, foreign: true}.bytes()
	}
	// One whose time is over has given up, though its call still stands.
	late := q.left > 0 && time.Since(came) >= q.left
	if q.purpose == joins && l.leader == l.Rank && !n.over && !late {
		n.parts[rank] = &q.part
		n.tally()
	}
	m.mu.Unlock()
	if q.purpose == joins && q.left > 0 {
		t := time.AfterFunc(q.left-time.Since(came), func() { n.expire(context.DeadlineExceeded) })
		defer t.Stop()
	}
	select {
	case <-ctx.Done():
		n.goneAgain(rank, &q.part)
		return nil
	case <-n.done:
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return n.outcome.bytes()
}

// goneAgain takes that a rank which had come has died, or given up.
func (n *Meeting) goneAgain(rank int, came *Part) {
	n.of.mu.Lock()
	defer n.of.mu.Unlock()
	if !n.over && n.parts[rank] == came {
		delete(n.parts, rank)
		n.visit(rank)
	}
}

// differs is the error of a caller that was given another list.
func (l *List) differs(rank int, q *request) *fault.Error {
	who := q.from.Who() + ", which is not in this list"
	if rank >= 0 {
		who = l.name(rank)
	}
	how := "others, or in another order"
	if q.handles != len(l.Handles) {
		how = fmt.Sprint(q.handles)
	}
	return errorf(fault.ErrMismatch, "the ranks were given different lists of handles: %s was given "+
		"%d, and %s %s; all must be given the same ones, in the same order", l.name(l.Rank),
		len(l.Handles), who, how).In(&l.Members).Blaming(rank)
}

// find waits until a meeting has begun here and its list is known, or it is over; nil where the
// context ends before.
func (m *Meetings) find(ctx context.Context, topic uint64) *Meeting {
	for {
		m.mu.Lock()
		n, changed := m.all[topic], m.changed
		ready := n != nil && (n.list != nil || n.over)
		m.mu.Unlock()
		if ready {
			return n
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		}
	}
}

// Identity is what makes the traffic of the group that comes of a meeting its own.
func (n *Meeting) Identity(list *List) (job, group uint64, secret []byte) {
	uuid := seal.Of(n.of.key, "goccl meeting's name", []byte(n.uuid))
	part := slices.Concat(uuid[:], list.digest[:])
	id := seal.Of(n.of.key, "goccl meeting's group", part)
	s := seal.Of(n.of.key, "goccl meeting's group secret", part)
	return binary.LittleEndian.Uint64(id[:]), binary.LittleEndian.Uint64(id[8:]), s[:]
}
