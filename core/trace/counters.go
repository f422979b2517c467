package trace

// #include "trace.h"
import "C"

import (
	"cmp"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/goccl/goccl/core/plan"
)

// Buckets is by how many lengths calls are counted: see Bucket.
const Buckets = C.GOCCL_TRACE_BUCKETS

// Bucket is the longest duration of those that a bucket counts. The last one has no longest.
func Bucket(i int) time.Duration { return time.Microsecond << (2 * i) }

// Counters are what communicators have done. Each number only grows.
type Counters struct {
	Calls      []CallCounter               // in the order of their collectives and algorithms
	Others     map[State]uint64            // calls that have failed, or were refused or side-stepped
	Carried    map[Transport]uint64        // bytes to peers, and read from their memory
	WaitedBy   map[Transport]time.Duration // in slow waits, by what joins this rank to the peer
	WaitedFor  map[Peer]time.Duration      // the same, by the peer
	Failures   map[string]uint64           // of epochs, by kind
	Recoveries uint64                      // epochs that have followed such a failure
	SideSteps  map[string]uint64           // by the library
	Staged     uint64                      // bytes: see Trace.Staged
}

// CallCounter counts the calls of a collective that one algorithm has done.
type CallCounter struct {
	Collective plan.Collective // of those without a plan, it is plan.Custom + 1 or more
	Algorithm  plan.Algorithm
	Took       [Buckets]uint64 // calls, by how long they took; together they are all
	Bytes      uint64
	Time       time.Duration // from begun to ended
}

// Operations is how many calls they are.
func (c *CallCounter) Operations() (n uint64) {
	for _, some := range c.Took {
		n += some
	}
	return n
}

// Peer is a rank that was waited for.
type Peer struct {
	Group string
	Rank  int // in the job
}

// Counters returns the sums so far.
func (t *Trace) Counters() Counters {
	sums := Counters{Others: map[State]uint64{}, Carried: map[Transport]uint64{}}
	for kind := range C.GOCCL_TRACE_KINDS {
		for by := range C.GOCCL_TRACE_ALGORITHMS {
			if n := t.calls(kind, by); n.Operations() > 0 {
				sums.Calls = append(sums.Calls, n)
			}
		}
	}
	for i := range t.c.counters {
		c := &t.c.counters[i]
		for s := range c.others {
			if n := load(&c.others[s]); n > 0 {
				sums.Others[State(s)] += n
			}
		}
		for via := range c.carried {
			if n := load(&c.carried[via]); n > 0 {
				sums.Carried[Transport(via)] += n
			}
		}
	}
	t.readLife(&sums)
	return sums
}

func load(p *C.uint64_t) uint64 { return atomic.LoadUint64((*uint64)(p)) }

func (t *Trace) calls(kind, by int) CallCounter {
	n := CallCounter{Collective: plan.Collective(kind), Algorithm: plan.Algorithm(by)}
	ticks := uint64(0)
	for i := range t.c.counters {
		c := &t.c.counters[i].calls[kind][by]
		n.Bytes += load(&c.bytes)
		ticks += load(&c.ticks)
		for k := range c.took {
			n.Took[k] += load(&c.took[k])
		}
	}
	n.Time = t.took(ticks)
	return n
}

// readLife adds what the life has counted.
func (t *Trace) readLife(sums *Counters) {
	l := t.life.Load()
	by, of := l.waits(t)
	for now := t.life.Load(); now != l; now = t.life.Load() { // the waits may be another epoch's
		l = now
		by, of = l.waits(t)
	}
	name := ""
	if n := len(l.groups); n > 0 {
		name = l.groups[n-1].Name
	}
	sums.WaitedBy, sums.WaitedFor = by, map[Peer]time.Duration{}
	for rank, d := range of {
		sums.WaitedFor[Peer{name, rank}] = d
	}
	sums.Failures, sums.SideSteps, sums.Recoveries = l.failures, l.sideSteps, l.recoveries
	sums.Staged = t.staged.Load()
}

// plus is the sum of two, of which the other's waits are those of a group's ranks.
func (c Counters) plus(o Counters, group string) Counters {
	c.Calls = slices.Clone(c.Calls)
	for i := range o.Calls {
		c.Calls = withCalls(c.Calls, &o.Calls[i])
	}
	waited := map[Peer]time.Duration{}
	for p, d := range o.WaitedFor {
		waited[Peer{group, p.Rank}] += d
	}
	c.WaitedFor, c.WaitedBy = sum(c.WaitedFor, waited), sum(c.WaitedBy, o.WaitedBy)
	c.Others, c.Carried = sum(c.Others, o.Others), sum(c.Carried, o.Carried)
	c.Failures, c.SideSteps = sum(c.Failures, o.Failures), sum(c.SideSteps, o.SideSteps)
	c.Recoveries, c.Staged = c.Recoveries+o.Recoveries, c.Staged+o.Staged
	return c
}

// withCalls adds calls in their place.
func withCalls(all []CallCounter, n *CallCounter) []CallCounter {
	i, found := slices.BinarySearchFunc(all, n, func(a CallCounter, b *CallCounter) int {
		return cmp.Or(cmp.Compare(a.Collective, b.Collective), cmp.Compare(a.Algorithm, b.Algorithm))
	})
	if !found {
		return slices.Insert(all, i, *n)
	}
	sum := &all[i]
	sum.Bytes, sum.Time = sum.Bytes+n.Bytes, sum.Time+n.Time
	for k := range n.Took {
		sum.Took[k] += n.Took[k]
	}
	return all
}

func sum[K comparable, N uint64 | time.Duration](a, b map[K]N) map[K]N {
	all := make(map[K]N, len(a)+len(b))
	maps.Copy(all, a)
	for k, n := range b {
		all[k] += n
	}
	return all
}

// bucketOf is which of Took counts so many ticks.
func bucketOf(t *Trace, ticks uint64) uint {
	return uint(C.goccl_trace_bucket(t.c, C.uint64_t(ticks)))
}
