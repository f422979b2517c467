package exec

import (
	"fmt"
	"io"
	osexec "os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// living is a process that has a life word, and so many megabytes of memory.
type living struct {
	*osexec.Cmd
	in   io.WriteCloser
	out  io.Reader
	fd   int
	mark Mark
}

// livingProgram is what it runs.
func livingProgram(t testing.TB) string {
	t.Helper()
	cc, err := osexec.LookPath("cc")
	if err != nil {
		t.Skip(err)
	}
	path := filepath.Join(t.TempDir(), "living")
	out, err := osexec.Command(cc, "-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "-o", path,
		"testdata/life/main.c").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return path
}

func startLiving(t testing.TB, program string, megabytes int) *living {
	t.Helper()
	c := &living{Cmd: osexec.Command(program, fmt.Sprint(megabytes))}
	c.in, c.out = must(c.StdinPipe()), must(c.StdoutPipe())
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.Process.Kill() // it may have ended
		_ = c.Wait()
	})
	must(fmt.Fscan(c.out, &c.fd, &c.mark.Value))
	return c
}

func (c *living) say(word string) error {
	_, err := fmt.Fprintln(c.in, word)
	return err
}

// A process that is killed, or ends by a signal of its own or by _exit, is known to have ended, and
// one that calls exit is not: its sockets tell.
func TestLifeWord(t *testing.T) {
	program := livingProgram(t)
	for _, c := range []struct {
		name string
		end  func(*living) error
		told bool
	}{
		{"killed", func(c *living) error { return c.Process.Kill() }, true},
		{"killed when stopped", func(c *living) error {
			if err := c.Process.Signal(unix.SIGSTOP); err != nil {
				return err
			}
			return c.Process.Kill()
		}, true},
		{"a signal of its own", func(c *living) error { return c.say("abort") }, true},
		{"_exit", func(c *living) error { return c.say("_exit") }, true},
		{"exit", func(c *living) error { return c.say("exit") }, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			child := startLiving(t, program, 0)
			ended := make(chan struct{})
			life, err := WatchLife(child.Process.Pid, child.fd, child.mark, func() { close(ended) })
			if err != nil {
				t.Fatal(err)
			}
			defer life.Stop()
			if err := c.end(child); err != nil {
				t.Fatal(err)
			}
			if !c.told {
				_ = child.Wait() // its status does not matter
				if word := lifeAt(life.page).word; word != 0 {
					t.Errorf("the word is %x after exit", word)
				}
				return
			}
			select {
			case <-ended:
			case <-time.After(20 * time.Second):
				t.Error("its end is not told")
			}
		})
	}
}

// Another process's number, descriptor or mark is no life word.
func TestLifeOfAnother(t *testing.T) {
	child := startLiving(t, livingProgram(t), 0)
	pid, other := child.Process.Pid, child.mark
	other.Value++
	for name, watch := range map[string]func() (*Life, error){
		"mark":       func() (*Life, error) { return WatchLife(pid, child.fd, other, nil) },
		"descriptor": func() (*Life, error) { return WatchLife(pid, 0, child.mark, nil) },
		"process":    func() (*Life, error) { return WatchLife(1<<30, child.fd, child.mark, nil) },
		"no mark":    func() (*Life, error) { return WatchLife(pid, child.fd, Mark{}, nil) },
	} {
		if life, err := watch(); err == nil {
			life.Stop()
			t.Errorf("another's %s: no error", name)
		}
	}
}

// A child that fork has made of a process says nothing of its parent when it ends.
func TestLifeIsNotAChilds(t *testing.T) {
	child := startLiving(t, livingProgram(t), 0)
	if err := child.say("fork"); err != nil {
		t.Fatal(err)
	}
	var word string
	if must(fmt.Fscan(child.out, &word)); word != "held" {
		t.Error("the end of a child has let go of the word")
	}
}

func TestStoppedWatch(t *testing.T) {
	child := startLiving(t, livingProgram(t), 0)
	life, err := WatchLife(child.Process.Pid, child.fd, child.mark,
		func() { t.Error("it was stopped") })
	if err != nil {
		t.Fatal(err)
	}
	life.Stop()
	life.Stop()
	_ = child.Process.Kill()
	_ = child.Wait()
	lives.mu.Lock()
	defer lives.mu.Unlock()
	if len(lives.watched) > 0 {
		t.Error("it is watched")
	}
}
