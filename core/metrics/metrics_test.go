package metrics

import (
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// full has something of everything.
func full() Stats {
	return Stats{Version: "0.1.0", Rank: 3, Groups: 2,
		Operations: []Operation{{Collective: "allreduce", Algorithm: "one_shot", Operations: 6,
			Bytes: 24, Seconds: 0.5, Took: [Buckets]uint64{0: 3, 1: 2, Buckets - 1: 1}},
			{Collective: "send", Operations: 1, Bytes: 1 << 60, Took: [Buckets]uint64{2: 1}}},
		TransportBytes:       map[string]uint64{"shm": 24, "tcp": 7},
		TransportWaitSeconds: map[string]float64{"shm": 1.5},
		Waits:                []Wait{{"0", 1, 1.25}, {"0", 2, 0.25}},
		Failures:             map[string]uint64{"peer failed": 1, "timeout": 2}, FailedOperations: 3,
		Refusals: 4, Recoveries: 5, SideSteps: map[string]uint64{"gloo": 6}, StagedBytes: 7,
		Links: map[string]int{"shm": 1, "tcp": 2}, Records: 8,
		Memory: Memory{RegisteredBytes: 9, ReadByPeersBytes: 10, ReadFromPeersBytes: 11}}
}

var line = regexp.MustCompile(`^(goccl_[a-z_]+)(?:\{(.*)\})? (\S+)$`)

// samples reads a text: the values by name and labels, as they are written.
func samples(t *testing.T, text []byte) map[string]float64 {
	t.Helper()
	all := map[string]float64{}
	lines := strings.Split(string(text), "\n")
	if n := len(lines); lines[n-1] != "" || lines[n-2] != "# EOF" {
		t.Errorf("it ends with %q", lines[n-2:])
	}
	for _, l := range lines[:len(lines)-2] {
		if strings.HasPrefix(l, "# HELP goccl_") || strings.HasPrefix(l, "# TYPE goccl_") {
			continue
		}
		m := line.FindStringSubmatch(l)
		if m == nil {
			t.Fatalf("no sample: %q", l)
		}
		value, err := strconv.ParseFloat(m[3], 64)
		key := m[1]
		if m[2] != "" {
			key += "{" + m[2] + "}"
		}
		if _, twice := all[key]; twice || err != nil {
			t.Errorf("%q: %v, or it comes twice", l, err)
		}
		all[key] = value
	}
	return all
}

func TestText(t *testing.T) {
	s := full()
	got := samples(t, s.Text())
	const of = `collective="allreduce",algorithm="one_shot"`
	for key, want := range map[string]float64{
		`goccl_info{version="0.1.0",rank="3"}`:                      1,
		"goccl_groups":                                              2,
		`goccl_links{transport="tcp"}`:                              2,
		"goccl_operations_total{" + of + "}":                        6,
		`goccl_operations_total{collective="send"}`:                 1,
		"goccl_operation_bytes_total{" + of + "}":                   24,
		`goccl_operation_bytes_total{collective="send"}`:            1 << 60,
		"goccl_operation_seconds_bucket{" + of + `,le="1e-06"}`:     3,
		"goccl_operation_seconds_bucket{" + of + `,le="4e-06"}`:     5,
		"goccl_operation_seconds_bucket{" + of + `,le="67.108864"}`: 5,
		"goccl_operation_seconds_bucket{" + of + `,le="+Inf"}`:      6,
		"goccl_operation_seconds_sum{" + of + "}":                   0.5,
		"goccl_operation_seconds_count{" + of + "}":                 6,
		`goccl_transport_bytes_total{transport="shm"}`:              24,
		`goccl_wait_seconds_total{transport="shm"}`:                 1.5,
		`goccl_wait_for_rank_seconds_total{group="0",rank="1"}`:     1.25,
		`goccl_failures_total{kind="peer failed"}`:                  1,
		"goccl_failed_operations_total":                             3,
		"goccl_refusals_total":                                      4,
		"goccl_recoveries_total":                                    5,
		`goccl_side_steps_total{backend="gloo"}`:                    6,
		"goccl_staged_bytes_total":                                  7,
		"goccl_trace_records":                                       8,
		"goccl_memory_registered_bytes":                             9,
		"goccl_memory_read_by_peers_bytes_total":                    10,
		"goccl_memory_read_from_peers_bytes_total":                  11,
	} {
		if value, ok := got[key]; !ok || value != want {
			t.Errorf("%s is %v, want %v", key, value, want)
		}
	}
	of2 := samples(t, s.Text(Label{"pid", "42"}))
	if len(of2) != len(got) || of2[`goccl_groups{pid="42"}`] != 2 ||
		of2[`goccl_links{transport="tcp",pid="42"}`] != 2 {
		t.Errorf("with a label of all: %v", of2)
	}
	var none Stats
	none.Rank = -1
	if got := samples(t, none.Text()); got["goccl_info"] != 1 || got["goccl_groups"] != 0 {
		t.Errorf("of nothing: %v", got)
	}
}

// A family is named once, and all its samples follow.
func TestFamilies(t *testing.T) {
	s := full()
	family, seen := "", map[string]bool{}
	for l := range strings.Lines(string(s.Text())) {
		if l == "# EOF\n" {
			continue
		}
		if rest, ok := strings.CutPrefix(l, "# HELP "); ok {
			family, _, _ = strings.Cut(rest, " ")
			if seen[family] {
				t.Errorf("%s comes twice", family)
			}
			seen[family] = true
		} else if !strings.HasPrefix(strings.TrimPrefix(l, "# TYPE "), family) {
			t.Errorf("in family %s: %q", family, l)
		}
	}
}

// What is in a name does harm to no text.
func TestLabels(t *testing.T) {
	for given, want := range map[string]string{
		"0": `"0"`, `a"b\c`: `"a\"b\\c"`, "a\nb": `"a\\nb"`, "a\x00\x1b[2J": `"a\\x00\\x1b[2J"`,
		"\xff\xfe": `"\\xff\\xfe"`, "größe": `"größe"`, "a\u2028b\r": `"a\\u2028b\\r"`,
		strings.Repeat("x", 1000): `"` + strings.Repeat("x", labelMost-3) + `..."`,
		"\"} 1\ngoccl_groups 99":  `"\"} 1\\ngoccl_groups 99"`,
	} {
		s := Stats{Rank: -1, Waits: []Wait{{given, 1, 2}}}
		got := samples(t, s.Text())
		if key := "goccl_wait_for_rank_seconds_total{group=" + want + `,rank="1"}`; got[key] != 2 {
			t.Errorf("%q: no %s in %v", given, key, got)
		}
		if labelText(labelText(given)) != labelText(given) {
			t.Errorf("%q is not the same twice", given)
		}
	}
	// Names that are the same once they are fit for a label are one.
	s := Stats{Waits: []Wait{{"a\n", 1, 1}, {`a\n`, 1, 2}, {"a", 1, 4}},
		SideSteps: map[string]uint64{"\x00": 1, `\x00`: 2}}
	got := samples(t, s.Text())
	if got[`goccl_wait_for_rank_seconds_total{group="a\\n",rank="1"}`] != 3 ||
		got[`goccl_side_steps_total{backend="\\x00"}`] != 3 {
		t.Errorf("%v", got)
	}
}

// Of each group those ranks are told for whom the process has waited longest.
func TestLongest(t *testing.T) {
	var s Stats
	for rank := range 100 {
		for g := range 3 {
			s.Waits = append(s.Waits, Wait{strconv.Itoa(g), rank, float64((rank*37 + g) % 100)})
		}
	}
	n := 0
	for key, seconds := range samples(t, s.Text()) {
		if strings.HasPrefix(key, "goccl_wait_for_rank") {
			n++
			if seconds < 100-waitsOfGroup {
				t.Errorf("%s is %v", key, seconds)
			}
		}
	}
	if n != 3*waitsOfGroup {
		t.Errorf("%d waits are told", n)
	}
}

func TestLongestDuration(t *testing.T) {
	first, last := Longest(0), Longest(Buckets-2)
	if first != time.Microsecond || last != 67108864*time.Microsecond {
		t.Errorf("%v to %v", first, last)
	}
}

func TestParseListen(t *testing.T) {
	for given, want := range map[string]string{"9400": "127.0.0.1:9400", "1": "127.0.0.1:1",
		"65535": "127.0.0.1:65535", "0.0.0.0:9400": "0.0.0.0:9400", "[::]:9400": "[::]:9400",
		"10.0.0.7:1": "10.0.0.7:1", "[::1]:80": "[::1]:80"} {
		if at, err := ParseListen(given); err != nil || at.String() != want {
			t.Errorf("%q: %v, %v", given, at, err)
		}
	}
	for _, given := range []string{"", "0", "-1", "65536", "+9400", "9400 ", "http", ":9400",
		"localhost:9400", "0.0.0.0:0", "0.0.0.0", "::9400", "[::]", "9400:9400", "1e3"} {
		_, err := ParseListen(given)
		if err == nil || !strings.HasPrefix(err.Error(), fmt.Sprintf("%q, allowed are ports", given)) {
			t.Errorf("%q: %v", given, err)
		}
	}
}

// Each metric and label that the dashboard asks for is one that a text has.
func TestDashboard(t *testing.T) {
	text, err := os.ReadFile("../../docs/operations/grafana.json")
	if err != nil {
		t.Fatal(err)
	}
	var dashboard struct {
		SchemaVersion int
		Title, UID    string
		Panels        []struct {
			Title   string
			Targets []struct{ Expr string }
		}
		Templating struct{ List []struct{ Query any } }
	}
	if err := json.Unmarshal(text, &dashboard); err != nil {
		t.Fatal(err)
	}
	if n := len(dashboard.Panels); n < 8 || n > 10 || dashboard.SchemaVersion < 36 ||
		dashboard.UID == "" {
		t.Errorf("%d panels, schema %d", n, dashboard.SchemaVersion)
	}
	has := map[string][]string{} // labels, by metric
	s := full()
	for key := range samples(t, s.Text(Label{"pid", "1"})) {
		name, labels, _ := strings.Cut(strings.TrimSuffix(key, "}"), "{")
		for _, m := range regexp.MustCompile(`([a-z]+)="`).FindAllStringSubmatch(labels, -1) {
			has[name] = append(has[name], m[1])
		}
	}
	name := regexp.MustCompile(`goccl_[a-z_]+`)
	labels := regexp.MustCompile(`(?:by|on|group_left) ?\(([^)]*)\)|\{([^}]*)\}`)
	for _, p := range dashboard.Panels {
		if len(p.Targets) == 0 {
			t.Errorf("%q asks for nothing", p.Title)
		}
		for _, target := range p.Targets {
			names := name.FindAllString(target.Expr, -1)
			if len(names) == 0 {
				t.Errorf("%q asks for none of our metrics", target.Expr)
			}
			for _, n := range names {
				if has[n] == nil {
					t.Errorf("%q: there is no metric %s", target.Expr, n)
				}
			}
			for _, m := range labels.FindAllStringSubmatch(target.Expr, -1) {
				for l := range strings.SplitSeq(m[1]+m[2], ",") {
					l, _, _ = strings.Cut(strings.TrimSpace(l), "=")
					l = strings.Trim(l, "~! ")
					ours := l == "instance" || l == "job" || slices.ContainsFunc(names, func(n string) bool {
						return slices.Contains(has[n], l)
					})
					if l != "" && !ours {
						t.Errorf("%q: none of its metrics has a label %s", target.Expr, l)
					}
				}
			}
		}
	}
}
