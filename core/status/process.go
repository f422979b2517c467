package status

import (
	"os"
	"path/filepath"
	"sync"

	"github.com/goccl/goccl/core/trace"
)

// Source is one communicator of this process.
type Source struct {
	Trace *trace.Trace
	Peers *Peers
}

// Asks says which peers on other hosts are asked, too.
type Asks int

// Which are.
const (
	None   Asks = iota
	Linked      // those that there is a link to
	All         // the others are connected first
)

// Of tells what this process's communicators do. It takes no lock that a collective holds.
func Of(sources []Source, asks Asks) Process {
	p := Process{PID: os.Getpid(), Groups: []Group{}}
	p.Host, _ = os.Hostname()
	if path, err := os.Executable(); err == nil {
		p.Program = filepath.Base(path)
	}
	groups := make([]*Group, len(sources))
	var reading sync.WaitGroup
	for i := range sources {
		reading.Go(func() { groups[i] = sources[i].read(p.Host, asks) })
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
func (s *Source) read(host string, asks Asks) *Group {
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
	if asks != None {
		var far []int
		for rank, near := range g.Near {
			if !near {
				far = append(far, rank)
			}
		}
		g.Others = append(g.Others, s.Peers.Ask(from.Epoch, far, asks == All)...)
	}
	g.Report = reportOf(s.Trace, from) // after the peers', who may take their time
	return g
}
