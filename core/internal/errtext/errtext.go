// Package errtext puts errors of Go's packages into words that a user of GoCCL understands.
package errtext

import (
	"context"
	"errors"
	"io"
	"net"
	"syscall"
)

// Error is an error whose text is [Words] of another's, which it wraps. It is for an error that
// comes straight from a package of Go: of an error with a text around it the text would be lost.
func Error(err error) error { return &worded{err} }

type worded struct{ error }

func (w *worded) Error() string { return Words(w.error) }

func (w *worded) Unwrap() error { return w.error }

// Words tells what an error of a connection, of its end or of its time means. The words of the
// operating system, and texts of other errors, stay as they are.
func Words(err error) string {
	var name *net.DNSError
	var system syscall.Errno
	var told *worded
	op, _ := err.(*net.OpError) // not one within another error, whose text would be lost
	switch {
	case errors.As(err, &told): // with a text around it, which would be lost
		return err.Error()
	case op == nil && errors.Is(err, context.DeadlineExceeded): // so is a connect that times out
		return "the time is up"
	case errors.Is(err, context.Canceled):
		return "it was given up"
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return "the other side has closed the connection"
	case errors.Is(err, net.ErrClosed):
		return "this side has closed the connection"
	case errors.As(err, &name):
		return "the host name " + name.Name + " is not known"
	}
	where := ""
	if op != nil {
		where = map[string]string{"dial": "connecting", "read": "reading", "write": "writing",
			"listen": "listening"}[op.Op]
		if tcp, ok := op.Addr.(*net.TCPAddr); ok && where != "" {
			where += map[string]string{"dial": " to ", "read": " from ", "write": " to ",
				"listen": " on "}[op.Op] + tcp.String()
		}
		if where != "" {
			where += ": "
		}
	}
	switch {
	case op == nil:
		return err.Error()
	case errors.As(err, &system):
		return where + system.Error()
	case op.Timeout():
		return where + "no answer came in time"
	}
	return where + op.Err.Error()
}
