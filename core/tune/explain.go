package tune

import (
	"slices"
	"strconv"

	"github.com/goccl/goccl/core/call"
	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/plan"
	"github.com/goccl/goccl/core/program"
	"github.com/goccl/goccl/core/reduce"
)

// mostExplained is the most ranks of a group whose plans are explained.
const mostExplained = 65536

// Question names a collective in a group that need not exist: of so many ranks, in order on hosts
// that have as many each, with CPUs each; of float32, of so many bytes in a rank's larger buffer.
type Question struct {
	Collective string
	Ranks      int
	Program    *program.Checked // that says the two, and runs; nil: an algorithm is chosen
	PerHost    int
	PerDomain  int  // in order in domains of a host's CPUs; 0: there are none
	ByTurns    bool // ranks are dealt out to the hosts one by one
	CPUs       int
	Ports      bool // ranks of a host share no memory, either
	RDMA       bool // joins hosts
	Bytes      uint64
}

// Explanation is how a rank goes about a collective.
type Explanation struct {
	Algorithm string `json:"algorithm"`
	// Direct tells that a plan without messages is tried first, where all blocks are shareable.
	Direct bool    `json:"direct"`
	Levels []Level `json:"levels,omitempty"`
	// Ordered tells that ranks go host by host and domain by domain, not by their numbers.
	Ordered bool `json:"ordered"`
	// Micros is what the algorithm is estimated to take; 0: it was not weighed against others.
	Micros float64 `json:"estimated_us,omitempty"`
	// Others are algorithms that were weighed, too.
	Others   []Estimate `json:"others,omitempty"`
	Plans    int        `json:"plans"`    // that follow one another
	Chunk    int64      `json:"chunk"`    // bytes of a message that goes through a slot, at most
	Peers    int        `json:"peers"`    // with which rank 0 exchanges messages
	Messages int        `json:"messages"` // that rank 0 sends
	Sent     int64      `json:"sent"`     // bytes in them
}

// Level is one of the levels of an algorithm.
type Level struct {
	Radix  int     `json:"radix"`
	Stride int     `json:"stride"`
	Far    bool    `json:"between_hosts"`
	Domain bool    `json:"within_domain"`
	Micros float64 `json:"estimated_us"`
}

// Estimate is what an algorithm is thought to take.
type Estimate struct {
	Algorithm string  `json:"algorithm"`
	Radices   []int   `json:"radices,omitempty"`
	Micros    float64 `json:"estimated_us"`
}

// Explain tells how the ranks of a group would go about a collective. Nothing is run.
func Explain(q Question, o Options) (*Explanation, error) {
	g, err := NewGroup("plan_info", q, o)
	if err != nil {
		return nil, err
	}
	return g.Explain()
}

// Group is a group that need not exist, with a collective: what its ranks would do.
type Group struct {
	Question
	Hosts []int // by rank, counted from 0
	Links Links

	shape     Shape // of rank 0
	operation *call.Operation
	segments  []Segment
	ports     []bool // what PortsOf has returned last, for this host; nil: nothing
	portsHost int
}

// NewGroup returns the group of a question, which a function of the C API has been asked.
func NewGroup(function string, q Question, o Options) (*Group, error) {
	op, err := q.operation(function)
	if err != nil {
		return nil, err
	}
	g := &Group{Question: q, Hosts: make([]int, q.Ranks), operation: op}
	places := make([]Place, q.Ranks)
	hosts := (q.Ranks + q.PerHost - 1) / q.PerHost
	for rank := range places {
		at, number := rank/q.PerHost, rank%q.PerHost
		if q.ByTurns {
			at, number = rank%hosts, rank/hosts
		}
		g.Hosts[rank] = at
		host := strconv.Itoa(at)
		places[rank] = Place{Host: host, CPUs: q.CPUs, Memory: host}
		if q.PerDomain > 0 {
			places[rank].Domain = number/q.PerDomain + 1
		}
		if q.Ports {
			places[rank].Memory = ""
		}
		if q.RDMA {
			places[rank].Fabric = "ports"
		}
	}
	o.Reads, o.Ports = CheapReads, g.PortsOf(0)
	if g.shape, err = New(Survey(places), 0, o); err != nil {
		return nil, fault.Errorf(fault.ErrInvalidArgument, "%s: %v", function, err)
	}
	if err := g.shape.CheckAlgorithms(); err != nil {
		return nil, fault.Errorf(fault.ErrInvalidArgument, "%s: %v", function, err)
	}
	g.Links, g.segments = g.shape.links, g.shape.Segments(op, q.Program)
	return g, nil
}

// Explain tells how the ranks would go about the collective.
func (g *Group) Explain() (*Explanation, error) {
	return g.shape.explain(g.operation, g.turns())
}

// Estimate returns what formulas say that the collective takes, in microseconds: each host has one
// link to all others, as fast as the group's.
func (g *Group) Estimate() float64 {
	s, a := g.shape.placed(g.operation.Collective), g.Algorithm()
	cost := int64(0)
	switch {
	case s.Size == 1:
	case a == plan.Dissemination:
		cost = s.treeCost(0, 0, false) // it has as many rounds as the tree has hops
	default:
		cost = s.cost(g.operation, a)
	}
	return microsOf(times(cost, g.turns()))
}

// turns are those that ranks have on a CPU, before each has had one.
func (g *Group) turns() int64 {
	if g.shape.Oversubscribed {
		return int64((g.PerHost + g.CPUs - 1) / g.CPUs)
	}
	return 1
}

// PortsOf returns to whom ports join a rank. Ranks of a host that follow one another may have the
// same slice.
func (g *Group) PortsOf(rank int) []bool {
	own := g.Hosts[rank]
	if g.ports != nil && g.portsHost == own && !g.Ports {
		return g.ports
	}
	g.ports, g.portsHost = make([]bool, len(g.Hosts)), own
	for peer, host := range g.Hosts {
		g.ports[peer] = peer != rank && (g.Ports || host != own)
	}
	return g.ports
}

// Algorithm is that of the collective.
func (g *Group) Algorithm() plan.Algorithm { return g.segments[0].Params.Algorithm }

// Slots are those of a direction of a channel.
func (g *Group) Slots() int { return g.shape.Slots }

// Plans returns what a rank runs, one plan after the other, as a function makes them of parameters.
func (g *Group) Plans(
	rank int, build func(plan.Params) (*plan.Plan, error),
) ([]*plan.Plan, error) {
	var plans []*plan.Plan
	for _, segment := range g.segments {
		p := segment.Params
		p.Rank = rank
		if p.Ports != nil {
			p.Ports = g.PortsOf(rank)
		}
		built, err := build(p)
		if err != nil {
			return nil, err
		}
		plans = append(plans, built)
	}
	return plans, nil
}

// operation is that of the question.
func (q *Question) operation(function string) (*call.Operation, error) {
	bad := func(format string, args ...any) (*call.Operation, error) {
		return nil, fault.Errorf(fault.ErrInvalidArgument, function+": "+format, args...)
	}
	if q.Program != nil {
		q.Collective, q.Ranks = q.Program.Collective.String(), q.Program.Ranks
	}
	c, ok := plan.ParseCollective(q.Collective)
	switch {
	case !ok && q.Program == nil:
		return bad("collective is %q, allowed are %s", q.Collective, plan.CollectiveNames())
	case q.Ranks < 1 || q.Ranks > mostExplained:
		return bad("ranks is %d, allowed are 1 to %d", q.Ranks, mostExplained)
	case q.PerHost < 1 || q.PerHost > q.Ranks:
		return bad("ranks_per_host is %d, allowed are 1 to %d, the number of ranks", q.PerHost, q.Ranks)
	case q.PerDomain < 0 || q.PerDomain > q.PerHost:
		return bad("ranks_per_domain is %d, allowed are 0 to %d, those of a host", q.PerDomain, q.PerHost)
	case q.CPUs < 1 || q.CPUs > mostExplained:
		return bad("cpus is %d, allowed are 1 to %d", q.CPUs, mostExplained)
	case q.Bytes > 1<<40:
		return bad("bytes is %d, allowed are 0 to %d", q.Bytes, 1<<40)
	}
	op := &call.Operation{DType: reduce.Float32}
	size := uint64(op.DType.Size())
	if p := q.Program; p != nil {
		op.Collective, op.Root = p.Collective, p.Root
		op.InCounts, op.OutCounts = p.Counts(int64((q.Bytes + size - 1) / size))
		return op, nil
	}
	op.Collective = c
	one, each := []uint64{(q.Bytes + size - 1) / size}, make([]uint64, q.Ranks)
	for rank := range each {
		each[rank] = (one[0] + uint64(q.Ranks) - 1) / uint64(q.Ranks)
	}
	switch op.Collective {
	case plan.AllGather, plan.Gather:
		op.InCounts, op.OutCounts = each[:1], each
	case plan.ReduceScatter, plan.Scatter:
		op.InCounts, op.OutCounts = each, each[:1]
	case plan.AllToAll:
		op.InCounts, op.OutCounts = each, each
	case plan.Barrier:
	default:
		op.InCounts, op.OutCounts = one, one
	}
	return op, nil
}

// explain is what rank 0 of the shape does.
func (s *Shape) explain(op *call.Operation, turns int64) (*Explanation, error) {
	segments := s.Segments(op, nil)
	p := segments[0].Params
	e := &Explanation{Algorithm: p.Algorithm.String(), Ordered: p.Order != nil,
		Plans: len(segments), Chunk: p.Chunk}
	_, e.Direct = s.Direct(op, segments)
	var peers []int
	last := len(segments) - 1
	for i, segment := range segments {
		times := 1
		if i == 0 {
			times = max(last, 1) // all but the last are alike
		} else if i < last {
			continue
		}
		built, err := plan.Build(segment.Params)
		if err != nil {
			return nil, fault.From(err, fault.ErrInternal, "plan_info")
		}
		for k := range built.Steps {
			switch step := &built.Steps[k]; step.Op {
			case plan.Put, plan.Offer, plan.PutToAll:
				e.Messages, e.Sent = e.Messages+times, e.Sent+int64(times)*step.Bytes
			}
		}
		senders, receivers := built.Peers()
		peers = slices.Concat(peers, senders, receivers)
	}
	slices.Sort(peers)
	e.Peers = len(slices.Compact(peers))
	s.explainChoice(op, &p, e, turns)
	return e, nil
}

// explainChoice tells of the levels, of the estimate, and of what else was weighed. Estimates are
// of one turn.
func (s *Shape) explainChoice(op *call.Operation, p *plan.Params, e *Explanation, turns int64) {
	s = s.placed(op.Collective)
	micros := func(picoseconds int64) float64 { return microsOf(times(picoseconds, turns)) }
	if p.Algorithm.InLevels() {
		stride, cost := 1, s.levelCosts(p.Algorithm, s.load(op))
		for _, radix := range p.Radices {
			block := stride * radix
			e.Levels = append(e.Levels, Level{Radix: radix, Stride: stride,
				Far:    s.MultiHost && block > max(s.Group, 1),
				Domain: block <= s.Domain, Micros: micros(cost(stride, radix))})
			stride *= radix
		}
	}
	all := s.estimates(op, s.byThresholds(op))
	if len(all) < 2 {
		return
	}
	for _, other := range all {
		if other.algorithm == p.Algorithm {
			e.Micros = micros(other.cost)
			continue
		}
		e.Others = append(e.Others, Estimate{other.algorithm.String(), s.radices(op, other.algorithm),
			micros(other.cost)})
	}
}

// microsOf are the microseconds of picoseconds, to the nanosecond.
func microsOf(picoseconds int64) float64 { return float64(picoseconds/1000) / 1000 }
