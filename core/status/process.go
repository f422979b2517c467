package status

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/goccl/goccl/core/trace"
)

// Source is one communicator of this process.
type Source struct {
	Trace *trace.Trace
	Peers *Peers
}

// Of tells what this process's communicators do. It asks peers on other hosts for so long at most;
// 0: it asks none. It takes no lock that a collective holds.
func Of(sources []Source, most time.Duration) Process {
	p := Process{PID: os.Getpid(), Groups: []Group{}}
	p.Host, _ = os.Hostname()
	if path, err := os.Executable(); err == nil {
		p.Program = filepath.Base(path)
	}
	ctx, cancel := context.WithTimeout(context.Background(), most)
	defer cancel()
	groups := make([]*Group, len(sources))
	var reading sync.WaitGroup
	for i := range sources {
		reading.Go(func() { groups[i] = sources[i].read(ctx, p.Host, most > 0) })
	}
	reading.Wait()
	for _, g := range groups {
		if g != nil {
			p.Groups = append(p.Groups, *g)
		}
	}
	return p
}

// read returns nil where the communicator has no ranks yet.
func (s *Source) read(ctx context.Context, host string, asks bool) *Group {
	all := s.Trace.Groups()
	if len(all) == 0 {
		return nil
	}
	from := &all[len(all)-1]
	g := &Group{ID: from.ID, Epoch: from.Epoch, Name: from.Name, Rank: from.Rank, Hosts: from.Hosts,
		PIDs: from.PIDs, Near: from.Near, Others: []Other{}}
	if len(from.PIDs) == 1 { // it publishes nothing
		g.Hosts, g.PIDs, g.Near = []string{host}, []int{os.Getpid()}, []bool{true}
	}
	if asks {
		var far []int
		for rank, near := range g.Near {
			if !near {
				far = append(far, rank)
			}
		}
		g.Others = append(g.Others, s.Peers.Ask(ctx, from.Epoch, far)...)
	}
	g.Report = reportOf(s.Trace, from) // after the peers', who may take their time
	return g
}
