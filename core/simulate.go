package core

import (
	"io"

	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/plan"
	"github.com/goccl/goccl/core/sim"
	"github.com/goccl/goccl/core/tune"
)

// Simulated names what is to be simulated.
type Simulated struct {
	tune.Question // need not say which transports there are
	Transport     string
	Net           string    // as sim.ParseNet reads it; "": a switch, as fast as links are for choices
	Trace, Goal   io.Writer // as in sim.Config
}

// Simulation is what a collective would take in a group that need not exist.
type Simulation struct {
	Algorithm string `json:"algorithm"`
	*sim.Result
}

// Simulate runs the plans of a collective in virtual time, as PlanInfo explains them. Where a
// program is given its plans run. Nothing is sent.
func (r *Runtime) Simulate(what Simulated) (*Simulation, error) {
	bad := func(err error) (*Simulation, error) {
		return nil, fault.From(err, fault.ErrInvalidArgument, "simulate")
	}
	g, err := r.simulated(&what)
	if err != nil {
		return nil, err
	}
	users := what.Program
	algorithm, build := g.Algorithm().String(), plan.Build
	if users != nil {
		algorithm = "plan:" + users.Name
		build = users.Planner().Plan
	}
	plans := func(rank int) ([]*plan.Plan, error) { return g.Plans(rank, build) }
	c := sim.Config{Hosts: g.Hosts, CPUs: g.CPUs, Slots: g.Slots(), Plans: plans, Ports: g.PortsOf,
		Costs: sim.CostsOf(g.Links, g.RDMA, g.Question.Ports), Trace: what.Trace, Goal: what.Goal}
	hosts := (g.Ranks + g.PerHost - 1) / g.PerHost
	if what.Net == "" {
		c.Net = sim.Star(hosts, c.Costs.Between.Gap)
	} else if c.Net, err = sim.ParseNet(what.Net, hosts); err != nil {
		return bad(err)
	}
	c.NICs = make([]int, g.Ranks)
	seen := make([]int, hosts)
	for rank, host := range g.Hosts {
		c.NICs[rank] = seen[host] % c.Net.NICs(host)
		seen[host]++
	}
	if users == nil { // the ranks are alike: do not build them all to find that they are too many
		n, err := messages(g)
		if err != nil {
			return nil, err
		}
		if n > sim.MostMessages {
			return nil, fault.Errorf(fault.ErrInvalidArgument, "simulate: the ranks send some %d "+
				"messages by %v, allowed are %d; an estimate (--estimate) does without them", n,
				g.Algorithm(), sim.MostMessages)
		}
	}
	result, err := sim.Run(&c)
	if err != nil {
		return bad(err)
	}
	return &Simulation{algorithm, result}, nil
}

// Estimation is what formulas say of a collective, which need no messages.
type Estimation struct {
	Algorithm string  `json:"algorithm"`
	Micros    float64 `json:"estimated_us"`
	Messages  int     `json:"message_count"` // of all ranks, about
}

// Estimate tells what the formulas by which algorithms are chosen say of a collective. They know no
// network but links of the speed of GOCCL_LINKS, one a host.
func (r *Runtime) Estimate(what Simulated) (*Estimation, error) {
	if what.Program != nil {
		return nil, fault.Errorf(fault.ErrInvalidArgument, "simulate: request: estimate is true, and "+
			"there is a program; formulas are for the library's own algorithms")
	}
	g, err := r.simulated(&what)
	if err != nil {
		return nil, err
	}
	n, err := messages(g)
	if err != nil {
		return nil, err
	}
	return &Estimation{g.Algorithm().String(), g.Estimate(), n}, nil
}

// simulated is the group that a request is of.
func (r *Runtime) simulated(what *Simulated) (*tune.Group, error) {
	if what.Program != nil {
		what.Ranks = what.Program.Ranks
	}
	o, err := r.imagine("simulate", &what.Question, what.Transport)
	if err != nil {
		return nil, err
	}
	return tune.NewGroup("simulate", what.Question, o)
}

// messages are about those of all ranks: as many of each as of rank 0.
func messages(g *tune.Group) (int, error) {
	e, err := g.Explain()
	if err != nil {
		return 0, err
	}
	return e.Messages * g.Ranks, nil
}
