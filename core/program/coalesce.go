package program

import (
	"slices"

	"github.com/goccl/goccl/core/plan"
)

// coalesce joins runs to runs of so many chunks at most: one joins an earlier one that it goes on
// with if nothing between them conflicts, so that what the program says chunk by chunk goes as one
// message.
func (c *Checked) coalesce(most int32) []run {
	j := joiner{Checked: c, read: make([]int32, c.Ranks*c.each()),
		written: make([]int32, c.Ranks*c.each()), ends: make([]int32, c.Ranks*c.each()+1)}
	for i := range j.read {
		j.read[i], j.written[i] = -1, -1
	}
	for i := range j.ends {
		j.ends[i] = -1
	}
	for i := range c.runs {
		r := &c.runs[i]
		for done := int32(0); done < r.count; done += most {
			part := run{r.move, slices.Clone(r.to), slices.Clone(r.from), min(most, r.count-done), r.value,
				r.operands}
			for k := range part.to {
				part.to[k] += done
			}
			for k := range part.from {
				part.from[k] += done
			}
			if c.Collective != plan.Custom {
				part.chunk += done
			}
			j.add(part, most)
		}
	}
	return j.runs
}

// joiner joins runs.
type joiner struct {
	*Checked
	runs          []run
	read, written []int32 // by place: the last run that did
	ends          []int32 // by place: the last run whose first destination ends just before it
	before        []int32 // by run: the run that was in ends before it
}

// mostTried is how many runs are tried that one may join.
const mostTried = 8

// add adds a run, or joins it to an earlier one.
func (j *joiner) add(r run, most int32) {
	at, tried := j.ends[r.to[0]], 0
	for at >= 0 && tried < mostTried && !j.joins(&j.runs[at], at, &r, most) {
		at = j.before[at]
		tried++
	}
	if at >= 0 && tried < mostTried {
		j.runs[at].count += r.count
	} else {
		at = int32(len(j.runs))
		j.runs, j.before = append(j.runs, r), append(j.before, -1)
	}
	for i := range r.count {
		for _, n := range r.from {
			j.read[n+i] = max(j.read[n+i], at)
		}
		for _, n := range r.to {
			j.written[n+i] = max(j.written[n+i], at)
		}
	}
	if end := r.to[0] + r.count; j.ends[end] != at {
		j.before[at], j.ends[end] = j.ends[end], at
	}
}

// joins reports whether a run may join an earlier one, with a number.
func (j *joiner) joins(to *run, number int32, r *run, most int32) bool {
	c := checker{Program: &j.Program}
	if to.count+r.count > most || !goesOn(to.to, r.to, to.count) ||
		!goesOn(to.from, r.from, to.count) || !c.alike(to, r.value, r.operands) {
		return false
	}
	for i := range r.count {
		for _, n := range r.from {
			if j.written[n+i] >= number {
				return false
			}
		}
		for _, n := range r.to {
			if j.written[n+i] >= number || j.read[n+i] >= number {
				return false
			}
		}
	}
	// Places of one kind of memory go on into the next one's.
	for _, places := range [2][2][]int32{{to.to, r.to}, {to.from, r.from}} {
		for i, n := range places[0] {
			a, b := j.placeOf(n), j.placeOf(places[1][i])
			if a.Rank != b.Rank || a.Space != b.Space {
				return false
			}
		}
	}
	return true
}
