package bootstrap

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"
)

// ErrMismatch is wrapped by an error that tells of ranks whose settings do not fit together.
var ErrMismatch = errors.New("the ranks' settings differ")

// ErrAbsent is wrapped by an error that names ranks that have not joined within rank 0's time.
var ErrAbsent = errors.New("not all ranks have joined")

// ErrInvalid is wrapped by an error that tells of a bad argument on this rank.
var ErrInvalid = errors.New("invalid argument")

// JoinConfig is what a rank brings to [Join].
type JoinConfig struct {
	Rank, Size int
	// GroupName and Incarnation are part of every key, so that groups of one job, and the runs of
	// one job, keep apart.
	GroupName, Incarnation string
	// Secret is the job's. With it, every rank must hold the same; it is never written into the
	// store. Without it, rank 0 puts a fresh one there.
	Secret string
	// Member is handed to all ranks as it is.
	Member []byte
	// Problem tells why this rank can be in no group; "" where it can. Then there is none, and all ranks that come within a moment are told so.
	Problem string
}

// Roster is what all ranks know of their group once they have joined.
type Roster struct {
	Job, Group uint64   // Group is fresh random data
	Secret     []byte   // of this group: 32 bytes
	Members    [][]byte // by rank
}

// Ranks poll the store: a torch store can wait for a key, but not for one to change.
const (
	pollFirst = 500 * time.Microsecond
	pollLast  = 50 * time.Millisecond
)

// How long rank 0 stays, once it is certain that there can be no group, for ranks that come late to
// be told.
const linger = 3 * time.Second

// Join makes a group of all ranks that call it with the same store, incarnation and name, and
// returns when all have. The context bounds it.
//
// # Protocol
//
// A store may hold the keys of dead runs, under the very same names. So nothing in it is believed
// unless it holds a nonce that its reader has just made:
//
//	join/<r>     by rank r:  a fresh nonce, and what r says of itself
//	roster       by rank 0:  the group's fresh nonce, and the nonce and member of every rank
//	confirm/<r>  by rank r:  the group's nonce, once r has found its own nonce in the roster
//	go           by rank 0:  the group's nonce, once all have confirmed it
//	heard/<r>    by rank r:  the group's nonce, where it is that of no group: rank 0, whose process may keep the store, stays until then
//
// Rank 0 cannot tell a stale join from a fresh one and may list it; but a dead rank confirms
// nothing, and when its successor joins, rank 0 writes a new roster with a new nonce. A rank that
// died after it confirmed is noticed in the same way until rank 0 writes go.
//
// Settings that do not fit are told through the roster as well. They are believed once the ranks
// concerned have confirmed it: before, their joins may be stale.
func Join(ctx context.Context, s Store, c JoinConfig) (*Roster, error) {
	if err := c.check(s); err != nil {
		return nil, err
	}
	j := &joiner{ctx: ctx, store: s, config: c, wait: pollFirst}
	j.prefix = "goccl/" + url.PathEscape(c.Incarnation) + "/" + url.PathEscape(c.GroupName) + "/"
	j.own = joinRecord{rank: c.Rank, size: c.Size, nonce: newNonce(), keyed: c.Secret != "", problem: c.Problem[:min(len(c.Problem), maxProblem)], member: c.Member}
	if c.Problem != "" {
		var cancel context.CancelFunc
		j.ctx, cancel = context.WithTimeout(ctx, linger)
		defer cancel()
	}
	if j.own.keyed {
		j.own.proof = j.own.prove(c.Secret)
	}
	j.join = j.own.encode()
	if c.Size == 1 {
		j.joins = []*joinRecord{&j.own}
		return j.roster(j.newRoster("")), nil
	}
	if err := j.set(j.joinKey(c.Rank), j.join); err != nil {
		return nil, err
	}
	if c.Rank == 0 {
		return j.lead()
	}
	return j.follow()
}

func (c *JoinConfig) check(s Store) error {
	bad := func(name string, given, allowed any) error {
		return fmt.Errorf("%w: %s is %v, allowed is %v", ErrInvalid, name, given, allowed)
	}
	switch {
	case c.Size < 1 || c.Size > MaxSize:
		return bad("size", c.Size, fmt.Sprintf("1 to %d", MaxSize))
	case c.Rank < 0 || c.Rank >= c.Size:
		return bad("rank", c.Rank, fmt.Sprintf("0 to %d (size - 1)", c.Size-1))
	case len(c.GroupName) > MaxName:
		return bad("group name", fmt.Sprintf("%d bytes long", len(c.GroupName)), fmt.Sprintf("up to %d", MaxName))
	case len(c.Incarnation) > MaxName:
		return bad("incarnation", fmt.Sprintf("%d bytes long", len(c.Incarnation)), fmt.Sprintf("up to %d", MaxName))
	case len(c.Member) > MaxMember:
		return bad("member", fmt.Sprintf("%d bytes long", len(c.Member)), fmt.Sprintf("up to %d", MaxMember))
	case s == nil && c.Size > 1:
		return bad("store", "missing", "none only where size is 1")
	}
	return nil
}

type joiner struct {
	ctx    context.Context
	store  Store
	config JoinConfig
	prefix string
	own    joinRecord
	join   []byte // own, encoded
	wait   time.Duration

	// Rank 0's.
	joins     []*joinRecord // by rank; longer than the size where another rank counts more ranks
	confirmed []bool
}

func (j *joiner) joinKey(r int) string    { return fmt.Sprintf("join/%d", r) }
func (j *joiner) confirmKey(r int) string { return fmt.Sprintf("confirm/%d", r) }
func (j *joiner) heardKey(r int) string   { return fmt.Sprintf("heard/%d", r) }

func (j *joiner) set(key string, value []byte) error {
	if err := j.store.Set(j.prefix+key, value); err != nil {
		return fmt.Errorf("rank %d of %s: writing %q to the store: %w", j.config.Rank, j.group(), j.prefix+key, err)
	}
	return nil
}

func (j *joiner) get(key string) ([]byte, error) {
	v, ok, err := j.store.Get(j.prefix + key)
	if err != nil {
		return nil, fmt.Errorf("rank %d of %s: reading %q from the store: %w",
			j.config.Rank, j.group(), j.prefix+key, err)
	}
	if !ok {
		return nil, nil
	}
	return v, nil
}

func (j *joiner) group() string {
	g := fmt.Sprintf("group %q", j.config.GroupName)
	if j.config.Incarnation != "" {
		g += fmt.Sprintf(" (incarnation %q)", j.config.Incarnation)
	}
	return g
}

// pause waits before the next poll: longer each time, from the start again after progress. It is
// false when the context has ended.
func (j *joiner) pause(progress bool) bool {
	if progress {
		j.wait = pollFirst
	}
	t := time.NewTimer(j.wait)
	defer t.Stop()
	j.wait = min(2*j.wait, pollLast)
	select {
	case <-t.C:
		return j.ctx.Err() == nil
	case <-j.ctx.Done():
		return false
	}
}

// stands makes sure that this rank's join is in the store. It may be lost: the last user of a torch
// FileStore removes the file, even if others have begun to use it anew. It may have been written over
// by another live process with this rank, which is an error.
func (j *joiner) stands() (lost bool, err error) {
	key := j.joinKey(j.config.Rank)
	v, err := j.get(key)
	switch {
	case err != nil:
		return false, err
	case v == nil:
		return true, j.set(key, j.join)
	case !bytes.Equal(v, j.join):
		return false, fmt.Errorf("%w: another process joined %s as rank %d after this one: every rank may be started once",
			ErrMismatch, j.group(), j.config.Rank)
	}
	return false, nil
}

// lead is rank 0's part.
func (j *joiner) lead() (*Roster, error) {
	size := j.config.Size
	j.joins = make([]*joinRecord, size)
	j.joins[0] = &j.own
	var roster *rosterRecord // the one in the store
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
			if absent {
				problem = "have not joined yet: " + j.late(nil)
			}
			roster = j.newRoster(problem)
			roster.absent = absent
			j.confirmed = make([]bool, len(j.joins))
			if err := j.set("roster", roster.encode(j.config.Secret)); err != nil {
				return nil, err
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
				if err := j.set("go", roster.nonce[:]); err != nil {
					return nil, err
				}
				return j.roster(roster), nil
			}
		}
		if !j.pause(progress) {
			return nil, j.missing(roster)
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
		// A record that cannot be read is one that is not there: it may be of a dead run of
		// another version.
		rec, err := decodeJoin(v)
		if v == nil || err != nil || rec.rank != r {
			rec = nil
		}
		old := j.joins[r]
		if rec == nil && old == nil || rec != nil && old != nil && rec.nonce == old.nonce {
			continue
		}
		j.joins[r] = rec
		changed = true
	}
	return changed, nil
}

// compare finds settings that do not fit rank 0's, and the ranks that have them, but for rank 0 itself: what it says of itself is not of an earlier run.
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
		case rec.size != size:
			line = fmt.Sprintf("rank %d was started with size %d, rank 0 with size %d", r, rec.size, size)
		case rec.problem != "":
			line = fmt.Sprintf("rank %d: %s", r, rec.problem)
		case rec.keyed && !j.own.keyed:
			line = fmt.Sprintf("rank %d was given a secret, rank 0 none", r)
		case !rec.keyed && j.own.keyed:
			line = fmt.Sprintf("rank 0 was given a secret, rank %d none", r)
		case rec.keyed:
			if want := rec.prove(j.config.Secret); !hmac.Equal(want[:], rec.proof[:]) {
				line = fmt.Sprintf("rank %d was given another secret than rank 0", r)
			}
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
	if len(lines) > 8 {
		lines = append(lines[:8], fmt.Sprintf("and %d more", len(lines)-8))
	}
	return strings.Join(lines, "; "), concerned
}

func (j *joiner) newRoster(problem string) *rosterRecord {
	r := &rosterRecord{keyed: j.own.keyed, problem: problem, size: j.config.Size, nonce: newNonce()}
	if len(r.problem) > maxProblem {
		r.problem = r.problem[:maxProblem]
	}
	switch {
	case problem != "":
	case r.keyed:
		key := seal(j.config.Secret, "goccl job", []byte(j.config.Incarnation))
		r.job = binary.LittleEndian.Uint64(key[:])
	default:
		key := newNonce()
		r.job = binary.LittleEndian.Uint64(key[:])
		random(r.secret[:])
	}
	for _, rec := range j.joins {
		if rec == nil {
			rec = &joinRecord{}
		}
		r.nonces = append(r.nonces, rec.nonce)
		r.members = append(r.members, rec.member)
	}
	return r
}

// pollConfirms reads the confirmations that are still missing and tells whether one has come.
func (j *joiner) pollConfirms(roster *rosterRecord) (progress bool, err error) {
	for r := 1; r < len(j.confirmed); r++ {
		if j.confirmed[r] {
			continue
		}
		v, err := j.get(j.confirmKey(r))
		if err != nil {
			return false, err
		}
		if bytes.Equal(v, roster.nonce[:]) {
			j.confirmed[r] = true
			progress = true
		}
	}
	return progress, nil
}

// haveConfirmed tells whether the given ranks, nil for all, have confirmed the roster.
func (j *joiner) haveConfirmed(ranks []int) bool {
	if ranks == nil {
		return !slices.Contains(j.confirmed[1:], false)
	}
	for _, r := range ranks {
		if !j.confirmed[r] {
			return false
		}
	}
	return true
}

// refuse tells all ranks that there is no group, those too that come within a moment.
func (j *joiner) refuse(roster *rosterRecord) error {
	err := j.mismatch(roster.problem)
	if j.set("go", roster.nonce[:]) != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(j.ctx, linger)
	defer cancel()
	j.ctx = ctx
	for !j.haveHeard(roster) && j.pause(false) {
		changed, e := j.pollJoins()
		if e != nil {
			return err
		}
		if changed {
			// Under the same nonce: those who have seen go may be gone.
			again := j.newRoster(roster.problem)
			again.nonce = roster.nonce
			roster = again
			if j.set("roster", roster.encode(j.config.Secret)) != nil {
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
	for r := 1; r < len(j.confirmed); r++ {
		if v, err := j.get(j.heardKey(r)); err != nil || !bytes.Equal(v, roster.nonce[:]) {
			return false
		}
	}
	return true
}

func (j *joiner) mismatch(problem string) error {
	return fmt.Errorf("%w: %s cannot be made: %s", ErrMismatch, j.group(), problem)
}

// late lists the ranks that have not joined, as far as rank 0 knows.
func (j *joiner) late(roster *rosterRecord) string {
	var late []string
	for r := 1; r < j.config.Size; r++ {
		if j.joins[r] == nil || roster != nil && !j.confirmed[r] {
			late = append(late, fmt.Sprint(r))
		}
	}
	if n := len(late); n > 32 {
		late = append(late[:32], fmt.Sprintf("and %d more", n-32))
	}
	return strings.Join(late, ", ")
}

// missing tells who has not come when the context ends, and lets those that wait know.
func (j *joiner) missing(roster *rosterRecord) error {
	if roster != nil {
		if _, err := j.pollConfirms(roster); err != nil {
			return err
		}
	}
	text := fmt.Sprintf("of %d ranks these have not joined %s: %s (all must be given the same store, size, group name and "+
		"incarnation)", j.config.Size, j.group(), j.late(roster))
	note := j.newRoster(text)
	note.absent = true
	if j.set("roster", note.encode(j.config.Secret)) == nil {
		// Nobody is left to hear of an error here.
		_ = j.set("go", note.nonce[:])
	}
	return fmt.Errorf("%w: %w: %s", context.Cause(j.ctx), ErrAbsent, text)
}

// follow is the part of every rank but 0.
func (j *joiner) follow() (*Roster, error) {
	me := j.config.Rank
	var mine *rosterRecord // the roster that this rank has confirmed
	var last []byte        // the one read last
	hint := ""
	for {
		v, err := j.get("roster")
		if err != nil {
			return nil, err
		}
		// After the roster, which may be of the next group under these keys already: rank 0 has then
		// written go for this rank's group before, and leaves it until this rank confirms.
		if mine != nil {
			g, err := j.get("go")
			if err != nil {
				return nil, err
			}
			if bytes.Equal(g, mine.nonce[:]) {
				if mine.problem != "" {
					_ = j.set(j.heardKey(me), mine.nonce[:]) // else rank 0 stays a little longer
				}
				switch {
				case mine.absent:
					return nil, fmt.Errorf("%w: rank 0 has given up: %s", ErrAbsent, mine.problem)
				case mine.problem != "":
					return nil, j.mismatch(mine.problem)
				}
				return j.roster(mine), nil
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
				hint = "; the roster in the store does not list this process: it is of an earlier run, or rank 0 has ended"
				if rec.size != j.config.Size {
					hint += fmt.Sprintf(", or was started with another size (%d, this rank with %d)", rec.size, j.config.Size)
				}
			default:
				if err := j.trust(rec); err != nil {
					return nil, err
				}
				if err := j.set(j.confirmKey(me), rec.nonce[:]); err != nil {
					return nil, err
				}
				mine, hint, progress = rec, "", true
			}
		}
		if _, err := j.stands(); err != nil {
			return nil, err
		}
		if !j.pause(progress) {
			phase := "for rank 0's roster"
			if mine != nil {
				phase = "for the other ranks to confirm the roster"
				if mine.problem != "" {
					phase = "as rank 0 says: " + mine.problem
				}
			}
			return nil, fmt.Errorf("%w: rank %d of %d of %s waited %s%s",
				context.Cause(j.ctx), me, j.config.Size, j.group(), phase, hint)
		}
	}
}

// trust tells whether rank 0 holds this rank's secret. A roster with a problem says itself what is
// wrong, and grants nothing.
func (j *joiner) trust(r *rosterRecord) error {
	switch {
	case r.problem != "" || !j.own.keyed && !r.keyed:
		return nil
	case j.own.keyed && !r.authentic(j.config.Secret):
		return j.mismatch(fmt.Sprintf("the roster was not written with the secret that rank %d was given", j.config.Rank))
	case !j.own.keyed:
		return j.mismatch(fmt.Sprintf("rank 0 was given a secret, rank %d none", j.config.Rank))
	}
	return nil
}

// roster is what the caller gets of an agreed record.
func (j *joiner) roster(r *rosterRecord) *Roster {
	o := &Roster{Job: r.job, Group: binary.LittleEndian.Uint64(r.nonce[:]), Members: r.members, Secret: r.secret[:]}
	if j.own.keyed {
		key := seal(j.config.Secret, "goccl group", r.nonce[:])
		o.Secret = key[:]
	}
	return o
}

// newNonce returns fresh random bytes, of which the first eight are not all zero: zero stands for
// "none".
func newNonce() (n nonce) {
	for binary.LittleEndian.Uint64(n[:]) == 0 {
		random(n[:])
	}
	return n
}

func random(b []byte) {
	// crypto/rand never fails on Linux: it ends the process instead.
	_, _ = rand.Read(b)
}
