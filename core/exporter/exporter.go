// Package exporter gives the metrics of a process to Prometheus: in a file for node_exporter, and
// at a port.
//
// # Model
//
// A process with communicators that is told a path has a file there, which is written again every
// 15 seconds, and removed when the last communicator is destroyed. One that is told a port serves
// the same text there. Both have a goroutine of their own, which reads traces without a lock: no
// collective waits for them. What stands against one of them is logged once, and nothing else
// depends on it.
package exporter

import (
	"log/slog"
	"sync"
	"time"

	"github.com/goccl/goccl/core/logs"
	"github.com/goccl/goccl/core/metrics"
)

const (
	// writeEvery is how old a file may be.
	writeEvery = 15 * time.Second
	// endTime is how long the end of the last communicator waits for a file system.
	endTime = 2 * time.Second
)

// Config says what is told, and where.
type Config struct {
	Stats func() metrics.Stats    // is called from several goroutines
	File  string                  // a pattern of a path: see logs.Expand; "": none
	Port  string                  // see metrics.ParseListen; "": none
	OnFD  func(fd int, open bool) // told of the socket when it opens and before it closes; may be nil
	Log   *slog.Logger
}

// Shown is the file and the port of a process that has something to tell at times. The zero one is
// off.
type Shown struct {
	mu     sync.Mutex
	on     bool    // guarded by mu
	file   *File   // nil: there is none; guarded by mu
	server *Server // likewise
	// told keeps what is logged once from being logged again; guarded by mu.
	told struct{ file, port sync.Once }
}

// Set turns it on, with communicators to tell of, or off. A configuration that another one follows
// lasts until it is off.
func (s *Shown) Set(on bool, c Config) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if on == s.on {
		return
	}
	s.on = on
	if !on {
		if s.file != nil {
			s.file.Close(endTime)
		}
		if s.server != nil {
			s.server.Close()
		}
		s.file, s.server = nil, nil
		return
	}
	if path, err := logs.Expand(c.File, logs.NoRank); path != "" && err == nil { // Init refuses others
		s.file = Write(path, c.Stats, writeEvery, func(err error) {
			s.told.file.Do(func() {
				c.Log.Warn("the metrics cannot be written (GOCCL_METRICS_FILE)", "cause", err.Error())
			})
		})
	}
	if c.Port != "" {
		var err error
		if s.server, err = Serve(c.Port, c.Stats, c.OnFD); err != nil {
			s.told.port.Do(func() {
				c.Log.Warn("the metrics are not served (GOCCL_METRICS_PORT)", "cause", err.Error())
			})
		}
	}
}
