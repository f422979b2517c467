package main

// #include <stdlib.h>
// #include "api.h"
import "C"

import (
	"log/slog"
	"unsafe"

	"github.com/goccl/goccl/capi/deep"
	"github.com/goccl/goccl/core"
	"github.com/goccl/goccl/core/logs"
)

// journal is this process's log. It opens before there is a communicator, and reads the files of
// settings by itself: a program may name one in between.
var journal = logs.Journal{Getenv: core.Getenv(getenv), Version: core.Version}

// levels are those of goccl_log_level.
var levels = [...]slog.Level{C.GOCCL_LOG_DEFAULT: logs.Default, C.GOCCL_LOG_WARN: logs.Warn,
	C.GOCCL_LOG_INFO: logs.Info, C.GOCCL_LOG_TRACE: logs.Trace}

// setLogger has a function of C hear the log.
func setLogger(function C.goccl_logger, context unsafe.Pointer, level C.goccl_log_level) error {
	var hear func(*logs.Record)
	if function != nil {
		hear = func(r *logs.Record) { deep.Call(func() { tell(function, context, r) }) }
	}
	if !journal.Listen(hear, levels[level]) {
		return errorf(C.GOCCL_TIMEOUT, "set_logger: the logger that was set before has not returned "+
			"after %v: its context must stay valid until it does", logs.LastWords)
	}
	return nil
}

// tell calls a function of C with a record.
func tell(function C.goccl_logger, context unsafe.Pointer, r *logs.Record) {
	subsystem, text := C.CString(string(r.Subsystem)), C.CString(r.Text)
	defer C.free(unsafe.Pointer(subsystem))
	defer C.free(unsafe.Pointer(text))
	out := C.goccl_log_record{struct_size: C.sizeof_goccl_log_record, level: levelOut(r.Level),
		time_ns: C.int64_t(r.Time.UnixNano()), subsystem: subsystem, rank: -1, text: text}
	if r.InGroup {
		out.group, out.rank = C.CString(r.Group), C.int(r.Rank)
		defer C.free(unsafe.Pointer(out.group))
	}
	C.api_log(function, context, &out)
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
