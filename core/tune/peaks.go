package tune

import (
	"slices"

	"github.com/goccl/goccl/core/call"
	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/plan"
)

// mostProved is the most ranks whose plans can be proved in a second.
const mostProved = 64

// AllToAllPeaks proves the plans of an all-to-all among so many ranks of a host of so many CPUs,
// joined by ports or by memory, in which each sends so many bytes to each. It returns the most that
// one rank may have under way at once.
func AllToAllPeaks(
	ranks, cpus int, ports bool, schedule string, bytes uint64,
) (most plan.Peaks, err error) {
	bad := func(format string, args ...any) (plan.Peaks, error) {
		return most, fault.Errorf(fault.ErrInvalidArgument, "alltoall_peaks: "+format, args...)
	}
	if ranks < 1 || ranks > mostProved {
		return bad("ranks is %d, allowed are 1 to %d", ranks, mostProved)
	}
	t := Topology{Size: ranks, Ports: ports, Memory: !ports, Sharing: 1,
		Oversubscribed: ranks > cpus}
	if !ports {
		t.Sharing = ranks
	}
	o := Options{Schedule: schedule, LongMost: SegmentBytes}
	if ports {
		o.Ports = slices.Repeat([]bool{true}, ranks)
	}
	s, err := New(t, 0, o)
	if err != nil {
		return bad("schedule is %v", err)
	}
	enough := 4 * int64(s.Slots) * s.Chunk // with more it only goes on in the same way
	least := s.Thresholds.WindowMin
	if s.Schedule == plan.BySize && least > 0 && bytes >= uint64(least) {
		enough = max(enough, least, 2*s.Thresholds.LongMax)
	}
	counts := slices.Repeat([]uint64{min(bytes, uint64(enough))}, ranks)
	op := call.Operation{Collective: plan.AllToAll, InCounts: counts, OutCounts: counts}
	plans, params := make([]*plan.Plan, ranks), make([]plan.Params, ranks)
	for s.Rank = range ranks {
		params[s.Rank] = s.Params(&op)
		if plans[s.Rank], err = plan.Build(params[s.Rank]); err != nil {
			return most, fault.From(err, fault.ErrInternal, "alltoall_peaks")
		}
	}
	peaks, err := plan.PeaksOf(plans, params)
	if err != nil {
		return most, fault.From(err, fault.ErrInternal, "alltoall_peaks")
	}
	for _, p := range peaks {
		most = plan.Peaks{Pairs: max(most.Pairs, p.Pairs), Incast: max(most.Incast, p.Incast),
			Sent: max(most.Sent, p.Sent), Received: max(most.Received, p.Received),
			Staging: max(most.Staging, p.Staging)}
	}
	return most, nil
}
