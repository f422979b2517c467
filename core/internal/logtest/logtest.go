// Package logtest has loggers for tests.
package logtest

import (
	"log/slog"
	"testing"

	"github.com/goccl/goccl/core/logs"
)

type output struct {
	level slog.Level
	write func(logs.Record)
}

func (o output) Enabled(l slog.Level, _ logs.Subsystem) bool { return l >= o.level }
func (o output) Write(r logs.Record)                         { o.write(r) }

// Logger calls a function, from any goroutine, with each record that has at least a level.
func Logger(level slog.Level, write func(logs.Record)) *slog.Logger {
	return logs.New(output{level, write})
}

// Warnings writes warnings to the log of a test.
func Warnings(t testing.TB) *slog.Logger {
	return Logger(logs.Warn, func(r logs.Record) { t.Log(r.Subsystem, r.Where(), r.Text) })
}
