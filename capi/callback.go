package main

// #include <stdlib.h>
// #include "api.h"
import "C"

import (
	"unsafe"

	"github.com/goccl/goccl/capi/deep"
)

// callBack tells C that a work has ended. C may call in again, on the same stack.
func callBack(callback C.goccl_callback, context unsafe.Pointer, err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	message := C.CString(text)
	defer C.free(unsafe.Pointer(message))
	deep.Call(func() { C.api_call_back(callback, context, codeOf(err), message) })
}
