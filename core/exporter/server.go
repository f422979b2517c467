package exporter

import (
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/goccl/goccl/core/metrics"
)

const (
	path = "/metrics"
	// atOnce is how many requests are answered at once; others are turned away.
	atOnce = 4
	// requestMost is the longest request.
	requestMost = 64 << 10
	// answerTime is how long a request and its answer may take in all.
	answerTime = 5 * time.Second
)

// Server answers requests for the metrics.
type Server struct {
	http *http.Server
	at   net.Addr
	fd   int
	onFD func(fd int, open bool)
	done sync.WaitGroup
}

// Serve begins to answer at a port: see metrics.ParseListen. OnFD may be nil.
func Serve(
	port string, stats func() metrics.Stats, onFD func(fd int, open bool),
) (*Server, error) {
	at, err := metrics.ParseListen(port)
	if err != nil {
		return nil, err
	}
	network := "tcp" // on which all addresses are those of IPv4, too
	if at.Addr().Is4() {
		network = "tcp4"
	}
	l, err := net.Listen(network, at.String())
	if err != nil {
		var system *net.OpError
		if errors.As(err, &system) {
			err = system.Err
		}
		return nil, fmt.Errorf("port %d at %s: %w", at.Port(), at.Addr(), err)
	}
	s := &Server{at: l.Addr(), onFD: onFD}
	if s.onFD == nil {
		s.onFD = func(int, bool) {}
	}
	if raw, err := l.(*net.TCPListener).SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { s.fd = int(fd) })
	}
	s.onFD(s.fd, true)
	s.http = &http.Server{Handler: answer(stats), ErrorLog: log.New(io.Discard, "", 0),
		MaxHeaderBytes: requestMost}
	s.http.SetKeepAlivesEnabled(false)
	s.done.Go(func() { _ = s.http.Serve(&listener{Listener: l, slots: make(chan struct{}, atOnce)}) })
	return s, nil
}

// Addr is where the server answers.
func (s *Server) Addr() net.Addr { return s.at }

// Close ends it, and answers that are under way.
func (s *Server) Close() {
	s.onFD(s.fd, false)
	_ = s.http.Close()
	s.done.Wait()
}

// answer has the metrics for who gets them.
func answer(stats func() metrics.Stats) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path != path:
			http.Error(w, "there is "+path, http.StatusNotFound)
		case r.Method != http.MethodGet:
			w.Header().Set("Allow", http.MethodGet)
			http.Error(w, "allowed is "+http.MethodGet, http.StatusMethodNotAllowed)
		default:
			s := stats()
			text := s.Text()
			w.Header().Set("Content-Type", metrics.ContentType)
			w.Header().Set("Content-Length", strconv.Itoa(len(text)))
			_, _ = w.Write(text) // an error means that nobody listens any more
		}
	}
}

// listener turns connections away while others have all slots.
type listener struct {
	net.Listener
	slots chan struct{}
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		select {
		case l.slots <- struct{}{}:
			b := &bounded{Conn: c, limit: time.Now().Add(answerTime), left: requestMost,
				leave: sync.OnceFunc(func() { <-l.slots })}
			if err := b.Conn.SetDeadline(b.limit); err == nil {
				return b, nil
			}
			_ = b.Close()
		default:
			_ = c.Close()
		}
	}
}

// bounded is a connection with a bound of time, and of bytes that are read.
type bounded struct {
	net.Conn
	limit time.Time
	left  int
	leave func()
}

// Read implements net.Conn.
func (b *bounded) Read(p []byte) (int, error) {
	if b.left == 0 {
		return 0, io.ErrUnexpectedEOF
	}
	n, err := b.Conn.Read(p[:min(len(p), b.left)])
	b.left -= n
	return n, err
}

// until is the earlier one of a deadline, which may be none, and the bound.
func (b *bounded) until(t time.Time) time.Time {
	if t.IsZero() || t.After(b.limit) {
		return b.limit
	}
	return t
}

// SetDeadline implements net.Conn.
func (b *bounded) SetDeadline(t time.Time) error { return b.Conn.SetDeadline(b.until(t)) }

// SetReadDeadline implements net.Conn.
func (b *bounded) SetReadDeadline(t time.Time) error { return b.Conn.SetReadDeadline(b.until(t)) }

// SetWriteDeadline implements net.Conn.
func (b *bounded) SetWriteDeadline(t time.Time) error { return b.Conn.SetWriteDeadline(b.until(t)) }

// Close implements net.Conn.
func (b *bounded) Close() error {
	defer b.leave()
	return b.Conn.Close()
}
