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

var update = flag.Bool("update", false, "write testdata/abi.txt anew")

var (
	structs       = regexp.MustCompile(`(?s)typedef struct (?:\w+ )?\{(.*?)\} (goccl_\w+);`)
	field         = regexp.MustCompile(`\(\*(\w+)\)|(\w+)(?:\[\w+\])?$`)
	constants     = regexp.MustCompile(`(?m)\b(GOCCL_\w+) = |^#define (GOCCL_\w+) +\S`)
	functionTypes = regexp.MustCompile(`(?ms)^(?:goccl_result |const char \*)goccl_\w+\(.*?\);`)
	typedefs      = regexp.MustCompile(`(?m)^typedef [^{}]*?;`)
	spaces        = regexp.MustCompile(`\s+`)
)

// TestHeaderIsAsRecorded compares what programs are compiled with, and a record of it. A change is
// a decision: it must keep what was compiled before going, or CHANGELOG.md says what does not.
// Then -update writes it anew. TestHeaderKeepsRelease allows less.
func TestHeaderIsAsRecorded(t *testing.T) {
	now := declarations(t, ".")
	const record = "testdata/abi.txt"
	if *update {
		if err := os.WriteFile(record, []byte(strings.Join(now, "\n")+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(record)
	if err != nil {
		t.Fatal(err)
	}
	before := strings.Split(strings.TrimSpace(string(text)), "\n")
	for _, line := range before {
		if !slices.Contains(now, line) {
			t.Errorf("goccl.h had %q", line)
		}
	}
	for _, line := range now {
		if !slices.Contains(before, line) {
			t.Errorf("goccl.h has %q, which %s has not", line, record)
		}
	}
	if len(now) < 150 {
		t.Errorf("only %d lines were found in goccl.h", len(now))
	}
}

// declarations lists what the headers of a folder declare, a line each: layouts of structs, the
// types of their fields, values of constants, types of callbacks and of functions.
func declarations(t *testing.T, folder string) []string {
	t.Helper()
	text := ""
	for _, header := range []string{"goccl.h", "goccl_bindings.h", "goccl_fifo.h",
		"goccl_deprecated.h"} {
		text += headerText(t, filepath.Join(folder, header))
	}
	program := "#include <stddef.h>\n#include <stdio.h>\n#include \"goccl_bindings.h\"\n" +
		"#include \"goccl_fifo.h\"\n" +
		"int main(void) {\n"
	var types []string
	for _, s := range structs.FindAllStringSubmatch(text, -1) {
		program += fmt.Sprintf("printf(\"%s: %%zu bytes\\n\", sizeof(%[1]s));\n", s[2])
		for _, declared := range strings.Split(strings.TrimSpace(s[1]), ";") {
			m := field.FindStringSubmatch(strings.TrimSpace(declared))
			if m == nil {
				continue
			}
			program += fmt.Sprintf("printf(\"%s.%s: at %%zu, %%zu bytes\\n\", offsetof(%[1]s, %[2]s), "+
				"sizeof ((%[1]s *)0)->%[2]s);\n", s[2], m[1]+m[2])
			types = append(types, s[2]+" has "+oneLine(declared))
		}
	}
	for _, c := range constants.FindAllStringSubmatch(text, -1) {
		if name := c[1] + c[2]; !strings.HasPrefix(name, "GOCCL_VERSION") &&
			name != "GOCCL_FIFO_INLINE" {
			program += fmt.Sprintf("printf(\"%s = %%lld\\n\", (long long)%[1]s);\n", name)
		}
	}
	source := filepath.Join(t.TempDir(), "layout.c")
	if err := os.WriteFile(source, []byte(program+"}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	binary := strings.TrimSuffix(source, ".c")
	runProgram(t, nil, "cc", "-I", folder, source, "-o", binary)
	lines := append(strings.Split(strings.TrimSpace(runProgram(t, nil, binary)), "\n"), types...)
	for _, kind := range []*regexp.Regexp{typedefs, functionTypes} {
		for _, declared := range kind.FindAllString(text, -1) {
			lines = append(lines, oneLine(declared))
		}
	}
	return lines
}

func oneLine(text string) string {
	return strings.TrimSpace(spaces.ReplaceAllString(text, " "))
}

// headerText is a header without comments.
func headerText(t *testing.T, header string) string {
	t.Helper()
	text, err := os.ReadFile(header)
	if err != nil {
		t.Fatal(err)
	}
	return regexp.MustCompile(`(?s)/\*.*?\*/`).ReplaceAllString(string(text), "")
}

// TestOldPrograms runs what was compiled against the header of an older version.
func TestOldPrograms(t *testing.T) {
	program := filepath.Join(t.TempDir(), "old")
	source, err := filepath.Abs("testdata/old.c")
	if err != nil {
		t.Fatal(err)
	}
	command := compile(program, source)
	if out, err := exec.Command(command[0], command[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	runProgram(t, nil, program)
}
