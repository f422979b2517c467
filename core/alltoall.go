package core

import (
	"slices"

	"github.com/goccl/goccl/core/call"
	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/plan"
	"github.com/goccl/goccl/core/transport"
)

// scheduleOf is the schedule of an operation; only alltoall has one.
func (s shape) scheduleOf(op *call.Operation) plan.Schedule {
	if op.Collective != plan.AllToAll {
		return 0
	}
	if op.Schedule != 0 {
		return op.Schedule
	}
	return s.schedule
}

// AllToAllPeaks proves the plans of an all-to-all among so many ranks of this host, joined by "shm", "tcp" or "verbs", in which each sends so many
// bytes to each, and returns the most that one of them may have under way at once.
func AllToAllPeaks(ranks int, by, schedule string, bytes uint64) (most plan.Peaks, err error) {
	bad := func(format string, args ...any) (plan.Peaks, error) {
		return most, fault.Errorf(fault.ErrInvalidArgument, "alltoall_peaks: "+format, args...)
	}
	const mostRanks = 64 // that can be proved in a second
	switch {
	case ranks < 1 || ranks > mostRanks:
		return bad("ranks is %d, allowed are 1 to %d", ranks, mostRanks)
	case by != transport.Shm && !transport.IsPort(by):
		return bad("transport is %q, allowed are %q, %q and %q", by, transport.Shm, transport.TCP, transport.Verbs)
	}
	ports := transport.IsPort(by)
	s := newShape(ranks, site{ports: ports, memory: !ports, crowded: ranks > usableCPUs()})
	if s.schedule, err = plan.ParseSchedule(schedule); err != nil {
		return bad("schedule is %v", err)
	}
	if ports {
		s.ports = slices.Repeat([]bool{true}, ranks)
	}
	enough := 4 * int64(s.slots) * s.chunk // with more it only goes on in the same way
	if least := s.thresholds.WindowMin; s.schedule == plan.BySize && least > 0 && bytes >= uint64(least) {
		enough = max(enough, least, 2*s.thresholds.longMax)
	}
	counts := make([]uint64, ranks)
	for i := range counts {
		counts[i] = min(bytes, uint64(enough))
	}
	op := call.Operation{Collective: plan.AllToAll, InCounts: counts, OutCounts: counts}
	plans, params := make([]*plan.Plan, ranks), make([]plan.Params, ranks)
	for r := range ranks {
		params[r] = s.params(&op, r, ranks)
		if plans[r], err = plan.Build(params[r]); err != nil {
			return most, fault.From(err, fault.ErrInternal, "alltoall_peaks")
		}
	}
	peaks, err := plan.PeaksOf(plans, params)
	if err != nil {
		return most, fault.From(err, fault.ErrInternal, "alltoall_peaks")
	}
	for _, p := range peaks {
		most = plan.Peaks{Pairs: max(most.Pairs, p.Pairs), Incast: max(most.Incast, p.Incast), Sent: max(most.Sent, p.Sent),
			Received: max(most.Received, p.Received), Staging: max(most.Staging, p.Staging)}
	}
	return most, nil
}
