package exec

/*
#include "life.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

const lifeName = "goccl-life"

// OwnLife starts this process's life word: see life.h. It returns the descriptor of its page, by
// which peers find it, and which stays open.
var OwnLife = sync.OnceValues(func() (fd int, err error) {
	fd, err = newMemfd(lifeName, "a life word", os.Getpagesize())
	if err != nil {
		return -1, err
	}
	mem, err := mapMemfd(fd, os.Getpagesize())
	if err == nil {
		ownLife = lifeAt(mem)
		err = startLife(ownLife)
	}
	if err != nil {
		unix.Close(fd) // the page stays mapped: the thread may have begun
		return -1, fmt.Errorf("a life word: %w", err)
	}
	return fd, nil
})

// ownLife is the page of OwnLife.
var ownLife *C.goccl_life

func startLife(own *C.goccl_life) error {
	own.mark = C.uint64_t(OwnMark().Value)
	bell, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return fmt.Errorf("eventfd: %w", err)
	}
	if errno := C.goccl_life_start(own, C.int(bell)); errno != 0 {
		unix.Close(bell)
		return unix.Errno(errno)
	}
	go lives.listen(os.NewFile(uintptr(bell), "lives"))
	return nil
}

func lifeAt(page []byte) *C.goccl_life {
	return (*C.goccl_life)(unsafe.Pointer(unsafe.SliceData(page)))
}

// lives are the life words that are looked at.
var lives watchedLives

type watchedLives struct {
	mu      sync.Mutex // guards what follows
	watched map[*Life]func()
}

// Life is the life word of another process.
type Life struct{ page []byte }

// WatchLife has a function called, on a goroutine of its own, when the process that has a number
// here, and a mark, has ended other than by exit(), unless the watch is stopped before. The
// descriptor is what OwnLife has returned there. The error tells that the word cannot be seen.
func WatchLife(pid, fd int, m Mark, ended func()) (*Life, error) {
	if _, err := OwnLife(); err != nil { // whose thread looks
		return nil, err
	}
	page, err := mapLife(pid, fd, m)
	if err != nil {
		return nil, err
	}
	l := &Life{page}
	lives.mu.Lock()
	defer lives.mu.Unlock()
	if C.goccl_life_watch(lifeAt(page)) != 0 {
		_ = unix.Munmap(page)
		return nil, unix.ENOMEM
	}
	if lives.watched == nil {
		lives.watched = map[*Life]func(){}
	}
	lives.watched[l] = ended
	return l, nil
}

// mapLife maps the life word of the process that a number names, if it is the one with the mark.
func mapLife(pid, fd int, m Mark) ([]byte, error) {
	path := fmt.Sprintf("/proc/%d/fd/%d", pid, fd)
	// What else the number may name is not to be opened.
	if to, err := os.Readlink(path); err != nil || !strings.HasPrefix(to, "/memfd:"+lifeName) {
		return nil, errors.Join(err, fmt.Errorf("%s is %q, no life word", path, to))
	}
	own, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("opening %s: %w", path, err)
	}
	defer unix.Close(own)
	if err := checkSealed(own); err != nil {
		return nil, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(own, &st); err != nil || st.Size != int64(os.Getpagesize()) {
		return nil, errors.Join(err, fmt.Errorf("%s has %d bytes", path, st.Size))
	}
	page, err := unix.Mmap(own, 0, os.Getpagesize(), unix.PROT_READ, unix.MAP_SHARED)
	if err == nil && (m.Value == 0 || uint64(lifeAt(page).mark) != m.Value) {
		_ = unix.Munmap(page)
		err = fmt.Errorf("pid %d is another process here", pid)
	}
	return page, err
}

// Stop ends the watch. The function may be under way.
func (l *Life) Stop() {
	lives.mu.Lock()
	defer lives.mu.Unlock()
	if _, ok := lives.watched[l]; ok {
		delete(lives.watched, l)
		l.forget()
	}
}

// forget ends the watch. It is called with lives.mu held.
func (l *Life) forget() {
	C.goccl_life_unwatch(lifeAt(l.page))
	_ = unix.Munmap(l.page) // fails only for what is not mapped
}

// listen tells of those that have ended, as long as the process lives.
func (w *watchedLives) listen(bell *os.File) {
	var count [8]byte
	for {
		if _, err := bell.Read(count[:]); err != nil {
			return
		}
		w.mu.Lock()
		for l, ended := range w.watched {
			if C.goccl_life_ended(lifeAt(l.page)) != 0 {
				delete(w.watched, l)
				l.forget()
				go ended()
			}
		}
		w.mu.Unlock()
	}
}
