package main

// #include <stdlib.h>
// #include "api.h"
import "C"

import (
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/goccl/goccl/capi/deep"
	"github.com/goccl/goccl/core"
	"github.com/goccl/goccl/core/logs"
)

// journal is the process's log: to standard error or a file, as the environment says, and to the
// function that goccl_set_logger() has set, which takes the place of standard error.
type journal struct {
	once     sync.Once
	settings logs.Settings
	host     string
	lines    *lines
	toFile   bool
	listener atomic.Pointer[listener]
}

// open reads the environment, once: when something is logged for the first time.
func (j *journal) open() {
	j.settings, _ = logs.Read(getenv) // of what is wrong core tells
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
			j.line(&logs.Record{Time: time.Now(), Level: logs.Warn, Subsystem: logs.Env,
				Text: fmt.Sprintf("%s: cannot open %s: %v; the log goes to standard error",
					logs.EnvFile, path, err)})
		} else {
			j.lines, j.toFile = &lines{fd: fd}, true
		}
	}
	if j.settings.Version {
		fmt.Fprintf(j.lines, "goccl: version %s\n", core.Version)
	}
}

// Enabled implements logs.Output.
func (j *journal) Enabled(level slog.Level, s logs.Subsystem) bool {
	j.once.Do(j.open)
	if !j.settings.Includes(level, s) {
		return false
	}
	l := j.listener.Load()
	return j.writes(l, level) || l != nil && level >= l.level
}

// writes tells whether lines are written of records of a level.
func (j *journal) writes(l *listener, level slog.Level) bool {
	return level >= j.settings.Level && (l == nil || j.toFile)
}

// Write implements logs.Output.
func (j *journal) Write(r logs.Record) {
	l := j.listener.Load()
	if l != nil && r.Level >= l.level && !l.hear(r) {
		l = j.listener.Load() // it has just been replaced
	}
	if j.writes(l, r.Level) {
		j.line(&r)
	}
}

// line writes a record as one line.
func (j *journal) line(r *logs.Record) {
	where := r.Where()
	if where != "" {
		where = " " + where
	}
	fmt.Fprintf(j.lines, "goccl: %s %s:%d %s %s%s: %s\n", r.Time.Format("2006/01/02 15:04:05.000000"),
		j.host, os.Getpid(), logs.LevelName(r.Level), r.Subsystem, where, r.Text)
}

// set has a function hear the log from now on; NULL: none. It waits until the one before has heard
// all that was for it.
func (j *journal) set(
	function C.goccl_logger, context unsafe.Pointer, level C.goccl_log_level,
) error {
	j.once.Do(j.open)
	var next *listener
	if function != nil {
		next = &listener{function: function, context: context, level: j.settings.Level}
		if level != C.GOCCL_LOG_DEFAULT {
			next.level = levelOf(level)
		}
	}
	if last := j.listener.Swap(next); last != nil && !last.end() {
		return errorf(C.GOCCL_TIMEOUT, "set_logger: the logger that was set before has not returned "+
			"after %v: its context must stay valid until it does", lastWords)
	}
	return nil
}

func levelOf(level C.goccl_log_level) slog.Level {
	switch level {
	case C.GOCCL_LOG_WARN:
		return logs.Warn
	case C.GOCCL_LOG_INFO:
		return logs.Info
	}
	return logs.Trace
}

func levelOut(level slog.Level) C.goccl_log_level {
	switch {
	case level >= logs.Warn:
		return C.GOCCL_LOG_WARN
	case level >= logs.Info:
		return C.GOCCL_LOG_INFO
	}
	return C.GOCCL_LOG_TRACE
}

const (
	// maxHeard is how many records wait at most for a logger that does not keep up.
	maxHeard = 4096
	// lastWords is how long goccl_set_logger() waits for the logger that was set before.
	lastWords = 2 * time.Second
)

// listener is a function of the program that hears the log. It is called by a goroutine that is
// there for nothing else, and only while there is something to hear: a thread that logs may hold
// any lock.
type listener struct {
	function C.goccl_logger
	context  unsafe.Pointer
	level    slog.Level

	mu      sync.Mutex
	waiting []logs.Record
	dropped int
	ended   bool
	idle    chan struct{} // closed by the goroutine when it has done; nil: there is none
	thread  int           // on which the function runs now; 0: it does not
}

// hear hands a record on. It tells whether that was not too late.
func (l *listener) hear(r logs.Record) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.ended:
		return false
	case len(l.waiting) == maxHeard:
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
	late := time.NewTimer(lastWords)
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
		var r logs.Record
		if len(l.waiting) > 0 {
			r, l.waiting = l.waiting[0], l.waiting[1:]
		} else {
			r = logs.Record{Time: time.Now(), Level: logs.Warn, Subsystem: logs.Env,
				Text: fmt.Sprintf("%d records of the log are missing: the logger did not hear them in time",
					l.dropped)}
			l.dropped = 0
		}
		deep.Call(func() { l.tell(&r) })
	}
	l.waiting = nil
	close(l.idle)
	l.idle = nil
}

// tell calls the function, without the lock.
func (l *listener) tell(r *logs.Record) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	l.thread = unix.Gettid()
	l.mu.Unlock()
	defer func() {
		l.mu.Lock()
		l.thread = 0
	}()
	subsystem, text := C.CString(string(r.Subsystem)), C.CString(r.Text)
	defer C.free(unsafe.Pointer(subsystem))
	defer C.free(unsafe.Pointer(text))
	out := C.goccl_log_record{struct_size: C.sizeof_goccl_log_record, level: levelOut(r.Level),
		time_ns: C.int64_t(r.Time.UnixNano()), subsystem: subsystem, rank: -1, text: text}
	if r.InGroup {
		out.group, out.rank = C.CString(r.Group), C.int(r.Rank)
		defer C.free(unsafe.Pointer(out.group))
	}
	C.api_log(l.function, l.context, &out)
}
