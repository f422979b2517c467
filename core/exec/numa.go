package exec

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// Of mbind and get_mempolicy; see numa(7).
const (
	policyPreferred = 1      // MPOL_PREFERRED
	policyOfAddress = 1 << 1 // MPOL_F_ADDR
)

// nodes is a set of NUMA nodes: a bit each.
type nodes [16]uint64

// placeHere has memory come from the node on which the caller runs, as far as there is some,
// whichever process touches it first: what peers write into a window is read by its own rank.
// Without NUMA, or where it is forbidden, that is an error without effect.
func placeHere(mem []byte) error {
	var node uint32
	var set nodes
	if _, _, errno := unix.RawSyscall(unix.SYS_GETCPU, 0, uintptr(unsafe.Pointer(&node)),
		0); errno != 0 || int(node) >= 64*len(set) {
		return errno
	}
	set[node/64] = 1 << (node % 64)
	_, _, errno := unix.RawSyscall6(unix.SYS_MBIND, uintptr(unsafe.Pointer(unsafe.SliceData(mem))),
		uintptr(len(mem)), policyPreferred,
		uintptr(unsafe.Pointer(&set)), 64*uintptr(len(set)), 0)
	if errno != 0 {
		return errno
	}
	return nil
}
