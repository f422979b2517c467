package bootstrap

import (
	"errors"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestCheckIsCalledOnTheThread: a Check may ask where its caller's thread is.
func TestCheckIsCalledOnTheThread(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	s, c := NewMemStore(), ranks(2)
	other := make(chan error, 1)
	go func() { _, err := Join(within(t, limit), s, c[1]); other <- err }()
	thread := 0
	c[0].Check = func([]Member) (Answers, error) { thread = unix.Gettid(); return 0, nil }
	if _, err := Join(within(t, limit), s, c[0]); err != nil {
		t.Fatal(err)
	}
	if err := <-other; err != nil {
		t.Fatal(err)
	}
	if thread != unix.Gettid() {
		t.Errorf("Check is called on thread %d, Join on %d", thread, unix.Gettid())
	}
}

// TestPanicsComeBack: those of both goroutines are the caller's, and the other ranks hear of one in
// a Check.
func TestPanicsComeBack(t *testing.T) {
	panicOf := func(f func()) (p any) {
		defer func() { p = recover() }()
		f()
		return nil
	}
	p := panicOf(func() { elsewhere(func(func(func())) { panic("there") }) })
	if err, ok := p.(error); !ok || !strings.Contains(err.Error(), "there") {
		t.Errorf("%v", p)
	}
	s, c := NewMemStore(), ranks(2)
	other := make(chan error, 1)
	go func() { _, err := Join(within(t, limit), s, c[1]); other <- err }()
	c[0].Check = func([]Member) (Answers, error) { panic("here") }
	if p := panicOf(func() { _, _ = Join(within(t, limit), s, c[0]) }); p != "here" {
		t.Errorf("%v", p)
	}
	if err := <-other; !errors.Is(err, ErrUnfit) {
		t.Error(err)
	}
}
