package main

import (
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

// built is what the tests run: the library and the C and Go programs that use it.
var built struct {
	library, abi, signals, malloc, exampleC, exampleGo string
}

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
	built.library, built.abi, built.signals = at("libgoccl.so"), at("abi"), at("signals")
	built.malloc, built.exampleC, built.exampleGo = at("malloc.so"), at("allreduce-c"),
		at("allreduce-go")
	compiler := os.Getenv("CC")
	if compiler == "" {
		compiler = "cc"
	}
	mode, goFlags, cFlags := "c-shared", []string{}, []string{}
	switch sanitizer := sanitizer(); sanitizer {
	case "-race":
		// It can watch only a program that does not move, and that has the library within.
		built.library, mode = at("libgoccl.a"), "c-archive"
		goFlags, cFlags = []string{sanitizer}, []string{"-no-pie", "-lresolv", "-lm",
			"-Wl,--wrap=pthread_create"}
		// A program in C ends without Go, which would make a race its exit status then.
		if err := os.Setenv("GORACE", "halt_on_error=1 atexit_sleep_ms=0"); err != nil {
			return err
		}
	case "-asan":
		goFlags, cFlags = []string{sanitizer}, []string{"-fsanitize=address"}
	}
	goBuild := func(source, program string, flags ...string) []string {
		return slices.Concat([]string{"go", "build"}, goFlags, flags, []string{"-o", program, source})
	}
	c := func(program string, sources ...string) []string {
		return slices.Concat([]string{compiler, "-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra",
			"-Werror", "-pthread", "-I", "capi"}, sources, []string{"-L", folder, "-Wl,--as-needed",
			"-lgoccl", "-Wl,-rpath," + folder, "-o", program}, cFlags)
	}
	script := "-ldflags=-extldflags=-Wl,--version-script=" + filepath.Join(root, "capi", "exports.map")
	for _, command := range [][]string{
		goBuild("./capi", built.library, "-buildmode="+mode, script),
		goBuild("./examples/go/allreduce", built.exampleGo),
		c(built.abi, "capi/testdata/abi.c", "capi/testdata/async.c"),
		c(built.signals, "capi/testdata/signals.c"),
		{compiler, "-O", "-fPIC", "-shared", "capi/testdata/malloc.c", "-o", built.malloc},
		c(built.exampleC, "examples/c/allreduce.c"),
	} {
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

// TestSymbols compares what the header declares and what the library shows: it must be the same.
func TestSymbols(t *testing.T) {
	if filepath.Ext(built.library) != ".so" {
		t.Skip("an archive shows all symbols that it has")
	}
	text, err := os.ReadFile("goccl.h")
	if err != nil {
		t.Fatal(err)
	}
	plain := regexp.MustCompile(`(?s)/\*.*?\*/`).ReplaceAll(text, nil)
	var declared []string
	for _, m := range regexp.MustCompile(`(?m)^(?:goccl_result |const char \*)(goccl_\w+)\(`).
		FindAllSubmatch(plain, -1) {
		declared = append(declared, string(m[1]))
	}
	slices.Sort(declared)
	if len(declared) < 30 {
		t.Fatalf("only %q were found in goccl.h", declared)
	}
	f, err := elf.Open(built.library)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	symbols, err := f.DynamicSymbols()
	if err != nil {
		t.Fatal(err)
	}
	var shown []string
	for _, s := range symbols {
		if s.Section != elf.SHN_UNDEF {
			shown = append(shown, s.Name)
		}
	}
	slices.Sort(shown)
	if !slices.Equal(shown, declared) {
		t.Errorf("the library shows %q, goccl.h declares %q", shown, declared)
	}
}

// TestDetailsOfAll is about the test "details" of abi.c: it has every function fail that can.
func TestDetailsOfAll(t *testing.T) {
	text := map[string]string{"goccl.h": "", "testdata/abi.c": ""}
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
	for _, m := range functions.FindAllStringSubmatch(text["goccl.h"], -1) {
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
		args := append(language[1:], "-Wall", "-Wextra", "-Werror", "-pedantic", "-fsyntax-only",
			"goccl.h")
		out, err := exec.Command(language[0], args...).CombinedOutput()
		if err != nil && !strings.Contains(string(out), "pragma once") {
			t.Errorf("%s: %v\n%s", language, err, out)
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
