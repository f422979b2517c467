package join

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/goccl/goccl/core/bootstrap"
	"github.com/goccl/goccl/core/bootstrap/etcd"
	"github.com/goccl/goccl/core/config"
	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/internal/printable"
	"github.com/goccl/goccl/core/meeting"
	"github.com/goccl/goccl/core/transport"
)

// Apply asks to be let in: by members of whom there are handles or, where none are given, by one
// that a list of handles from the environment names, or a store. It waits for as long as the
// context lasts.
func (a *Acceptor) Apply(ctx context.Context, handles []string, listed string,
	store bootstrap.Store) (*Welcome, error) {
	source := ""
	if len(handles) == 0 && listed != "" {
		handles, source = strings.Split(listed, ","), " in "+config.EnvJoin
	}
	own, err := a.listen()
	if err != nil {
		return nil, err
	}
	p := &applicant{settings: &a.config.Settings, own: own, patience: keepEach + 2*askAgain}
	members, err := p.readHandles(handles, source)
	switch {
	case err != nil:
		return nil, err
	case len(members) > 0:
		return p.askAny(ctx, members, source)
	case p.settings.Etcd != nil:
		s := etcd.Open(ctx, p.settings.Etcd, p.settings.Meeting)
		defer s.Close(true) // it has written nothing
		return p.find(ctx, s)
	case store != nil:
		return p.find(ctx, store)
	}
	return nil, fault.Errorf(fault.ErrInvalidArgument, "join: no handles are given, nor %s, %s or a "+
		"store: one of them must say where members are", config.EnvJoin, config.EnvStore)
}

// applicant is a process that asks members to let it in.
type applicant struct {
	settings *config.Completed
	own      *listener
	patience time.Duration // with a store that names no member: see find
}

// readHandles reads handles of members. Source says where they are from.
func (p *applicant) readHandles(texts []string, source string) (handles []meeting.Handle,
	err error) {
	for i, text := range texts {
		h, err := meeting.Parse(strings.TrimSpace(text))
		if err != nil {
			return nil, fault.Errorf(fault.ErrInvalidArgument, "join: handle %d of %d%s, %q, is none: %v; "+
				"allowed is what Comm.Handle, goccl_comm_handle() or Communicator.handle gives on a member",
				i+1, len(texts), source, printable.Text(text, maxQuoted), err)
		}
		if !h.MadeWith(p.own.key) {
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
func (p *applicant) askAny(ctx context.Context, members []meeting.Handle, source string) (
	*Welcome, error) {
	var lost []string
	for i := range members {
		if w, err := p.ask(ctx, &members[i], ""); w != nil || err != nil {
			return w, err
		}
		lost = append(lost, members[i].Who())
	}
	return nil, fault.Errorf(fault.ErrPeerFailed, "join: no member of those whose handles are "+
		"given%s is there any more: %s", source, strings.Join(lost, "; "))
}

// find asks the member that a store names, and where that has ended the next one. A value that
// names no member may come from another job, or from somebody who only writes to the store. Members
// write over it when they look at the store again. So find refuses only a value that stays longer.
func (p *applicant) find(ctx context.Context, s bootstrap.Store) (*Welcome, error) {
	key := bootstrap.MembersKey(p.settings.GroupName)
	var known []byte // the member that was not there
	lost := "nothing is there"
	var until time.Time // patience ends; zero: what is there is not refused
	for {
		value, err := bootstrap.Await(ctx, s, key, known, askAgain)
		h, refused := p.readNamed(value, key)
		switch {
		case refused == nil:
			until = time.Time{}
		case until.IsZero():
			until = time.Now().Add(p.patience)
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
		if w, err := p.askNamed(ctx, &h, s, key); w != nil || err != nil {
			return w, err
		}
		known, lost = value, h.Who()+", which it names, is not a member any more"
	}
}

// readNamed reads what stands at a key of a store, if anything does.
func (p *applicant) readNamed(value []byte, key string) (h meeting.Handle, refused *fault.Error) {
	if value == nil {
		return h, nil
	}
	h, err := meeting.Parse(string(value))
	switch {
	case err != nil:
		return h, fault.Errorf(fault.ErrInvalidArgument, "join: at %q of the store is %q, which is no "+
			"handle of a member: %v", key, printable.Text(string(value), maxQuoted), err)
	case !h.MadeWith(p.own.key):
		return h, fault.Errorf(fault.ErrMismatch, "join: at %q of the store is the handle of another "+
			"job: %s", key, h.NotMadeHere())
	}
	return h, nil
}

// askNamed asks a member for as long as the store names it: the member may be stopped, and the
// others may have gone on without it.
func (p *applicant) askNamed(ctx context.Context, h *meeting.Handle, s bootstrap.Store,
	key string) (*Welcome, error) {
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
	w, err := p.ask(named, h, p.settings.GroupName)
	if err != nil && named.Err() != nil && ctx.Err() == nil {
		return nil, nil
	}
	return w, err
}

// ask asks a member to let this process into a group; "": into the member's. It returns nil where
// the member has gone.
func (p *applicant) ask(ctx context.Context, h *meeting.Handle, group string) (*Welcome, error) {
	request, _ := json.Marshal(joinRequest{Handle: p.own.handle.String(), Group: group,
		Settings: p.settings.Same}) // texts never fail
	reply, err := p.own.end.Call(ctx, &h.Address, h.ID(), topic, p.own.meetings.Secret(), request)
	switch {
	case ctx.Err() != nil:
		return nil, fault.Errorf(fault.ErrTimeout, "join: the members have not let this process in "+
			"within its time: they do by Recover, or Grow (it has asked %s)", h.Who())
	case errors.Is(err, transport.ErrRefused):
		return nil, fault.Errorf(fault.ErrMismatch, "join: %s and this process have different secrets "+
			"(config.secret, %s)", h.Who(), config.EnvSecret)
	case errors.Is(err, transport.ErrProtocol):
		return nil, fault.Errorf(fault.ErrInternal, "join: of %s comes %v", h.Who(), err)
	case err != nil || len(reply) == 0:
		return nil, nil
	}
	var w Welcome
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
