package config

import (
	"slices"
	"strings"
	"testing"

	"github.com/goccl/goccl/core/bootstrap"
)

// A list of ranks is the same text where the ranks are the same, and only there.
func TestRankLists(t *testing.T) {
	for _, c := range []struct {
		given []int
		want  string
	}{
		{nil, "0-2"}, {[]int{0, 1, 2}, "0-2"}, {[]int{0, 2, 1}, "0,2,1"}, {[]int{4, 5, 9}, "4-5,9"},
		{[]int{4, 5, 8}, "4-5,8"},
	} {
		all := complete(t, Config{Size: 3, GlobalRanks: c.given, Store: bootstrap.NewMemStore()}, nil)
		settings := all.JoinConfig().Settings
		want := bootstrap.Setting{Name: "the list of the group's ranks", Value: c.want}
		if last := len(settings) - 1; settings[last] != want || !slices.Equal(settings[:last], all.Same) {
			t.Errorf("%v: %q", c.given, settings)
		}
	}
}

// Lists that are too long to be compared as they are differ, too.
func TestLongRankLists(t *testing.T) {
	even := Config{Size: 1 << 15, GlobalRanks: make([]int, 1<<15)}
	for i := range even.GlobalRanks {
		even.GlobalRanks[i] = 2 * i
	}
	other := even
	other.GlobalRanks = slices.Clone(even.GlobalRanks)
	other.GlobalRanks[1<<15-1]++
	a, b := even.rankList(), other.rankList()
	if a == b || !strings.HasPrefix(a, "0,2,4,") || len(a) > 2*maxRankList {
		t.Errorf("%q and %q", a, b)
	}
}

// A rank brings to the meeting what it was given. The job's secret is above the store's.
func TestJoinConfig(t *testing.T) {
	for _, c := range [][3]string{{"", "", ""}, {"a", "", "a"}, {"", "b", "b"}, {"a", "b", "a"}} {
		given := Config{Rank: 1, Size: 2, GroupName: "g", Store: bootstrap.NewMemStore(),
			Incarnation: "i", Secret: c[0], StoreSecret: c[1]}
		all := complete(t, given, nil)
		j := all.JoinConfig()
		if j.Rank != 1 || j.Size != 2 || j.GroupName != "g" || j.Incarnation != "i" || j.Attempt != "" ||
			j.Secret != c[2] {
			t.Errorf("%q: %+v", c, j)
		}
	}
	all := complete(t, Config{Size: 1}, environment{EnvRestarts: "3"})
	if j := all.JoinConfig(); j.Attempt != "3" {
		t.Errorf("%+v", j)
	}
}

// Rank 0 warns of a store that others can reach, where nothing keeps them out.
func TestStoreWarning(t *testing.T) {
	for _, c := range []struct {
		rank                        int
		host, etcd, secret, ofStore string
		warns                       string // the host
	}{
		{host: "127.0.0.1"}, {host: "127.9.9.9"}, {host: "::1"}, {host: "localhost"}, {},
		{host: "192.0.2.1", warns: "192.0.2.1"}, {host: "node-a", warns: "node-a"},
		{host: "192.0.2.1", rank: 1},
		{host: "192.0.2.1", secret: "s"},
		{host: "192.0.2.1", ofStore: "s"},
		{host: "192.0.2.1", etcd: "etcd://127.0.0.1/job"},
		{host: "127.0.0.1", etcd: "etcd://192.0.2.7/job", warns: "192.0.2.7"},
		{etcd: "etcd://localhost,192.0.2.7/job", warns: "192.0.2.7"},
		{etcd: "etcd://192.0.2.7/job", secret: "s"},
	} {
		all := complete(t, Config{Size: 2, Rank: c.rank, GroupName: "g", StoreHost: c.host,
			Store: bootstrap.NewMemStore(), Secret: c.secret, StoreSecret: c.ofStore},
			environment{EnvStore: c.etcd})
		want := ""
		if c.warns != "" {
			want = `the secret of group "g" lies in the store on host ` + c.warns + ", so whoever can " +
				"reach the store can join, and read and change all data: set GOCCL_SECRET, or keep others " +
				"off that host's port"
		}
		if got := all.StoreWarning(); got != want {
			t.Errorf("%+v: %q", c, got)
		}
	}
}
