package fake_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/goccl/goccl/rdma/fake"
)

// program compiles one of the programs, which are linked to the double's file.
func program(t *testing.T, name, double string) string {
	t.Helper()
	binary := filepath.Join(t.TempDir(), name)
	out, err := exec.Command(fake.Compiler(t), "-g", "-Wall", "-Wextra", "-pthread", "-I..", "-o",
		binary,
		"testdata/programs/"+name+".c", "../verbs.c", double, "-ldl").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return binary
}

// TestPrograms compares what the programs see of the double with what they should. That SoftRoCE is
// alike can be seen where there is one: see check.c.
func TestPrograms(t *testing.T) {
	double := fake.New(t).Path
	for _, name := range []string{"check", "faults"} {
		out, err := exec.Command(program(t, name, double), double).CombinedOutput()
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		golden, err := os.ReadFile("testdata/programs/" + name + ".txt")
		if err != nil {
			t.Fatal(err)
		}
		got, want := strings.Split(string(out), "\n"), strings.Split(string(golden), "\n")
		for i := range max(len(got), len(want)) {
			var g, w string
			if i < len(got) {
				g = got[i]
			}
			if i < len(want) {
				w = want[i]
			}
			if g != w {
				t.Errorf("%s, line %d:\n%s\nwanted\n%s", name, i+1, g, w)
			}
		}
	}
}

// TestDeaths makes mistakes that the double must not let pass.
func TestDeaths(t *testing.T) {
	double := fake.New(t).Path
	binary := program(t, "faults", double)
	for death, text := range map[string]string{
		"stale":          "post_send of a qp that is gone",
		"overflow":       "a completion queue of 64 entries overflows",
		"unacknowledged": "destroy_cq waits for 1 events that nobody acknowledges",
	} {
		t.Run(death, func(t *testing.T) {
			t.Parallel()
			out, err := exec.Command(binary, double, death).CombinedOutput()
			if err == nil || !strings.Contains(string(out), "fake libibverbs: "+text) {
				t.Errorf("it ends with %v and the text\n%s", err, out)
			}
		})
	}
}

// TestOwn tells that each test has a double of its own.
func TestOwn(t *testing.T) {
	a, b := fake.New(t), fake.NewOld(t)
	if a.Path == b.Path {
		t.Error("both have the same path")
	}
	if a.Calls("open_device")+b.Calls("open_device")+a.Live("")+b.Live("") != 0 ||
		len(a.Trace()) != 0 {
		t.Error("a new double has been used")
	}
}
