package config

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/goccl/goccl/core/logs"
)

// write makes a file of settings.
func write(t *testing.T, path, text string, mode fs.FileMode) string {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil { // whatever the umask is
		t.Fatal(err)
	}
	return path
}

// An option wins, then the environment, then the named file, then that of the home folder.
func TestOrderOfFiles(t *testing.T) {
	home := t.TempDir()
	own := write(t, filepath.Join(home, ".goccl.conf"),
		"\ufeffGOCCL_TRANSPORT=shm\nGOCCL_NET=verbs\nGOCCL_QUORUM=any\nGOCCL_TIMEOUT=3s\n"+
			"GOCCL_MIN_SIZE=7\nGOCCL_DEBUG=INFO\n", 0o644)
	named := write(t, filepath.Join(home, "named"),
		"\ufeff# tuned\n\n  GOCCL_TRANSPORT = tcp \nGOCCL_NET=tcp\r\nGOCCL_QUORUM=\n"+
			"GOCCL_TIMEOUT=2s", 0o644)
	e := ReadEnvironment(environment{"HOME": home, EnvConfFile: named, EnvTimeout: "1s",
		EnvRecovery: "all"}.get)
	all, err := Config{Size: 1, Transport: "verbs"}.Complete(e)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]Setting{
		EnvTransport: {"verbs", SourceOption}, EnvTimeout: {"1s", SourceEnvironment},
		EnvRecovery: {"all", SourceEnvironment}, EnvNet: {"tcp", named}, EnvQuorum: {"any", own},
		EnvMinSize: {"7", own}, EnvLinks: {"", SourceDefault},
	} {
		if got := all.Settings[name]; got != want {
			t.Errorf("%s: %+v, want %+v", name, got, want)
		}
	}
	if all.Net != "tcp" || all.MinSize != 7 || e.Get(logs.EnvDebug) != "INFO" {
		t.Errorf("%+v, %q", all, e.Get(logs.EnvDebug))
	}
	if w := e.Warnings(nil); len(w) != 0 {
		t.Errorf("it warns: %q", w)
	}
	if !slices.Contains(e.Told(), Variable{EnvMinSize, Setting{"7", own}}) {
		t.Errorf("told is %v", e.Told())
	}
}

// What the files are not: there is no communicator, and the text names the file.
func TestFilesRefused(t *testing.T) {
	home := t.TempDir()
	own := filepath.Join(home, ".goccl.conf")
	pipe := filepath.Join(home, "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	long := write(t, filepath.Join(home, "long"), strings.Repeat("#", maxFile+1), 0o600)
	const named = `file of settings (from GOCCL_CONF_FILE) "`
	for _, c := range []struct{ path, want string }{
		{filepath.Join(home, "none"), named + filepath.Join(home, "none") +
			`" cannot be read: no such file or directory`},
		{home, named + home + `" is no regular file`},
		{pipe, named + pipe + `" is no regular file`},
		{long, named + long + `" is longer than 1048576 bytes`},
		{"/proc/self/mem", `cannot be read: input/output error`},
	} {
		_, err := Config{Size: 1}.Complete(ReadEnvironment(environment{EnvConfFile: c.path}.get))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.path, err, c.want)
		}
	}
	for _, c := range []struct{ text, want string }{
		{"GOCCL_NET=tcp\nGOCCL_NET", "has a line 2 that is not NAME=value; allowed are such lines"},
		{"export GOCCL_NET=tcp", "has a line 1 that is not NAME=value"},
		{"GOCCL_SECRET: hush\x00=", "has a line 1 that is not NAME=value"},
		{"GOCCL_SECRET=\nhush+/hush==", "has a line 2 that is not NAME=value"},
		{"=hush", "has a line 1 that is not NAME=value"},
		{"1GOCCL_NET=tcp", "has a line 1 that is not NAME=value"},
		{"GOCCL_\x1b[1mNET=tcp", "has a line 1 that is not NAME=value"},
		{"GOCCL_NET=tcp\n#\nGOCCL_NET=tcp", `sets "GOCCL_NET" twice, on lines 1 and 3`},
		{"GOCCL_X=1\nGOCCL_X=2", `sets "GOCCL_X" twice, on lines 1 and 2`},
	} {
		write(t, own, c.text, 0o600)
		_, err := Config{Size: 1}.Complete(ReadEnvironment(environment{"HOME": home}.get))
		want := `init: file of settings "` + own + `" ` + c.want
		if err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%q: %v, want %q", c.text, err, want)
		}
		if strings.Contains(err.Error(), "hush") {
			t.Errorf("it tells what may be a secret: %v", err)
		}
	}
	if err := errors.Join(os.Remove(own), os.Symlink(own, own)); err != nil {
		t.Fatal(err)
	}
	_, err := Config{Size: 1}.Complete(ReadEnvironment(environment{"HOME": home}.get))
	if err == nil || !strings.Contains(err.Error(), "too many levels of symbolic links") {
		t.Errorf("a link to itself: %v", err)
	}
	// A home folder that is none, or has none, is no news.
	for _, home := range []string{"", "relative", "/proc/none"} {
		complete(t, Config{Size: 1}, environment{"HOME": home})
	}
}

// A value that is refused is told with its line, wherever it is read.
func TestValuesOfFilesRefused(t *testing.T) {
	home := t.TempDir()
	own := filepath.Join(home, ".goccl.conf")
	for _, line := range []string{"GOCCL_TIMEOUT=60", "GOCCL_NET=shm", "GOCCL_STORE=http://x",
		"GOCCL_TRACE=%x", "GOCCL_METRICS_PORT=x", "GOCCL_METRICS_FILE=%x", "GOCCL_PLANS=/none"} {
		write(t, own, "#\n"+line, 0o600)
		e := ReadEnvironment(environment{"HOME": home}.get)
		_, err := Config{Size: 1}.Complete(e)
		name, _, _ := strings.Cut(line, "=")
		if want := "; " + name + " is set in " + own + ", line 2"; err == nil ||
			!strings.HasSuffix(err.Error(), want) {
			t.Errorf("%s: %v, want %q", line, err, want)
		}
	}
	// An option that is refused is not blamed on the file.
	write(t, own, "GOCCL_NET=tcp", 0o600)
	_, err := Config{Size: 1, Net: "shm"}.Complete(ReadEnvironment(environment{"HOME": home}.get))
	if err == nil || strings.Contains(err.Error(), own) {
		t.Error(err)
	}
}

// What has no effect is warned of, and a secret that others can read.
func TestFilesWarned(t *testing.T) {
	home := t.TempDir()
	own := filepath.Join(home, ".goccl.conf")
	for _, c := range []struct {
		text string
		mode fs.FileMode
		want []string
	}{
		{"GOCCL_SECRET=x\nGOCCL_STORE=" + etcdURL, 0o600, nil},
		{"GOCCL_STORE=etcd://h/p", 0o644, nil},
		{"GOCCL_NTE=tcp\nPATH=x\nGOCCL_REPLACE_GLOO=1\nGOCCL_CONF_FILE=x", 0o600, []string{
			`, line 1: the name "GOCCL_NTE" is not known, and has no effect; did you mean GOCCL_NET?`,
			`, line 2: the name "PATH" is not known, and has no effect`,
			`, line 3: GOCCL_REPLACE_GLOO has no effect in a file, only as a variable of the environment`,
			`, line 4: GOCCL_CONF_FILE has no effect in a file, only as a variable of the environment`}},
		{"GOCCL_SECRET=x", 0o604, []string{
			" has a secret (GOCCL_SECRET), and can be read by others (mode 0604): chmod 600"}},
		{"GOCCL_STORE=" + etcdURL, 0o640, []string{
			" has a secret (GOCCL_STORE), and can be read by others (mode 0640): chmod 600"}},
		{"GOCCL_NET=tcp", 0o602, []string{" can be written by everyone (mode 0602): chmod o-w"}},
	} {
		write(t, own, c.text, c.mode)
		var want []string
		for _, text := range c.want {
			want = append(want, own+text)
		}
		e := ReadEnvironment(environment{"HOME": home}.get)
		if got := e.Warnings(nil); !slices.Equal(got, want) {
			t.Errorf("%q:\n%s\nwant:\n%s", c.text, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
		if len(e.problems) > 0 {
			t.Errorf("%q: %q", c.text, e.problems)
		}
	}
}

// FuzzFile checks that a file sets what it says, and nothing that is not the library's.
func FuzzFile(f *testing.F) {
	f.Add("GOCCL_NET=tcp\n# x\nPATH=y\n")
	f.Add("GOCCL_NET = tcp\r\nGOCCL_NET=")
	f.Fuzz(func(t *testing.T, text string) {
		set, unknown, err := parse(text)
		if err != nil {
			if set != nil || unknown != nil {
				t.Fatal("what is refused is kept")
			}
			return
		}
		lines := strings.Split(text, "\n")
		for name, l := range set {
			own := lines[l.number-1]
			if !slices.Contains(Variables(), name) || !strings.HasPrefix(strings.TrimSpace(own), name) ||
				!strings.HasSuffix(strings.TrimSpace(own), l.value) {
				t.Fatalf("%q sets %s to %q", own, name, l.value)
			}
		}
	})
}
