package bootstrap

import (
	"fmt"
	"runtime/debug"
)

// elsewhere calls f on a goroutine of its own, and what f hands to back on the caller's. It returns
// when f has. A goroutine that C has called keeps its thread, so whenever it waits threads change;
// f waits for less. But memory is placed, and CPUs are counted, by the caller's thread.
func elsewhere(f func(back func(g func()))) {
	calls, gone := make(chan func()), make(chan struct{})
	defer close(gone) // where what is called back panics nobody calls any more
	done := make(chan error, 1)
	go func() {
		defer func() {
			if p := recover(); p != nil {
				done <- fmt.Errorf("%v\n%s", p, debug.Stack())
			}
			close(done)
		}()
		f(func(g func()) {
			over := make(chan struct{})
			select {
			case calls <- func() { defer close(over); g() }:
				<-over
			case <-gone:
			}
		})
	}()
	for {
		select {
		case g := <-calls:
			g()
		case err := <-done:
			if err != nil {
				panic(err)
			}
			return
		}
	}
}
