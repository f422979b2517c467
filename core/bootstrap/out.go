package bootstrap

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/goccl/goccl/core/internal/printable"
)

// A program may find that its rank can be in no group before it can call [Join]: where this library
// cannot be loaded, say. Then it stays out with a text, for which it needs the store only, see
// python/goccl/_stay_out.py. The text has a line that no other text has, a line with the attempt of
// [JoinConfig], and the reason:
//
//	join/<r>   by rank r:  the text
//	news       by rank 0:  the text
//	out/<r>    by rank r:  the digest of the news;  by rank 0:  of the join of rank r
//	heard/<r>  by the reader, rank 0 or rank r:  the text, which it believes
//
// As all that a store holds a text may be of a dead run. Its reader believes it once its writer has
// read what the reader has just written, news or a join, which hold a fresh nonce.

const outMagic = "goccl out "

// decodeOut returns the attempt and the reason of a text, and whether it is one.
func decodeOut(b []byte) (attempt, reason string, ok bool) {
	lines := strings.SplitN(string(b), "\n", 3)
	if len(lines) < 3 || !strings.HasPrefix(lines[0], outMagic) || lines[2] == "" {
		return "", "", false
	}
	return lines[1], printable.Text(lines[2], maxProblem), true
}

// readJoin returns what a rank says of itself, in a record or in a text.
func (j *joiner) readJoin(r int, v []byte) (*joinRecord, error) {
	if attempt, reason, ok := decodeOut(v); ok {
		return &joinRecord{rank: r, size: j.config.Size, attempt: digestAttempt(attempt),
			problem: reason, encoded: v, out: true}, nil
	}
	return decodeJoin(v)
}

// hasRead reports whether the writer of a text, rank r or rank 0, has read what the text's reader
// has written.
func (j *joiner) hasRead(r int, written []byte) (bool, error) {
	v, err := j.get(fmt.Sprintf("out/%d", r))
	digest := sha256.Sum256(written)
	return string(v) == hex.EncodeToString(digest[:]), err
}

// believed returns the error that rank 0's text stands for; nil where it has written none, or none
// that this rank believes.
func (j *joiner) believed(news []byte) error {
	_, reason, ok := decodeOut(news)
	if !ok {
		return nil
	}
	if ok, err := j.hasRead(j.config.Rank, j.own.encoded); err != nil || !ok {
		return err
	}
	// Where it cannot be written rank 0 stays a little longer.
	_ = j.set(j.heardKey(j.config.Rank), news)
	return j.refused(&rosterRecord{problem: printable.Text("rank 0: "+reason, maxProblem)})
}

// release lets ranks go whose texts are believed.
func (j *joiner) release(heard []bool) {
	for r, rec := range j.joins {
		if rec != nil && rec.out && j.confirms[r] != nil && !heard[r] {
			heard[r] = j.set(j.heardKey(r), rec.encoded) == nil
		}
	}
}
