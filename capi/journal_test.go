package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestLog has a program of two ranks log as the environment says.
func TestLog(t *testing.T) {
	const each = 2
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	line := regexp.MustCompile(`^goccl: \d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{6} ` +
		regexp.QuoteMeta(host) +
		`:\d+ (WARN|INFO|TRACE) (INIT|BOOTSTRAP|ENV|NET|COLL|P2P|MEM)( \[.*?\] rank [01])?: \S`)
	// count returns the lines that are the log's, all of the right form, and a count of each
	// subsystem.
	count := func(t *testing.T, text string) (all []string, counts map[string]int) {
		t.Helper()
		counts = map[string]int{}
		for l := range strings.Lines(text) {
			if !strings.HasPrefix(l, "goccl: ") {
				continue
			}
			m := line.FindStringSubmatch(l)
			if m == nil {
				t.Fatalf("of the wrong form: %q", l)
			}
			counts[m[1]+" "+m[2]]++
			all = append(all, l)
		}
		return all, counts
	}
	run := func(t *testing.T, environment ...string) string {
		t.Helper()
		return runProgram(t, append(environment, "GOCCL_TRANSPORT=tcp", "GOCCL_SOCKET_IFNAME=lo"),
			built.exampleC, fmt.Sprint(each))
	}
	t.Run("default", func(t *testing.T) {
		for _, level := range []string{"", "NONE", "WARN"} {
			if all, _ := count(t, run(t, "GOCCL_DEBUG="+level)); len(all) > 0 {
				t.Errorf("%q: %q", level, all)
			}
		}
	})
	t.Run("version", func(t *testing.T) {
		if out := run(t, "GOCCL_DEBUG=version"); strings.Count(out, "goccl: version ") != each {
			t.Errorf("%s", out)
		}
	})
	t.Run("info", func(t *testing.T) {
		all, counts := count(t, run(t, "GOCCL_DEBUG=info"))
		made := strings.Count(strings.Join(all, ""), ": a group is made size=2 ")
		if made != each || counts["INFO ENV"] != 3*each || counts["TRACE COLL"] != 0 {
			t.Errorf("%v\n%s", counts, all)
		}
	})
	t.Run("trace", func(t *testing.T) {
		_, counts := count(t, run(t, "GOCCL_DEBUG=TRACE", "GOCCL_DEBUG_SUBSYS=coll,NET"))
		if counts["TRACE COLL"] < 2*each || counts["TRACE NET"] < each || counts["INFO INIT"] != 0 {
			t.Errorf("%v", counts)
		}
	})
	t.Run("wrong", func(t *testing.T) {
		all, counts := count(t, run(t, "GOCCL_DEBUG=LOUD", "GOCCL_DEBUG_SUBSYS=GRAPH",
			"GOCCL_DEBUG_FILE=%x", "GOCCL_DEBGU=INFO"))
		if counts["WARN ENV"] != 4*each || len(all) != 4*each {
			t.Errorf("%q", all)
		}
	})
	t.Run("file", func(t *testing.T) {
		folder := t.TempDir()
		out := run(t, "GOCCL_DEBUG=INFO", "GOCCL_DEBUG_FILE="+filepath.Join(folder, "%h.%p.%%"))
		if all, _ := count(t, out); len(all) > 0 {
			t.Errorf("on standard error: %q", all)
		}
		files, err := os.ReadDir(folder)
		if err != nil || len(files) != each {
			t.Fatal(files, err)
		}
		for _, f := range files {
			text, err := os.ReadFile(filepath.Join(folder, f.Name()))
			if err != nil {
				t.Fatal(err)
			}
			all, counts := count(t, string(text))
			var pid int
			if n, err := fmt.Sscanf(strings.TrimPrefix(f.Name(), host), ".%d.%%", &pid); n != 1 ||
				err != nil ||
				!strings.Contains(all[0], fmt.Sprintf(" %s:%d ", host, pid)) || counts["INFO INIT"] < 2 {
				t.Errorf("%s: %q", f.Name(), all)
			}
		}
	})
	t.Run("no file", func(t *testing.T) {
		all, counts := count(t, run(t, "GOCCL_DEBUG=INFO", "GOCCL_DEBUG_FILE=/nowhere/log"))
		if counts["WARN ENV"] != each || counts["INFO INIT"] < 2*each ||
			!strings.Contains(all[0], "cannot open /nowhere/log: no such file or directory; "+
				"the log goes to standard error") {
			t.Errorf("%q", all)
		}
	})
}
