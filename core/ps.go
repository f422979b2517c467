package core

import (
	"os"
	"path/filepath"

	"github.com/goccl/goccl/core/call"
	"github.com/goccl/goccl/core/logs"
	"github.com/goccl/goccl/core/order"
	"github.com/goccl/goccl/core/plan"
	"github.com/goccl/goccl/core/status"
	"github.com/goccl/goccl/core/trace"
)

// shows has this process answer those who ask what it does, while it has communicators. It is
// called after each change of these.
func (r *Runtime) shows() {
	r.mu.Lock()
	server, has := r.status, len(r.comms) > 0
	if has == (server != nil) {
		r.mu.Unlock()
		return
	}
	r.status = nil
	if has {
		var err error
		if r.status, err = status.Serve(r.Status, r.config.OnFD); err != nil {
			r.log(logs.Init).Info("`goccl ps` cannot see this process", "err", err)
		}
	}
	r.mu.Unlock()
	if server != nil {
		server.Close()
	}
}

// Found is what the processes of this host that have communicators do.
type Found struct {
	Groups []status.Judged `json:"groups"`
	Silent []int           `json:"silent"` // processes that are there and have not answered
}

// FindProcesses asks all processes of this host that have communicators: those of this user, for
// root those of all.
func FindProcesses() (Found, error) {
	processes, silent, err := status.Find()
	if err != nil {
		return Found{}, err
	}
	host, _ := os.Hostname()
	f := Found{Groups: status.Groups(processes, host, status.LifeOf), Silent: []int{}}
	if f.Groups == nil {
		f.Groups = []status.Judged{}
	}
	f.Silent = append(f.Silent, silent...)
	return f, nil
}

// Status tells what this process's communicators do. It takes no lock of theirs.
func (r *Runtime) Status() status.Process {
	p := status.Process{PID: os.Getpid(), Groups: []status.Group{}}
	p.Host, _ = os.Hostname()
	if path, err := os.Executable(); err == nil {
		p.Program = filepath.Base(path)
	}
	for _, t := range r.traces.All() {
		if groups := t.Groups(); len(groups) > 0 {
			p.Groups = append(p.Groups, statusOf(t, &groups[len(groups)-1], p.Host))
		}
	}
	return p
}

func statusOf(t *trace.Trace, g *trace.Group, host string) status.Group {
	s := status.Group{ID: g.ID, Epoch: g.Epoch, Name: g.Name, Rank: g.Rank, Hosts: g.Hosts,
		PIDs: g.PIDs, Failed: g.Failed, Call: status.Call{Peer: -1}}
	if len(g.PIDs) == 1 { // it publishes nothing
		s.Hosts, s.PIDs = []string{host}, []int{os.Getpid()}
	}
	records, _ := t.ReadCollectives()
	clock := t.Clock()
	for i := range records {
		c := &records[i]
		if c.Message.Epoch != g.Epoch || c.Message.Group != g.ID {
			continue
		}
		s.Call = statusOfCall(c, clock)
		s.Call.Input = t.Unfed() == c.Number
		if c.State == trace.Queued || c.State == trace.Begun { // those behind it wait for it
			break
		}
	}
	return s
}

func statusOfCall(c *trace.Record, clock trace.Clock) status.Call {
	s := status.Call{Sequence: c.Number, What: call.Describe(c.Message), State: c.State.String(),
		Peer: -1}
	if plan.Collective(c.Message.Collective) == order.Refused {
		s.What = "a call that was refused"
	}
	since := c.Created
	switch c.State {
	case trace.Begun:
		if c.Waiting > 0 {
			s.Peer = c.Peer
		}
	case trace.Ended, trace.Failed:
		since = c.Ended
	}
	s.ForUS = clock.Since(since).Microseconds()
	return s
}
