package core

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goccl/goccl/core/bootstrap"
	"github.com/goccl/goccl/core/internal/logtest"
	"github.com/goccl/goccl/core/logs"
	"github.com/goccl/goccl/rdma"
	"github.com/goccl/goccl/rdma/fake"
)

// A rank that is refused by its own process tells the others, which would wait for it.
func TestInitRefusedOnOneRank(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*Config)
		want   string
	}{
		"transport": {func(c *Config) { c.Transport = "rdma" }, `transport is "rdma"`},
		"long thresholds": {func(c *Config) {
			c.Thresholds = strings.Repeat("flat_max=1,", 500) + "flat_max=1"
		},
			"5510 bytes long"},
		"interface": {func(c *Config) { c.Interface = "none7" }, "none7"},
	} {
		for bad := range 3 {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				_, errs := tryWorld(t, 3, func(rank int, _ *RuntimeConfig, c *Config) {
					if rank == bad {
						test.change(c)
					}
				})
				for rank, err := range errs {
					if err == nil || !strings.Contains(err.Error(), test.want) ||
						(rank == bad) == errors.Is(err, ErrMismatch) {
						t.Errorf("rank %d, where rank %d is bad: %v", rank, bad, err)
					}
				}
			})
		}
	}
}

// A group of one rank accepts no setting that a greater one refuses.
func TestInitAloneRefused(t *testing.T) {
	verbs := fake.New(t).Path
	env := func(name, value string) func(*RuntimeConfig, *Config) {
		return func(r *RuntimeConfig, _ *Config) {
			r.Verbs = verbs
			r.Getenv = func(n string) string {
				switch n {
				case name:
					return value
				case EnvTransport:
					return "verbs"
				}
				return ""
			}
		}
	}
	for name, test := range map[string]struct {
		change func(*RuntimeConfig, *Config)
		kind   error
		want   string
	}{
		"interface": {func(_ *RuntimeConfig, c *Config) { c.Interface = "none7" }, ErrInvalidArgument,
			`interface is "none7" (from the option or GOCCL_SOCKET_IFNAME), this host has lo`},
		"GID":         {env(rdma.EnvGIDIndex, "x"), ErrInvalidArgument, rdma.EnvGIDIndex},
		"missing GID": {env(rdma.EnvGIDIndex, "99"), ErrUnsupported, "no GID of index 99"},
		"device":      {env(rdma.EnvHCA, "none7"), ErrUnsupported, "none7"},
		"no libibverbs": {func(r *RuntimeConfig, c *Config) {
			r.Verbs, c.Transport = "/none7", "verbs"
		}, ErrUnsupported, `transport "verbs" cannot work`},
		"name": {func(_ *RuntimeConfig, c *Config) {
			c.GroupName = strings.Repeat("x", 1000)
		}, ErrInvalidArgument, "group name"},
		"incarnation": {func(_ *RuntimeConfig, c *Config) {
			c.Incarnation = strings.Repeat("x", 1000)
		}, ErrInvalidArgument, "incarnation"},
		"thresholds": {func(_ *RuntimeConfig, c *Config) {
			c.Thresholds = strings.Repeat("flat_max=1,", 1000) + "flat_max=1"
		},
			ErrInvalidArgument, "bytes long"},
	} {
		for _, size := range []int{1, 2} {
			_, errs := tryWorld(t, size, func(rank int, r *RuntimeConfig, c *Config) { test.change(r, c) })
			for rank, err := range errs {
				if err == nil || !strings.Contains(err.Error(), test.want) || !errors.Is(err, test.kind) {
					t.Errorf("%s, rank %d of %d: %v", name, rank, size, err)
				}
			}
		}
	}
	w, errs := tryWorld(t, 1, func(_ int, r *RuntimeConfig, c *Config) {
		r.Verbs, c.Transport, c.Interface = verbs, "verbs", "lo"
	})
	if errs[0] != nil {
		t.Fatal(errs[0])
	}
	w.each(func(rank int) error { return run(w.comms[rank], allReduce(t, 10)) })
}

// endingStore is one that a process keeps, and that ends with it.
type endingStore struct {
	bootstrap.Store
	ended atomic.Bool
}

func (s *endingStore) Get(key string) ([]byte, bool, error) {
	if s.ended.Load() {
		return nil, false, errors.New("connection was closed")
	}
	return s.Store.Get(key)
}

// TestInitSettingsDiffer: all ranks learn what must agree and does not, also where rank 0's
// process, which keeps the store, ends at once.
func TestInitSettingsDiffer(t *testing.T) {
	for name, test := range map[string]struct {
		change func(rank int, c *Config)
		kind   error
		want   string
	}{
		"transport": {func(rank int, c *Config) {
			c.Transport = []string{"shm", "tcp", "shm"}[rank]
		}, ErrMismatch,
			`the transport (GOCCL_TRANSPORT) is "shm" on rank 0 and "tcp" on rank 1: it must be the same ` +
				`on all ranks`},
		"numbered on one rank": {func(rank int, c *Config) {
			c.GlobalRanks = [][]int{{0, 1, 2}, nil, {0, 2, 1}}[rank]
		}, ErrMismatch,
			`the list of the group's ranks is "0-2" on rank 0 and "0,2,1" on rank 2`},
		"a pair that cannot be joined": {func(rank int, c *Config) {
			c.Transport = "verbs"
		}, ErrUnsupported,
			`ranks 0 and 1 cannot be joined: transport "verbs" cannot work`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store := &endingStore{Store: bootstrap.NewMemStore()}
			w := &world{t: t, comms: make([]*Comm, 3)}
			errs := w.try(func(rank int) error {
				if rank == 0 {
					defer store.ended.Store(true)
				}
				c := Config{Rank: rank, Size: 3, Store: store, Timeout: 20 * time.Second}
				test.change(rank, &c)
				_, err := NewRuntime(RuntimeConfig{Verbs: "/none7"}).Init(context.Background(), c)
				return err
			})
			for rank, err := range errs {
				if err == nil || !errors.Is(err, test.kind) || !strings.Contains(err.Error(), test.want) {
					t.Errorf("rank %d: %v, want %q", rank, err, test.want)
				}
			}
		})
	}
}

// What is wrong with the environment, what is set there, and a store that others can reach are told
// once in a process.
func TestInitTellsOnce(t *testing.T) {
	set := map[string]string{EnvNet: "tcp", logs.EnvSubsys: "GRAPH"}
	var mu sync.Mutex
	var told []string // guarded by mu
	r := NewRuntime(RuntimeConfig{
		Environ: func() []string { return []string{"GOCCL_TRANPORT=tcp"} },
		Getenv:  func(name string) string { return set[name] },
		Logger: logtest.Logger(logs.Info, func(r logs.Record) {
			if r.Subsystem == logs.Env || r.Subsystem == logs.Bootstrap {
				mu.Lock()
				defer mu.Unlock()
				told = append(told, r.Text)
			}
		}),
	})
	w := &world{t: t, comms: make([]*Comm, 2)}
	for range 2 {
		store := bootstrap.NewMemStore()
		w.each(func(rank int) error {
			c, err := r.Init(context.Background(), Config{Rank: rank, Size: 2, Store: store,
				StoreHost: "192.0.2.1"})
			w.comms[rank] = c
			return err
		})
		for _, c := range w.comms {
			c.Destroy()
		}
	}
	mu.Lock()
	defer mu.Unlock()
	warnings := []string{
		`the environment variable "GOCCL_TRANPORT" is not known, and has no effect; ` +
			"did you mean GOCCL_TRANSPORT?",
		`GOCCL_DEBUG_SUBSYS is "GRAPH", allowed are ALL and INIT, BOOTSTRAP, ENV, NET, COLL, P2P, MEM, ` +
			`separated by commas, or with "^" in front all but these: ALL is used`,
	}
	want := append(slices.Clone(warnings),
		"an environment variable is set name=GOCCL_NET value=tcp",
		"an environment variable is set name=GOCCL_DEBUG_SUBSYS value=GRAPH",
		`the secret of group "" lies in the store on host 192.0.2.1, so whoever can reach the store can `+
			"join, and read and change all data: set GOCCL_SECRET, or keep others off that host's port")
	if !slices.Equal(told, want) {
		t.Errorf("logged:\n%s\nwanted:\n%s", strings.Join(told, "\n"), strings.Join(want, "\n"))
	}
	if told := r.Info()["warnings"]; !slices.Equal(told.([]string), warnings) {
		t.Errorf("Info tells %q", told)
	}
}

// fewBytesOfFiles limits this process's files, memfds among them, to what holds no window. Tests
// that run beside this one are to make none.
func fewBytesOfFiles(t *testing.T) {
	t.Helper()
	var old unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_FSIZE, &old); err != nil {
		t.Fatal(err)
	}
	few := old
	few.Cur = 9 << 20 // less than a window, and more than the log of the tests
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &few); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Setrlimit(unix.RLIMIT_FSIZE, &old) })
}

// pairAndOne makes ranks 0 and 1 share memory, within a process, and rank 2 with nobody.
func pairAndOne(w *world) func(rank int) error {
	pair, one := NewRuntime(RuntimeConfig{host: "a"}), NewRuntime(RuntimeConfig{host: "b"})
	w.comms, w.runtimes = make([]*Comm, 3), []*Runtime{pair, pair, one}
	w.t.(*testing.T).Cleanup(w.close)
	store := bootstrap.NewMemStore()
	return func(rank int) (err error) {
		w.comms[rank], err = w.runtimes[rank].Init(context.Background(),
			Config{Rank: rank, Size: 3, Store: store, Timeout: 20 * time.Second})
		return err
	}
}

// Ranks whose memory cannot be made tell the others of it, which would wait for links to them.
func TestInitWithoutWindow(t *testing.T) {
	w := &world{t: t}
	join := pairAndOne(w)
	fewBytesOfFiles(t)
	for rank, err := range w.try(join) {
		for _, want := range []string{"rank 0 (pid ", "rank 1 (pid ", "ulimit -f"} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("rank %d: %v, want %q", rank, err, want)
			}
		}
	}
}

func TestSplitWithoutWindow(t *testing.T) {
	w := &world{t: t}
	w.each(pairAndOne(w))
	fewBytesOfFiles(t)
	for rank, err := range w.try(func(rank int) error {
		_, err := w.comms[rank].Split(context.Background(), 0, 0)
		return err
	}) {
		if err == nil || !strings.Contains(err.Error(), "ulimit -f") ||
			!strings.Contains(err.Error(), "rank ") {
			t.Errorf("rank %d: %v", rank, err)
		}
		var e *Error
		if !errors.As(err, &e) || e.Operation != "split" || e.Group != now(w.comms[rank]).Members.Name {
			t.Errorf("rank %d: %+v", rank, e)
		}
		if rank == 2 && !errors.Is(err, ErrMismatch) {
			t.Errorf("rank 2: %v", err)
		}
	}
}

// asked is a store that tells when it has been read.
type asked struct {
	bootstrap.Store
	once sync.Once
	read chan struct{}
}

func (a *asked) Get(key string) ([]byte, bool, error) {
	a.once.Do(func() { close(a.read) })
	return a.Store.Get(key)
}

// TestCloseEndsWhoWaits has a runtime closed while it waits for ranks that do not come, and for
// members of which there are none.
func TestCloseEndsWhoWaits(t *testing.T) {
	r := NewRuntime(RuntimeConfig{Logger: logtest.Warnings(t)})
	for name, wait := range map[string]func(s bootstrap.Store) (*Comm, error){
		"rank 0": func(s bootstrap.Store) (*Comm, error) {
			return r.Init(context.Background(), Config{Size: 2, Store: s})
		},
		"rank 1": func(s bootstrap.Store) (*Comm, error) {
			return r.Init(context.Background(), Config{Rank: 1, Size: 2, Store: s})
		},
		"a newcomer": func(s bootstrap.Store) (*Comm, error) {
			return r.Join(context.Background(), Config{Store: s}, nil)
		},
	} {
		s := &asked{Store: bootstrap.NewMemStore(), read: make(chan struct{})}
		ended := make(chan error, 1)
		go func() {
			_, err := wait(s)
			ended <- err
		}()
		select {
		case <-s.read:
		case err := <-ended:
			t.Fatalf("%s does not wait: %v", name, err)
		}
		r.Close()
		err := <-ended
		var e *Error
		if !errors.As(err, &e) || e.Kind != ErrAborted || len(e.Ranks) > 0 ||
			!strings.Contains(err.Error(), "all communicators of this process were ended") ||
			name != "a newcomer" && !strings.Contains(err.Error(), "init of group") {
			t.Errorf("%s: %v", name, err)
		}
	}
	c, err := r.Init(context.Background(), Config{Size: 1}) // afterwards
	if err != nil {
		t.Fatal(err)
	}
	c.Destroy()
}

// What is aborted before it has begun says so, and not that the system has failed.
func TestAbortedBeforeItBegins(t *testing.T) {
	r := NewRuntime(RuntimeConfig{})
	t.Cleanup(r.Close)
	ctx, abort := context.WithCancelCause(t.Context())
	abort(errClosed)
	for name, begin := range map[string]func() error{
		"open": func() error { _, err := r.Open(ctx, Config{}); return err },
		"join": func() error { _, err := r.Join(ctx, Config{}, []string{"x"}); return err },
		"init": func() error {
			_, err := r.Init(ctx, Config{Size: 2, Store: bootstrap.NewMemStore()})
			return err
		},
	} {
		if err := begin(); !errors.Is(err, ErrAborted) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Init has a limit whatever else is wrong.
func TestLimit(t *testing.T) {
	for _, c := range []struct {
		given time.Duration
		set   string
		want  time.Duration
	}{
		{0, "", DefaultTimeout}, {time.Second, "1h", time.Second}, {0, "1h", time.Hour},
		{0, "x", DefaultTimeout}, {-1, "1h", DefaultTimeout},
	} {
		r := NewRuntime(RuntimeConfig{Getenv: func(name string) string {
			return map[string]string{EnvTimeout: c.set}[name]
		}})
		if got := r.Limit(Config{Size: -1, Timeout: c.given}); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}
