package bootstrap

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// limit is far beyond what a test takes, on however busy a machine; short is for tests that must
// run into it.
const (
	limit = time.Minute
	short = 300 * time.Millisecond
)

func within(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

type result struct {
	rank   int
	roster *Roster
	err    error
}

// comes waits for what others bring about.
func comes[T any](t *testing.T, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(2 * limit):
		t.Fatal("it does not come")
		panic("unreachable")
	}
}

// joinAll runs Join on a goroutine a config and returns results by position.
func joinAll(ctx context.Context, s Store, configs []JoinConfig) []result {
	out := make([]result, len(configs))
	var wg sync.WaitGroup
	for i, c := range configs {
		wg.Go(func() {
			r, err := Join(ctx, s, c)
			if m, ok := s.(*mortalStore); ok && c.Rank == 0 {
				m.dead.Store(true)
			}
			out[i] = result{c.Rank, r, err}
		})
	}
	wg.Wait()
	return out
}

// mortalStore is in rank 0's process, which ends when rank 0 has failed to join.
type mortalStore struct {
	Store
	dead atomic.Bool
}

var errDead = errors.New("the store's process has ended")

func (m *mortalStore) Set(key string, value []byte) error {
	if m.dead.Load() {
		return errDead
	}
	return m.Store.Set(key, value)
}

func (m *mortalStore) Get(key string) ([]byte, bool, error) {
	if m.dead.Load() {
		return nil, false, errDead
	}
	return m.Store.Get(key)
}

func ranks(size int) []JoinConfig {
	var c []JoinConfig
	for r := range size {
		c = append(c, JoinConfig{Rank: r, Size: size, GroupName: "g",
			Member: Member{fmt.Appendf(nil, "member %d", r), []byte("host")}})
	}
	return c
}

// agree checks that all results are one group of the configs.
func agree(t *testing.T, configs []JoinConfig, results []result) {
	t.Helper()
	first := results[0]
	for i, r := range results {
		if r.err != nil {
			t.Fatalf("rank %d: %v", r.rank, r.err)
		}
		if r.roster.Group != first.roster.Group || r.roster.Group == 0 ||
			r.roster.Job != first.roster.Job ||
			!bytes.Equal(r.roster.Secret, first.roster.Secret) || len(r.roster.Secret) != 32 {
			t.Fatalf("ranks %d and %d have different groups", r.rank, first.rank)
		}
		for _, c := range configs {
			if fmt.Sprint(r.roster.Members[c.Rank]) != fmt.Sprint(c.Member) {
				t.Fatalf("rank %d has %q for member %d, not %q", i, r.roster.Members[c.Rank], c.Rank, c.Member)
			}
		}
	}
}

func TestJoin(t *testing.T) {
	for _, size := range []int{1, 2, 3, 8, 33} {
		configs := ranks(size)
		rand.Shuffle(size, func(i, j int) { configs[i], configs[j] = configs[j], configs[i] })
		agree(t, configs, joinAll(within(t, limit), NewMemStore(), configs))
	}
}

func TestJoinAloneNeedsNoStore(t *testing.T) {
	r, err := Join(context.Background(), nil, JoinConfig{Size: 1, Member: Member{Own: []byte("me")}})
	if err != nil || len(r.Secret) != 32 || r.Group == 0 || string(r.Members[0].Own) != "me" {
		t.Fatal(r, err)
	}
}

func TestJoinAgainUnderTheSameKeys(t *testing.T) {
	s := NewMemStore()
	ctx := within(t, limit)
	seen := map[uint64]bool{}
	// Each rank goes on to the next round at its own pace, as after destroy and init.
	results := make([][]result, 3)
	var wg sync.WaitGroup
	for r := range 3 {
		wg.Go(func() {
			for range 20 {
				o, err := Join(ctx, s, ranks(3)[r])
				results[r] = append(results[r], result{r, o, err})
			}
		})
	}
	wg.Wait()
	for round := range 20 {
		one := []result{results[0][round], results[1][round], results[2][round]}
		agree(t, ranks(3), one)
		if seen[one[0].roster.Group] {
			t.Fatal("two rounds have the same group")
		}
		seen[one[0].roster.Group] = true
	}
}

func TestJoinKeepsGroupsApart(t *testing.T) {
	s := NewMemStore()
	var all []JoinConfig
	for _, name := range [][2]string{{"a", ""}, {"a", "1"}, {"a/1", ""}, {"", "a/1"}, {"\x00", "é"}} {
		for _, c := range ranks(2) {
			c.GroupName, c.Incarnation = name[0], name[1]
			all = append(all, c)
		}
	}
	results := joinAll(within(t, limit), s, all)
	seen := map[uint64]bool{}
	for i := 0; i < len(results); i += 2 {
		agree(t, all[i:i+2], results[i:i+2])
		seen[results[i].roster.Group] = true
	}
	if len(seen) != len(all)/2 {
		t.Fatalf("%d groups, want %d", len(seen), len(all)/2)
	}
	for k := range s.(*MemStore).values {
		if strings.Contains(k, "\x00") {
			t.Fatalf("key %q would end early in C", k)
		}
	}
}

// TestJoinOverStaleKeys starts from every state that a dead run may leave: each subset of the keys
// of a finished run of the same ranks.
func TestJoinOverStaleKeys(t *testing.T) {
	old := NewMemStore().(*MemStore)
	configs := ranks(3)
	before := joinAll(within(t, limit), old, configs)
	agree(t, configs, before)
	keys := slices.Sorted(maps.Keys(old.values))
	if len(keys) != 3+2+4 {
		t.Fatalf("keys are %q", keys)
	}
	var wg sync.WaitGroup
	for subset := range 1 << len(keys) {
		s := NewMemStore().(*MemStore)
		for i, k := range keys {
			if subset>>i&1 == 1 {
				_ = s.Set(k, old.values[k])
			}
		}
		wg.Go(func() {
			results := joinAll(within(t, limit), s, configs)
			for _, r := range results {
				if r.err != nil || r.roster.Group != results[0].roster.Group ||
					r.roster.Group == before[0].roster.Group {
					t.Errorf("over keys %b: rank %d: %+v, %v", subset, r.rank, r.roster, r.err)
				}
			}
		})
	}
	wg.Wait()
}

// TestJoinOverStaleKeysLate lets rank 0 publish a roster of stale joins before its ranks come.
func TestJoinOverStaleKeysLate(t *testing.T) {
	s := newWatched()
	configs := ranks(3)
	agree(t, configs, joinAll(within(t, limit), s, configs))
	ctx := within(t, limit)
	written := s.written("goccl//g/roster")
	leader := make(chan result, 1)
	go func() { r, err := Join(ctx, s, configs[0]); leader <- result{0, r, err} }()
	comes(t, written)
	results := joinAll(ctx, s, configs[1:])
	agree(t, configs, append(results, comes(t, leader)))
}

// TestJoinOverAnotherSize restarts a run of three ranks, one of two and one of four under the same
// keys.
func TestJoinOverAnotherSize(t *testing.T) {
	s := newWatched()
	for _, size := range []int{3, 2, 4, 1, 3} {
		configs := ranks(size)
		ctx := within(t, limit)
		written := s.written("goccl//g/join/0")
		leader := make(chan result, 1)
		go func() { r, err := Join(ctx, s, configs[0]); leader <- result{0, r, err} }()
		if size > 1 {
			comes(t, written)
		}
		agree(t, configs, append(joinAll(ctx, s, configs[1:]), comes(t, leader)))
	}
}

func TestJoinOverGarbage(t *testing.T) {
	s := NewMemStore()
	for _, k := range []string{"join/0", "join/1", "newest", "table",
		"roster", "confirm/1", "news"} {
		_ = s.Set("goccl//g/"+k, []byte("garbage"))
	}
	agree(t, ranks(2), joinAll(within(t, limit), s, ranks(2)))
}

// TestJoinRestartInTheMiddle kills a rank at each write of its own and lets a successor join.
func TestJoinRestartInTheMiddle(t *testing.T) {
	for _, key := range []string{"join/1", "confirm/1", "join/0", "roster"} {
		t.Run(key, func(t *testing.T) {
			victim := int(key[len(key)-1] - '0')
			if key == "roster" {
				victim = 0
			}
			s := newWatched()
			configs := ranks(3)
			ctx := within(t, limit)
			// The victim's store ends its life right after the write.
			dying := &mortal{Store: s, last: "goccl//g/" + key}
			// Rank 2 confirms only when the successor has joined: else the group might be made with
			// the victim, which had confirmed it.
			rejoined := make(chan struct{})
			stores := []Store{s, s, &hooked{Store: s, before: func(key string) {
				if key == "goccl//g/confirm/2" {
					<-rejoined
				}
			}}}
			stores[victim] = &hooked{Store: stores[victim], after: func(key string) {
				if key == fmt.Sprintf("goccl//g/join/%d", victim) {
					close(rejoined)
				}
			}}
			results := make(chan result, 3)
			for r := range 3 {
				go func() {
					if r == victim {
						if _, err := Join(ctx, dying, configs[r]); !errors.Is(err, errDied) {
							t.Errorf("the victim ends with %v", err)
						}
					}
					o, err := Join(ctx, stores[r], configs[r])
					results <- result{r, o, err}
				}()
			}
			agree(t, configs, []result{comes(t, results), comes(t, results), comes(t, results)})
		})
	}
}

// A torch FileStore is a file, which its last user before may remove when others have begun to use
// it.
func TestJoinInStoreThatIsEmptied(t *testing.T) {
	for _, key := range []string{"join/0", "join/1", "join/2", "roster", "confirm/1"} {
		t.Run(key, func(t *testing.T) {
			m := NewMemStore().(*MemStore)
			var once sync.Once
			s := &hooked{Store: m, after: func(k string) {
				if k == "goccl//g/"+key {
					once.Do(func() {
						m.mu.Lock()
						defer m.mu.Unlock()
						clear(m.values)
					})
				}
			}}
			agree(t, ranks(3), joinAll(within(t, limit), s, ranks(3)))
		})
	}
}

// TestJoinOfAttempts has agents of a launcher count their restarts apart, so that ranks of one
// attempt have other numbers. They meet, and not with live ranks of an earlier attempt, which have
// come before them to the same keys.
func TestJoinOfAttempts(t *testing.T) {
	type process struct {
		rank, size int
		attempt    string
		at         time.Duration // when it comes
		met        bool          // it is to have a group
	}
	const second = time.Second
	for name, processes := range map[string][]process{
		"one number": {{0, 2, "3", 0, true}, {1, 2, "3", second, true}},
		"two numbers": {{0, 3, "3", 0, true}, {1, 3, "0", 0, true},
			{2, 3, "0", second, true}},
		"and rank 0 has the lower": {{0, 2, "0", 0, true}, {1, 2, "3", 0, true}},
		"no launcher on a host":    {{0, 2, "3", 0, true}, {1, 2, "", 0, true}},
		"a stale rank 1": {{1, 2, "0", 0, false}, {0, 2, "1", second, true},
			{1, 2, "1", 3 * second, true}},
		"a stale rank 0": {{0, 2, "0", 0, false}, {1, 2, "1", second, true},
			{0, 2, "1", 3 * second, true}},
		"all but one stale": {{0, 3, "0", 0, false}, {1, 3, "0", 0, false},
			{2, 3, "1", second, true}, {0, 3, "1", 3 * second, true}, {1, 3, "1", 5 * second, true}},
		"a stale rank that comes while there are two numbers": {{0, 3, "1", 0, true},
			{1, 3, "0", second, false}, {2, 3, "5", second, true}, {1, 3, "5", 3 * second, true}},
		"a stale rank of another size": {{1, 3, "0", 0, false}, {0, 2, "1", second, true},
			{1, 2, "1", 3 * second, true}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := NewMemStore()
				ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
				defer cancel()
				var met []result
				var configs []JoinConfig
				begun := time.Now()
				var wg sync.WaitGroup
				var mu sync.Mutex
				for i, p := range processes {
					c := ranks(p.size)[p.rank]
					c.Attempt, c.Member.Own = p.attempt, fmt.Appendf(nil, "process %d", i)
					if p.met {
						configs = append(configs, c)
					}
					wg.Go(func() {
						time.Sleep(p.at)
						r, err := Join(ctx, s, c)
						mu.Lock()
						defer mu.Unlock()
						switch {
						case p.met:
							met = append(met, result{c.Rank, r, err})
						case !errors.Is(err, ErrMismatch) || !strings.Contains(err.Error(), "after this one"):
							t.Errorf("process %d, which is stale, ends with %v", i, err)
						}
					})
				}
				wg.Wait()
				agree(t, configs, met)
				last := slices.MaxFunc(processes, func(a, b process) int { return int(a.at - b.at) }).at
				if name == "one number" && time.Since(begun) > last+time.Second {
					t.Errorf("the ranks of one attempt are in after %v", time.Since(begun))
				}
			})
		})
	}
}

func TestJoinNamesWhoIsMissing(t *testing.T) {
	s := newWatched()
	configs := ranks(4)
	// Rank 3 was there in an earlier run only.
	agree(t, configs, joinAll(within(t, limit), s, configs))
	delete(s.Store.(*MemStore).values, "goccl//g/join/2")
	confirmed := s.written("goccl//g/confirm/1")
	follower := make(chan error, 1)
	ctx := within(t, limit)
	go func() { _, err := Join(ctx, s, configs[1]); follower <- err }()
	impatient, cancel := context.WithCancel(ctx)
	go func() { <-confirmed; cancel() }()
	_, err := Join(impatient, s, configs[0])
	if !errors.Is(err, ErrAbsent) || !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if !strings.Contains(err.Error(), `not joined group "g"`) ||
		!strings.Contains(err.Error(), ": 2, 3 (") {
		t.Fatal(err)
	}
	// The rank that came is told so by rank 0.
	if err := comes(t, follower); !errors.Is(err, ErrAbsent) || !strings.Contains(err.Error(), "2") {
		t.Fatal(err)
	}
}

func TestJoinWithoutRankZero(t *testing.T) {
	s := NewMemStore()
	_, err := Join(within(t, short), s, ranks(2)[1])
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "rank 1 of 2") ||
		!strings.Contains(err.Error(),
			`rank 1 of 2 of group "g" waited for rank 0, which has not joined`) {
		t.Fatal(err)
	}
	agree(t, ranks(2), joinAll(within(t, limit), s, ranks(2)))
	_, err = Join(within(t, short), s, JoinConfig{Rank: 2, Size: 3, GroupName: "g"})
	if !errors.Is(err, context.DeadlineExceeded) ||
		!strings.Contains(err.Error(), "another size (2, this rank with 3)") {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := Join(ctx, NewMemStore(), ranks(2)[1]); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
}

// Where rank 0 does not come, it may wait for a rank that was not started: that one is named, too.
func TestJoinNamesWhoWasNotStarted(t *testing.T) {
	s := NewMemStore()
	for _, r := range joinAll(within(t, short), s, ranks(5)[1:4]) {
		var absent *AbsentError
		if !errors.As(r.err, &absent) || !slices.Equal(absent.Ranks, []int{0, 4}) ||
			!strings.Contains(r.err.Error(), "these have not joined: 4. Rank 0 may wait for them") {
			t.Error(r.err)
		}
	}
}

// Of two processes with one rank the first is told so, and the others hear of both.
func TestJoinTwice(t *testing.T) {
	s, all := NewMemStore(), ranks(3)
	ctx := within(t, 3*time.Second)
	first, rest := make(chan error, 1), make(chan []result, 1)
	go func() { _, err := Join(ctx, s, all[1]); first <- err }()
	for joined := false; !joined; {
		_, joined, _ = s.Get("goccl//g/join/1")
		runtime.Gosched()
	}
	go func() { rest <- joinAll(ctx, s, all[:2]) }()
	if err := comes(t, first); !errors.Is(err, ErrMismatch) ||
		!strings.Contains(err.Error(), "another process joined") {
		t.Error(err)
	}
	for _, r := range comes(t, rest) {
		var absent *AbsentError
		if !errors.As(r.err, &absent) || !slices.Equal(absent.Ranks, []int{2}) ||
			!strings.Contains(r.err.Error(), "two processes have joined as each of these ranks: 1") {
			t.Error(r.err)
		}
	}
}

func TestJoinSettingsDiffer(t *testing.T) {
	tests := []struct {
		name   string
		change func(c []JoinConfig)
		want   string // a regular expression, as rank 0 may name whichever rank comes first
	}{
		{"greater size", func(c []JoinConfig) { c[1].Size = 4 },
			"rank 1 was started with size 4, rank 0 with size 3"},
		{"lesser size", func(c []JoinConfig) { c[1].Size = 2 },
			"rank 1 was started with size 2, rank 0 with size 3"},
		{"rank 0 counts fewer", func(c []JoinConfig) { c[0].Size = 2 },
			"rank 1 was started with size 3, rank 0 with size 2"},
		{"rank 0 has no secret", func(c []JoinConfig) { c[1].Secret, c[2].Secret = "s", "s" },
			"rank [12] was given a secret, rank 0 none: GOCCL_SECRET must be the same"},
		{"one has no secret", func(c []JoinConfig) { c[0].Secret, c[2].Secret = "s", "s" },
			"rank 0 was given a secret, rank 1 none: GOCCL_SECRET must be the same"},
		{"another secret", func(c []JoinConfig) { c[0].Secret, c[1].Secret, c[2].Secret = "s", "t", "s" },
			"rank 1 was given another secret than rank 0"},
		{"a setting", func(c []JoinConfig) {
			c[1].Settings = []Setting{{"version", "1"}, {"transport", ""}}
		},
			`transport is "tcp" on rank 0 and "" on rank 1: it must be the same on all ranks`},
		{"rank 0's setting", func(c []JoinConfig) {
			c[0].Settings = []Setting{{"version", "2"}, {"transport", "tcp"}}
		},
			`version is "2" on rank 0 and "1" on rank [12]: it must be the same on all ranks`},
		{"an unknown setting", func(c []JoinConfig) { c[2].Settings = []Setting{{"version", "1"}} },
			"transport is set on rank 0, and not known on rank 2"},
		{"a further setting", func(c []JoinConfig) {
			c[2].Settings = append(c[2].Settings, Setting{"colour", "red"})
		},
			"colour is set on rank 2, and not known on rank 0"},
		{"one takes no part", func(c []JoinConfig) { c[1].Problem = "no such interface" },
			"rank 1: no such interface"},
		{"rank 0 takes no part", func(c []JoinConfig) { c[0].Problem = "no such interface" },
			"rank 0: no such interface"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			configs := ranks(3)
			for r := range configs {
				configs[r].Settings = []Setting{{"version", "1"}, {"transport", "tcp"}}
			}
			test.change(configs)
			s := NewMemStore()
			want := regexp.MustCompile(test.want)
			for _, r := range joinAll(within(t, limit), &mortalStore{Store: s}, configs) {
				if !errors.Is(r.err, ErrMismatch) || !want.MatchString(r.err.Error()) {
					t.Errorf("rank %d: %v, want %q", r.rank, r.err, want)
				}
			}
			// What is left of it does not harm the next run.
			agree(t, ranks(3), joinAll(within(t, limit), s, ranks(3)))
		})
	}
}

func TestJoinNamesAllProblems(t *testing.T) {
	configs := ranks(3)
	configs[0].Problem, configs[2].Problem = "no", "neither"
	s := newWatched()
	ctx := within(t, limit)
	var told []chan error
	for _, c := range configs[1:] {
		// One that comes later than rank 0 may find that the others have been told already.
		joined := s.written(fmt.Sprintf("goccl//g/join/%d", c.Rank))
		e := make(chan error, 1)
		go func() { _, err := Join(ctx, s, c); e <- err }()
		comes(t, joined)
		told = append(told, e)
	}
	_, err := Join(ctx, s, configs[0])
	for _, err := range []error{err, comes(t, told[0]), comes(t, told[1])} {
		if !errors.Is(err, ErrMismatch) || !strings.Contains(err.Error(), "rank 0: no; rank 2: neither") {
			t.Error(err)
		}
	}
}

func TestJoinWithSecret(t *testing.T) {
	s := NewMemStore()
	configs := ranks(3)
	for i := range configs {
		configs[i].Secret = "our own secret"
	}
	results := joinAll(within(t, limit), s, configs)
	agree(t, configs, results)
	for k, v := range s.(*MemStore).values {
		if bytes.Contains(v, results[0].roster.Secret) || bytes.Contains(v, []byte(configs[0].Secret)) {
			t.Errorf("%s holds a secret", k)
		}
	}
	again := joinAll(within(t, limit), s, configs)
	agree(t, configs, again)
	if bytes.Equal(again[0].roster.Secret, results[0].roster.Secret) ||
		again[0].roster.Job != results[0].roster.Job {
		t.Error("secrets of two groups of a job must differ, its id must not")
	}
}

// TestJoinRefusesForgedRoster has a store's other user answer a rank without knowing its secret.
func TestJoinRefusesForgedRoster(t *testing.T) {
	for _, keyed := range []bool{false, true} {
		s := newWatched()
		written := s.written("goccl//g/join/1")
		c := ranks(2)[1]
		c.Secret = "s"
		done := make(chan error, 1)
		ctx := within(t, limit)
		go func() { _, err := Join(ctx, s, c); done <- err }()
		comes(t, written)
		v, _, _ := s.Get("goccl//g/join/1")
		j, err := decodeJoin(v)
		if err != nil {
			t.Fatal(err)
		}
		other := &joinRecord{size: 2, nonce: newNonce()}
		other.encode("guess")
		forged := &rosterRecord{keyed: keyed, size: 2, nonce: newNonce(),
			rows: rows{[]mark{other.mark(), j.mark()}, []Member{other.member, j.member}}}
		forged.tabulate()
		forged.encode("guess")
		_ = s.Set("goccl//g/table", forged.table)
		_ = s.Set("goccl//g/roster", forged.encoded)
		n := news{word: word{nonce: forged.nonce}, roster: forged.name()}
		_ = s.Set("goccl//g/news", n.encode())
		if err := comes(t, done); !errors.Is(err, ErrMismatch) ||
			!strings.Contains(err.Error(), "secret") {
			t.Fatal(err)
		}
	}
}

func TestJoinTwiceAsOneRank(t *testing.T) {
	for rank := range 2 {
		s := newWatched()
		written := s.written(fmt.Sprintf("goccl//g/join/%d", rank))
		ctx, cancel := context.WithCancel(within(t, limit))
		first, second := make(chan error, 1), make(chan error, 1)
		go func() { _, err := Join(ctx, s, ranks(2)[rank]); first <- err }()
		comes(t, written)
		go func() { _, err := Join(ctx, s, ranks(2)[rank]); second <- err }()
		if err := comes(t, first); !errors.Is(err, ErrMismatch) ||
			!strings.Contains(err.Error(), fmt.Sprintf("as rank %d", rank)) {
			t.Fatal(err)
		}
		cancel()
		comes(t, second)
	}
}

func TestJoinRefusesBadArguments(t *testing.T) {
	long := strings.Repeat("x", MaxName+1)
	for _, c := range []JoinConfig{
		{Size: 0}, {Size: -1}, {Size: MaxSize + 1}, {Rank: -1, Size: 2}, {Rank: 2, Size: 2},
		{Size: 1, GroupName: long},
		{Size: 1, Incarnation: long}, {Size: 1, Member: Member{Own: make([]byte, MaxMember+1)}},
		{Size: 1, Member: Member{Shared: make([]byte, MaxMember+1)}},
		{Size: 1, Settings: make([]Setting, MaxSettings+1)},
		{Size: 1, Settings: []Setting{{"a", strings.Repeat("x", MaxSetting+1)}}},
		{Size: 1, Settings: []Setting{{"a", "b\n"}}},
	} {
		if _, err := Join(context.Background(), NewMemStore(), c); !errors.Is(err, ErrInvalid) ||
			!strings.Contains(err.Error(), "allowed is") {
			t.Errorf("%d of %d: %v", c.Rank, c.Size, err)
		}
	}
	if _, err := Join(context.Background(), nil, JoinConfig{Size: 2}); !errors.Is(err, ErrInvalid) {
		t.Error(err)
	}
}

func TestJoinStoreFails(t *testing.T) {
	for rank := range 2 {
		_, err := Join(context.Background(), &mortal{Store: NewMemStore(),
			last: fmt.Sprintf("goccl//g/join/%d", rank)}, ranks(2)[rank])
		if !errors.Is(err, errDied) || !strings.Contains(err.Error(), "store") {
			t.Error(err)
		}
	}
}

// watched is a store that tells when a key is written.
type watched struct {
	Store
	mu    sync.Mutex
	waits map[string]chan struct{}
}

func newWatched() *watched {
	return &watched{Store: NewMemStore(), waits: map[string]chan struct{}{}}
}

func (w *watched) written(key string) <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.waits[key] = make(chan struct{})
	return w.waits[key]
}

func (w *watched) Set(key string, value []byte) error {
	err := w.Store.Set(key, value)
	w.mu.Lock()
	defer w.mu.Unlock()
	if c := w.waits[key]; c != nil {
		close(c)
		delete(w.waits, key)
	}
	return err
}

// hooked is a store that calls functions around each Set.
type hooked struct {
	Store
	before, after func(key string)
}

func (h *hooked) Set(key string, value []byte) error {
	if h.before != nil {
		h.before(key)
	}
	err := h.Store.Set(key, value)
	if h.after != nil {
		h.after(key)
	}
	return err
}

var errDied = errors.New("died")

// mortal is the store as seen by a rank that dies after it has written a key.
type mortal struct {
	Store
	last string
	dead bool
}

func (m *mortal) Set(key string, value []byte) error {
	if m.dead {
		return errDied
	}
	m.dead = key == m.last
	return m.Store.Set(key, value)
}

func (m *mortal) Get(key string) ([]byte, bool, error) {
	if m.dead {
		return nil, false, errDied
	}
	return m.Store.Get(key)
}

// sampleRecords returns records of each kind. The rosters have their tables.
func sampleRecords() (join []byte, rosters []*rosterRecord, confirms [][]byte) {
	settings := []Setting{{"version", "1"}, {"transport", ""}}
	j := joinRecord{rank: 1, size: 3, nonce: newNonce(), keyed: true,
		settings: digestSettings(settings),
		member:   Member{[]byte("address"), []byte("host")}}
	var group, none rows
	for r := range 3 {
		one := &joinRecord{rank: r, size: 3, nonce: newNonce(), settings: digestSettings(settings[:r]),
			member: Member{bytes.Repeat([]byte("m"), r), fmt.Appendf(nil, "host %d", r/2)}}
		one.encode("")
		group.marks = append(group.marks, one.mark())
		group.members = append(group.members, one.member)
	}
	none.marks = group.marks
	for _, r := range []*rosterRecord{
		{nonce: newNonce(), job: 7, size: 3, rows: group},
		{nonce: newNonce(), keyed: true, size: 3, rows: group,
			root: []netip.AddrPort{netip.MustParseAddrPort("10.1.2.3:4")}},
		{nonce: newNonce(), size: 2, rows: none, problem: "rank 2 is one too many"},
		{nonce: newNonce(), size: 3, rows: none, problem: "rank 2 has not come", cause: causeAbsent},
	} {
		r.tabulate()
		r.encode("s")
		rosters = append(rosters, r)
	}
	for _, c := range []confirmRecord{
		{nonce: newNonce(), proof: [proofSize]byte{1}},
		{nonce: newNonce(), answers: 0b11},
		{nonce: newNonce(), problem: "no way", cause: causeUnfit},
		{nonce: newNonce(), settings: settings},
		{nonce: newNonce(), settings: settings[:0]},
	} {
		confirms = append(confirms, c.encode())
	}
	return j.encode("s"), rosters, confirms
}

func TestRecordsRefuseEveryCut(t *testing.T) {
	join, rosters, confirms := sampleRecords()
	var encoded, tables [][]byte
	for _, r := range rosters {
		encoded = append(encoded, r.encoded)
	}
	tables = append(tables, rosters[0].table)
	decoders := map[string]struct {
		records [][]byte
		decode  func(b []byte) error
	}{
		"join":         {[][]byte{join}, func(b []byte) error { _, err := decodeJoin(b); return err }},
		"roster":       {encoded, func(b []byte) error { _, err := decodeRoster(b); return err }},
		"table":        {tables, func(b []byte) error { _, err := decodeRows(b, 3, true); return err }},
		"confirmation": {confirms, func(b []byte) error { _, err := decodeConfirm(b); return err }},
	}
	for name, d := range decoders {
		for i, b := range d.records {
			if err := d.decode(b); err != nil {
				t.Fatal(name, i, err)
			}
			for n := range b {
				if d.decode(b[:n]) == nil {
					t.Fatalf("%s %d cut at %d is taken", name, i, n)
				}
			}
			if d.decode(append(slices.Clone(b), 0)) == nil {
				t.Fatalf("%s %d with a byte too many is taken", name, i)
			}
		}
	}
}

// TestRecordsHoldPrintableTexts puts what a terminal would obey into each text of each record.
func TestRecordsHoldPrintableTexts(t *testing.T) {
	j := joinRecord{size: 1, problem: "\x1b[2J"}
	if _, err := decodeJoin(j.encode("")); err == nil {
		t.Errorf("%+v is taken", j)
	}
	r := rosterRecord{size: 1, rows: rows{marks: []mark{{}}}, problem: "\x1b[2J"}
	r.tabulate()
	r.encode("")
	if _, err := decodeRoster(r.encoded); err == nil {
		t.Errorf("%+v is taken", r)
	}
	for _, c := range []confirmRecord{{problem: "\r"}, {settings: []Setting{{"a\nb", ""}}},
		{settings: []Setting{{"a", "\xff"}}}} {
		if _, err := decodeConfirm(c.encode()); err == nil {
			t.Errorf("%+v is taken", c)
		}
	}
}

// TestSealsCoverEveryByte changes each bit of a sealed record.
func TestSealsCoverEveryByte(t *testing.T) {
	join, rosters, _ := sampleRecords()
	for label, b := range map[string][]byte{"goccl join": join, "goccl roster": rosters[1].encoded} {
		if !authentic(b, "s", label) || authentic(b, "t", label) {
			t.Fatalf("%s: the secret is not what decides", label)
		}
		for bit := range 8 * len(b) {
			b[bit/8] ^= 1 << (bit % 8)
			if authentic(b, "s", label) {
				t.Fatalf("%s with bit %d changed is taken", label, bit)
			}
			b[bit/8] ^= 1 << (bit % 8)
		}
	}
}

func FuzzDecodeJoin(f *testing.F) {
	join, _, _ := sampleRecords()
	f.Add(join)
	f.Add([]byte(joinMagic))
	f.Fuzz(func(t *testing.T, b []byte) {
		j, err := decodeJoin(b)
		if err != nil {
			return
		}
		if j.rank < 0 || j.rank >= j.size || j.size > MaxSize || len(j.member.Own) > MaxMember {
			t.Fatalf("%+v", j)
		}
		if again := j.encode(""); !bytes.Equal(again[:len(again)-proofSize], b[:len(b)-proofSize]) {
			t.Fatal("one record has two forms")
		}
	})
}

func FuzzDecodeRoster(f *testing.F) {
	_, rosters, _ := sampleRecords()
	for _, r := range rosters {
		f.Add(r.encoded)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := decodeRoster(b)
		if err != nil {
			return
		}
		if r.size < 1 || r.count < r.size || r.problem == "" && r.count != r.size ||
			len(r.root) > maxAddresses {
			t.Fatalf("%+v", r)
		}
	})
}

func FuzzDecodeTable(f *testing.F) {
	_, rosters, _ := sampleRecords()
	for _, r := range rosters {
		f.Add(r.table, r.count, r.problem == "")
	}
	f.Fuzz(func(t *testing.T, b []byte, count int, group bool) {
		if count < 1 || count > MaxSize {
			t.Skip("not let through by a roster")
		}
		r, err := decodeRows(b, count, group)
		if err != nil {
			return
		}
		if len(r.marks) != count || group != (len(r.members) == count) {
			t.Fatalf("%+v", r)
		}
		if !bytes.Equal(r.encode(), b) {
			t.Fatal("one table has two forms")
		}
	})
}

func FuzzDecodeConfirm(f *testing.F) {
	_, _, confirms := sampleRecords()
	for _, c := range confirms {
		f.Add(c)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if c, err := decodeConfirm(b); err == nil && !bytes.Equal(c.encode(), b) {
			t.Fatalf("%+v has two forms", c)
		}
	})
}

// deafStore answers until a key is used.
type deafStore struct {
	Store
	key     string
	release chan struct{}
}

func (d *deafStore) wait(key string) {
	if key == d.key {
		<-d.release
	}
}

func (d *deafStore) Set(key string, value []byte) error {
	d.wait(key)
	return d.Store.Set(key, value)
}

func (d *deafStore) Get(key string) ([]byte, bool, error) {
	d.wait(key)
	return d.Store.Get(key)
}

// A store is foreign code: it may not return.
func TestJoinLeavesAStoreThatDoesNotAnswer(t *testing.T) {
	for rank, keys := range [][]string{{"join/0", "join/1", "newest"}, {"join/1", "news"}} {
		for _, key := range keys {
			t.Run(fmt.Sprintf("rank %d, %s", rank, key), func(t *testing.T) {
				t.Parallel()
				d := &deafStore{NewMemStore(), "goccl//g/" + key, make(chan struct{})}
				defer close(d.release)
				_, err := Join(within(t, short), d, ranks(2)[rank])
				if !errors.Is(err, context.DeadlineExceeded) ||
					!strings.Contains(err.Error(), "has not answered within") ||
					!strings.Contains(err.Error(), d.key) || !strings.Contains(err.Error(), "the store") {
					t.Fatal(err)
				}
			})
		}
	}
}

type panickyStore struct{ Store }

func (panickyStore) Get(string) ([]byte, bool, error) { panic("no\nstore") }

func TestJoinStorePanics(t *testing.T) {
	_, err := Join(within(t, limit), panickyStore{NewMemStore()}, ranks(2)[1])
	if err == nil || !strings.Contains(err.Error(), `from the store: it has panicked: no\nstore`) {
		t.Fatal(err)
	}
}

// TestJoinCheckFails: what one rank finds of the others' records, all are told.
func TestJoinCheckFails(t *testing.T) {
	for bad := range 3 {
		t.Run(fmt.Sprint(bad), func(t *testing.T) {
			t.Parallel()
			configs := ranks(3)
			for r := range configs {
				configs[r].Check = func(members []Member) (Answers, error) {
					for i, m := range members {
						if string(m.Own) != string(configs[i].Member.Own) {
							return 1, fmt.Errorf("member %d is %q", i, m)
						}
					}
					if r == bad {
						return 1, errors.New("0 and 2 do not\nfit")
					}
					return 1, nil
				}
			}
			s := NewMemStore()
			for _, r := range joinAll(within(t, limit), &mortalStore{Store: s}, configs) {
				if !errors.Is(r.err, ErrUnfit) || !strings.Contains(r.err.Error(), `0 and 2 do not\nfit`) {
					t.Errorf("rank %d: %v", r.rank, r.err)
				}
			}
			agree(t, ranks(3), joinAll(within(t, limit), s, ranks(3)))
		})
	}
}

// TestJoinIsUnanimous: all ranks hear to which questions each has said yes.
func TestJoinIsUnanimous(t *testing.T) {
	for _, secret := range []string{"", strings.Repeat("s", longSecret)} {
		for size := 1; size <= 3; size++ {
			for yes := range 1 << size { // to the first question, a bit of each rank that says so
				configs := ranks(size)
				for r := range configs {
					configs[r].Secret = secret
					configs[r].Check = func([]Member) (Answers, error) {
						return 0b110&^(1<<r) | Answers(yes>>r&1), nil // r = 0 changes nothing
					}
				}
				results := joinAll(within(t, limit), NewMemStore(), configs)
				agree(t, configs, results)
				for _, r := range results {
					want := Answers([]int{0, 0b110, 0b100, 0}[size])
					if yes == 1<<size-1 {
						want |= 1
					}
					if r.roster.Unanimous != want {
						t.Errorf("rank %d, answers %0*b: unanimous are %b, want %b", r.rank, size, yes,
							r.roster.Unanimous, want)
					}
				}
			}
		}
	}
}

// TestJoinChecksNoDeadRank: a Check that fails of an earlier run's record does no harm.
func TestJoinChecksNoDeadRank(t *testing.T) {
	s := newWatched()
	configs := ranks(3)
	old := ranks(3)
	old[2].Member.Own = []byte("unfit")
	agree(t, old, joinAll(within(t, limit), s, old))
	for r := range configs {
		configs[r].Check = func(members []Member) (Answers, error) {
			if string(members[2].Own) == "unfit" {
				return 0, errors.New("unfit")
			}
			return 1, nil
		}
	}
	// Rank 2 comes when rank 1 has seen the record of the last run.
	confirmed := s.written("goccl//g/confirm/1")
	ctx := within(t, limit)
	results := make(chan result, 3)
	join := func(r int) {
		o, err := Join(ctx, s, configs[r])
		results <- result{r, o, err}
	}
	go join(0)
	go join(1)
	comes(t, confirmed)
	go join(2)
	last := []result{comes(t, results), comes(t, results), comes(t, results)}
	agree(t, configs, last)
	for _, r := range last {
		if r.roster.Unanimous != 1 {
			t.Errorf("rank %d: an answer about the dead rank counts", r.rank)
		}
	}
}
