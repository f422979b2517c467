// Package join lets processes into a group that come later, and has a process ask to be let in.
//
// # Model
//
// An [Acceptor] is where others reach a communicator. It listens once somebody may come, and has a
// handle, by which others call it. A process asks to be a member by a call to any member: see
// [transport.Endpoint.Call]. Its request waits at that member until the members let it in, by
// Recover or Grow. The reply makes it a member. If the member ends meanwhile, the process asks
// another one. Calls are sealed, so nobody who passes a handle on can put its own addresses into
// request or reply. Members may publish their handle: then processes find it in a store.
//
// The acceptor decides nothing. It offers who waits to the decisions of the present epoch, which
// the owner tells it of by [Acceptor.Moved]. Package agreement has them decide. [Admit] then says
// which of those that were decided on can be members.
//
// # Locks
//
// Acceptor.opening is held while the acceptor begins to listen, and so while the owner may begin
// another epoch. Acceptor.mu is held while decisions take joiners, so their lock is taken beneath
// it, and no other one. What follows of a joiner is carried out without it.
package join

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/goccl/goccl/core/address"
	"github.com/goccl/goccl/core/bootstrap"
	"github.com/goccl/goccl/core/config"
	"github.com/goccl/goccl/core/endpoint"
	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/internal/printable"
	"github.com/goccl/goccl/core/meeting"
	"github.com/goccl/goccl/core/membership"
	"github.com/goccl/goccl/core/roster"
	"github.com/goccl/goccl/core/transport"
)

// topic is that of calls to join. The topics of meetings are hashes.
const topic = 1

// Epoch is what an acceptor knows of the present epoch.
type Epoch struct {
	Roster    *roster.Roster
	Number    uint32
	Decisions Decisions
}

// Decisions are those of an epoch's members on who is in the next one. The methods are called with
// Acceptor.mu held, and the functions that they return without it.
type Decisions interface {
	Offer(j membership.Joiner) (act func())
	Withdraw(handle []byte) (act func())
}

// Owner is what an acceptor asks of its communicator.
type Owner interface {
	// Listen returns the endpoint by which others reach this process. It may begin another epoch.
	Listen() (*endpoint.Endpoint, error)
	// Leads reports whether newcomers are to come to this rank.
	Leads() bool
}

// Config is what an acceptor begins with.
type Config struct {
	Settings config.Completed
	Life     context.Context // ends when the communicator is destroyed
	Logger   *slog.Logger
	Owner    Owner
}

// Acceptor is where others find a communicator: to be members of a group with it, or to join it.
// Its methods may be called from any goroutine.
type Acceptor struct {
	config Config

	opening      sync.Mutex // held while it begins to listen
	registration atomic.Pointer[registration]

	mu       sync.Mutex // guards what follows. Beneath it is only the lock of decisions
	listener *listener  // nil until somebody may come
	present  Epoch
	joiners  []*joiner    // who wait here to be members
	rejects  bool         // the others go on without this rank: nobody waits here in vain
	closed   *fault.Error // why nobody can come any more
}

// listener lets others find the communicator.
type listener struct {
	key      string // of the job
	end      *endpoint.Endpoint
	handle   meeting.Handle
	meetings *meeting.Meetings
	close    func() // no one is let in any more
}

// joiner is a process that waits here to be a member.
type joiner struct {
	membership.Joiner
	address *address.Address
	told    chan answer // of one
}

// answer is what a process that waits is told.
type answer struct {
	epoch   *Epoch       // that it is a member of
	refusal *fault.Error // else, why it cannot be one; nil where it is to ask another member
}

// NewAcceptor makes an acceptor.
func NewAcceptor(c Config) *Acceptor { return &Acceptor{config: c} }

// Handle returns the name of this process's end of the communicator. The acceptor listens from now
// on.
func (a *Acceptor) Handle() (string, error) {
	l, err := a.listen()
	if err != nil {
		return "", err
	}
	return l.handle.String(), nil
}

// Meetings returns the meetings of this process with others. The acceptor listens from now on.
func (a *Acceptor) Meetings() (*meeting.Meetings, error) {
	l, err := a.listen()
	if err != nil {
		return nil, err
	}
	return l.meetings, nil
}

// listen has the acceptor listen from now on, and returns its listener.
func (a *Acceptor) listen() (*listener, error) {
	if l := a.listening(); l != nil {
		return l, nil
	}
	a.opening.Lock()
	defer a.opening.Unlock()
	if l := a.listening(); l != nil {
		return l, nil
	}
	end, err := a.config.Owner.Listen()
	if err != nil {
		return nil, err
	}
	key := ""
	if secret := a.config.Settings.Secret; secret != "" {
		if key, err = bootstrap.JobKey(secret, ""); err != nil {
			return nil, fault.Errorf(fault.ErrSystem, "handle: %v", err)
		}
	}
	a.mu.Lock()
	r := a.present.Roster
	a.mu.Unlock()
	handle, err := meeting.New(r.Peers[r.Rank].Address, key)
	if err != nil {
		return nil, fault.From(err, fault.ErrSystem, "handle")
	}
	l := &listener{key: key, end: end, handle: handle,
		meetings: meeting.NewMeetings(handle, key, end.Call)}
	l.close = end.Serve(transport.Service{ID: handle.ID(), Secret: l.meetings.Secret(),
		Answer: func(ctx context.Context, about uint64, request []byte) []byte {
			if about == topic {
				return a.answer(ctx, l, request)
			}
			return l.meetings.Answer(ctx, about, request)
		}})
	a.mu.Lock()
	a.listener = l
	closed := a.closed
	a.mu.Unlock()
	if closed != nil {
		l.shut(closed)
	}
	return l, nil
}

// listening returns the acceptor's listener, nil while it has none.
func (a *Acceptor) listening() *listener {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.listener
}

// Interrupt ends a meeting that is under way.
func (a *Acceptor) Interrupt(cause *fault.Error) {
	if l := a.listening(); l != nil {
		l.meetings.Interrupt(cause)
	}
}

// Close ends all meetings with the cause, and the use of a store. The acceptor lets nobody in any
// more.
func (a *Acceptor) Close(cause *fault.Error) {
	a.mu.Lock()
	a.closed = cause
	l := a.listener
	a.mu.Unlock()
	if l != nil {
		l.shut(cause)
	}
	if r := a.registration.Load(); r != nil {
		r.withdraw()
	}
}

// shut ends all meetings with the cause, and no call is answered any more.
func (l *listener) shut(cause *fault.Error) {
	l.meetings.Close(cause)
	l.close()
}

// answer answers a process that asks to be a member, once it is one or is refused. It answers
// nothing where the process is to ask another member.
func (a *Acceptor) answer(ctx context.Context, l *listener, request []byte) []byte {
	refuse := func(e *fault.Error) []byte {
		b, _ := json.Marshal(Welcome{Kind: fault.Number(e.Kind), Problem: e.Text}) // never fails
		return b
	}
	j, refusal := a.readRequest(l, request)
	if refusal != nil {
		return refuse(refusal)
	}
	if !a.add(j) {
		return nil
	}
	defer a.remove(j)
	select {
	case told := <-j.told:
		switch {
		case told.refusal != nil:
			return refuse(told.refusal)
		case told.epoch == nil:
			return nil
		}
		b, err := told.epoch.welcome()
		if err != nil {
			return refuse(fault.From(err, fault.ErrSystem, "join"))
		}
		return b
	case <-ctx.Done():
		return nil
	}
}

// readRequest reads the request of a process that asks to be a member. The error says why it cannot
// be one.
func (a *Acceptor) readRequest(l *listener, request []byte) (*joiner, *fault.Error) {
	settings := &a.config.Settings
	var q joinRequest
	if err := json.Unmarshal(request, &q); err != nil {
		return nil, fault.Errorf(fault.ErrInternal, "the request cannot be read: %v", err)
	}
	handle, err := meeting.Parse(q.Handle)
	switch {
	case err != nil:
		return nil, fault.Errorf(fault.ErrInvalidArgument, "the process's own handle is none: %v", err)
	case !handle.MadeWith(l.key):
		return nil, fault.Errorf(fault.ErrMismatch, "%s", handle.NotMadeHere())
	case q.Handle == l.handle.String():
		return nil, fault.Errorf(fault.ErrInvalidArgument, "the process's own handle is that of the "+
			"member which it asks, %s", handle.Who())
	case q.Group != "" && q.Group != settings.GroupName:
		return nil, fault.Errorf(fault.ErrMismatch, "the process wants to join group %q, and is at a "+
			"member of group %q", printable.Text(q.Group, maxName), settings.GroupName)
	}
	if text := differing(q.Settings, settings.Same); text != "" {
		return nil, fault.Errorf(fault.ErrMismatch, "%s", text)
	}
	a.mu.Lock()
	members := a.present.Roster.Peers.Addresses()
	a.mu.Unlock()
	if err := unfit(members, &handle.Address, settings.Transport); err != nil {
		return nil, fault.Errorf(fault.ErrUnsupported, "%v", err)
	}
	return &joiner{Joiner: membership.Joiner{Host: handle.Address.Host, Handle: []byte(q.Handle)},
		address: &handle.Address, told: make(chan answer, 1)}, nil
}

// unfit returns why a process cannot be joined to one of some members; nil where it can be joined
// to each.
func unfit(members []address.Address, a *address.Address, forced string) error {
	for i := range members {
		if _, err := address.Decide(members[i], *a, forced); err != nil {
			return fmt.Errorf("the process cannot be joined to the member that is %s: %w",
				members[i].Who(), err)
		}
	}
	return nil
}

// Admit returns those of the joiners that can be members, of those that were decided on, and the
// addresses of all members with theirs. It leaves out a joiner that cannot be joined to a member or
// to a joiner before it, and one whose handle is none. It is pure, so all members admit the same.
func Admit(members []address.Address, joiners []membership.Joiner, forced string) (
	[]membership.Joiner, []address.Address) {
	var in []membership.Joiner
	for _, j := range joiners {
		h, err := meeting.Parse(string(j.Handle))
		if err != nil || len(members) == bootstrap.MaxSize || unfit(members, &h.Address, forced) != nil {
			continue
		}
		in, members = append(in, j), append(members, h.Address)
	}
	return in, members
}

// differing describes a setting that a process has otherwise than the members; "" if there is none.
func differing(theirs, ours []bootstrap.Setting) string {
	for _, s := range ours {
		i := slices.IndexFunc(theirs, func(t bootstrap.Setting) bool { return t.Name == s.Name })
		switch {
		case i < 0:
			return fmt.Sprintf("the process does not say what %s is", s.Name)
		case theirs[i].Value != s.Value:
			return fmt.Sprintf("%s is %q on the process, but %q on the members", s.Name,
				printable.Text(theirs[i].Value, maxName), s.Value)
		}
	}
	return ""
}

// add has a process wait here, and reports whether it may. The process may be a member already that
// has missed the reply.
func (a *Acceptor) add(j *joiner) bool {
	a.mu.Lock()
	if a.rejects {
		a.mu.Unlock()
		return false
	}
	a.joiners = append(a.joiners, j)
	act := a.present.Decisions.Offer(j.Joiner)
	a.welcome()
	a.mu.Unlock()
	act()
	return true
}

// remove notes that a process does not wait here any more.
func (a *Acceptor) remove(j *joiner) {
	act := func() {}
	a.mu.Lock()
	a.joiners = slices.DeleteFunc(a.joiners, func(k *joiner) bool { return k == j })
	if !slices.ContainsFunc(a.joiners, func(k *joiner) bool { // it may have asked again
		return slices.Equal(k.Handle, j.Handle)
	}) {
		act = a.present.Decisions.Withdraw(j.Handle)
	}
	a.mu.Unlock()
	act()
}

// Joining returns how many processes wait here to be members.
func (a *Acceptor) Joining() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.joiners)
}

// Reject has those that wait here ask another member, if the error says that the members go on
// without this rank. From now on nobody waits here, until the next epoch.
func (a *Acceptor) Reject(err error) {
	if !errors.Is(err, fault.ErrExcluded) && !errors.Is(err, fault.ErrNoQuorum) &&
		!errors.Is(err, fault.ErrAborted) {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.rejects = true
	for _, j := range a.joiners {
		j.told <- answer{}
	}
	a.joiners = nil // each is told once
}

// Moved tells of the present epoch. The acceptor answers those that wait here and are members of
// it, and those that cannot become members any more. It offers the others to its decisions.
func (a *Acceptor) Moved(to Epoch) {
	var acts []func()
	a.mu.Lock()
	a.present, a.rejects = to, false
	a.welcome()
	for _, j := range a.joiners {
		acts = append(acts, to.Decisions.Offer(j.Joiner))
	}
	a.mu.Unlock()
	for _, act := range acts {
		act()
	}
}

// welcome answers those that wait here and are members of the present epoch, or cannot become
// members. It is called with mu held.
func (a *Acceptor) welcome() {
	e := a.present
	members := e.Roster.Peers.Addresses()
	a.joiners = slices.DeleteFunc(a.joiners, func(j *joiner) bool {
		var told answer
		if slices.ContainsFunc(e.Roster.Joined, func(k membership.Joiner) bool {
			return slices.Equal(k.Handle, j.Handle)
		}) {
			told.epoch = &e
		} else if err := unfit(members, j.address, a.config.Settings.Transport); err != nil {
			told.refusal = fault.Errorf(fault.ErrUnsupported, "%v", err)
		} else {
			return false
		}
		j.told <- told
		return true
	})
}
