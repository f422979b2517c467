package config

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// The files of settings, beside the one that [EnvConfFile] names. They are those of NCCL, with
// another name.
const (
	homeFile   = ".goccl.conf" // in the folder HOME
	systemFile = "/etc/goccl.conf"
	maxFile    = 1 << 20
)

// notInFiles are variables that something reads before it can read a file.
var notInFiles = []string{EnvConfFile, envDefault, envReplaceGloo}

// Environment has what no field of [Config] gives: the variables of the environment, and files of
// settings where a variable is not set. The first file that has a variable counts: that of
// [EnvConfFile], then ~/.goccl.conf, then /etc/goccl.conf.
type Environment struct {
	getenv   func(string) string
	files    []file
	problems []string // for which there can be no communicator
	warnings []string
}

// file is a file of settings.
type file struct {
	path string
	set  map[string]line
}

// line is where a file sets a variable.
type line struct {
	value  string
	number int
}

// ReadEnvironment reads the files of settings. The variables are read when they are asked for.
func ReadEnvironment(getenv func(string) string) *Environment {
	e := &Environment{getenv: getenv}
	if path := getenv(EnvConfFile); path != "" {
		if err := e.read(path); err != nil {
			e.problems = append(e.problems,
				fmt.Sprintf("file of settings (from %s) %q %v", EnvConfFile, path, err))
		}
	}
	paths := []string{systemFile}
	if home := getenv("HOME"); filepath.IsAbs(home) {
		paths = slices.Insert(paths, 0, filepath.Join(home, homeFile))
	}
	for _, path := range paths {
		if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) ||
			errors.Is(err, unix.ENOTDIR) {
			continue // it is not there, or in a folder that is closed to this user
		}
		if err := e.read(path); err != nil {
			e.problems = append(e.problems, fmt.Sprintf("file of settings %q %v", path, err))
		}
	}
	return e
}

// Getenv returns a function that is [Environment.Get]. It reads the files when it is called first.
func Getenv(getenv func(string) string) func(name string) string {
	read := sync.OnceValue(func() *Environment { return ReadEnvironment(getenv) })
	return func(name string) string { return read().Get(name) }
}

// read adds a file.
func (e *Environment) read(path string) error {
	text, mode, err := readRegular(path)
	if err != nil {
		return err
	}
	set, unknown, err := parse(text)
	if err != nil {
		return err
	}
	for _, text := range unknown {
		e.warnings = append(e.warnings, path+", "+text)
	}
	if problem := exposed(set, mode); problem != "" {
		e.warnings = append(e.warnings, fmt.Sprintf("%s %s", path, problem))
	}
	e.files = append(e.files, file{path, set})
	return nil
}

// readRegular reads a file, and never waits, as for the writer of a pipe. The error is the end of a
// sentence about the file.
func readRegular(path string) (text string, mode fs.FileMode, err error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", 0, unreadable(err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return "", 0, unreadable(err)
	}
	if !info.Mode().IsRegular() {
		return "", 0, errors.New("is no regular file")
	}
	content, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return "", 0, unreadable(err)
	}
	if len(content) > maxFile {
		return "", 0, fmt.Errorf("is longer than %d bytes", maxFile)
	}
	return string(content), info.Mode(), nil
}

func unreadable(err error) error {
	var number syscall.Errno
	if errors.As(err, &number) {
		err = number // without the path, which the sentence has already
	}
	return fmt.Errorf("cannot be read: %w", err)
}

// parse reads lines of the form NAME=value, empty ones, and comments, which begin with "#". Space
// around a name or a value is not part of it, nor is the mark that editors put before UTF-8. It
// returns what is set, and for each name that has no effect a text that begins with its line.
func parse(text string) (set map[string]line, unknown []string, err error) {
	set = map[string]line{}
	seen := map[string]int{}
	number := 0
	for content := range strings.Lines(strings.TrimPrefix(text, "\ufeff")) {
		number++
		content = strings.TrimSpace(content)
		if content == "" || content[0] == '#' {
			continue
		}
		name, value, ok := strings.Cut(content, "=")
		name, value = strings.TrimSpace(name), strings.TrimSpace(value)
		if !ok || !isName(name) || strings.ContainsRune(content, 0) {
			// The text is not shown: it may be a part of a secret.
			return nil, nil, fmt.Errorf("has a line %d that is not NAME=value; allowed are such lines, "+
				"empty lines, and comments, which begin with #", number)
		}
		if before, twice := seen[name]; twice {
			return nil, nil, fmt.Errorf("sets %q twice, on lines %d and %d", name, before, number)
		}
		seen[name] = number
		if why := withoutEffect(name); why != "" {
			unknown = append(unknown, fmt.Sprintf("line %d: %s", number, why))
		} else {
			set[name] = line{value, number}
		}
	}
	return set, unknown, nil
}

// isName reports whether a text can be the name of a variable. A part of a secret seldom can, such
// as the second line of one in base64, which ends with "=".
func isName(text string) bool {
	for i, c := range text {
		letter := c == '_' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
		if !letter && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return text != ""
}

// withoutEffect says why a name has no effect in a file; "" where it has one.
func withoutEffect(name string) string {
	known := Variables()
	switch {
	case slices.Contains(notInFiles, name):
		return fmt.Sprintf("%s has no effect in a file, only as a variable of the environment", name)
	case slices.Contains(known, name):
		return ""
	}
	return notKnown("name", name, known)
}

// exposed says what is wrong with who may read or write a file; "" where nothing is.
func exposed(set map[string]line, mode fs.FileMode) string {
	const write, read = 0o002, 0o044
	if mode&write != 0 {
		return fmt.Sprintf("can be written by everyone (mode %#o): chmod o-w", mode.Perm())
	}
	if mode&read == 0 {
		return ""
	}
	for _, name := range []string{EnvSecret, EnvStore} {
		if l, ok := set[name]; ok && shown(name, l.value) != l.value {
			return fmt.Sprintf("has a secret (%s), and can be read by others (mode %#o): chmod 600", name,
				mode.Perm())
		}
	}
	return ""
}

// Get is the value of a variable, "" where it is not set. Files set only those of this library.
func (e *Environment) Get(name string) string {
	value, _, _ := e.lookup(name)
	return value
}

// lookup is Get, and tells the source of a [Setting], and which line of a file that is.
func (e *Environment) lookup(name string) (value, source string, number int) {
	if value := e.getenv(name); value != "" {
		return value, SourceEnvironment, 0
	}
	for _, f := range e.files {
		if l := f.set[name]; l.value != "" {
			return l.value, f.path, l.number
		}
	}
	return "", SourceDefault, 0
}

// blame says in which line of a file the value stands that is refused, if it stands in one.
func (e *Environment) blame(err error, name string) error {
	if _, path, number := e.lookup(name); number > 0 {
		return fmt.Errorf("%w; %s is set in %s, line %d", err, name, path, number)
	}
	return err
}
