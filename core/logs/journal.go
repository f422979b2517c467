package logs

import (
	"fmt"
	"log/slog"
	"math"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Journal is the log of a process: an [Output] that writes to standard error or a file, as the
// environment says, and to a listener, which takes the place of standard error.
type Journal struct {
	Getenv  func(string) string
	Version string // what the first line tells, where the environment asks for it

	once     sync.Once
	settings Settings
	host     string
	lines    *lines
	toFile   bool
	listener atomic.Pointer[listener]
}

// open reads the environment, once: when something is logged for the first time.
func (j *Journal) open() {
	j.settings, _ = Read(j.Getenv) // of what is wrong core tells
	j.lines = &lines{fd: unix.Stderr}
	var err error
	if j.host, err = os.Hostname(); err != nil {
		j.host = "unknown"
	}
	if path := j.settings.File; path != "" {
		// Not to wait for the reader of a pipe.
		const flags = unix.O_WRONLY | unix.O_APPEND | unix.O_CREAT | unix.O_CLOEXEC | unix.O_NONBLOCK
		fd, err := unix.Open(path, flags, 0o644)
		if err != nil {
			j.line(&Record{Time: time.Now(), Level: Warn, Subsystem: Env,
				Text: fmt.Sprintf("%s: cannot open %s: %v; the log goes to standard error",
					EnvFile, path, err)})
		} else {
			j.lines, j.toFile = &lines{fd: fd}, true
		}
	}
	if j.settings.Version {
		fmt.Fprintf(j.lines, "goccl: version %s\n", j.Version)
	}
}

// Enabled implements [Output].
func (j *Journal) Enabled(level slog.Level, s Subsystem) bool {
	j.once.Do(j.open)
	if !j.settings.Includes(level, s) {
		return false
	}
	l := j.listener.Load()
	return j.writes(l, level) || l != nil && level >= l.level
}

// writes tells whether lines are written of records of a level.
func (j *Journal) writes(l *listener, level slog.Level) bool {
	return level >= j.settings.Level && (l == nil || j.toFile)
}

// Write implements [Output].
func (j *Journal) Write(r Record) {
	l := j.listener.Load()
	if l != nil && r.Level >= l.level && !l.hear(r) {
		l = j.listener.Load() // it has just been replaced
	}
	if j.writes(l, r.Level) {
		j.line(&r)
	}
}

// line writes a record as one line.
func (j *Journal) line(r *Record) {
	where := r.Where()
	if where != "" {
		where = " " + where
	}
	fmt.Fprintf(j.lines, "goccl: %s %s:%d %s %s%s: %s\n", r.Time.Format("2006/01/02 15:04:05.000000"),
		j.host, os.Getpid(), LevelName(r.Level), r.Subsystem, where, r.Text)
}

// Default is the level of a listener that hears what the environment asks for.
const Default = slog.Level(math.MinInt)

// Listen has a function hear the log from now on; nil: none. It waits until the one before has
// heard all that was for it, for LastWords at most, and reports whether that is called no more.
// Called by that one itself it does not wait.
func (j *Journal) Listen(f func(*Record), level slog.Level) bool {
	j.once.Do(j.open)
	var next *listener
	if f != nil {
		if level == Default {
			level = j.settings.Level
		}
		next = &listener{function: f, level: level}
	}
	last := j.listener.Swap(next)
	return last == nil || last.end()
}

const (
	// MaxHeard is how many records wait at most for a logger that does not keep up.
	MaxHeard = 4096
	// LastWords is how long Listen waits for the listener that was there before.
	LastWords = 2 * time.Second
)

// listener is a function of the program that hears the log. It is called by a goroutine that is
// there for nothing else, and only while there is something to hear: a thread that logs may hold
// any lock.
type listener struct {
	function func(*Record)
	level    slog.Level

	mu      sync.Mutex
	waiting []Record
	dropped int
	ended   bool
	idle    chan struct{} // closed by the goroutine when it has done; nil: there is none
	thread  int           // on which the function runs now; 0: it does not
}

// hear hands a record on. It tells whether that was not too late.
func (l *listener) hear(r Record) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.ended:
		return false
	case len(l.waiting) == MaxHeard:
		l.dropped++
		return true
	}
	l.waiting = append(l.waiting, r)
	if l.idle == nil {
		l.idle = make(chan struct{})
		go l.tellAll()
	}
	return true
}

// end waits until all is heard that was said before. It tells whether the function is called no
// more; called by the function itself, it does not wait, and the function hears no more.
func (l *listener) end() bool {
	l.mu.Lock()
	l.ended = true
	idle := l.idle
	if l.thread == unix.Gettid() {
		l.waiting, l.dropped, idle = nil, 0, nil
	}
	l.mu.Unlock()
	if idle == nil {
		return true
	}
	late := time.NewTimer(LastWords)
	defer late.Stop()
	select {
	case <-idle:
		return true
	case <-late.C:
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waiting, l.dropped = nil, 0
	return l.thread == 0
}

func (l *listener) tellAll() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.waiting) > 0 || l.dropped > 0 {
		var r Record
		if len(l.waiting) > 0 {
			r, l.waiting = l.waiting[0], l.waiting[1:]
		} else {
			r = Record{Time: time.Now(), Level: Warn, Subsystem: Env,
				Text: fmt.Sprintf("%d records of the log are missing: the logger did not hear them in time",
					l.dropped)}
			l.dropped = 0
		}
		l.tell(&r)
	}
	l.waiting = nil
	close(l.idle)
	l.idle = nil
}

// tell calls the function, without the lock.
func (l *listener) tell(r *Record) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	l.thread = unix.Gettid()
	l.mu.Unlock()
	defer func() {
		l.mu.Lock()
		l.thread = 0
	}()
	l.function(r)
}
