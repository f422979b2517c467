package transport

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestImpostor(t *testing.T) {
	here := Address{PID: 10, UID: 1000, PIDSpace: "pid:[1]", UserSpace: "user:[1]"}
	for _, c := range []struct {
		name      string
		published Address
		pid       int32
		uid       uint32
		want      string // in the error; "": none
	}{
		{"the same user", Address{PID: 11, UID: 1000, PIDSpace: "pid:[1]", UserSpace: "user:[1]"},
			11, 1000, ""},
		{"another user that has said so",
			Address{PID: 11, UID: 0, PIDSpace: "pid:[1]", UserSpace: "user:[1]"}, 11, 0, ""},
		{"another user", Address{PID: 11, UID: 1000, PIDSpace: "pid:[1]", UserSpace: "user:[1]"},
			11, 1001, "user 1001 instead of 1000"},
		{"root in place of a user",
			Address{PID: 11, UID: 1000, PIDSpace: "pid:[1]", UserSpace: "user:[1]"}, 11, 0,
			"user 0"},
		{"another process", Address{PID: 11, UID: 1000, PIDSpace: "pid:[1]", UserSpace: "user:[1]"},
			12, 1000, "process 12 instead of 11"},
		{"another container",
			Address{PID: 11, UID: 1000, PIDSpace: "pid:[2]", UserSpace: "user:[1]"}, 0, 1000, ""},
		{"another container and user",
			Address{PID: 11, UID: 1000, PIDSpace: "pid:[2]", UserSpace: "user:[1]"}, 0, 1001,
			"user 1001"},
		{"another user namespace",
			Address{PID: 11, UID: 1000, PIDSpace: "pid:[1]", UserSpace: "user:[2]"}, 11, 65534, ""},
		{"another user namespace and process",
			Address{PID: 11, UID: 1000, PIDSpace: "pid:[1]", UserSpace: "user:[2]"}, 12, 65534,
			"process 12"},
	} {
		err := here.impostor(&c.published, &unix.Ucred{Pid: c.pid, Uid: c.uid})
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
}

// A process that is not the one that its member's address names is neither dialled nor let in.
func TestImpostorsGetNoLink(t *testing.T) {
	for _, claim := range []struct {
		name  string
		alter func(*Address)
		want  string
	}{
		{"pid", func(a *Address) { a.PID++ }, "instead of"},
		{"user", func(a *Address) { a.UID++ }, "instead of"},
	} {
		for _, dials := range []bool{false, true} {
			t.Run(claim.name, func(t *testing.T) {
				l := newLogbook()
				eps := []*Endpoint{listen(t, Config{Logger: l.logger()}), listen(t, Config{})}
				h := newRecorder()
				c := groupConfig(eps, Shm, 1, 0)
				claim.alter(&c.Peers[1])
				victim := attach(t, eps[0], c, h)
				impostor := attach(t, eps[1], groupConfig(eps, Shm, 1, 1), newRecorder())
				if dials {
					wants(t, impostor.Connect(within(t), 0), ErrRefused)
					if lines := l.wait(t, 1); !strings.Contains(lines[0], claim.want) {
						t.Errorf("log: %q", lines)
					}
				} else {
					err := victim.Connect(within(t), 1)
					wants(t, err, ErrPeerDown)
					if !strings.Contains(err.Error(), claim.want) {
						t.Error(err)
					}
				}
				h.mu.Lock()
				defer h.mu.Unlock()
				if len(h.attached) > 0 {
					t.Error("it is attached")
				}
			})
		}
	}
}

func TestExited(t *testing.T) {
	e := listen(t, Config{})
	for i, c := range []struct {
		script string
		want   bool
	}{{"read x; exit 0", true}, {"read x; exit 3", false}, {"read x; kill -9 $$", false}} {
		child := exec.Command("sh", "-c", c.script)
		stdin, err := child.StdinPipe()
		ok(t, err)
		ok(t, child.Start())
		a := e.Address()
		a.Process, a.PID = ProcessID{byte(i + 1)}, child.Process.Pid
		_, err = e.PIDFD(&a)
		ok(t, err)
		if e.Exited(&a) {
			t.Errorf("%q: has exited before it ends", c.script)
		}
		ok(t, stdin.Close())
		ok(t, unix.Waitid(unix.P_PID, a.PID, nil, unix.WEXITED|unix.WNOWAIT, nil))
		if got := e.Exited(&a); got != c.want {
			t.Errorf("%q, not waited for: %v", c.script, got)
		}
		_ = child.Wait() // an error is its status
		if got := e.Exited(&a); got != (c.want && keepsStatus(t)) {
			t.Errorf("%q, waited for: %v", c.script, got)
		}
	}
	a := e.Address()
	a.Process = ProcessID{99}
	if e.Exited(&a) {
		t.Error("a process that nobody knows has exited")
	}
}

// keepsStatus tells whether the kernel knows the status of a process whose parent has waited for
// it.
func keepsStatus(t *testing.T) bool {
	var name unix.Utsname
	ok(t, unix.Uname(&name))
	var major, minor int
	_, err := fmt.Sscanf(unix.ByteSliceToString(name.Release[:]), "%d.%d", &major, &minor)
	ok(t, err)
	return major > 6 || major == 6 && minor >= 15
}

func TestPIDFD(t *testing.T) {
	e := listen(t, Config{})
	a := e.Address()
	if fd, err := e.PIDFD(&a); fd != -1 || err != nil {
		t.Errorf("of its own process: %d, %v", fd, err)
	}
	a.Process, a.PID = ProcessID{1}, os.Getpid()
	fd, err := e.PIDFD(&a)
	ok(t, err)
	if again, err := e.PIDFD(&a); again != fd || err != nil {
		t.Errorf("asked again: %d, %v", again, err)
	}
	gone := exec.Command("true")
	ok(t, gone.Run())
	a.Process, a.PID = ProcessID{2}, gone.Process.Pid
	if fd, err := e.PIDFD(&a); err == nil {
		t.Errorf("of a process that has ended: %d", fd)
	}
	a.PIDSpace = "pid:[1]"
	if fd, err := e.PIDFD(&a); err == nil {
		t.Errorf("of another namespace: %d", fd)
	}
}

// Descriptors of those that have ended are not kept for as long as the endpoint lives.
func TestDropEnded(t *testing.T) {
	e := listen(t, Config{})
	child := exec.Command("sleep", "60")
	ok(t, child.Start())
	a, kept := e.Address(), e.Address()
	a.Process, a.PID = ProcessID{1}, child.Process.Pid
	kept.Process, kept.PID = ProcessID{2}, os.Getpid()
	for _, address := range []*Address{&a, &kept} {
		_, err := e.PIDFD(address)
		ok(t, err)
	}
	e.DropEnded()
	if len(e.pidfds) != 2 {
		t.Errorf("of 2 that live %d are kept", len(e.pidfds))
	}
	ok(t, child.Process.Kill())
	_ = child.Wait() // it was killed
	e.DropEnded()
	if _, lives := e.pidfds[kept.Process]; !lives || len(e.pidfds) != 1 {
		t.Errorf("of 1 that lives %d are kept", len(e.pidfds))
	}
}
