package status

import (
	"os"
	"path/filepath"

	"github.com/goccl/goccl/core/call"
	"github.com/goccl/goccl/core/order"
	"github.com/goccl/goccl/core/plan"
	"github.com/goccl/goccl/core/trace"
)

// Of tells what this process's communicators do, which have these traces. It takes no lock.
func Of(traces []*trace.Trace) Process {
	p := Process{PID: os.Getpid(), Groups: []Group{}}
	p.Host, _ = os.Hostname()
	if path, err := os.Executable(); err == nil {
		p.Program = filepath.Base(path)
	}
	for _, t := range traces {
		if groups := t.Groups(); len(groups) > 0 {
			p.Groups = append(p.Groups, groupOf(t, &groups[len(groups)-1], p.Host))
		}
	}
	return p
}

func groupOf(t *trace.Trace, g *trace.Group, host string) Group {
	s := Group{ID: g.ID, Epoch: g.Epoch, Name: g.Name, Rank: g.Rank, Hosts: g.Hosts, PIDs: g.PIDs,
		Near: g.Near, Failed: g.Failed, Call: Call{Peer: -1}}
	if len(g.PIDs) == 1 { // it publishes nothing
		s.Hosts, s.PIDs, s.Near = []string{host}, []int{os.Getpid()}, []bool{true}
	}
	records, _ := t.ReadCollectives()
	clock := t.Clock()
	for i := range records {
		c := &records[i]
		if c.Message.Epoch != g.Epoch || c.Message.Group != g.ID {
			continue
		}
		s.Call = callOf(c, clock)
		s.Call.Input = t.Unfed() == c.Number
		if c.State == trace.Queued || c.State == trace.Begun { // those behind it wait for it
			break
		}
	}
	return s
}

func callOf(c *trace.Record, clock trace.Clock) Call {
	s := Call{Sequence: c.Number, What: call.Describe(c.Message), State: c.State.String(), Peer: -1}
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
