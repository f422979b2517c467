package bootstrap

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"github.com/goccl/goccl/core/internal/printable"
)

// lead is rank 0's part.
func (j *joiner) lead() (*Roster, error) {
	j.joins = append(j.joins, make([]*joinRecord, j.config.Size-1)...)
	var roster *rosterRecord // the one in the store
	var yes bool             // the answer of rank 0's Check
	var unfit error          // why rank 0 cannot be in its group
	for {
		changed, err := j.pollJoins()
		if err != nil {
			return nil, err
		}
		lost, err := j.stands()
		if err != nil {
			return nil, err
		}
		problem, concerned := j.compare()
		absent := problem == "" && slices.Contains(j.joins, nil)
		if changed || lost { // and with it the roster
			roster = nil
		}
		// A roster with gaps tells those who wait whom they wait for, and their confirmations tell
		// rank 0 which joins are alive. While ranks are still coming in it is not worth a write.
		if roster == nil && (!absent || j.wait == pollLast) {
			text, why := problem, causeMismatch
			if absent {
				text, why = "have not joined yet: "+enumerate(j.late(nil)), causeAbsent
			}
			roster = j.newRoster(text, why)
			if err := j.set("roster", roster.encode(j.key)); err != nil {
				return nil, err
			}
			j.confirms = make([]*confirmRecord, len(j.joins))
			if text == "" {
				yes, unfit = j.check(roster) // while the others do the same
			}
		}
		progress := changed
		if roster != nil {
			p, err := j.pollConfirms(roster)
			if err != nil {
				return nil, err
			}
			progress = progress || p
			switch {
			case absent:
			case problem != "" && j.haveConfirmed(concerned):
				return nil, j.refuse(roster)
			case problem == "" && j.haveConfirmed(nil):
				// A rank may have been restarted since it confirmed.
				if changed, err := j.pollJoins(); err != nil {
					return nil, err
				} else if changed {
					roster = nil
					continue
				}
				if problem, why := j.objections(roster, unfit); problem != "" {
					roster = j.newRoster(problem, why)
					if err := j.set("roster", roster.encode(j.key)); err != nil {
						return nil, err
					}
					j.confirms = make([]*confirmRecord, len(j.joins))
					return nil, j.refuse(roster)
				}
				unanimous := yes && !slices.ContainsFunc(j.confirms[1:],
					func(c *confirmRecord) bool { return !c.yes })
				if err := j.set("go", j.word(roster, unanimous)); err != nil {
					return nil, err
				}
				return j.roster(roster, unanimous), nil
			}
		}
		if !j.pause(progress) {
			return nil, j.missing(roster, problem)
		}
	}
}

// pollJoins reads the joins of all ranks and tells whether one has changed.
func (j *joiner) pollJoins() (changed bool, err error) {
	for r := 1; r < len(j.joins); r++ {
		v, err := j.get(j.joinKey(r))
		if err != nil {
			return false, err
		}
		old := j.joins[r]
		if old != nil && bytes.Equal(v, old.encoded) {
			continue
		}
		// A record that cannot be read is one that is not there: it may be of a dead run of
		// another version.
		rec, err := decodeJoin(v)
		if v == nil || err != nil || rec.rank != r {
			rec = nil
		}
		if rec != nil || old != nil {
			j.joins[r] = rec
			changed = true
		}
	}
	return changed, nil
}

// compare finds settings that do not fit rank 0's, and the ranks that have them, but for rank 0
// itself: what it says of itself is not of an earlier run.
func (j *joiner) compare() (problem string, concerned []int) {
	size := j.config.Size
	concerned = []int{}
	var lines []string
	if j.own.problem != "" {
		lines = append(lines, "rank 0: "+j.own.problem)
	}
	most := size
	for r, rec := range j.joins[:size] {
		if rec == nil || r == 0 {
			continue
		}
		var line string
		switch {
		case rec.keyed && j.own.keyed && !authentic(rec.encoded, j.key, "goccl join"):
			line = fmt.Sprintf("rank %d was given another secret than rank 0, "+
				"or its record was changed in the store: "+oneSecret, r)
		case rec.size != size:
			line = fmt.Sprintf("rank %d was started with size %d, rank 0 with size %d", r, rec.size, size)
		case rec.problem != "":
			line = fmt.Sprintf("rank %d: %s", r, rec.problem)
		case rec.keyed && !j.own.keyed:
			line = fmt.Sprintf("rank %d was given a secret, rank 0 none: "+oneSecret, r)
		case !rec.keyed && j.own.keyed:
			line = fmt.Sprintf("rank 0 was given a secret, rank %d none: "+oneSecret, r)
		case j.own.problem == "":
			line = j.own.differ(rec)
		}
		if line == "" {
			continue
		}
		most = max(most, rec.size)
		concerned = append(concerned, r)
		lines = append(lines, line)
	}
	// Ranks that rank 0 does not count are looked for only where another rank counts them.
	// A stale join may count very many.
	most = min(most, 2*size+64)
	if most > len(j.joins) {
		j.joins = append(j.joins, make([]*joinRecord, most-len(j.joins))...)
	} else {
		j.joins = j.joins[:max(most, size)]
	}
	return list(lines), concerned
}

// differ tells in which setting two ranks differ, "" where in none.
func (j *joinRecord) differ(o *joinRecord) string {
	for i, s := range j.settings {
		switch {
		case i >= len(o.settings) || o.settings[i].Name != s.Name:
			return fmt.Sprintf("%s is set on rank %d, and not known on rank %d", s.Name, j.rank, o.rank)
		case o.settings[i].Value != s.Value:
			return fmt.Sprintf("%s is %q on rank %d and %q on rank %d: it must be the same on all ranks",
				s.Name, printable.Text(s.Value, maxShown), j.rank,
				printable.Text(o.settings[i].Value, maxShown), o.rank)
		}
	}
	if n := len(j.settings); n < len(o.settings) {
		return fmt.Sprintf("%s is set on rank %d, and not known on rank %d", o.settings[n].Name, o.rank,
			j.rank)
	}
	return ""
}

// list joins what there is to say of several ranks, each once, and not of too many.
func list(lines []string) string {
	var l []string
	for _, s := range lines {
		if !slices.Contains(l, s) {
			l = append(l, s)
		}
	}
	if len(l) > 8 {
		l = append(l[:8], fmt.Sprintf("and %d more", len(l)-8))
	}
	return strings.Join(l, "; ")
}

// objections are why ranks cannot be in the group of a roster that all have confirmed; unfit is
// rank 0's.
func (j *joiner) objections(roster *rosterRecord, unfit error) (problem string, why cause) {
	var lines []string
	if unfit != nil {
		lines, why = append(lines, unfit.Error()), causeUnfit
	}
	secret := roster.groupSecret(j.key)
	for r, c := range j.confirms {
		switch {
		case r == 0:
			continue
		case c.problem != "":
			lines, why = append(lines, c.problem), c.cause
		case !c.proven(secret, r):
			lines = append(lines, fmt.Sprintf("rank %d has read another roster than rank 0 wrote: "+
				"it was changed in the store", r))
			why = causeMismatch
		}
	}
	return list(lines), why
}

func (j *joiner) newRoster(problem string, why cause) *rosterRecord {
	r := &rosterRecord{keyed: j.own.keyed, problem: printable.Text(problem, maxProblem), cause: why,
		size: j.config.Size, nonce: newNonce()}
	switch {
	case problem != "":
	case r.keyed:
		key := Seal(j.job, "goccl job", nil)
		r.job = binary.LittleEndian.Uint64(key[:])
	default:
		key := newNonce()
		r.job = binary.LittleEndian.Uint64(key[:])
		random(r.secret[:])
	}
	if problem == "" {
		r.joins = slices.Clone(j.joins)
	}
	for _, rec := range j.joins {
		if rec == nil {
			rec = &joinRecord{}
		}
		r.nonces = append(r.nonces, rec.nonce)
	}
	return r
}

// word is what rank 0 writes under go when a roster is settled: the nonce, sealed where it is a
// group's with whether that is unanimous.
func (j *joiner) word(r *rosterRecord, unanimous bool) []byte {
	if r.problem != "" {
		return r.nonce[:]
	}
	answer := []byte("no")
	if unanimous {
		answer = []byte("yes")
	}
	proof := Seal(string(r.groupSecret(j.key)), "goccl go", answer)
	return slices.Concat(r.nonce[:], proof[:])
}

// pollConfirms reads the confirmations that are still missing and tells whether one has come.
func (j *joiner) pollConfirms(roster *rosterRecord) (progress bool, err error) {
	for r := 1; r < len(j.confirms); r++ {
		if j.confirms[r] != nil {
			continue
		}
		v, err := j.get(j.confirmKey(r))
		if err != nil {
			return false, err
		}
		if c, err := decodeConfirm(v); err == nil && c.nonce == roster.nonce {
			j.confirms[r] = c
			progress = true
		}
	}
	return progress, nil
}

// haveConfirmed tells whether the given ranks, nil for all, have confirmed the roster.
func (j *joiner) haveConfirmed(ranks []int) bool {
	if ranks == nil {
		return !slices.Contains(j.confirms[1:], nil)
	}
	for _, r := range ranks {
		if j.confirms[r] == nil {
			return false
		}
	}
	return true
}

// refuse tells all ranks that there is no group, those too that come within a moment.
func (j *joiner) refuse(roster *rosterRecord) error {
	err := j.refused(roster)
	if j.set("go", j.word(roster, false)) != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(j.ctx, Linger)
	defer cancel()
	j.ctx = ctx
	for !j.haveHeard(roster) && j.pause(false) {
		changed, e := j.pollJoins()
		if e != nil {
			return err
		}
		if changed {
			// Under the same nonce: those who have seen go may be gone.
			again := j.newRoster(roster.problem, roster.cause)
			again.nonce = roster.nonce
			roster = again
			if j.set("roster", roster.encode(j.key)) != nil {
				return err
			}
		}
		if _, e := j.pollConfirms(roster); e != nil {
			return err
		}
	}
	return err
}

// haveHeard tells whether all ranks know that there is no group.
func (j *joiner) haveHeard(roster *rosterRecord) bool {
	if !j.haveConfirmed(nil) {
		return false
	}
	for r := 1; r < len(j.confirms); r++ {
		if v, err := j.get(j.heardKey(r)); err != nil || !bytes.Equal(v, roster.nonce[:]) {
			return false
		}
	}
	return true
}

// late are the ranks that have not joined, as far as rank 0 knows.
func (j *joiner) late(roster *rosterRecord) []int {
	var late []int
	for r := 1; r < j.config.Size; r++ {
		if j.joins[r] == nil || roster != nil && j.confirms[r] == nil {
			late = append(late, r)
		}
	}
	return late
}

// enumerate lists ranks, and not too many.
func enumerate(ranks []int) string {
	var l []string
	for _, r := range ranks[:min(len(ranks), 32)] {
		l = append(l, fmt.Sprint(r))
	}
	if n := len(ranks); n > 32 {
		l = append(l, fmt.Sprintf("and %d more", n-32))
	}
	return strings.Join(l, ", ")
}

// missing tells who has not come when the context ends, and lets those that wait know. There may be
// a problem as well, of ranks that have not confirmed it.
func (j *joiner) missing(roster *rosterRecord, problem string) error {
	if roster != nil {
		_, _ = j.pollConfirms(roster) // a store that fails now leaves the rest as it is
	}
	late := j.late(roster)
	text := fmt.Sprintf("of %d ranks these have not joined %s: %s (%s)", j.config.Size, j.group(),
		enumerate(late), sameMeeting)
	if problem != "" {
		text += "; in the store it looks as if " + problem
	}
	note := j.newRoster(text, causeAbsent)
	if j.set("roster", note.encode(j.key)) == nil {
		// Nobody is left to hear of an error here.
		_ = j.set("go", j.word(note, false))
	}
	return &AbsentError{late, j.end() + ": not all ranks have joined: " + text, context.Cause(j.ctx)}
}
