package endpoint

import (
	"fmt"
	"io"
	"log/slog"
	osexec "os/exec"
	"path/filepath"
	"testing"

	"github.com/goccl/goccl/core/address"
)

// startLiving starts a process that has a life word, and returns its address.
func startLiving(t *testing.T, id byte) (*osexec.Cmd, address.Address) {
	t.Helper()
	program := filepath.Join(t.TempDir(), "living")
	out, err := osexec.Command("cc", "-pthread", "-o", program, "../exec/testdata/life/main.c").
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

// What the kernel tells of a process is looked at as long as an epoch has it for a member.
func TestHoldPeer(t *testing.T) {
	pool := Pool{Logger: slog.New(slog.DiscardHandler)}
	end, err := pool.Open(Key{StoreHost: "127.0.0.1"})
	if err != nil {
		t.Fatal(err)
	}
	defer end.Leave()
	_, a := startLiving(t, 1)
	a.PIDSpace = end.Address().PIDSpace
	for range 2 {
		if fd := end.HoldPeer(&a); fd < 0 || len(end.watched) != 1 {
			t.Fatalf("descriptor %d, %d processes are watched", fd, len(end.watched))
		}
	}
	for left := 1; left >= 0; left-- {
		if end.ReleasePeer(a.Process); len(end.watched) != left {
			t.Fatalf("%d processes are watched, and not %d", len(end.watched), left)
		}
	}
}

// Who opens with the same key shares an endpoint, and the last who leaves closes it.
func TestShare(t *testing.T) {
	pool := Pool{Logger: slog.New(slog.DiscardHandler)}
	open := func(host string) *Endpoint {
		e, err := pool.Open(Key{StoreHost: host})
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	first, second, other := open("127.0.0.1"), open("127.0.0.1"), open("127.0.0.2")
	if first != second || first == other {
		t.Fatal("endpoints are shared by others than those with the same key")
	}
	first.Share()
	other.Leave()
	for range 3 {
		if pool.open[first.key] != first {
			t.Fatal("it is closed before the last has left")
		}
		first.Leave()
	}
	if len(pool.open) != 0 {
		t.Errorf("%d endpoints are left open", len(pool.open))
	}
}
