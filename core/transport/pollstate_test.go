package transport

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"
)

var pollNames = []string{"asleep", "kicked", "on-duty", "yields", "used", "oversubscribed"}

// pollWord reads a state as the tests write it: names of bits, and how many wait.
func pollWord(text string) (w uint64) {
	for _, f := range strings.Fields(text) {
		n, bit := uint64(0), false
		for i, name := range pollNames {
			if f == name {
				w, bit = w|1<<i, true
			}
		}
		if !bit {
			if _, err := fmt.Sscanf(f, "%d", &n); err != nil {
				panic(f)
			}
			w += n * pollWaiter
		}
	}
	return w
}

func pollText(w uint64) string {
	var l []string
	for i, name := range pollNames {
		if w>>i&1 == 1 {
			l = append(l, name)
		}
	}
	return strings.Join(append(l, fmt.Sprint(w/pollWaiter)), " ")
}

// The transitions; those without a result give false.
var pollTransitions = map[string]func(*pollState) bool{
	"sleep":    (*pollState).sleep,
	"woke":     func(s *pollState) bool { s.woke(); return false },
	"kick":     (*pollState).kick,
	"start":    func(s *pollState) bool { s.start(); return false },
	"stop":     (*pollState).stop,
	"yield":    (*pollState).yield,
	"yielding": (*pollState).yielding,
	"begin":    func(s *pollState) bool { s.begin(); return false },
	"goOn":     (*pollState).goOn,
	"end":      func(s *pollState) bool { s.end(); return false },
	"read":     func(s *pollState) bool { s.read(); return false },
	"looked":   func(s *pollState) bool { s.looked(); return false },
}

func TestPollState(t *testing.T) {
	for _, c := range []struct {
		from, transition, to string
		result               bool
	}{
		// The holder sleeps, unless it was kicked before, which it forgets then.
		{"0", "sleep", "asleep 0", true},
		{"kicked 0", "sleep", "0", false},
		{"on-duty yields kicked 1", "sleep", "on-duty yields 1", false},
		{"asleep 0", "woke", "0", false},
		{"asleep kicked used 2", "woke", "used 2", false},
		// One kick of a sleeper rings; one of a holder that runs does not, nor does a second one.
		{"0", "kick", "kicked 0", false},
		{"kicked 0", "kick", "kicked 0", false},
		{"asleep 0", "kick", "asleep kicked 0", true},
		{"asleep kicked 0", "kick", "asleep kicked 0", false},
		// With the last that needs it the progress goroutine yields, where it reads.
		{"0", "start", "1", false},
		{"asleep on-duty 1", "start", "asleep on-duty 2", false},
		{"asleep on-duty 2", "stop", "asleep on-duty 1", false},
		{"asleep on-duty 1", "stop", "asleep kicked on-duty yields 0", true},
		{"on-duty 1", "stop", "kicked on-duty yields 0", false},
		{"asleep kicked on-duty 1", "stop", "asleep kicked on-duty yields 0", false},
		{"on-duty yields 1", "stop", "on-duty yields 0", false},
		{"asleep 1", "stop", "asleep 0", false}, // a waiter sleeps
		// It is yields once, and not where a waiter reads.
		{"asleep on-duty 0", "yield", "asleep kicked on-duty yields 0", true},
		{"asleep on-duty 1", "yield", "asleep kicked on-duty yields 1", true},
		{"on-duty 0", "yield", "kicked on-duty yields 0", false},
		{"asleep on-duty yields 0", "yield", "asleep on-duty yields 0", false},
		{"asleep used 0", "yield", "asleep used 0", false},
		{"on-duty yields 0", "yielding", "on-duty yields 0", true},
		{"on-duty yields 1", "yielding", "on-duty yields 1", false},
		{"on-duty 0", "yielding", "on-duty 0", false},
		{"0", "yielding", "0", false},
		// Then it gives the token back, unless another caller needs it.
		{"used oversubscribed 1", "begin", "on-duty used oversubscribed 1", false},
		{"on-duty 0", "goOn", "on-duty 0", true},
		{"on-duty yields 0", "goOn", "on-duty yields 0", false},
		{"on-duty yields 1", "goOn", "on-duty 1", true},
		{"on-duty yields oversubscribed 1", "end", "oversubscribed 1", false},
		{"on-duty 0", "end", "0", false}, // its endpoint ends
		{"0", "read", "used 0", false},
		{"used 0", "read", "used 0", false},
		{"used kicked 1", "looked", "kicked 1", false},
		{"0", "looked", "0", false},
	} {
		var s pollState
		s.word.Store(pollWord(c.from))
		result := pollTransitions[c.transition](&s)
		if to := pollText(s.word.Load()); to != pollText(pollWord(c.to)) || result != c.result {
			t.Errorf("%s in %q: %q, %v; want %q, %v", c.transition, c.from, to, result, c.to,
				c.result)
		}
	}
}

// In every state: a transition changes only what is its own, and the bell rings for a sleeper that
// was not kicked before, and is now.
func TestPollStateKeepsTheRest(t *testing.T) {
	owns := map[string]string{
		"sleep": "asleep kicked", "woke": "asleep kicked", "kick": "kicked", "start": "",
		"stop": "kicked yields", "yield": "kicked yields", "yielding": "",
		"begin": "on-duty", "goOn": "yields", "end": "on-duty yields",
		"read": "used", "looked": "used",
	}
	waiters := map[string]int{"start": 1, "stop": -1}
	for name, f := range pollTransitions {
		for bits := range uint64(1 << len(pollNames)) {
			for waiting := range 3 {
				if waiting+waiters[name] < 0 {
					continue
				}
				var s pollState
				from := bits + uint64(waiting)*pollWaiter
				s.word.Store(from)
				result := f(&s)
				to := s.word.Load()
				if (from^to)&(pollWaiter-1)&^pollWord(owns[name]) != 0 ||
					s.waiting() != waiting+waiters[name] {
					t.Errorf("%s turns %q into %q", name, pollText(from), pollText(to))
				}
				kicks := name == "kick" || name == "yield" || name == "stop"
				if kicks && result != (rings(from) && to&pollKicked != 0) {
					t.Errorf("%s in %q: the bell rings: %v", name, pollText(from), result)
				}
			}
		}
	}
}

// A kick is never lost, whenever it comes: what is set before it is seen by the holder that sleeps.
func TestKicksAreNotLost(t *testing.T) {
	const kicks = 20_000
	var s pollState
	var mu sync.Mutex
	done := 0
	late := time.After(patience)
	bell := make(chan struct{}, kicks)
	go func() {
		for range kicks {
			mu.Lock()
			done++
			mu.Unlock()
			if s.kick() {
				bell <- struct{}{}
			}
		}
	}()
	for seen := 0; seen < kicks; {
		if s.sleep() {
			select {
			case <-bell:
			case <-late:
				t.Fatal("a kick is lost")
			}
			s.woke()
		}
		mu.Lock()
		seen = done
		mu.Unlock()
	}
}
