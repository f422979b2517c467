package exporter

import (
	"cmp"
	"slices"

	"github.com/goccl/goccl/core/metrics"
	"github.com/goccl/goccl/core/plan"
	"github.com/goccl/goccl/core/trace"
)

var _ [metrics.Buckets]struct{} = [trace.Buckets]struct{}{}

// Of is what the communicators of a process have done. It takes no lock.
func Of(r *trace.Registry) metrics.Stats {
	sums := r.Counters()
	s := metrics.Stats{Rank: -1, Operations: operations(sums.Calls), Waits: waits(&sums),
		TransportBytes: map[string]uint64{}, TransportWaitSeconds: map[string]float64{},
		Failures: orNone(sums.Failures), SideSteps: orNone(sums.SideSteps),
		FailedOperations: sums.Others[trace.Failed], Refusals: sums.Others[trace.Refused],
		Recoveries: sums.Recoveries, StagedBytes: sums.Staged, Links: map[string]int{}}
	for via, n := range sums.Carried {
		s.TransportBytes[via.String()] = n
	}
	for via, d := range sums.WaitedBy {
		s.TransportWaitSeconds[via.String()] = d.Seconds()
	}
	for _, t := range r.All() {
		s.Records += t.Records()
		s.Groups++
		groups := t.Groups()
		if len(groups) == 0 {
			continue
		}
		g := &groups[len(groups)-1]
		if s.Rank < 0 {
			s.Rank = g.JobRank()
		}
		for peer := range g.Ranks {
			if peer != g.Rank {
				s.Links[t.Transport(peer).String()]++
			}
		}
	}
	return s
}

// operations puts those together that have one name, such as that of all registered programs.
func operations(calls []trace.CallCounter) []metrics.Operation {
	all := []metrics.Operation{}
	for i := range calls {
		c := &calls[i]
		o := metrics.Operation{Collective: "other", Algorithm: c.Algorithm.String()}
		if c.Collective <= plan.Custom {
			o.Collective = c.Collective.String()
		}
		k := slices.IndexFunc(all, func(a metrics.Operation) bool {
			return a.Collective == o.Collective && a.Algorithm == o.Algorithm
		})
		if k < 0 {
			k, all = len(all), append(all, o)
		}
		sum := &all[k]
		sum.Operations += c.Operations()
		sum.Bytes += c.Bytes
		sum.Seconds += c.Time.Seconds()
		for bucket, n := range c.Took {
			sum.Took[bucket] += n
		}
	}
	return all
}

// waits are the waits for each rank, the longest first.
func waits(sums *trace.Counters) []metrics.Wait {
	all := []metrics.Wait{}
	for p, d := range sums.WaitedFor {
		all = append(all, metrics.Wait{Group: p.Group, Rank: p.Rank, Seconds: d.Seconds()})
	}
	slices.SortFunc(all, func(a, b metrics.Wait) int {
		return cmp.Or(cmp.Compare(b.Seconds, a.Seconds), cmp.Compare(a.Group, b.Group),
			cmp.Compare(a.Rank, b.Rank))
	})
	return all
}

// orNone is an empty map for none, as JSON is to have it.
func orNone(numbers map[string]uint64) map[string]uint64 {
	if numbers == nil {
		return map[string]uint64{}
	}
	return numbers
}
