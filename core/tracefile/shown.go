package tracefile

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"

	"github.com/goccl/goccl/core/logs"
	"github.com/goccl/goccl/core/trace"
)

// Shown is the file of a process that has communicators at times. The zero one is off.
type Shown struct {
	mu   sync.Mutex // guards what follows
	file *File      // nil while it is off
	last *File      // the one before
}

// Set turns it on, with communicators to tell of, or off. The pattern of the path is as of
// logs.Expand; "": nothing is written. What stands against it is logged: nothing else needs it.
func (s *Shown) Set(on bool, pattern string, traces *trace.Registry, log *slog.Logger) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case on && s.file == nil && pattern != "":
		var err error
		first := traces.All()   // which is gone when the last part of a short life is written
		folder, _ := os.Getwd() // the program may go to another one
		s.file, err = Start(Config{After: s.last, Logger: log,
			Where: func() (path, process string, ok bool) { return where(folder, pattern, first) }})
		if err != nil {
			log.Warn("no trace is written", "cause", err.Error())
		}
	case !on && s.file != nil:
		s.file.Close()
		if s.file.ended() && s.file.out != nil {
			s.last = s.file
		}
		s.file = nil
	}
}

// where returns the path of a process's file, and its name, once it knows its rank.
func where(folder, pattern string, traces []*trace.Trace) (path, process string, ok bool) {
	for _, t := range traces {
		groups := t.Groups()
		if len(groups) == 0 {
			continue
		}
		g := &groups[len(groups)-1]
		rank := g.JobRank()
		path, err := logs.Expand(pattern, rank)
		if !filepath.IsAbs(path) {
			path = filepath.Join(folder, path)
		}
		host, _ := os.Hostname()
		return path, fmt.Sprintf("rank %d (%s, process %d)", rank, host, os.Getpid()), err == nil
	}
	return "", "", false
}
