package trace

// #include "trace.h"
import "C"

import (
	"maps"
	"slices"
	"sync/atomic"
	"time"
)

// groupsKept is of how many epochs a trace knows the ranks.
const groupsKept = 8

// life is what a communicator has come through. It does not change: the next one takes its place.
type life struct {
	groups []Group     // of the last epochs, the present one last
	via    []Transport // what joins this rank to each peer, in the present epoch
	base   []uint64    // ns waited for each peer before the present epoch
	// told are ns, for each peer, that have been told of the present epoch. What is told next is no
	// less: a wait that ends is counted a moment after it is under way no more.
	told []atomic.Uint64
	// Waits of epochs that are over: by what joined this rank to the peer, and by the peer's number in
	// the job.
	waitedBy   map[Transport]time.Duration
	waitedFor  map[int]time.Duration
	failures   map[string]uint64 // by kind
	broken     bool              // the present epoch has failed
	recoveries uint64
	sideSteps  map[string]uint64 // by library
}

// change puts a changed copy in the place of the life.
func (t *Trace) change(by func(*life)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	next := *t.life.Load()
	by(&next)
	t.life.Store(&next)
}

// Enter tells of the group of the epoch that begins. Via tells what joins this rank to each. It is
// called while nobody writes. Where the last epoch has failed, the communicator has recovered.
func (t *Trace) Enter(g Group, via []Transport) {
	t.c.group, t.c.epoch = C.uint64_t(g.ID), C.uint32_t(g.Epoch)
	for peer := range min(len(via), len(t.c.transports)) {
		t.c.transports[peer] = C.uint8_t(via[peer])
	}
	t.SetUnfed(0)
	labels.set(uint16(t.c.id), label{g.Name, g.Rank})
	t.change(func(l *life) {
		l.waitedBy, l.waitedFor = l.waits(t)
		l.base = make([]uint64, min(len(via), len(g.Ranks), C.GOCCL_TRACE_PEERS))
		for peer := range l.base {
			l.base[peer] = t.waited(peer)
		}
		l.told = make([]atomic.Uint64, len(l.base))
		l.groups = append(slices.Clone(l.groups[max(0, len(l.groups)-groupsKept+1):]), g)
		l.via = slices.Clone(via)
		if l.broken {
			l.broken, l.recoveries = false, l.recoveries+1
		}
	})
}

// Fail tells why the present epoch can be used no more. Kind is that of its failure; "" where it
// ends in good order.
func (t *Trace) Fail(kind, why string) {
	t.change(func(l *life) {
		l.groups = slices.Clone(l.groups)
		if n := len(l.groups); n > 0 {
			l.groups[n-1].Failed = why
		}
		if kind != "" {
			l.broken, l.failures = true, counted(l.failures, kind)
		}
	})
}

// SideStepped counts a collective that was side-stepped to a library.
func (t *Trace) SideStepped(to string) {
	t.change(func(l *life) { l.sideSteps = counted(l.sideSteps, to) })
}

// counted is a copy of numbers with one more of a name.
func counted(numbers map[string]uint64, name string) map[string]uint64 {
	more := maps.Clone(numbers)
	if more == nil {
		more = map[string]uint64{}
	}
	more[name]++
	return more
}

// Groups are those of the last epochs, the present one last.
func (t *Trace) Groups() []Group { return t.life.Load().groups }

// waited is for how many ns this rank has waited for the peer of a number, in all epochs.
func (t *Trace) waited(peer int) uint64 {
	waits := &t.c.counters[C.GOCCL_COUNTS_COLLECTIVES].waits
	return atomic.LoadUint64((*uint64)(&waits[peer]))
}

// waits are all up to now, with the one that is under way.
func (l *life) waits(t *Trace) (by map[Transport]time.Duration, for_ map[int]time.Duration) {
	by, for_ = map[Transport]time.Duration{}, map[int]time.Duration{}
	maps.Copy(by, l.waitedBy)
	maps.Copy(for_, l.waitedFor)
	var waiting C.int32_t
	now := make([]uint64, len(l.base))
	for peer, before := range l.base {
		now[peer] = t.waited(peer) - before
	}
	// After those that have ended: it would be counted twice else.
	since := uint64(C.goccl_trace_waiting(t.c, &waiting))
	for peer, ns := range now {
		if peer == int(waiting) {
			ns += since
		}
		if d := time.Duration(raise(&l.told[peer], ns)); d > 0 {
			by[l.via[peer]] += d
			for_[l.groups[len(l.groups)-1].Ranks[peer]] += d
		}
	}
	return by, for_
}

// raise makes a number at least so large, and returns it.
func raise(n *atomic.Uint64, least uint64) uint64 {
	for {
		was := n.Load()
		if was >= least || n.CompareAndSwap(was, least) {
			return max(was, least)
		}
	}
}
