package status

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goccl/goccl/core/internal/printable"
	"github.com/goccl/goccl/core/trace"
)

const (
	prefix = "@goccl-ps-"
	// request is all that is asked so far.
	request = "status\n"
	// answerTime is how long one question may take in all.
	answerTime = 2 * time.Second
	// answerMost is the longest answer.
	answerMost = 4 << 20
	// atOnce is how many are answered at once; others are turned away.
	atOnce = 8
	// textMost is the longest text in an answer.
	textMost = 500
)

// Server tells what this process does.
type Server struct {
	listener *net.UnixListener
	onFD     func(fd int, open bool)
	fd       int
	answer   func() Process
	slots    chan struct{}
	life     context.Context // of answers
	end      context.CancelFunc
	done     sync.WaitGroup
}

// Serve begins to answer. It calls `answer` for each who may ask, from several goroutines. OnFD is
// told of the socket when it opens and before it closes; it may be nil.
func Serve(answer func() Process, onFD func(fd int, open bool)) (*Server, error) {
	var salt [8]byte
	rand.Read(salt[:])
	name := prefix + strconv.Itoa(os.Getpid()) + "-" + hex.EncodeToString(salt[:])
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: name, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("the socket for goccl ps: %w", err)
	}
	s := &Server{listener: l, answer: answer, slots: make(chan struct{}, atOnce), onFD: onFD}
	s.life, s.end = context.WithCancel(context.Background())
	if s.onFD == nil {
		s.onFD = func(int, bool) {}
	}
	if raw, err := l.SyscallConn(); err == nil {
		raw.Control(func(fd uintptr) { s.fd = int(fd) })
	}
	s.onFD(s.fd, true)
	s.done.Go(s.accept)
	return s, nil
}

// Shown is the server of a process that has something to tell at times. The zero one is off.
type Shown struct {
	mu     sync.Mutex
	server *Server // nil while it is off; guarded by mu
}

// Set turns it on, with communicators to tell of, or off. OnFD is as of Serve. What stands against
// it is logged: nothing but `goccl ps` needs it.
func (s *Shown) Set(
	on bool, traces *trace.Registry, onFD func(fd int, open bool), log *slog.Logger,
) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case on && s.server == nil:
		var err error
		s.server, err = Serve(func() Process { return Of(traces.All()) }, onFD)
		if err != nil {
			log.Info("`goccl ps` cannot see this process", "err", err)
		}
	case !on && s.server != nil:
		s.server.Close()
		s.server = nil
	}
}

// Close ends it, and answers that are under way.
func (s *Server) Close() {
	s.onFD(s.fd, false)
	s.listener.Close()
	s.end()
	s.done.Wait()
}

func (s *Server) accept() {
	for {
		c, err := s.listener.AcceptUnix()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil: // there are no descriptors left: others need the CPU meanwhile
			select {
			case <-time.After(answerTime):
			case <-s.life.Done():
			}
			continue
		}
		select {
		case s.slots <- struct{}{}:
			s.done.Go(func() {
				defer func() { <-s.slots }()
				s.serve(c)
			})
		default:
			c.Close()
		}
	}
}

func (s *Server) serve(c *net.UnixConn) {
	defer c.Close()
	defer context.AfterFunc(s.life, func() { c.Close() })()
	if c.SetDeadline(time.Now().Add(answerTime)) != nil || !mayAsk(c) {
		return
	}
	asked := make([]byte, len(request))
	if _, err := io.ReadFull(c, asked); err != nil || string(asked) != request {
		return
	}
	if b, err := json.Marshal(s.answer()); err == nil {
		c.Write(append(b, '\n')) // an error means that nobody listens any more
	}
}

// mayAsk reports whether the other side is of this process's user, or of root.
func mayAsk(c *net.UnixConn) bool {
	user, ok := userOf(c)
	return ok && (user == 0 || user == os.Geteuid())
}

func userOf(c *net.UnixConn) (user int, ok bool) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, false
	}
	var credentials *unix.Ucred
	if raw.Control(func(fd uintptr) {
		credentials, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}) != nil || err != nil {
		return 0, false
	}
	return int(credentials.Uid), true
}

// Find asks all processes of this user, for root those of all users, in this network namespace.
// Silent are the numbers of those that have not answered.
func Find() (processes []Process, silent []int, err error) {
	b, err := os.ReadFile("/proc/net/unix")
	if err != nil {
		return nil, nil, fmt.Errorf("the sockets of this host: %w", err)
	}
	var mu sync.Mutex
	var asking sync.WaitGroup
	turn := make(chan struct{}, 64)
	for _, name := range names(string(b)) {
		asking.Go(func() {
			turn <- struct{}{}
			defer func() { <-turn }()
			p, err := ask(name)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				processes = append(processes, p)
			case !errors.Is(err, errNotOurs):
				silent = append(silent, pidOf(name))
			}
		})
	}
	asking.Wait()
	return processes, silent, nil
}

// names are the sockets of servers in the table of a host.
func names(table string) (all []string) {
	seen := map[string]bool{}
	for line := range strings.Lines(table) {
		// A name may have spaces, those of servers have none.
		name := strings.TrimSpace(line[strings.LastIndexByte(line, ' ')+1:])
		if strings.HasPrefix(name, prefix) && pidOf(name) > 0 && !seen[name] {
			seen[name], all = true, append(all, name)
		}
	}
	return all
}

// pidOf is the process that a socket's name tells; 0: none.
func pidOf(name string) int {
	number, _, _ := strings.Cut(strings.TrimPrefix(name, prefix), "-")
	pid, err := strconv.Atoi(number)
	if err != nil || pid < 0 {
		return 0
	}
	return pid
}

var errNotOurs = errors.New("it belongs to another user")

// ask asks one process.
func ask(name string) (p Process, err error) {
	d := net.Dialer{Timeout: answerTime}
	conn, err := d.Dial("unix", name)
	if err != nil {
		return p, err
	}
	defer conn.Close()
	c := conn.(*net.UnixConn)
	user, ok := userOf(c)
	if !ok || user != os.Geteuid() && os.Geteuid() != 0 {
		return p, errNotOurs
	}
	if err := c.SetDeadline(time.Now().Add(answerTime)); err != nil {
		return p, err
	}
	if _, err := io.WriteString(c, request); err != nil {
		return p, err
	}
	if err := json.NewDecoder(io.LimitReader(bufio.NewReader(c), answerMost)).Decode(&p); err != nil {
		return p, err
	}
	p.PID = pidOf(name)
	return p, p.clean()
}

// clean makes texts fit for a terminal, and refuses what cannot be.
func (p *Process) clean() error {
	text := func(s *string) { *s = printable.Text(*s, textMost) }
	text(&p.Host)
	text(&p.Program)
	for i := range p.Groups {
		g := &p.Groups[i]
		n := len(g.PIDs)
		if len(g.Hosts) != n || len(g.Near) != n || g.Rank < 0 || g.Rank >= n {
			return fmt.Errorf("group %d has %d hosts, %d processes, %d near ones, and rank %d", i,
				len(g.Hosts), n, len(g.Near), g.Rank)
		}
		for _, s := range []*string{&g.Name, &g.Failed, &g.Call.What, &g.Call.State} {
			text(s)
		}
		for k := range g.Hosts {
			text(&g.Hosts[k])
		}
	}
	return nil
}
