package main

// #include "api.h"
import "C"

import (
	"errors"
	"os"
	"syscall"

	"github.com/goccl/goccl/core/status"
)

// notify tells of a signal; nil where the program has a handler for it. The handler is the
// library's own, in C: it may come on any thread of the program, wherever that is.
func notify(number syscall.Signal) <-chan os.Signal {
	fd := C.api_take_signal(C.int(number))
	if fd < 0 {
		return nil
	}
	file, came := os.NewFile(uintptr(fd), "signals"), make(chan os.Signal)
	go func() {
		var count [8]byte
		for {
			if _, err := file.Read(count[:]); err != nil {
				return
			}
			came <- number
		}
	}()
	return came
}

//export apiDump
func apiDump(prefix *C.char) C.goccl_result {
	return export("dump", func() error {
		if err := needs(prefix, "dump: prefix"); err != nil {
			return err
		}
		return process.Dump(C.GoString(prefix))
	})
}

//export apiStats
func apiStats(json *C.char, size C.size_t, needed *C.size_t) C.goccl_result {
	return export("stats", func() error {
		return giveJSON("stats", process.Stats(), json, size, needed)
	})
}

//export apiStatus
func apiStatus(json *C.char, size C.size_t, needed *C.size_t) C.goccl_result {
	return export("status", func() error {
		return giveJSON("status", process.Status(), json, size, needed)
	})
}

//export apiPs
func apiPs(all C.int, json *C.char, size C.size_t, needed *C.size_t) C.goccl_result {
	return export("ps", func() error {
		found, err := status.Host(all != 0)
		if err != nil {
			return errorf(C.GOCCL_SYSTEM, "ps: %v", err)
		}
		return giveJSON("ps", found, json, size, needed)
	})
}

//export apiPsJudge
func apiPsJudge(processes, json *C.char, size C.size_t, needed *C.size_t) C.goccl_result {
	return export("ps_judge", func() error {
		if err := needs(processes, "ps_judge: processes"); err != nil {
			return err
		}
		found, err := status.Judge([]byte(C.GoString(processes)))
		if err != nil {
			return errorf(C.GOCCL_INVALID_ARGUMENT, "ps_judge: processes: %v", err)
		}
		return giveJSON("ps_judge", found, json, size, needed)
	})
}

//export apiPsDump
func apiPsDump(
	prefix *C.char, pid C.int, json *C.char, size C.size_t, needed *C.size_t,
) C.goccl_result {
	return export("ps_dump", func() error {
		if err := needs(prefix, "ps_dump: prefix"); err != nil {
			return err
		}
		dumps, err := status.Dump(C.GoString(prefix), int(pid))
		if errors.Is(err, status.ErrPrefix) {
			return errorf(C.GOCCL_INVALID_ARGUMENT, "ps_dump: %v", err)
		} else if err != nil {
			return errorf(C.GOCCL_SYSTEM, "ps_dump: %v", err)
		}
		return giveJSON("ps_dump", dumps, json, size, needed)
	})
}
