package errtext

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"time"
)

func TestWords(t *testing.T) {
	tcp := &net.TCPAddr{IP: net.IPv4(10, 0, 0, 2), Port: 333}
	unix := &net.UnixAddr{Name: "@goccl", Net: "unix"}
	refused := os.NewSyscallError("connect", syscall.ECONNREFUSED)
	// is a context.DeadlineExceeded
	_, late := (&net.Dialer{Timeout: time.Nanosecond}).Dial("tcp", "127.0.0.1:1")
	for _, test := range []struct {
		err  error
		want string
	}{
		{context.DeadlineExceeded, "the time is up"},
		{context.Canceled, "it was given up"},
		{io.EOF, "the other side has closed the connection"},
		{io.ErrUnexpectedEOF, "the other side has closed the connection"},
		{net.ErrClosed, "this side has closed the connection"},
		{&net.OpError{Op: "dial", Net: "tcp", Addr: tcp, Err: refused},
			"connecting to 10.0.0.2:333: connection refused"},
		{&net.OpError{Op: "dial", Net: "unix", Addr: unix, Err: refused},
			"connecting: connection refused"},
		{&net.OpError{Op: "dial", Net: "tcp", Addr: tcp, Err: os.ErrDeadlineExceeded},
			"connecting to 10.0.0.2:333: no answer came in time"},
		{&net.OpError{Op: "dial", Net: "tcp", Addr: tcp, Err: errors.Unwrap(late)},
			"connecting to 10.0.0.2:333: no answer came in time"},
		{&net.OpError{Op: "read", Net: "tcp", Source: tcp, Addr: tcp,
			Err: os.NewSyscallError("read", syscall.ECONNRESET)},
			"reading from 10.0.0.2:333: connection reset by peer"},
		{&net.OpError{Op: "write", Net: "unix", Addr: unix,
			Err: os.NewSyscallError("write", syscall.EPIPE)}, "writing: broken pipe"},
		{&net.OpError{Op: "dial", Err: &net.DNSError{Err: "no such host", Name: "nowhere"}},
			"the host name nowhere is not known"},
		{errors.New("words of our own"), "words of our own"},
	} {
		err := Error(test.err)
		if err.Error() != test.want || !errors.Is(err, test.err) {
			t.Errorf("%v: %q, want %q", test.err, err, test.want)
		}
		outer := fmt.Errorf("outer: %w", err)
		for _, around := range []error{outer, Error(outer)} {
			if around.Error() != "outer: "+test.want {
				t.Error(around)
			}
		}
	}
}
