package exec

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// The pipe is used by callers in C only, and so is its test, under the thread sanitizer where the
// compiler has one.
func TestPipe(t *testing.T) { runInC(t, "pipe.c") }

// Readers of a trace run against the fast path at full speed.
func TestReadersOfTrace(t *testing.T) { runInC(t, "trace.c") }

// runInC runs a test that is written in C.
func runInC(t *testing.T, file string) {
	source := filepath.Join("testdata", file)
	if _, err := os.Stat(source); err != nil { // so that `go test` knows of it
		t.Fatal(err)
	}
	program := filepath.Join(t.TempDir(), "program")
	build := func(flags ...string) error {
		args := append(flags, "-std=gnu11", "-Wall", "-Wextra", "-g", "-O1", "-pthread", "-o",
			program, source, "fastpath.c", "mail.c", "pipe.c", "exec.c", "get.c", "stream.c",
			"../trace/trace.c")
		out, err := exec.Command("cc", args...).CombinedOutput()
		if err != nil {
			t.Logf("cc %v: %v\n%s", args, err, out)
		}
		return err
	}
	if build("-fsanitize=thread") != nil {
		if err := build(); err != nil {
			t.Fatal(err)
		}
	}
	out, err := exec.Command(program).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Logf("%s", out)
}
