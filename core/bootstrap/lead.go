package bootstrap

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/goccl/goccl/core/internal/printable"
	"github.com/goccl/goccl/core/internal/seal"
)

// maxMisses is how many looks in a row may tell nothing new before a scan ends.
const maxMisses = 8

// mirrored is for what a rank has in the store, about which it has more than a kilobyte.
const mirrored = 8 << 10

// Silence for so long lets rank 0 write a roster with gaps, at first and at last.
const (
	quietFirst = 2 * pollLast
	quietLast  = 5 * time.Second
)

// lead is rank 0's part.
func (j *joiner) lead() (*Roster, error) {
	if m, ok := j.store.(Mirror); ok {
		m.Mirror(j.prefix, (1+j.config.Size)*mirrored)
	}
	value, err := j.get("news")
	if err != nil {
		return nil, err
	}
	j.news, j.quiet = decodeNews(value), quietFirst
	j.wonder()
	j.joins = append(j.joins, make([]*joinRecord, j.config.Size-1)...)
	var roster *rosterRecord // the one in the store
	var own checked
	written := false
	for {
		changed, err := j.pollJoins(roster)
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
		// A further roster is not worth a write while joins are still coming.
		if roster == nil && !(written && changed) && (!absent || j.isQuiet()) {
			text, why := problem, causeMismatch
			if absent {
				text, why = "these ranks have not joined yet: "+enumerate(j.late(nil)), causeAbsent
			}
			roster, written = j.newRoster(text, why), true
			if err := j.publish(roster); err != nil {
				return nil, err
			}
			if text == "" {
				own.answers, own.unfit = j.check(roster) // while the others do the same
			}
		}
		progress := changed
		if roster != nil {
			p, err := j.pollConfirms(roster)
			if err != nil {
				return nil, err
			}
			progress = progress || p
			if problem == "" {
				concerned = nil // all are
			}
			again, mixed := false, j.mixed()
			agreed := !absent && j.haveConfirmed(concerned)
			if agreed && (problem == "" || mixed) {
				if again, err = j.rejoined(); err != nil {
					return nil, err
				}
			}
			switch {
			case again:
				roster = nil
				continue
			case !agreed || mixed && time.Now().Before(j.sure):
			case problem == "":
				return j.settle(roster, own)
			default:
				j.explain(concerned)
				if explained, _ := j.compare(); explained != problem {
					return nil, j.refuseAnew(explained, causeMismatch)
				}
				return nil, j.refuse(roster)
			}
		}
		if !j.pause(progress) {
			return nil, j.missing(roster, problem)
		}
	}
}

// mixed tells whether ranks may be of different attempts. Rank 0's own problem is of this one.
func (j *joiner) mixed() bool {
	other := func(rec *joinRecord) bool { return rec != nil && rec.attempt != j.own.attempt }
	return j.own.problem == "" && slices.ContainsFunc(j.joins[:j.config.Size], other)
}

// wonder puts off that ranks of different attempts are believed, as one has joined. It leaves half
// of the context's time.
func (j *joiner) wonder() {
	wait := doubt
	if end, ok := j.ctx.Deadline(); ok {
		wait = min(wait, time.Until(end)/2)
	}
	j.sure = time.Now().Add(wait)
}

// isQuiet tells whether no rank has come for a while, so that a roster with gaps is worth a write:
// it tells those who wait whom they wait for, and their confirmations tell rank 0 which joins are
// alive.
func (j *joiner) isQuiet() bool {
	if j.wait < j.last || time.Now().Before(j.gaps) {
		return false
	}
	j.gaps = time.Now().Add(j.quiet)
	j.quiet = min(2*j.quiet, quietLast)
	return true
}

// publish writes a roster, which nobody has confirmed yet.
func (j *joiner) publish(r *rosterRecord) error {
	j.confirms = make([]*confirmRecord, len(j.joins))
	var err error
	if j.newest, err = j.get("newest"); err != nil {
		return err
	}
	return j.write(r)
}

// write writes a roster: first what others read last.
func (j *joiner) write(r *rosterRecord) error {
	r.tabulate()
	var root *Root
	if r.bytes >= shareFrom {
		root = j.newLeader()
		r.root = root.addresses
	}
	r.encode(j.key)
	if root != nil {
		j.share(r, root)
	}
	if err := j.set("table", r.table); err != nil {
		return err
	}
	if err := j.set("roster", r.encoded); err != nil {
		return err
	}
	j.news.roster = r.name()
	return j.set("news", j.news.encode())
}

// say gives the word of a roster.
func (j *joiner) say(r *rosterRecord, unanimous Answers) error {
	j.news.word = r.word(j.key, unanimous)
	return j.set("news", j.news.encode())
}

// checked is what rank 0's Check has said, as others confirm it.
type checked struct {
	answers Answers
	unfit   error
}

// settle ends the meeting with a roster that all have confirmed.
func (j *joiner) settle(roster *rosterRecord, own checked) (*Roster, error) {
	if problem, why := j.objections(roster, own.unfit); problem != "" {
		return nil, j.refuseAnew(problem, why)
	}
	unanimous := own.answers
	for _, c := range j.confirms[1:] {
		unanimous &= c.answers
	}
	if err := j.say(roster, unanimous); err != nil {
		return nil, err
	}
	return j.roster(roster, unanimous), nil
}

// scan looks at the ranks of which something is wanted, from where the last scan has ended, and
// tells whether a look has told something new. It ends after some that have not: while few ranks
// are there, most do not.
func scan(next *int, ranks int, wanted func(r int) bool, look func(r int) (bool, error)) (
	news bool, err error,
) {
	for misses, left := 0, ranks-1; left > 0 && misses < maxMisses; left-- {
		r := *next%(ranks-1) + 1
		*next = r
		if !wanted(r) {
			continue
		}
		n, err := look(r)
		if err != nil {
			return news, err
		}
		if misses++; n {
			news, misses = true, 0
		}
	}
	return news, nil
}

// pollJoins reads the joins of ranks that are missing or have not confirmed the roster, and tells
// whether one has changed.
func (j *joiner) pollJoins(roster *rosterRecord) (changed bool, err error) {
	return scan(&j.nextJoin, len(j.joins), func(r int) bool {
		return j.joins[r] == nil || roster != nil && j.confirms[r] == nil
	}, j.pollJoin)
}

// pollJoin reads the join of a rank and tells whether it has changed.
func (j *joiner) pollJoin(r int) (changed bool, err error) {
	v, err := j.get(j.joinKey(r))
	if err != nil {
		return false, err
	}
	old := j.joins[r]
	if old != nil && bytes.Equal(v, old.encoded) {
		return false, nil
	}
	// A record that cannot be read is one that is not there: it may be of a dead run of another
	// version.
	rec, err := j.readJoin(r, v)
	if v == nil || err != nil || rec.rank != r {
		rec = nil
	}
	if j.joins[r] = rec; rec != nil {
		rec.conflict = j.conflict(rec)
		j.wonder()
	}
	return rec != nil || old != nil, nil
}

// rejoined tells whether a rank has joined again since a roster was made of all joins. Then it may
// list a dead rank that had confirmed it.
func (j *joiner) rejoined() (bool, error) {
	v, err := j.get("newest")
	if err != nil || bytes.Equal(v, j.newest) {
		return false, err
	}
	j.newest = v
	changed := false
	for r := 1; r < len(j.joins); r++ {
		c, err := j.pollJoin(r)
		if err != nil {
			return false, err
		}
		changed = changed || c
	}
	return changed, nil
}

// conflict tells why a rank cannot be in one group with rank 0; "" where it can.
func (j *joiner) conflict(rec *joinRecord) string {
	r, size := rec.rank, j.config.Size
	switch {
	case rec.keyed && j.own.keyed && !authentic(rec.encoded, j.key, "goccl join"):
		return fmt.Sprintf("rank %d was given another secret than rank 0, "+
			"or its record was changed in the store: "+oneSecret, r)
	case rec.size != size:
		return fmt.Sprintf("rank %d was started with size %d, rank 0 with size %d", r, rec.size, size)
	case rec.problem != "":
		return fmt.Sprintf("rank %d: %s", r, rec.problem)
	case rec.keyed && !j.own.keyed:
		return fmt.Sprintf("rank %d was given a secret, rank 0 none: "+oneSecret, r)
	case !rec.keyed && j.own.keyed:
		return fmt.Sprintf("rank 0 was given a secret, rank %d none: "+oneSecret, r)
	case j.own.problem == "" && rec.settings != j.own.settings:
		return otherSettings(r)
	}
	return ""
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
		if rec == nil || rec.conflict == "" {
			continue
		}
		most = max(most, rec.size)
		concerned = append(concerned, r)
		lines = append(lines, rec.conflict)
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

// explain tells in which settings ranks differ, once they have confirmed that they do.
func (j *joiner) explain(concerned []int) {
	for _, r := range concerned {
		rec := j.joins[r]
		given := j.confirms[r].settings
		if rec.conflict != otherSettings(r) || given == nil {
			continue
		}
		if line := j.differ(r, given); line != "" {
			rec.conflict = line
		}
	}
}

func otherSettings(rank int) string {
	return fmt.Sprintf("rank %d has other settings than rank 0, "+
		"or its record was changed in the store", rank)
}

// differ tells in which setting rank 0 and another rank differ, "" where in none.
func (j *joiner) differ(r int, settings []Setting) string {
	unknown := func(name string, here, there int) string {
		return fmt.Sprintf("%s is set on rank %d, and not known on rank %d", name, here, there)
	}
	own := j.config.Settings
	for i, s := range own {
		switch {
		case i >= len(settings) || settings[i].Name != s.Name:
			return unknown(s.Name, 0, r)
		case settings[i].Value != s.Value:
			return fmt.Sprintf("%s is %q on rank 0 and %q on rank %d: it must be the same on all ranks",
				s.Name, printable.Text(s.Value, maxShown), printable.Text(settings[i].Value, maxShown), r)
		}
	}
	if n := len(own); n < len(settings) {
		return unknown(settings[n].Name, r, 0)
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
		size: j.config.Size, settings: j.own.settings, nonce: newNonce()}
	if !r.keyed {
		random(r.secret[:])
	}
	for _, rec := range j.joins {
		r.marks = append(r.marks, rec.mark())
	}
	if problem != "" {
		return r
	}
	key := newNonce()
	if r.keyed {
		sealed := seal.Of(j.job, "goccl job", nil)
		copy(key[:], sealed[:])
	}
	r.job = binary.LittleEndian.Uint64(key[:])
	for _, rec := range j.joins {
		r.members = append(r.members, rec.member)
	}
	return r
}

// pollConfirms reads the confirmations that are still missing and tells whether one has come.
func (j *joiner) pollConfirms(roster *rosterRecord) (progress bool, err error) {
	return scan(&j.nextConfirm, len(j.confirms), func(r int) bool {
		return j.joins[r] != nil && j.confirms[r] == nil
	}, func(r int) (bool, error) {
		if j.joins[r].out {
			ok, err := j.hasRead(r, j.news.encode())
			if ok {
				j.confirms[r] = &confirmRecord{nonce: roster.nonce}
			}
			return ok, err
		}
		v, err := j.get(j.confirmKey(r))
		if err != nil {
			return false, err
		}
		if c, err := decodeConfirm(v); err == nil && c.nonce == roster.nonce {
			j.confirms[r] = c
		}
		return j.confirms[r] != nil, nil
	})
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

// refuseAnew is refuse, for a reason that no roster has told yet.
func (j *joiner) refuseAnew(problem string, why cause) error {
	roster := j.newRoster(problem, why)
	if err := j.publish(roster); err != nil {
		return err
	}
	return j.refuse(roster)
}

// refuse tells all ranks that there is no group, those too that come within a moment.
func (j *joiner) refuse(roster *rosterRecord) error {
	err := j.refused(roster)
	if j.say(roster, 0) != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(j.ctx, Linger)
	defer cancel()
	j.ctx = ctx
	heard := make([]bool, len(j.joins))
	for !j.haveHeard(roster, heard) && j.pause(false) {
		changed, e := j.pollJoins(roster)
		if e != nil {
			return err
		}
		if changed {
			// Under the same nonce: those who have the word may be gone.
			again := j.newRoster(roster.problem, roster.cause)
			again.nonce = roster.nonce
			roster = again
			if j.write(roster) != nil {
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
func (j *joiner) haveHeard(roster *rosterRecord, heard []bool) bool {
	j.release(heard)
	if !j.haveConfirmed(nil) {
		return false
	}
	_, err := scan(&j.nextHeard, len(heard), func(r int) bool { return !heard[r] },
		func(r int) (bool, error) {
			v, err := j.get(j.heardKey(r))
			heard[r] = bytes.Equal(v, roster.nonce[:])
			return heard[r], err
		})
	return err == nil && !slices.Contains(heard[1:], false)
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

const (
	maxListed = 32   // ranks in a text
	mostLooks = 1024 // at ranks in the store, for a text
)

// enumerate lists ranks, and not too many.
func enumerate(ranks []int) string {
	var l []string
	for _, r := range ranks[:min(len(ranks), maxListed)] {
		l = append(l, fmt.Sprint(r))
	}
	if n := len(ranks); n > maxListed {
		l = append(l, fmt.Sprintf("and %d more", n-maxListed))
	}
	return strings.Join(l, ", ")
}

// strange tells of ranks whose records this version of GoCCL has not written.
func (j *joiner) strange(late []int) string {
	var strange []int
	for _, r := range late[:min(len(late), maxListed)] {
		if v, err := j.get(j.joinKey(r)); err == nil && v != nil {
			if _, err := j.readJoin(r, v); err != nil {
				strange = append(strange, r)
			}
		}
	}
	if strange == nil {
		return ""
	}
	return "; another version of GoCCL has written what the store holds of ranks " +
		enumerate(strange)
}

// twice are ranks as which two processes have joined, and maxListed at most. It looks at some of
// many ranks only.
func (j *joiner) twice() (ranks []int) {
	for r := 1; r < min(j.config.Size, mostLooks) && len(ranks) < maxListed; r++ {
		if rec := j.joins[r]; rec != nil && j.doubled(rec) {
			ranks = append(ranks, r)
		}
	}
	return ranks
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
	if len(late) == 0 { // they have come since
		text = fmt.Sprintf("of %d ranks the last have joined %s too late for all to be told",
			j.config.Size, j.group())
	}
	text += j.strange(late) + startedTwice(j.twice())
	if problem != "" {
		text += "; in the store it looks as if " + problem
	}
	note := j.newRoster(text, causeAbsent)
	if j.write(note) == nil {
		_ = j.say(note, 0) // nobody is left to hear of an error here
	}
	return &AbsentError{late, j.end() + ": not all ranks have joined: " + text, context.Cause(j.ctx)}
}
