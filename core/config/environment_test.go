package config

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/goccl/goccl/core/logs"
)

// A variable that is mistyped is told, with the one that may be meant.
func TestUnknownVariables(t *testing.T) {
	var want []string
	environ := []string{"GOCCL_TRANSPORT=", "GOCCL_NET=", "GOCCL_IB_HCA=", "GOCCL_IB_GID_INDEX=",
		"GOCCL_SOCKET_IFNAME=", "GOCCL_SECRET=", "GOCCL_THRESHOLDS=", "GOCCL_ALLTOALL_SCHEDULE=",
		"TORCHELASTIC_RESTART_COUNT=0", "GOCCL_BENCH_PEERS=x", "GOCCL_TEST_X=1", "GOCCL_LIB=x",
		"NCCL_NET=x", "PATH=GOCCL_X", "GOCCL"}
	for _, c := range [][2]string{
		{"GOCCL_", ""},
		{"GOCCL_GID_INDEX", "GOCCL_IB_GID_INDEX"},
		{"GOCCL_NTE", "GOCCL_NET"},
		{"GOCCL_SECERT", "GOCCL_SECRET"},
		{"GOCCL_SOCKET_IFNAM", "GOCCL_SOCKET_IFNAME"},
		{"GOCCL_STOIN", "GOCCL_STORE"}, // and no farther from GOCCL_JOIN, which comes later
		{"GOCCL_TRANPORT", "GOCCL_TRANSPORT"},
		{"GOCCL_ZZZZZ", ""},
		{"goccl_net", "GOCCL_NET"},
	} {
		text := fmt.Sprintf("the environment variable %q is not known, and has no effect", c[0])
		if c[1] != "" {
			text += "; did you mean " + c[1] + "?"
		}
		want = append(want, text)
		environ = slices.Insert(environ, 0, c[0]+"=x")
	}
	want = append(want,
		"GOCCL_DEBUG is \"3\", allowed are NONE, VERSION, WARN, INFO, TRACE: WARN is used")
	got := environment{logs.EnvDebug: "3"}.read().Warnings(environ)
	if !slices.Equal(got, want) {
		t.Errorf("it warns:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if got := (environment{}).read().Warnings(nil); got == nil || len(got) != 0 {
		t.Errorf("of nothing it warns %#v", got) // which JSON would write as null
	}
}

func TestEditDistance(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want int
	}{
		{"", "", 0}, {"", "net", 3}, {"net", "", 3}, {"net", "net", 0}, {"tranport", "transport", 1},
		{"kitten", "sitting", 3}, {"nte", "net", 2}, {"flaw", "lawn", 2},
		{"net", "ne", 1},
	} {
		if got := editDistance(c.a, c.b); got != c.want {
			t.Errorf("editDistance(%q, %q) = %d, want %d", c.a, c.b, got, c.want)
		}
	}
}

// What is set is told in the order of the options, and nothing that is secret.
func TestTold(t *testing.T) {
	set := environment{"GOCCL_DEBUG": "INFO", "GOCCL_SECRET": "pssst", "GOCCL_NET": "tcp",
		"GOCCL_STORE": etcdURL, "GOCCL_JOIN": "h", "TORCHELASTIC_RESTART_COUNT": "2", "GOCCL_X": "1"}
	var want []Variable
	for _, v := range [][2]string{{"GOCCL_NET", "tcp"}, {"GOCCL_SECRET", "(hidden)"},
		{"GOCCL_STORE", "etcd://(hidden)@192.0.2.1/job"}, {"GOCCL_JOIN", "h"}, {"GOCCL_DEBUG", "INFO"},
		{"TORCHELASTIC_RESTART_COUNT", "2"}} {
		want = append(want, Variable{v[0], Setting{v[1], SourceEnvironment}})
	}
	if got := set.read().Told(); !slices.Equal(got, want) {
		t.Errorf("%q\nwant: %q", got, want)
	}
	if got := (environment{}).read().Told(); len(got) != 0 {
		t.Errorf("of nothing it tells %q", got)
	}
}
