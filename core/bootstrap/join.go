package bootstrap

import (
	"bytes"
	"context"
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/goccl/goccl/core/internal/printable"
)

// ErrMismatch is wrapped by an error that tells of ranks whose settings or records do not fit
// together.
var ErrMismatch = errors.New("the ranks do not agree")

// ErrUnfit is wrapped by an error that tells why a rank's Check has failed.
var ErrUnfit = errors.New("the ranks cannot work together")

// ErrAbsent is wrapped by an error that names ranks that have not joined within rank 0's time.
var ErrAbsent = errors.New("not all ranks have joined")

// AbsentError is an error that wraps ErrAbsent, and names the ranks that have not joined.
type AbsentError struct {
	Ranks []int // in ascending order
	text  string
	cause error // why this rank waits no longer; nil where rank 0 has given up
}

func (e *AbsentError) Error() string { return e.text }

// Unwrap returns ErrAbsent and the cause.
func (e *AbsentError) Unwrap() []error { return []error{ErrAbsent, e.cause} }

// ErrInvalid is wrapped by an error that tells of a bad argument on this rank.
var ErrInvalid = errors.New("invalid argument")

// Setting is a setting that must be the same on all ranks.
type Setting struct{ Name, Value string }

// JoinConfig is what a rank brings to [Join].
type JoinConfig struct {
	Rank, Size int
	// GroupName and Incarnation are part of every key, so that groups of one job, and the runs of
	// one job, keep apart.
	GroupName, Incarnation string
	// Secret is the job's. With it, every rank must hold the same; it is never written into the
	// store. Without it, rank 0 puts a fresh one there.
	Secret string
	// Settings must have the same names, in the same order, and the same values on all ranks. Where
	// they differ there is no group, and all ranks are told which, and whose.
	Settings []Setting
	// Member is handed to all ranks as it is.
	Member []byte
	// Problem tells why this rank can be in no group; "" where it can. Then there is none, and all
	// ranks that come within a moment are told so.
	Problem string
	// Check, where it is set, tells whether this rank can work with the others, given what they
	// publish. Its error is told to all ranks, and there is no group. It may be called several
	// times: those that it is asked about may turn out to be of an earlier run.
	Check func(members [][]byte) error
}

// Roster is what all ranks know of their group once they have joined.
type Roster struct {
	Job, Group uint64   // Group is fresh random data
	Secret     []byte   // of this group: 32 bytes
	Members    [][]byte // by rank
}

const (
	patience      = time.Second // for a store that has been asked when the context ends
	maxStoreError = 2 << 10     // bytes of a store's error
	maxShown      = 512         // bytes of a setting's value in an error

	oneSecret   = "GOCCL_SECRET must be the same on all ranks"
	sameMeeting = "all must be given the same store, size, group name and incarnation"
)

// Ranks poll the store: a torch store can wait for a key, but not for one to change.
const (
	pollFirst = 500 * time.Microsecond
	pollLast  = 50 * time.Millisecond
)

// Linger is how long a rank that can be in no group stays to tell the others, and how long rank 0
// stays, once it is certain that there can be no group, for ranks that come late to be told.
const Linger = 3 * time.Second

// Join makes a group of all ranks that call it with the same store, incarnation and name, and
// returns when all have. The context bounds it.
//
// # Protocol
//
// A store may hold the keys of dead runs, under the very same names. So nothing in it is believed
// unless it holds a nonce that its reader has just made:
//
//	join/<r>     by rank r:  a fresh nonce, and what r says of itself
//	roster       by rank 0:  the group's fresh nonce, and the joins of all ranks
//	confirm/<r>  by rank r:  the group's nonce, once r has found its own join in the roster, and whether it
//	                         can be in that group
//	go           by rank 0:  the group's nonce, once all have confirmed it
//	heard/<r>    by rank r:  the group's nonce, where it is that of no group: rank 0, whose process may
//	                         keep the store, stays until then
//
// Rank 0 cannot tell a stale join from a fresh one and may list it; but a dead rank confirms
// nothing, and when its successor joins, rank 0 writes a new roster with a new nonce. A rank that
// died after it confirmed is noticed in the same way until rank 0 writes go.
//
// Settings that do not fit are told through the roster as well. They are believed once the ranks
// concerned have confirmed it: before, their joins may be stale. For the same reason a failed Check
// is believed once all ranks have confirmed.
//
// # Trust
//
// Where the ranks have a secret, each join and the roster are sealed with it as a whole.
// Confirmations and go are sealed with the group's secret, which is made of the job's and of the
// whole roster: see groupSecret. So who can write the store, but does not hold the secret, can keep
// a group from being made, and no more.
//
// Without a secret the group's lies in the store, and who can read and write the store can be a
// member. Who can write it without reading knows no nonce, and a rank believes no roster without
// its own. A rank compares its own join in the roster byte for byte with what it wrote, so a change
// of it is noticed. A roster that is changed for one reader gives that reader another secret, and
// rank 0 notices that by its confirmation, unless who changes the one also writes the other, with
// the secret that it has read.
func Join(ctx context.Context, s Store, c JoinConfig) (*Roster, error) {
	if err := c.check(s); err != nil {
		return nil, err
	}
	j := &joiner{ctx: ctx, store: s, config: c, wait: pollFirst}
	j.prefix = "goccl/" + url.PathEscape(c.Incarnation) + "/" + url.PathEscape(c.GroupName) + "/"
	j.own = &joinRecord{rank: c.Rank, size: c.Size, nonce: newNonce(), keyed: c.Secret != "",
		problem: printable.Text(c.Problem, maxProblem), settings: c.Settings, member: c.Member}
	if j.own.keyed {
		var err error
		if j.job, err = jobKey(c.Secret, c.Incarnation); err != nil {
			return nil, err
		}
		key := Seal(j.job, "goccl meeting", []byte(j.prefix))
		j.key = string(key[:])
	}
	if c.Problem != "" {
		var cancel context.CancelFunc
		j.ctx, cancel = context.WithTimeout(ctx, Linger)
		defer cancel()
	}
	j.own.encode(j.key)
	j.joins = []*joinRecord{j.own}
	if c.Size == 1 {
		r := j.newRoster("", 0)
		r.encode(j.key)
		if err := j.check(r); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrUnfit, err)
		}
		return j.roster(r), nil
	}
	if err := j.set(j.joinKey(c.Rank), j.own.encoded); err != nil {
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
	case len(c.Settings) > MaxSettings:
		return bad("number of settings", len(c.Settings), fmt.Sprintf("up to %d", MaxSettings))
	case s == nil && c.Size > 1:
		return bad("store", "missing", "none only where size is 1")
	}
	for i, t := range c.Settings {
		if len(t.Name) > MaxSetting || len(t.Value) > MaxSetting {
			return bad(fmt.Sprintf("setting %d", i), fmt.Sprintf("%d and %d bytes long", len(t.Name), len(t.Value)),
				fmt.Sprintf("up to %d", MaxSetting))
		}
		if printable.Text(t.Name+t.Value, 2*MaxSetting) != t.Name+t.Value {
			return bad("setting "+strconv.Quote(t.Name), strconv.Quote(t.Value), "printable text")
		}
	}
	return nil
}

type joiner struct {
	ctx    context.Context
	store  Store
	config JoinConfig
	prefix string
	job    string // the key of all that the job seals; "" without a secret
	key    string // the key of this meeting; "" without a secret
	own    *joinRecord
	wait   time.Duration

	// Rank 0's.
	joins    []*joinRecord    // by rank; longer than the size where another rank counts more ranks
	confirms []*confirmRecord // of the roster in the store, by rank
}

func (j *joiner) joinKey(r int) string    { return fmt.Sprintf("join/%d", r) }
func (j *joiner) confirmKey(r int) string { return fmt.Sprintf("confirm/%d", r) }
func (j *joiner) heardKey(r int) string   { return fmt.Sprintf("heard/%d", r) }

func (j *joiner) set(key string, value []byte) error {
	_, err := j.ask("writing %q to the store", key, func(key string) ([]byte, error) { return nil, j.store.Set(key, value) })
	return err
}

// get returns nil where there is no value.
func (j *joiner) get(key string) ([]byte, error) {
	return j.ask("reading %q from the store", key, func(key string) ([]byte, error) {
		v, ok, err := j.store.Get(key)
		if !ok {
			v = nil
		}
		return v, err
	})
}

// ask has the store do something. A store is foreign code, which may not return: its host may stand
// still. So it is waited for until the context ends, and a moment longer, for it may just be about
// to answer. What comes after that is dropped.
func (j *joiner) ask(what, key string, f func(key string) ([]byte, error)) ([]byte, error) {
	type answer struct {
		value []byte
		err   error
	}
	answers := make(chan answer, 1)
	begun := time.Now()
	failed := func(err error) error {
		return fmt.Errorf("rank %d of %s: %s: %w (look at the log of the process that keeps the store: rank 0, or the launcher)",
			j.config.Rank, j.group(), fmt.Sprintf(what, j.prefix+key), err)
	}
	go func() {
		defer func() {
			if p := recover(); p != nil {
				answers <- answer{err: fmt.Errorf("it has panicked: %v", p)}
			}
		}()
		v, err := f(j.prefix + key)
		answers <- answer{v, err}
	}()
	var a answer
	select {
	case a = <-answers:
	case <-j.ctx.Done():
		t := time.NewTimer(patience)
		defer t.Stop()
		select {
		case a = <-answers:
		case <-t.C:
			return nil, failed(&storeSilent{time.Since(begun).Round(time.Millisecond), context.Cause(j.ctx)})
		}
	}
	if a.err != nil {
		return nil, failed(printable.Error(a.err, maxStoreError))
	}
	return a.value, nil
}

// storeSilent is the failure of a store that does not answer.
type storeSilent struct {
	waited time.Duration
	cause  error // why it is waited for no longer
}

func (e *storeSilent) Error() string { return fmt.Sprintf("it has not answered within %v", e.waited) }

func (e *storeSilent) Unwrap() error { return e.cause }

// end tells why the context has ended.
func (j *joiner) end() string {
	if errors.Is(context.Cause(j.ctx), context.DeadlineExceeded) {
		return "the time is up"
	}
	return "it was given up"
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
		return true, j.set(key, j.own.encoded)
	case !bytes.Equal(v, j.own.encoded):
		return false, fmt.Errorf("%w: another process joined %s as rank %d after this one: every rank may be started once, "+
			"and nobody else may write to the store", ErrMismatch, j.group(), j.config.Rank)
	}
	return false, nil
}

// lead is rank 0's part.
func (j *joiner) lead() (*Roster, error) {
	j.joins = append(j.joins, make([]*joinRecord, j.config.Size-1)...)
	var roster *rosterRecord // the one in the store
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
				unfit = j.check(roster) // while the others do the same
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
				if err := j.set("go", j.word(roster)); err != nil {
					return nil, err
				}
				return j.roster(roster), nil
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
			line = fmt.Sprintf("rank %d was given another secret than rank 0, or its record was changed in the store: "+
				oneSecret, r)
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
			return fmt.Sprintf("%s is %q on rank %d and %q on rank %d: it must be the same on all ranks", s.Name,
				printable.Text(s.Value, maxShown), j.rank, printable.Text(o.settings[i].Value, maxShown), o.rank)
		}
	}
	if n := len(j.settings); n < len(o.settings) {
		return fmt.Sprintf("%s is set on rank %d, and not known on rank %d", o.settings[n].Name, o.rank, j.rank)
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

// check asks whether this rank can be in the group of a roster.
func (j *joiner) check(r *rosterRecord) error {
	if j.config.Check == nil {
		return nil
	}
	return j.config.Check(r.members())
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
			lines = append(lines, fmt.Sprintf("rank %d has read another roster than rank 0 wrote: it was changed in the store", r))
			why = causeMismatch
		}
	}
	return list(lines), why
}

func (j *joiner) newRoster(problem string, why cause) *rosterRecord {
	r := &rosterRecord{keyed: j.own.keyed, problem: printable.Text(problem, maxProblem), cause: why, size: j.config.Size,
		nonce: newNonce()}
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
// group's.
func (j *joiner) word(r *rosterRecord) []byte {
	if r.problem != "" {
		return r.nonce[:]
	}
	proof := Seal(string(r.groupSecret(j.key)), "goccl go")
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
	if j.set("go", j.word(roster)) != nil {
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

// refused is the error that a roster with a problem stands for.
func (j *joiner) refused(r *rosterRecord) error {
	kind := ErrMismatch
	switch r.cause {
	case causeAbsent:
		e := &AbsentError{text: "not all ranks have joined: rank 0 has given up: " + r.problem}
		for rank, n := range r.nonces[:r.size] {
			if n == (nonce{}) {
				e.Ranks = append(e.Ranks, rank)
			}
		}
		return e
	case causeUnfit:
		kind = ErrUnfit
	}
	return fmt.Errorf("%w: %s cannot be made: %s", kind, j.group(), r.problem)
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
		_ = j.set("go", j.word(note))
	}
	return &AbsentError{late, j.end() + ": not all ranks have joined: " + text, context.Cause(j.ctx)}
}

// follow is the part of every rank but 0.
func (j *joiner) follow() (*Roster, error) {
	me := j.config.Rank
	var mine *rosterRecord // the roster that this rank has confirmed
	var word []byte        // what rank 0 writes when it is settled; nil where this rank cannot be in its group
	var last []byte        // the roster read last
	hint := ""
	for {
		v, err := j.get("roster")
		if err != nil {
			return nil, err
		}
		// After the roster, which may be of the next group under these keys already: rank 0 has then
		// written go for this rank's group before, and leaves it until this rank confirms.
		if word != nil {
			g, err := j.get("go")
			if err != nil {
				return nil, err
			}
			if bytes.Equal(g, word) {
				if mine.problem != "" {
					_ = j.set(j.heardKey(me), mine.nonce[:]) // else rank 0 stays a little longer
					return nil, j.refused(mine)
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
				mine, word, hint, progress = rec, j.word(rec), "", true
				if hint, err = j.confirm(rec); err != nil {
					return nil, err
				}
				if hint != "" {
					word = nil
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
			waited := &AbsentError{text: fmt.Sprintf("%s: rank %d of %d of %s waited %s%s", j.end(), me, j.config.Size,
				j.group(), phase, hint), cause: context.Cause(j.ctx)}
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
		} else if unfit := j.check(r); unfit != nil {
			c.problem, c.cause = printable.Text(unfit.Error(), maxProblem), causeUnfit
			objection = "; " + c.problem
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
		return fmt.Sprintf("the roster was not written with the secret that rank %d was given, or was changed in the store", me)
	case !j.own.keyed && r.keyed:
		return fmt.Sprintf("rank 0 was given a secret, rank %d none: "+oneSecret, me)
	case !bytes.Equal(r.joins[me].encoded, j.own.encoded):
		return fmt.Sprintf("the roster holds another record of rank %d than that rank wrote: it was changed in the store", me)
	}
	return ""
}

// roster is what the caller gets of an agreed record.
func (j *joiner) roster(r *rosterRecord) *Roster {
	return &Roster{Job: r.job, Group: binary.LittleEndian.Uint64(r.nonce[:]), Members: r.members(), Secret: r.groupSecret(j.key)}
}

const (
	// A secret of so many bytes is taken to be random. One that is shorter may be a word, which a
	// reader of the store, where proofs lie, can guess: then each guess is to cost much.
	longSecret = 32
	stretching = 600_000
)

// stretched holds the keys that have been made of short secrets: making one takes some tenths of a
// second.
var stretched = struct {
	sync.Mutex
	keys map[[2]string]string // by secret and incarnation; guarded by the mutex
}{keys: map[[2]string]string{}}

// jobKey is the key of all that the ranks of a job seal.
func jobKey(secret, incarnation string) (string, error) {
	if len(secret) >= longSecret {
		key := Seal(secret, "goccl secret", []byte(incarnation))
		return string(key[:]), nil
	}
	stretched.Lock()
	defer stretched.Unlock()
	which := [2]string{secret, incarnation}
	if key, ok := stretched.keys[which]; ok {
		return key, nil
	}
	key, err := pbkdf2.Key(sha256.New, secret, []byte("goccl secret\x00"+incarnation), stretching, secretSize)
	if err != nil {
		return "", fmt.Errorf("stretching the secret: %w", err)
	}
	stretched.keys[which] = string(key)
	return string(key), nil
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
