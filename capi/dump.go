package main

// #include "api.h"
import "C"

import (
	"os"
	"syscall"
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
