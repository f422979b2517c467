package logs

import (
	"bytes"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"
)

const (
	// maxLines is how many lines of the log wait at most for a reader that does not keep up.
	maxLines = 256
	// pipeBuf is PIPE_BUF: as much a pipe takes in one piece once poll says that it takes anything.
	pipeBuf = 4096
)

// lines is a writer of whole lines that never holds its caller up. A line is written at once where
// that does not block, so it is not lost if the process ends then. Else a goroutine waits for the
// pipe or terminal that takes nothing. What does not fit is counted.
type lines struct {
	fd int // written to without the os package, which has SIGPIPE end a process whose stderr is closed

	mu      sync.Mutex
	waiting [][]byte
	dropped int
	busy    bool // the goroutine is there
}

// Write takes a line, or several that belong together. It never fails.
func (l *lines) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.busy && len(line) <= pipeBuf && l.takes(0) {
		l.write(line)
		return len(line), nil
	}
	if len(l.waiting) == maxLines {
		l.dropped++
		return len(line), nil
	}
	l.waiting = append(l.waiting, bytes.Clone(line))
	if !l.busy {
		l.busy = true
		go l.drain()
	}
	return len(line), nil
}

func (l *lines) drain() {
	for {
		l.mu.Lock()
		var line []byte
		switch {
		case len(l.waiting) > 0:
			line = l.waiting[0]
			l.waiting = l.waiting[1:]
		case l.dropped > 0:
			line = fmt.Appendf(nil, "goccl: %d lines of the log are missing: nobody read them in time\n",
				l.dropped)
			l.dropped = 0
		default:
			l.waiting, l.busy = nil, false
			l.mu.Unlock()
			return
		}
		l.mu.Unlock()
		l.write(line)
	}
}

// write waits as long as it takes. There is nobody to tell of an error.
func (l *lines) write(line []byte) {
	for len(line) > 0 {
		n, err := unix.Write(l.fd, line)
		switch err {
		case nil:
			line = line[n:]
		case unix.EINTR:
		case unix.EAGAIN: // somebody has made it non-blocking
			l.takes(-1)
		default:
			return
		}
	}
}

// takes waits for so many milliseconds (-1: for ever) until the descriptor takes something.
func (l *lines) takes(timeout int) bool {
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(l.fd), Events: unix.POLLOUT}}, timeout)
	return n > 0 && err == nil
}
