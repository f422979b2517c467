package bootstrap

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// meddled is a store as one rank sees it, between which and the rank somebody changes what is read.
type meddled struct {
	Store
	change func(key string, value []byte) []byte
}

func (m *meddled) Get(key string) ([]byte, bool, error) {
	v, ok, err := m.Store.Get(key)
	if ok && err == nil {
		v = m.change(strings.TrimPrefix(key, "goccl//g/"), v)
	}
	return v, ok, err
}

// forge changes the roster and its table as a rank sees them, and all by which those are known.
func forge(s Store, table, roster func(b []byte) []byte) func(key string, value []byte) []byte {
	forged := func() (news, *rosterRecord) {
		n, _, _ := s.Get("goccl//g/news")
		b, _, _ := s.Get("goccl//g/roster")
		t, _, _ := s.Get("goccl//g/table")
		r, err := decodeRoster(b)
		if err != nil {
			return news{}, &rosterRecord{}
		}
		r.table = table(t)
		digest := sha256.Sum256(r.table)
		b = bytes.Replace(b, r.digest[:], digest[:], 1)
		r.encoded = roster(b)
		o := decodeNews(n)
		o.roster = r.name()
		return o, r
	}
	return func(key string, value []byte) []byte {
		n, r := forged()
		switch key {
		case "table":
			return r.table
		case "roster":
			return r.encoded
		case "news":
			return n.encode()
		}
		return value
	}
}

// meddle has ranks join through a store whose answers are changed for one of them.
func meddle(
	ctx context.Context, s Store, configs []JoinConfig, reader int,
	change func(key string, value []byte) []byte,
) []result {
	results := make(chan result)
	for _, c := range configs {
		own := s
		if c.Rank == reader {
			own = &meddled{s, change}
		}
		go func() {
			r, err := Join(ctx, own, c)
			results <- result{c.Rank, r, err}
		}()
	}
	out := make([]result, len(configs))
	for range configs {
		r := <-results
		out[r.rank] = r
	}
	return out
}

// TestJoinNoticesChanges has an attacker who can write the store, but holds no secret, change what
// ranks publish. Nobody has a group then, and the rank that is attacked is told so.
func TestJoinNoticesChanges(t *testing.T) {
	same := func(b []byte) []byte { return b }
	swap := func(old, new string) func(b []byte) []byte {
		return func(b []byte) []byte { return bytes.ReplaceAll(b, []byte(old), []byte(new)) }
	}
	replace := func(key, old, new string) func(string, []byte) []byte {
		return func(k string, v []byte) []byte {
			if k != key {
				return v
			}
			return bytes.ReplaceAll(v, []byte(old), []byte(new))
		}
	}
	for _, test := range []struct {
		name   string
		reader int
		change func(key string, value []byte) []byte // where the roster is left as it is
		table  func(b []byte) []byte                 // where it is forged
		roster func(b []byte) []byte
		open   string // what is told where the ranks have no secret
		keyed  string // and where they have one
	}{
		{"an address in a join", 0, replace("join/1", "member 1", "member X"), nil, nil,
			"the roster holds another record of rank 1 than that rank wrote",
			"rank 1 was given another secret than rank 0, or its record was changed"},
		{"a setting in a join", 0, func(k string, v []byte) []byte {
			if k == "join/1" {
				v[len(joinMagic)+9+nonceSize+len(attemptDigest{})] ^= 1
			}
			return v
		}, nil, nil, "rank 1 has other settings than rank 0, or its record was changed in the store",
			"rank 1 was given another secret than rank 0, or its record was changed"},
		{"a size in a join", 0, func(k string, v []byte) []byte {
			if k == "join/1" {
				binary.LittleEndian.PutUint32(v[len(joinMagic)+5:], 4)
			}
			return v
		}, nil, nil, "rank 1 was started with size 4, rank 0 with size 3",
			"rank 1 was given another secret than rank 0, or its record was changed"},
		{"another's address in a roster", 1, nil, swap("member 2", "member X"), same,
			"rank 1 has read another roster than rank 0 wrote",
			"the roster was not written with the secret that rank 1 was given, or was changed"},
		{"a rank's own address in a roster", 1, nil, swap("member 1", "member X"), same,
			"the roster holds another record of rank 1 than that rank wrote",
			"the roster was not written with the secret that rank 1 was given, or was changed"},
		{"the job in a roster", 1, nil, same, func(b []byte) []byte {
			b[len(rosterMagic)+2+nonceSize] ^= 1
			return b
		}, "rank 1 has read another roster than rank 0 wrote",
			"the roster was not written with the secret that rank 1 was given, or was changed"},
		{"the answer in a confirmation", 0, func(k string, v []byte) []byte {
			if k == "confirm/1" {
				v[len(confirmMagic)+2] ^= 1
			}
			return v
		}, nil, nil, "rank 1 has read another roster than rank 0 wrote",
			"rank 1 has read another roster than rank 0 wrote"},
	} {
		for _, secret := range []string{"", strings.Repeat("s", longSecret)} {
			t.Run(fmt.Sprintf("%s, keyed %v", test.name, secret != ""), func(t *testing.T) {
				t.Parallel()
				configs := ranks(3)
				for i := range configs {
					configs[i].Secret, configs[i].Settings = secret, []Setting{{"transport", "best"}}
				}
				want := test.open
				if secret != "" {
					want = test.keyed
				}
				s, change := NewMemStore(), test.change
				if change == nil {
					change = forge(s, test.table, test.roster)
				}
				for _, r := range meddle(within(t, limit), s, configs, test.reader, change) {
					if !errors.Is(r.err, ErrMismatch) || !strings.Contains(r.err.Error(), want) {
						t.Errorf("rank %d: %v, want %q", r.rank, r.err, want)
					}
				}
			})
		}
	}
}

// TestJoinWaitsForAWholeRoster changes the table or the roster alone. It may be rank 0 writing the
// next one: the reader has no group, and tells why when its time is up.
func TestJoinWaitsForAWholeRoster(t *testing.T) {
	for _, key := range []string{"table", "roster"} {
		t.Run(key, func(t *testing.T) {
			t.Parallel()
			results := meddle(within(t, 3*time.Second), NewMemStore(), ranks(3), 1,
				func(k string, v []byte) []byte {
					if k == key {
						v[len(rosterMagic)+2+nonceSize] ^= 1
					}
					return v
				})
			for _, r := range results {
				if !errors.Is(r.err, ErrAbsent) ||
					r.rank == 1 && !strings.Contains(r.err.Error(), "or that was changed") {
					t.Errorf("rank %d: %v", r.rank, r.err)
				}
			}
		})
	}
}

// TestJoinRefusesReplays gives rank 0 a record in rank 1's place that the secret's holders did
// write: that of another rank, of another group, of an earlier run.
func TestJoinRefusesReplays(t *testing.T) {
	secret := strings.Repeat("s", longSecret)
	configs := ranks(3)
	others := ranks(3)
	for i := range configs {
		configs[i].Secret, others[i].Secret, others[i].GroupName = secret, secret, "other"
	}
	s := NewMemStore()
	for _, all := range [][]JoinConfig{others, configs} {
		agree(t, all, joinAll(within(t, limit), s, all))
	}
	for _, key := range []string{"goccl//g/join/2", "goccl//other/join/1", "goccl//g/join/1"} {
		replay, ok, _ := s.Get(key)
		if !ok {
			t.Fatal(key)
		}
		t.Run(key, func(t *testing.T) {
			t.Parallel()
			results := meddle(within(t, 3*time.Second), NewMemStore(), configs, 0,
				func(k string, v []byte) []byte {
					if k == "join/1" {
						return replay
					}
					return v
				})
			for _, r := range results {
				if r.err == nil || r.rank == 0 && (!errors.Is(r.err, ErrAbsent) ||
					!strings.Contains(r.err.Error(), "these have not joined group \"g\": 1")) {
					t.Errorf("rank %d: %v", r.rank, r.err)
				}
			}
		})
	}
}

// TestJoinBelievesNoForgedWord has somebody give the word as soon as there is a roster.
func TestJoinBelievesNoForgedWord(t *testing.T) {
	m := NewMemStore()
	var settled atomic.Bool
	var forged nonce
	s := &hooked{Store: m, before: func(key string) {
		if key == "goccl//g/news" {
			v, _, _ := m.Get("goccl//g/confirm/1") // rank 0 gives the word next
			settled.Store(v != nil)
		}
	}}
	configs := ranks(2)
	configs[1].Check = func([]Member) (Answers, error) { return 1, nil }
	agree(t, configs, meddle(within(t, limit), s, configs, 1, func(key string, value []byte) []byte {
		if key != "news" || settled.Load() {
			return value
		}
		v, _, _ := m.Get("goccl//g/roster")
		if r, err := decodeRoster(v); err == nil {
			n := decodeNews(value)
			n.word.nonce, forged = r.nonce, r.nonce
			return n.encode()
		}
		return value
	}))
	if !settled.Load() || forged == (nonce{}) {
		t.Fatal("rank 1 has a group that rank 0 has not settled")
	}
}

// TestJoinBelievesNoForgedAnswers has somebody change what the word says of all ranks' answers.
func TestJoinBelievesNoForgedAnswers(t *testing.T) {
	configs := ranks(2)
	for r := range configs {
		configs[r].Check = func([]Member) (Answers, error) { return 0b101, nil }
	}
	forged := 0
	change := func(key string, value []byte) []byte {
		n := decodeNews(value)
		if key != "news" || n.word.unanimous == 0 || forged == 3 {
			return value
		}
		n.word.unanimous ^= 1 << forged
		forged++
		return n.encode()
	}
	results := meddle(within(t, limit), NewMemStore(), configs, 1, change)
	agree(t, configs, results)
	for _, r := range results {
		if r.roster.Unanimous != 0b101 {
			t.Errorf("rank %d believes %b", r.rank, r.roster.Unanimous)
		}
	}
	if forged == 0 {
		t.Error("the word was not changed")
	}
}

// TestSecretsAreOfTheRoster: ranks that have read different rosters have different secrets.
func TestSecretsAreOfTheRoster(t *testing.T) {
	_, rosters, _ := sampleRecords()
	for i, r := range rosters[:2] {
		c := *r
		c.members = slices.Clone(r.members)
		c.members[2].Own = []byte("mX")
		c.tabulate()
		c.encode("s")
		if bytes.Equal(r.groupSecret("s"), c.groupSecret("s")) ||
			r.keyed && bytes.Equal(r.groupSecret("s"), r.groupSecret("t")) {
			t.Errorf("roster %d: one secret for two rosters", i)
		}
	}
}

func TestShortSecretsAreStretched(t *testing.T) {
	// RFC 7914's test vector is of one round; this is that of two programs that agree: Python's
	// hashlib.pbkdf2_hmac("sha256", b"guess", b"goccl secret\0" + b"7", 600000).hex()
	const want = "9a2f537ddb78c29b73a19ffa3e938282ba539dafe260bf5b469a618feba6c8b1"
	for range 1000 { // it is made once
		key, err := JobKey("guess", "7")
		if err != nil || fmt.Sprintf("%x", key) != want {
			t.Fatalf("%x, %v", key, err)
		}
	}
	for i := range 10000 { // a long one costs nothing
		if _, err := JobKey(fmt.Sprintf("%0*d", longSecret, i), ""); err != nil {
			t.Fatal(err)
		}
	}
}
