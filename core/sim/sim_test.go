package sim

import (
	"math"
	"testing"

	"github.com/goccl/goccl/core/plan"
	"github.com/goccl/goccl/core/tune"
)

// group simulates a collective of a group.
func group(t testing.TB, q tune.Question, net string, algorithms string) (*simulation, *Result) {
	t.Helper()
	return groupWith(t, q, net, algorithms, func(*Config) {})
}

// groupWith does so with what a function changes.
func groupWith(t testing.TB, q tune.Question, net string, algorithms string, change func(*Config)) (
	*simulation, *Result,
) {
	t.Helper()
	c := config(t, q, net, algorithms)
	change(c)
	s, err := newSimulation(c)
	if err != nil {
		t.Fatal(err)
	}
	r, err := s.run()
	if err != nil {
		t.Fatal(err)
	}
	return s, r
}

// config is what simulates a collective of a group.
func config(t testing.TB, q tune.Question, net string, algorithms string) *Config {
	t.Helper()
	g, err := tune.NewGroup("simulate", q, tune.Options{Algorithms: algorithms})
	if err != nil {
		t.Fatal(err)
	}
	plans := func(rank int) ([]*plan.Plan, error) { return g.Plans(rank, plan.Build) }
	c := &Config{Hosts: g.Hosts, CPUs: q.CPUs, Slots: g.Slots(), Plans: plans,
		Costs: CostsOf(g.Links, q.RDMA, q.Ports)}
	if q.PerHost < q.Ranks {
		if c.Net, err = ParseNet(net, (q.Ranks+q.PerHost-1)/q.PerHost); err != nil {
			t.Fatal(err)
		}
		c.Ports = g.PortsOf
	}
	return c
}

// The time of a broadcast between two hosts is a closed formula: what the root's CPU does, the
// link, the latency, what the receiver's CPU does.
func TestBroadcastBetweenTwoHosts(t *testing.T) {
	const bytes = 1 << 10
	q := tune.Question{Collective: "broadcast", Ranks: 2, PerHost: 1, CPUs: 1, Bytes: bytes}
	s, r := group(t, q, "star:1g", "broadcast:flat")
	k, c := s.Costs.Between, s.Costs.Links
	cpu := k.Overhead + bytes*c.Loopback.Gap/2
	copied := int64(bytes * c.Memory.Gap / 2) // a message as short as this goes through a slot
	data := cpu + bytes*8000 + k.Latency + cpu + copied
	if want := micros(data); r.Last != want {
		t.Errorf("it took %v us, want %v", r.Last, want)
	}
}

// The shares of the critical path are the whole time, whatever it is made of.
func TestCriticalPathIsWhole(t *testing.T) {
	for _, q := range []tune.Question{
		{Collective: "allreduce", Ranks: 16, PerHost: 4, CPUs: 4, Bytes: 1 << 20},
		{Collective: "allreduce", Ranks: 16, PerHost: 8, CPUs: 3, Bytes: 1 << 20},
		{Collective: "alltoall", Ranks: 12, PerHost: 12, CPUs: 2, Bytes: 1 << 20},
		{Collective: "alltoall", Ranks: 12, PerHost: 12, CPUs: 12, Bytes: 64 << 20},
		{Collective: "allgather", Ranks: 9, PerHost: 2, CPUs: 1, Bytes: 9 << 20},
		{Collective: "broadcast", Ranks: 33, PerHost: 4, CPUs: 4, Bytes: 4 << 20, RDMA: true},
		{Collective: "reduce", Ranks: 7, PerHost: 7, CPUs: 7, Bytes: 1 << 20, Ports: true},
		{Collective: "barrier", Ranks: 64, PerHost: 8, CPUs: 2},
	} {
		_, r := group(t, q, "fat-tree:25g,leaf=2,taper=2", "")
		sum := 0.0
		for _, p := range r.Path {
			sum += p.Micros
		}
		if math.Abs(sum-r.Last) > 0.02 || r.Last <= 0 {
			t.Errorf("%+v: the path has %v us, the whole %v: %+v", q, sum, r.Last, r.Path)
		}
	}
}

func TestDeterministic(t *testing.T) {
	q := tune.Question{Collective: "alltoall", Ranks: 24, PerHost: 8, CPUs: 4, Bytes: 1 << 20}
	_, a := group(t, q, "fat-tree:25g,leaf=1,taper=1", "")
	_, b := group(t, q, "fat-tree:25g,leaf=1,taper=1", "")
	if a.Last != b.Last || a.Median != b.Median || a.First != b.First {
		t.Errorf("%+v, then %+v", a, b)
	}
}

// What goes between hosts is counted there, and by the links.
func TestCounts(t *testing.T) {
	q := tune.Question{Collective: "allgather", Ranks: 4, PerHost: 1, CPUs: 1, Bytes: 4 << 20}
	_, r := group(t, q, "star:10g", "allgather:linear")
	if len(r.Counts) != 1 || r.Counts[0].Class != "network" || r.Counts[0].Bytes != 12<<20 {
		t.Errorf("%+v, want 12 MiB by the network", r.Counts)
	}
	for _, l := range r.Links {
		if l.Bytes != 3<<20 {
			t.Errorf("%+v, want 3 MiB of each link", l)
		}
	}
	if least := micros(3 << 20 * 800); r.Last < least || r.Last > 1.5*least {
		t.Errorf("%v us, want a little more than %v, which the links take", r.Last, least)
	}
}

// 16,384 ranks can be simulated: see BenchmarkSimulate for longer messages.
func TestManyRanks(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes seconds")
	}
	_, r := group(t, tune.Question{Collective: "allreduce", Ranks: 16384, PerHost: 64, CPUs: 64,
		Bytes: 4}, "fat-tree:25g", "")
	messages := int64(0)
	for _, c := range r.Counts {
		messages += c.Messages
	}
	// In seven levels of four each rank sends to three others.
	if messages != 16384*7*3 || r.Hops < 7 || r.Last > 1000 {
		t.Errorf("%d messages, %v us, over %d ranks", messages, r.Last, r.Hops)
	}
}

func BenchmarkSimulate(b *testing.B) {
	for name, bytes := range map[string]uint64{"4B": 4, "64K": 64 << 10, "1M": 1 << 20} {
		b.Run(name, func(b *testing.B) {
			for range b.N {
				_, r := group(b, tune.Question{Collective: "allreduce", Ranks: 16384, PerHost: 64, CPUs: 64,
					Bytes: bytes}, "fat-tree:25g", "")
				b.ReportMetric(r.Last, "virtual-us")
			}
		})
	}
}
