package bootstrap

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
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
		change func(key string, value []byte) []byte
		open   string // what is told where the ranks have no secret
		keyed  string // and where they have one
	}{
		{"an address in a join", 0, replace("join/1", "member 1", "member X"),
			"the roster holds another record of rank 1 than that rank wrote",
			"rank 1 was given another secret than rank 0, or its record was changed"},
		{"a setting in a join", 0, replace("join/1", "best", "west"),
			`transport is "best" on rank 0 and "west" on rank 1`,
			"rank 1 was given another secret than rank 0, or its record was changed"},
		{"a size in a join", 0, func(k string, v []byte) []byte {
			if k == "join/1" {
				binary.LittleEndian.PutUint32(v[len(joinMagic)+5:], 4)
			}
			return v
		}, "rank 1 was started with size 4, rank 0 with size 3",
			"rank 1 was given another secret than rank 0, or its record was changed"},
		{"another's address in a roster", 1, replace("roster", "member 2", "member X"),
			"rank 1 has read another roster than rank 0 wrote",
			"the roster was not written with the secret that rank 1 was given, or was changed"},
		{"a rank's own address in a roster", 1, replace("roster", "member 1", "member X"),
			"the roster holds another record of rank 1 than that rank wrote",
			"the roster was not written with the secret that rank 1 was given, or was changed"},
		{"the job in a roster", 1, func(k string, v []byte) []byte {
			if k == "roster" {
				v[len(rosterMagic)+2+nonceSize] ^= 1
			}
			return v
		}, "rank 1 has read another roster than rank 0 wrote",
			"the roster was not written with the secret that rank 1 was given, or was changed"},
		{"the answer in a confirmation", 0, func(k string, v []byte) []byte {
			if k == "confirm/1" {
				v[len(confirmMagic)] ^= flagYes
			}
			return v
		}, "rank 1 has read another roster than rank 0 wrote",
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
				for _, r := range meddle(within(t, limit), NewMemStore(), configs, test.reader, test.change) {
					if !errors.Is(r.err, ErrMismatch) || !strings.Contains(r.err.Error(), want) {
						t.Errorf("rank %d: %v, want %q", r.rank, r.err, want)
					}
				}
			})
		}
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
			results := meddle(within(t, time.Second), NewMemStore(), configs, 0,
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

// TestJoinBelievesNoForgedWord has somebody write go as soon as there is a roster.
func TestJoinBelievesNoForgedWord(t *testing.T) {
	m := NewMemStore()
	var settled atomic.Bool
	s := &hooked{Store: m, before: func(key string) {
		if key == "goccl//g/go" {
			settled.Store(true)
		}
	}}
	var forged []byte
	forge := func(key string, value []byte) []byte {
		r, err := decodeRoster(value)
		if key == "roster" && err == nil && !bytes.Equal(forged, r.nonce[:]) {
			forged = r.nonce[:]
			_ = m.Set("goccl//g/go", forged)
		}
		return value
	}
	configs := ranks(2)
	configs[1].Check = func([][]byte) (bool, error) { return true, nil }
	agree(t, configs, meddle(within(t, limit), s, configs, 1, func(key string, value []byte) []byte {
		value = forge(key, value)
		if key == "go" && !settled.Load() && len(value) != nonceSize {
			t.Errorf("go is %x before rank 0 has written it", value)
		}
		return value
	}))
	if !settled.Load() || forged == nil {
		t.Fatal("rank 1 has a group that rank 0 has not settled")
	}
}

// TestSecretsAreOfTheRoster: ranks that have read different rosters have different secrets.
func TestSecretsAreOfTheRoster(t *testing.T) {
	_, rosters, _ := sampleRecords()
	for i, b := range rosters[:2] {
		r, err := decodeRoster(b)
		if err != nil {
			t.Fatal(err)
		}
		at := bytes.Index(b, []byte("mm"))
		changed := bytes.Clone(b)
		changed[at] = 'X'
		c, err := decodeRoster(changed)
		if err != nil {
			t.Fatal(err)
		}
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
		key, err := jobKey("guess", "7")
		if err != nil || fmt.Sprintf("%x", key) != want {
			t.Fatalf("%x, %v", key, err)
		}
	}
	for i := range 10000 { // a long one costs nothing
		if _, err := jobKey(fmt.Sprintf("%0*d", longSecret, i), ""); err != nil {
			t.Fatal(err)
		}
	}
}
