package plan

import (
	"fmt"
	"slices"
	"strings"
)

// Algorithm names how the ranks do a collective: who sends what to whom.
//
// The algorithm of a collective is that of its largest block. Some builders treat single blocks, or
// what a single pair exchanges, in another way where their lengths ask for it: see [Thresholds].
type Algorithm uint8

const (
	PointToPoint         Algorithm = iota // of Send and Recv, which have no other
	OneShot                               // each rank sends its input to all, and reduces for itself
	TwoShot                               // each rank reduces a slice, and then sends it to all
	Hierarchical                          // in levels, at each of which a rank has a part
	Direct                                // ranks work on each other's blocks in memory that all map
	Flat                                  // the root exchanges with each rank by itself
	BinomialTree                          // along a binomial tree
	ScatterAllGather                      // each rank gets a slice from the root, and sends it to all
	ReduceScatterGather                   // each rank reduces a slice, and sends it to the root
	Linear                                // each rank exchanges with all others at once
	Multicast                             // what goes to all is written once
	SingleCopy                            // the receiver copies blocks from the sender's memory
	Pairwise                              // each rank exchanges with a window of peers at a time
	Windowed                              // the root sends to each rank what that has asked for
	Dissemination                         // in rounds, each over twice the distance
	RecursiveMultiplying                  // in levels, in each of which a rank sends all that it has
	// Registered is as a program says, which a user has written. Those that a group has registered are
	// the numbers behind it.
	Registered
)

var algorithmNames = [...]string{"", "one_shot", "two_shot", "hierarchical", "direct", "flat",
	"binomial_tree", "scatter_allgather", "reduce_scatter_gather", "linear", "multicast",
	"single_copy", "pairwise", "windowed", "dissemination", "recursive_multiplying", "plan"}

// InLevels tells whether ranks exchange with few others at a time: see Params.Radices.
func (a Algorithm) InLevels() bool { return a == RecursiveMultiplying || a == Hierarchical }

// String is the name by which users know the algorithm, "" of PointToPoint.
func (a Algorithm) String() string {
	return algorithmNames[min(a, Registered)]
}

// method is how a collective is done by an algorithm.
type method struct {
	algorithm Algorithm
	build     func(*builder)
	// lacks tells what the algorithm needs and the parameters do not have, "" where that is nothing.
	// It looks at no block.
	lacks func(*Params) string
}

// methods is the table of algorithms: those of a collective in the order in which one stands in for
// another that cannot be had.
var methods = [...][]method{
	AllReduce: {
		{OneShot, (*builder).allReduce, nothing},
		{TwoShot, (*builder).allReduce, nothing},
		{RecursiveMultiplying, (*builder).allReduce, levels},
		{Hierarchical, (*builder).allReduce, levels},
		{BinomialTree, (*builder).allReduceTree, nothing},
		{Direct, (*builder).directAllReduce, mappedBlocks},
	},
	Reduce: {
		{Flat, (*builder).reduceFlat, nothing},
		{BinomialTree, (*builder).reduceTree, nothing},
		{ReduceScatterGather, (*builder).reduceScatterGather, nothing},
		{Direct, (*builder).directReduce, mappedBlocks},
	},
	Broadcast: {
		{Flat, (*builder).broadcastFlat, nothing},
		{BinomialTree, (*builder).broadcastTree, nothing},
		{ScatterAllGather, (*builder).broadcastSlices, threeRanks},
		{Hierarchical, (*builder).broadcastLevels, levels},
		{Multicast, (*builder).broadcastFlat, multicastMemory},
		{Direct, (*builder).directBroadcast, mappedBlocks},
	},
	AllGather: {
		{Linear, (*builder).allGather, nothing},
		{Multicast, (*builder).allGather, multicastMemory},
		{Hierarchical, (*builder).gatherLevels, levels},
		{Direct, (*builder).directAllGather, mappedBlocks},
	},
	ReduceScatter: {
		{Linear, (*builder).reduceScatter, nothing},
		{Hierarchical, (*builder).reduceScatterLevels, levels},
		{Direct, (*builder).directReduceScatter, mappedBlocks},
	},
	Gather: {
		{Flat, (*builder).gather, nothing},
		{BinomialTree, (*builder).gatherTree, nothing},
		{Direct, (*builder).directGather, mappedBlocks},
	},
	Scatter: {
		{Flat, (*builder).scatter, nothing},
		{BinomialTree, (*builder).scatterTree, nothing},
		{SingleCopy, (*builder).scatter, readableMemory},
		{Windowed, (*builder).scatterWindowed, ports},
		{Direct, (*builder).directScatter, mappedBlocks},
	},
	// Only the two ranks of a pair know what they exchange: the first three build alike.
	AllToAll: {
		{Linear, (*builder).allToAll, noWindow},
		{SingleCopy, (*builder).allToAll, readableMemoryAtOnce},
		{Pairwise, (*builder).allToAll, window},
		{Direct, (*builder).directAllToAll, mappedBlocksAtOnce},
	},
	Barrier: {{Dissemination, (*builder).barrier, nothing}},
	Send:    {{PointToPoint, (*builder).send, nothing}},
	Recv:    {{PointToPoint, (*builder).recv, nothing}},
}

func nothing(*Params) string { return "" }

func unless(has bool, what string) string {
	if has {
		return ""
	}
	return what
}

func threeRanks(p *Params) string { return unless(p.Size > 2, "more than two ranks") }

func multicastMemory(p *Params) string {
	return unless(p.Memory && p.Size > 2, "more than two ranks, all of which share memory")
}

func mappedBlocks(p *Params) string {
	return unless(p.Memory && p.Size > 1, "several ranks, all of which share memory")
}

func mappedBlocksAtOnce(p *Params) string {
	if p.Schedule.Window() > 0 {
		return "a schedule without a window"
	}
	return mappedBlocks(p)
}

func levels(p *Params) string {
	switch {
	case p.radicesFit():
		return ""
	case p.Size < 3:
		return "more than two ranks"
	}
	return fmt.Sprintf("several radices, all but the last powers of two with a product of less than "+
		"%d, the number of ranks, and the last what is left of that, rounded up; they are %v", p.Size,
		p.Radices)
}

func readableMemory(p *Params) string {
	return unless(p.Memory && p.GetMin > 0, "several ranks that can all read each other's memory")
}

func readableMemoryAtOnce(p *Params) string {
	if p.Schedule.Window() > 0 {
		return "a schedule without a window"
	}
	return readableMemory(p)
}

func ports(p *Params) string { return unless(!p.Memory, "ranks that do not all share memory") }

func noWindow(p *Params) string {
	return unless(p.Schedule.Window() == 0, "a schedule without a window")
}

func window(p *Params) string {
	switch {
	case p.Schedule == Parallel:
		return "a schedule other than parallel"
	case p.Schedule.Window() > 0:
		return ""
	}
	return unless(!p.Memory, "a schedule with a window, or ranks that do not all share memory")
}

// Algorithms are those of a collective, in the order in which one stands in for another.
func Algorithms(c Collective) []Algorithm {
	if int(c) >= len(methods) {
		return nil
	}
	all := make([]Algorithm, len(methods[c]))
	for i, m := range methods[c] {
		all[i] = m.algorithm
	}
	return all
}

// Collectives are those that have algorithms to choose from.
func Collectives() (all []Collective) {
	for c := AllReduce; c < Send; c++ {
		if len(Algorithms(c)) > 0 {
			all = append(all, c)
		}
	}
	return all
}

// CollectiveNames is a list of the names of Collectives.
func CollectiveNames() string {
	var names []string
	for _, c := range Collectives() {
		names = append(names, c.String())
	}
	return strings.Join(names, ", ")
}

// ParseCollective returns the one of Collectives that has a name.
func ParseCollective(name string) (c Collective, ok bool) {
	all := Collectives()
	i := slices.IndexFunc(all, func(c Collective) bool { return c.String() == name })
	if i < 0 {
		return c, false
	}
	return all[i], true
}

// Has tells whether a collective has an algorithm.
func (c Collective) Has(a Algorithm) bool { return slices.Contains(Algorithms(c), a) }

// method is how the parameters are to be planned. The error says why they cannot be.
func (p *Params) method() (*method, error) {
	if int(p.Collective) >= len(methods) || methods[p.Collective] == nil {
		return nil, fmt.Errorf("%v has no plan", p.Collective)
	}
	of := methods[p.Collective]
	i := slices.IndexFunc(of, func(m method) bool { return m.algorithm == p.Algorithm })
	if i < 0 {
		var names []string
		for _, m := range of {
			names = append(names, m.algorithm.String())
		}
		return nil, fmt.Errorf("%v has no algorithm %v; there are %s", p.Collective, p.Algorithm,
			strings.Join(names, ", "))
	}
	if lack := of[i].lacks(p); lack != "" {
		return nil, fmt.Errorf("%v by %v needs %s", p.Collective, p.Algorithm, lack)
	}
	return &of[i], nil
}

// CheckAlgorithm refuses an algorithm that cannot do the collective on this shape. It looks at no
// block.
func (p *Params) CheckAlgorithm() error {
	_, err := p.method()
	return err
}

// StandsIn tells whether an algorithm can run where some ranks try the direct plan and others
// cannot: in it each rank hears first from each, or of a star, the root from each and each from the
// root.
func (a Algorithm) StandsIn(c Collective) bool {
	if a.InLevels() || a == BinomialTree {
		return false
	}
	return c != Reduce || a == ReduceScatterGather
}
