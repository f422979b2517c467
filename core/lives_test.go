package core

import (
	"os"
	"strings"
	"testing"
	"time"
)

// pidfds is how many processes this one has descriptors of.
func pidfds(t *testing.T) (n int) {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range all {
		if to, err := os.Readlink("/proc/self/fd/" + fd.Name()); err == nil &&
			strings.Contains(to, "pidfd") {
			n++
		}
	}
	return n
}

// Members that live have left nothing of theirs behind once no epoch has them.
func TestEpochsLeaveNoDescriptors(t *testing.T) {
	before := pidfds(t)
	w := newWorld(t, "shm", 3, time.Minute)
	everything(t, w)
	most := pidfds(t)
	if most == before {
		t.Skip("the kernel gives no descriptors of processes")
	}
	w.each(func(rank int) error { return w.comms[rank].Renew(soon(t)) })
	w.end(2)
	left := w.of(0, 1)
	left.each(func(rank int) error { return left.comms[rank].Recover(soon(t)) })
	checkMembers(t, left)
	w.comms[2].Destroy()
	// Of six pairs of members one is left, twice.
	if n := pidfds(t); n-before != (most-before)/3 {
		t.Errorf("%d descriptors, and then %d, and %d before", most, n, before)
	}
	w.close()
	if n := pidfds(t); n != before {
		t.Errorf("%d descriptors are left, of %d", n, before)
	}
}
