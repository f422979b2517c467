package logs_test

import (
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/slogtest"

	"github.com/goccl/goccl/core/internal/logtest"
	"github.com/goccl/goccl/core/logs"
)

func environment(settings ...string) func(string) string {
	return func(name string) string {
		for _, s := range settings {
			if value, ok := strings.CutPrefix(s, name+"="); ok {
				return value
			}
		}
		return ""
	}
}

func TestLevels(t *testing.T) {
	for _, test := range []struct {
		given   string
		level   slog.Level
		version bool
		problem string
	}{
		{"", logs.Warn, false, ""}, {"NONE", logs.None, false, ""}, {"VERSION", logs.Warn, true, ""},
		{"warn", logs.Warn, false, ""}, {"Info", logs.Info, false, ""}, {"TRACE", logs.Trace, false, ""},
		{"3", logs.Warn, false, `GOCCL_DEBUG is "3", allowed are NONE, VERSION, WARN, INFO, TRACE`},
	} {
		s, problems := logs.Read(environment("GOCCL_DEBUG=" + test.given))
		if s.Level != test.level || s.Version != test.version {
			t.Errorf("%q: %+v", test.given, s)
		}
		if told := strings.Join(problems, "\n"); !strings.HasPrefix(told, test.problem) ||
			(told == "") != (test.problem == "") {
			t.Errorf("%q: it tells %q, want %q", test.given, told, test.problem)
		}
	}
}

func TestSubsystems(t *testing.T) {
	for _, test := range []struct {
		given string
		want  []logs.Subsystem
		wrong bool
	}{
		{"", logs.Subsystems, false},
		{"INIT", []logs.Subsystem{logs.Init}, false},
		{" init, Net ", []logs.Subsystem{logs.Init, logs.Net}, false},
		{"^COLL,P2P", []logs.Subsystem{logs.Init, logs.Bootstrap, logs.Env, logs.Net, logs.Mem}, false},
		{"^COLL,^P2P", []logs.Subsystem{logs.Init, logs.Bootstrap, logs.Env, logs.Net, logs.Mem}, false},
		{"ALL", logs.Subsystems, false},
		{"^ALL", nil, false},
		{"INIT,^NET", logs.Subsystems, true},
		{"GRAPH", logs.Subsystems, true},
	} {
		s, problems := logs.Read(environment("GOCCL_DEBUG_SUBSYS=" + test.given))
		var got []logs.Subsystem
		for _, sub := range logs.Subsystems {
			if s.Includes(logs.Info, sub) {
				got = append(got, sub)
			}
			if !s.Includes(logs.Warn, sub) {
				t.Errorf("%q: warnings of %s are left out", test.given, sub)
			}
		}
		if !slices.Equal(got, test.want) || (len(problems) > 0) != test.wrong {
			t.Errorf("%q: %v, %q; want %v", test.given, got, problems, test.want)
		}
	}
}

func TestFileNames(t *testing.T) {
	host, _ := os.Hostname()
	for _, test := range []struct{ given, want string }{
		{"", ""}, {"log", "log"},
		{"/tmp/%h.%p", fmt.Sprintf("/tmp/%s.%d", host, os.Getpid())},
		{"100%%", "100%"}, {"%%p", "%p"},
		{"log.%d", ""}, {"log%", ""},
	} {
		s, problems := logs.Read(environment("GOCCL_DEBUG_FILE=" + test.given))
		if s.File != test.want || (len(problems) > 0) != (test.given != "" && test.want == "") {
			t.Errorf("%q: %q, %q; want %q", test.given, s.File, problems, test.want)
		}
	}
}

func TestRecords(t *testing.T) {
	var got []logs.Record
	l := logtest.Logger(logs.Info, func(r logs.Record) { got = append(got, r) })
	of := logs.OfGroup(logs.For(l, logs.Net), "a b", 3)
	of.With("kind", "tcp").Info("a link is made", "to", "10.0.0.1:5", "why", "no port", "none", "")
	logs.For(l, logs.Env).Warn("plain")
	of.Debug("not this one")
	if len(got) != 2 {
		t.Fatalf("%+v", got)
	}
	r := got[0]
	if r.Subsystem != logs.Net || r.Where() != "[a b] rank 3" || r.Level != logs.Info ||
		r.Time.IsZero() ||
		r.Text != `a link is made kind=tcp to=10.0.0.1:5 why="no port" none=""` {
		t.Errorf("%+v", r)
	}
	if r := got[1]; r.Subsystem != logs.Env || r.Where() != "" || r.Level != logs.Warn ||
		r.Text != "plain" {
		t.Errorf("%+v", r)
	}
}

// TestHandler has the standard library's tests of handlers read the text of records.
// TestRecordsArePrintable logs texts that a terminal would obey, and one that would look like a
// second line.
func TestRecordsArePrintable(t *testing.T) {
	const bad, good = "a\x1b[2J\nb\xff", `a\x1b[2J\nb\xff`
	var last logs.Record
	l := logtest.Logger(logs.Trace, func(r logs.Record) { last = r })
	logs.OfGroup(l, bad, 1).Warn(bad, "name", bad)
	if last.Group != good || last.Text != good+` name="`+good+`"` {
		t.Errorf("%q, %q", last.Group, last.Text)
	}
}

func TestHandler(t *testing.T) {
	var last logs.Record
	slogtest.Run(t, func(*testing.T) slog.Handler {
		return logtest.Logger(logs.Trace, func(r logs.Record) { last = r }).Handler()
	}, func(t *testing.T) map[string]any {
		all, message := map[string]any{slog.LevelKey: last.Level}, []string{}
		if !last.Time.IsZero() {
			all[slog.TimeKey] = last.Time
		}
		for word := range strings.FieldsSeq(last.Text) {
			name, value, ok := strings.Cut(word, "=")
			if !ok {
				message = append(message, word)
				continue
			}
			at := all
			for {
				outer, inner, ok := strings.Cut(name, ".")
				if !ok {
					break
				}
				if at[outer] == nil {
					at[outer] = map[string]any{}
				}
				at, name = at[outer].(map[string]any), inner
			}
			at[name] = value
		}
		all[slog.MessageKey] = strings.Join(message, " ")
		return all
	})
}
