package rdma

// #include "verbs.h"
import "C"

import (
	"fmt"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Error tells which verb failed and why: by an Errno, or by the Status of a completion.
type Error struct {
	Verb   string // such as "ibv_reg_mr" or "RDMA write"
	Device string // "" where it does not matter
	Errno  syscall.Errno
	Status int    // an ibv_wc_status; 0 or less where the error is none of a completion
	Vendor uint32 // the vendor's own error, which tells its support more
	Hint   string // what a user can do, "" for what the status suggests
}

func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.Verb)
	if e.Device != "" {
		b.WriteString(" on " + e.Device)
	}
	b.WriteString(" fails")
	hint := e.Hint
	if e.Status > 0 {
		s := statusText(e.Status)
		fmt.Fprintf(&b, ": %s (%s, status %d, vendor error %#x)", s.text, s.name, e.Status, e.Vendor)
		if hint == "" {
			hint = s.hint
		}
	}
	if e.Errno != 0 {
		b.WriteString(": " + e.Errno.Error())
	}
	if hint != "" {
		b.WriteString("; " + hint)
	}
	return b.String()
}

// Unwrap gives the errno, if there is one.
func (e *Error) Unwrap() error {
	if e.Errno == 0 {
		return nil
	}
	return e.Errno
}

// newError is the error of a verb that returned an errno.
func newError(verb, device string, errno syscall.Errno) *Error {
	return &Error{Verb: verb, Device: device, Errno: errno, Hint: errnoHint(verb, errno)}
}

// errnoHint tells what a user can do about it.
func errnoHint(verb string, errno syscall.Errno) string {
	opening := verb == "ibv_get_device_list" || verb == "ibv_open_device"
	switch errno {
	case syscall.EIO, syscall.ENODEV:
		return "the device has been removed or reset: look for its driver's messages (dmesg)"
	case syscall.ENOMEM:
		if opening {
			return ""
		}
		var limit unix.Rlimit
		if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit); err != nil {
			return ""
		}
		return lockedHint(limit.Cur)
	}
	if !opening {
		return ""
	}
	switch errno {
	case syscall.EPERM, syscall.EACCES:
		return "the process must be allowed to open /dev/infiniband/uverbs*: add its user to the " +
			"group that owns them, " +
			"or give the container --device=/dev/infiniband"
	case syscall.ENOENT, syscall.ENXIO:
		return "the device has no file in /dev/infiniband: load ib_uverbs (modprobe ib_uverbs), " +
			"or give the container --device=/dev/infiniband"
	}
	return ""
}

// lockedHint explains the want of memory by the limit on the locked one.
func lockedHint(limit uint64) string {
	if limit == unix.RLIM_INFINITY {
		return "locked memory is not limited (ulimit -l): too little of it is free, or the adapter " +
			"can hold no more"
	}
	return fmt.Sprintf("the limit on locked memory is %s; raise it where the ranks are started: "+
		"\"ulimit -l unlimited\" in a "+
		"shell, \"LimitMEMLOCK=infinity\" in a systemd unit, \"--ulimit memlock=-1\" for docker",
		bytesText(limit))
}

// bytesText gives a number of bytes in the largest unit that fits it.
func bytesText(n uint64) string {
	for _, u := range []struct {
		name  string
		bytes uint64
	}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}} {
		if n >= u.bytes && n%u.bytes == 0 {
			return fmt.Sprintf("%d %s", n/u.bytes, u.name)
		}
	}
	return fmt.Sprintf("%d bytes", n)
}

type status struct{ name, text, hint string }

func statusText(s int) status {
	if s >= 0 && s < len(statuses) && statuses[s].name != "" {
		return statuses[s]
	}
	return status{name: "unknown", text: "it is unknown what happened"}
}

const bug = "this is an error in GoCCL or in the adapter's driver: please report it"

// statuses explains the statuses of completions.
var statuses = [...]status{
	C.IBV_WC_SUCCESS:     {"SUCCESS", "nothing is wrong", ""},
	C.IBV_WC_LOC_LEN_ERR: {"LOC_LEN_ERR", "a message has another length than it may have", bug},
	C.IBV_WC_LOC_QP_OP_ERR: {"LOC_QP_OP_ERR", "the adapter cannot do what was asked of it",
		"is the link up on this host (rdma link)?"},
	C.IBV_WC_LOC_EEC_OP_ERR: {"LOC_EEC_OP_ERR", "the adapter cannot do what was asked of it", bug},
	C.IBV_WC_LOC_PROT_ERR: {"LOC_PROT_ERR", "local memory is not registered for this",
		"memory that is in use may have been freed; if not, " + bug},
	C.IBV_WC_WR_FLUSH_ERR: {"WR_FLUSH_ERR", "it was given up because the connection broke before",
		"the first error tells why"},
	C.IBV_WC_MW_BIND_ERR: {"MW_BIND_ERR", "a memory window cannot be bound", bug},
	C.IBV_WC_BAD_RESP_ERR: {"BAD_RESP_ERR", "the peer's adapter gave an answer that makes no sense",
		"do both hosts have the same firmware and rdma-core?"},
	C.IBV_WC_LOC_ACCESS_ERR: {"LOC_ACCESS_ERR", "local memory does not allow this access", bug},
	C.IBV_WC_REM_INV_REQ_ERR: {"REM_INV_REQ_ERR", "the peer's adapter refuses the request",
		"do both ports have the same MTU?"},
	C.IBV_WC_REM_ACCESS_ERR: {"REM_ACCESS_ERR", "the peer does not allow access to this memory",
		"memory that is in use may have been freed there; if not, " + bug},
	C.IBV_WC_REM_OP_ERR: {"REM_OP_ERR", "the peer's adapter could not do it",
		"look for an error on the peer, in its kernel log too"},
	C.IBV_WC_RETRY_EXC_ERR: {"RETRY_EXC_ERR", "the peer does not answer",
		"it may be dead, its host or link down, a switch may drop large packets (compare the MTUs), " +
			"or its address be of another network: check both ports (rdma link, ibv_devinfo)"},
	C.IBV_WC_RNR_RETRY_EXC_ERR: {"RNR_RETRY_EXC_ERR", "the peer takes no messages",
		"is its process stopped or overloaded?"},
	C.IBV_WC_LOC_RDD_VIOL_ERR:   {"LOC_RDD_VIOL_ERR", "the reliable datagram domains differ", bug},
	C.IBV_WC_REM_INV_RD_REQ_ERR: {"REM_INV_RD_REQ_ERR", "the peer's adapter refuses the request", bug},
	C.IBV_WC_REM_ABORT_ERR: {"REM_ABORT_ERR", "the peer gave it up",
		"look for an error on the peer"},
	C.IBV_WC_INV_EECN_ERR: {"INV_EECN_ERR", "an end-to-end context is invalid", bug},
	C.IBV_WC_INV_EEC_STATE_ERR: {"INV_EEC_STATE_ERR", "an end-to-end context is in the wrong state",
		bug},
	C.IBV_WC_FATAL_ERR: {"FATAL_ERR", "the adapter failed",
		"it may have been removed or reset: look for its driver's messages (dmesg)"},
	C.IBV_WC_RESP_TIMEOUT_ERR: {"RESP_TIMEOUT_ERR", "no answer came in time",
		"is the peer alive and reachable?"},
	C.IBV_WC_GENERAL_ERR: {"GENERAL_ERR", "the adapter reports an error that it does not name",
		"look for its driver's messages (dmesg); the vendor error tells its support more"},
}
