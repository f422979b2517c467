// Package logs has what the library's log is made of: levels, subsystems, the variables of the
// environment that choose among them, and a handler of log/slog that takes each record apart.
package logs

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/goccl/goccl/core/internal/printable"
)

// A Subsystem is a part of the library that logs.
type Subsystem string

// The subsystems. NCCL has those of the same names.
const (
	Init      Subsystem = "INIT"      // groups: made, failed, ended
	Bootstrap Subsystem = "BOOTSTRAP" // how ranks meet
	Env       Subsystem = "ENV"       // variables of the environment
	Net       Subsystem = "NET"       // links between processes
	Coll      Subsystem = "COLL"      // collectives
	P2P       Subsystem = "P2P"       // sends and receives
	Mem       Subsystem = "MEM"       // memory that ranks share
)

// Subsystems lists all of them.
var Subsystems = []Subsystem{Init, Bootstrap, Env, Net, Coll, P2P, Mem}

// The levels. Warn is for what a user should know, Info for what happens once a group, Trace for
// what happens once a call or a link.
const (
	Warn  = slog.LevelWarn
	Info  = slog.LevelInfo
	Trace = slog.LevelDebug
)

// LevelName is the name of a level in GOCCL_DEBUG.
func LevelName(l slog.Level) string {
	switch {
	case l >= Warn:
		return "WARN"
	case l >= Info:
		return "INFO"
	}
	return "TRACE"
}

// The attributes by which a handler knows where a record belongs.
const (
	subsystemKey = "subsys"
	groupKey     = "group"
	rankKey      = "rank"
)

// For is a logger for one subsystem.
func For(l *slog.Logger, s Subsystem) *slog.Logger { return l.With(subsystemKey, string(s)) }

// OfGroup is a logger for one rank of a group.
func OfGroup(l *slog.Logger, group string, rank int) *slog.Logger {
	return l.With(groupKey, group, rankKey, rank)
}

const maxText = 8 << 10 // bytes of a message

// Record is a line of the log. Its texts are printable, whoever has chosen what is in them.
type Record struct {
	Time      time.Time
	Level     slog.Level
	Subsystem Subsystem
	InGroup   bool   // it concerns a group: Group and Rank are set
	Group     string // the name, which may be empty
	Rank      int
	Text      string // the message, and its attributes as name=value
}

// Where names the group and the rank, as in `[0] rank 1`; "" where the record concerns no group.
func (r *Record) Where() string {
	if !r.InGroup {
		return ""
	}
	return fmt.Sprintf("[%s] rank %d", r.Group, r.Rank)
}

// Output takes records. Its methods may be called by any goroutine, under any lock: they do not
// block, and log nothing.
type Output interface {
	Enabled(slog.Level, Subsystem) bool
	Write(Record)
}

// New makes a logger that writes to an output.
func New(o Output) *slog.Logger { return slog.New(&handler{output: o}) }

// handler implements slog.Handler.
type handler struct {
	output Output
	record Record // what With has set; Text holds attributes, with a space in front
	prefix string // of the names of attributes: the groups of slog that are open
}

// Enabled implements slog.Handler.
func (h *handler) Enabled(_ context.Context, l slog.Level) bool {
	return h.output.Enabled(l, h.record.Subsystem)
}

// Handle implements slog.Handler.
func (h *handler) Handle(_ context.Context, from slog.Record) error {
	text := []byte(printable.Text(from.Message, maxText))
	text = append(text, h.record.Text...)
	from.Attrs(func(a slog.Attr) bool {
		text = appendAttr(text, h.prefix, a)
		return true
	})
	r := h.record
	r.Time, r.Level, r.Text = from.Time, from.Level, string(text)
	h.output.Write(r)
	return nil
}

// WithAttrs implements slog.Handler.
func (h *handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	with := *h
	for _, a := range attrs {
		switch {
		case h.prefix == "" && a.Key == subsystemKey:
			with.record.Subsystem = Subsystem(a.Value.String())
		case h.prefix == "" && a.Key == groupKey:
			with.record.InGroup = true
			with.record.Group = printable.Text(a.Value.String(), maxText)
		case h.prefix == "" && a.Key == rankKey && a.Value.Kind() == slog.KindInt64:
			with.record.Rank = int(a.Value.Int64())
		default:
			with.record.Text = string(appendAttr([]byte(with.record.Text), h.prefix, a))
		}
	}
	return &with
}

// WithGroup implements slog.Handler.
func (h *handler) WithGroup(name string) slog.Handler {
	with := *h
	if name != "" {
		with.prefix += name + "."
	}
	return &with
}

// appendAttr adds " name=value". A value with spaces is quoted.
func appendAttr(to []byte, prefix string, a slog.Attr) []byte {
	v := a.Value.Resolve()
	if v.Kind() == slog.KindGroup {
		if a.Key != "" {
			prefix += a.Key + "."
		}
		for _, inner := range v.Group() {
			to = appendAttr(to, prefix, inner)
		}
		return to
	}
	if a.Equal(slog.Attr{}) {
		return to
	}
	to = append(to, ' ')
	to = append(to, prefix...)
	to = append(to, a.Key...)
	to = append(to, '=')
	if text := v.String(); mustQuote(text) {
		to = strconv.AppendQuote(to, text)
	} else {
		to = append(to, text...)
	}
	return to
}

func mustQuote(text string) bool {
	if text == "" || !utf8.ValidString(text) {
		return true
	}
	return strings.ContainsFunc(text, func(r rune) bool {
		return unicode.IsSpace(r) || !unicode.IsPrint(r) || r == '"' || r == '='
	})
}

// Ended logs, for debugging, that something has ended, or with which error it has failed.
func Ended(log *slog.Logger, what string, err error, attrs ...any) {
	if err != nil {
		log.Debug(what+" fails", append(attrs, "error", err)...)
		return
	}
	log.Debug(what+" ends", attrs...)
}
