package status

import (
	"bufio"
	"cmp"
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
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goccl/goccl/core/internal/printable"
	"github.com/goccl/goccl/core/trace"
)

const (
	prefix = "@goccl-ps-"
	// A question is one line: what is asked, and maybe a space and a path.
	askStatus = "status"
	askAll    = "status-of-all"
	askDump   = "dump"
	// questionMost is the longest question, and prefixMost the longest path in one.
	questionMost = 4 << 10
	prefixMost   = questionMost - 16
	// answerTime is how long one question may take in all. One for which links are to be made first
	// may take dialTime more.
	answerTime = 2 * time.Second
	// answerMost is the longest answer.
	answerMost = 16 << 20
	// atOnce is how many are answered at once; others are turned away.
	atOnce = 32
	// textMost is the longest text in an answer.
	textMost = 500
)

// Answers are what a process gives to those who may ask. Both may be called by several goroutines.
type Answers struct {
	Status func(Asks) Process
	Dump   func(prefix string) (files []string, err error) // as flight.Recorder
}

// Server tells what this process does.
type Server struct {
	listener *net.UnixListener
	onFD     func(fd int, open bool)
	fd       int
	answers  Answers
	slots    chan struct{}
	life     context.Context // of answers
	end      context.CancelFunc
	done     sync.WaitGroup
}

// Serve begins to answer. OnFD is told of the socket when it opens and before it closes; it may be
// nil.
func Serve(answers Answers, onFD func(fd int, open bool)) (*Server, error) {
	var salt [8]byte
	rand.Read(salt[:])
	name := prefix + strconv.Itoa(os.Getpid()) + "-" + hex.EncodeToString(salt[:])
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: name, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("the socket for goccl ps: %w", err)
	}
	s := &Server{listener: l, answers: answers, slots: make(chan struct{}, atOnce), onFD: onFD}
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

// Shown is what others see of a process: its communicators. While it has some there is a server.
type Shown struct {
	OnFD func(fd int, open bool) // as of Serve
	Dump func(prefix string) (files []string, err error)

	mu      sync.Mutex // guards server, and changes of sources
	server  *Server    // nil while it is off
	sources atomic.Pointer[[]Source]
}

// Add adds a communicator. What stands against a server is logged: nothing but `goccl ps` needs it.
func (s *Shown) Add(added Source, log *slog.Logger) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := append(slices.Clone(s.all()), added)
	s.sources.Store(&all)
	if s.server == nil {
		var err error
		s.server, err = Serve(Answers{func(a Asks) Process { return Of(s.all(), a) }, s.Dump}, s.OnFD)
		if err != nil {
			log.Info("`goccl ps` cannot see this process", "err", err)
		}
	}
}

// Remove takes a communicator out, by its trace.
func (s *Shown) Remove(t *trace.Trace) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := slices.DeleteFunc(slices.Clone(s.all()), func(o Source) bool { return o.Trace == t })
	s.sources.Store(&all)
	if len(all) == 0 && s.server != nil {
		s.server.Close()
		s.server = nil
	}
}

func (s *Shown) all() []Source {
	if all := s.sources.Load(); all != nil {
		return *all
	}
	return nil
}

// Status tells what the communicators do. It asks no peers.
func (s *Shown) Status() Process { return Of(s.all(), None) }

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
	question, err := bufio.NewReader(io.LimitReader(c, questionMost)).ReadString('\n')
	if err != nil {
		return
	}
	what, path, _ := strings.Cut(strings.TrimSuffix(question, "\n"), " ")
	if c.SetDeadline(time.Now().Add(timeOf(what))) != nil {
		return
	}
	var answer any
	switch {
	case what == askStatus && path == "":
		answer = s.answers.Status(Linked)
	case what == askAll && path == "":
		answer = s.answers.Status(All)
	case what == askDump:
		dumped := make(chan Dumped, 1)
		go func() { dumped <- s.dump(path) }() // Close does not wait for a disk
		select {
		case answer = <-dumped:
		case <-s.life.Done():
			return
		}
	default:
		return
	}
	if b, err := json.Marshal(answer); err == nil {
		c.Write(append(b, '\n')) // an error means that nobody listens any more
	}
}

// dump writes a dump, as somebody asks.
func (s *Server) dump(prefix string) (d Dumped) {
	if err := checkPrefix(prefix); err != nil {
		d.Error = err.Error()
		return d
	}
	files, err := s.answers.Dump(prefix)
	if d.Files = files; err != nil {
		d.Error = err.Error()
	}
	return d
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
	return each(func(pid int, name string) (Process, error) { return statusOf(pid, name, askStatus) })
}

func statusOf(pid int, name, question string) (p Process, err error) {
	if err = ask(name, question, &p); err != nil {
		return p, err
	}
	p.PID, p.socket = pid, name
	return p, p.clean()
}

// findMore asks processes again, by their sockets, to connect to ranks that they have no link to.
// It puts the new answers in the place of the first.
func findMore(processes []Process, sockets map[string]bool) error {
	more, _, err := each(func(pid int, name string) (Process, error) {
		if !sockets[name] {
			return Process{}, errNotMeant
		}
		return statusOf(pid, name, askAll)
	})
	for _, p := range more {
		i := slices.IndexFunc(processes, func(o Process) bool { return o.socket == p.socket })
		if i >= 0 {
			processes[i] = p
		}
	}
	return err
}

// Dumped is what a process tells that was asked for a dump.
type Dumped struct {
	PID   int      `json:"pid"`
	Files []string `json:"files"`
	Error string   `json:"error"` // "": all is written
}

// Dumps are what processes tell that were asked for a dump.
type Dumps struct {
	Processes []Dumped `json:"processes"`
	Silent    []int    `json:"silent"` // processes that have not answered
}

// Dump asks the processes that Find asks to write what their flight recorders have: see
// flight.Recorder. Where a pid is given only that process is asked. They write with their own
// rights. The error is an ErrPrefix where the prefix cannot be one.
func Dump(prefix string, pid int) (Dumps, error) {
	if err := checkPrefix(prefix); err != nil {
		return Dumps{}, err
	}
	all, silent, err := each(func(of int, name string) (d Dumped, err error) {
		if pid != 0 && of != pid {
			return d, errNotMeant
		}
		if err = ask(name, askDump+" "+prefix, &d); err != nil {
			return d, err
		}
		d.PID, d.Error = of, printable.Text(d.Error, textMost)
		d.Files = append([]string{}, d.Files...)
		for i := range d.Files {
			d.Files[i] = printable.Text(d.Files[i], questionMost)
		}
		return d, nil
	})
	slices.SortFunc(all, func(a, b Dumped) int { return cmp.Compare(a.PID, b.PID) })
	return Dumps{append([]Dumped{}, all...), append([]int{}, silent...)}, err
}

// ErrPrefix is the error of a prefix that cannot begin the names of files.
var ErrPrefix = errors.New("not a prefix of files")

// checkPrefix refuses what cannot begin the names of files.
func checkPrefix(prefix string) error {
	if !filepath.IsAbs(prefix) || len(prefix) > prefixMost || strings.ContainsAny(prefix, "\x00\n") {
		return fmt.Errorf("%w: it is %q, it must be an absolute path of one line and at most %d bytes",
			ErrPrefix, printable.Text(prefix, textMost), prefixMost)
	}
	return nil
}

// errNotMeant is the error of a process that is not to be asked.
var errNotMeant = errors.New("it is not asked")

// each asks the processes that may be asked.
func each[T any](ask func(pid int, name string) (T, error)) (all []T, silent []int, err error) {
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
			one, err := ask(pidOf(name), name)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				all = append(all, one)
			case !errors.Is(err, errNotMeant):
				silent = append(silent, pidOf(name))
			}
		})
	}
	asking.Wait()
	return all, silent, nil
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

// ask puts a question to one process. The process of another user is not asked.
func ask(name, question string, answer any) error {
	d := net.Dialer{Timeout: answerTime}
	conn, err := d.Dial("unix", name)
	if err != nil {
		return err
	}
	defer conn.Close()
	c := conn.(*net.UnixConn)
	user, ok := userOf(c)
	if !ok || user != os.Geteuid() && os.Geteuid() != 0 {
		return errNotMeant
	}
	if err := c.SetDeadline(time.Now().Add(timeOf(question))); err != nil {
		return err
	}
	if _, err := io.WriteString(c, question+"\n"); err != nil {
		return err
	}
	return json.NewDecoder(io.LimitReader(bufio.NewReader(c), answerMost)).Decode(answer)
}

func timeOf(question string) time.Duration {
	if question == askAll {
		return answerTime + dialTime
	}
	return answerTime
}

// clean makes texts fit for a terminal, and refuses what cannot be.
func (p *Process) clean() error {
	text := func(s *string) { *s = printable.Text(*s, textMost) }
	text(&p.Host)
	text(&p.Program)
	for i := range p.Groups {
		g := &p.Groups[i]
		n := len(g.PIDs)
		if len(g.Hosts) != n || len(g.Near) != n || g.Rank < 0 || g.Rank >= n || len(g.Others) > n {
			return fmt.Errorf("group %d has %d hosts, %d processes, %d near ones, %d others, and rank %d",
				i, len(g.Hosts), n, len(g.Near), len(g.Others), g.Rank)
		}
		text(&g.Name)
		for k := range g.Hosts {
			text(&g.Hosts[k])
		}
		if err := g.Report.clean(n); err != nil {
			return err
		}
		for k := range g.Others {
			if err := g.Others[k].Report.clean(n); err != nil {
				return err
			}
		}
	}
	return nil
}
