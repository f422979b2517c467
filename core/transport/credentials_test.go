package transport

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/goccl/goccl/core/address"
)

func TestImpostor(t *testing.T) {
	here := address.Address{PID: 10, UID: 1000, PIDSpace: "pid:[1]", UserSpace: "user:[1]"}
	for _, c := range []struct {
		name      string
		published address.Address
		pid       int32
		uid       uint32
		want      string // in the error; "": none
	}{
		{"the same user", address.Address{PID: 11, UID: 1000, PIDSpace: "pid:[1]", UserSpace: "user:[1]"},
			11, 1000, ""},
		{"another user that has said so",
			address.Address{PID: 11, UID: 0, PIDSpace: "pid:[1]", UserSpace: "user:[1]"}, 11, 0, ""},
		{"another user", address.Address{PID: 11, UID: 1000, PIDSpace: "pid:[1]", UserSpace: "user:[1]"},
			11, 1001, "user 1001 instead of 1000"},
		{"root in place of a user",
			address.Address{PID: 11, UID: 1000, PIDSpace: "pid:[1]", UserSpace: "user:[1]"}, 11, 0,
			"user 0"},
		{"another process",
			address.Address{PID: 11, UID: 1000, PIDSpace: "pid:[1]", UserSpace: "user:[1]"}, 12, 1000,
			"process 12 instead of 11"},
		{"another container",
			address.Address{PID: 11, UID: 1000, PIDSpace: "pid:[2]", UserSpace: "user:[1]"}, 0, 1000, ""},
		{"another container and user",
			address.Address{PID: 11, UID: 1000, PIDSpace: "pid:[2]", UserSpace: "user:[1]"}, 0, 1001,
			"user 1001"},
		{"another user namespace",
			address.Address{PID: 11, UID: 1000, PIDSpace: "pid:[1]", UserSpace: "user:[2]"}, 11, 65534, ""},
		{"another user namespace and process",
			address.Address{PID: 11, UID: 1000, PIDSpace: "pid:[1]", UserSpace: "user:[2]"}, 12, 65534,
			"process 12"},
	} {
		err := impostor(&here, &c.published, &unix.Ucred{Pid: c.pid, Uid: c.uid})
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
}

// A process that is not the one that its member's address names is neither dialled nor let in.
func TestImpostorsGetNoLink(t *testing.T) {
	for _, claim := range []struct {
		name  string
		alter func(*address.Address)
		want  string
	}{
		{"pid", func(a *address.Address) { a.PID++ }, "instead of"},
		{"user", func(a *address.Address) { a.UID++ }, "instead of"},
	} {
		for _, dials := range []bool{false, true} {
			t.Run(claim.name, func(t *testing.T) {
				l := newLogbook()
				eps := []*Endpoint{listen(t, Config{Logger: l.logger()}), listen(t, Config{})}
				h := newRecorder()
				c := groupConfig(eps, address.Shm, 1, 0)
				claim.alter(&c.Peers[1])
				victim := attach(t, eps[0], c, h)
				impostor := attach(t, eps[1], groupConfig(eps, address.Shm, 1, 1), newRecorder())
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
		a.Process, a.PID = address.ProcessID{byte(i + 1)}, child.Process.Pid
		e.Hold(&a)
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
	a.Process = address.ProcessID{99}
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

func TestHold(t *testing.T) {
	e := listen(t, Config{})
	a := e.Address()
	if fd := e.Hold(&a); fd != -1 || e.Release(a.Process) {
		t.Errorf("of its own process: %d", fd)
	}
	a.Process, a.PID = address.ProcessID{1}, os.Getpid()
	fd := e.Hold(&a)
	if again := e.Hold(&a); fd < 0 || again != fd {
		t.Errorf("it is %d, and then %d", fd, again)
	}
	if first, last := e.Release(a.Process), e.Release(a.Process); first || !last {
		t.Errorf("the first of two is the last: %v; the second: %v", first, last)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil || len(e.processes) > 0 {
		t.Errorf("a process that nobody holds is kept: %v", e.processes)
	}
	gone := exec.Command("true")
	ok(t, gone.Run())
	a.Process, a.PID = address.ProcessID{2}, gone.Process.Pid
	if fd := e.Hold(&a); fd >= 0 {
		t.Errorf("of a process that has ended: %d", fd)
	}
	a.Process, a.PID, a.PIDSpace = address.ProcessID{3}, os.Getpid(), "pid:[1]"
	if fd := e.Hold(&a); fd >= 0 {
		t.Errorf("of another namespace: %d", fd)
	}
}

// stop stops a process, and waits until it is.
func stop(t *testing.T, p *os.Process) {
	t.Helper()
	ok(t, p.Signal(unix.SIGSTOP))
	ok(t, unix.Waitid(unix.P_PID, p.Pid, nil, unix.WSTOPPED|unix.WNOWAIT, nil))
}

// A process is killed if it is stopped, and a link has proved that it is the member's.
func TestFence(t *testing.T) {
	for _, c := range []struct {
		name, kind string
		later      bool // it is held only when the link is there
		old        bool // the kernel gives no descriptor of a socket's other end
		want       bool
	}{{"", address.Shm, false, false, true}, {"held later", address.Shm, true, false, true},
		{"before Linux 6.5", address.Shm, false, true, true},
		{"without memory", address.TCP, false, false, false}} {
		t.Run(c.name, func(t *testing.T) {
			if c.old {
				defer func(option int) { peerPIDFD = option }(peerPIDFD)
				peerPIDFD = 0xffff
			}
			member := startChild(t, c.kind, "", defaultGrace, nil)
			e := listen(t, Config{})
			g, _ := member.attach(t, e, c.kind)
			a := &g.members[1].addr
			if !c.later {
				e.Hold(a)
			}
			ok(t, g.Connect(within(t), 1))
			if c.later {
				e.Hold(a)
			}
			if ended, lives := e.Fence(a.Process); ended || lives != c.want {
				t.Fatalf("one that is not stopped has ended: %v, lives: %v", ended, lives)
			}
			stop(t, member.cmd.Process)
			if ended, lives := e.Fence(a.Process); ended != c.want || lives {
				t.Fatalf("one that is stopped has ended: %v, lives: %v", ended, lives)
			}
			if !c.want {
				ok(t, unix.Waitid(unix.P_PID, a.PID, nil, unix.WSTOPPED|unix.WNOWAIT, nil))
				return
			}
			var status unix.WaitStatus
			_, err := unix.Wait4(a.PID, &status, 0, nil)
			ok(t, err)
			if ended, _ := e.Fence(a.Process); !ended || status.Signal() != unix.SIGKILL {
				t.Errorf("it has ended: %v, with %v", ended, status)
			}
		})
	}
}

// The process of which an address that no link has proved tells is not killed, stopped or not: also
// where the member is there, and another process has the number that it tells.
func TestFenceOfAnotherProcess(t *testing.T) {
	victim := exec.Command("sleep", "600")
	ok(t, victim.Start())
	t.Cleanup(func() {
		_ = victim.Process.Kill()
		_ = victim.Wait() // it was killed
	})
	stop(t, victim.Process)
	member := startChild(t, address.TCP, "", defaultGrace, nil)
	e := listen(t, Config{})
	g, _ := member.attach(t, e, address.TCP)
	a := g.members[1].addr
	a.PID = victim.Process.Pid
	e.Hold(&a)
	ok(t, g.Connect(within(t), 1))
	if ended, lives := e.Fence(a.Process); ended || lives {
		t.Errorf("it has ended: %v, lives: %v", ended, lives)
	}
	ok(t, unix.Waitid(unix.P_PID, a.PID, nil, unix.WSTOPPED|unix.WNOWAIT, nil))
}

// That a process has ended is known for as long as it is a member of a group.
func TestDeadAreForgotten(t *testing.T) {
	w := newWorld(t, pair(t, address.TCP, Config{}), address.TCP, 1)
	e, other := w.groups[0].e, w.groups[0].members[1].addr.Process
	e.Ended(address.ProcessID{1})
	e.Ended(other)
	another := attach(t, e, GroupConfig{Group: 99, Secret: secret, Name: "another",
		Peers: []address.Address{e.Address()}, Kinds: []string{address.Mem}}, newRecorder())
	another.Detach()
	if e.isDead(address.ProcessID{1}) || !e.isDead(other) {
		t.Error("it is not the members that are kept")
	}
	w.groups[0].Detach()
	if len(e.dead) > 0 {
		t.Errorf("%d are kept", len(e.dead))
	}
}
