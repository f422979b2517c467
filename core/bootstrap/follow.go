package bootstrap

import (
	"bytes"
	"context"
	"fmt"
	"slices"

	"github.com/goccl/goccl/core/internal/printable"
)

// follow is the part of every rank but 0.
func (j *joiner) follow() (*Roster, error) {
	me := j.config.Rank
	var mine *rosterRecord // the roster that this rank has confirmed
	var words [2][]byte    // what rank 0 writes when it is settled; nil where this rank is unfit
	var last []byte        // the roster read last
	hint := ""
	for {
		v, err := j.get("roster")
		if err != nil {
			return nil, err
		}
		// After the roster, which may be of the next group under these keys already: rank 0 has then
		// written go for this rank's group before, and leaves it until this rank confirms.
		if words[0] != nil {
			g, err := j.get("go")
			if err != nil {
				return nil, err
			}
			said := func(word []byte) bool { return bytes.Equal(g, word) }
			if i := slices.IndexFunc(words[:], said); i >= 0 {
				if mine.problem != "" {
					_ = j.set(j.heardKey(me), mine.nonce[:]) // else rank 0 stays a little longer
					return nil, j.refused(mine)
				}
				return j.roster(mine, i == 1), nil
			}
		}
		progress := false
		if v != nil && !bytes.Equal(v, last) {
			last = v
			rec, err := decodeRoster(v)
			switch {
			case err != nil:
				hint = "; the store holds " + err.Error()
			case me >= len(rec.nonces) || rec.nonces[me] != j.own.nonce:
				hint = "; the roster in the store does not list this process: it is of an earlier run, " +
					"or rank 0 has ended"
				if rec.size != j.config.Size {
					hint += fmt.Sprintf(", or was started with another size (%d, this rank with %d)", rec.size,
						j.config.Size)
				}
			default:
				mine, progress = rec, true
				words = [2][]byte{j.word(rec, false), j.word(rec, true)}
				if hint, err = j.confirm(rec); err != nil {
					return nil, err
				}
				if hint != "" {
					words = [2][]byte{}
				}
			}
		}
		if _, err := j.stands(); err != nil {
			return nil, err
		}
		if !j.pause(progress) {
			phase := "for rank 0, which has not joined (" + sameMeeting + ")"
			if mine != nil {
				phase = "for the other ranks to confirm the roster"
				if mine.problem != "" {
					phase = "as rank 0 says: " + mine.problem
				}
			}
			waited := &AbsentError{cause: context.Cause(j.ctx), text: fmt.Sprintf(
				"%s: rank %d of %d of %s waited %s%s", j.end(), me, j.config.Size, j.group(), phase, hint)}
			if mine == nil {
				waited.Ranks = []int{0}
			}
			return nil, waited
		}
	}
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
		} else if yes, unfit := j.check(r); unfit != nil {
			c.problem, c.cause = printable.Text(unfit.Error(), maxProblem), causeUnfit
			objection = "; " + c.problem
		} else {
			c.yes = yes
		}
		c.proof = c.prove(r.groupSecret(j.key), j.config.Rank)
	}
	if e := j.set(j.confirmKey(j.config.Rank), c.encode()); err == nil {
		err = e
	}
	return objection, err
}

// distrust tells why a roster is not what rank 0 wrote, or not of what this rank wrote.
func (j *joiner) distrust(r *rosterRecord) string {
	me := j.config.Rank
	switch {
	case j.own.keyed && (!r.keyed || !authentic(r.encoded, j.key, "goccl roster")):
		return fmt.Sprintf("the roster was not written with the secret that rank %d was given, "+
			"or was changed in the store", me)
	case !j.own.keyed && r.keyed:
		return fmt.Sprintf("rank 0 was given a secret, rank %d none: "+oneSecret, me)
	case !bytes.Equal(r.joins[me].encoded, j.own.encoded):
		return fmt.Sprintf("the roster holds another record of rank %d than that rank wrote: "+
			"it was changed in the store", me)
	}
	return ""
}
