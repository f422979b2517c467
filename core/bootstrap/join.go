package bootstrap

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"strconv"
	"time"

	"github.com/goccl/goccl/core/internal/printable"
	"github.com/goccl/goccl/core/internal/seal"
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
	// Attempt is what a launcher tells a rank of how often it has started it anew. It need not be the
	// same on all ranks of a group, for agents of a launcher may count apart. But where it differs a
	// rank may be a stale one: see doubt.
	Attempt string
	// Secret is the job's. With it, every rank must hold the same; it is never written into the
	// store. Without it, rank 0 puts a fresh one there.
	Secret string
	// Settings must have the same names, in the same order, and the same values on all ranks. Where
	// they differ there is no group, and all ranks are told which, and whose.
	Settings []Setting
	// Member is handed to all ranks as it is.
	Member Member
	// Problem tells why this rank can be in no group; "" where it can. Then there is none, and all
	// ranks that come within a moment are told so.
	Problem string
	// Check, where it is set, tells whether this rank can work with the others, given what they
	// publish. Its error is told to all ranks, and there is no group. Its answers are counted, see
	// Roster.Unanimous. It may be called several times: those that it is asked about may turn out
	// to be of an earlier run. It is called on Join's own goroutine.
	Check func(members []Member) (Answers, error)
	// Listen are the addresses of this process at which other hosts reach it: there ranks hand on
	// what is large. Without them it passes through the store.
	Listen []netip.Addr

	host string // in tests: keeps ranks of one machine apart, as if they were on several
}

// Member is what a rank publishes of itself.
type Member struct {
	Own    []byte // no other rank has the same
	Shared []byte // others have it, too: all ranks are handed each such text once
}

// Answers are to questions that are the same on all ranks: a bit each, which is 1 for yes.
type Answers uint8

// Roster is what all ranks know of their group once they have joined.
type Roster struct {
	Job, Group uint64   // Group is fresh random data
	Secret     []byte   // of this group: 32 bytes
	Members    []Member // by rank
	Unanimous  Answers  // yes where the Check of each rank has said yes
}

const (
	patience      = time.Second // for a store that has been asked when the context ends
	maxStoreError = 2 << 10     // bytes of a store's error
	maxShown      = 512         // bytes of a setting's value in an error

	oneSecret   = "GOCCL_SECRET must be the same on all ranks"
	sameMeeting = "all must be given the same store, size, group name and incarnation"
)

// Linger is how long a rank that can be in no group stays to tell the others, and how long rank 0
// stays, once it is certain that there can be no group, for ranks that come late to be told.
const Linger = 3 * time.Second

// doubt is for how long no rank must have joined before rank 0 believes in a group of ranks that
// were told different attempts. Ranks of an earlier attempt, which may live on for a moment, are
// replaced by then.
const doubt = 3 * time.Second

// Join makes a group of all ranks that call it with the same store, incarnation and name, and
// returns when all have. The context bounds it.
//
// # Protocol
//
// A store may hold the keys of dead runs, under the very same names. So nothing in it is believed
// unless it holds a nonce that its reader has just made:
//
//	newest       by rank r:  a fresh nonce
//	join/<r>     by rank r:  the same nonce, and what r says of itself
//	table        by rank 0:  the joins of all ranks, in short
//	roster       by rank 0:  the group's fresh nonce, and the digest of the table
//	news         by rank 0:  the name of the roster, and the word that settles one; see below
//	confirm/<r>  by rank r:  the group's nonce, once r has found its own join in the roster,
//	                         whether it can be in that group, and the answers of its Check
//	twice/<r>    by rank r:  the nonce of the join that has taken the place of its own
//	heard/<r>    by rank r:  the group's nonce, where it is that of no group: rank 0, whose process
//	                         may keep the store, stays until then
//
// Ranks poll the news, which are 65 bytes, and read a roster once. A large table comes from rank 0
// along a tree of hosts: see share.go. Once all have confirmed a roster rank 0 adds the word to the
// news: that nonce, to what all have answered yes, and a proof of both. The word stays when the
// news are of the next roster already, for a rank may still wait for it: until all have confirmed
// that one.
//
// Rank 0 cannot tell a stale join from a fresh one and may list it; but a dead rank confirms
// nothing. Rank 0 reads the joins of those that have not confirmed again, and when a successor has
// joined it writes a new roster with a new nonce. One that joins after a rank has confirmed is
// noticed until rank 0 gives the word, as newest has changed. A rank that finds another's join in
// the place of its own leaves: the last process that has joined as a rank is that rank.
//
// A live rank may be of an earlier attempt of a launcher that has started all anew. Where no rank's
// attempt differs from rank 0's the ranks are of one, or cannot be told apart. Else rank 0 believes
// what all have confirmed only once no rank has joined for a while.
//
// Settings that do not fit are told through the roster as well. They are believed once the ranks
// concerned have confirmed it: before, their joins may be stale. For the same reason a failed Check
// is believed once all ranks have confirmed. A rank that cannot write records has a way of its own:
// see out.go.
//
// # Trust
//
// Where the ranks have a secret, each join and the roster are sealed with it as a whole, and the
// table by its digest. Confirmations and the word are sealed with the group's secret, which is made
// of the job's and of the whole roster: see groupSecret. So a writer of the store that does not
// hold the secret can keep a group from being made, and have ranks read what it writes. They dial
// no address of its choice.
//
// Without a secret the group's lies in the store, and a process that can read and write it can be a
// member. One that can write it without reading knows no nonce, and a rank believes no roster
// without its own. A rank compares its own row in the roster with what it wrote, so a change of
// that is noticed. A roster that is changed for one reader gives that reader another secret, and
// rank 0 notices that by its confirmation, unless the attacker also writes the confirmation, with
// the secret that it has read.
func Join(ctx context.Context, s Store, c JoinConfig) (*Roster, error) {
	if err := c.check(s); err != nil {
		return nil, err
	}
	j := &joiner{ctx: ctx, store: s, config: c, wait: pollFirst, first: pollFirst, last: pollLast}
	j.back = func(g func()) { g() }
	j.prefix = "goccl/" + url.PathEscape(c.Incarnation) + "/" + url.PathEscape(c.GroupName) + "/"
	j.own = &joinRecord{rank: c.Rank, size: c.Size, nonce: newNonce(), keyed: c.Secret != "",
		attempt: digestAttempt(c.Attempt), problem: printable.Text(c.Problem, maxProblem),
		settings: digestSettings(c.Settings), member: c.Member}
	if j.own.keyed {
		var err error
		if j.job, err = JobKey(c.Secret, c.Incarnation); err != nil {
			return nil, err
		}
		key := seal.Of(j.job, "goccl meeting", []byte(j.prefix))
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
		r.tabulate()
		r.encode(j.key)
		answers, err := j.check(r)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrUnfit, err)
		}
		return j.roster(r, answers), nil
	}
	var r *Roster
	var err error
	elsewhere(func(back func(func())) {
		j.back = back
		defer j.close()
		if err = j.join(); err != nil {
			return
		}
		if c.Rank == 0 {
			r, err = j.lead()
			return
		}
		// All together ask the store about as often as it can answer.
		j.first = max(pollFirst, time.Duration(c.Size)*pollEach/10)
		j.last = max(pollLast, time.Duration(c.Size)*pollEach)
		r, err = j.follow()
	})
	return r, err
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
		return bad("group name", fmt.Sprintf("%d bytes long", len(c.GroupName)),
			fmt.Sprintf("up to %d", MaxName))
	case len(c.Incarnation) > MaxName:
		return bad("incarnation", fmt.Sprintf("%d bytes long", len(c.Incarnation)),
			fmt.Sprintf("up to %d", MaxName))
	case max(len(c.Member.Own), len(c.Member.Shared)) > MaxMember:
		return bad("member", fmt.Sprintf("%d and %d bytes long", len(c.Member.Own),
			len(c.Member.Shared)), fmt.Sprintf("up to %d each", MaxMember))
	case len(c.Settings) > MaxSettings:
		return bad("number of settings", len(c.Settings), fmt.Sprintf("up to %d", MaxSettings))
	case s == nil && c.Size > 1:
		return bad("store", "missing", "none only where size is 1")
	}
	for i, t := range c.Settings {
		if len(t.Name) > MaxSetting || len(t.Value) > MaxSetting {
			return bad(fmt.Sprintf("setting %d", i),
				fmt.Sprintf("%d and %d bytes long", len(t.Name), len(t.Value)),
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
	back   func(func()) // calls on the goroutine that has called Join
	stood  time.Time    // when this rank's join was last seen in the store

	wait, first, last time.Duration // between polls: the next one, the least and the longest

	sharing *Root // that serves a table to other ranks; nil where there is none

	leading
}

// leading is what only rank 0 has.
type leading struct {
	news     news
	joins    []*joinRecord    // by rank; longer than the size where another rank counts more ranks
	confirms []*confirmRecord // of the roster in the store, by rank
	newest   []byte           // what stood there before that roster was written
	// The rank that each scan goes on with.
	nextJoin, nextConfirm, nextHeard int
	// A roster with gaps is written after silence, of twice the time after each.
	gaps  time.Time
	quiet time.Duration
	sure  time.Time // when ranks of different attempts are believed
}

func (j *joiner) joinKey(r int) string { return fmt.Sprintf("join/%d", r) }

func (j *joiner) confirmKey(r int) string { return fmt.Sprintf("confirm/%d", r) }

func (j *joiner) twiceKey(r int) string { return fmt.Sprintf("twice/%d", r) }

func (j *joiner) heardKey(r int) string { return fmt.Sprintf("heard/%d", r) }

func (j *joiner) group() string {
	g := fmt.Sprintf("group %q", j.config.GroupName)
	if j.config.Incarnation != "" {
		g += fmt.Sprintf(" (incarnation %q)", j.config.Incarnation)
	}
	return g
}

// check asks whether this rank can be in the group of a roster.
func (j *joiner) check(r *rosterRecord) (Answers, error) {
	if j.config.Check == nil {
		return 0, nil
	}
	answers, err := Answers(0), errors.New("a defect: its check has panicked")
	j.back(func() { answers, err = j.config.Check(r.members) })
	return answers, err
}

// refused is the error that a roster with a problem stands for.
func (j *joiner) refused(r *rosterRecord) error {
	kind := ErrMismatch
	switch r.cause {
	case causeAbsent:
		return &AbsentError{Ranks: r.unlisted(),
			text: "not all ranks have joined: rank 0 has given up: " + r.problem}
	case causeUnfit:
		kind = ErrUnfit
	}
	return fmt.Errorf("%w: %s cannot be made: %s", kind, j.group(), r.problem)
}

// roster is what the caller gets of an agreed record.
func (j *joiner) roster(r *rosterRecord, unanimous Answers) *Roster {
	return &Roster{Job: r.job, Group: binary.LittleEndian.Uint64(r.nonce[:]), Members: r.members,
		Secret: r.groupSecret(j.key), Unanimous: unanimous}
}
