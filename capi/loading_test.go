package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestOtherLibraries has the dynamic linker find a library of the name that is of another version:
// it tells so, and starts no program.
func TestOtherLibraries(t *testing.T) {
	if s := sanitizer(); s != "" {
		t.Skip("the program has the library within, or another loader")
	}
	for name, other := range map[string]struct{ node, told string }{
		"later":   {"GOCCL_1", "version `GOCCL_0' not found"},
		"earlier": {"GOCCL_0", "undefined symbol: goccl_"},
	} {
		t.Run(name, func(t *testing.T) {
			folder := t.TempDir()
			script := filepath.Join(folder, "exports.map")
			err := os.WriteFile(script, []byte(other.node+" { global: goccl_*; local: *; };\n"), 0o600)
			if err != nil {
				t.Fatal(err)
			}
			source := filepath.Join(folder, "other.c")
			err = os.WriteFile(source, []byte("int goccl_other(void) { return 0; }\n"), 0o600)
			if err != nil {
				t.Fatal(err)
			}
			runProgram(t, nil, "cc", "-shared", "-fPIC", source, "-Wl,-soname,"+soname,
				"-Wl,--version-script="+script, "-o", filepath.Join(folder, soname))
			run := exec.Command(built.exampleC, "2")
			run.Env = append(os.Environ(), "LD_LIBRARY_PATH="+folder, "LD_BIND_NOW=1")
			out, err := run.CombinedOutput()
			if err == nil || !strings.Contains(string(out), other.told) {
				t.Errorf("%v: %q is not told:\n%s", err, other.told, out)
			}
		})
	}
}

// TestTwoCopies loads the library from two files.
func TestTwoCopies(t *testing.T) {
	if s := sanitizer(); s != "" {
		t.Skip("the program loads libraries, which ", s, " cannot watch")
	}
	folder := t.TempDir()
	runProgram(t, nil, "cp", built.library, folder)
	program := filepath.Join(folder, "twice")
	runProgram(t, nil, "cc", "-I", ".", "testdata/twice.c", "-o", program)
	runProgram(t, nil, program, built.library, filepath.Join(folder, soname))
	// As auditwheel names what it puts into a wheel.
	other := filepath.Join(folder, "libgoccl-1a2b3c4d.so.0")
	runProgram(t, nil, "cp", built.library, other)
	runProgram(t, nil, program, other, built.library)
}
