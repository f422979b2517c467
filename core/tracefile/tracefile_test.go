package tracefile

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/goccl/goccl/core/internal/polltest"
	"github.com/goccl/goccl/core/plan"
	"github.com/goccl/goccl/core/trace"
)

// write makes a trace of one allreduce at a path, after another one or not, and returns it and what
// is logged.
func write(t *testing.T, path string, after *File) (f *File, log string) {
	t.Helper()
	var logged bytes.Buffer
	known := false // only after the calls
	f, err := Start(Config{After: after, Logger: slog.New(slog.NewTextHandler(&logged, nil)),
		Where: func() (string, string, bool) { return path, "rank 3 (here, process 7)", known }})
	if err != nil {
		t.Fatal(err)
	}
	call(t, plan.AllReduce)
	known = true
	f.Close()
	if !f.ended() {
		t.Fatal("it goes on after its end")
	}
	return f, logged.String()
}

func call(t *testing.T, c plan.Collective) {
	t.Helper()
	traced, err := trace.New()
	if err != nil {
		t.Fatal(err)
	}
	traced.Enter(trace.Group{ID: 7, Name: "one \"group\"", Ranks: []int{3}},
		[]trace.Transport{trace.Self})
	m := &plan.Message{Group: 7, Sequence: 1, Collective: uint8(c), Root: -1}
	traced.Queue(m, trace.Queued)
	traced.Begin(1)
	traced.End(m, trace.Ending{State: trace.Ended})
}

// The tests in Python read such files with Perfetto's own messages.
func TestFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "trace")
	if err := os.WriteFile(path, []byte("of an earlier process"), 0o600); err != nil {
		t.Fatal(err)
	}
	f, log := write(t, path, nil)
	if log != "" {
		t.Error(log)
	}
	first, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	text := string(first)
	for _, s := range []string{"allreduce", "queued", "rank 3 (here, process 7)", "one \"group\"",
		"thread "} {
		if !strings.Contains(text, s) {
			t.Errorf("%q has no %q", text, s)
		}
	}
	if strings.Contains(text, "earlier") {
		t.Error("what was there is there still")
	}
	f, _ = write(t, path, f)
	both, err := os.ReadFile(path)
	if err != nil || !bytes.HasPrefix(both, first) || len(both) == len(first) ||
		bytes.Contains(both[len(first):], []byte("rank 3")) {
		t.Errorf("%d bytes after %d, %v", len(both), len(first), err)
	}
	// Another file has taken the place.
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("of somebody"), 0o600); err != nil {
		t.Fatal(err)
	}
	write(t, path, f)
	anew, err := os.ReadFile(path)
	if err != nil || bytes.Contains(anew, []byte("somebody")) ||
		!bytes.Contains(anew, []byte("rank 3")) || !bytes.Contains(anew, []byte("allreduce")) {
		t.Errorf("%q, %v", anew, err)
	}
}

// A child made by fork has the descriptor, too, for which a second one stands here.
func TestFileOfAParent(t *testing.T) {
	path := filepath.Join(t.TempDir(), "trace")
	f, err := Start(Config{Logger: slog.New(slog.DiscardHandler),
		Where: func() (string, string, bool) { return path, "p", true }})
	if err != nil {
		t.Fatal(err)
	}
	call(t, plan.AllReduce)
	grows(t, path, "allreduce")
	childs, err := unix.Dup(int(f.out.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(childs)
	f.Close()
	if _, log := write(t, path, f); log != "" {
		t.Error(log)
	}
}

func TestFileThatCannotBeWritten(t *testing.T) {
	folder := t.TempDir()
	taken := filepath.Join(folder, "taken")
	other, err := os.Create(taken)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if err := unix.Flock(int(other.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	pipe := filepath.Join(folder, "pipe")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		taken:                             "another process writes it: the path needs %r",
		pipe:                              "no such device",
		folder:                            "is a directory",
		filepath.Join(folder, "no", "no"): "no such file or directory",
		"/dev/full":                       "no space left on device",
	} {
		if _, log := write(t, path, nil); strings.Count(log, "level=WARN") != 1 ||
			!strings.Contains(log, want) {
			t.Errorf("%s: %s, want %s", path, log, want)
		}
	}
}

// grows waits until a file has a text.
func grows(t *testing.T, path, text string) {
	t.Helper()
	polltest.Until(t, text, func() bool {
		b, _ := os.ReadFile(path)
		return strings.Contains(string(b), text)
	})
}

// A file grows while calls are made.
func TestFileGrows(t *testing.T) {
	path := filepath.Join(t.TempDir(), "trace")
	f, err := Start(Config{Logger: slog.New(slog.DiscardHandler),
		Where: func() (string, string, bool) { return path, "p", true }})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, c := range []plan.Collective{plan.AllReduce, plan.Barrier} {
		call(t, c)
		grows(t, path, c.String())
	}
}
