package replace

import (
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// write is what a process of its own does, whose files can have 10 bytes.
const write = "GOCCL_TEST_WRITE"

func TestMain(m *testing.M) {
	if path := os.Getenv(write); path != "" {
		signal.Ignore(syscall.SIGXFSZ)
		limit := syscall.Rlimit{Cur: 10, Max: 10}
		if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &limit); err != nil {
			panic(err)
		}
		if err := File(path, []byte(strings.Repeat("x", 100))); err != nil {
			os.Stdout.WriteString(err.Error())
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// holds compares all that a folder has.
func holds(t *testing.T, folder string, want map[string]string) {
	t.Helper()
	entries, err := os.ReadDir(folder)
	if err != nil || len(entries) != len(want) {
		t.Errorf("%v, %v", entries, err)
	}
	for name, content := range want {
		if b, err := os.ReadFile(filepath.Join(folder, name)); string(b) != content {
			t.Errorf("%s is %q, %v", name, b, err)
		}
	}
}

func TestFile(t *testing.T) {
	folder := t.TempDir()
	path := filepath.Join(folder, "file")
	for _, content := range []string{"first", "second"} {
		if err := File(path, []byte(content)); err != nil {
			t.Fatal(err)
		}
		holds(t, folder, map[string]string{"file": content})
	}
	if info, err := os.Stat(path); err != nil || info.Mode() != 0o644 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
}

// Where a file cannot be written all is as it was.
func TestRefused(t *testing.T) {
	folder := t.TempDir()
	path := filepath.Join(folder, "file")
	if err := File(path, []byte("old")); err != nil {
		t.Fatal(err)
	}
	full := exec.Command(os.Args[0])
	full.Env = append(os.Environ(), write+"="+path)
	said, err := full.Output()
	if want := "writing " + path + ": file too large"; string(said) != want {
		t.Errorf("%q, %v", said, err)
	}
	holds(t, folder, map[string]string{"file": "old"})
	for path, want := range map[string]string{
		filepath.Join(folder, "none", "file"): "no such file or directory",
		filepath.Join(path, "file"):           "not a directory",
		folder:                                "there is something that is no regular file",
		"/dev/full":                           "there is something that is no regular file",
	} {
		if err := File(path, nil); err == nil || err.Error() != "writing "+path+": "+want {
			t.Errorf("%v", err)
		}
	}
	holds(t, folder, map[string]string{"file": "old"})
}
