package logs_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/goccl/goccl/core/logs"
)

// journal is a log that a file gets, and what is in the file.
func journal(t *testing.T, settings ...string) (j *logs.Journal, read func() string) {
	file := filepath.Join(t.TempDir(), "log")
	return &logs.Journal{Getenv: environment(append(settings, "GOCCL_DEBUG_FILE="+file)...),
			Version: "1.2.3"}, func() string {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			return string(text)
		}
}

func TestJournalWritesLines(t *testing.T) {
	j, read := journal(t, "GOCCL_DEBUG=VERSION")
	l := logs.For(logs.New(j), logs.Net)
	l.Info("too little to be logged")
	l.Warn("one", "value", 2)
	logs.OfGroup(l, "a group", 3).Warn("two")
	want := regexp.MustCompile(`^goccl: version 1\.2\.3\n` +
		`goccl: \S+ \S+ \S+:\d+ WARN NET: one value=2\n` +
		`goccl: \S+ \S+ \S+:\d+ WARN NET \[a group\] rank 3: two\n$`)
	if got := read(); !want.MatchString(got) {
		t.Errorf("%q", got)
	}
}

// A listener hears what it asks for, in order, and all of it before Listen ends it. What a file
// gets does not depend on it.
func TestJournalIsHeard(t *testing.T) {
	j, read := journal(t, "GOCCL_DEBUG=WARN")
	l := logs.For(logs.New(j), logs.Coll)
	var heard []string
	hear := func(r *logs.Record) { heard = append(heard, r.Text) }
	for _, test := range []struct {
		level func() bool
		want  []string
	}{
		{func() bool { return j.Listen(hear, logs.Default) }, []string{"warning"}},
		{func() bool { return j.Listen(hear, logs.Trace) }, []string{"trace", "info", "warning"}},
	} {
		heard = nil
		if !test.level() {
			t.Fatal("nobody heard before")
		}
		l.Debug("trace")
		l.Info("info")
		l.Warn("warning")
		if !j.Listen(nil, logs.Default) || !slices.Equal(heard, test.want) {
			t.Errorf("%q was heard, want %q", heard, test.want)
		}
	}
	if n := strings.Count(read(), "\n"); n != 2 {
		t.Errorf("the file has %d lines: %q", n, read())
	}
}

// A listener may end itself: nothing waits for it, and it hears no more.
func TestListenerEndsItself(t *testing.T) {
	j, _ := journal(t)
	l := logs.For(logs.New(j), logs.Coll)
	calls, held := make(chan bool, 100), make(chan struct{})
	j.Listen(func(*logs.Record) {
		<-held
		calls <- j.Listen(nil, logs.Default)
	}, logs.Info)
	for range 100 {
		l.Info("x")
	}
	close(held)
	if !<-calls {
		t.Error("it is called again")
	}
	j.Listen(func(*logs.Record) {}, logs.Info)
	j.Listen(nil, logs.Default)
	if n := len(calls); n > 0 {
		t.Errorf("it was called %d times more", n)
	}
}

// A listener that does not keep up is told how much it has missed.
func TestListenerMisses(t *testing.T) {
	j, _ := journal(t)
	l := logs.For(logs.New(j), logs.Coll)
	held, begun := make(chan struct{}), make(chan struct{}, 1)
	heard, last := 0, ""
	j.Listen(func(r *logs.Record) {
		if heard == 0 {
			begun <- struct{}{}
			<-held
		}
		heard++
		last = r.Text
	}, logs.Info)
	l.Info("the first")
	<-begun
	const missed = 7
	for range logs.MaxHeard + missed {
		l.Info("x")
	}
	close(held)
	if !j.Listen(nil, logs.Default) || heard != logs.MaxHeard+2 ||
		!strings.HasPrefix(last, "7 records of the log are missing") {
		t.Errorf("%d records were heard, the last %q", heard, last)
	}
}
