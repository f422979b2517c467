package core

import (
	"fmt"
	"io"
	osexec "os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/goccl/goccl/core/transport"
)

// startLiving starts a process that has a life word, and returns its address.
func startLiving(t *testing.T, id byte) (*osexec.Cmd, transport.Address) {
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
	a := transport.Address{Process: transport.ProcessID{id}, PID: c.Process.Pid}
	if _, err := fmt.Fscan(told, &a.Life, &a.Mark.Value); err != nil {
		t.Fatal(err)
	}
	return c, a
}

// A process that is stopped is killed, but no other one that has its number.
func TestFence(t *testing.T) {
	r := NewRuntime(RuntimeConfig{})
	end, err := r.endpoint(endpointKey{storeHost: "127.0.0.1"})
	if err != nil {
		t.Fatal(err)
	}
	defer r.leave(end)
	child, a := startLiving(t, 1)
	a.PIDSpace = end.Address().PIDSpace
	if err := child.Process.Signal(unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if end.Fence(&a) {
		t.Error("a process without a descriptor is proved to have ended")
	}
	other := a
	other.Process, other.Mark.Value = transport.ProcessID{2}, a.Mark.Value+1
	for _, b := range []*transport.Address{&a, &other} {
		if _, err := end.PIDFD(b); err != nil {
			t.Fatal(err)
		}
	}
	if end.Fence(&other) {
		t.Error("a process that has the number of another is proved to have ended")
	}
	if err := child.Process.Signal(unix.Signal(0)); err != nil {
		t.Fatalf("it has been killed: %v", err)
	}
	for range 2 {
		if !end.Fence(&a) {
			t.Error("it is not proved to have ended")
		}
	}
	var status unix.WaitStatus
	if _, err := unix.Wait4(a.PID, &status, 0, nil); err != nil || status.Signal() != unix.SIGKILL {
		t.Errorf("it ended with %v, %v", status, err)
	}
}

// The life word of a process that has ended is looked at no more.
func TestEndedLivesAreDropped(t *testing.T) {
	r := NewRuntime(RuntimeConfig{})
	end, err := r.endpoint(endpointKey{storeHost: "127.0.0.1"})
	if err != nil {
		t.Fatal(err)
	}
	defer r.leave(end)
	child, a := startLiving(t, 1)
	a.PIDSpace = end.Address().PIDSpace
	if _, err := end.PIDFD(&a); err != nil {
		t.Fatal(err)
	}
	end.watch(&a)
	if end.dropEnded(); len(end.watched) != 1 {
		t.Fatalf("%d processes are watched", len(end.watched))
	}
	if err := child.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if _, err := child.Process.Wait(); err != nil {
		t.Fatal(err)
	}
	if end.dropEnded(); len(end.watched) != 0 {
		t.Errorf("%d processes are watched", len(end.watched))
	}
}
