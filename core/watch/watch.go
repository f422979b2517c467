// Package watch has what looks at the communicators of a process: `goccl ps`, the flight recorder,
// metrics and the trace. All of them begin with the first communicator, and end with the last.
package watch

import (
	"log/slog"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/goccl/goccl/core/config"
	"github.com/goccl/goccl/core/exporter"
	"github.com/goccl/goccl/core/fault"
	"github.com/goccl/goccl/core/flight"
	"github.com/goccl/goccl/core/logs"
	"github.com/goccl/goccl/core/metrics"
	"github.com/goccl/goccl/core/status"
	"github.com/goccl/goccl/core/trace"
	"github.com/goccl/goccl/core/tracefile"
)

// dumpTime is how long the end of a communicator waits for the flight recorder.
const dumpTime = 2 * time.Second

// Config says how a process is.
type Config struct {
	Getenv func(string) string
	Notify func(syscall.Signal) <-chan os.Signal // see flight.Signal
	OnFD   func(fd int, open bool)               // as of status.Serve
	Memory func() metrics.Memory
	Logger *slog.Logger
}

// Watch looks at the communicators of a process. Its methods may be called from any goroutine.
type Watch struct {
	config   Config
	traces   trace.Registry
	recorder flight.Recorder

	shown status.Shown

	mu       sync.Mutex // held while what follows begins and ends
	exporter exporter.Shown
	file     tracefile.Shown
}

// New makes one that sees no communicator yet.
func New(c Config) *Watch {
	w := &Watch{config: c}
	w.recorder = flight.Recorder{Traces: &w.traces, Library: config.Version}
	w.shown.OnFD, w.shown.Dump = c.OnFD, w.recorder.Dump
	return w
}

// Add has a communicator seen, which is a member of a group.
func (w *Watch) Add(c status.Source, group string) {
	w.traces.Add(c.Trace, group)
	w.shown.Add(c, w.log(logs.Init))
	w.recorder.Listen(flight.Signal{Name: w.config.Getenv(config.EnvDumpSignal),
		Prefix: w.config.Getenv(config.EnvDump), Notify: w.config.Notify}, w.log(logs.Env))
	w.show()
}

// Remove has a communicator seen no more, which is destroyed. It waits for files that are being
// written, for a few seconds at most.
func (w *Watch) Remove(t *trace.Trace) {
	w.recorder.Wait(dumpTime)
	w.traces.Remove(t)
	w.shown.Remove(t)
	w.show()
}

// show has metrics told, and a trace written, while the process has communicators.
func (w *Watch) show() {
	w.mu.Lock()
	defer w.mu.Unlock()
	has := len(w.traces.All()) > 0
	w.exporter.Set(has, exporter.Config{Stats: w.Stats, OnFD: w.config.OnFD, Log: w.log(logs.Init),
		File: w.config.Getenv(config.EnvMetricsFile), Port: w.config.Getenv(config.EnvMetricsPort)})
	w.file.Set(has, w.config.Getenv(config.EnvTrace), &w.traces, w.log(logs.Init))
}

func (w *Watch) log(s logs.Subsystem) *slog.Logger { return logs.For(w.config.Logger, s) }

// Failed has a dump written, if the environment asks for it: a communicator has failed.
func (w *Watch) Failed() {
	if prefix := w.config.Getenv(config.EnvDump); prefix != "" {
		w.recorder.Failed(prefix, w.log(logs.Init))
	}
}

// Dump writes what the communicators of the process have done, for torchfrtrace: a file a rank,
// whose name is the prefix and the rank in the job. It waits for no collective. An error tells why
// a file is not written, or that a dump is being written already.
func (w *Watch) Dump(prefix string) error {
	switch {
	case prefix == "":
		return fault.Errorf(fault.ErrInvalidArgument, "dump: prefix is empty, it must begin the names "+
			"of files, such as \"/tmp/goccl_rank_\"")
	case len(w.traces.All()) == 0:
		return fault.Errorf(fault.ErrInvalidArgument, "dump: this process has no communicator")
	}
	if _, err := w.recorder.Dump(prefix); err != nil {
		return fault.Errorf(fault.ErrSystem, "dump: %v", err)
	}
	return nil
}

// Stats is what the communicators of the process have done. It takes no lock that a call holds.
func (w *Watch) Stats() metrics.Stats {
	s := exporter.Of(&w.traces)
	s.Version, s.Memory = config.Version, w.config.Memory()
	return s
}

// Status tells what the communicators do. It waits for nothing.
func (w *Watch) Status() status.Process { return w.shown.Status() }
