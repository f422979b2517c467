package exporter

import (
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/goccl/goccl/core/internal/replace"
	"github.com/goccl/goccl/core/metrics"
)

// File is a file that has the metrics, as long as it is not closed.
type File struct {
	path    string
	stats   func() metrics.Stats
	problem func(error)
	written os.FileInfo // the last file; nil: none is
	end     chan struct{}
	ended   chan struct{}
}

// Write begins to write a file, now and then every so often. Problem is told why that has failed,
// each time.
func Write(
	path string, stats func() metrics.Stats, every time.Duration, problem func(error),
) *File {
	if whole, err := filepath.Abs(path); err == nil { // the program may go to another folder
		path = whole
	}
	f := &File{path: path, stats: stats, problem: problem, end: make(chan struct{}),
		ended: make(chan struct{})}
	go f.run(every)
	return f
}

func (f *File) run(every time.Duration) {
	defer close(f.ended)
	t := time.NewTicker(every)
	defer t.Stop()
	for {
		f.write()
		select {
		case <-t.C:
		case <-f.end:
			f.remove()
			return
		}
	}
}

// write writes the file. The files of a host are put together by who reads them: so each of its
// metrics tells the process.
func (f *File) write() {
	s := f.stats()
	text := s.Text(metrics.Label{Name: "pid", Value: strconv.Itoa(os.Getpid())})
	if err := replace.File(f.path, text); err != nil {
		f.problem(err)
		return
	}
	f.written, _ = os.Lstat(f.path)
}

// remove removes the file, if it is the one that was written: another process may have the same
// path.
func (f *File) remove() {
	if there, err := os.Lstat(f.path); err == nil && f.written != nil &&
		os.SameFile(there, f.written) {
		if err := os.Remove(f.path); err != nil {
			f.problem(err)
		}
	}
}

// Close removes the file. It waits for so long at most.
func (f *File) Close(most time.Duration) {
	close(f.end)
	select {
	case <-f.ended:
	case <-time.After(most):
	}
}
