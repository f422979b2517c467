package sim

import (
	"fmt"
	"strings"
	"testing"

	"github.com/goccl/goccl/core/internal/schematest"
	"github.com/goccl/goccl/core/tune"
)

const twoHosts = `{"format": "goccl.net/1", "hosts": ["a", "b"], "switches": ["s"],
"links": [{"between": ["a", "s"], "speed": "1g", "latency_us": 0.5},
{"between": ["s", "b"], "speed": "1g", "count": 1}]}`

// TestNetFile refuses what is wrong, with words that name it; what has a wrong form, the published
// schema refuses, too.
func TestNetFile(t *testing.T) {
	ask := schematest.Read(t, "../../docs/reference/goccl.net-1.schema.json")
	if _, err := ParseNet(twoHosts, 2); err != nil || ask(twoHosts) != nil {
		t.Fatal(err, ask(twoHosts))
	}
	const form, sense = true, false
	for _, c := range []struct {
		old, by, want string
		form          bool
	}{
		{"net/1", "net/2", `format is "goccl.net/2", allowed is "goccl.net/1"`, form},
		{`"hosts"`, `"host"`, `unknown field "host"`, form},
		{`["a", "b"]`, `[]`, "there are 0 hosts", form},
		{`["a", "b"]`, `["a", ""]`, `a name is ""`, form},
		{`["a", "b"]`, `["a", "` + strings.Repeat("b", 65) + `"]`, "1 to 64 printable", form},
		{`["a", "b"]`, `["a", "\u001b[31m"]`, `a name is "\x1b[31m"`, form},
		{`["a", "b"]`, `["a"]`, "it has 1 hosts, and the job needs 2", sense},
		{`["a", "b"]`, `["a", "b", "a"]`, `two hosts or switches are called "a"`, sense},
		{`["a", "b"]`, `["a", "b", "s"]`, `two hosts or switches are called "s"`, sense},
		{`["a", "b"]`, `["a", "b", "c"]`, `host "c" has no link`, sense},
		{`["s"]`, `["t"]`, `link 1: there is no host and no switch "s"`, sense},
		{`["a", "s"]`, `["a"]`, "link 1: between has 1 names", form},
		{`["a", "s"]`, `["a", "s", "b"]`, "link 1: between has 3 names", form},
		{`["a", "s"]`, `["s", "s"]`, `link 1: it joins "s" and itself`, sense},
		{`["a", "s"]`, `["a", "b"]`, `it joins the hosts "a" and "b"`, sense},
		{`["a", "s"]`, `["b", "s"]`, `link 2: "b" and "s" have a link already`, sense},
		{`"speed": "1g", "l`, `"speed": "0g", "l`, `the speed is "0g"`, form},
		{`"speed": "1g", "l`, `"speed": "-1g", "l`, `the speed is "-1g"`, form},
		{`"speed": "1g", "l`, `"speed": "NaN", "l`, `the speed is "NaN"`, form},
		{`"speed": "1g", "l`, `"speed": 1, "l`, "cannot unmarshal number", form},
		{`"speed": "1g", "l`, `"speed": "100001g", "l`, `the speed is "100001g"`, sense},
		{`"speed": "1g", "l`, `"l`, `the speed is ""`, form},
		{"0.5", "-1", "latency_us is -1, allowed are 0 to 1000000", form},
		{"0.5", "1e300", "latency_us is 1e+300", form},
		{"0.5", "NaN", "invalid character 'N'", form},
		{`"count": 1`, `"count": 0`, "link 2: count is 0", form},
		{`"count": 1`, `"count": 262145`, "link 2: count is 262145", form},
		{`"count": 1`, `"count": 1.5`, "cannot unmarshal number 1.5", form},
		{`1}]}`, `1}]} x`, "something follows", form},
		{`1}]}`, `1`, "unexpected EOF", form},
		{`["s"]`, `["s", "t"]`, "", sense}, // a switch without links does no harm
		{`{"between": ["s", "b"]`, `{"between": ["t", "b"]`, `no host and no switch "t"`, sense},
	} {
		text := strings.Replace(twoHosts, c.old, c.by, 1)
		_, err := ParseNet(text, 2)
		if told := fmt.Sprint(err); text == twoHosts || (err == nil) != (c.want == "") ||
			!strings.Contains(told, c.want) || err != nil && !strings.HasPrefix(told, "net: ") {
			t.Errorf("%q for %q: %v, want %q", c.by, c.old, err, c.want)
		}
		if c.form != (ask(text) != nil) {
			t.Errorf("%q for %q: the schema says %v", c.by, c.old, ask(text))
		}
	}
	apart := strings.NewReplacer(`["s"]`, `["s", "t"]`, `["s", "b"]`, `["t", "b"]`).Replace(twoHosts)
	if _, err := ParseNet(apart, 2); err == nil || !strings.Contains(err.Error(),
		`host "b" does not reach host "a" by its link to "t"`) {
		t.Error(err)
	}
	if _, err := ParseNet("{"+strings.Repeat(" ", MostNetText), 2); err == nil ||
		!strings.Contains(err.Error(), "allowed are 16777216") {
		t.Error(err)
	}
}

// netOf is the text of a file.
func netOf(hosts, switches []string, links ...string) string {
	quoted := func(names []string) string { return `["` + strings.Join(names, `", "`) + `"]` }
	return fmt.Sprintf(`{"format": "goccl.net/1", "hosts": %s, "switches": %s, "links": [%s]}`,
		quoted(hosts), quoted(switches), strings.Join(links, ", "))
}

func linkOf(a, b, more string) string {
	return fmt.Sprintf(`{"between": [%q, %q], "speed": "25g"%s}`, a, b, more)
}

// numbered are names with a number.
func numbered(name string, n int) (names []string) {
	for i := range n {
		names = append(names, fmt.Sprint(name, i))
	}
	return names
}

// A file that says what a name does gives the same times.
func TestNetFileIsLikeNames(t *testing.T) {
	star := []string{}
	tree := []string{linkOf("s0", "spine", `, "latency_us": 0.5`), linkOf("s1", "spine",
		`, "latency_us": 0.5`)}
	rails, leaves := []string{}, append(numbered("s", 2), "spine")
	for _, h := range numbered("h", 8) {
		star = append(star, linkOf(h, "s0", ""))
		tree = append(tree, linkOf(h, map[bool]string{true: "s0", false: "s1"}[h < "h4"], ""))
		rails = append(rails, linkOf(h, "s0", ""), linkOf(h, "s1", ""))
	}
	for name, file := range map[string]string{
		"star:25g":                    netOf(numbered("h", 8), numbered("s", 1), star...),
		"fat-tree:25g,leaf=4,taper=4": netOf(numbered("h", 8), leaves, tree...),
		"rail:2x25g": netOf(numbered("h", 8), leaves, append(rails,
			strings.ReplaceAll(linkOf("s0", "spine", `, "latency_us": 0.5`), "25g", "100000g"),
			strings.ReplaceAll(linkOf("s1", "spine", `, "latency_us": 0.5`), "25g", "100000g"))...),
	} {
		for _, c := range []string{"alltoall", "allreduce", "broadcast"} {
			q := tune.Question{Collective: c, Ranks: 8, PerHost: 1, CPUs: 1, Bytes: 1 << 20}
			_, a := group(t, q, name, "")
			_, b := group(t, q, file, "")
			if a.Last != b.Last || a.First != b.First || a.Median != b.Median {
				t.Errorf("%s, %s: %v us, by the file %v", c, name, a.Last, b.Last)
			}
		}
	}
}

// Ways are the shortest, the same each time, and are spread over equal ones.
func TestWays(t *testing.T) {
	// Two leaves, each with three links to each of two spines, and a longer way over s4.
	links := []string{linkOf("s0", "s2", `, "count": 3`), linkOf("s1", "s2", `, "count": 3`),
		linkOf("s0", "s3", `, "count": 3`), linkOf("s1", "s3", `, "count": 3`),
		linkOf("s0", "s4", ""), linkOf("s4", "s5", ""), linkOf("s5", "s1", "")}
	hosts := numbered("h", 64)
	for i, h := range hosts {
		links = append(links, linkOf(h, fmt.Sprint("s", i/32), ""))
	}
	n, err := ParseNet(netOf(hosts, numbered("s", 6), links...), 64)
	if err != nil {
		t.Fatal(err)
	}
	used := map[string]int{}
	for a := range 64 {
		for b := range 64 {
			if a == b {
				continue
			}
			way := n.way(nil, end{host: a}, end{host: b})
			at := fmt.Sprint("h", a)
			for _, l := range way {
				from, to, _ := strings.Cut(n.links[l].name, " to ")
				to, _, _ = strings.Cut(to, ",")
				if from != at {
					t.Fatalf("from h%d to h%d: %q begins not at %s", a, b, n.links[l].name, at)
				}
				at = to
				if (a < 32) != (b < 32) {
					used[n.links[l].name]++
				}
			}
			if want := 2 + 2*(a/32^b/32); len(way) != want || at != fmt.Sprint("h", b) {
				t.Fatalf("from h%d to h%d: %d links, want %d; it ends at %s", a, b, len(way), want, at)
			}
		}
	}
	for name, times := range used {
		between := strings.HasPrefix(name, "s") && strings.Contains(name, "to s")
		if between && (times < 85 || times > 256) {
			t.Errorf("%s is on %d ways of 1024, of which it has about a sixth", name, times)
		}
	}
	if used["s0 to s2, link 0"] == 0 || used["s0 to s4"] != 0 {
		t.Errorf("%v", used)
	}
}

// Whatever a file has, it is refused or has a way between any two hosts.
func FuzzNetFile(f *testing.F) {
	f.Add(twoHosts)
	f.Add(netOf(numbered("h", 3), numbered("s", 3), linkOf("h0", "s0", ""), linkOf("h1", "s1", ""),
		linkOf("h2", "s2", ""), linkOf("h2", "s0", ""), linkOf("s0", "s1", `, "count": 2`),
		linkOf("s1", "s2", "")))
	f.Fuzz(func(t *testing.T, text string) {
		n, err := ParseNet(text, 2)
		if err != nil || n.interfaces == nil {
			return
		}
		for a := range n.NICs(0) {
			for b := range n.NICs(1) {
				for _, ends := range [][2]end{{{0, a}, {1, b}}, {{1, b}, {0, a}}} {
					way := n.way(nil, ends[0], ends[1])
					if len(way) < 2 {
						t.Errorf("from %v to %v: %v", ends[0], ends[1], way)
					}
				}
			}
		}
	})
}
