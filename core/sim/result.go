package sim

import (
	"cmp"
	"slices"
	"sort"
)

// Cause is what time of the critical path went by on.
type Cause uint8

const (
	Overhead Cause = iota // of CPUs, for each message
	Copying               // of CPUs, for each byte
	Reducing
	Wire     // bytes on links of the network, and its switches
	Queue    // behind other messages on links
	Latency  // from end to end
	Slots    // until the sender knows that a slot is free
	Turns    // until a CPU is free
	Messages // waits have it; a path has what the message went through
	causes
)

var causeNames = [...]string{"overhead", "copying", "reducing", "wire", "queue", "latency", "slots",
	"turns", "messages"}

func (c Cause) String() string { return causeNames[c] }

// class is what a message goes through.
type class uint8

const (
	memory class = iota
	loopback
	network
	classes
)

var classNames = [...]string{"memory", "loopback", "network"}

func (s *simulation) class(a, b int32) class {
	switch {
	case s.far(a, b):
		return network
	case s.Costs.Loopback:
		return loopback
	}
	return memory
}

// Count is how many messages went through something, and their bytes.
type Count struct {
	Class    string `json:"class"`
	Messages int64  `json:"messages"`
	Bytes    int64  `json:"bytes"`
}

// Result is what a simulation has found. Times are in microseconds.
type Result struct {
	// Last, Median and First are when ranks ended.
	Last   float64 `json:"last_us"`
	Median float64 `json:"median_us"`
	First  float64 `json:"first_us"`
	Counts []Count `json:"messages"`
	// Links are the busiest of the network, at most eight.
	Links []Load `json:"links"`
	// Path is the critical path: what the time of the rank that ended last went by on, from the
	// beginning on, at all ranks that it waited for in turn. The sum is Last.
	Path []Share `json:"critical_path"`
	Hops int     `json:"critical_path_ranks"` // between which the path changes so often
	// Traced is of how many ranks the trace tells.
	Traced int `json:"traced_ranks,omitempty"`
}

// Load is what a link has carried.
type Load struct {
	Name  string  `json:"link"`
	Bytes int64   `json:"bytes"`
	Busy  float64 `json:"busy"` // of the whole time
}

// Share is what a cause has of the critical path.
type Share struct {
	Cause  string  `json:"cause"`
	Micros float64 `json:"us"`
}

// micros are those of picoseconds, to the nanosecond.
func micros(ps int64) float64 { return float64((ps+500)/1000) / 1000 }

// result tells what has happened.
func (s *simulation) result() *Result {
	ends := make([]int64, len(s.ranks))
	last := 0
	for r := range s.ranks {
		if ends[r] = s.ranks[r].now; ends[r] > ends[last] {
			last = r
		}
	}
	total := ends[last]
	found := &Result{Last: micros(total), Links: s.busiest(total)}
	var path [causes]int64
	path, found.Hops = s.criticalPath(int32(last))
	slices.Sort(ends)
	found.First, found.Median = micros(ends[0]), micros(ends[len(ends)/2])
	for i, c := range s.counts {
		if c.Messages > 0 {
			c.Class = classNames[i]
			found.Counts = append(found.Counts, c)
		}
	}
	for c, ps := range path {
		if ps > 0 {
			found.Path = append(found.Path, Share{Cause(c).String(), micros(ps)})
		}
	}
	slices.SortStableFunc(found.Path, func(a, b Share) int { return cmp.Compare(b.Micros, a.Micros) })
	return found
}

// busiest are the links that were busy for the longest part of a time.
func (s *simulation) busiest(total int64) []Load {
	var loads []Load
	if s.Net == nil || total == 0 {
		return loads
	}
	busy := make([]int, 0, len(s.Net.links))
	for i := range s.Net.links {
		if l := &s.Net.links[i]; l.bytes > 0 && l.gap > 0 {
			busy = append(busy, i)
		}
	}
	takes := func(i int) int64 { return s.Net.links[i].bytes * s.Net.links[i].gap }
	slices.SortStableFunc(busy, func(a, b int) int { return cmp.Compare(takes(b), takes(a)) })
	for _, i := range busy[:min(8, len(busy))] {
		l := &s.Net.links[i]
		loads = append(loads, Load{l.name, l.bytes, float64(1000*takes(i)/total) / 1000})
	}
	return loads
}

// criticalPath sums what the time of a rank went by on. It goes back from the end of the rank: to
// its last wait, from there to the step of the rank that it waited for, and so on.
func (s *simulation) criticalPath(r int32) (path [causes]int64, hops int) {
	k := &s.ranks[r]
	end, at := int32(len(k.steps)), len(k.waits)-1 // steps before end are on the path
	for {
		from := int32(0)
		if at >= 0 {
			from = k.waits[at].step
		}
		for i := from; i < end; i++ {
			w := s.cost(r, &k.steps[i])
			path[Overhead] += w.overhead
			path[Copying] += w.copying
			path[Reducing] += w.reducing
		}
		if at < 0 {
			return path, hops
		}
		w := &k.waits[at]
		switch w.on {
		case Turns:
			path[Turns] += w.until - w.from
			end, at = from, at-1
			continue
		case Slots:
			path[Slots] += w.until - w.sent
		default:
			path[Wire] += w.crossing.wire
			path[Queue] += w.crossing.queued
			path[Latency] += w.until - w.sent - w.crossing.wire - w.crossing.queued
		}
		r, end = w.peer, w.peerStep+1
		if w.on == Slots {
			end = w.peerStep // a release costs nothing
		}
		k = &s.ranks[r]
		at = sort.Search(len(k.waits), func(i int) bool { return k.waits[i].step >= end }) - 1
		hops++
	}
}
