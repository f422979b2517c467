package core

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/goccl/goccl/core/internal/logtest"
	"github.com/goccl/goccl/core/logs"
)

func TestMistypedVariablesAreToldOnce(t *testing.T) {
	const unknown = "the environment variable %q is not known, and has no effect"
	var logged []string
	r := NewRuntime(RuntimeConfig{
		Environ: func() []string {
			return []string{
				"GOCCL_TRANPORT=tcp", "goccl_net=tcp", "GOCCL_GID_INDEX=3", "GOCCL_SECERT=pssst",
				"GOCCL_SOCKET_IFNAM=", "GOCCL_=", "GOCCL_ZZZZZ=1", "GOCCL_NTE=tcp",
				"GOCCL_TRANSPORT=", "GOCCL_NET=", "GOCCL_IB_HCA=", "GOCCL_IB_GID_INDEX=",
				"GOCCL_SOCKET_IFNAME=", "GOCCL_SECRET=", "GOCCL_THRESHOLDS=", "GOCCL_ALLTOALL_SCHEDULE=",
				"TORCHELASTIC_RESTART_COUNT=0", "GOCCL_BENCH_PEERS=x", "GOCCL_TEST_X=1",
				"NCCL_NET=x", "PATH=GOCCL_X", "GOCCL",
			}
		},
		Getenv: func(string) string { return "" },
		Logger: logtest.Logger(logs.Warn, func(r logs.Record) { logged = append(logged, r.Text) }),
	})
	for range 2 {
		c, err := r.Init(context.Background(), Config{Size: 1})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Destroy()
	}
	var want []string
	for _, w := range [][2]string{
		{"GOCCL_", ""},
		{"GOCCL_GID_INDEX", "GOCCL_IB_GID_INDEX"},
		{"GOCCL_NTE", "GOCCL_NET"},
		{"GOCCL_SECERT", "GOCCL_SECRET"},
		{"GOCCL_SOCKET_IFNAM", "GOCCL_SOCKET_IFNAME"},
		{"GOCCL_TRANPORT", "GOCCL_TRANSPORT"},
		{"GOCCL_ZZZZZ", ""},
		{"goccl_net", "GOCCL_NET"},
	} {
		text := fmt.Sprintf(unknown, w[0])
		if w[1] != "" {
			text += "; did you mean " + w[1] + "?"
		}
		want = append(want, text)
	}
	if !slices.Equal(logged, want) {
		t.Errorf("logged:\n%s\nwanted:\n%s", strings.Join(logged, "\n"), strings.Join(want, "\n"))
	}
	if told := r.Info()["warnings"]; !slices.Equal(told.([]string), want) {
		t.Errorf("Info tells %q", told)
	}
}

func TestEditDistance(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want int
	}{
		{"", "", 0}, {"", "net", 3}, {"net", "", 3}, {"net", "net", 0}, {"tranport", "transport", 1},
		{"kitten", "sitting", 3}, {"nte", "net", 2}, {"flaw", "lawn", 2},
	} {
		if got := editDistance(c.a, c.b); got != c.want {
			t.Errorf("editDistance(%q, %q) = %d, want %d", c.a, c.b, got, c.want)
		}
	}
}

func TestEnvironmentIsLogged(t *testing.T) {
	set := map[string]string{"GOCCL_DEBUG": "INFO", "GOCCL_DEBUG_SUBSYS": "GRAPH",
		"GOCCL_SECRET": "pssst",
		"GOCCL_NET":    "tcp", "TORCHELASTIC_RESTART_COUNT": "2"}
	var logged []string
	r := NewRuntime(RuntimeConfig{
		Environ: func() []string { return nil },
		Getenv:  func(name string) string { return set[name] },
		Logger: logtest.Logger(logs.Info, func(r logs.Record) {
			if r.Subsystem == logs.Env {
				logged = append(logged, r.Text)
			}
		}),
	})
	for range 2 {
		c, err := r.Init(context.Background(), Config{Size: 1})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Destroy()
	}
	want := []string{
		`GOCCL_DEBUG_SUBSYS is "GRAPH", allowed are ALL and INIT, BOOTSTRAP, ENV, NET, COLL, P2P, MEM, ` +
			`separated by commas, or with "^" in front all but these: ALL is used`,
		"an environment variable is set name=GOCCL_NET value=tcp",
		"an environment variable is set name=GOCCL_SECRET value=(hidden)",
		"an environment variable is set name=GOCCL_DEBUG value=INFO",
		"an environment variable is set name=GOCCL_DEBUG_SUBSYS value=GRAPH",
		"an environment variable is set name=TORCHELASTIC_RESTART_COUNT value=2",
	}
	if !slices.Equal(logged, want) {
		t.Errorf("logged:\n%s\nwanted:\n%s", strings.Join(logged, "\n"), strings.Join(want, "\n"))
	}
}

func TestAttemptsOfALauncher(t *testing.T) {
	const restarts, agent, port = "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_USE_AGENT_STORE",
		"MASTER_PORT"
	for i, c := range []struct {
		set                         map[string]string
		given, incarnation, attempt string
	}{
		{map[string]string{port: "1"}, "", "", ""},
		{map[string]string{restarts: "2", port: "1"}, "", "", "2"},
		{map[string]string{restarts: "2", agent: "True", port: "1"}, "", "", "2"},
		{map[string]string{restarts: "2", agent: "False", port: "1"}, "", "1", ""},
		{map[string]string{restarts: "2", agent: "False", port: "1"}, "x", "x", ""},
		{map[string]string{restarts: "2"}, "x", "x", ""},
	} {
		r := NewRuntime(RuntimeConfig{Getenv: func(name string) string { return c.set[name] }})
		config := Config{Size: 1, Incarnation: c.given}
		for range 2 { // a rank that stays out completes its configuration again
			if err := r.complete(&config); err != nil {
				t.Fatal(err)
			}
			if config.Incarnation != c.incarnation || config.attempt != c.attempt {
				t.Errorf("%d: %q, %q", i, config.Incarnation, config.attempt)
			}
		}
	}
}
