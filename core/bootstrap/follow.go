package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/goccl/goccl/core/internal/printable"
)

// follower is the part of every rank but 0.
type follower struct {
	*joiner
	read name          // of the roster that was read last
	mine *rosterRecord // the one that this rank has answered
	fit  bool          // and confirmed; else rank 0 settles another one
	hint string        // why this rank has confirmed none
}

func (j *joiner) follow() (*Roster, error) {
	f := &follower{joiner: j}
	value, err := j.get("news")
	alive, progress := true, false
	stand := max(standFirst, time.Duration(j.config.Size)*standEach)
	for ; ; value, alive, err = j.await("news", value, progress) {
		if err != nil {
			return nil, err
		}
		if !alive {
			return nil, f.missing()
		}
		if err := j.believed(value); err != nil {
			return nil, err
		}
		n := decodeNews(value)
		if f.settled(n.word) {
			if f.mine.problem == "" {
				return j.roster(f.mine, n.word.unanimous), nil
			}
			// Where it cannot be written rank 0 stays a little longer.
			_ = j.set(j.heardKey(j.config.Rank), f.mine.nonce[:])
			return nil, j.refused(f.mine)
		}
		progress = false
		if n.roster != (name{}) && n.roster != f.read {
			if progress, err = f.look(n.roster); err != nil {
				return nil, err
			}
		}
		if time.Since(j.stood) >= stand {
			if _, err := j.stands(); err != nil {
				return nil, err
			}
			stand *= 2
		}
	}
}

// settled tells whether a word is rank 0's, and of the roster that this rank has confirmed.
func (f *follower) settled(w word) bool {
	return f.fit && w.nonce == f.mine.nonce && w == f.mine.word(f.key, w.unanimous)
}

// look reads the roster that the news name, and answers it where it lists this rank.
func (f *follower) look(named name) (progress bool, err error) {
	v, err := f.get("roster")
	if err != nil {
		return false, err
	}
	r, err := decodeRoster(v)
	if err == nil && r.name() != named {
		err = errChanging
	}
	if err == nil && (r.problem != "" || r.size == f.config.Size) { // else it is not of this rank
		var table []byte
		if table, err = f.table(r); err != nil {
			return false, err
		}
		err = r.fill(table)
	}
	switch {
	case err != nil:
		f.hint = "; the store holds " + err.Error()
		if errors.Is(err, errChanging) {
			return false, nil
		}
	case !r.lists(f.own):
		f.hint = "; the roster in the store does not list this process: it is of an earlier run, " +
			"or rank 0 has ended"
		if r.size != f.config.Size {
			f.hint += fmt.Sprintf(", or was started with another size (%d, this rank with %d)", r.size,
				f.config.Size)
		}
		_, err = f.stands()
		f.read = named
		return false, err
	default:
		f.mine, progress = r, true
		if f.hint, err = f.confirm(r); err != nil {
			return false, err
		}
		f.fit = f.hint == ""
	}
	f.read = named
	return progress, nil
}

// missing tells for whom this rank has waited until the context ended.
func (f *follower) missing() error {
	if f.hint == "" && f.mine == nil {
		// An earlier version of GoCCL writes no news.
		if v, err := f.get("roster"); err == nil && v != nil {
			if _, err := decodeRoster(v); err != nil {
				f.hint = "; the store holds " + err.Error()
			}
		}
	}
	phase := " for rank 0, which has not joined (" + sameMeeting + ")"
	var absent []int
	switch {
	case f.mine == nil:
		if absent = f.unjoined(); len(absent) > 0 {
			phase += "; of the others these have not joined: " + enumerate(absent) +
				". Rank 0 may wait for them in the store that it serves: look whether they were started"
		}
		absent = append([]int{0}, absent...)
	case f.mine.problem != "":
		phase = ", and rank 0 says: " + f.mine.problem
		if f.mine.cause == causeAbsent {
			absent = f.mine.unlisted()
		}
	default:
		phase = " for the other ranks to confirm the roster"
	}
	twice := ""
	if f.doubled(f.own) {
		twice = startedTwice([]int{f.config.Rank})
	}
	return &AbsentError{Ranks: absent, cause: context.Cause(f.ctx), text: fmt.Sprintf(
		"%s: rank %d of %d of %s waited%s%s%s", f.end(), f.config.Rank, f.config.Size, f.group(), phase,
		f.hint, twice)}
}

// unjoined returns ranks besides 0 that have not joined, as far as the store tells, and maxListed
// at most. It looks at some of many ranks only.
func (f *follower) unjoined() (ranks []int) {
	for r := 1; r < min(f.config.Size, mostLooks) && len(ranks) < maxListed; r++ {
		v, err := f.get(f.joinKey(r))
		if err != nil {
			return nil
		}
		if v == nil {
			ranks = append(ranks, r)
		}
	}
	return ranks
}

// confirm answers a roster that lists this rank, and rank 0 tells the answer to all. The error is
// final: what has changed a record that holds this rank's fresh nonce is not an earlier run. An
// objection is not, for other records may be of an earlier run.
func (j *joiner) confirm(r *rosterRecord) (objection string, err error) {
	c := &confirmRecord{nonce: r.nonce}
	if r.problem == "" {
		if problem := j.distrust(r); problem != "" {
			c.problem = problem
			err = j.refused(&rosterRecord{problem: problem})
		} else if answers, unfit := j.check(r); unfit != nil {
			c.problem, c.cause = printable.Text(unfit.Error(), maxProblem), causeUnfit
			objection = "; " + c.problem
		} else {
			c.answers = answers
		}
		c.proof = c.prove(r.groupSecret(j.key), j.config.Rank)
	} else if r.settings != j.own.settings {
		c.settings = append([]Setting{}, j.config.Settings...)
	}
	if e := j.set(j.confirmKey(j.config.Rank), c.encode()); err == nil {
		err = e
	}
	return objection, err
}

// forged tells whether a roster was written without the secret that this rank holds.
func (j *joiner) forged(r *rosterRecord) bool {
	return j.key != "" && (!r.keyed || !authentic(r.encoded, j.key, "goccl roster"))
}

// distrust tells why a roster is not what rank 0 wrote, or not of what this rank wrote.
func (j *joiner) distrust(r *rosterRecord) string {
	me := j.config.Rank
	switch {
	case j.forged(r):
		return fmt.Sprintf("the roster was not written with the secret that rank %d was given, "+
			"or was changed in the store", me)
	case !j.own.keyed && r.keyed:
		return fmt.Sprintf("rank 0 was given a secret, rank %d none: "+oneSecret, me)
	case !r.holds(j.own):
		return fmt.Sprintf("the roster holds another record of rank %d than that rank wrote: "+
			"it was changed in the store", me)
	}
	return ""
}
