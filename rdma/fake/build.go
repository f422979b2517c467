package fake

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// built holds what has been compiled, by the flag that it was compiled with.
var built struct {
	sync.Mutex
	files map[string][]byte
}

// build gives the path of a double that no other test has: one file is loaded once only.
func build(t testing.TB, flag string) string {
	t.Helper()
	built.Lock()
	defer built.Unlock()
	if built.files == nil {
		built.files = map[string][]byte{}
	}
	path := filepath.Join(t.TempDir(), "libfake.so")
	if b := built.files[flag]; b != nil {
		if err := os.WriteFile(path, b, 0o700); err != nil {
			t.Fatal(err)
		}
		return path
	}
	rdma, err := sources()
	if err != nil {
		t.Skipf("no sources of the test double of libibverbs: %v", err)
	}
	compiler := Compiler(t)
	files, err := filepath.Glob(filepath.Join(rdma, "fake", "testdata", "*.c"))
	if err != nil {
		t.Fatal(err)
	}
	args := []string{"-shared", "-fPIC", "-O1", "-g", "-Wall", "-Wextra", "-Wl,-Bsymbolic", "-pthread",
		"-I", rdma, "-o", path}
	if flag != "" {
		args = append(args, flag)
	}
	if out, err := exec.Command(compiler, append(args, files...)...).CombinedOutput(); err != nil {
		t.Fatalf("the test double of libibverbs cannot be compiled: %v\n%s", err, out)
	}
	if built.files[flag], err = os.ReadFile(path); err != nil {
		t.Fatal(err)
	}
	return path
}

// Compiler finds a C compiler, and skips the test where there is none.
func Compiler(t testing.TB) string {
	t.Helper()
	for _, name := range []string{os.Getenv("CC"), "cc", "gcc", "clang"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	t.Skip("there is no C compiler (cc, or $CC) to compile the test double of libibverbs with")
	return ""
}

// sources finds package rdma from where tests run, which is inside the module.
func sources() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for ; ; dir = filepath.Dir(dir) {
		rdma := filepath.Join(dir, "rdma")
		if _, err := os.Stat(filepath.Join(rdma, "verbs.h")); err == nil {
			return rdma, nil
		}
		if dir == filepath.Dir(dir) {
			return "", errors.New("no directory above the test's has rdma/verbs.h")
		}
	}
}
