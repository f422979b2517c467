package main

import (
	"bytes"
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"
)

// What a change raises that breaks programs: docs/reference/abi.md. Both have the same number.
const (
	soname        = "libgoccl.so.0"
	symbolVersion = "GOCCL_0"
)

// built is what the tests run: the library and the C and Go programs that use it.
var built struct {
	library, abi, signals, malloc, exampleC, exampleGo string
	examples                                           map[string]string // of C, by name
}

// abiSources are those of the program abi.
var abiSources = []string{"testdata/abi.c", "testdata/async.c", "testdata/lists.c",
	"testdata/channels.c", "testdata/proxies.c", "testdata/feed.c", "testdata/traces.c"}

// compile is the command that makes a program in C that uses the library.
var compile func(program string, sources ...string) []string

func TestMain(m *testing.M) {
	folder, err := os.MkdirTemp("", "goccl-capi")
	if err == nil {
		err = build(folder)
	}
	code := 1
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	} else {
		code = m.Run()
	}
	_ = os.RemoveAll(folder)
	os.Exit(code)
}

func build(folder string) error {
	root, err := filepath.Abs("..")
	if err != nil {
		return err
	}
	at := func(name string) string { return filepath.Join(folder, name) }
	built.library, built.abi, built.signals = at(soname), at("abi"), at("signals")
	built.malloc, built.exampleC, built.exampleGo = at("malloc.so"), at("allreduce-c"),
		at("allreduce-go")
	compiler := os.Getenv("CC")
	if compiler == "" {
		compiler = "cc"
	}
	goFlags, cFlags := []string{}, []string{}
	goBuild := func(source, program string, flags ...string) []string {
		return slices.Concat([]string{"go", "build"}, goFlags, flags, []string{"-o", program, source})
	}
	library := []string{"sh", "capi/build.sh", "go", folder}
	switch sanitizer := sanitizer(); sanitizer {
	case "-race":
		// It can watch only a program that does not move, and that has the library within.
		built.library = at("libgoccl.a")
		goFlags, cFlags = []string{sanitizer}, []string{"-no-pie", "-lresolv", "-lm",
			"-Wl,--wrap=pthread_create"}
		// A program in C ends without Go, which would make a race its exit status then.
		if err := os.Setenv("GORACE", "halt_on_error=1 atexit_sleep_ms=0"); err != nil {
			return err
		}
		library = goBuild("./capi", built.library, "-buildmode=c-archive")
	case "-asan":
		goFlags, cFlags = []string{sanitizer}, []string{"-fsanitize=address"}
		// With the paths, as what has been compiled for these tests already.
		library = append(library, sanitizer, "-trimpath=false")
	}
	compile = func(program string, sources ...string) []string {
		return slices.Concat([]string{compiler, "-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra",
			"-Werror", "-pthread", "-I", filepath.Join(root, "capi")}, sources, []string{"-L", folder,
			"-Wl,--as-needed", "-lgoccl", "-Wl,-rpath," + folder, "-o", program}, cFlags)
	}
	sources := make([]string, len(abiSources))
	for i, source := range abiSources {
		sources[i] = filepath.Join("capi", source)
	}
	commands := [][]string{
		library,
		goBuild("./examples/go/allreduce", built.exampleGo),
		compile(built.abi, sources...),
		compile(built.signals, "capi/testdata/signals.c"),
		{compiler, "-O", "-fPIC", "-shared", "capi/testdata/malloc.c", "-o", built.malloc},
		compile(built.exampleC, "examples/c/allreduce.c"),
	}
	built.examples = map[string]string{}
	for _, name := range []string{"messages", "channels", "feed", "proxy", "shared_memory",
		"checkpoint", "elastic"} {
		built.examples[name] = at(name)
		commands = append(commands, compile(at(name), "examples/c/"+name+".c"))
	}
	for _, command := range commands {
		run := exec.Command(command[0], command[1:]...)
		run.Dir = root
		if out, err := run.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w\n%s", strings.Join(command, " "), err, out)
		}
	}
	return nil
}

// sanitizer is the flag of that kind that the tests are built with, if any: what they run is built
// with it, too.
func sanitizer() string {
	info, _ := debug.ReadBuildInfo()
	for _, flag := range []string{"-race", "-asan"} {
		if slices.Contains(info.Settings, debug.BuildSetting{Key: flag, Value: "true"}) {
			return flag
		}
	}
	return ""
}

// runProgram runs a program that must end by itself and in success.
func runProgram(t *testing.T, environment []string, program string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	run := exec.CommandContext(ctx, program, args...)
	run.Env = append(os.Environ(), environment...)
	// Ranks may outlive the launcher and hold its output open.
	run.WaitDelay = time.Second
	out, err := run.CombinedOutput()
	if ctx.Err() != nil {
		err = errors.New("it hung")
	}
	if err != nil {
		t.Fatalf("%s %s %s: %v\n%s", environment, program, args, err, out)
	}
	return string(out)
}

func TestABI(t *testing.T) {
	for _, name := range strings.Fields(runProgram(t, nil, built.abi)) {
		t.Run(name, func(t *testing.T) { runProgram(t, nil, built.abi, name) })
	}
}

// Nothing is assumed of the process's malloc.
func TestAnotherMalloc(t *testing.T) {
	if s := sanitizer(); s == "-asan" {
		t.Skip(s, " has a malloc of its own")
	}
	for _, name := range []string{"handles", "works", "store"} {
		t.Run(name, func(t *testing.T) {
			runProgram(t, []string{"LD_PRELOAD=" + built.malloc}, built.abi, name)
		})
	}
}

func TestExamples(t *testing.T) {
	for _, program := range []string{built.exampleC, built.exampleGo} {
		for size := 1; size <= 4; size++ {
			for _, transport := range []string{"", "shm", "tcp"} {
				t.Run(fmt.Sprintf("%s/%d/%s", filepath.Base(program), size, transport), func(t *testing.T) {
					out := runProgram(t, []string{"GOCCL_TRANSPORT=" + transport, "GOCCL_SOCKET_IFNAME=lo"},
						program, fmt.Sprint(size))
					want := transport
					switch {
					case size == 1:
						want = "self"
					case want == "":
						want = "shm"
					}
					if n := strings.Count(out, "is right (next rank by: "+want+")\n"); n != size {
						t.Fatalf("%d of %d ranks say that the sum is right by %s:\n%s", n, size, want, out)
					}
				})
			}
		}
	}
}

// TestExamplesInC runs those whose processes meet by a file.
func TestExamplesInC(t *testing.T) {
	for name, c := range map[string]struct {
		ranks, says []string
		dies        string
	}{
		"messages": {[]string{"0", "1", "2"}, []string{`rank 0 has 1 from rank 2\n`,
			`rank 0 has 102 from rank 2\n`, `rank 1 has 100 from rank 0\n`}, ""},
		"channels": {[]string{"0", "1", "2"},
			[]string{`rank 0 has the blocks of 3 ranks, by a memory channel\n`}, ""},
		"proxy":         {[]string{"0", "1", "2"}, []string{`rank 2 has the blocks of rank 1\n`}, ""},
		"shared_memory": {[]string{"0", "1", "2"}, []string{`rank 2: the sum is right, by \w+\n`}, ""},
		"checkpoint": {[]string{"0", "1", "2"}, []string{`rank 1 goes on after 10 steps\n`,
			`rank [01] has 102 of rank 2\n`}, ""},
		"elastic": {[]string{"0", "1", "2", "new"}, []string{`new is rank \d of`}, "2"},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
			defer cancel()
			outs := make([]bytes.Buffer, len(c.ranks))
			runs := make([]*exec.Cmd, len(c.ranks))
			id := filepath.Join(t.TempDir(), "id")
			for i, rank := range c.ranks {
				runs[i] = exec.CommandContext(ctx, built.examples[name], rank, "3", id)
				runs[i].Env = append(os.Environ(), "GOCCL_SOCKET_IFNAME=lo")
				runs[i].Stdout, runs[i].Stderr = &outs[i], &outs[i]
				if err := runs[i].Start(); err != nil {
					t.Fatal(err)
				}
			}
			all := ""
			for i, run := range runs {
				err := run.Wait()
				if (err != nil) != (c.ranks[i] == c.dies) {
					t.Errorf("rank %s: %v", c.ranks[i], err)
				}
				all += outs[i].String()
			}
			for _, words := range c.says {
				if !regexp.MustCompile(words).MatchString(all) {
					t.Errorf("%q does not stand in:\n%s", words, all)
				}
			}
		})
	}
}

// TestSignals has signals come to a host whose handlers want much stack.
func TestSignals(t *testing.T) {
	if s := sanitizer(); s != "" {
		t.Skip("the program loads a library, which ", s, " cannot watch, and it has handlers of its own")
	}
	for _, transport := range []string{"tcp", "shm"} {
		for _, flags := range []string{"plain", "onstack"} {
			for _, when := range []string{"before", "after"} {
				t.Run(transport+"/"+flags+"/"+when, func(t *testing.T) {
					runProgram(t, nil, built.signals, built.library, transport, flags, when)
				})
			}
		}
	}
}

// TestSymbols compares what the header declares and what the library shows: it must be the same, of
// the version that the library's name has.
func TestSymbols(t *testing.T) {
	if filepath.Ext(built.library) == ".a" {
		t.Skip("an archive shows all symbols that it has")
	}
	declared := slices.Concat(functionsOf(t, "goccl.h"), functionsOf(t, "goccl_bindings.h"),
		functionsOf(t, "goccl_deprecated.h"))
	slices.Sort(declared)
	f, err := elf.Open(built.library)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if names, err := f.DynString(elf.DT_SONAME); err != nil || !slices.Equal(names, []string{soname}) {
		t.Errorf("its name is %q, %v; want %s", names, err, soname)
	}
	symbols, err := f.DynamicSymbols()
	if err != nil {
		t.Fatal(err)
	}
	var shown []string
	for _, s := range symbols {
		switch {
		case s.Section == elf.SHN_UNDEF || s.Name == symbolVersion: // that of itself
		case s.Version != symbolVersion:
			t.Errorf("%s is of version %q, want %s", s.Name, s.Version, symbolVersion)
		default:
			shown = append(shown, s.Name)
		}
	}
	slices.Sort(shown)
	if !slices.Equal(shown, declared) {
		t.Errorf("the library shows %q, the headers declare %q", shown, declared)
	}
}

// functionsOf lists the functions that a header declares.
func functionsOf(t *testing.T, header string) (names []string) {
	t.Helper()
	for _, m := range regexp.MustCompile(`(?m)^(?:goccl_result |const char \*)(goccl_\w+)\(`).
		FindAllStringSubmatch(headerText(t, header), -1) {
		names = append(names, m[1])
	}
	if len(names) == 0 {
		t.Fatalf("%s declares no functions", header)
	}
	return names
}

// TestOldNames has a program use all the old names: they are the new functions, and a compiler says
// what these are called.
func TestOldNames(t *testing.T) {
	text, err := os.ReadFile("goccl_deprecated.h")
	if err != nil {
		t.Fatal(err)
	}
	// A statement each: of one expression of them all gcc makes gigabytes.
	program := "#include \"goccl_bindings.h\"\nint main(void) {\n  int other = 0;\n"
	pairs := regexp.MustCompile(`NAME_OF\((goccl_\w+)\)\s+goccl_result (goccl_\w+)\(`).
		FindAllStringSubmatch(string(text), -1)
	if len(pairs) != len(functionsOf(t, "goccl_deprecated.h")) {
		t.Fatalf("not all old names have a new one: %q", pairs)
	}
	for _, p := range pairs {
		program += fmt.Sprintf("  other += %s != %s;\n", p[2], p[1])
	}
	source := filepath.Join(t.TempDir(), "old.c")
	if err := os.WriteFile(source, []byte(program+"  return other;\n}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	command := compile(strings.TrimSuffix(source, ".c"), source)
	out, err := exec.Command(command[0], command[1:]...).CombinedOutput()
	for _, p := range pairs {
		if !regexp.MustCompile(p[2] + `. is deprecated.*\b` + p[1] + `\(\)`).Match(out) {
			t.Errorf("%v: a compiler does not say that %s is %s:\n%s", err, p[2], p[1], out)
		}
	}
	command = append(command, "-Wno-deprecated-declarations")
	if out, err := exec.Command(command[0], command[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	runProgram(t, nil, strings.TrimSuffix(source, ".c"))
}

// TestDetailsOfAll is about the test "details" of abi.c: it has every function fail that can.
func TestDetailsOfAll(t *testing.T) {
	text := map[string]string{"goccl.h": "", "goccl_bindings.h": "", "testdata/abi.c": ""}
	for name := range text {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		text[name] = string(b)
	}
	tried := regexp.MustCompile(`(?s)\nstatic void fail_each.*?\nstatic void print_id`).
		FindString(text["testdata/abi.c"])
	functions := regexp.MustCompile(`(?m)^goccl_result (goccl_\w+)\(`)
	for _, m := range functions.FindAllStringSubmatch(text["goccl.h"]+text["goccl_bindings.h"], -1) {
		if m[1] != "goccl_shutdown" && !regexp.MustCompile(`GIVES\(\w+, `+m[1]+`\(`).MatchString(tried) {
			t.Errorf("%s does not fail", m[1])
		}
	}
}

func TestHeaderInEveryLanguage(t *testing.T) {
	for _, language := range [][]string{{"cc", "-std=c99", "-x", "c"},
		{"c++", "-std=c++11", "-x", "c++"}, {"c++", "-std=c++20", "-x", "c++"}} {
		if _, err := exec.LookPath(language[0]); err != nil {
			t.Skip(err)
		}
		for _, header := range []string{"goccl_bindings.h", "goccl_fifo.h"} { // the first has goccl.h
			args := slices.Concat(language[1:], []string{"-Wall", "-Wextra", "-Werror", "-pedantic",
				"-fsyntax-only", header})
			out, err := exec.Command(language[0], args...).CombinedOutput()
			if err != nil && !strings.Contains(string(out), "pragma once") {
				t.Errorf("%s: %v\n%s", language, err, out)
			}
		}
	}
}

func TestHandles(t *testing.T) {
	runtime.LockOSThread() // on which malloc gives out again at once what was freed
	defer runtime.UnlockOSThread()
	w := &workHandle{}
	h := save(w)
	if got, err := restore[*workHandle](h, "work"); err != nil || got != w {
		t.Fatal(got, err)
	}
	if _, err := restore[*commHandle](h, "comm"); codeOf(err) != codeInvalidHandle {
		t.Fatal(err)
	}
	if !drop(h) || drop(h) {
		t.Fatal("a handle must be dropped once")
	}
	// A handle is never given out again, though its memory is.
	for range 1<<20 + 1 {
		again := save(w)
		if again == h {
			t.Fatal("a handle names another object")
		}
		drop(again)
	}
	if _, err := restore[*workHandle](h, "work"); codeOf(err) != codeInvalidHandle {
		t.Fatal(err)
	}
}

// TestHandlesAtOnce uses handles while others drop them and make new ones at the same addresses.
func TestHandlesAtOnce(t *testing.T) {
	var wg sync.WaitGroup
	shared := make(chan uint64, 64)
	for range 4 {
		wg.Go(func() {
			for range 2000 {
				w := &workHandle{}
				h := save(w)
				shared <- h
				if got, err := restore[*workHandle](h, "work"); err == nil && got != w {
					t.Error("a handle names another object")
				}
			}
		})
		wg.Go(func() {
			for range 2000 {
				h := <-shared
				if !drop(h) {
					t.Error("a handle was dropped by another")
				}
				if _, err := restore[*workHandle](h, "work"); err == nil {
					t.Error("a dropped handle is valid")
				}
			}
		})
	}
	wg.Wait()
}

func TestPanicsBecomeErrors(t *testing.T) {
	if code := export("name", func() error { panic("oh") }); code != codeInternal {
		t.Fatal(code)
	}
	if code := export("name", func() error { return fmt.Errorf("of no kind") }); code != codeInternal {
		t.Fatal(code)
	}
	if code := export("name", func() error { return errInProgress }); code != codeInProgress {
		t.Fatal(code)
	}
}

// A name is copied once, whoever asks for it.
func TestStaticNames(t *testing.T) {
	p := staticName("one_shot")
	got := unsafe.String((*byte)(unsafe.Pointer(p)), len("one_shot"))
	if got != "one_shot" || staticName(got) != p {
		t.Errorf("%q at %p and %p", got, p, staticName(got))
	}
}
