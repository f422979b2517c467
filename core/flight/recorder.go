package flight

import (
	"errors"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/goccl/goccl/core/internal/replace"
	"github.com/goccl/goccl/core/trace"
)

// ErrBusy tells that a dump is being written already.
var ErrBusy = errors.New("a dump is being written already")

// Recorder writes what the communicators of a process have done. Its methods may be called from any
// goroutine.
type Recorder struct {
	Traces  *trace.Registry
	Library string // its version

	writing   sync.Mutex     // held while files are written
	failing   sync.WaitGroup // dumps that failures have begun
	listening sync.Once      // for signals
}

// Dump writes a file for each rank that has communicators here: its name is the prefix and the rank
// in the job. It returns the files that it has written. A file that is there is replaced as a
// whole, or stays as it is. A dump that is being written is not waited for: see ErrBusy.
func (r *Recorder) Dump(prefix string) (files []string, err error) {
	if !r.writing.TryLock() {
		return nil, ErrBusy
	}
	defer r.writing.Unlock()
	return r.write(prefix)
}

func (r *Recorder) write(prefix string) (files []string, err error) {
	var sources []Source
	for _, t := range r.Traces.All() {
		sources = append(sources, Read(t))
	}
	var all []error
	for rank, content := range Files(r.Library, sources) {
		path := prefix + strconv.Itoa(rank)
		if err := replace.File(path, content); err != nil {
			all = append(all, err)
			continue
		}
		files = append(files, path)
	}
	slices.Sort(files)
	return files, errors.Join(all...)
}

// Failed writes a dump, on a goroutine, because a communicator has failed. A problem is logged.
func (r *Recorder) Failed(prefix string, log *slog.Logger) {
	r.failing.Go(func() {
		r.writing.Lock()
		defer r.writing.Unlock()
		if _, err := r.write(prefix); err != nil {
			log.Warn("the flight recorder's files cannot be written", "cause", err.Error())
		}
	})
}

// Wait waits for what Failed has begun, for so long at most.
func (r *Recorder) Wait(most time.Duration) {
	over := make(chan struct{})
	go func() {
		r.failing.Wait()
		close(over)
	}()
	select {
	case <-over:
	case <-time.After(most):
	}
}
