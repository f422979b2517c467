package exec

import (
	"os"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A window's memory is to come from a node of its own rank's CPUs, also where a peer touches it
// first.
func TestWindowsArePlaced(t *testing.T) {
	if _, err := os.Stat("/sys/devices/system/node/node0"); err != nil {
		t.Skip("this kernel has no NUMA: ", err)
	}
	for _, shared := range []bool{true, false} {
		win, err := NewWindow(layout, 0, shared, Waiting{})
		if err != nil {
			t.Fatal(err)
		}
		defer win.Close()
		if err := placeHere(win.mem); err != nil {
			t.Skip("memory cannot be placed here: ", err)
		}
		for _, at := range []int{0, len(win.mem) - 1} {
			var policy int32
			var set, allowed nodes
			if _, _, errno := unix.Syscall6(unix.SYS_GET_MEMPOLICY, uintptr(unsafe.Pointer(&policy)),
				uintptr(unsafe.Pointer(&set)), 64*uintptr(len(set)),
				uintptr(unsafe.Pointer(&win.mem[at])), policyOfAddress, 0); errno != 0 {
				t.Fatal(errno)
			}
			const allowedNodes = 1 << 2 // MPOL_F_MEMS_ALLOWED
			if _, _, errno := unix.Syscall6(unix.SYS_GET_MEMPOLICY, 0, uintptr(unsafe.Pointer(&allowed)),
				64*uintptr(len(allowed)), 0, allowedNodes, 0); errno != 0 {
				t.Fatal(errno)
			}
			count := 0
			for i, word := range set {
				if word&^allowed[i] != 0 {
					t.Errorf("byte %d is to come from nodes %x, allowed are %x", at, set, allowed)
				}
				for ; word != 0; word &= word - 1 {
					count++
				}
			}
			if policy != policyPreferred || count != 1 {
				t.Errorf("byte %d: policy %d, nodes %x", at, policy, set)
			}
		}
	}
}
