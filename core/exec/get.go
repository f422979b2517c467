package exec

/*
#include "exec.h"
#include "get.h"
*/
import "C"

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"strings"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Mark is a place in a process's memory, and what stands there: a rank that reads just that there
// can read the process's memory.
type Mark struct{ At, Value uint64 }

// OwnMark is this process's.
var OwnMark = sync.OnceValue(func() Mark {
	var b [8]byte
	rand.Read(b[:])
	C.goccl_mark = C.uint64_t(binary.NativeEndian.Uint64(b[:]))
	return Mark{At: uint64(uintptr(unsafe.Pointer(&C.goccl_mark))), Value: uint64(C.goccl_mark)}
})

// Process is a process by its number, and by a descriptor (pidfd) that goes on naming it when it
// has ended and another has the number; FD is -1 where it is this process, or none is to be had.
type Process struct{ PID, FD int }

// CanGet tells why the memory of a process cannot be read; nil: it can.
func CanGet(p Process, m Mark) error {
	if p.FD < 0 && p.PID != os.Getpid() {
		return fmt.Errorf("pid %d: there is no descriptor (pidfd) of it, without which another "+
			"process that gets the number could be read", p.PID)
	}
	var seen C.uint64_t
	errno := unix.Errno(C.goccl_get(C.int32_t(p.PID), unsafe.Pointer(&seen), C.uint64_t(m.At),
		C.size_t(unsafe.Sizeof(seen))))
	switch {
	case errno != 0:
		return fmt.Errorf("process_vm_readv of pid %d: %w", p.PID, errno)
	case uint64(seen) != m.Value:
		return fmt.Errorf("pid %d is another process here: pid namespaces differ", p.PID)
	// after the look: so it was the process that the number named
	case C.goccl_ended(C.int32_t(p.FD)) != 0:
		return fmt.Errorf("pid %d: the process has ended", p.PID)
	}
	return nil
}

// HugePagesFile is where the system says whom it gives huge pages.
const HugePagesFile = "/sys/kernel/mm/transparent_hugepage/enabled"

// ReadCost is how many times as long as a copy it takes to read a large piece of another process's
// memory; infinity, where that cannot be measured. It depends on the CPU, and on the pages that the
// system gives unasked: the kernel looks up each one. So it is measured, once, for about a
// millisecond, which is long where many processes of a host start at once: one of them is enough.
var ReadCost = sync.OnceValue(func() float64 {
	copied, read := readTimes()
	if read == 0 {
		return math.Inf(1)
	}
	return float64(read) / float64(copied)
})

// readTimes are how long it takes to copy a piece of this process's memory, and to read it as
// another's is read: the shortest of several times each, in turn, for other threads may have had
// the CPU. Zero: it cannot be measured.
func readTimes() (copied, read time.Duration) {
	const huge = 2 << 20 // bytes in a huge page, one half of which is copied to the other
	mem, err := unix.Mmap(-1, 0, 2*huge, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return 0, 0
	}
	defer unix.Munmap(mem)
	from := unsafe.Pointer(&mem[-uintptr(unsafe.Pointer(&mem[0]))%huge])
	to := unsafe.Add(from, huge/2)
	var c, r C.uint64_t
	if C.goccl_read_times(to, from, huge/2, &c, &r) != 0 {
		return 0, 0
	}
	return time.Duration(c), time.Duration(r)
}

// Take copies from the memory of a peer, which can be read and is mapped, what the peer has offered
// there. It tells whether it has: if not, and there is no error, the peer has stopped, or is no
// more.
func (l *Lane) Take(peer int, to []byte, from uint64) (taken bool, err error) {
	switch errno := unix.Errno(C.goccl_take(&l.channels[peer], unsafe.Pointer(&to[0]),
		C.uint64_t(from), C.size_t(len(to)))); errno {
	case 0:
		return true, nil
	case unix.ESRCH:
		return false, nil
	default:
		return false, errno
	}
}

// GetProblem tells why processes like this one cannot read each other's memory on this host, and
// what to do; "" if nothing is known to be in their way.
func GetProblem() string {
	if err := CanGet(Process{os.Getpid(), -1}, OwnMark()); err != nil {
		return fmt.Sprintf("%v; allow it in the sandbox (seccomp) profile of the container", err)
	}
	const yama = "/proc/sys/kernel/yama/ptrace_scope"
	text, err := os.ReadFile(yama)
	if err != nil { // without Yama there is none
		return ""
	}
	switch scope := strings.TrimSpace(string(text)); {
	case scope == "3":
		return fmt.Sprintf("%s is 3, which cannot be undone before the next start of the system", yama)
	case scope != "0" && !tracer():
		return fmt.Sprintf("%s is %s: set it to 0 (sysctl kernel.yama.ptrace_scope=0), or give the "+
			"processes CAP_SYS_PTRACE", yama, scope)
	}
	return ""
}

// tracer tells whether this process has CAP_SYS_PTRACE.
func tracer() bool {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	return unix.Capget(&header, &data[0]) == nil && data[0].Effective&(1<<unix.CAP_SYS_PTRACE) != 0
}
