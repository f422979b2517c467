// Package rdma reaches RDMA adapters through libibverbs, which is loaded when it is first asked
// for: nothing here links to it, and where it or a device is missing, an error tells what to
// install.
package rdma

/*
#cgo CFLAGS: -fvisibility=hidden
#cgo LDFLAGS: -ldl
#include <stdlib.h>
#include "device.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"sync"
	"syscall"
	"unsafe"
)

// Library is libibverbs, loaded for ever. It is safe for use by several goroutines.
type Library struct {
	verbs *C.struct_goccl_verbs // in C's memory, never freed
	sysfs string                // what the kernel tells about devices
}

// libraries holds what is loaded, by path.
var libraries struct {
	sync.Mutex
	byPath map[string]*Library
}

// Load loads the system's libibverbs, or the one at path where that is not "". Loading it again
// gives the same Library.
func Load(path string) (*Library, error) {
	libraries.Lock()
	defer libraries.Unlock()
	if l := libraries.byPath[path]; l != nil {
		return l, nil
	}
	l := &Library{
		verbs: (*C.struct_goccl_verbs)(C.calloc(1, C.sizeof_struct_goccl_verbs)),
		sysfs: "/sys/class/infiniband",
	}
	if l.verbs == nil {
		return nil, errors.New("libibverbs cannot be loaded: out of memory")
	}
	name := C.CString(path)
	defer C.free(unsafe.Pointer(name))
	var text [512]C.char
	if C.goccl_verbs_load(l.verbs, name, &text[0], C.size_t(len(text))) != 0 {
		C.free(unsafe.Pointer(l.verbs))
		return nil,
			fmt.Errorf("libibverbs cannot be loaded: %s; install rdma-core (on Debian and Ubuntu: "+
				"libibverbs1 and "+
				"ibverbs-providers), or use TCP", C.GoString(&text[0]))
	}
	if libraries.byPath == nil {
		libraries.byPath = map[string]*Library{}
	}
	libraries.byPath[path] = l
	return l, nil
}

// ForkProblem tells why registered memory would not be safe in a process that forks, or "".
func (l *Library) ForkProblem() string {
	if e := syscall.Errno(l.verbs.fork_error); e != 0 {
		return fmt.Sprintf("ibv_fork_init fails: %v; a process that uses RDMA must not fork on this "+
			"kernel", e)
	}
	return ""
}

// devices calls f with each device, which is good for no longer than that.
func (l *Library) devices(f func(d *C.struct_ibv_device) error) error {
	var n C.int
	list, err := C.goccl_get_device_list(l.verbs, &n)
	if list == nil {
		if err == syscall.ENOSYS { // a kernel without ib_uverbs, which is usual where there is no device
			return nil
		}
		return newError("ibv_get_device_list", "", errnoOf(err))
	}
	defer C.goccl_free_device_list(l.verbs, list)
	for _, d := range unsafe.Slice(list, int(n)) {
		if err := f(d); err != nil {
			return err
		}
	}
	return nil
}

func (l *Library) name(d *C.struct_ibv_device) string {
	return C.GoString(C.goccl_get_device_name(l.verbs, d))
}

// errnoOf takes the errno out of what cgo gives beside a nil pointer.
func errnoOf(err error) syscall.Errno {
	if e, ok := err.(syscall.Errno); ok {
		return e
	}
	return syscall.EIO
}
