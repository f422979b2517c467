package main

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var release = flag.Bool("release", false, "write testdata/release anew, when a release is made")

// releaseFolder has of the last release the headers, without comments, and the C tests, which are
// programs of that time; and, as soname, the name that its library has.
const releaseFolder = "testdata/release"

var parameterNames = regexp.MustCompile(`([ *])\w+([,)])`)

// released is called by tests of what programs of the last release may count on. They hold while
// the library has the same name.
func released(t *testing.T) {
	t.Helper()
	if *release {
		writeRelease(t)
	}
	name, err := os.ReadFile(filepath.Join(releaseFolder, "soname"))
	if err != nil {
		t.Fatal(err)
	}
	if was := strings.TrimSpace(string(name)); was != soname {
		t.Skipf("the library is %s, that of the last release was %s", soname, was)
	}
}

func writeRelease(t *testing.T) {
	t.Helper()
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(releaseFolder, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.RemoveAll(releaseFolder); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(releaseFolder, 0o755); err != nil {
		t.Fatal(err)
	}
	headers, err := filepath.Glob("goccl*.h")
	if err != nil {
		t.Fatal(err)
	}
	for _, header := range headers {
		text := regexp.MustCompile(`[ \t]+\n`).ReplaceAllString(headerText(t, header), "\n")
		text = regexp.MustCompile(`\n{3,}`).ReplaceAllString(text, "\n\n")
		write(header, strings.TrimSpace(text)+"\n")
	}
	for _, source := range append(abiSources, "testdata/abi.h") {
		text, err := os.ReadFile(source)
		if err != nil {
			t.Fatal(err)
		}
		write(filepath.Base(source), string(text))
	}
	write("soname", soname+"\n")
}

// TestHeaderKeepsRelease holds the headers to those of the last release: what is added is fine, and
// all else needs another name of the library. No tool of others does it. The library is stripped
// and Go, so abidiff sees no types in it; of a library of stubs that is made of the headers it
// sees no #define, and takes a struct that has grown for a change.
func TestHeaderKeepsRelease(t *testing.T) {
	released(t)
	now := declarations(t, ".")
	for i, line := range now {
		now[i] = parameterNames.ReplaceAllString(line, "$1$2")
	}
	for _, line := range declarations(t, releaseFolder) {
		if !slices.Contains(now, parameterNames.ReplaceAllString(line, "$1$2")) && !grown(line, now) {
			t.Errorf("the last release has %q; see docs/reference/abi.md", line)
		}
	}
}

// grown reports whether a line is about what may grow, and has: a struct that begins with
// struct_size, or the number of values of an enum.
func grown(line string, now []string) bool {
	name, size, found := strings.Cut(line, ": ")
	if found && !slices.Contains(now, name+".struct_size: at 0, 8 bytes") {
		return false
	}
	if !found {
		name, size, found = strings.Cut(line, " = ")
		if !found || !strings.HasSuffix(name, "_COUNT") {
			return false
		}
	}
	var before, after int
	if _, err := fmt.Sscan(size, &before); err != nil {
		return false
	}
	return slices.ContainsFunc(now, func(line string) bool {
		rest, found := strings.CutPrefix(line, name)
		if !found {
			return false
		}
		_, err := fmt.Sscan(strings.TrimLeft(rest, ":= "), &after)
		return err == nil && after >= before
	})
}

// TestGrown is about what TestHeaderKeepsRelease lets pass.
func TestGrown(t *testing.T) {
	now := []string{"a: 24 bytes", "a.struct_size: at 0, 8 bytes", "b: 24 bytes", "C_COUNT = 4",
		"D = 4"}
	for line, want := range map[string]bool{"a: 16 bytes": true, "a: 32 bytes": false,
		"b: 16 bytes": false, "C_COUNT = 3": true, "C_COUNT = 5": false, "D = 3": false,
		"a.x: at 8, 8 bytes": false, "int f(void);": false} {
		if got := grown(line, now); got != want {
			t.Errorf("%q: %t", line, got)
		}
	}
}

// TestReleasePrograms runs the C tests of the last release, compiled with its headers. They hold
// the library to words of messages, too: who changes such words changes them there as well.
func TestReleasePrograms(t *testing.T) {
	released(t)
	if s := sanitizer(); s != "" || testing.Short() {
		t.Skip("TestABI is run with sanitizers")
	}
	sources := make([]string, len(abiSources))
	for i, source := range abiSources {
		path, err := filepath.Abs(filepath.Join(releaseFolder, filepath.Base(source)))
		if err != nil {
			t.Fatal(err)
		}
		sources[i] = path
	}
	program := filepath.Join(t.TempDir(), "abi")
	command := compile(program, sources...)
	if out, err := exec.Command(command[0], command[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Run("all", func(t *testing.T) {
		for _, name := range strings.Fields(runProgram(t, nil, program)) {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				runProgram(t, nil, program, name)
			})
		}
	})
}
