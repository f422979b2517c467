package exporter

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/goccl/goccl/core/internal/polltest"
	"github.com/goccl/goccl/core/metrics"
)

func stats() metrics.Stats { return metrics.Stats{Rank: -1, Groups: 7} }

// told collects what is told, for one reader.
type told struct {
	mu  sync.Mutex
	all []string
}

func (l *told) add(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, err.Error())
}

func (l *told) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.all, "\n")
}

func reads(path, part string) bool {
	b, err := os.ReadFile(path)
	return err == nil && strings.Contains(string(b), part) && strings.HasSuffix(string(b), "# EOF\n")
}

func TestFile(t *testing.T) {
	folder := t.TempDir()
	path := filepath.Join(folder, "goccl.prom")
	var problems told
	var mu sync.Mutex
	n := 0
	count := func() metrics.Stats {
		mu.Lock()
		defer mu.Unlock()
		n++
		return metrics.Stats{Rank: -1, Groups: n}
	}
	f := Write(path, count, time.Millisecond, problems.add)
	groups := fmt.Sprintf("goccl_groups{pid=\"%d\"} ", os.Getpid())
	polltest.Until(t, "it is written", func() bool { return reads(path, groups) })
	polltest.Until(t, "it is written again", func() bool {
		return reads(path, groups) && !reads(path, groups+"1\n")
	})
	f.Close(time.Minute)
	left, err := os.ReadDir(folder)
	if err != nil || len(left) > 0 || problems.text() != "" {
		t.Errorf("left are %v, %v; %s", left, err, problems.text())
	}
}

// A file that another process has written in the meantime is not removed.
func TestFileOfAnother(t *testing.T) {
	path := filepath.Join(t.TempDir(), "goccl.prom")
	var problems told
	f := Write(path, stats, time.Hour, problems.add)
	polltest.Until(t, "it is written", func() bool { return reads(path, "goccl_groups") })
	if err := os.WriteFile(path+".new", []byte("theirs"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
	f.Close(time.Minute)
	if b, err := os.ReadFile(path); string(b) != "theirs" {
		t.Errorf("%q, %v", b, err)
	}
}

// A folder that comes later, and goes meanwhile, is told of, and no more.
func TestFileWithoutFolder(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "later")
	path := filepath.Join(folder, "goccl.prom")
	var problems told
	f := Write(path, stats, time.Millisecond, problems.add)
	polltest.Until(t, "it is told", func() bool {
		return strings.Contains(problems.text(), "writing "+path+": no such file or directory")
	})
	if err := os.Mkdir(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	polltest.Until(t, "it is written", func() bool { return reads(path, "goccl_groups") })
	polltest.Until(t, "the folder is gone", func() bool { return os.RemoveAll(folder) == nil })
	f.Close(time.Minute)
}

// A device, or anything else that is no regular file, is left alone.
func TestFileIsNone(t *testing.T) {
	folder := t.TempDir()
	full := filepath.Join(folder, "full")
	if err := os.Symlink("/dev/full", full); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{full, folder, "/dev/full"} {
		var problems told
		f := Write(path, stats, time.Hour, problems.add)
		polltest.Until(t, "it is told", func() bool {
			return strings.Contains(problems.text(), "something that is no regular file")
		})
		f.Close(time.Minute)
		if _, err := os.Lstat(path); err != nil {
			t.Error(err)
		}
	}
}

// serve makes a server at a port that nobody else has.
func serve(t *testing.T) *Server {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	s, err := Serve(l.Addr().String(), stats, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// answers reports whether the server answers as it should.
func answers(s *Server) bool {
	r, err := http.Get("http://" + s.Addr().String() + "/metrics")
	if err != nil {
		return false
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	return err == nil && r.StatusCode == http.StatusOK &&
		strings.Contains(string(b), "goccl_groups 7\n")
}

func TestServe(t *testing.T) {
	s := serve(t)
	if !answers(s) {
		t.Error("it does not answer")
	}
	for _, c := range []struct {
		method, path string
		want         int
	}{
		{"GET", "/metrics?x=y", 200}, {"GET", "/", 404}, {"GET", "/metrics/", 404},
		{"GET", "/Metrics", 404}, {"GET", "/../metrics", 404}, {"POST", "/metrics", 405},
		{"HEAD", "/metrics", 405}, {"DELETE", "/metrics", 405}, {"POST", "/", 404},
	} {
		request, err := http.NewRequest(c.method, "http://"+s.Addr().String()+c.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		r, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		r.Body.Close()
		if r.StatusCode != c.want || !r.Close {
			t.Errorf("%s %s: %s", c.method, c.path, r.Status)
		}
		if allow := r.Header.Get("Allow"); c.want == 405 && allow != "GET" {
			t.Errorf("%s %s: allowed is %q", c.method, c.path, allow)
		}
		if kind := r.Header.Get("Content-Type"); c.want == 200 && kind != metrics.ContentType {
			t.Errorf("it is %q", kind)
		}
	}
	s.Close()
	if answers(s) {
		t.Error("it answers after its end")
	}
}

// An address is the one that is given: that of all interfaces is of one family, or of both.
func TestAddresses(t *testing.T) {
	for _, host := range []string{"127.0.0.1", "0.0.0.0", "[::1]", "[::]"} {
		l, err := net.Listen("tcp", host+":0")
		if err != nil {
			t.Skip(err) // there is no IPv6
		}
		_, port, _ := net.SplitHostPort(l.Addr().String())
		l.Close()
		s, err := Serve(host+":"+port, stats, nil)
		if err != nil {
			t.Fatal(err)
		}
		if s.Addr().String() != host+":"+port {
			t.Errorf("%s is %v", host, s.Addr())
		}
		s.Close()
	}
}

// gives sends a request as it is, and returns the answer.
func gives(t *testing.T, s *Server, request string) string {
	t.Helper()
	c, err := net.Dial("tcp", s.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	go io.WriteString(c, request)
	b, _ := io.ReadAll(c)
	return string(b)
}

// Who asks for too much, too slowly, or too often is turned away, and keeps nobody else waiting for
// long.
func TestAttacks(t *testing.T) {
	s := serve(t)
	const line = "GET /metrics HTTP/1.1\r\nHost: x\r\n"
	for name, request := range map[string]string{
		"headers":     line + "X: " + strings.Repeat("x", 10<<20) + "\r\n\r\n",
		"more of it":  line + strings.Repeat("X: y\r\n", 1<<20) + "\r\n",
		"a long path": "GET /" + strings.Repeat("x", 10<<20) + " HTTP/1.1\r\n\r\n",
		"no request":  strings.Repeat("\x00", 10<<20),
	} {
		if got := gives(t, s, request); strings.Contains(got, "goccl_groups") {
			t.Errorf("%s: %.200q", name, got)
		}
	}
	// The body of a request is never read to its end.
	gives(t, s, line+"Content-Length: 10485760\r\n\r\n"+strings.Repeat("x", 10<<20))
	polltest.Until(t, "it answers after long ones", func() bool { return answers(s) })

	var slow []net.Conn
	for range atOnce {
		c, err := net.Dial("tcp", s.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		io.WriteString(c, line)
		slow = append(slow, c)
	}
	for _, c := range slow { // each is ended by the server
		c.SetReadDeadline(time.Now().Add(time.Minute))
		if _, err := io.ReadAll(c); err != nil && os.IsTimeout(err) {
			t.Error("a slow request lasts")
		}
	}
	polltest.Until(t, "it answers after slow ones", func() bool { return answers(s) })

	var many []net.Conn
	for range 1000 {
		if c, err := net.Dial("tcp", s.Addr().String()); err == nil {
			many = append(many, c)
		}
	}
	for _, c := range many {
		c.Close()
	}
	polltest.Until(t, "it answers after many", func() bool { return answers(s) })
}

// shown is a configuration of a process, and what it logs.
func shown(file, port string) (Config, *bytes.Buffer) {
	var b bytes.Buffer
	return Config{Stats: stats, File: file, Port: port,
		Log: slog.New(slog.NewTextHandler(&locked{w: &b}, nil))}, &b
}

type locked struct {
	mu sync.Mutex
	w  io.Writer
}

func (l *locked) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(b)
}

// What is shown begins and ends with the communicators, several times.
func TestShown(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	at := l.Addr().String()
	path := filepath.Join(t.TempDir(), "goccl-%p.prom")
	file := strings.Replace(path, "%p", strconv.Itoa(os.Getpid()), 1)
	c, log := shown(path, at)
	open := map[int]bool{}
	c.OnFD = func(fd int, is bool) { open[fd] = is }
	var s Shown
	s.Set(false, c)
	for range 3 {
		s.Set(true, c)
		s.Set(true, c)
		polltest.Until(t, "there is a file", func() bool { return reads(file, "goccl_groups") })
		if !answers(s.server) || len(open) == 0 {
			t.Errorf("it does not answer; %v", open)
		}
		s.Set(false, c)
		if _, err := os.Stat(file); err == nil {
			t.Error("the file is left")
		}
		if other, err := net.Listen("tcp", at); err != nil {
			t.Error(err)
		} else {
			other.Close()
		}
		for fd, is := range open {
			if is {
				t.Errorf("%d is told to be open", fd)
			}
		}
	}
	if log.Len() > 0 {
		t.Error(log)
	}
	nothing, _ := shown("", "")
	s.Set(true, nothing)
	if s.file != nil || s.server != nil {
		t.Error("it shows what nobody asked for")
	}
	s.Set(false, nothing)
}

// A port that is taken, and a path that cannot be written, are told of once.
func TestToldOnce(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	path := filepath.Join(t.TempDir(), "none", "goccl.prom")
	c, log := shown(path, port)
	var s Shown
	for range 3 {
		s.Set(true, c)
		s.Set(false, c) // the file's goroutine has ended: what it logs is there
	}
	text := log.String()
	for _, want := range []string{
		"the metrics are not served (GOCCL_METRICS_PORT)\" cause=\"port " + port +
			" at 127.0.0.1: bind: address already in use",
		"the metrics cannot be written (GOCCL_METRICS_FILE)\" cause=\"writing " + path + ": no such file",
	} {
		if strings.Count(text, want) != 1 {
			t.Errorf("it is not told once: %s\nin %s", want, text)
		}
	}
	if n := strings.Count(text, "\n"); n != 2 {
		t.Errorf("%d lines: %s", n, text)
	}
}
