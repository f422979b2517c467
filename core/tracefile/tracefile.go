// Package tracefile writes the spans of a process into a file that ui.perfetto.dev shows.
//
// A [File] drains a session of package trace ten times a second. So what a killed process leaves
// is a trace up to that moment, and the files of several processes that are put together by cat
// are one: each row has a number of its own. Times are those of CLOCK_REALTIME. Ranks of one host
// have the same clock; those of several hosts differ as the hosts' clocks do.
package tracefile

import (
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goccl/goccl/core/internal/perfetto"
	"github.com/goccl/goccl/core/trace"
)

const (
	drainEvery = 100 * time.Millisecond
	// drainMost is how many spans are turned into packets at once.
	drainMost = 1 << 14
)

// Config says what a file is of.
type Config struct {
	// Where returns the path of the file and a name for the process, once they are known.
	Where  func() (path, process string, ok bool)
	After  *File // of this process, which has ended and is gone on with; nil: there is none
	Logger *slog.Logger
}

// File is a trace that is being written.
type File struct {
	config  Config
	session *trace.Session
	stop    chan struct{}
	done    chan struct{}

	// Of the goroutine that writes, and after it of who goes on with the file:
	out     *os.File // nil: it has not been opened
	info    os.FileInfo
	size    int64 // of the packets in it
	began   uint64
	writer  *perfetto.Writer
	process uint64 // its track
	tracks  map[row]uint64
	missed  uint64
}

// row is what has a track.
type row struct{ thread, number int }

// Start begins to write.
func Start(c Config) (*File, error) {
	s, err := trace.Open()
	if err != nil {
		return nil, err
	}
	f := &File{config: c, session: s, stop: make(chan struct{}), done: make(chan struct{}),
		tracks: map[row]uint64{}, began: uint64(time.Now().UnixNano())}
	go f.run()
	return f, nil
}

// closeTime is how long Close waits for a file system that does not answer.
const closeTime = 2 * time.Second

// Close writes the rest.
func (f *File) Close() {
	f.session.Close() // a busy process would have more for ever
	close(f.stop)
	select {
	case <-f.done:
	case <-time.After(closeTime):
	}
}

// ended reports whether nothing more is written.
func (f *File) ended() bool {
	select {
	case <-f.done:
		return true
	default:
		return false
	}
}

func (f *File) run() {
	defer close(f.done)
	defer f.session.Close()
	tick := time.NewTicker(drainEvery)
	defer tick.Stop()
	for going := true; going; {
		select {
		case <-tick.C:
		case <-f.stop:
			going = false
		}
		if f.drain() != nil {
			return
		}
	}
	if f.missed > 0 {
		f.config.Logger.Warn("spans are missing in the trace, because they came faster than they were "+
			"written", "spans", f.missed)
	}
	f.leave()
}

// leave closes the file. A forked child may have it still, and is not to keep others from it.
func (f *File) leave() {
	if f.out != nil {
		_ = unix.Flock(int(f.out.Fd()), unix.LOCK_UN)
		f.out.Close()
	}
}

// drain writes what has come. It tells of an error, after which nothing more is written.
func (f *File) drain() error {
	if f.out == nil {
		path, process, ok := f.config.Where()
		if !ok {
			return nil
		}
		if err := f.open(path, process); err != nil {
			f.config.Logger.Warn("no trace is written", "path", path, "cause", err.Error())
			return err
		}
	}
	for {
		spans, missed := f.session.Read(drainMost)
		f.missed += missed
		f.add(spans, missed)
		if b := f.writer.Take(); len(b) > 0 {
			if _, err := f.out.Write(b); err != nil {
				f.config.Logger.Warn("no more of the trace is written", "cause", err.Error())
				_ = f.out.Truncate(f.size) // a part of a packet makes no trace
				f.writer = nil             // which has told names there
				f.leave()
				return err
			}
			f.size += int64(len(b))
		}
		if len(spans) == 0 {
			return nil
		}
	}
}

// open makes the file, and begins the trace.
func (f *File) open(path, process string) error {
	// A pipe that nobody reads is an error.
	out, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND|unix.O_NONBLOCK, 0o644)
	if err != nil {
		return err
	}
	if err := f.claim(out); err != nil {
		out.Close()
		return err
	}
	f.out = out
	last := f.config.After
	f.config = Config{Logger: f.config.Logger} // the rest is not needed any more
	if f.size > 0 && last.writer != nil {
		f.writer, f.process, f.tracks = last.writer, last.process, last.tracks
		return nil
	}
	id := fnv.New64a()
	fmt.Fprint(id, process, os.Getpid(), f.began)
	f.writer = perfetto.NewWriter(uint32(id.Sum64()))
	f.writer.Begin(f.began)
	f.process = id.Sum64()
	f.writer.Track(perfetto.Track{ID: f.process, Name: process})
	return nil
}

// errTaken is the error of a path that another process writes to.
var errTaken = errors.New("another process writes it: the path needs %r, the rank in the job, or " +
	"%h and %p, the host and the process")

// claim makes sure that nobody else writes the file, and drops what is not this process's own.
func (f *File) claim(out *os.File) error {
	err := unix.Flock(int(out.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) { // else the file system has no locks
		return errTaken
	}
	if f.info, err = out.Stat(); err != nil || !f.info.Mode().IsRegular() { // a pipe
		return err
	}
	if last := f.config.After; last != nil && last.ended() && last.info != nil &&
		os.SameFile(last.info, f.info) && f.info.Size() == last.size { // a new file may look like it
		f.size = last.size
	}
	return out.Truncate(f.size)
}

// add makes packets of spans.
func (f *File) add(spans []trace.Span, missed uint64) {
	all := make([]perfetto.Slice, 0, len(spans)+1)
	for i := range spans {
		s := &spans[i]
		all = append(all, perfetto.Slice{Begin: uint64(s.Begin), End: uint64(s.End),
			Track: f.track(s), Name: s.Title(), Args: args(s)})
	}
	if missed > 0 {
		now := uint64(time.Now().UnixNano())
		all = append(all, perfetto.Slice{Begin: now, End: now, Track: f.process,
			Name: fmt.Sprintf("%d spans are missing", missed)})
	}
	f.writer.Slices(all)
}

// track is that of a span.
func (f *File) track(s *trace.Span) uint64 {
	r := row{s.Thread, s.Row}
	id, known := f.tracks[r]
	if !known {
		id = f.process + uint64(len(f.tracks)) + 1
		f.tracks[r] = id
		name := fmt.Sprintf("thread %d (%s)", s.Thread, s.ThreadName)
		if s.Row > 0 {
			name = fmt.Sprintf("%s, row %d", name, s.Row+1)
		}
		f.writer.Track(perfetto.Track{ID: id, Parent: f.process, Name: name})
	}
	return id
}

// args is what is told of a span. Parts lie within their call, which says the rest.
func args(s *trace.Span) (all []perfetto.Arg) {
	number := func(name string, n int) {
		all = append(all, perfetto.Arg{Name: name, Number: int64(n)})
	}
	text := func(name, t string) { all = append(all, perfetto.Arg{Name: name, Text: t}) }
	if s.Bytes > 0 {
		number("bytes", int(s.Bytes))
	}
	if s.Sequence > 0 {
		number("sequence", int(s.Sequence))
	}
	if s.Kind == trace.SpanCall {
		text("group", s.Group)
		number("rank", s.Rank)
	}
	if s.Peer >= 0 {
		number("peer", s.Peer)
	}
	return all
}
