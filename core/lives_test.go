package core

import (
	"fmt"
	"io"
	"os"
	osexec "os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/goccl/goccl/core/address"
	"github.com/goccl/goccl/core/membership"
)

// startLiving starts a process that has a life word, and returns its address.
func startLiving(t *testing.T, id byte) (*osexec.Cmd, address.Address) {
	t.Helper()
	program := filepath.Join(t.TempDir(), "living")
	out, err := osexec.Command("cc", "-pthread", "-o", program, "exec/testdata/life/main.c").
		CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	c := osexec.Command(program)
	in, _ := io.Pipe() // so that its input does not end
	c.Stdin = in
	told, err := c.StdoutPipe()
	if err == nil {
		err = c.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.Process.Kill() // it may have ended
		_ = in.Close()
		_ = c.Wait()
	})
	a := address.Address{Process: address.ProcessID{id}, PID: c.Process.Pid}
	if _, err := fmt.Fscan(told, &a.Life, &a.Mark.Value); err != nil {
		t.Fatal(err)
	}
	return c, a
}

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

// What the kernel tells of a process is looked at as long as an epoch has it for a member.
func TestHoldLives(t *testing.T) {
	r := NewRuntime(RuntimeConfig{})
	end, err := r.endpoint(endpointKey{storeHost: "127.0.0.1"})
	if err != nil {
		t.Fatal(err)
	}
	defer r.leave(end)
	_, a := startLiving(t, 1)
	a.PIDSpace = end.Address().PIDSpace
	for range 2 {
		if fd := end.hold(&a); fd < 0 || len(end.watched) != 1 {
			t.Fatalf("descriptor %d, %d processes are watched", fd, len(end.watched))
		}
	}
	for left := 1; left >= 0; left-- {
		if end.release(a.Process); len(end.watched) != left {
			t.Fatalf("%d processes are watched, and not %d", len(end.watched), left)
		}
	}
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

// A member that does not answer, and lives, may be late: it is no news before it has been waited
// for, and then it is suspected.
func TestSilentMemberThatLives(t *testing.T) {
	w := newWorld(t, "shm", 2, time.Minute)
	everything(t, w)
	w.comms[1].mu.Lock() // it answers nothing
	defer w.comms[1].mu.Unlock()
	if news := now(w.comms[0]).fence(soon(t), []int{1}, false); len(news) > 0 {
		t.Errorf("before it has been waited for: %+v", news)
	}
	news := now(w.comms[0]).fence(soon(t), []int{1}, true)
	if len(news) != 1 || !reflect.DeepEqual(news[0], membership.Lost{Peer: 1}) {
		t.Errorf("after it has been waited for: %+v", news)
	}
}
