package core

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/goccl/goccl/core/address"
	"github.com/goccl/goccl/core/bootstrap"
	"github.com/goccl/goccl/core/bootstrap/etcd"
	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/internal/printable"
	"github.com/goccl/goccl/core/meeting"
	"github.com/goccl/goccl/core/membership"
	"github.com/goccl/goccl/core/roster"
	"github.com/goccl/goccl/core/transport"
)

// A process joins by a call to any member: see [transport.Endpoint.Call]. Its request lies with
// that member until the members let it in, by Recover or Grow, and the reply makes it a member. If
// the member ends meanwhile, the process asks another one. Calls are sealed, so nobody who passes a
// handle on can put addresses of its own into request or reply.

// joinTopic is that of the calls. Those of meetings are hashes.
const joinTopic = 1

// joinRequest is what a process says that asks to be a member.
type joinRequest struct {
	Handle   string // the process's own
	Group    string `json:",omitempty"` // the name of the one that is meant, where it is known
	Settings []bootstrap.Setting
}

// welcome is the reply: the epoch whose member the process is.
type welcome struct {
	Kind     uint8  `json:",omitempty"` // of the refusal: see fault.Number
	Problem  string `json:",omitempty"` // why the process is refused; nothing else is set then
	Name     string // the group's
	Number   uint32
	Job      uint64
	Group    uint64
	Seed     []byte   // see roster.Identity
	Own      [][]byte // the members' addresses, by rank: see address.Address.Encode
	Hosts    [][]byte // what they share
	HostOf   []int    // by rank: of Hosts
	Founders []byte
	Open     bool     `json:",omitempty"` // see membership.Value.Open
	Handles  []string // of those that join; they have the last ranks
}

// joiner is a process that waits here.
type joiner struct {
	membership.Joiner
	address *address.Address
	come    chan answer
}

// answer is what a process that waits is told.
type answer struct {
	epoch   *epoch       // that it is a member of
	refusal *fault.Error // else, why it cannot be one; nil where it is to ask another member
}

// answerJoin answers a process that asks to be a member: once it is one, or is refused.
func (c *Comm) answerJoin(ctx context.Context, d *door, request []byte) []byte {
	refuse := func(e *fault.Error) []byte {
		b, _ := json.Marshal(welcome{Kind: fault.Number(e.Kind), Problem: e.Text}) // never fails
		return b
	}
	j, refusal := c.readRequest(d, request)
	if refusal != nil {
		return refuse(refusal)
	}
	if !c.receive(j) {
		return nil
	}
	defer c.leaves(j)
	select {
	case a := <-j.come:
		switch {
		case a.refusal != nil:
			return refuse(a.refusal)
		case a.epoch == nil:
			return nil
		}
		b, err := a.epoch.welcome()
		if err != nil {
			return refuse(fault.From(err, fault.ErrSystem, "join"))
		}
		return b
	case <-ctx.Done():
		return nil
	}
}

// readRequest reads what a process says that asks to be a member, or tells why it cannot be one.
func (c *Comm) readRequest(d *door, request []byte) (*joiner, *fault.Error) {
	var q joinRequest
	if err := json.Unmarshal(request, &q); err != nil {
		return nil, fault.Errorf(fault.ErrInternal, "the request cannot be read: %v", err)
	}
	handle, err := meeting.Parse(q.Handle)
	switch {
	case err != nil:
		return nil, fault.Errorf(fault.ErrInvalidArgument, "the process's own handle is none: %v", err)
	case !handle.MadeWith(d.key):
		return nil, fault.Errorf(fault.ErrMismatch, "%s", handle.NotMadeHere())
	case q.Handle == d.handle.String():
		return nil, fault.Errorf(fault.ErrInvalidArgument, "the process's own handle is that of the "+
			"member which it asks, %s", handle.Who())
	case q.Group != "" && q.Group != c.config.GroupName:
		return nil, fault.Errorf(fault.ErrMismatch, "the process wants to join group %q, and is at a "+
			"member of group %q", printable.Text(q.Group, maxName), c.config.GroupName)
	}
	if text := differing(q.Settings, c.config.Same); text != "" {
		return nil, fault.Errorf(fault.ErrMismatch, "%s", text)
	}
	members := c.present.Load().Peers.Addresses()
	if err := unfit(members, &handle.Address, c.config.Transport); err != nil {
		return nil, fault.Errorf(fault.ErrUnsupported, "%v", err)
	}
	return &joiner{Joiner: membership.Joiner{Host: handle.Address.Host, Handle: []byte(q.Handle)},
		address: &handle.Address, come: make(chan answer, 1)}, nil
}

// unfit tells why a process cannot be joined to one of some members; nil where it can to each.
func unfit(members []address.Address, a *address.Address, forced string) error {
	for i := range members {
		if _, err := address.Decide(members[i], *a, forced); err != nil {
			return fmt.Errorf("the process cannot be joined to the member that is %s: %w",
				members[i].Who(), err)
		}
	}
	return nil
}

// admit returns those of the joiners that were decided on who can be members, and the addresses of
// all members with theirs. A joiner that cannot be joined to a member, or to a joiner before it, is
// left out, as is one whose handle is none. It is pure: all members come to the same.
func admit(members []address.Address, joiners []membership.Joiner, forced string) (
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

// differing tells of a setting that a process has otherwise than the members; "" if there is none.
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

// receive has a process wait here, unless nobody can. It may be a member already, and have missed
// the reply.
func (c *Comm) receive(j *joiner) bool {
	c.mu.Lock()
	if c.entry.barred {
		c.mu.Unlock()
		return false
	}
	e := c.present.Load() // with the lock: the next epoch's welcomes comes after
	c.entry.joiners = append(c.entry.joiners, j)
	act := e.inform(membership.Joining{Joiner: j.Joiner})
	c.mu.Unlock()
	act()
	e.welcomes()
	return true
}

// bar sends those away that wait here, if the members go on without this rank.
func (c *Comm) bar(err error) {
	if !errors.Is(err, fault.ErrExcluded) && !errors.Is(err, fault.ErrNoQuorum) &&
		!errors.Is(err, fault.ErrAborted) {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.entry.barred = true
	for _, j := range c.entry.joiners {
		j.come <- answer{}
	}
	c.entry.joiners = nil // each is told once
}

// leaves tells that a process does not wait here any more.
func (c *Comm) leaves(j *joiner) {
	e := c.present.Load()
	c.mu.Lock()
	c.entry.joiners = slices.DeleteFunc(c.entry.joiners, func(k *joiner) bool { return k == j })
	act := func() {}
	if !slices.ContainsFunc(c.entry.joiners, func(k *joiner) bool { // it may have asked again
		return slices.Equal(k.Handle, j.Handle)
	}) {
		act = e.inform(membership.Unjoined{Handle: j.Handle})
	}
	c.mu.Unlock()
	act()
}

// welcomes tells those that wait here, and are members of the epoch, that they are, and those that
// cannot become members any more why.
func (c *epoch) welcomes() {
	members := c.Peers.Addresses()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.entry.joiners = slices.DeleteFunc(c.entry.joiners, func(j *joiner) bool {
		var a answer
		if slices.ContainsFunc(c.Joined, func(k membership.Joiner) bool {
			return slices.Equal(k.Handle, j.Handle)
		}) {
			a.epoch = c
		} else if err := unfit(members, j.address, c.config.Transport); err != nil {
			a.refusal = fault.Errorf(fault.ErrUnsupported, "%v", err)
		} else {
			return false
		}
		j.come <- a
		return true
	})
}

// Joining is how many processes wait at this rank to be members: Recover and Grow let them in.
func (c *Comm) Joining() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.entry.joiners)
}

// welcome is the reply to a process that is a member of the epoch.
func (c *epoch) welcome() (reply []byte, err error) {
	w := welcome{Name: c.Members.Name, Number: c.number, Job: c.Identity.Job, Group: c.Identity.Group,
		Seed: c.Identity.Seed, Founders: c.Founders, Open: c.Contested}
	for _, j := range c.Joined {
		w.Handles = append(w.Handles, string(j.Handle))
	}
	if w.Own, w.Hosts, w.HostOf, err = address.EncodeAll(c.Peers.Addresses()); err != nil {
		return nil, err
	}
	return json.Marshal(w)
}

// Join makes this process a member of a communicator that exists. The handles are those of members
// (see [Comm.Handle]): one that lives is enough. Where none are given it takes those of GOCCL_JOIN,
// separated by commas. Where there are none either, it finds a member as [Comm.Publish] has written
// it: at the etcd of GOCCL_STORE, or else in config.Store, of the group config.GroupName. It waits
// until there is one, and where that has ended for the next one.
//
// It waits until the members let it in, by Recover or Grow, for as long as the context lasts or,
// where that has no deadline, for the configuration's timeout. Its rank is one of the last. What
// the configuration says of ranks is not looked at; its settings and its secret must be those of
// the members.
func (r *Runtime) Join(ctx context.Context, config Config, handles []string) (*Comm, error) {
	r.tellVariables.Do(r.tellEnvironment)
	store := config.Store
	config.Rank, config.Size, config.GlobalRanks, config.Store = 0, 1, nil, nil
	c, err := r.openAlone(ctx, config)
	if err != nil {
		return nil, config.Concern(fault.From(err, fault.ErrSystem, "join"))
	}
	until, cancel := r.Until(ctx)
	defer cancel()
	limited, cancel := c.limit(until)
	defer cancel()
	if err := c.join(limited, handles, store); err != nil {
		if c.life.Err() != nil || errors.Is(context.Cause(until), fault.ErrAborted) {
			err = fault.Errorf(fault.ErrAborted, "join: %v", errClosed) // Close has ended it
		}
		c.Destroy()
		return nil, config.Concern(fault.From(err, fault.ErrSystem, "join")).During("join", 0)
	}
	return c, nil
}

func (c *Comm) join(ctx context.Context, handles []string, store bootstrap.Store) error {
	c.changing.Lock()
	w, err := c.apply(ctx, handles, store)
	if err == nil {
		err = c.enter(w)
	}
	c.changing.Unlock()
	if err != nil {
		return err
	}
	return c.meetOrRecover(ctx)
}

// apply asks to be let in, wherever members are.
func (c *Comm) apply(ctx context.Context, handles []string, store bootstrap.Store) (*welcome,
	error) {
	source := ""
	if text := c.runtime.config.Getenv(EnvJoin); len(handles) == 0 && text != "" {
		handles, source = strings.Split(text, ","), " in "+EnvJoin
	}
	a := &application{c, c.entrance(), keepEach + 2*askAgain}
	members, err := a.readHandles(handles, source)
	switch {
	case err != nil:
		return nil, err
	case len(members) > 0:
		return a.askAny(ctx, members, source)
	case c.config.Etcd != nil:
		s := etcd.Open(ctx, c.config.Etcd, c.config.Meeting)
		defer s.Close(true) // it has written nothing
		return a.find(ctx, s)
	case store != nil:
		return a.find(ctx, store)
	}
	return nil, fault.Errorf(fault.ErrInvalidArgument, "join: no handles are given, nor %s, %s or a "+
		"store: one of them must say where members are", EnvJoin, EnvStore)
}

// application is a process that asks members to let it in.
type application struct {
	*Comm
	own      *door
	patience time.Duration // with a store that names no member: see find
}

// readHandles reads handles of members. Source says where they are from.
func (a *application) readHandles(texts []string, source string) (handles []meeting.Handle,
	err error) {
	for i, text := range texts {
		h, err := meeting.Parse(strings.TrimSpace(text))
		if err != nil {
			return nil, fault.Errorf(fault.ErrInvalidArgument, "join: handle %d of %d%s, %q, is none: %v; "+
				"allowed is what Comm.Handle, goccl_comm_handle() or Communicator.handle gives on a member",
				i+1, len(texts), source, printable.Text(text, maxQuoted), err)
		}
		if !h.MadeWith(a.own.key) {
			return nil, fault.Errorf(fault.ErrMismatch, "join: handle %d of %d%s: %s", i+1, len(texts),
				source, h.NotMadeHere())
		}
		handles = append(handles, h)
	}
	return handles, nil
}

const (
	maxQuoted = 40  // bytes of a bad handle, in texts
	maxName   = 256 // bytes of what another process names, in texts
	// askAgain is how long a process waits for the name of another member, before it asks the one
	// again that was not there.
	askAgain = time.Second
)

// askAny asks the members, one after the other, until one lets this process in.
func (a *application) askAny(ctx context.Context, members []meeting.Handle, source string) (
	*welcome, error) {
	var lost []string
	for i := range members {
		if w, err := a.ask(ctx, &members[i], ""); w != nil || err != nil {
			return w, err
		}
		lost = append(lost, members[i].Who())
	}
	return nil, fault.Errorf(fault.ErrPeerFailed, "join: no member of those whose handles are "+
		"given%s is there any more: %s", source, strings.Join(lost, "; "))
}

// find asks the member that a store names, and where that has ended the next one. What names none
// may have been left there by another job, or by somebody who only writes to the store: members
// write over it when they look at it again. So it is refused only where it stays for longer.
func (a *application) find(ctx context.Context, s bootstrap.Store) (*welcome, error) {
	key := bootstrap.MembersKey(a.config.GroupName)
	var known []byte // the member that was not there
	lost := "nothing is there"
	var until time.Time // patience ends; zero: what is there is not refused
	for {
		value, err := bootstrap.Await(ctx, s, key, known, askAgain)
		h, refused := a.readNamed(value, key)
		switch {
		case refused == nil:
			until = time.Time{}
		case until.IsZero():
			until = time.Now().Add(a.patience)
		}
		switch {
		case refused != nil && (ctx.Err() != nil || time.Now().After(until)):
			return nil, refused
		case ctx.Err() != nil:
			text := fmt.Sprintf("join: no member could be found at %q of the store: %s. Members of a group "+
				"of this name write there once they call Comm.Publish, goccl_comm_publish() or "+
				"Communicator.publish(), as goccl.elastic.run does", key, lost)
			if err != nil {
				text += "; " + err.Error()
			}
			return nil, fault.Errorf(fault.ErrTimeout, "%s", text)
		case err != nil:
			return nil, fault.Errorf(fault.ErrSystem, "join: %v", err)
		case value == nil:
			continue
		case refused != nil:
			known, lost = value, "what is there names none"
			continue
		}
		if w, err := a.askNamed(ctx, &h, s, key); w != nil || err != nil {
			return w, err
		}
		known, lost = value, h.Who()+", which it names, is not a member any more"
	}
}

// readNamed reads what stands at a key of a store, if anything does.
func (a *application) readNamed(value []byte, key string) (h meeting.Handle, refused *fault.Error) {
	if value == nil {
		return h, nil
	}
	h, err := meeting.Parse(string(value))
	switch {
	case err != nil:
		return h, fault.Errorf(fault.ErrInvalidArgument, "join: at %q of the store is %q, which is no "+
			"handle of a member: %v", key, printable.Text(string(value), maxQuoted), err)
	case !h.MadeWith(a.own.key):
		return h, fault.Errorf(fault.ErrMismatch, "join: at %q of the store is the handle of another "+
			"job: %s", key, h.NotMadeHere())
	}
	return h, nil
}

// askNamed asks a member for as long as the store names it. The others may have gone on without it,
// while it is stopped.
func (a *application) askNamed(ctx context.Context, h *meeting.Handle, s bootstrap.Store,
	key string) (*welcome, error) {
	named, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		ticker := time.NewTicker(askAgain)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
			case <-named.Done():
				return
			}
			if v, ok, err := s.Get(key); err == nil && ok && string(v) != h.String() {
				cancel()
			}
		}
	}()
	w, err := a.ask(named, h, a.config.GroupName)
	if err != nil && named.Err() != nil && ctx.Err() == nil {
		return nil, nil
	}
	return w, err
}

// ask asks a member to be let in, of a group where its name is known. It returns nothing where the
// member has gone.
func (a *application) ask(ctx context.Context, h *meeting.Handle, group string) (*welcome, error) {
	request, _ := json.Marshal(joinRequest{Handle: a.own.handle.String(), Group: group,
		Settings: a.config.Same}) // texts never fail
	reply, err := a.end.Call(ctx, &h.Address, h.ID(), joinTopic, a.own.meetings.Secret(), request)
	switch {
	case ctx.Err() != nil:
		return nil, fault.Errorf(fault.ErrTimeout, "join: the members have not let this process in "+
			"within its time: they do by Recover, or Grow (it has asked %s)", h.Who())
	case errors.Is(err, transport.ErrRefused):
		return nil, fault.Errorf(fault.ErrMismatch, "join: %s and this process have different secrets "+
			"(config.secret, %s)", h.Who(), EnvSecret)
	case errors.Is(err, transport.ErrProtocol):
		return nil, fault.Errorf(fault.ErrInternal, "join: of %s comes %v", h.Who(), err)
	case err != nil || len(reply) == 0:
		return nil, nil
	}
	var w welcome
	if err := json.Unmarshal(reply, &w); err != nil {
		return nil, fault.Errorf(fault.ErrInternal, "join: the reply of %s cannot be read: %v", h.Who(),
			err)
	}
	if w.Problem != "" {
		return nil, fault.Errorf(fault.KindOf(w.Kind), "join: %s refuses this process: %s", h.Who(),
			printable.Text(w.Problem, fault.MaxText))
	}
	return &w, nil
}

// enter makes this process a member of an epoch.
func (c *Comm) enter(w *welcome) error {
	ranks, err := c.readWelcome(w)
	if err != nil {
		return err
	}
	old := c.present.Load()
	old.finish(old.Members.Errorf(fault.ErrRevoked, "it has joined a group"))
	return c.install(ranks, w.Number)
}

// readWelcome is the roster of the epoch that this process is to be a member of.
func (c *Comm) readWelcome(w *welcome) (ranks roster.Roster, err error) {
	self := c.entrance().handle.String()
	rank := slices.Index(w.Handles, self) + len(w.Own) - len(w.Handles)
	shared := make([][]byte, len(w.Own))
	for r := range shared {
		if r >= len(w.HostOf) || w.HostOf[r] < 0 || w.HostOf[r] >= len(w.Hosts) {
			return ranks, malformedWelcome("of rank %d no host is told", r)
		}
		shared[r] = w.Hosts[w.HostOf[r]]
	}
	if !slices.Contains(w.Handles, self) || rank < 0 || len(w.Own) > bootstrap.MaxSize {
		return ranks, malformedWelcome("this process is not among %d members", len(w.Own))
	}
	if len(w.Founders) != len(membership.NewSet(len(w.Own))) {
		return ranks, malformedWelcome("%d bytes tell of founders", len(w.Founders))
	}
	addresses, hosts, err := address.Decode(w.Own, shared)
	if err != nil {
		return ranks, malformedWelcome("%v", err)
	}
	own := c.present.Load()
	if addresses[rank].Process != own.Peers[own.Rank].Process {
		return ranks, malformedWelcome("rank %d is to be this process, but is another one", rank)
	}
	peers, err := roster.Join(addresses, hosts, rank, c.config.Transport)
	if err != nil {
		return ranks, fault.Errorf(fault.ErrUnsupported, "join: %v", err)
	}
	ranks = newRoster(printable.Text(w.Name, maxName), rank, nil, peers, c.end)
	id := roster.Identity{Job: w.Job, Group: w.Group, Seed: w.Seed}
	ranks.Identity, err = id.Of(addresses)
	if err != nil {
		return ranks, malformedWelcome("%v", err)
	}
	ranks.Founders, ranks.Contested = w.Founders, w.Open
	for _, h := range w.Handles {
		ranks.Joined = append(ranks.Joined, membership.Joiner{Handle: []byte(h)})
	}
	return ranks, nil
}

func malformedWelcome(format string, args ...any) error {
	return fault.Errorf(fault.ErrInternal, "join: the reply breaks the protocol: "+format, args...)
}
